// Package fault is where builds with the tag "faults" let things go wrong: reads, memory, the disk of state files, the clock
// and what the kernel tells about memory.
//
// It is not an error handler, and in builds without the tag there is nothing of it: On is false, every function is empty and
// is compiled away with the branch that calls it.
//
// A room asks at the place where the system would answer:
//
//	n, err := f.ReadAt(b, off)
//	if fault.On {
//		n, err = fault.Read(b, n, err)
//	}
package fault

import (
	"io/fs"
	"time"
)

// Plan says what goes wrong, and how often. Chances are per 10,000 occasions; the zero value is a sound machine.
type Plan struct {
	Seed uint64 // of the draws: the same seed draws the same numbers, in the order in which goroutines ask

	ReadError  int           // reads that fail with EIO
	ReadShort  int           // reads that end before they should
	ReadSlow   int           // reads that take Slow
	Slow       time.Duration // ten seconds of a sick disk, on a clock that may run faster
	ReadWrong  int           // reads of experts with a changed bit, of those that are compared with checksums
	Memory     int           // requests for memory outside the Go heap that are refused
	Device     int           // the same for memory of a GPU
	DeviceLost int           // submissions to a GPU after which it is gone
	DiskFull   int           // writes of state files that find no room
	ClockJump  int           // looks at the clock before which it jumps, either way by up to a day

	Machine fs.FS // takes the place of the kernel's files (host.NewWatch); nil: they are read
}

// Count is what went wrong since Set.
type Count struct {
	ReadErrors, ReadShort, ReadSlow, ReadWrong, Memory, Device, DeviceLost, DiskFull, ClockJumps int64
}

// Sum is all of them.
func (c Count) Sum() int64 {
	return c.ReadErrors + c.ReadShort + c.ReadSlow + c.ReadWrong + c.Memory + c.Device + c.DeviceLost + c.DiskFull + c.ClockJumps
}
