package cpu

import (
	"sync/atomic"

	"terrace/compute"
	"terrace/kernels"
)

// expertCall is one queued ExpertFFN.
type expertCall struct {
	e     *compute.Expert
	in    []int32
	first int
	open  atomic.Int32 // pieces of gate and up not finished; the last one quantises the product
}

// expertTask runs queued experts: one region that brings together each expert's input rows, one for gate, up and
// SwiGLU, one for down. All buffers are indexed by the row of parts that an input row ends in, so an expert's rows lie
// side by side in each of them.
type expertTask struct {
	e        *encoder
	parts, x *tensor
	ff       int // width of the experts
	rows     int // rows of parts that the queue reaches to
	calls    []expertCall
	n        int

	gate, up []float32                                    // rows x ff; the activation leaves its result in gate
	in       [kernels.Act256 + 1]kernels.Act              // input rows in the order of parts
	hidden   [kernels.Act256 + 1]kernels.Act              // results of the activation, quantised
	kinds    [kernels.Act256 + 1]bool                     // formats of the input in use
	downs    [kernels.Act256 + 1]bool                     // formats of those in use
	phase    func(t *expertTask, worker, call, piece int) // what do does with an item
	step     int                                          // rows of weights in an item
	pieces   int                                          // items of a call
}

// ExpertFFN implements compute.Encoder.
func (e *encoder) ExpertFFN(parts compute.Tensor, first int, x *compute.Expert, in compute.Tensor, rows []int32) {
	e.products.run()
	t := &e.experts
	p, src := own(parts), own(in)
	ff := x.Up.Out
	e.checkExpert(x, src.cols, p.cols)
	if p == src {
		panic("cpu: ExpertFFN into its own input")
	}
	if err := compute.CheckExpertRows(p.rows, first, src.rows, rows); err != nil {
		panic("cpu: " + err.Error())
	}
	if len(rows) == 0 {
		return
	}
	if t.n > 0 && (t.parts != p || t.x != src || t.ff != ff) {
		t.run()
	}
	t.parts, t.x, t.ff = p, src, ff
	if t.n == len(t.calls) {
		calls := make([]expertCall, max(16, 2*len(t.calls)))
		for i := range t.calls {
			calls[i].e, calls[i].in, calls[i].first = t.calls[i].e, t.calls[i].in, t.calls[i].first
		}
		t.calls = calls
	}
	c := &t.calls[t.n]
	c.e, c.in, c.first = x, rows, first
	t.rows = max(t.rows, first+len(rows))
	t.n++
}

// checkExpert panics where x does not lead from rows of in elements over ff to rows of out.
func (e *encoder) checkExpert(x *compute.Expert, in, out int) {
	if err := x.Check(in, out); err != nil {
		panic("cpu: " + err.Error())
	}
	for i, m := range [...]*compute.Matrix{&x.Gate, &x.Up, &x.Down} {
		if i == 0 && x.Act == compute.ReLU2 {
			continue
		}
		if err := e.b.check(m); err != nil {
			panic(err.Error())
		}
	}
}

// run computes the queue and empties it.
func (t *expertTask) run() {
	if t.n == 0 {
		return
	}
	pool := t.e.pool
	n, rows := t.n, t.rows
	defer func() { t.n, t.rows = 0, 0 }()
	t.parts.touch()
	t.gate, t.up = room(t.gate, rows*t.ff), room(t.up, rows*t.ff)
	clear(t.kinds[:])
	clear(t.downs[:])
	many := false
	for i := range n {
		c := &t.calls[i]
		if c.e.Gate.Out > 0 {
			t.kinds[t.e.b.kind(c.e.Gate.Type)] = true
		}
		t.kinds[t.e.b.kind(c.e.Up.Type)] = true
		t.downs[t.e.b.kind(c.e.Down.Type)] = true
		many = many || len(c.in) > 1
	}
	for k := range t.kinds {
		if t.kinds[k] {
			t.e.act(t.x, kernels.ActKind(k))
			if many {
				t.in[k].Reset(kernels.ActKind(k), rows, t.x.cols)
			}
		}
		if !t.downs[k] {
			continue
		}
		if h := &t.hidden[k]; k == int(kernels.ActF32) {
			h.Kind, h.Rows, h.N, h.F = kernels.ActF32, rows, t.ff, t.gate
		} else {
			h.Reset(kernels.ActKind(k), rows, t.ff)
		}
	}
	if many {
		t.phase, t.pieces = (*expertTask).gather, 1
		pool.run(t, n)
	}
	t.step = t.pieceRows(t.ff)
	t.pieces = cuts(t.ff, t.step)
	for i := range n {
		t.calls[i].open.Store(int32(t.pieces))
	}
	t.phase = (*expertTask).gateUp
	pool.run(t, n*t.pieces)
	t.step = t.pieceRows(t.parts.cols)
	t.pieces = cuts(t.parts.cols, t.step)
	t.phase = (*expertTask).down
	pool.run(t, n*t.pieces)
	for i := range n {
		t.calls[i].e, t.calls[i].in = nil, nil // borrowed
	}
}

