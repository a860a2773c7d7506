//go:build unix

package kernels

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// guarded returns n bytes before a page that must not be touched, and a function that frees them.
func guarded(t *testing.T, n int) ([]byte, func()) {
	page := os.Getpagesize()
	size := (n + page - 1) / page * page
	b, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(b[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return b[size-n : size : size], func() {
		if err := unix.Munmap(b); err != nil {
			t.Fatal(err)
		}
	}
}
