package model

import (
	"fmt"

	"terrace/compute"
)

// What a sequence remembers is copied out and in as bytes, for prompt caches: the rows of positions, which do not depend on what
// comes after them, and the recurrent state at one position, which stands for all before it. The bytes are those that the
// backend computes with, so a sequence that is put together from them goes on with the bits of the one they come from. They
// depend on the model and the cache's types, not on the context's size, batches or backend.
//
// Rows of n positions lie layer by layer, of each KV head first its n keys, then its n values; first the layers without a
// window, then those with one, which may be left out; then the keys of the block index.

// rowLayer is what one layer adds to rows.
type rowLayer struct {
	layer int
	shape *compute.KVLayer
}

// rowLayers calls f with the layers with a window, or those without one.
func (s *State) rowLayers(windowed bool, f func(l rowLayer)) {
	if s.kv == nil {
		return
	}
	shape := s.kv.Shape()
	for i := range shape.Layers {
		if x := &shape.Layers[i]; (x.Window > 0) == windowed {
			f(rowLayer{i, x})
		}
	}
}

// each calls f with the two runs of each head, and the bytes of one position in them.
func (s *State) each(l rowLayer, f func(r compute.KVRange, row int)) {
	shape := s.kv.Shape()
	for h := range l.shape.Heads {
		f(compute.KVRange{Layer: l.layer, Head: h}, shape.K.RowBytes(l.shape.KeyDim))
		if !l.shape.Latent {
			f(compute.KVRange{Layer: l.layer, Head: h, Values: true}, shape.V.RowBytes(l.shape.ValDim))
		}
	}
}

// Window is the largest window of a layer: a token at position p needs what these layers hold of the positions from p-Window+1
// on. 0: no layer has one.
func (s *State) Window() int {
	w := 0
	s.rowLayers(true, func(l rowLayer) { w = max(w, l.shape.Window) })
	return w
}

// Held is the first position whose rows are there in layers with a window too.
func (s *State) Held() int {
	held := 0
	s.rowLayers(true, func(l rowLayer) {
		if cells := s.kv.Shape().Cells(l.layer); cells < s.ctx {
			held = max(held, s.high-cells)
		}
	})
	return min(max(held, s.low), s.pos)
}

// Fading is the first position whose rows will be there in layers with a window after the next batch, whatever its size.
func (s *State) Fading() int {
	fading := 0
	s.rowLayers(true, func(l rowLayer) {
		if shape := s.kv.Shape(); shape.Cells(l.layer) < s.ctx {
			fading = max(fading, max(s.high, s.pos+max(shape.Slack, 1))-shape.Cells(l.layer))
		}
	})
	return fading
}

// RowBytes is the size of a position's rows, in layers without a window or with one.
func (s *State) RowBytes(windowed bool) int {
	n := 0
	s.rowLayers(windowed, func(l rowLayer) { s.each(l, func(_ compute.KVRange, row int) { n += row }) })
	if s.index != nil && !windowed {
		x := s.index.Shape()
		n += x.Layers * x.Type.RowBytes(x.Dim)
	}
	return n
}

// RowsSize is the size of the rows of n positions.
func (s *State) RowsSize(n int, windowed bool) int {
	size := n * s.RowBytes(false)
	if windowed {
		size += n * s.RowBytes(true)
	}
	return size
}

// ExportRows copies the rows of n positions from first on to dst, which has RowsSize bytes; those of layers with a window too
// where windowed is set: then first is Held or later.
func (s *State) ExportRows(dst []byte, first, n int, windowed bool) {
	if first < 0 || n < 0 || first+n > s.pos || len(dst) != s.RowsSize(n, windowed) || windowed && first < s.Held() && s.RowBytes(true) > 0 {
		panic(fmt.Sprintf("model: rows of positions %d to %d (windows: %t) in %d bytes; the sequence has %d and holds windows from %d on", first, first+n, windowed,
			len(dst), s.pos, s.Held()))
	}
	out := func(l rowLayer) {
		s.each(l, func(r compute.KVRange, row int) {
			s.cells(r, first, n, func(r compute.KVRange, i, k int) { s.kv.CopyOut(dst[i*row:(i+k)*row], r) })
			dst = dst[n*row:]
		})
	}
	s.rowLayers(false, out)
	if windowed {
		s.rowLayers(true, out)
	}
	s.keys(first, n, func(r compute.IndexRange, row int) {
		s.index.CopyOut(dst[:r.N*row], r)
		dst = dst[r.N*row:]
	})
}

// cells calls f with the runs of cells that n positions from first on take in r's layer, each with its first position's number
// among them and its length.
func (s *State) cells(r compute.KVRange, first, n int, f func(r compute.KVRange, i, k int)) {
	cells := s.kv.Shape().Cells(r.Layer)
	for i := 0; i < n; {
		r.Cell = (first + i) % cells
		r.Cells = min(cells-r.Cell, n-i)
		f(r, i, r.Cells)
		i += r.Cells
	}
}

