package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"terrace/gguf"
)

// blockEncoder rounds one block of finite weights into a zeroed dst.
type blockEncoder func(dst []byte, src []float32)

// encoderOf returns the encoder of t, nil when there is none.
func encoderOf(t gguf.Type) blockEncoder {
	switch t {
	case gguf.F32:
		return func(dst []byte, src []float32) { binary.LittleEndian.PutUint32(dst, math.Float32bits(src[0])) }
	case gguf.F16:
		return func(dst []byte, src []float32) { binary.LittleEndian.PutUint16(dst, F32ToF16(src[0])) }
	case gguf.BF16:
		return func(dst []byte, src []float32) { binary.LittleEndian.PutUint16(dst, F32ToBF16(src[0])) }
	case gguf.Q4_0:
		return encodeQ4_0
	case gguf.Q4_1:
		return encodeQ4_1
	case gguf.Q5_0:
		return encodeQ5_0
	case gguf.Q5_1:
		return encodeQ5_1
	case gguf.Q8_0:
		return encodeQ8_0
	case gguf.Q2_K:
		return encodeQ2K
	case gguf.Q3_K:
		return encodeQ3K
	case gguf.Q4_K:
		return encodeQ4K
	case gguf.Q5_K:
		return encodeQ5K
	case gguf.Q6_K:
		return encodeQ6K
	case gguf.IQ1S:
		return encodeIQ1S
	case gguf.IQ1M:
		return encodeIQ1M
	case gguf.IQ2XXS:
		return encodeIQ2XXS
	case gguf.IQ2XS:
		return encodeIQ2XS
	case gguf.IQ2S:
		return encodeIQ2S
	case gguf.IQ3XXS:
		return encodeIQ3XXS
	case gguf.IQ3S:
		return encodeIQ3S
	case gguf.IQ4NL:
		return encodeIQ4NL
	case gguf.IQ4XS:
		return encodeIQ4XS
	case gguf.MXFP4:
		return encodeMXFP4
	case gguf.NVFP4:
		return encodeNVFP4
	case gguf.Q1_0:
		return encodeQ1_0
	case gguf.Q2_0:
		return encodeQ2_0
	case gguf.TQ1_0:
		return encodeTQ1_0
	case gguf.TQ2_0:
		return encodeTQ2_0
	}
	return nil
}

// Encodable reports whether Encode can write t: every type that Decode reads.
func Encodable(t gguf.Type) bool { return encoderOf(t) != nil }

// Encode rounds len(src) weights to whole blocks of type t in dst. It makes data for tests: plain rounding to the scales
// that the largest values ask for, no search for better ones. The bytes depend on nothing but the weights.
//
// It fails when t is not Encodable, when the lengths do not match (as Decode), and when a quantised type meets a weight
// that is not finite or a scale beyond half precision (weights above some 65504 times the largest code).
func Encode(t gguf.Type, dst []byte, src []float32) error {
	enc := encoderOf(t)
	if enc == nil {
		return fmt.Errorf("quant: no encoder for %v", t)
	}
	if err := checkSizes(t, len(src), len(dst)); err != nil {
		return err
	}
	n, b := t.BlockSize(), t.BlockBytes()
	if n > 1 {
		for i, v := range src {
			if v != v || math.IsInf(float64(v), 0) {
				return fmt.Errorf("quant: %v: element %d is %g, not a finite number", t, i, v)
			}
			if max := largestWeight(t); v > max || v < -max {
				return fmt.Errorf("quant: %v: element %d is %g, more than %g", t, i, v, max)
			}
		}
	}
	clear(dst)
	for len(src) > 0 {
		enc(dst[:b], src[:n])
		dst, src = dst[b:], src[n:]
	}
	return nil
}

// largestWeight is a magnitude that the scales of t surely reach.
func largestWeight(t gguf.Type) float32 {
	switch t {
	case gguf.MXFP4:
		return math.MaxFloat32 / 4 // the largest scale is 2^127 and the grid ends at 6
	case gguf.NVFP4:
		return 448 * 6
	}
	return 65504
}

