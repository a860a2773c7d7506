//go:build !unix

package host

import "os"

// FileSize is the size of an open file in bytes.
func FileSize(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
