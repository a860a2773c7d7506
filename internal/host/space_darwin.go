package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Reserve takes n bytes of addresses and no memory. The caller returns them with Free.
func Reserve(n int) (*Space, error) {
	if n <= 0 {
		return nil, fmt.Errorf("reserve %d bytes of addresses: the size must be positive", n)
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
	}
	return &Space{Mem: b}, nil
}

// Commit makes a page-aligned part usable. It takes RAM as it is touched. The answer is advice: a part that was never
// released refuses it.
func (s *Space) Commit(b []byte) error {
	_ = unix.Madvise(b, unix.MADV_FREE_REUSE)
	return nil
}

// Release gives the memory of a page-aligned part back: the system stops counting it at once and takes it when it needs
// some. The part must not be touched until it is committed again.
func (s *Space) Release(b []byte) error { return unix.Madvise(b, unix.MADV_FREE_REUSABLE) }

// Free returns the whole range.
func (s *Space) Free() error { return Free(s.Mem) }

// AdviseSmall does nothing here: the system has no such advice.
func AdviseSmall([]byte) error { return nil }

// SplitHuge does nothing here: there are no huge pages.
func SplitHuge([]byte) error { return nil }

// HugePage is 0: nobody asks for huge pages here.
const HugePage = 0
