package quant

import (
	"encoding/binary"
	"math"
)

// Encoders of the codebook types: scales from each sub-block's largest element, then the nearest row of the grid by
// trying them all. Slow, and no match for a quantiser that searches scales, but every block is a proper one.

// nearestRow8 is the row of grid with the least squared distance to x, the first of equals.
func nearestRow8[T int8 | uint8](grid [][8]T, x *[8]float32) (row int, dist float64) {
	dist = math.Inf(1)
	for k := range grid {
		e := 0.0
		for j, v := range grid[k] {
			d := float64(x[j]) - float64(v)
			e += float64(d * d)
		}
		if e < dist {
			row, dist = k, e
		}
	}
	return row, dist
}

// nearestRow4 is nearestRow8 for quartets.
func nearestRow4(grid [][4]uint8, x []float32) (row int) {
	dist := math.Inf(1)
	for k := range grid {
		e := 0.0
		for j, v := range grid[k] {
			d := float64(x[j]) - float64(v)
			e += float64(d * d)
		}
		if e < dist {
			row, dist = k, e
		}
	}
	return row
}

// oddScales finds scales d*(2s+1), s 0..top, that come nearest to want.
func oddScales(want []float32, top int) (s []int, d float32) {
	d = F16ToF32(F32ToF16(extreme(want) / float32(2*top+1)))
	for _, w := range want {
		s = append(s, roundTo((w/d-1)/2, 0, top))
	}
	return s, d
}

// reach is, for each sub-block of n, its largest magnitude divided by the largest level of a grid.
func reach(src []float32, n int, level float32) (want []float32) {
	for i := 0; i < len(src); i += n {
		m := extreme(src[i : i+n])
		want = append(want, max(m, -m)/level)
	}
	return want
}

// unsign splits an octet, divided by unit, into magnitudes and sign bits (set: minus). With even, the number of minus
// signs is made even at the smallest element, whose magnitude then turns negative.
func unsign(src []float32, unit float32, even bool) (x [8]float32, signs uint8) {
	if unit == 0 {
		return x, 0
	}
	least, odd := 0, false
	for j, v := range src[:8] {
		x[j] = v / unit
		if v < 0 {
			x[j], signs, odd = -x[j], signs|1<<j, !odd
		}
		if x[j] < x[least] {
			least = j
		}
	}
	if even && odd {
		x[least], signs = -x[least], signs^1<<least
	}
	return x, signs
}

func encodeIQ2XXS(dst []byte, src []float32) {
	s, d := oddScales(reach(src, 32, 43.0/8), 15)
	putF16(dst, 0, d)
	for g := range 8 {
		w := uint32(s[g]) << 28
		for l := range 4 {
			x, signs := unsign(src[32*g+8*l:], d*float32(2*s[g]+1)/8, true)
			row, _ := nearestRow8(Grid256()[:], &x)
			dst[2+8*g+l] = byte(row)
			w |= uint32(signs&127) << (7 * l)
		}
		binary.LittleEndian.PutUint32(dst[6+8*g:], w)
	}
}

func encodeIQ2XS(dst []byte, src []float32) {
	s, d := oddScales(reach(src, 16, 43.0/8), 15)
	putF16(dst, 0, d)
	for o := range 32 {
		sc := s[o/2]
		x, signs := unsign(src[8*o:], d*float32(2*sc+1)/8, true)
		row, _ := nearestRow8(Grid512()[:], &x)
		binary.LittleEndian.PutUint16(dst[2+2*o:], uint16(row)|uint16(signs&127)<<9)
		dst[66+o/4] |= byte(sc << (4 * (o / 2 % 2)))
	}
}

func encodeIQ2S(dst []byte, src []float32) {
	s, d := oddScales(reach(src, 16, 43.0/8), 15)
	putF16(dst, 0, d)
	for o := range 32 {
		sc := s[o/2]
		x, signs := unsign(src[8*o:], d*float32(2*sc+1)/8, false)
		row, _ := nearestRow8(Grid1024()[:], &x)
		dst[2+o], dst[34+o] = byte(row), signs
		dst[66+o/4] |= byte(row >> 8 << (2 * (o % 4)))
		dst[74+o/4] |= byte(sc << (4 * (o / 2 % 2)))
	}
}

