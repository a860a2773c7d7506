package host

import (
	"time"

	"golang.org/x/sys/windows"
)

// CPUTime is how long this process has run on processors, in user and system mode together, all threads.
func CPUTime() (time.Duration, error) {
	var created, ended, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &ended, &kernel, &user); err != nil {
		return 0, err
	}
	ticks := func(f windows.Filetime) int64 { return int64(f.HighDateTime)<<32 | int64(f.LowDateTime) } // of 100 ns
	return time.Duration(ticks(kernel)+ticks(user)) * 100, nil
}
