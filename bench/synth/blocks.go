package synth

import (
	"encoding/binary"
	"fmt"
	"math"

	"terrace/gguf"
	"terrace/quant"
)

// layout says where a type keeps its block scale and the scale of its minima, in bytes from the block's begin; min is -1
// where there are none.
type layout struct{ scale, min int }

// layouts holds every type whose scale is one half-precision number. The others are scaled by their own means.
var layouts = map[gguf.Type]layout{
	gguf.Q4_0: {0, -1}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0, -1}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0, -1},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108, -1}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208, -1},
	gguf.IQ2XXS: {0, -1}, gguf.IQ2XS: {0, -1}, gguf.IQ2S: {0, -1}, gguf.IQ3XXS: {0, -1}, gguf.IQ3S: {0, -1}, gguf.IQ1S: {0, -1},
	gguf.IQ4NL: {0, -1}, gguf.IQ4XS: {0, -1}, gguf.TQ1_0: {52, -1}, gguf.TQ2_0: {64, -1}, gguf.Q1_0: {0, -1}, gguf.Q2_0: {0, -1},
}

// ternary maps a random byte to four codes of two bits for levels -1, 0, 1 and 2, whose mean is zero at each place.
var ternary = func() (codes [256]byte) {
	share := [16]byte{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3}
	r := newRandom(0, "ternary")
	for place := range 4 {
		for i, at := range r.shuffled(256) {
			codes[at] |= share[i%16] << (2 * place)
		}
	}
	return codes
}()

// tidy makes random bits a block as a quantiser could have written it, but for its scale.
func tidy(t gguf.Type, b []byte) {
	switch t {
	case gguf.Q8_0:
		for i, c := range b[2:] {
			if c == 0x80 { // quantisers do not write -128
				b[2+i] = 0
			}
		}
	case gguf.Q2_K: // a minimum as large as its scale makes the mean the same everywhere
		for i, c := range b[:16] {
			s := c&7 | 8
			b[i] = s | s<<4
		}
	case gguf.Q4_K, gguf.Q5_K: // eight scales of six bits, and minima equal to them
		var s [8]byte
		for j := range s {
			s[j] = b[4+j]&31 | 32
		}
		for j := range 4 {
			low := s[j] | s[j+4]>>4<<6
			b[4+j], b[8+j] = low, low
			b[12+j] = s[j+4]&15 | s[j+4]&15<<4
		}
	case gguf.Q2_0:
		for i, c := range b[2:] {
			b[2+i] = ternary[c]
		}
	case gguf.TQ2_0: // levels -1, 0 and 1
		for i, c := range b[:64] {
			b[i] = c%3 | c/3%3<<2 | c/9%3<<4 | c/27%3<<6
		}
	}
}

// setScale gives block b of type t the scale d, and its minima theirs, which is min times as large.
func setScale(t gguf.Type, b []byte, d, min float64) {
	switch t {
	case gguf.IQ1M: // the scale's nibbles stand above those of the four fields at 48
		h := quant.F32ToF16(float32(d))
		for k := range 4 {
			f := binary.LittleEndian.Uint16(b[48+2*k:])
			binary.LittleEndian.PutUint16(b[48+2*k:], f&0x0fff|h>>(4*k)<<12)
		}
	default:
		l := layouts[t]
		binary.LittleEndian.PutUint16(b[l.scale:], quant.F32ToF16(float32(d)))
		if l.min >= 0 {
			binary.LittleEndian.PutUint16(b[l.min:], quant.F32ToF16(float32(d*min)))
		}
	}
}

// patternBytes is about how much of a tensor differs from the rest; what is larger repeats it.
const patternBytes = 1 << 20

// pattern is blocks of type t whose weights have deviation sigma around mean (which only floats can have). A
// tensor of count blocks takes them in turn. Their number is a prime beyond any width, so that neither two experts nor, for the
// first thousands, two rows begin with the same one.
func pattern(t gguf.Type, count int64, mean, sigma float64, r *random) ([]byte, error) {
	size := t.BlockBytes()
	n := int64(prime(patternBytes / size))
	n = min(n, count)
	b := make([]byte, int(n)*size)
	if t.BlockSize() == 1 {
		return b, floats(t, b, mean, sigma, r)
	}
	r.fill(b)
	for i := 0; i < len(b); i += size {
		tidy(t, b[i:i+size])
	}
	return b, scaleBlocks(t, b, sigma, r)
}