// roundTo rounds x to the nearest integer in lo..hi, halves away from zero. The quotient of a zero scale is NaN or
// infinite, and then any code will do: 0, or the nearest to it that there is.
func roundTo(x float32, lo, hi int) int {
	if x != x || math.IsInf(float64(x), 0) {
		x = 0
	}
	return int(max(float64(lo), min(float64(hi), math.Round(float64(x)))))
}

// putF16 stores v as half precision at byte i and returns the number that was stored: codes are rounded against it.
func putF16(dst []byte, i int, v float32) float32 {
	h := F32ToF16(v)
	binary.LittleEndian.PutUint16(dst[i:], h)
	return F16ToF32(h)
}

// extreme is the element of the largest magnitude, with its sign.
func extreme(src []float32) (m float32) {
	for _, v := range src {
		if max(v, -v) > max(m, -m) {
			m = v
		}
	}
	return m
}

// span is the smallest and the largest element.
func span(src []float32) (lo, hi float32) {
	lo, hi = src[0], src[0]
	for _, v := range src {
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi
}

// nearest returns the index in levels of the level nearest to x, the first of equals.
func nearest(levels []int8, x float32) int {
	if x != x {
		x = 0
	}
	best, dist := 0, math.Inf(1)
	for k, v := range levels {
		if e := math.Abs(float64(x) - float64(v)); e < dist {
			best, dist = k, e
		}
	}
	return best
}

// putNibbles stores 32 four-bit codes as byte j = code j | code j+16 << 4.
func putNibbles(qs []byte, code func(i int) int) {
	for j := range 16 {
		qs[j] = byte(code(j)&15 | code(j+16)&15<<4)
	}
}

func encodeQ4_0(dst []byte, src []float32) {
	d := putF16(dst, 0, extreme(src)/-8)
	putNibbles(dst[2:], func(i int) int { return roundTo(src[i]/d, -8, 7) + 8 })
}

func encodeQ4_1(dst []byte, src []float32) {
	lo, hi := span(src)
	d, m := putF16(dst, 0, hi/15-lo/15), putF16(dst, 2, lo)
	putNibbles(dst[4:], func(i int) int { return roundTo((src[i]-m)/d, 0, 15) })
}

// putFives stores 32 five-bit codes: the fifth bits at byte at, the nibbles behind them.
func putFives(dst []byte, at int, code func(i int) int) {
	var qh uint32
	for i := range 32 {
		qh |= uint32(code(i)>>4) << i
	}
	binary.LittleEndian.PutUint32(dst[at:], qh)
	putNibbles(dst[at+4:], code)
}

func encodeQ5_0(dst []byte, src []float32) {
	d := putF16(dst, 0, extreme(src)/-16)
	putFives(dst, 2, func(i int) int { return roundTo(src[i]/d, -16, 15) + 16 })
}

func encodeQ5_1(dst []byte, src []float32) {
	lo, hi := span(src)
	d, m := putF16(dst, 0, hi/31-lo/31), putF16(dst, 2, lo)
	putFives(dst, 4, func(i int) int { return roundTo((src[i]-m)/d, 0, 31) })
}

func encodeQ8_0(dst []byte, src []float32) {
	m := extreme(src)
	d := putF16(dst, 0, max(m, -m)/127)
	for j, v := range src {
		dst[2+j] = byte(int8(roundTo(v/d, -127, 127)))
	}
}

// scaleMins finds, for sub-blocks of size n, unsigned scales and minima of at most top and the two half-precision
// numbers d and dmin they are multiplied by, so that codes 0..levels span each sub-block: w = d*sc*q - dmin*mn.
func scaleMins(src []float32, n, levels, top int) (sc, mn []int, d, dmin float32) {
	scale, least := make([]float32, len(src)/n), make([]float32, len(src)/n)
	for g := range scale {
		lo, hi := span(src[g*n : (g+1)*n])
		lo = min(lo, 0) // minima are subtracted, so they cannot lift a sub-block above zero
		scale[g], least[g] = max(hi-lo, 0)/float32(levels), -lo
		d, dmin = max(d, scale[g]), max(dmin, least[g])
	}
	d, dmin = F16ToF32(F32ToF16(d/float32(top))), F16ToF32(F32ToF16(dmin/float32(top)))
	for g := range scale {
		sc = append(sc, roundTo(scale[g]/d, 0, top))
		mn = append(mn, roundTo(least[g]/dmin, 0, top))
	}
	return sc, mn, d, dmin
}

func encodeQ2K(dst []byte, src []float32) {
	sc, mn, d, dmin := scaleMins(src, 16, 3, 15)
	putF16(dst, 80, d)
	putF16(dst, 82, dmin)
	for g := range sc {
		dst[g] = byte(sc[g] | mn[g]<<4)
	}
	for i, v := range src {
		h, c, l, g := i/128, i/32%4, i%32, i/16
		q := roundTo((v+float32(dmin*float32(mn[g])))/(d*float32(sc[g])), 0, 3)
		dst[16+32*h+l] |= byte(q << (2 * c))
	}
}

// signedScales finds, for sub-blocks of 16, signed scales of -top..top-1 and the half-precision d they are multiplied
// by, so that codes -levels..levels-1 reach each sub-block's largest element.
func signedScales(src []float32, levels, top int) (sc []int, d float32) {
	var want []float32
	for g := range len(src) / 16 {
		want = append(want, extreme(src[16*g:16*g+16])/float32(-levels))
	}
	d = F16ToF32(F32ToF16(extreme(want) / float32(-top)))
	for _, w := range want {
		sc = append(sc, roundTo(w/d, -top, top-1))
	}
	return sc, d
}

func encodeQ3K(dst []byte, src []float32) {
	sc, d := signedScales(src, 4, 32)
	putF16(dst, 108, d)
	for g, s := range sc {
		s += 32
		dst[96+g%8] |= byte(s & 15 << (4 * (g / 8)))
		dst[104+g%4] |= byte(s >> 4 << (2 * (g / 4)))
	}
	for i, v := range src {
		h, c, l := i/128, i/32%4, i%32
		q := roundTo(v/(d*float32(sc[i/16])), -4, 3) + 4
		dst[32+32*h+l] |= byte(q & 3 << (2 * c))
		dst[l] |= byte(q >> 2 << (4*h + c))
	}
}

// putScaleMinsK4 packs eight six-bit scales and minima as ScaleMinK4 reads them.
func putScaleMinsK4(dst []byte, sc, mn []int) {
	for g := range 4 {
		dst[g] = byte(sc[g] | sc[g+4]>>4<<6)
		dst[g+4] = byte(mn[g] | mn[g+4]>>4<<6)
		dst[g+8] = byte(sc[g+4]&15 | mn[g+4]&15<<4)
	}
}

func encodeQ4K(dst []byte, src []float32) {
	sc, mn, d, dmin := scaleMins(src, 32, 15, 63)
	putF16(dst, 0, d)
	putF16(dst, 2, dmin)
	putScaleMinsK4(dst[4:16], sc, mn)
	for i, v := range src {
		g, l := i/32, i%32
		q := roundTo((v+float32(dmin*float32(mn[g])))/(d*float32(sc[g])), 0, 15)
		dst[16+32*(g/2)+l] |= byte(q << (4 * (g % 2)))
	}
}

func encodeQ5K(dst []byte, src []float32) {
	sc, mn, d, dmin := scaleMins(src, 32, 31, 63)
	putF16(dst, 0, d)
	putF16(dst, 2, dmin)
	putScaleMinsK4(dst[4:16], sc, mn)
	for i, v := range src {
		g, l := i/32, i%32
		q := roundTo((v+float32(dmin*float32(mn[g])))/(d*float32(sc[g])), 0, 31)
		dst[48+32*(g/2)+l] |= byte(q & 15 << (4 * (g % 2)))
		dst[16+l] |= byte(q >> 4 << g)
	}
}

func encodeQ6K(dst []byte, src []float32) {
	sc, d := signedScales(src, 32, 128)
	putF16(dst, 208, d)
	for g, s := range sc {
		dst[192+g] = byte(int8(s))
	}
	for i, v := range src {
		h, c, l := i/128, i/32%4, i%32
		q := roundTo(v/(d*float32(sc[i/16])), -32, 31) + 32
		dst[64*h+32*(c%2)+l] |= byte(q & 15 << (4 * (c / 2)))
		dst[128+32*h+l] |= byte(q >> 4 << (2 * c))
	}
}

func encodeIQ4NL(dst []byte, src []float32) {
	d := putF16(dst, 0, extreme(src)/-127)
	putNibbles(dst[2:], func(i int) int { return nearest(KV4[:], src[i]/d) })
}

func encodeIQ4XS(dst []byte, src []float32) {
	var want [8]float32
	for g := range want {
		want[g] = extreme(src[32*g:32*g+32]) / -127
	}
	d := putF16(dst, 0, extreme(want[:])/-32)
	var high uint16
	for g, w := range want {
		s := roundTo(w/d, -32, 31)
		dst[4+g/2] |= byte((s + 32) & 15 << (4 * (g % 2)))
		high |= uint16((s+32)>>4) << (2 * g)
		putNibbles(dst[8+16*g:], func(i int) int { return nearest(KV4[:], src[32*g+i]/(d*float32(s))) })
	}
	binary.LittleEndian.PutUint16(dst[2:], high)
}

func encodeMXFP4(dst []byte, src []float32) {
	m := extreme(src)
	e := 0
	if m != 0 {
		_, exp := math.Frexp(float64(max(m, -m))) // m = f * 2^exp, f in [1/2, 1)
		e = min(max(exp-1-2+127, 0), 254)         // the grid's largest power of two is 4
	}
	dst[0] = byte(e)
	d := E8M0Half(byte(e))
	putNibbles(dst[1:], func(i int) int { return nearest(FP4x2[:], src[i]/d) })
}

func encodeNVFP4(dst []byte, src []float32) {
	for s := range 4 {
		sub := src[16*s : 16*s+16]
		m := extreme(sub)
		best, dist := 0, math.Inf(1)
		for b := range 0x7f {
			if e := math.Abs(float64(12*UE4M3Half(byte(b))) - float64(max(m, -m))); e < dist {
				best, dist = b, e
			}
		}
		dst[s] = byte(best)
		d := UE4M3Half(byte(best))
		for k := range 8 {
			dst[4+8*s+k] = byte(nearest(FP4x2[:], sub[k]/d) | nearest(FP4x2[:], sub[k+8]/d)<<4)
		}
	}
}

// meanMagnitude is the mean of the absolute values.
func meanMagnitude(src []float32) float32 {
	sum := 0.0
	for _, v := range src {
		sum += math.Abs(float64(v))
	}
	return float32(sum / float64(len(src)))
}

func encodeQ1_0(dst []byte, src []float32) {
	putF16(dst, 0, meanMagnitude(src))
	for i, v := range src {
		if v >= 0 {
			dst[2+i/8] |= 1 << (i % 8)
		}
	}
}

func encodeQ2_0(dst []byte, src []float32) {
	d := putF16(dst, 0, extreme(src)/2) // the levels reach further on the side of d's sign
	for i, v := range src {
		dst[2+i/4] |= byte((roundTo(v/d, -1, 2) + 1) << (2 * (i % 4)))
	}
}

func encodeTQ2_0(dst []byte, src []float32) {
	m := extreme(src)
	d := putF16(dst, 64, max(m, -m))
	for i, v := range src {
		dst[32*(i/128)+i%32] |= byte((roundTo(v/d, -1, 1) + 1) << (2 * (i / 32 % 4)))
	}
}

func encodeTQ1_0(dst []byte, src []float32) {
	m := extreme(src)
	d := putF16(dst, 52, max(m, -m))
	var value [52]int // base three, digit 0 first
	for digit := range 5 {
		for i, v := range src {
			if at, n := TritByteTQ1(i); n == digit {
				value[at] = value[at]*3 + roundTo(v/d, -1, 1) + 1
			}
		}
	}
	for at, v := range value {
		if at >= 48 {
			v *= 3 // the last four bytes hold four digits only
		}
		dst[at] = byte((v*256 + 242) / 243) // rounded up, so that cutting off in TritTQ1 gives the digits back
	}
}
