//go:build unix && !solaris && !aix

package host

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks f if nobody else has; closing f unlocks it.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK):
			return true, nil // a file system without locks
		default:
			return false, err
		}
	}
}
