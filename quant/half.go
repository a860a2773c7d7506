package quant

import (
	"encoding/binary"
	"math"
)

// F16ToF32 widens the IEEE binary16 number with bits h: exact, subnormals included. A signalling NaN becomes a quiet one
// with the same payload, as the processors' own conversions have it.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 31
	man := uint32(h & 0x3ff)
	switch {
	case exp == 0:
		// man units of 2^-24: the product is exact and normal in float32
		v := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case exp == 31 && man != 0:
		return math.Float32frombits(sign | 0x7fc00000 | man<<13)
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | man<<13)
}

// F32ToF16 rounds f to binary16, ties to even. From 65520 on it gives infinity; a NaN stays a (quiet) NaN.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	a := b & 0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00 | uint16(a>>13)&0x3ff
	case a >= 0x477ff000: // 65520, halfway between 65504 and the power of two that would follow
		return sign | 0x7c00
	case a < 0x38800000: // below 2^-14, the smallest normal
		// Beside 0.5 the last place of a float32 is 2^-24, the unit of binary16 subnormals: the addition rounds for us.
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3f000000)
	}
	a += 0xfff + a>>13&1
	return sign | uint16((a-(127-15)<<23)>>13)
}

// BF16ToF32 widens the bfloat16 number with bits h: exact.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds f to bfloat16, ties to even. A NaN stays a (quiet) NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// u16 and u32 read little-endian numbers at byte i of a block, f16 a half-precision scale.
func u16(b []byte, i int) uint16  { return binary.LittleEndian.Uint16(b[i:]) }
func u32(b []byte, i int) uint32  { return binary.LittleEndian.Uint32(b[i:]) }
func f16(b []byte, i int) float32 { return F16ToF32(u16(b, i)) }

// lo4 and hi4 are the two nibbles of a byte.
func lo4(b byte) byte { return b & 15 }
func hi4(b byte) byte { return b >> 4 }

func decodeF32(dst []float32, src []byte)  { dst[0] = math.Float32frombits(u32(src, 0)) }
func decodeF16(dst []float32, src []byte)  { dst[0] = f16(src, 0) }
func decodeBF16(dst []float32, src []byte) { dst[0] = BF16ToF32(u16(src, 0)) }
