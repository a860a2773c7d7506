//go:build linux || darwin

package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DiskFree is how many bytes this process may still write in the file system of dir.
func DiskFree(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("room on the disk of %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}
