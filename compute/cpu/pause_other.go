//go:build !(amd64 || arm64) || noasm

package cpu

// pause passes a few cycles of a spinning loop.
func pause() {
	for i := 0; i < 32; i++ {
		_ = i
	}
}
