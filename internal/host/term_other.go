//go:build !linux && !darwin && !windows

package host

import "os"

// IsTerminal says whether f is a character device other than the null device; this port cannot ask closer.
func IsTerminal(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}
