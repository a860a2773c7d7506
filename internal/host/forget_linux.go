package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// Forget asks the system to drop f's clean pages from the page cache.
func Forget(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }
