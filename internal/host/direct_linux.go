package host

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// OpenDirect opens path for reading past the page cache. direct says whether that works there: file systems that refuse
// it (found by one small read, since some refuse only then) give an ordinary file and false. With direct true, offsets,
// lengths and addresses of reads must be multiples of IOAlign.
func OpenDirect(path string) (f *os.File, direct bool, err error) {
	f, err = os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err == nil {
		ok, err := directReads(f)
		if ok && err == nil {
			return f, true, nil
		}
		f.Close()
		if err != nil {
			return nil, false, err
		}
	} else if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return nil, false, err
	}
	f, err = openFile(path)
	return f, false, err
}

// directReads tries one aligned block. An error that an ordinary read would also meet is returned.
func directReads(f *os.File) (bool, error) {
	b, err := Alloc(IOAlign)
	if err != nil {
		return false, err
	}
	defer Free(b)
	for {
		_, err = unix.Pread(int(f.Fd()), b, 0)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP):
			return false, nil
		default:
			return false, &os.PathError{Op: "read", Path: f.Name(), Err: err}
		}
	}
}
