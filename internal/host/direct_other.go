//go:build !linux && !darwin

package host

import "os"

// OpenDirect opens path for ordinary reading: this port knows no way past the page cache here, so direct is false.
func OpenDirect(path string) (f *os.File, direct bool, err error) {
	f, err = openFile(path)
	return f, false, err
}
