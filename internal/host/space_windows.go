package host

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Reserve takes n bytes of addresses and no memory. The caller returns them with Free.
func Reserve(n int) (*Space, error) {
	if n <= 0 {
		return nil, fmt.Errorf("reserve %d bytes of addresses: the size must be positive", n)
	}
	p, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
	}
	// As in Alloc: the address is the system's.
	return &Space{Mem: unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n)}, nil
}

// Commit makes a page-aligned part usable. It reads as zeros.
func (s *Space) Commit(b []byte) error {
	_, err := windows.VirtualAlloc(uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return fmt.Errorf("take %d bytes of memory: %w", len(b), err)
	}
	return nil
}

// Release gives the memory of a page-aligned part back to the system at once. The part must not be touched until it is
// committed again; its bytes are lost.
func (s *Space) Release(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), windows.MEM_DECOMMIT)
}

// Free returns the whole range.
func (s *Space) Free() error { return Free(s.Mem) }

// AdviseSmall does nothing here: the system has no such advice.
func AdviseSmall([]byte) error { return nil }

// SplitHuge does nothing here: there are no huge pages.
func SplitHuge([]byte) error { return nil }

// HugePage is 0: nobody asks for huge pages here.
const HugePage = 0
