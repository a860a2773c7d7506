package kernels

import (
	"unsafe"

	"terrace/gguf"
	"terrace/internal/fmath"
)

// Products of float32 activations with many columns go by tiles of 4 rows by some columns: rows that are no float32 are
// decoded first, once for all columns, and a chunk of the rows stays in the first-level cache while the columns go by.

const (
	floatRows  = 4
	floatChunk = 1024 // elements
)

// floatTile adds to accumulators, which lie as [column][row][16 by element index modulo 16], out = in + the products of 4
// rows at distance stride with the columns at distance n, count runs of 16 elements.
type floatTile func(out, in, w *float32, stride int, x *float32, n, count int)

// gemmFloat is the tile path for float32 activations.
type gemmFloat struct {
	tile  floatTile
	cols  int // of the tile
	join  func(dst *float32, ld int, acc *float32, cols int)
	f16   func(dst *float32, w *byte, count int)
	bf16  func(dst *float32, w *byte, count int)
	ready bool
}

// takes reports whether a product is of a size for the tile.
func (k *gemmFloat) takes(m *product) bool {
	return k.ready && m.r1-m.r0 >= floatRows && m.c1-m.c0 >= k.cols
}

// multiply computes a product of at least 4 rows and as many columns as a tile has. What is left of rows or columns after
// whole tiles is covered by one that takes some of them again, with the same results.
func (k *gemmFloat) multiply(m *product, l *level, s *Scratch) {
	n := m.a.N
	steps := n / 16
	tile := k.cols * floatRows * 16
	g := &s.gemm
	g.acc = grow(g.acc, ((m.c1-m.c0)/k.cols+1)*tile)
	for r := m.r0; r < m.r1; r += floatRows {
		r = min(r, m.r1-floatRows)
		w := k.rows(m, l, s, r)
		clear(g.acc)
		for e := 0; e < steps*16; e += floatChunk {
			count := min(floatChunk, steps*16-e) / 16
			for i, c := 0, m.c0; c < m.c1; i, c = i+1, c+k.cols {
				acc := &g.acc[i*tile]
				k.tile(acc, acc, &w[e], n, &m.a.F[min(c, m.c1-k.cols)*n+e], n, count)
			}
		}
		for i, c := 0, m.c0; c < m.c1; i, c = i+1, c+k.cols {
			c := min(c, m.c1-k.cols)
			acc := g.acc[i*tile : (i+1)*tile]
			for j := 16 * steps; j < n; j++ {
				for at := range k.cols * floatRows {
					a := &acc[16*at+j%16]
					*a = fmath.Fma(w[at%floatRows*n+j], m.a.F[(c+at/floatRows)*n+j], *a)
				}
			}
			k.join(&m.dst[c*m.ld+r], m.ld, &acc[0], k.cols)
		}
	}
}

// rows is 4 rows of weights from row r on as float32, side by side.
func (k *gemmFloat) rows(m *product, l *level, s *Scratch, r int) []float32 {
	n := m.a.N
	if m.t == gguf.F32 {
		if w := &m.w[r*m.rb]; uintptr(unsafe.Pointer(w))%4 == 0 {
			return unsafe.Slice((*float32)(unsafe.Pointer(w)), floatRows*n)
		}
	}
	s.row = grow(s.row, floatRows*n)
	for i := range floatRows {
		dst, w := s.row[i*n:(i+1)*n], m.row(r+i)
		whole := n / 16
		switch {
		case m.t == gguf.F16 && whole > 0:
			k.f16(&dst[0], &w[0], whole)
			widenGeneric(m.t, dst[16*whole:], w[32*whole:])
		case m.t == gguf.BF16 && whole > 0:
			k.bf16(&dst[0], &w[0], whole)
			widenGeneric(m.t, dst[16*whole:], w[32*whole:])
		default:
			decodeRow(l, m.t, dst, w)
		}
	}
	return s.row
}
