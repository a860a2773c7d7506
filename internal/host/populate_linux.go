package host

import "golang.org/x/sys/unix"

// CanPopulate tells that Populate can do something here.
const CanPopulate = true

// Populate gives a page-aligned part of an anonymous mapping its memory, as the first write to each page would (Linux 5.14
// and later; older ones answer an error).
func Populate(b []byte) error { return unix.Madvise(b, unix.MADV_POPULATE_WRITE) }
