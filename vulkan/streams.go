//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"math"
	"runtime"

	"terrace/compute"
	"terrace/kernels"
)

// mixRows is the number of rows that Mix takes at a time, so that what lies between the products stays small.
const mixRows = 256

// Mix implements compute.Encoder.
func (e *encoder) Mix(dst, inject, x compute.Tensor, m *compute.Mixer) {
	e.drain()
	d, t := own(dst), own(x)
	down, up := ownWeight(m.Down), ownWeight(m.Up)
	var inj *tensor
	var injW *weight
	if m.Inject != nil {
		inj, injW = own(inject), ownWeight(m.Inject)
	}
	if cols := m.Streams * d.cols; t.cols != cols || t.rows != d.rows || down.m.In != cols || up.m.Out != cols || down.m.Out != up.m.In ||
		(inject == nil) != (m.Inject == nil) || inj != nil && (inj.cols != injW.m.Out || injW.m.In != cols || inj.rows != t.rows) {
		panic(fmt.Sprintf("vulkan: Mix of %d x %d, %d streams, down %d x %d, up %d x %d into %d x %d", t.rows, t.cols, m.Streams, down.m.In, down.m.Out,
			up.m.In, up.m.Out, d.rows, d.cols))
	}
	inv := 1 / float32(m.Streams)
	for first := 0; first < t.rows; first += mixRows {
		rows := min(mixRows, t.rows-first)
		in, n, lo, gate := e.temp("mix in", rows, t.cols), e.temp("mix norm", rows, t.cols), e.temp("mix low", rows, down.m.Out), e.temp("mix gate", rows, t.cols)
		e.rows(in, 0, t, first, rows)
		e.norm(normed{dst: n, x: in, w: m.Norm, dim: d.cols, heads: m.Streams, step: d.cols, wide: d.cols, eps: m.Eps, over: float32(d.cols)})
		e.MatMul(lo, down, n)
		if inj != nil {
			y := e.temp("mix inject", rows, inj.cols)
			e.MatMul(y, injW, n)
			e.rows(inj, first, y, 0, rows)
		}
		e.change(lo, each{op: ewMixSilu, f: inv})
		e.MatMul(gate, up, lo)
		e.in(&n.track, &gate.track)
		e.out(&d.track)
		e.each(each{op: ewMixStreams, dst: d.at(first), x: n.addr(), y: gate.addr(), n: rows * d.cols, cols: d.cols, a: m.Streams, f: inv})
	}
	d.touch()
	if inj != nil {
		inj.touch()
	}
}

// rows copies n rows of x from row first on to those of dst from row at on.
func (e *encoder) rows(dst *tensor, at int, x *tensor, first, n int) {
	e.in(&x.track)
	e.out(&dst.track)
	if e.err == nil {
		b := uint64(x.cols) * 4
		e.copy(dst.region(), uint64(at)*b, x.region(), uint64(first)*b, uint64(n)*b)
	}
}

// Spread implements compute.Encoder.
func (e *encoder) Spread(dst, x compute.Tensor) {
	e.drain()
	d, t := own(dst), own(x)
	if d.cols%t.cols != 0 || d.rows != t.rows {
		panic(fmt.Sprintf("vulkan: Spread of %d x %d into %d x %d", t.rows, t.cols, d.rows, d.cols))
	}
	e.in(&t.track)
	e.change(d, each{op: ewSpread, x: t.addr(), a: t.cols})
}

// Inject implements compute.Encoder.
func (e *encoder) Inject(x, y, inject compute.Tensor) {
	e.drain()
	d, t, f := own(x), own(y), own(inject)
	if d.cols != f.cols*t.cols || d.rows != t.rows || d.rows != f.rows {
		panic(fmt.Sprintf("vulkan: Inject of %d x %d by %d x %d into %d x %d", t.rows, t.cols, f.rows, f.cols, d.rows, d.cols))
	}
	e.in(&t.track, &f.track)
	e.change(d, each{op: ewInject, x: t.addr(), y: f.addr(), a: t.cols, b: f.cols, f: 1 / float32(f.cols)})
}

