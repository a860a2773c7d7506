//go:build cgo && !novulkan

package vulkan

import (
	"bytes"
	"unsafe"

	"terrace/compute"
)

// A token's operations wait for one another, and each wait costs about as much as what a small operation does. So some of them are
// held back when they are asked for, until the next one shows whether both can be one dispatch. Whatever else is asked for records
// first what waits (drain), so that the order is the one asked for.

const (
	// fuseRows bounds the rows of what is held back: with more of them work is more than waiting.
	fuseRows = 8
	// headSpan is the longest head that shaders/heads.comp has in sight.
	headSpan = 512
)

// summed is what is added to x: y, or so many rows of y for each of x, by weights that lie on the device.
type summed struct {
	x, y    *tensor
	weights *tensor // nil: y as it is
	k       int
}

// turn is the norm of heads, their rotation, or first the one and then the other.
type turn struct {
	x              *tensor
	normed, turned bool
	dim            int
	w              *weight // of the norm, or nil
	eps            float32
	first, n       int
	pairs          compute.Pairing
	cos, sin       uint64 // in the upload ring, so a turn is recorded before the ring is emptied
}

// waiting is what was asked for and is not recorded yet: a sum, which waits for a norm of it, or at most two turns, of queries and
// keys, which wait for attention. There is never both, and nothing of it is younger than the queue of experts.
type waiting struct {
	sum      summed
	turns    [2]turn
	n        int
	cos, sin []float32 // of the first turn
}

// uses tells whether something that waits is about t.
func (q *waiting) uses(t *tensor) bool {
	return t == q.sum.x || t == q.sum.y || q.n > 0 && q.turns[0].x == t || q.n > 1 && q.turns[1].x == t
}

// run records what waits.
func (q *waiting) run(e *encoder) {
	if s := q.sum; s.x != nil {
		q.sum = summed{}
		e.sum(&s)
	}
	if n, t := q.n, q.turns; n > 0 {
		q.n, q.turns = 0, [2]turn{}
		if n == 2 && t[0].with(&t[1]) {
			e.heads(&t[0], &t[1], nil)
			return
		}
		for i := range t[:n] {
			e.turn(&t[i])
		}
	}
}

// fuses tells whether an operation on x may be held back.
func (e *encoder) fuses(x *tensor) bool {
	return x.rows > 0 && x.rows <= fuseRows && e.err == nil && !e.b.opts.apart
}

// sum records s.
func (e *encoder) sum(s *summed) {
	e.in(&s.y.track)
	if s.weights == nil {
		e.change(s.x, each{op: ewAdd, x: s.y.addr()})
		return
	}
	e.in(&s.weights.track)
	e.weigh(s.x, s.y, 0, s.weights.addr(), s.k)
}

// later holds s back, or records it.
func (e *encoder) later(s summed) {
	if e.fuses(s.x) && s.x.root() != s.y.root() {
		e.waiting.sum = s
		return
	}
	e.sum(&s)
}

// before is the sum that a norm of x into dst makes first, if one waits for that; everything else that waits is recorded.
func (e *encoder) before(dst, x *tensor) *summed {
	s := e.waiting.sum
	// A thread writes the elements of x before those of dst: they are the same or lie apart.
	if s.x != x || s.x != dst && s.x.root() == dst.root() || s.y.root() == dst.root() {
		e.drain()
		return nil
	}
	e.waiting.sum = summed{}
	return &s
}

// with tells whether t and u, which have different tensors, can be one dispatch.
func (t *turn) with(u *turn) bool {
	return t.turned && u.turned && t.normed == u.normed && t.dim == u.dim && t.x.rows == u.x.rows && t.first == u.first && t.n == u.n &&
		t.pairs == u.pairs && t.cos == u.cos && t.sin == u.sin && (!t.normed || t.eps == u.eps)
}

// hold holds a turn back behind one of another tensor; everything else that waits is recorded. False: it may not wait.
func (e *encoder) hold(t turn) bool {
	q := &e.waiting
	ok := e.fuses(t.x) && t.dim <= headSpan
	if !ok || q.n != 1 || !q.turns[0].turned || q.turns[0].x.root() == t.x.root() {
		e.drain()
	}
	if ok {
		q.turns[q.n] = t
		q.n++
	}
	return ok
}

