// Package host asks the operating system what the other rooms must know about the machine: page-aligned memory outside
// the Go heap, how much RAM there is and may be used, direct file access, processor cores.
//
// It decides nothing: budgets, stores and worker counts are chosen above it. Each operating system has its own file, and
// a file named other answers for the rest.
package host

import (
	"errors"
	"os"
	"runtime"
)

// ErrUnknown is wrapped by questions this operating system, or this port of the room, has no answer to.
var ErrUnknown = errors.New("not known on this system")

// IOAlign is the alignment, in bytes, of file offsets, lengths and buffer addresses that direct reads need. Disks ask for
// 512 or 4096; the larger serves both.
const IOAlign = 4096

// PageSize is the size of a memory page in bytes.
func PageSize() int { return os.Getpagesize() }

// LogicalCores is the number of processors this process may run on.
func LogicalCores() int { return runtime.NumCPU() }

// PhysicalCores is the number of cores without counting hardware threads twice, at most LogicalCores. Where the system
// does not say, it is LogicalCores.
func PhysicalCores() int {
	n := physicalCores()
	if n < 1 || n > runtime.NumCPU() {
		return runtime.NumCPU()
	}
	return n
}

// Memory is a snapshot of the machine's RAM in bytes.
type Memory struct {
	Total     int64 // installed and visible to the system
	Available int64 // can be had without swapping; 0 when the system does not say
}

// RAM reads the machine's memory sizes. Limits of a container are not part of it: see MemoryLimit.
func RAM() (Memory, error) { return ram() }

// Resident is how much of this process lies in RAM, in bytes; a field the system does not tell is 0.
type Resident struct {
	Peak int64 // largest resident set so far (VmHWM)
	Now  int64 // resident set
	Anon int64 // the part of Now that is not backed by files
}

// RSS reads the resident sizes of this process.
func RSS() (Resident, error) { return rss() }

// openFile opens path for reading and refuses a directory, which would open too.
func openFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && fi.IsDir() {
		err = &os.PathError{Op: "open", Path: path, Err: errors.New("is a directory")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