// keys calls f with the ranges of the block index that belong to n positions from first on, and the bytes of a key.
func (s *State) keys(first, n int, f func(r compute.IndexRange, row int)) {
	if s.index == nil {
		return
	}
	x := s.index.Shape()
	row := x.Type.RowBytes(x.Dim)
	b0, o0 := x.Before(first)
	b1, o1 := x.Before(first + n)
	for l := range x.Layers {
		f(compute.IndexRange{Layer: l, Blocks: true, First: b0, N: b1 - b0}, row)
		f(compute.IndexRange{Layer: l, First: o0, N: o1 - o0}, row)
	}
}

// Rows are exported rows of N positions from First on.
type Rows struct {
	Data     []byte
	First, N int
	Windowed bool // with those of layers with a window
}

// ImportRows puts the rows of positions from lo to hi-1, which must be among those of x, where ExportRows found them; in layers
// with a window those from window on alone. The sequence does not move: Adopt says when everything behind where it stands is
// there, or Settle that nothing more will come. On an error, which means that x has another size than its rows, nothing is
// changed.
func (s *State) ImportRows(x Rows, lo, hi, window int) error {
	if lo < x.First || hi > x.First+x.N || hi < lo || hi > s.ctx {
		panic(fmt.Sprintf("model: positions %d to %d of rows %d to %d in a context of %d", lo, hi, x.First, x.First+x.N, s.ctx))
	}
	if want := s.RowsSize(x.N, x.Windowed); len(x.Data) != want {
		return fmt.Errorf("rows of %d positions have %d bytes, want %d", x.N, len(x.Data), want)
	}
	src := x.Data
	in := func(from int) func(l rowLayer) {
		return func(l rowLayer) {
			s.each(l, func(r compute.KVRange, row int) {
				s.cells(r, from, hi-from, func(r compute.KVRange, i, k int) {
					at := (from - x.First + i) * row
					s.kv.CopyIn(r, src[at:at+k*row])
				})
				src = src[x.N*row:]
			})
		}
	}
	s.rowLayers(false, in(lo))
	if x.Windowed {
		from := min(max(lo, window), hi)
		s.rowLayers(true, in(from))
		if from < hi {
			s.high = max(s.high, hi)
		}
	}
	if s.index == nil {
		return nil
	}
	shape := s.index.Shape()
	b0, o0 := shape.Before(x.First)
	b1, o1 := shape.Before(x.First + x.N)
	s.keys(lo, hi-lo, func(r compute.IndexRange, row int) {
		at, all := r.First-b0, b1-b0
		if !r.Blocks {
			at, all = r.First-o0, o1-o0
		}
		s.index.CopyIn(r, src[at*row:(at+r.N)*row])
		src = src[all*row:]
	})
	return nil
}

// Recurrent is the size of a copy of the recurrent state; 0: there is none.
func (s *State) Recurrent() int {
	if s.rec == nil {
		return 0
	}
	return int(s.rec.Shape().Bytes())
}

// ExportRecurrent copies the recurrent state to dst, which has Recurrent bytes.
func (s *State) ExportRecurrent(dst []byte) { s.rec.CopyOut(dst) }

// Capture has the next Forward copy the recurrent state at positions on its way, each behind where the sequence stands and
// within the batch, to the Recurrent bytes beside it. A Forward that fails leaves unknown bytes there; one that follows tries
// again. nil: none.
func (s *State) Capture(at []int, dst [][]byte) {
	s.captures = s.captures[:0]
	for i, p := range at {
		if p <= s.pos || p > s.ctx {
			panic(fmt.Sprintf("model: the state at position %d is wanted of a sequence of %d in a context of %d", p, s.pos, s.ctx))
		}
		s.captures = append(s.captures, compute.Capture{Rows: p - s.pos, Dst: dst[i]})
	}
	s.rec.Capture(s.captures)
}

// Adopt makes the sequence stand behind tokens, whose rows from where it stood have been imported; window is the first position
// from which on layers with a window have got them all, and recurrent the recurrent state there. It is a checkpoint from now on.
// On an error, which means that recurrent has another size than the state, nothing is changed.
func (s *State) Adopt(tokens []int32, window int, recurrent []byte) error {
	n := len(tokens)
	if n < s.pos || n > s.ctx {
		panic(fmt.Sprintf("model: a sequence of %d tokens adopts %d in a context of %d", s.pos, n, s.ctx))
	}
	if want := s.Recurrent(); len(recurrent) != want {
		return fmt.Errorf("a recurrent state of %d bytes, want %d", len(recurrent), want)
	}
	if s.rec != nil {
		s.rec.CopyIn(recurrent)
	}
	copy(s.ids, tokens)
	if window > s.pos { // there is a gap before it
		s.low = window
	}
	s.pos, s.high = n, max(s.high, n)
	s.Save()
	return nil
}

// Settle ends an import without Adopt. The sequence stands where it stood, or at the start where the import took the place of what
// layers with a window held. It answers how many tokens the sequence holds.
func (s *State) Settle() int {
	if !s.sees(s.pos) {
		s.reset()
	}
	return s.pos
}