func encodeIQ3XXS(dst []byte, src []float32) {
	s, d := oddScales(reach(src, 32, 62.0/4), 15)
	putF16(dst, 0, d)
	for g := range 8 {
		w := uint32(s[g]) << 28
		for l := range 4 {
			x, signs := unsign(src[32*g+8*l:], d*float32(2*s[g]+1)/4, true)
			for k := range 2 {
				dst[2+8*g+2*l+k] = byte(nearestRow4(Grid3x256()[:], x[4*k:]))
			}
			w |= uint32(signs&127) << (7 * l)
		}
		binary.LittleEndian.PutUint32(dst[66+4*g:], w)
	}
}

func encodeIQ3S(dst []byte, src []float32) {
	s, d := oddScales(reach(src, 32, 15), 15)
	putF16(dst, 0, d)
	for g := range 8 {
		dst[106+g/2] |= byte(s[g] << (4 * (g % 2)))
		for l := range 4 {
			x, signs := unsign(src[32*g+8*l:], d*float32(2*s[g]+1), false)
			dst[74+4*g+l] = signs
			for k := range 2 {
				row := nearestRow4(Grid3x512()[:], x[4*k:])
				dst[2+8*g+2*l+k] = byte(row)
				dst[66+g] |= byte(row >> 8 << (2*l + k))
			}
		}
	}
}

// ternaryWant are the units that IQ1 sub-blocks of n ask for: with levels near -1, 0 and 1 the mean magnitude serves
// better than the largest.
func ternaryWant(src []float32, n int) (want []float32) {
	for i := 0; i < len(src); i += n {
		want = append(want, 1.4*meanMagnitude(src[i:i+n]))
	}
	return want
}

// ternaryRow is the row of the IQ1 grid nearest to src/unit - delta, and its squared distance.
func ternaryRow(src []float32, unit, delta float32) (row int, dist float64) {
	var x [8]float32
	if unit != 0 {
		for j := range x {
			x[j] = src[j]/unit - delta
		}
	}
	return nearestRow8(Grid1x2048()[:], &x)
}

func encodeIQ1S(dst []byte, src []float32) {
	s, d := oddScales(ternaryWant(src, 32), 7)
	putF16(dst, 0, d)
	for g := range 8 {
		unit := d * float32(2*s[g]+1)
		best := math.Inf(1)
		for sign, delta := range [2]float32{0.125, -0.125} {
			var rows [4]int
			sum := 0.0
			for l := range rows {
				row, dist := ternaryRow(src[32*g+8*l:], unit, delta)
				rows[l], sum = row, sum+dist
			}
			if sum >= best {
				continue
			}
			best = sum
			h := uint16(s[g])<<12 | uint16(sign)<<15
			for l, row := range rows {
				dst[2+4*g+l] = byte(row)
				h |= uint16(row>>8) << (3 * l)
			}
			binary.LittleEndian.PutUint16(dst[34+2*g:], h)
		}
	}
}

func encodeIQ1M(dst []byte, src []float32) {
	s, d := oddScales(ternaryWant(src, 16), 7)
	var sc [4]uint16
	for k := range sc {
		sc[k] = F32ToF16(d) >> (4 * k) << 12
	}
	for o := range 32 {
		sub := s[o/2]
		unit := d * float32(2*sub+1)
		row, dist := ternaryRow(src[8*o:], unit, 0.125)
		n := 0
		if r, e := ternaryRow(src[8*o:], unit, -0.125); e < dist {
			row, n = r, 8
		}
		dst[o] = byte(row)
		dst[32+o/2] |= byte((row>>8 | n) << (4 * (o % 2)))
		sc[o/8] |= uint16(sub) << (3 * (o / 2 % 4))
	}
	for k, v := range sc {
		binary.LittleEndian.PutUint16(dst[48+2*k:], v)
	}
}
