//go:build cgo && !novulkan

package vulkan

import (
	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

// expertCall is one queued ExpertFFN, its bytes already where the device sees them.
type expertCall struct {
	gate, up, down             uint64
	gateBias, upBias, downBias uint64
	rows                       uint64 // numbers of its rows of x
	first, n                   int
	kept                       *slot // nil: the matrices are in the ring
}

// expertQueue is the experts of a layer that wait for each other: they run in one dispatch a step.
type expertQueue struct {
	parts, x    *tensor
	typ         [3]gguf.Type // gate, up, down
	act         compute.Act
	gated       bool
	in, ff, out int
	calls       []expertCall
	last, most  int // row of parts that the queue reaches to; most rows of a call
	jobs        []job
}

// expertSlack is what a queue keeps of the upload ring for its jobs.
func (q *expertQueue) slack() int { return 3*jobBytes*(len(q.calls)+1) + 64<<10 }

// ExpertFFN implements compute.Encoder. The expert's bytes are copied when it is recorded.
func (e *encoder) ExpertFFN(parts compute.Tensor, first int, x *compute.Expert, in compute.Tensor, rows []int32) {
	q := &e.experts
	p, src := own(parts), own(in)
	ff := x.Up.Out
	e.checkExpert(x, src.cols, p.cols)
	if p == src {
		panic("vulkan: ExpertFFN into its own input")
	}
	if err := compute.CheckExpertRows(p.rows, first, src.rows, rows); err != nil {
		panic("vulkan: " + err.Error())
	}
	if len(rows) == 0 {
		return
	}
	e.waiting.run(e)
	typ, gated := [3]gguf.Type{x.Gate.Type, x.Up.Type, x.Down.Type}, x.Act != compute.ReLU2
	if !gated {
		typ[0] = x.Up.Type
	}
	if len(q.calls) > 0 && (q.parts != p || q.x != src || q.ff != ff || q.typ != typ || q.act != x.Act || e.b.opts.Exact) {
		e.drain()
	}
	c := expertCall{first: first, n: len(rows)}
	kept := e.b.tier.place(x, &c)
	size := 4 * (len(x.GateBias) + len(x.UpBias) + len(x.DownBias) + len(rows))
	if kept == nil {
		size += len(x.Gate.Data) + len(x.Up.Data) + len(x.Down.Data)
	}
	const pieces = 7
	if !e.up.fits(size+q.slack(), pieces+3) {
		e.reserve(size+q.slack(), pieces+3)
	}
	q.parts, q.x, q.typ, q.act, q.gated, q.in, q.ff, q.out = p, src, typ, x.Act, gated, src.cols, ff, p.cols
	put := func(m *compute.Matrix) uint64 {
		b, addr := e.room(len(m.Data))
		copy(b, m.Data)
		e.stats.Uploaded += int64(len(b))
		return addr
	}
	if kept != nil {
		c.gate, c.up, c.down, c.kept = kept.gate, kept.up, kept.down, kept
	} else {
		if gated {
			c.gate = put(&x.Gate)
		}
		c.up, c.down = put(&x.Up), put(&x.Down)
	}
	c.gateBias, c.upBias, c.downBias = numbers(e, x.GateBias), numbers(e, x.UpBias), numbers(e, x.DownBias)
	c.rows = numbers(e, rows)
	q.calls = append(q.calls, c)
	q.last, q.most = max(q.last, first+len(rows)), max(q.most, len(rows))
}

// checkExpert panics where x does not lead from rows of in elements over ff to rows of out.
func (e *encoder) checkExpert(x *compute.Expert, in, out int) {
	if err := x.Check(in, out); err != nil {
		panic("vulkan: " + err.Error())
	}
	for i, m := range [...]*compute.Matrix{&x.Gate, &x.Up, &x.Down} {
		if i == 0 && x.Act == compute.ReLU2 {
			continue
		}
		if x.Key != 0 && len(m.Data) == 0 && len(x.Up.Data) == 0 { // kept: place looks
			continue
		}
		if err := e.b.check(m); err != nil {
			panic(err.Error())
		}
	}
}

// run records the queue and empties it.
func (q *expertQueue) run(e *encoder) {
	if len(q.calls) == 0 {
		return
	}
	calls := q.calls
	q.calls = q.calls[:0]
	g := e.temp("expert gate", q.last, q.ff)
	whole := func(t gguf.Type) bool { // no decoding
		k, _ := kernels.KindOf(t)
		return e.b.kind(t) == k
	}
	plain := func(c *expertCall) job { return job{rows: c.rows, first: uint32(c.first), n: uint32(c.n)} }
	if q.gated && q.most == 1 && q.typ[0] == q.typ[1] && whole(q.typ[0]) {
		q.products(e, calls, g, q.x, q.typ[0], q.in, q.ff, true, func(c *expertCall) job {
			j := plain(c)
			j.w, j.w2, j.bias, j.bias2 = c.gate, c.up, c.gateBias, c.upBias
			return j
		})
	} else {
		u := e.temp("expert up", q.last, q.ff)
		if q.gated {
			q.products(e, calls, g, q.x, q.typ[0], q.in, q.ff, false, func(c *expertCall) job {
				j := plain(c)
				j.w, j.bias = c.gate, c.gateBias
				return j
			})
		}
		q.products(e, calls, u, q.x, q.typ[1], q.in, q.ff, false, func(c *expertCall) job {
			j := plain(c)
			j.w, j.bias = c.up, c.upBias
			return j
		})
		o := each{op: ewActivate, dst: g.addr(), x: g.addr(), y: u.addr(), n: g.rows * g.cols, cols: g.cols, a: int(q.act)}
		if !q.gated {
			o.x = u.addr()
		}
		e.in(&u.track, &g.track)
		e.out(&g.track)
		e.each(o)
		g.touch()
	}
	q.products(e, calls, q.parts, g, q.typ[2], q.ff, q.out, false, func(c *expertCall) job {
		return job{w: c.down, bias: c.downBias, first: uint32(c.first), n: uint32(c.n), act: uint32(c.first)}
	})
	q.parts.touch()
	q.parts, q.x, q.last, q.most = nil, nil, 0, 0
}

// products multiplies rows of x with a matrix of each of the calls.
func (q *expertQueue) products(e *encoder, calls []expertCall, dst, x *tensor, t gguf.Type, in, out int, pair bool, f func(c *expertCall) job) {
	kind := e.b.kind(t)
	k, _ := kernels.KindOf(t)
	dst.touch()
	if kind != k {
		for i := range calls {
			j := f(&calls[i])
			by := &track{}
			if s := calls[i].kept; s != nil {
				by = &s.track
			}
			e.matrix(dst, x, t, j.w, by, j, in, out, out)
		}
		return
	}
	p := product{typ: t, most: q.most, in: in, out: out, stride: t.RowBytes(in), dst: dst.addr(), ld: out, pair: pair, act: q.act}
	var at *track
	q.jobs = q.jobs[:0]
	for i := range calls {
		q.jobs = append(q.jobs, f(&calls[i]))
	}
	p.jobs = q.jobs
	if p.inline = p.most == 1 && aligned(t, p.jobs) && e.inline(x, t, in, out, len(p.jobs)); p.inline {
		kind = kernels.ActF32
	}
	p.q, p.d, p.s, at = e.act(x, kind)
	e.in(at)
	for i := range calls {
		if s := calls[i].kept; s != nil {
			e.in(&s.track)
		}
	}
	e.out(&dst.track)
	e.multiply(&p)
}