// EngramGate implements compute.Encoder.
func (e *encoder) EngramGate(dst, norm, x, key, val compute.Tensor, g *compute.Engram) {
	e.drain()
	d, n, t, k, v := own(dst), own(norm), own(x), own(key), own(val)
	for _, o := range []*tensor{n, t, k} {
		sameShape("EngramGate", d, o)
	}
	if v.rows != d.rows || v.cols*g.Streams != d.cols || d == t || n == t || n == k || n == d {
		panic(fmt.Sprintf("vulkan: EngramGate of values of %d x %d into %d streams of %d x %d", v.rows, v.cols, g.Streams, d.rows, d.cols))
	}
	run := func(dst, x *tensor, w compute.Weight) {
		e.norm(normed{dst: dst, x: x, w: w, dim: v.cols, heads: g.Streams, step: v.cols, wide: v.cols, eps: g.Eps, over: float32(v.cols)})
	}
	run(k, k, g.KeyNorm)
	run(n, t, g.QueryNorm)
	e.in(&k.track, &n.track, &v.track)
	e.out(&d.track)
	d.touch()
	e.begin(shEngram, [4]uint32{})
	e.u64(d.addr(), k.addr(), n.addr(), v.addr())
	e.u32(uint32(v.cols), uint32(g.Streams))
	e.f32(float32(1 / math.Sqrt(float64(v.cols))))
	y, z := across(d.rows)
	e.dispatch(g.Streams, y, z)
	run(n, d, g.ConvNorm)
}

// index implements compute.Index: for each layer the keys of all blocks, and those of the positions that are not the last of
// their block.
type index struct {
	shape  compute.IndexShape
	e      *encoder
	layers []indexLayer
	parts  *[]part
	freed  bool
}

type indexLayer struct {
	keys, parts region
	track       track
}

// NewIndex implements compute.Backend. It fails where memory is refused.
func (b *Backend) NewIndex(s compute.IndexShape) (compute.Index, error) {
	if s.Layers < 1 || s.Dim < 1 || s.Block < 2 || s.Context < 1 || s.Type != compute.KVF16 && s.Type != compute.KVF32 {
		return nil, fmt.Errorf("vulkan: a block index of %d layers, keys of %d elements of %s, blocks of %d, %d positions", s.Layers, s.Dim, s.Type, s.Block, s.Context)
	}
	if n := float64(s.Layers) * float64(s.Context+s.Block) * float64(s.Dim) * 4; n > 1<<46 {
		return nil, fmt.Errorf("vulkan: a block index of %d positions needs %.3g bytes, more than can be addressed", s.Context, n)
	}
	x := &index{shape: s, e: &b.enc, layers: make([]indexLayer, s.Layers), parts: new([]part)}
	n := uint64(s.Type.RowBytes(s.Dim)) * uint64(s.Blocks())
	for i := range x.layers {
		l := &x.layers[i]
		var err error
		if l.keys, err = b.take(n); err == nil {
			*x.parts = append(*x.parts, part{r: l.keys})
			if l.parts, err = b.take(n * uint64(s.Block-1)); err == nil {
				*x.parts = append(*x.parts, part{r: l.parts})
			}
		}
		if err != nil {
			x.Free()
			return nil, fmt.Errorf("vulkan: index keys of %d positions: %w", s.Context, err)
		}
	}
	runtime.AddCleanup(x, b.enc.bin.drop, x.parts)
	return x, nil
}

func (x *index) Shape() *compute.IndexShape { return &x.shape }

// Free gives the memory back; the index must not be used afterwards. A second call does nothing.
func (x *index) Free() {
	if !x.freed {
		x.freed = true
		x.e.bin.drop(x.parts)
		*x.parts = nil
	}
}

