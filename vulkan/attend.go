//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"math"
	"runtime"

	"terrace/compute"
	"terrace/kernels"
)

// kv implements compute.KV: a region each for the keys and the values of a layer, laid out KV head, position, element.
type kv struct {
	shape  compute.KVShape
	e      *encoder
	layers []kvLayer
	parts  *[]part
	freed  bool
}

type kvLayer struct {
	k, v  region
	cells int

	keys, values track
}

// NewKV implements compute.Backend. It fails where memory is refused.
func (b *Backend) NewKV(s compute.KVShape) (compute.KV, error) {
	if len(s.Layers) == 0 || s.Context < 1 || s.Slack < 0 {
		return nil, fmt.Errorf("vulkan: a KV cache of %d layers and %d positions, %d of them at once", len(s.Layers), s.Context, s.Slack)
	}
	n := 0.0
	for i, l := range s.Layers {
		if l.Heads < 1 || l.KeyDim < 1 || l.ValDim < 1 || l.Window < 0 || l.Latent && l.ValDim > l.KeyDim || l.KeyDim > maxKeyDim || l.ValDim > maxKeyDim {
			return nil, fmt.Errorf("vulkan: layer %d of a KV cache has %d heads, keys of %d, values of %d (at most %d), a window of %d", i, l.Heads, l.KeyDim, l.ValDim, maxKeyDim, l.Window)
		}
		n += float64(l.Heads) * float64(s.Context) * float64(l.KeyDim+l.ValDim) * 4
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("vulkan: %w", err)
	}
	if n > math.MaxInt/2 {
		return nil, fmt.Errorf("vulkan: a KV cache of %d positions needs %.3g bytes, more than can be addressed", s.Context, n)
	}
	c := &kv{shape: s, e: &b.enc, layers: make([]kvLayer, len(s.Layers)), parts: new([]part)}
	for l := range s.Layers {
		x := &c.layers[l]
		x.cells = s.Cells(l)
		kb, vb := s.Sizes(l)
		for _, m := range []struct {
			r *region
			n int64
		}{{&x.k, kb}, {&x.v, vb}} {
			if m.n == 0 {
				continue
			}
			var err error
			if *m.r, err = b.take(uint64(m.n)); err != nil {
				c.Free()
				return nil, fmt.Errorf("vulkan: a KV cache of %d positions: %w", s.Context, err)
			}
			*c.parts = append(*c.parts, part{r: *m.r})
		}
	}
	runtime.AddCleanup(c, b.enc.bin.drop, c.parts)
	return c, nil
}

// maxKeyDim is the room for a query that attention has.
const maxKeyDim = 1024

func (c *kv) Shape() *compute.KVShape { return &c.shape }

// Free gives the memory back; the cache must not be used afterwards. A second call does nothing.
func (c *kv) Free() {
	if !c.freed {
		c.freed = true
		c.e.bin.drop(c.parts)
		*c.parts = nil
	}
}

// CopyPrefix implements compute.KV.
func (c *kv) CopyPrefix(from compute.KV, n int) {
	o, ok := from.(*kv)
	if !ok || o.shape.Bytes() != c.shape.Bytes() || len(o.layers) != len(c.layers) || n < 0 || n > c.shape.Context {
		panic(fmt.Sprintf("vulkan: the first %d positions of a KV cache of %d (%T) into one of %d", n, from.Shape().Context, from, c.shape.Context))
	}
	c.e.b.side.do(func(list *commands) {
		for l := range c.layers {
			x, to, of := &c.shape.Layers[l], &c.layers[l], &o.layers[l]
			cells := to.cells
			if cells == c.shape.Context {
				cells = n
			}
			kb, vb := uint64(c.shape.K.RowBytes(x.KeyDim)), uint64(c.shape.V.RowBytes(x.ValDim))
			for h := range x.Heads {
				at := uint64(h * to.cells)
				list.copy(to.k, at*kb, of.k, at*kb, uint64(cells)*kb)
				if !x.Latent {
					list.copy(to.v, at*vb, of.v, at*vb, uint64(cells)*vb)
				}
			}
		}
	})
}

// Trim implements compute.KV: the device's memory is not given back in part.
func (c *kv) Trim(int) bool { return false }

// CopyOut implements compute.KV.
func (c *kv) CopyOut(dst []byte, r compute.KVRange) {
	m, at := c.run(r, len(dst))
	c.e.b.side.read(dst, m, at)
}

// CopyIn implements compute.KV.
func (c *kv) CopyIn(r compute.KVRange, src []byte) {
	m, at := c.run(r, len(src))
	c.e.b.side.write(m, at, src)
}

