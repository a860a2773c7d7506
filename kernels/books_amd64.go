//go:build amd64 && !noasm

package kernels

import (
	"slices"

	"terrace/quant"
)

// Code books as the assembly wants them; it reads these pointers. "book" ones hold codes, see codeBook. "bytes" ones are
// the entries themselves, a byte for a weight.
var (
	bookiq2xxs, bookiq2xs, bookiq2s, bookiq3xxs, bookiq3s      *byte
	bookiq1s, bookiq1m                                         *byte
	bytesiq2xxs, bytesiq2xs, bytesiq2s, bytesiq3xxs, bytesiq3s *byte
)

// bytesiq1 is the book of IQ1_S and IQ1_M: 9 more than eighths of weights, with the plus, then with the minus.
var bytesiq1 *byte

// Signs of eight weights by their bits, as 1 and -1: sign7 completes seven bits to an even number.
var sign7, sign8 *byte

func bindBooks() {
	levels2, levels3, odds := []uint8{8, 25, 43}, []uint8{4, 12, 20, 28, 36, 44, 52, 62}, []uint8{1, 3, 5, 7, 9, 11, 13, 15}
	for _, g := range []struct {
		book, bytes **byte
		rows        [][]uint8
		levels      []uint8
	}{
		{&bookiq2xxs, &bytesiq2xxs, rows8(quant.Grid256()[:]), levels2},
		{&bookiq2xs, &bytesiq2xs, rows8(quant.Grid512()[:]), levels2},
		{&bookiq2s, &bytesiq2s, rows8(quant.Grid1024()[:]), levels2},
		{&bookiq3xxs, &bytesiq3xxs, rows4(quant.Grid3x256()[:]), levels3},
		{&bookiq3s, &bytesiq3s, rows4(quant.Grid3x512()[:]), odds},
	} {
		*g.book, *g.bytes = codeBook(g.rows, g.levels)
	}
	var ternary [][]uint8
	for _, row := range quant.Grid1x2048() {
		r := make([]uint8, len(row))
		for i, v := range row {
			r[i] = uint8(v + 1)
		}
		ternary = append(ternary, r)
	}
	for _, book := range []**byte{&bookiq1s, &bookiq1m} {
		*book, _ = codeBook(ternary, []uint8{0, 1, 2})
	}
	var ones []byte
	for _, delta := range []int8{1, -1} {
		for _, row := range quant.Grid1x2048() {
			for _, v := range row {
				ones = append(ones, byte(8*v+delta+9))
			}
		}
	}
	var s7, s8 []byte
	for k := range 256 {
		var row [8]byte
		for j := range row {
			row[j] = 1 - 2*byte(k>>j&1)
		}
		s8 = append(s8, row[:]...)
		if k < 128 {
			row[7] = 1 - 2*(quant.Sign7(uint8(k))>>7)
			s7 = append(s7, row[:]...)
		}
	}
	for p, b := range map[**byte][]byte{&bytesiq1: ones, &sign7: s7, &sign8: s8} {
		*p = aligned(b)
	}
}

func rows8(g [][8]uint8) (rows [][]uint8) {
	for i := range g {
		rows = append(rows, g[i][:])
	}
	return rows
}

func rows4(g [][4]uint8) (rows [][]uint8) {
	for i := range g {
		rows = append(rows, g[i][:])
	}
	return rows
}

// codeBook lays out a grid whose weights are among levels. Codes of a book of eights have 2 bits: weights 0, 1, 4 and 5 are
// in the first byte of an entry, the others in the second. Codes of a book of fours have 4 bits: weights 0 and 1 are in the
// first byte. The first bytes of all entries come before the second ones.
func codeBook(rows [][]uint8, levels []uint8) (book, bytes *byte) {
	n, dim := len(rows), len(rows[0])
	b, e := make([]byte, 2*n), make([]byte, 0, n*dim)
	for i, row := range rows {
		e = append(e, row...)
		for j, v := range row {
			code := slices.Index(levels, v)
			if code < 0 {
				panicf("kernels: a code book has %d, which is none of %v", v, levels)
			}
			half, at := j/2%2, 4*(j%2)
			if dim == 8 {
				at = 2*(j%2) + j/4*4
			}
			b[half*n+i] |= byte(code) << at
		}
	}
	return aligned(b), aligned(e)
}

// aligned copies b to a cache line boundary.
func aligned(b []byte) *byte {
	a := grow([]byte(nil), len(b))
	copy(a, b)
	return &a[0]
}
