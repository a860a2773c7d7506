//go:build !linux

package host

import "os"

// FileStamp reads the stamp of an open file.
func FileStamp(f *os.File) (Stamp, error) {
	fi, err := f.Stat()
	if err != nil {
		return Stamp{}, err
	}
	return Stamp{fi.Size(), fi.ModTime().UnixNano()}, nil
}
