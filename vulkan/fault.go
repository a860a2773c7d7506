package vulkan

import (
	"sync/atomic"

	"terrace/internal/fault"
)

// Fault has a device fail where a test wants it: it counts down to 0 and stays there. The zero value never fails.
type Fault struct {
	// Lose: from this submission on, counted from 1, the device is lost. Refuse: allocations fail from this one on, Refusals of
	// them (0: all). 0: never.
	Lose, Refuse, Refusals atomic.Int64

	submitted, allocated atomic.Int64
}

// Submitted and Allocated count what was asked for.
func (f *Fault) Submitted() int64 { return f.submitted.Load() }

// Allocated counts allocations.
func (f *Fault) Allocated() int64 { return f.allocated.Load() }

// lost tells whether the device is lost; with more a submission is counted.
func (f *Fault) lost(more bool) bool {
	if f == nil {
		return false
	}
	if more {
		f.submitted.Add(1)
	}
	n := f.Lose.Load()
	return n > 0 && f.submitted.Load() >= n
}

// refused tells whether an allocation of n bytes, which is counted, fails.
func (f *Fault) refused(n int64) bool {
	if fault.On && fault.DeviceMemory(n) != nil {
		return true
	}
	if f == nil {
		return false
	}
	at, from, some := f.allocated.Add(1), f.Refuse.Load(), f.Refusals.Load()
	return from > 0 && at >= from && (some == 0 || at < from+some)
}