// room is s with n elements, which may be garbage.
func room(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// pieceRows cuts the out rows of each queued expert's matrices.
func (t *expertTask) pieceRows(out int) int {
	if t.e.pool.threads == 1 {
		return min(out, 256)
	}
	return min(out, 128, max(16, cuts(out*t.n, 32*t.e.pool.threads*16)*16))
}

func (t *expertTask) do(worker, item int) {
	t.phase(t, worker, item/t.pieces, item%t.pieces)
}

// gather puts the rows of a call side by side. A call of one row needs none of it.
func (t *expertTask) gather(_, call, _ int) {
	c := &t.calls[call]
	if len(c.in) == 1 {
		return
	}
	for k := range t.kinds {
		if t.kinds[k] {
			for i, r := range c.in {
				copyRow(&t.in[k], c.first+i, &t.x.acts[k], int(r))
			}
		}
	}
}

// gateUp computes step rows of gate and up for a call and what the activation makes of them. The worker that finishes a
// call quantises its rows for down.
func (t *expertTask) gateUp(worker, call, piece int) {
	c := &t.calls[call]
	r0 := piece * t.step
	r1 := min(r0+t.step, t.ff)
	if c.e.Gate.Out > 0 {
		t.multiply(worker, t.gate, &c.e.Gate, c, r0, r1)
	}
	t.multiply(worker, t.up, &c.e.Up, c, r0, r1)
	for i := c.first; i < c.first+len(c.in); i++ {
		g, u := t.gate[i*t.ff+r0:i*t.ff+r1], t.up[i*t.ff+r0:i*t.ff+r1]
		if c.e.GateBias != nil {
			kernels.Add(g, c.e.GateBias[r0:r1])
		}
		if c.e.UpBias != nil {
			kernels.Add(u, c.e.UpBias[r0:r1])
		}
		if c.e.Gate.Out > 0 {
			kernels.Activate(c.e.Act, g, g, u, &t.e.workers[worker].scratch)
		} else {
			kernels.Activate(c.e.Act, g, u, nil, &t.e.workers[worker].scratch)
		}
	}
	if c.open.Add(-1) != 0 {
		return
	}
	kind := t.e.b.kind(c.e.Down.Type)
	if kind == kernels.ActF32 {
		return // hidden is gate
	}
	for i := c.first; i < c.first+len(c.in); i++ {
		t.hidden[kind].Set(i, t.gate[i*t.ff:(i+1)*t.ff])
	}
}

// multiply sets columns r0 to r1 of the call's rows of dst to its input times m.
func (t *expertTask) multiply(worker int, dst []float32, m *compute.Matrix, c *expertCall, r0, r1 int) {
	w := &t.e.workers[worker]
	kind := t.e.b.kind(m.Type)
	if len(c.in) == 1 {
		rowOf(&w.view, &t.x.acts[kind], int(c.in[0]))
		kernels.MatMul(dst[c.first*t.ff:], t.ff, m.Type, m.Data, &w.view, r0, r1, 0, 1, &w.scratch)
		return
	}
	kernels.MatMul(dst, t.ff, m.Type, m.Data, &t.in[kind], r0, r1, c.first, c.first+len(c.in), &w.scratch)
}

// down computes step columns of the call's rows of parts.
func (t *expertTask) down(worker, call, piece int) {
	c := &t.calls[call]
	r0 := piece * t.step
	r1 := min(r0+t.step, t.parts.cols)
	kernels.MatMul(t.parts.data, t.parts.cols, c.e.Down.Type, c.e.Down.Data, &t.hidden[t.e.b.kind(c.e.Down.Type)],
		r0, r1, c.first, c.first+len(c.in), &t.e.workers[worker].scratch)
	if c.e.DownBias != nil {
		for i := c.first; i < c.first+len(c.in); i++ {
			kernels.Add(t.parts.row(i)[r0:r1], c.e.DownBias[r0:r1])
		}
	}
}
