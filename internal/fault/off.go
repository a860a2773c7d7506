//go:build !faults

package fault

import (
	"io/fs"
	"time"
)

// On says whether this build can let things go wrong.
const On = false

// Set does nothing in this build.
func Set(*Plan) {}

// Counts is empty in this build.
func Counts() (c Count) { return c }

// Read is the read as it was.
func Read(b []byte, n int, err error) (int, error) { return n, err }

// Wrong changes nothing.
func Wrong([]byte) bool { return false }

// Memory refuses nothing.
func Memory(int64) error { return nil }

// DeviceMemory refuses nothing.
func DeviceMemory(int64) error { return nil }

// DeviceLost is never so.
func DeviceLost() error { return nil }

// Write refuses nothing.
func Write(int) error { return nil }

// Machine is dflt.
func Machine(dflt fs.FS) fs.FS { return dflt }

// Now is time.Now.
func Now() time.Time { return time.Now() }

// Since is time.Since.
func Since(t time.Time) time.Duration { return time.Since(t) }
