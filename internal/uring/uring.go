// Package uring reads files through a Linux io_uring: requests go into a ring shared with the kernel, many with one
// system call, and completions are picked up from another.
//
// It knows neither experts nor priorities, and it does nothing but read. On systems without io_uring Open answers
// ErrUnavailable.
package uring

import (
	"errors"
	"os"
)

// ErrUnavailable is wrapped by Open where io_uring is missing, too old or forbidden.
var ErrUnavailable = errors.New("io_uring is not available")

// Options configure a Ring.
type Options struct {
	// Entries is how many reads may be under way; 1 to 4096.
	Entries int
	// Files are those that reads name by index. They must stay open until Close.
	Files []*os.File
	// Complete is told about each read: its tag and the number of bytes read, or a negative error number. It is called on
	// several goroutines, none of the ring's locks held, and may queue further reads.
	Complete func(tag uint64, n int32)
	// Batch, if not nil, is called after Complete was called for what was found at once, under the same terms.
	Batch func()
	// NoRegister leaves files and memory unregistered, as where the system forbids it; for tests and comparisons.
	NoRegister bool
}

// Slots is how many slots' memory is registered at the same time. The kernel would take 1 << 14, but to charge each page
// once it looks through all pages registered before whenever it meets a huge one: 1,536 slots of 2.7 MB took 7 to 10
// seconds of processor time. Slots beyond are read into unregistered, which costs some 0.01 to 0.02 s per GB.
const Slots = 192

// MaxSlot is the most bytes that one of them may have.
const MaxSlot = 1 << 30
