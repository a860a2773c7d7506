package quant

// The K-quants: super-blocks of 256 elements whose sub-blocks of 16 or 32 have small integer scales under one or two
// half-precision ones. Q2_K, Q3_K and Q6_K split the element number as i = 128h + 32c + l (h 0..1, c 0..3, l 0..31).

// decodeQ2K: scales[16] @0, qs[64] @16, d f16 @80, dmin f16 @82. Sub-block i/16 has its scale in the low nibble of
// scales and its minimum in the high one; d*scale*q - dmin*min, q 0..3.
func decodeQ2K(dst []float32, src []byte) {
	scales, qs := src[:16], src[16:80]
	d, dmin := f16(src, 80), f16(src, 82)
	for i := range dst {
		h, c, l := i/128, i/32%4, i%32
		s := scales[i/16]
		q := qs[32*h+l] >> (2 * c) & 3
		dl, ml := d*float32(lo4(s)), float32(dmin*float32(hi4(s)))
		dst[i] = float32(dl*float32(q)) - ml
	}
}

// ScaleQ3K returns the six-bit scale, less 32, of the sub-block of 16 number g (0..15) from the 12 scale bytes of a Q3_K
// block: -32..31.
func ScaleQ3K(scales []byte, g int) int {
	low := hi4(scales[g%8])
	if g < 8 {
		low = lo4(scales[g])
	}
	high := scales[8+g%4] >> (2 * (g / 4)) & 3
	return int(low|high<<4) - 32
}

// decodeQ3K: hmask[32] @0, qs[64] @32, scales[12] @96, d f16 @108; d*scale*q, q -4..3: a clear bit in hmask takes 4 off.
func decodeQ3K(dst []float32, src []byte) {
	hmask, qs, scales, d := src[:32], src[32:96], src[96:108], f16(src, 108)
	for i := range dst {
		h, c, l := i/128, i/32%4, i%32
		q := int(qs[32*h+l] >> (2 * c) & 3)
		if hmask[l]>>(4*h+c)&1 == 0 {
			q -= 4
		}
		dl := d * float32(ScaleQ3K(scales, i/16))
		dst[i] = dl * float32(q)
	}
}

// ScaleMinK4 returns the six-bit scale and minimum, both 0..63, of the sub-block of 32 number g (0..7) from the 12 scale
// bytes of a Q4_K or Q5_K block.
func ScaleMinK4(scales []byte, g int) (scale, min uint8) {
	if g < 4 {
		return scales[g] & 63, scales[g+4] & 63
	}
	return lo4(scales[g+4]) | scales[g-4]>>6<<4, hi4(scales[g+4]) | scales[g]>>6<<4
}

// nibbleK4 is the four-bit code of element i of a Q4_K or Q5_K block: even sub-blocks of 32 in the low nibbles.
func nibbleK4(qs []byte, i int) byte {
	g, l := i/32, i%32
	return qs[32*(g/2)+l] >> (4 * (g % 2)) & 15
}

// decodeQ4K: d f16 @0, dmin f16 @2, scales[12] @4, qs[128] @16; d*scale*q - dmin*min, q 0..15.
func decodeQ4K(dst []float32, src []byte) {
	d, dmin, scales, qs := f16(src, 0), f16(src, 2), src[4:16], src[16:144]
	for i := range dst {
		sc, mn := ScaleMinK4(scales, i/32)
		dl, ml := d*float32(sc), float32(dmin*float32(mn))
		dst[i] = float32(dl*float32(nibbleK4(qs, i))) - ml
	}
}

// decodeQ5K: d f16 @0, dmin f16 @2, scales[12] @4, qh[32] @16, qs[128] @48; d*scale*q - dmin*min, q 0..31, its fifth bit
// is bit i/32 of qh[i%32].
func decodeQ5K(dst []float32, src []byte) {
	d, dmin, scales, qh, qs := f16(src, 0), f16(src, 2), src[4:16], src[16:48], src[48:176]
	for i := range dst {
		sc, mn := ScaleMinK4(scales, i/32)
		q := nibbleK4(qs, i) | qh[i%32]>>(i/32)&1<<4
		dl, ml := d*float32(sc), float32(dmin*float32(mn))
		dst[i] = float32(dl*float32(q)) - ml
	}
}

// decodeQ6K: ql[128] @0, qh[64] @128, int8 scales[16] @192, d f16 @208; d*scale*q, q -32..31.
func decodeQ6K(dst []float32, src []byte) {
	ql, qh, scales, d := src[:128], src[128:192], src[192:208], f16(src, 208)
	for i := range dst {
		h, c, l := i/128, i/32%4, i%32
		low := ql[64*h+32*(c%2)+l] >> (4 * (c / 2)) & 15
		top := qh[32*h+l] >> (2 * c) & 3
		dl := d * float32(int8(scales[i/16]))
		dst[i] = dl * float32(int(low|top<<4)-32)
	}
}
