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

// Registers is never called, for want of a Ring.
func (*Ring) Registers() (files bool, memory error) { return false, ErrUnavailable }

// Attach is never called.
func (*Ring) Attach(slot int, mem []byte) {}

// Detach is never called.
func (*Ring) Detach(slot int) {}

// Read is never called.
func (*Ring) Read(file int, off int64, b []byte, slot int, tag uint64) (registered bool) {
	return false
}

// Flush is never called.
func (*Ring) Flush() {}

// Poll is never called.
func (*Ring) Poll() {}

// Close is never called.
func (*Ring) Close() error { return nil }
