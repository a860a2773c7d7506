package host

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Alloc reserves and commits n bytes of zeroed memory, page-aligned and outside the Go heap, so that the collector
// neither scans nor doubles them. The caller returns the block with Free.
func Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes outside the heap: the size must be positive", n)
	}
	p, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes outside the heap: %w", n, err)
	}
	// The address is the system's, not the collector's, so the conversion through a pointer to it is safe.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n), nil
}

// Free returns a block that Alloc gave, whole. Its bytes must not be touched afterwards.
func Free(b []byte) error {
	if b == nil {
		return nil
	}
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}

// AdviseRandom does nothing here: the system takes no such advice about mappings.
func AdviseRandom([]byte) error { return nil }

// AdviseWillNeed does nothing here.
func AdviseWillNeed([]byte) error { return nil }
