package host

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reserve takes n bytes of addresses and no memory. The caller returns them with Free.
func Reserve(n int) (*Space, error) {
	if n <= 0 {
		return nil, fmt.Errorf("reserve %d bytes of addresses: the size must be positive", n)
	}
	// Pages that nobody touched count as promised memory, and more of that than the machine has is refused, unless the
	// mapping says that it does not reserve. Systems set to promise nothing they do not have pass over that word: there
	// the range is unusable at first and each part counts from its Commit on.
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err == nil {
		return &Space{Mem: b}, nil
	}
	if errors.Is(err, unix.ENOMEM) {
		return reserveStrict(n)
	}
	return nil, fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
}

func reserveStrict(n int) (*Space, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
	}
	return &Space{Mem: b, strict: true}, nil
}

// Commit makes a page-aligned part usable. It reads as zeros and takes RAM as it is touched.
func (s *Space) Commit(b []byte) error {
	if !s.strict {
		return nil
	}
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("take %d bytes of memory: %w", len(b), err)
	}
	return nil
}

// Release gives the memory of a page-aligned part back to the system at once. The part must not be touched until it is
// committed again; its bytes are lost.
func (s *Space) Release(b []byte) error {
	if s.strict { // a new mapping in its place, so that it is not counted as promised any more
		_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_NONE,
			unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED)
		return err
	}
	return unix.Madvise(b, unix.MADV_DONTNEED)
}

// Free returns the whole range.
func (s *Space) Free() error { return Free(s.Mem) }

// AdviseSmall asks that no huge pages lie under b, so that a touched page takes no memory around it.
func AdviseSmall(b []byte) error { return unix.Madvise(b, unix.MADV_NOHUGEPAGE) }

// SplitHuge makes the huge page that b may be into small ones, now and for good. Without it the memory of a part that is
// given back stays with the process's control group until the system is short of memory.
func SplitHuge(b []byte) error {
	if err := AdviseSmall(b); err != nil {
		return err
	}
	// Advice about a part of a huge page is what makes the kernel split it; this one costs no more than that.
	return unix.Madvise(b[:min(len(b), PageSize())], unix.MADV_COLD)
}

// HugePage is the size of a huge page in bytes.
const HugePage = 2 << 20
