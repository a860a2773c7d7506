//go:build unix

package host

import (
	"syscall"
	"time"
)

// CPUTime is how long this process has run on processors, in user and system mode together, all threads.
func CPUTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