// CopyPrefix implements compute.Index.
func (x *index) CopyPrefix(from compute.Index, n int) {
	o, ok := from.(*index)
	if !ok || o.shape != x.shape || n < 0 || n > x.shape.Context {
		panic(fmt.Sprintf("vulkan: the first %d positions of a block index %+v (%T) into one %+v", n, *from.Shape(), from, x.shape))
	}
	row, whole := uint64(x.shape.Type.RowBytes(x.shape.Dim)), uint64(n/x.shape.Block)
	x.e.b.side.do(func(c *commands) {
		for i := range x.layers {
			c.copy(x.layers[i].keys, 0, o.layers[i].keys, 0, whole*row)
			c.copy(x.layers[i].parts, 0, o.layers[i].parts, 0, (uint64(n)-whole)*row)
		}
	})
}

// Trim implements compute.Index: the device's memory is not given back in part.
func (x *index) Trim(int) bool { return false }

// CopyOut implements compute.Index.
func (x *index) CopyOut(dst []byte, r compute.IndexRange) {
	m, at := x.run(r, len(dst))
	x.e.b.side.read(dst, m, at)
}

// CopyIn implements compute.Index.
func (x *index) CopyIn(r compute.IndexRange, src []byte) {
	m, at := x.run(r, len(src))
	x.e.b.side.write(m, at, src)
}

// run is where a range of n bytes lies.
func (x *index) run(r compute.IndexRange, n int) (region, uint64) {
	if want := x.shape.RangeBytes(r); want != n {
		panic(fmt.Sprintf("vulkan: %d bytes for %d of a block index", n, want))
	}
	at := uint64(r.First) * uint64(x.shape.Type.RowBytes(x.shape.Dim))
	if r.Blocks {
		return x.layers[r.Layer].keys, at
	}
	return x.layers[r.Layer].parts, at
}

// scoreBytes bounds the scores that are held at a time, beyond those of one row.
const scoreBytes = 8 << 20

// SparseAttention implements compute.Encoder. Which blocks are taken is decided on the CPU (kernels.Picked): where a query
// cannot see everything, it waits for their scores.
func (e *encoder) SparseAttention(dst, q, k, v, indexQ, indexK compute.Tensor, cache compute.KV, s *compute.SparseSpec) {
	e.drain()
	x, ok := s.Index.(*index)
	if !ok {
		panic(fmt.Sprintf("vulkan: a block index of another backend (%T)", s.Index))
	}
	iq, ik, h := own(indexQ), own(indexK), &x.shape
	heads, rows, pos := iq.cols/h.Dim, own(q).rows, s.Pos
	if s.IndexLayer < 0 || s.IndexLayer >= h.Layers || heads*h.Dim != iq.cols || heads == 0 || iq.rows != rows || ik.cols != h.Dim || ik.rows != len(pos) || s.Top < 1 {
		panic(fmt.Sprintf("vulkan: SparseAttention of index queries %d x %d for %d queries, keys %d x %d for %d positions, layer %d of an index of %d layers of %d, the best %d blocks",
			iq.rows, iq.cols, rows, ik.rows, ik.cols, len(pos), s.IndexLayer, h.Layers, h.Dim, s.Top))
	}
	a := e.attention(dst, q, cache, &s.AttnSpec)
	if a.l.Window > 0 || s.Sinks != nil || len(pos) > 0 && int(pos[len(pos)-1]) >= h.Context {
		panic(fmt.Sprintf("vulkan: SparseAttention with a window of %d or with sinks (%t), at %d of %d positions of a block index", a.l.Window, s.Sinks != nil, len(pos), h.Context))
	}
	e.append(&a, k, v)
	if len(pos) == 0 {
		e.attend(&a, seen{})
		return
	}
	l := &x.layers[s.IndexLayer]
	e.index(x, l, ik, s)
	picked := seen{}
	if whole := int(pos[len(pos)-1]+1) / h.Block; rows > 0 && whole > s.Top { // otherwise everybody sees everything
		picked = e.rank(x, l, iq, s, heads, whole)
	}
	e.attend(&a, picked)
}

