package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpenDirect opens path for reading with caching off (F_NOCACHE). direct says whether the system accepted that; reads
// need no alignment then, but aligned ones are the fast ones.
func OpenDirect(path string) (f *os.File, direct bool, err error) {
	f, err = openFile(path)
	if err != nil {
		return nil, false, err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_NOCACHE, 1)
	return f, err == nil, nil
}
