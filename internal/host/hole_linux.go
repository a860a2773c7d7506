package host

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// HasData says whether all of n bytes of a file from off on lie on its disk: none of them is in a hole, which is read as zeros
// without the disk. A file system that cannot tell has data everywhere.
func HasData(f *os.File, off, n int64) bool {
	at, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return false
	}
	if err != nil {
		return true
	}
	if at != off {
		return false
	}
	end, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE)
	return err != nil || end >= off+n
}
