//go:build faults

package fault

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// On says whether this build can let things go wrong.
const On = true

// state is the plan in force with its draws.
type state struct {
	Plan
	mu  sync.Mutex
	rng *rand.Rand
	n   Count
}

var (
	now  atomic.Pointer[state]
	skew atomic.Int64 // of the clock, in nanoseconds
)

// Set puts a plan in force and counts anew; nil ends all faults and sets the clock right.
func Set(p *Plan) {
	if p == nil {
		now.Store(nil)
		skew.Store(0)
		return
	}
	now.Store(&state{Plan: *p, rng: rand.New(rand.NewPCG(p.Seed, 0xfa017))})
}

// Counts is what went wrong since Set.
func Counts() (c Count) {
	if s := now.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		c = s.n
	}
	return c
}

// draw decides about one occasion.
func (s *state) draw(chance int, n *int64) bool {
	if chance <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rng.IntN(10_000) >= chance {
		return false
	}
	*n++
	return true
}

func (s *state) below(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}

// Read is what becomes of a read that put n bytes into b.
func Read(b []byte, n int, err error) (int, error) {
	s := now.Load()
	if s == nil || err != nil && err != io.EOF {
		return n, err
	}
	if s.draw(s.ReadSlow, &s.n.ReadSlow) {
		time.Sleep(s.Slow)
	}
	switch {
	case s.draw(s.ReadError, &s.n.ReadErrors):
		return 0, syscall.EIO
	case n > 0 && s.draw(s.ReadShort, &s.n.ReadShort):
		return s.below(n), io.EOF
	}
	return n, err
}

// Wrong changes a bit of what was read, or not, and says which.
func Wrong(b []byte) bool {
	s := now.Load()
	if s == nil || len(b) == 0 || !s.draw(s.ReadWrong, &s.n.ReadWrong) {
		return false
	}
	b[s.below(len(b))] ^= 1 << s.below(8)
	return true
}

// Memory refuses a request for memory, or not.
func Memory(bytes int64) error {
	if s := now.Load(); s != nil && s.draw(s.Plan.Memory, &s.n.Memory) {
		return fmt.Errorf("take %d bytes of memory: %w", bytes, syscall.ENOMEM)
	}
	return nil
}

// DeviceMemory refuses a request for a GPU's memory, or not.
func DeviceMemory(bytes int64) error {
	if s := now.Load(); s != nil && s.draw(s.Device, &s.n.Device) {
		return fmt.Errorf("take %d bytes of the device's memory: %w", bytes, syscall.ENOMEM)
	}
	return nil
}

// DeviceLost says why a GPU is gone, or nil.
func DeviceLost() error {
	if s := now.Load(); s != nil && s.draw(s.Plan.DeviceLost, &s.n.DeviceLost) {
		return fmt.Errorf("the device is lost: %w", syscall.ENODEV)
	}
	return nil
}

// Write says why n bytes of a state file cannot be written, or nil.
func Write(n int) error {
	if s := now.Load(); s != nil && s.draw(s.DiskFull, &s.n.DiskFull) {
		return fmt.Errorf("write %d bytes: %w", n, syscall.ENOSPC)
	}
	return nil
}

// Machine is the file system in which the kernel's files are read: the plan's if it has one.
func Machine(dflt fs.FS) fs.FS {
	if s := now.Load(); s != nil && s.Plan.Machine != nil {
		return s.Plan.Machine
	}
	return dflt
}

// Now is the time by a clock that may have jumped. It is a wall clock: differences see the jumps.
func Now() time.Time {
	s := now.Load()
	if s == nil {
		return time.Now()
	}
	if s.draw(s.ClockJump, &s.n.ClockJumps) {
		day := 24 * time.Hour
		skew.Store(int64(day) * int64(s.below(2001)-1000) / 1000)
	}
	return time.Now().Add(time.Duration(skew.Load())).Round(0)
}

// Since is the time since t by that clock.
func Since(t time.Time) time.Duration { return Now().Sub(t) }