// index stores the keys of the positions, and those of the blocks that they make whole.
func (e *encoder) index(x *index, l *indexLayer, ik *tensor, s *compute.SparseSpec) {
	h, pos := &x.shape, s.Pos
	first := int(pos[0]) / h.Block
	whole := int(pos[len(pos)-1]+1)/h.Block - first
	pairs := 0
	if whole > 0 {
		pairs = len(s.Cos) / whole
	}
	if len(s.Sin) != len(s.Cos) || pairs*whole != len(s.Cos) || whole > 0 && (pairs == 0 || 2*pairs > h.Dim) {
		panic(fmt.Sprintf("vulkan: %d cosines and %d sines for %d whole blocks of keys of %d", len(s.Cos), len(s.Sin), whole, h.Dim))
	}
	step := func(n uint32, from *tensor, sums uint64, count int) {
		e.begin(shBlocks, [4]uint32{uint32(h.Type), n})
		e.u64(from.addr(), l.parts.addr(), sums, l.keys.addr())
		e.u32(uint32(h.Dim), uint32(h.Block), uint32(pos[0]), uint32(len(pos)), uint32(first), uint32(count))
		y, z := across(count)
		e.dispatch(groups(h.Dim, 64), y, z)
	}
	e.in(&ik.track)
	e.out(&l.track)
	step(0, ik, 0, len(pos))
	if whole == 0 {
		return
	}
	sums := e.temp("block keys", whole, h.Dim)
	e.in(&ik.track, &l.track)
	e.out(&sums.track)
	step(1, ik, sums.addr(), whole)
	e.norm(normed{dst: sums, x: sums, w: s.Norm, dim: h.Dim, heads: 1, eps: s.Eps, over: float32(h.Dim)})
	e.reserve(8*len(s.Cos), 2)
	e.rotation(&turn{x: sums, dim: h.Dim, n: 2 * pairs, pairs: compute.Neox, cos: numbers(e, s.Cos), sin: numbers(e, s.Sin)})
	e.in(&sums.track)
	e.out(&l.track)
	step(2, sums, 0, whole)
}

// rank finds the positions that each of the queries sees. It waits for the scores.
func (e *encoder) rank(x *index, l *indexLayer, iq *tensor, s *compute.SparseSpec, heads, whole int) seen {
	h, rows := &x.shape, iq.rows
	some := max(1, min(rows, scoreBytes/4/whole))
	last := int(s.Pos[len(s.Pos)-1])
	most := min(last/64+1, s.Top*h.Block+h.Block)
	list := make([]uint32, rows*(3*most+1))
	host := make([]float32, some*whole)
	var runs []kernels.Run
	var work kernels.Scratch
	e.stats.Fallbacks += int64(rows)
	for first := 0; first < rows; first += some {
		n := min(some, rows-first)
		scores := e.temp("block scores", n, whole)
		e.in(&iq.track, &l.track)
		e.out(&scores.track)
		e.begin(shScores, [4]uint32{uint32(h.Type)})
		e.u64(scores.addr(), iq.at(first), l.keys.addr())
		e.u32(uint32(h.Dim), uint32(heads), uint32(whole))
		e.dispatch(groups(whole, 64), n, 1)
		e.in(&scores.track)
		e.fetch(host[:n*whole], scores.region())
		if err := e.settle(); err != nil {
			e.fail(err)
		}
		if e.err != nil {
			return seen{}
		}
		for r := range n {
			p := int(s.Pos[len(s.Pos)-rows+first+r]) + 1
			pick := kernels.Picked{Block: h.Block, Tail: p % h.Block, Keep: s.Top*h.Block + h.Block - 1}
			runs = pick.Runs(runs[:0], host[r*whole:r*whole+p/h.Block], &work)
			mask(list[(first+r)*(3*most+1):(first+r+1)*(3*most+1)], runs)
		}
	}
	e.reserve(4*len(list), 1)
	return seen{list: numbers(e, list), most: most}
}

// mask writes runs as blocks of 64 positions: how many, then each block's number and which of its positions are meant.
func mask(list []uint32, runs []kernels.Run) {
	n := uint32(0)
	for _, r := range runs {
		for p := r.First; p < r.First+r.N; p++ {
			if b := uint32(p / 64); n == 0 || list[3*n-2] != b {
				n++
				list[3*n-2], list[3*n-1], list[3*n] = b, 0, 0
			}
			list[3*n-1+uint32(p%64/32)] |= 1 << (p % 32)
		}
	}
	list[0] = n
}
