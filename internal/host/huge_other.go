//go:build !linux

package host

// AdviseHuge does nothing here: the system has no such advice.
func AdviseHuge([]byte) error { return nil }
