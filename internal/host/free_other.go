//go:build !linux && !darwin && !windows

package host

import "errors"

// DiskFree would be how many bytes this process may still write in the file system of dir.
func DiskFree(string) (int64, error) { return 0, errors.ErrUnsupported }
