//go:build (amd64 || arm64) && !noasm

package cpu

// pause tells the processor that the caller spins; it takes about 0.1 us.
//
//go:noescape
func pause()
