//go:build !linux

package host

import "os"

// Forget does nothing here: the system takes no such advice.
func Forget(*os.File) error { return nil }
