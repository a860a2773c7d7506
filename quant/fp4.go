package quant

import "math"

// The types made of four-bit floating-point numbers (E2M1) under eight-bit floating-point scales.

// FP4x2 are the E2M1 numbers times two, by code: sign, two exponent bits, one bit of mantissa. The decoded scales
// E8M0Half and UE4M3Half are halved to make up for it.
var FP4x2 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// E8M0Half is half of the power of two that the byte e of an MXFP4 block stands for: 2^(e-128). Byte 255, a NaN for the
// microscaling standard, is 2^127 here, as ggml has it.
func E8M0Half(e uint8) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e) // subnormal in float32
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// UE4M3Half is half of the unsigned E4M3 number b (bias 7) of an NVFP4 block. The top bit is ignored; 0x7f, a NaN
// elsewhere, is 0.
func UE4M3Half(b uint8) float32 {
	exp, man := int(b>>3&15), float32(b&7)
	switch {
	case b == 0x7f: // 0xff is no NaN to ggml and runs on below
		return 0
	case exp == 0:
		return man * (1.0 / (1 << 10))
	}
	return float32(math.Ldexp(float64(8+man), exp-11))
}

// decodeMXFP4: e u8 @0, qs[16] @1, nibbles as in Q4_0; E8M0Half(e)*FP4x2[q].
func decodeMXFP4(dst []float32, src []byte) {
	d, qs := E8M0Half(src[0]), src[1:17]
	for j, b := range qs {
		dst[j] = float32(FP4x2[lo4(b)]) * d
		dst[j+16] = float32(FP4x2[hi4(b)]) * d
	}
}

// decodeNVFP4: 64 elements in four sub-blocks of 16; d[4] u8 @0, qs[32] @4: element k of sub-block s is the low nibble of
// qs[8s+k], element k+8 the high one; UE4M3Half(d[s])*FP4x2[q].
func decodeNVFP4(dst []float32, src []byte) {
	for s := range 4 {
		d := UE4M3Half(src[s])
		for k, b := range src[4+8*s : 12+8*s] {
			dst[16*s+k] = float32(FP4x2[lo4(b)]) * d
			dst[16*s+k+8] = float32(FP4x2[hi4(b)]) * d
		}
	}
}
