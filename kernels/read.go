package kernels

import "encoding/binary"

// readBytes is what one call into assembly reads: tens of microseconds.
const readBytes = 1 << 20

// ReadLoop returns the sum of b's little-endian 64-bit words, the last one padded with zeros. It reads as fast as the
// level's widest loads allow and does nothing else, so its time is the least that any kernel can take over b.
func ReadLoop(b []byte) uint64 { return current().readLoop(b) }

func readLoopGeneric(b []byte) (sum uint64) {
	for ; len(b) >= 8; b = b[8:] {
		sum += binary.LittleEndian.Uint64(b)
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		sum += binary.LittleEndian.Uint64(last[:])
	}
	return sum
}
