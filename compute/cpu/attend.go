package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/kernels"
)

// attendTask appends to a KV cache, then computes the attention of each query head.
type attendTask struct {
	e              *encoder
	dst, q, k, v   *tensor // k is nil where nothing is appended, v in a latent layer
	kv             *kv
	layer          int
	pos            []int32
	scale          float32
	sinks          []float32
	window         int
	kvHeads, group int // KV heads; query heads of a KV head
	rowsAt         int // rows of an append item; 0: the attention itself
	headsAt        int // query heads of an attention item
	parts          int // attention items of a row
	keyDim, valDim int
	picked         *sparseTask // says which positions each query sees; nil: all
}

// Attention implements compute.Encoder.
func (e *encoder) Attention(dst, q, k, v compute.Tensor, cache compute.KV, s compute.AttnSpec) {
	e.drain()
	t := &e.attend
	t.begin(dst, q, cache, &s)
	if k != nil {
		t.k = own(k)
		if v != nil {
			t.v = own(v)
		}
		t.store()
	}
	t.run()
}

// begin takes what an attention is about.
func (t *attendTask) begin(dst, q compute.Tensor, cache compute.KV, s *compute.AttnSpec) {
	c, ok := cache.(*kv)
	if !ok {
		panic(fmt.Sprintf("cpu: a KV cache of another backend (%T)", cache))
	}
	if s.Layer < 0 || s.Layer >= len(c.shape.Layers) {
		panic(fmt.Sprintf("cpu: Attention in layer %d of a KV cache of %d", s.Layer, len(c.shape.Layers)))
	}
	l := &c.shape.Layers[s.Layer]
	t.dst, t.q, t.kv, t.layer, t.pos, t.scale, t.window = own(dst), own(q), c, s.Layer, s.Pos, s.Scale, l.Window
	t.keyDim, t.valDim, t.kvHeads = l.KeyDim, l.ValDim, l.Heads
	heads := t.q.cols / l.KeyDim
	t.group = heads / l.Heads
	if heads*l.KeyDim != t.q.cols || t.group*l.Heads != heads || heads == 0 || t.dst.cols != heads*l.ValDim || t.dst.rows != t.q.rows || t.q.rows > len(s.Pos) {
		panic(fmt.Sprintf("cpu: Attention of q %d x %d into %d x %d with %d KV heads of %d and %d, %d positions", t.q.rows, t.q.cols,
			t.dst.rows, t.dst.cols, l.Heads, l.KeyDim, l.ValDim, len(s.Pos)))
	}
	for i, p := range s.Pos {
		if p < 0 || int(p) >= c.shape.Context || i > 0 && p != s.Pos[i-1]+1 {
			panic(fmt.Sprintf("cpu: position %d in row %d of a KV cache of %d", p, i, c.shape.Context))
		}
	}
	if s.Sinks != nil {
		t.sinks = vector(s.Sinks, heads)
	}
}

// run computes the attention and lets go of everything.
func (t *attendTask) run() {
	// The query heads of one KV head share one reading of the keys and values where there is work enough for everybody, or the
	// same for everybody.
	rows, heads, threads := t.q.rows, t.kvHeads*t.group, t.e.pool.threads
	enough := func(items int) bool { return items >= 4*threads || items >= 2*threads && items%threads == 0 }
	switch {
	case threads == 1 || enough(rows*t.kvHeads):
		t.headsAt = t.group
	case t.group%4 == 0 && rows*heads/4 >= threads:
		t.headsAt = 4
		for n := 8; n < t.group; n += 4 { // a compressed cache has one KV head for all
			if t.group%n == 0 && enough(rows*heads/n) {
				t.headsAt = n
			}
		}
	default:
		t.headsAt = 1
	}
	t.parts = heads / t.headsAt
	t.dst.touch()
	t.e.pool.run(t, rows*t.parts)
	*t = attendTask{e: t.e}
}

// store appends the keys and values.
func (t *attendTask) store() {
	l := &t.kv.shape.Layers[t.layer]
	rows, cols := t.k.rows, t.k.cols
	wrong := t.k.cols != l.Heads*l.KeyDim || rows != len(t.pos) || (t.v == nil) != l.Latent
	if t.v != nil {
		wrong = wrong || t.v.cols != l.Heads*l.ValDim || t.v.rows != rows
		cols += t.v.cols
	}
	if cells := t.kv.at[t.layer].cells; wrong || cells < t.kv.shape.Context && rows > t.kv.shape.Slack {
		panic(fmt.Sprintf("cpu: Attention appends %d x %d with %d positions to a layer of %d heads of %d and %d (latent %t), %d at once", rows, cols, len(t.pos),
			l.Heads, l.KeyDim, l.ValDim, l.Latent, t.kv.shape.Slack))
	}
	t.rowsAt = rowsAtOnce(rows, cols, t.e.pool.threads)
	t.e.pool.run(t, cuts(rows, t.rowsAt))
	t.rowsAt = 0
}

func (t *attendTask) do(worker, item int) {
	if t.rowsAt > 0 {
		for r := item * t.rowsAt; r < min((item+1)*t.rowsAt, t.k.rows); r++ {
			t.append(r)
		}
		return
	}
	// All rows of a head before the next head, so that its keys and values stay in the cache; the longest rows first, so
	// that none is left for the end.
	r, h := t.q.rows-1-item%t.q.rows, item/t.q.rows*t.headsAt
	kd, vd := t.keyDim, t.valDim
	if t.picked != nil {
		kernels.AttendRuns(t.dst.row(r)[h*vd:(h+t.headsAt)*vd], t.q.row(r)[h*kd:(h+t.headsAt)*kd], t.headsAt, t.kv.keys(t.layer, h/t.group),
			t.kv.values(t.layer, h/t.group), t.picked.seen(r), t.scale, &t.e.workers[worker].scratch)
		return
	}
	a := &t.e.workers[worker].attention
	*a = kernels.Attention{
		Out: t.dst.row(r)[h*vd : (h+t.headsAt)*vd], Q: t.q.row(r)[h*kd : (h+t.headsAt)*kd], Heads: t.headsAt,
		K: t.kv.keys(t.layer, h/t.group), V: t.kv.values(t.layer, h/t.group),
		N: int(t.pos[len(t.pos)-t.q.rows+r]) + 1, Scale: t.scale,
	}
	if t.sinks != nil {
		a.Sinks = t.sinks[h : h+t.headsAt]
	}
	if t.window > 0 && a.N > t.window {
		a.First, a.N = a.N-t.window, t.window
	}
	if cells := t.kv.at[t.layer].cells; cells < t.kv.shape.Context {
		a.Ring = cells
	} else {
		a.K.Data, a.V.Data = a.K.Data[a.First*a.K.Stride:], a.V.Data[a.First*a.V.Stride:]
	}
	a.Run(&t.e.workers[worker].scratch)
}

// append stores row r of the keys and values.
func (t *attendTask) append(r int) {
	k, p := t.k.row(r), int(t.pos[r])%t.kv.at[t.layer].cells
	for h := range t.kvHeads {
		put(t.kv.keys(t.layer, h), p, k[h*t.keyDim:(h+1)*t.keyDim])
	}
	if t.v == nil {
		return
	}
	v := t.v.row(r)
	for h := range t.kvHeads {
		put(t.kv.values(t.layer, h), p, v[h*t.valDim:(h+1)*t.valDim])
	}
}
