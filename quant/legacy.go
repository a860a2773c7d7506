package quant

// The types of 32 elements with one half-precision scale. Where two elements share byte j of qs, element j has the low
// nibble and element j+16 the high one; the fifth bits of Q5_0 and Q5_1 lie apart, bit i for element i.

// decodeQ4_0: d f16 @0, qs[16] @2; d*(q-8).
func decodeQ4_0(dst []float32, src []byte) {
	d, qs := f16(src, 0), src[2:18]
	for j, b := range qs {
		dst[j] = float32(int(lo4(b))-8) * d
		dst[j+16] = float32(int(hi4(b))-8) * d
	}
}

// decodeQ4_1: d f16 @0, m f16 @2, qs[16] @4; d*q + m.
func decodeQ4_1(dst []float32, src []byte) {
	d, m, qs := f16(src, 0), f16(src, 2), src[4:20]
	for j, b := range qs {
		dst[j] = float32(float32(lo4(b))*d) + m
		dst[j+16] = float32(float32(hi4(b))*d) + m
	}
}

// fifth returns the code of element i whose low four bits are low.
func fifth(low byte, qh uint32, i int) int { return int(low) | int(qh>>i&1)<<4 }

// decodeQ5_0: d f16 @0, qh u32 @2, qs[16] @6; d*(q-16).
func decodeQ5_0(dst []float32, src []byte) {
	d, qh, qs := f16(src, 0), u32(src, 2), src[6:22]
	for j, b := range qs {
		dst[j] = float32(fifth(lo4(b), qh, j)-16) * d
		dst[j+16] = float32(fifth(hi4(b), qh, j+16)-16) * d
	}
}

// decodeQ5_1: d f16 @0, m f16 @2, qh u32 @4, qs[16] @8; d*q + m.
func decodeQ5_1(dst []float32, src []byte) {
	d, m, qh, qs := f16(src, 0), f16(src, 2), u32(src, 4), src[8:24]
	for j, b := range qs {
		dst[j] = float32(float32(fifth(lo4(b), qh, j))*d) + m
		dst[j+16] = float32(float32(fifth(hi4(b), qh, j+16))*d) + m
	}
}

// decodeQ8_0: d f16 @0, int8 qs[32] @2; d*q.
func decodeQ8_0(dst []float32, src []byte) {
	d, qs := f16(src, 0), src[2:34]
	for j, b := range qs {
		dst[j] = float32(int8(b)) * d
	}
}
