//go:build !linux

package bench

import "time"

// threadTime is how long the calling thread has run on a CPU; false where the system does not tell.
func threadTime() (time.Duration, bool) { return 0, false }
