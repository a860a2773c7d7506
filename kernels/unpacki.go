package kernels

import (
	"encoding/binary"
	"unsafe"

	"terrace/quant"
)

// The unpackers of codebook types. Grids of IQ2 are in eighths of a weight, those of IQ3_XXS in quarters; IQ1 adds or
// takes an eighth from a grid of -1, 0, 1. Counting in such parts keeps every code an integer, and dividing d by 8 or 4
// is exact for any half.

func u16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// octet sets eight codes to row with a minus where a bit of signs is set.
func octet(q []int8, row *[8]uint8, signs uint8) {
	putOctet(q, signed8(binary.LittleEndian.Uint64(row[:]), signs))
}

// quartets does the same for two rows of four.
func quartets(q []int8, a, b *[4]uint8, signs uint8) {
	putOctet(q, signed8(uint64(binary.LittleEndian.Uint32(a[:]))|uint64(binary.LittleEndian.Uint32(b[:]))<<32, signs))
}

// eachByte has a one in every byte.
const eachByte = 0x0101010101010101

// signBytes has, for each set of signs, the bytes that they fill.
var signBytes = func() (t [256]uint64) {
	for s := range t {
		for j := range 8 {
			t[s] |= uint64(s>>j&1) * 0xff << (8 * j)
		}
	}
	return t
}()

// signed8 negates bytes of g, none of which is zero: then no carry leaves a byte.
func signed8(g uint64, signs uint8) uint64 {
	m := signBytes[signs]
	return g ^ m + m&eachByte
}

func putOctet(q []int8, v uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Pointer((*[8]int8)(q)))[:], v)
}

// odd is the scale 2s+1 that these types store as s.
func odd(s uint32) int16 { return int16(2*s + 1) }

func unpackIQ2XXS(s *super, b []byte) {
	_ = b[65]
	grid := quant.Grid256()
	s.d = half(b) * 0.125
	for g := range 8 {
		idx, w := b[2+8*g:6+8*g], u32(b[6+8*g:])
		s.scale[2*g], s.scale[2*g+1] = odd(w>>28), odd(w>>28)
		for l, x := range idx {
			octet(s.q[32*g+8*l:], &grid[x], quant.Sign7(uint8(w>>(7*l)&127)))
		}
	}
}

func unpackIQ2XS(s *super, b []byte) {
	_ = b[73]
	grid := quant.Grid512()
	s.d = half(b) * 0.125
	for g := range 8 {
		s.scale[2*g], s.scale[2*g+1] = odd(uint32(b[66+g]&15)), odd(uint32(b[66+g]>>4))
		for l := range 4 {
			v := u16(b[2+8*g+2*l:])
			octet(s.q[32*g+8*l:], &grid[v&511], quant.Sign7(uint8(v>>9)))
		}
	}
}

func unpackIQ2S(s *super, b []byte) {
	_ = b[81]
	grid := quant.Grid1024()
	s.d = half(b) * 0.125
	for g := range 8 {
		s.scale[2*g], s.scale[2*g+1] = odd(uint32(b[74+g]&15)), odd(uint32(b[74+g]>>4))
		for l := range 4 {
			x := int(b[2+4*g+l]) | int(b[66+g]>>(2*l)&3)<<8
			octet(s.q[32*g+8*l:], &grid[x], b[34+4*g+l])
		}
	}
}

func unpackIQ3XXS(s *super, b []byte) {
	_ = b[97]
	grid := quant.Grid3x256()
	s.d = half(b) * 0.25
	for g := range 8 {
		w := u32(b[66+4*g:])
		s.scale[2*g], s.scale[2*g+1] = odd(w>>28), odd(w>>28)
		idx := b[2+8*g : 10+8*g]
		for l := range 4 {
			quartets(s.q[32*g+8*l:], &grid[idx[2*l]], &grid[idx[2*l+1]], quant.Sign7(uint8(w>>(7*l)&127)))
		}
	}
}

func unpackIQ3S(s *super, b []byte) {
	_ = b[109]
	grid := quant.Grid3x512()
	s.d = half(b)
	for g := range 8 {
		sc := odd(uint32(b[106+g/2] >> (4 * (g % 2)) & 15))
		s.scale[2*g], s.scale[2*g+1] = sc, sc
		idx, high := b[2+8*g:10+8*g], int(b[66+g])
		for l := range 4 {
			x, y := int(idx[2*l])|high>>(2*l)&1<<8, int(idx[2*l+1])|high>>(2*l+1)&1<<8
			quartets(s.q[32*g+8*l:], &grid[x], &grid[y], b[74+4*g+l])
		}
	}
}

// ternary sets eight codes to eighths: 8*row + 1, or - 1 when minus is set.
func ternary(q []int8, row *[8]int8, minus bool) {
	g := binary.LittleEndian.Uint64((*[8]byte)(unsafe.Pointer(row))[:]) << 3 & (eachByte * 0xf8)
	if !minus {
		putOctet(q, g|eachByte)
		return
	}
	// Minus one in each byte: the low seven bits add up without a carry into the next byte, the top one by parity.
	putOctet(q, g&(eachByte*0x7f)+eachByte*0x7f^^g&(eachByte*0x80))
}

func unpackIQ1S(s *super, b []byte) {
	_ = b[49]
	grid := quant.Grid1x2048()
	s.d = half(b) * 0.125
	for g := range 8 {
		h := u16(b[34+2*g:])
		s.scale[2*g], s.scale[2*g+1] = odd(uint32(h>>12&7)), odd(uint32(h>>12&7))
		for l := range 4 {
			x := int(b[2+4*g+l]) | int(h>>(3*l)&7)<<8
			ternary(s.q[32*g+8*l:], &grid[x], h>>15 != 0)
		}
	}
}

func unpackIQ1M(s *super, b []byte) {
	_ = b[55]
	grid := quant.Grid1x2048()
	s.d = quant.ScaleIQ1M(b) * 0.125
	for g := range 8 {
		sc := uint32(u16(b[48+2*(g/2):])) >> (6 * (g % 2))
		s.scale[2*g], s.scale[2*g+1] = odd(sc&7), odd(sc>>3&7)
		for l := range 4 {
			n := b[32+2*g+l/2] >> (4 * (l % 2)) & 15
			x := int(b[4*g+l]) | int(n&7)<<8
			ternary(s.q[32*g+8*l:], &grid[x], n&8 != 0)
		}
	}
}

func unpackIQ4XS(s *super, b []byte) {
	_ = b[135]
	s.d = half(b)
	for g := range 8 {
		sc := int16(quant.ScaleIQ4XS(b, g))
		s.scale[2*g], s.scale[2*g+1] = sc, sc
		for l, v := range b[8+16*g : 24+16*g] {
			s.q[32*g+l], s.q[32*g+16+l] = quant.KV4[v&15], quant.KV4[v>>4]
		}
	}
}
