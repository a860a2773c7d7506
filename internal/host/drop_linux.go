package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// DropCached asks the system to drop n bytes of f at off, and the rest of their pages, from the page cache, where reading
// has left them. It counts against the memory of the process's control group until then.
func DropCached(f *os.File, off, n int64) error {
	page := int64(PageSize())
	from := off / page * page
	return unix.Fadvise(int(f.Fd()), from, (off+n+page-1)/page*page-from, unix.FADV_DONTNEED)
}

// DropMapped takes the pages of b, whole pages of a file mapping, out of the process; what is touched again is read anew.
func DropMapped(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// NoReadAhead asks the system to read of f what is asked for and nothing after it.
func NoReadAhead(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) }