// rotate holds a rotation back, behind the norm of the same heads where that waits. False: it may not wait, and nothing does.
func (e *encoder) rotate(t turn, cos, sin []float32) bool {
	e.reserve(8*len(cos), 2)
	q := &e.waiting
	if last := q.n - 1; last >= 0 && q.turns[last].x == t.x && !q.turns[last].turned && q.turns[last].dim == t.dim {
		n := &q.turns[last]
		t.normed, t.w, t.eps = true, n.w, n.eps
		*n = t
	} else if !e.hold(t) {
		return false
	}
	now := &q.turns[q.n-1]
	if q.n == 2 && sameBits(cos, q.cos) && sameBits(sin, q.sin) {
		now.cos, now.sin = q.turns[0].cos, q.turns[0].sin
		return true
	}
	now.cos, now.sin = numbers(e, cos), numbers(e, sin)
	if q.n == 1 {
		q.cos, q.sin = append(q.cos[:0], cos...), append(q.sin[:0], sin...)
	}
	return true
}

func sameBits(a, b []float32) bool {
	raw := func(x []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)) }
	return bytes.Equal(raw(a), raw(b))
}

// turn records t alone.
func (e *encoder) turn(t *turn) {
	switch {
	case !t.turned:
		n := normed{dst: t.x, x: t.x, dim: t.dim, heads: t.x.cols / t.dim, step: t.dim, eps: t.eps, over: float32(t.dim)}
		if t.w != nil {
			n.w = t.w
		}
		e.norm(n)
	case !t.normed:
		e.rotation(t)
	default:
		e.heads(t, nil, nil)
	}
}

// stored is what an attention appends to its cache beside keys that are turned.
type stored struct {
	a     *attention
	v     *tensor // nil: the keys are the values
	where uint64
}

// appendTurned appends k and v to the cache of a, in one dispatch with the turn of k, and that of queries, where it waits. False: it does
// not; nothing is recorded.
func (e *encoder) appendTurned(a *attention, k, v *tensor) bool {
	q, l := &e.waiting, a.l
	fits := func() bool {
		t := &q.turns[max(q.n, 1)-1]
		return q.n > 0 && t.x == k && t.turned && t.dim == l.KeyDim && l.ValDim <= headSpan &&
			(v == nil || v.root() != k.root() && (q.n == 1 || v.root() != q.turns[0].x.root()))
	}
	if !fits() {
		return false
	}
	e.reserve(4, 1)
	if !fits() { // there was no room: what waited is recorded
		return false
	}
	n, t := q.n, q.turns
	q.n, q.turns = 0, [2]turn{}
	s := stored{a, v, numbers(e, []uint32{uint32(a.s.Pos[0])})}
	switch {
	case n == 1:
		e.heads(nil, &t[0], &s)
	case t[0].with(&t[1]):
		e.heads(&t[0], &t[1], &s)
	default:
		e.turn(&t[0])
		e.heads(nil, &t[1], &s)
	}
	return true
}

// heads records turns, of which one may be nil, and what becomes of keys; nothing of it needs room in the ring.
func (e *encoder) heads(q, k *turn, s *stored) {
	var x, w [2]uint64
	var heads [2]uint32
	var one *turn
	for i, t := range [...]*turn{q, k} {
		if t == nil {
			continue
		}
		one = t
		x[i], heads[i] = t.x.addr(), uint32(t.x.cols/t.dim)
		if t.w != nil {
			e.in(&t.w.track)
			w[i] = t.w.vec.addr()
		}
		e.out(&t.x.track)
		t.x.touch()
	}
	flags := uint32(0)
	if one.pairs == compute.Norm {
		flags |= 1
	}
	if one.normed {
		flags |= 2
	}
	var v, keys, values, where uint64
	var vdim, cells, kstride, vstride, types uint32
	count := int(heads[0] + heads[1])
	if s != nil {
		sh, at := &s.a.kv.shape, s.a.at
		keys, where, cells = at.k.addr(), s.where, uint32(at.cells)
		types, kstride = uint32(sh.K), uint32(sh.K.RowBytes(s.a.l.KeyDim))
		e.out(&at.keys)
		if s.v != nil {
			v, values, vdim = s.v.addr(), at.v.addr(), uint32(s.a.l.ValDim)
			types, vstride = types|uint32(sh.V)<<16, uint32(sh.V.RowBytes(s.a.l.ValDim))
			e.in(&s.v.track)
			e.out(&at.values)
			count += int(heads[1])
		}
	}
	e.begin(shHeads, [4]uint32{uint32(one.dim), flags, types, uint32(one.n / 2)})
	e.u64(x[0], x[1], v, w[0], w[1], one.cos, one.sin, keys, values, where)
	e.u32(uint32(one.x.rows), heads[0], heads[1], vdim, uint32(one.first), cells, kstride, vstride)
	e.f32(one.eps)
	gx, gy := across(count * one.x.rows)
	e.dispatch(gx, gy, 1)
}
