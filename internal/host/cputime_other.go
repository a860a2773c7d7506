//go:build !unix && !windows

package host

import "time"

// CPUTime is not known here.
func CPUTime() (time.Duration, error) { return 0, ErrUnknown }
