//go:build !unix && !windows

package host

import (
	"fmt"
	"unsafe"
)

// Alloc makes n bytes, aligned to a page. This system has no mappings, so the block lies in the Go heap and the collector
// counts it.
func Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: the size must be positive", n)
	}
	p := PageSize()
	b := make([]byte, n+p)
	skip := (p - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(p))) % p
	return b[skip : skip+n : skip+n], nil
}

// Free leaves the block to the collector.
func Free([]byte) error { return nil }

// AdviseRandom does nothing here.
func AdviseRandom([]byte) error { return nil }

// AdviseWillNeed does nothing here.
func AdviseWillNeed([]byte) error { return nil }
