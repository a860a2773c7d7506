package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal says whether f is a terminal: a person types or reads there. Other character devices, the null device among
// them, are none.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
