//go:build !linux

package uring

import (
	"fmt"
	"runtime"
)

// Ring cannot exist on this system.
type Ring struct{}

// Open answers ErrUnavailable.
func Open(Options) (*Ring, error) {
	return nil, fmt.Errorf("%w on %s", ErrUnavailable, runtime.GOOS)
}

// RegisterBuffers is never called, for want of a Ring.
func (*Ring) RegisterBuffers([][]byte) error { return ErrUnavailable }

// RegisteredFiles is never called.
func (*Ring) RegisteredFiles() bool { return false }

// Read is never called.
func (*Ring) Read(file int, off int64, b []byte, buffer int, tag uint64) {}

// Flush is never called.
func (*Ring) Flush() {}

// Poll is never called.
func (*Ring) Poll() {}

// Close is never called.
func (*Ring) Close() error { return nil }
