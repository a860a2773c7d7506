//go:build unix

package host

import (
	"os"
	"syscall"
)

// Allocated is how many bytes of a file the disk holds; holes do not count, and compression makes it less than the size.
func Allocated(path string) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return int64(st.Blocks) * 512, nil
}
