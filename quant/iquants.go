package quant

import "math/bits"

// The codebook types: octets (IQ1, IQ2) or quartets (IQ3) of weights are a row of a grid, times signs, times the
// sub-block's scale; IQ4 looks single weights up among 16 values. Blocks of 256 fall into eight groups g of 32 elements,
// a group into four octets l.

// KV4 are the values of the four-bit codes of IQ4_NL and IQ4_XS.
var KV4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// Sign7 completes seven sign bits to eight, so that the number of minus signs is even. k is 0..127.
func Sign7(k uint8) uint8 { return k | uint8(bits.OnesCount8(k)&1)<<7 }

// signed is v with the sign that bit j of signs gives it: set means minus.
func signed(v float32, signs uint8, j int) float32 {
	if signs>>j&1 != 0 {
		return -v
	}
	return v
}

// putOctet writes scale*row with the signs applied.
func putOctet(dst []float32, scale float32, row *[8]uint8, signs uint8) {
	for j, v := range row {
		dst[j] = signed(scale*float32(v), signs, j)
	}
}

// decodeIQ2XXS: d f16 @0, then for each group four grid numbers and a u32 with four times seven sign bits under a
// four-bit scale s; d*(2s+1)/8 * grid.
func decodeIQ2XXS(dst []float32, src []byte) {
	d, grid := f16(src, 0), Grid256()
	for g := range 8 {
		idx, w := src[2+8*g:], u32(src, 2+8*g+4)
		scale := d * (0.5 + float32(w>>28)) * 0.25
		for l := range 4 {
			putOctet(dst[32*g+8*l:], scale, &grid[idx[l]], Sign7(uint8(w>>(7*l)&127)))
		}
	}
}

// decodeIQ2XS: d f16 @0, u16 qs[32] @2 (grid number in nine bits under seven sign bits), scales[8] @66 (a nibble for
// each half of a group); d*(2s+1)/8 * grid.
func decodeIQ2XS(dst []float32, src []byte) {
	d, scales, grid := f16(src, 0), src[66:74], Grid512()
	for g := range 8 {
		for l := range 4 {
			v := u16(src, 2+8*g+2*l)
			scale := d * (0.5 + float32(scales[g]>>(4*(l/2))&15)) * 0.25
			putOctet(dst[32*g+8*l:], scale, &grid[v&511], Sign7(uint8(v>>9)))
		}
	}
}

// decodeIQ2S: d f16 @0, idx[32] @2, signs[32] @34, qh[8] @66 (two more bits of each grid number), scales[8] @74 as in
// IQ2_XS; d*(2s+1)/8 * grid.
func decodeIQ2S(dst []float32, src []byte) {
	d, idx, signs, qh, scales, grid := f16(src, 0), src[2:34], src[34:66], src[66:74], src[74:82], Grid1024()
	for g := range 8 {
		for l := range 4 {
			n := int(idx[4*g+l]) | int(qh[g]>>(2*l)&3)<<8
			scale := d * (0.5 + float32(scales[g]>>(4*(l/2))&15)) * 0.25
			putOctet(dst[32*g+8*l:], scale, &grid[n], signs[4*g+l])
		}
	}
}

// decodeIQ3XXS: d f16 @0, idx[64] @2 (one for each quartet), u32 w[8] @66 as in IQ2_XXS; d*(2s+1)/4 * grid.
func decodeIQ3XXS(dst []float32, src []byte) {
	d, idx, grid := f16(src, 0), src[2:66], Grid3x256()
	for g := range 8 {
		w := u32(src, 66+4*g)
		scale := d * (0.5 + float32(w>>28)) * 0.5
		for k := range 8 {
			signs := Sign7(uint8(w>>(7*(k/2))&127)) >> (4 * (k % 2))
			for j, v := range grid[idx[8*g+k]] {
				dst[32*g+4*k+j] = signed(scale*float32(v), signs, j)
			}
		}
	}
}

