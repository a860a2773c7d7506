//go:build unix

package host

import (
	"fmt"
	"os"
	"syscall"
)

// Device names the block device or file system that holds path, the same for all files on it: the system's device number.
// The number may change when the machine starts anew with other disks.
func Device(path string) (string, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("dev-%x", uint64(st.Dev)), nil
}
