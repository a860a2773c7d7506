//go:build !unix

package host

import "fmt"

// Allocated is how many bytes of a file the disk holds; here nobody tells.
func Allocated(string) (int64, error) {
	return 0, fmt.Errorf("bytes that a file holds: %w", ErrUnknown)
}
