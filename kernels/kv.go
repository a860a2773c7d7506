package kernels

import (
	"encoding/binary"
	"math"

	"terrace/compute"
	"terrace/quant"
)

// EncodeKV stores x as elements of type t in dst, which has t.RowBytes(len(x)) bytes; len(x) is a whole number of blocks.
// Halves are rounded as F32ToF16 does. A quantised block gets the bytes that quant.Encode gives it (the scale from the
// largest magnitude, codes x/scale to the nearest, halves away from zero, against the scale as stored). Where Encode
// refuses, because an element is not finite or the scale is beyond half precision, the scale is NaN and the codes are zero,
// so that what is computed from the block shows it.
func EncodeKV(t compute.KVType, dst []byte, x []float32) {
	if len(x)%t.Block() != 0 || len(dst) != t.RowBytes(len(x)) {
		panicf("kernels: %d elements as %s in %d bytes, blocks have %d", len(x), t, len(dst), t.Block())
	}
	switch {
	case len(x) == 0:
	case t == compute.KVF16:
		F32ToF16(dst, x)
	case t == compute.KVF32:
		for i, v := range x {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case t == compute.KVQ8_0:
		current().kvQ8(dst, x)
	default:
		current().kvQ4(dst, x)
	}
}

const (
	blockQ8 = 34 // bytes of 32 elements
	blockQ4 = 18
	halfNaN = 0x7e00
)

func kvQ8Generic(dst []byte, x []float32) {
	for ; len(x) > 0; x, dst = x[32:], dst[blockQ8:] {
		m := extreme(x[:32])
		d := kvScale(dst, max(m, -m)/127)
		for i, v := range x[:32] {
			dst[2+i] = byte(kvCode(v, d, -127, 127))
		}
	}
}

func kvQ4Generic(dst []byte, x []float32) {
	for ; len(x) > 0; x, dst = x[32:], dst[blockQ4:] {
		d := kvScale(dst, extreme(x[:32])/-8)
		for i := range 16 {
			dst[2+i] = byte(kvCode(x[i], d, -8, 7)+8) | byte(kvCode(x[16+i], d, -8, 7)+8)<<4
		}
	}
}

// extreme is the first element of the largest magnitude; 0 for zeros of either sign, NaN where one is not finite.
func extreme(x []float32) (m float32) {
	top := uint32(0)
	for _, v := range x {
		if u := math.Float32bits(v) &^ (1 << 31); u > top {
			top, m = u, v
		}
	}
	if top > math.Float32bits(math.MaxFloat32) {
		return float32(math.NaN())
	}
	return m
}

// kvScale stores the scale of a block and returns the number that was stored.
func kvScale(dst []byte, d float32) float32 {
	h := quant.F32ToF16(d)
	if h&0x7fff >= 0x7c00 {
		h = halfNaN
	}
	binary.LittleEndian.PutUint16(dst, h)
	return quant.F16ToF32(h)
}

func kvCode(v, d float32, lo, hi int) int {
	if d == 0 || d != d {
		return 0
	}
	return max(lo, min(hi, int(math.Round(float64(v/d)))))
}

// decodeKV reads len(dst) elements of a quantised cache as quant does: the product of scale and code, which float32 holds
// exactly.
func decodeKV(t compute.KVType, dst []float32, b []byte) {
	if t == compute.KVQ8_0 {
		for ; len(dst) > 0; dst, b = dst[32:], b[blockQ8:] {
			d := half(b)
			for i, c := range b[2:blockQ8] {
				dst[i] = float32(int8(c)) * d
			}
		}
		return
	}
	for ; len(dst) > 0; dst, b = dst[32:], b[blockQ4:] {
		d := half(b)
		for i, c := range b[2:blockQ4] {
			dst[i], dst[16+i] = float32(int(c&15)-8)*d, float32(int(c>>4)-8)*d
		}
	}
}
