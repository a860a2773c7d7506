package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is how long the calling thread has run on a CPU; false where the system does not tell.
func threadTime() (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