// run is where a range of n bytes lies.
func (c *kv) run(r compute.KVRange, n int) (region, uint64) {
	if want := c.shape.RangeBytes(r); want != n {
		panic(fmt.Sprintf("vulkan: %d bytes for %d of a KV cache", n, want))
	}
	x, l := &c.shape.Layers[r.Layer], &c.layers[r.Layer]
	first := uint64(r.Head*l.cells + r.Cell)
	if r.Values {
		return l.v, first * uint64(c.shape.V.RowBytes(x.ValDim))
	}
	return l.k, first * uint64(c.shape.K.RowBytes(x.KeyDim))
}

// seen is which positions each row attends to: blocks of 64 and which of each, as shaders/attend.comp reads them.
type seen struct {
	list uint64 // 0: all up to its own, in the layer's window
	most int    // blocks of a row that there is room for
}

// attention is one call, checked.
type attention struct {
	dst, q *tensor
	l      *compute.KVLayer
	at     *kvLayer
	kv     *kv
	s      *compute.AttnSpec
	heads  int
}

func (e *encoder) attention(dst, q compute.Tensor, cache compute.KV, s *compute.AttnSpec) attention {
	c, ok := cache.(*kv)
	if !ok {
		panic(fmt.Sprintf("vulkan: a KV cache of another backend (%T)", cache))
	}
	if s.Layer < 0 || s.Layer >= len(c.layers) {
		panic(fmt.Sprintf("vulkan: Attention in layer %d of a KV cache of %d", s.Layer, len(c.layers)))
	}
	a := attention{dst: own(dst), q: own(q), l: &c.shape.Layers[s.Layer], at: &c.layers[s.Layer], kv: c, s: s}
	l := a.l
	a.heads = a.q.cols / l.KeyDim
	if a.heads*l.KeyDim != a.q.cols || a.heads%l.Heads != 0 || a.heads == 0 || a.dst.cols != a.heads*l.ValDim || a.dst.rows != a.q.rows || a.q.rows > len(s.Pos) {
		panic(fmt.Sprintf("vulkan: Attention of q %d x %d into %d x %d with %d KV heads of %d and %d, %d positions", a.q.rows, a.q.cols,
			a.dst.rows, a.dst.cols, l.Heads, l.KeyDim, l.ValDim, len(s.Pos)))
	}
	for i, p := range s.Pos {
		if p < 0 || int(p) >= c.shape.Context || i > 0 && p != s.Pos[i-1]+1 {
			panic(fmt.Sprintf("vulkan: position %d in row %d of a KV cache of %d", p, i, c.shape.Context))
		}
	}
	return a
}

// Attention implements compute.Encoder.
func (e *encoder) Attention(dst, q, k, v compute.Tensor, cache compute.KV, s compute.AttnSpec) {
	a := e.attention(dst, q, cache, &s)
	if k == nil {
		e.drain()
	} else if x := e.appends(&a, k, v); !e.appendTurned(&a, own(k), x) {
		e.drain()
		e.append(&a, k, v)
	}
	e.attend(&a, seen{})
}

// appends checks the keys and values that a appends, and answers the values' tensor.
func (e *encoder) appends(a *attention, k, v compute.Tensor) (x *tensor) {
	l, rows := a.l, own(k).rows
	wrong := k.Cols() != l.Heads*l.KeyDim || rows != len(a.s.Pos) || (v == nil) != l.Latent
	if v != nil {
		wrong = wrong || v.Cols() != l.Heads*l.ValDim || v.Rows() != rows
	}
	if wrong || a.at.cells < a.kv.shape.Context && rows > a.kv.shape.Slack {
		panic(fmt.Sprintf("vulkan: Attention appends %d x %d with %d positions to a layer of %d heads of %d and %d (latent %t), %d at once", rows, k.Cols(), len(a.s.Pos),
			l.Heads, l.KeyDim, l.ValDim, l.Latent, a.kv.shape.Slack))
	}
	if v != nil {
		x = own(v)
	}
	return x
}

// append stores rows of keys and values.
func (e *encoder) append(a *attention, k, v compute.Tensor) {
	l := a.l
	e.appends(a, k, v)
	if own(k).rows == 0 {
		return
	}
	e.reserve(4, 1)
	where := numbers(e, []uint32{uint32(a.s.Pos[0])})
	e.put(own(k), a.at, a.at.k, &a.at.keys, a.kv.shape.K, l.Heads, l.KeyDim, where)
	if v != nil {
		e.put(own(v), a.at, a.at.v, &a.at.values, a.kv.shape.V, l.Heads, l.ValDim, where)
	}
}

// put stores rows of x; their first position is read where the device finds it, so that the next step's commands are the same.
func (e *encoder) put(x *tensor, at *kvLayer, to region, by *track, t compute.KVType, heads, dim int, where uint64) {
	e.in(&x.track)
	e.out(by)
	count := x.rows * heads * dim / t.Block()
	e.begin(shStore, [4]uint32{uint32(t)})
	e.u64(x.addr(), to.addr(), where)
	e.u32(uint32(count), uint32(heads), uint32(dim), uint32(at.cells), uint32(t.RowBytes(dim)))
	gx, gy := across(groups(count, 64))
	e.dispatch(gx, gy, 1)
}

