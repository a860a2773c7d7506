//go:build !windows && (!unix || solaris || aix)

package host

import "os"

// tryLock has nothing to lock with on this port.
func tryLock(*os.File) (bool, error) { return true, nil }