// decodeIQ3S: d f16 @0, idx[64] @2, qh[8] @66 (the ninth bit of each grid number), signs[32] @74, scales[4] @106 (a
// nibble for each group); d*(2s+1) * grid.
func decodeIQ3S(dst []float32, src []byte) {
	d, idx, qh, signs, scales, grid := f16(src, 0), src[2:66], src[66:74], src[74:106], src[106:110], Grid3x512()
	for g := range 8 {
		s := scales[g/2] >> (4 * (g % 2)) & 15
		scale := d * float32(2*int(s)+1)
		for k := range 8 {
			n := int(idx[8*g+k]) | int(qh[g]>>k&1)<<8
			sg := signs[4*g+k/2] >> (4 * (k % 2))
			for j, v := range grid[n] {
				dst[32*g+4*k+j] = signed(scale*float32(v), sg, j)
			}
		}
	}
}

// putTernary writes scale*(row+delta), where delta is -1/8 if minus, else 1/8.
func putTernary(dst []float32, scale float32, row *[8]int8, minus bool) {
	delta := float32(0.125)
	if minus {
		delta = -delta
	}
	for j, v := range row {
		dst[j] = scale * (float32(v) + delta)
	}
}

// decodeIQ1S: d f16 @0, idx[32] @2, u16 qh[8] @34 (four times three more bits of the grid numbers, a three-bit scale s,
// the sign of the shift); d*(2s+1) * (grid +- 1/8).
func decodeIQ1S(dst []float32, src []byte) {
	d, idx, grid := f16(src, 0), src[2:34], Grid1x2048()
	for g := range 8 {
		h := u16(src, 34+2*g)
		scale := d * float32(2*(h>>12&7)+1)
		for l := range 4 {
			n := int(idx[4*g+l]) | int(h>>(3*l)&7)<<8
			putTernary(dst[32*g+8*l:], scale, &grid[n], h>>15 != 0)
		}
	}
}

// decodeIQ1M: idx[32] @0, qh[16] @32 (a nibble for each octet: three bits of the grid number, the sign of the shift),
// u16 sc[4] @48 (four three-bit scales each, and in the top nibbles the bits of the f16 scale);
// d*(2s+1) * (grid +- 1/8).
func decodeIQ1M(dst []float32, src []byte) {
	idx, qh, grid := src[:32], src[32:48], Grid1x2048()
	d := ScaleIQ1M(src)
	for g := range 8 {
		sc := u16(src, 48+2*(g/2))
		for l := range 4 {
			n := qh[2*g+l/2] >> (4 * (l % 2)) & 15
			scale := d * float32(2*(sc>>(6*(g%2)+3*(l/2))&7)+1)
			putTernary(dst[32*g+8*l:], scale, &grid[int(idx[4*g+l])|int(n&7)<<8], n&8 != 0)
		}
	}
}

// ScaleIQ1M gathers the block scale of a 56-byte IQ1_M block, which has no field of its own.
func ScaleIQ1M(block []byte) float32 {
	var h uint16
	for k := range 4 {
		h |= u16(block, 48+2*k) >> 12 << (4 * k)
	}
	return F16ToF32(h)
}

// decodeIQ4NL: d f16 @0, qs[16] @2, nibbles as in Q4_0; d*KV4[q].
func decodeIQ4NL(dst []float32, src []byte) {
	d, qs := f16(src, 0), src[2:18]
	for j, b := range qs {
		dst[j] = d * float32(KV4[lo4(b)])
		dst[j+16] = d * float32(KV4[hi4(b)])
	}
}

// ScaleIQ4XS returns the six-bit scale, less 32, of group g (0..7) of an IQ4_XS block: -32..31.
func ScaleIQ4XS(block []byte, g int) int {
	low := block[4+g/2] >> (4 * (g % 2)) & 15
	high := byte(u16(block, 2)>>(2*g)) & 3
	return int(low|high<<4) - 32
}

// decodeIQ4XS: d f16 @0, scale bits @2 and @4, qs[128] @8, each group's 16 bytes as in Q4_0; d*scale*KV4[q].
func decodeIQ4XS(dst []float32, src []byte) {
	d := f16(src, 0)
	for g := range 8 {
		dl := d * float32(ScaleIQ4XS(src, g))
		for l, b := range src[8+16*g : 24+16*g] {
			dst[32*g+l] = dl * float32(KV4[lo4(b)])
			dst[32*g+l+16] = dl * float32(KV4[hi4(b)])
		}
	}
}