// attend records the attention.
func (e *encoder) attend(a *attention, picked seen) {
	l, rows := a.l, a.q.rows
	a.dst.touch()
	if rows == 0 {
		return
	}
	sinks := uint64(0)
	if a.s.Sinks != nil {
		sinks = e.vector(a.s.Sinks, a.heads)
	}
	vt, values := a.kv.shape.V, a.at.v.addr()
	if l.Latent {
		vt, values = a.kv.shape.K, a.at.k.addr()
	}
	if picked.list == 0 && l.KeyDim%16 == 0 {
		e.attendAll(a, vt, values, sinks)
		return
	}
	e.in(&a.q.track, &a.at.keys, &a.at.values)
	e.out(&a.dst.track)
	e.begin(shAttend, [4]uint32{uint32(a.kv.shape.K), uint32(vt), uint32(groups(l.ValDim, 64))})
	e.u64(a.dst.addr(), a.q.addr(), a.at.k.addr(), values, sinks, picked.list)
	e.u32(uint32(l.KeyDim), uint32(l.ValDim), uint32(a.heads), uint32(a.heads/l.Heads))
	e.u32(uint32(a.s.Pos[len(a.s.Pos)-rows]), uint32(l.Window), uint32(a.at.cells), uint32(picked.most))
	e.f32(a.s.Scale)
	y, z := across(rows)
	e.dispatch(a.heads, y, z)
}

// keyScores bounds the scores that are held at a time, beyond those of one row.
const keyScores = 16 << 20

// attendAll records the attention over all positions that the layer sees, in two parts, some rows at a time.
func (e *encoder) attendAll(a *attention, vt compute.KVType, values, sinks uint64) {
	l, rows := a.l, a.q.rows
	first := int(a.s.Pos[len(a.s.Pos)-rows])
	step, stride := 32/min(groups(l.ValDim, 128), 8), vt.RowBytes(l.ValDim)
	if e.b.dev.c.info.Kind == Software {
		step = 4 // compiling takes the time there
	}
	if l.Latent {
		stride = vt.RowBytes(l.KeyDim)
	}
	q32 := uint64(0)
	if l.ValDim <= 128 && l.ValDim%32 == 0 {
		q32 = e.wanted(a.dst, kernels.Act32)
	}
	for r := 0; r < rows; {
		// The first row of a piece sees the earliest blocks, its last row the latest.
		begin := 0
		if l.Window > 0 {
			begin = max(0, first+r+1-l.Window) / 64
		}
		n := min(rows-r, 8192)
		blocks := func() int { return groups(first+r+n, 64) - begin }
		for n > 1 && n*a.heads*blocks()*64 > keyScores {
			n = (n + 1) / 2
		}
		ld := blocks() * 64
		room := 1
		for room < n*a.heads*blocks() {
			room *= 2
		}
		scores := e.temp("attention scores", room, 64)
		e.reserve(4, 1)
		where := numbers(e, []uint32{uint32(first + r)})
		if heads, ok := e.attendTiles(a, n); ok {
			e.keyTiles(a, scores, r, n, blocks(), ld, where)
			e.valueTiles(a, scores, vt, values, sinks, stride, heads, r, n, ld, where, q32)
			r += n
			continue
		}
		e.in(&a.q.track, &a.at.keys)
		e.out(&scores.track)
		e.begin(shKeys, [4]uint32{uint32(a.kv.shape.K), uint32(l.KeyDim)})
		e.u64(a.q.at(r), a.at.k.addr(), scores.addr(), where)
		e.u32(uint32(a.heads), uint32(a.heads/l.Heads), uint32(l.Window), uint32(a.at.cells), uint32(ld), uint32(n))
		e.f32(a.s.Scale)
		e.dispatch(blocks(), a.heads, n)
		e.in(&scores.track, &a.at.keys, &a.at.values)
		e.out(&a.dst.track)
		if q32 > 0 {
			e.out(&a.dst.acts[kernels.Act32].track)
		}
		e.begin(shValues, [4]uint32{uint32(vt), uint32(l.ValDim), uint32(step), uint32(stride)})
		e.u64(a.dst.at(r), values, scores.addr(), sinks, where)
		e.u32(uint32(a.heads), uint32(a.heads/l.Heads), uint32(l.Window), uint32(a.at.cells), uint32(ld), uint32(r), uint32(rows), 0)
		e.u64(q32)
		e.dispatch(a.heads, n, 1)
		r += n
	}
	if q32 > 0 {
		e.made(a.dst, kernels.Act32)
	}
}