// floats fills b with normal numbers.
func floats(t gguf.Type, b []byte, mean, sigma float64, r *random) error {
	v := make([]float32, len(b)/t.BlockBytes())
	for i := range v {
		v[i] = float32(mean)
		if sigma != 0 {
			v[i] += float32(sigma * r.normal())
		}
	}
	return quant.Encode(t, b, v)
}

// scaleBlocks sets the scales of blocks with random codes so that the weights have deviation sigma. How large codes of
// scale 1 are is measured on the blocks themselves.
func scaleBlocks(t gguf.Type, b []byte, sigma float64, r *random) error {
	size := t.BlockBytes()
	sample := append([]byte{}, b[:min(len(b), 128*size)]...)
	v := make([]float32, len(sample)/size*t.BlockSize())
	each := func(f func(b []byte)) {
		for i := 0; i < len(sample); i += size {
			f(sample[i : i+size])
		}
	}
	measure := func() (mean, rms float64, err error) {
		if err := quant.Decode(t, v, sample); err != nil {
			return 0, 0, err
		}
		for _, x := range v {
			mean += float64(x)
			rms += float64(x) * float64(x)
		}
		return mean / float64(len(v)), math.Sqrt(rms / float64(len(v))), nil
	}
	jitter := func() float64 { return (0.75 + 0.5*r.unit()) / 1.0104 } // keeps the mean square
	switch t {
	case gguf.MXFP4:
		each(func(b []byte) { b[0] = 128 }) // scale 1
		_, rms, err := measure()
		if err != nil {
			return err
		}
		// Powers of two: two neighbours in the proportion that gives the mean square.
		e := math.Floor(math.Log2(sigma / rms))
		low := math.Exp2(e) * rms
		share := (sigma*sigma/(low*low) - 1) / 3
		for i := 0; i < len(b); i += size {
			b[i] = byte(128 + int(e))
			if r.unit() < share {
				b[i]++
			}
		}
		return nil
	case gguf.NVFP4:
		scale := func(b []byte, c byte) { b[0], b[1], b[2], b[3] = c, c, c, c }
		each(func(b []byte) { scale(b, 8<<3) }) // 2^(8-7)/2, scale 1
		_, rms, err := measure()
		if err != nil {
			return err
		}
		best := byte(1)
		for c := byte(1); c < 0x7f; c++ {
			if math.Abs(float64(quant.UE4M3Half(c))*rms-sigma) < math.Abs(float64(quant.UE4M3Half(best))*rms-sigma) {
				best = c
			}
		}
		for i := 0; i < len(b); i += size {
			scale(b[i:], best)
		}
		return nil
	}
	if _, ok := layouts[t]; !ok && t != gguf.IQ1M {
		panic(fmt.Sprintf("synth: no rule for blocks of %s", t))
	}
	ratio := 0.0
	if l := layouts[t]; l.min >= 0 { // minima that take the mean away
		each(func(b []byte) { setScale(t, b, 1, 0) })
		whole, _, err := measure()
		if err != nil {
			return err
		}
		each(func(b []byte) { setScale(t, b, 1, 1) })
		less, _, err := measure()
		if err != nil {
			return err
		}
		ratio = whole / (whole - less)
	}
	each(func(b []byte) { setScale(t, b, 1, ratio) })
	_, rms, err := measure()
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += size {
		setScale(t, b[i:i+size], jitter()*sigma/rms, ratio)
	}
	return nil
}

// prime is the largest prime of at most n, which is at least 2.
func prime(n int) int {
	for ; ; n-- {
		ok := true
		for d := 2; d*d <= n && ok; d++ {
			ok = n%d != 0
		}
		if ok {
			return n
		}
	}
}
