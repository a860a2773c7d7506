package host

import (
	"os"

	"golang.org/x/sys/windows"
)

// IsTerminal says whether f is a console: a person types or reads there.
func IsTerminal(f *os.File) bool {
	var mode uint32
	return windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) == nil
}
