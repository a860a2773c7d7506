package quant

// The types of two, three or four levels: little more than a bit a weight.

// decodeQ1_0: d f16 @0, bits[16] @2 for 128 elements; a set bit is d, a clear one -d.
func decodeQ1_0(dst []float32, src []byte) {
	d := f16(src, 0)
	for i := range dst {
		dst[i] = -d
		if src[2+i/8]>>(i%8)&1 != 0 {
			dst[i] = d
		}
	}
}

// decodeQ2_0: d f16 @0, qs[16] @2 for 64 elements; d*(q-1), q 0..3.
func decodeQ2_0(dst []float32, src []byte) {
	d := f16(src, 0)
	for i := range dst {
		q := src[2+i/4] >> (2 * (i % 4)) & 3
		dst[i] = float32(int(q)-1) * d
	}
}

// decodeTQ2_0: qs[64] @0, d f16 @64; element i = 128J + 32l + m has bits 2l of qs[32J+m]; d*(q-1), q 0..3.
func decodeTQ2_0(dst []float32, src []byte) {
	d := f16(src, 64)
	for i := range dst {
		q := src[32*(i/128)+i%32] >> (2 * (i / 32 % 4)) & 3
		dst[i] = float32(int(q)-1) * d
	}
}

// TritTQ1 is digit n (0..4) of a TQ1_0 byte: base three, kept as a fraction of 256 so that a multiplication brings the
// wanted digit to the top. 0..2.
func TritTQ1(b uint8, n int) int {
	pow3 := [5]uint8{1, 3, 9, 27, 81}
	return int(uint16(b*pow3[n]) * 3 >> 8)
}

// TritByteTQ1 says which byte of a TQ1_0 block holds element i and as which digit: 160 elements in bytes 0..31, 80 in
// 32..47, 16 in 48..51.
func TritByteTQ1(i int) (at, digit int) {
	switch {
	case i < 160:
		return i % 32, i / 32
	case i < 240:
		return 32 + (i-160)%16, (i - 160) / 16
	}
	return 48 + (i-240)%4, (i - 240) / 4
}

// decodeTQ1_0: 52 bytes of digits @0, d f16 @52; d*(digit-1).
func decodeTQ1_0(dst []float32, src []byte) {
	d := f16(src, 52)
	for i := range dst {
		at, digit := TritByteTQ1(i)
		dst[i] = float32(TritTQ1(src[at], digit)-1) * d
	}
}
