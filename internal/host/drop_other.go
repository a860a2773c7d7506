//go:build !linux

package host

import "os"

// DropCached does nothing here: the system takes no such advice.
func DropCached(*os.File, int64, int64) error { return nil }

// DropMapped does nothing here: the system takes no such advice.
func DropMapped([]byte) error { return nil }

// NoReadAhead does nothing here: the system takes no such advice.
func NoReadAhead(*os.File) error { return nil }
