//go:build unix

package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Alloc maps n bytes of zeroed memory, page-aligned and outside the Go heap, so that the collector neither scans nor
// doubles them. Pages take RAM when they are first touched. The caller returns the block with Free.
func Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes outside the heap: the size must be positive", n)
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes outside the heap: %w", n, err)
	}
	return b, nil
}

// Free returns a block that Alloc gave, whole. Its bytes must not be touched afterwards.
func Free(b []byte) error {
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}

// AdviseRandom tells the system that b, a file mapping, is read in no order: no read-ahead.
func AdviseRandom(b []byte) error { return unix.Madvise(b, unix.MADV_RANDOM) }

// AdviseWillNeed asks the system to start reading b, part of a file mapping whose first byte is page-aligned.
func AdviseWillNeed(b []byte) error { return unix.Madvise(b, unix.MADV_WILLNEED) }
