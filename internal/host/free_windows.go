package host

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// DiskFree is how many bytes this process may still write in the file system of dir.
func DiskFree(dir string) (int64, error) {
	p, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free, total, all uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, &total, &all); err != nil {
		return 0, fmt.Errorf("room on the disk of %s: %w", dir, err)
	}
	return int64(free), nil
}
