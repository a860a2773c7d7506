package kernels

import (
	"encoding/binary"

	"terrace/quant"
)

func half(b []byte) float32 { return quant.F16ToF32(binary.LittleEndian.Uint16(b)) }

// F32ToF16 stores src as little-endian binary16 in dst, which needs 2*len(src) bytes: ties to even, overflow to
// infinity, NaN kept quiet.
func F32ToF16(dst []byte, src []float32) {
	if len(dst) < 2*len(src) {
		panicf("kernels: F32ToF16 of %d values into %d bytes", len(src), len(dst))
	}
	if len(src) > 0 {
		current().toHalf(dst, src)
	}
}

func toHalfGeneric(dst []byte, src []float32) {
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], quant.F32ToF16(f))
	}
}
