//go:build !linux

package host

// CanPopulate tells that Populate can do something here.
const CanPopulate = false

// Populate does nothing here.
func Populate([]byte) error { return nil }
