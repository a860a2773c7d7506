//go:build !unix

package kernels

import "testing"

// guarded returns n bytes; here without a page behind them.
func guarded(_ *testing.T, n int) ([]byte, func()) { return make([]byte, n), func() {} }
