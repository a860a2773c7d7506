package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/kernels"
)

// worker is what belongs to one goroutine of the pool.
type worker struct {
	scratch kernels.Scratch
	view    kernels.Act // a view of one row of another Act
	sum     []float32   // one row of WeightedSum

	attention kernels.Attention
	_         [64]byte
}

// encoder implements compute.Encoder. Regions are values of it, filled in and run one at a time, so that nothing is
// allocated for them.
type encoder struct {
	b       *Backend
	pool    *pool
	workers []worker

	products productTask
	experts  expertTask
	quant    quantTask
	rows     rowTask
	attend   attendTask
	recur    recurTask
	norm     normTask
	groups   groupTask
	headwise headTask
	mix      mixTask
	streams  streamTask
	sparse   sparseTask
	ones     []float32 // the weights of norms that have none
}

var _ compute.Encoder = (*encoder)(nil)

func (e *encoder) init(b *Backend) {
	e.b, e.pool = b, b.pool
	e.workers = make([]worker, b.opts.Threads)
	e.recur.row = make([][]float32, b.opts.Threads)
	e.products.e, e.experts.e, e.rows.e, e.attend.e = e, e, e, e
	e.headwise.e = e
	e.mix.e, e.streams.e, e.sparse.e = e, e, e
}

// drain runs what waits for company. Every operation that does not join the queue begins with it.
func (e *encoder) drain() {
	e.products.run()
	e.experts.run()
}

// Flush implements compute.Encoder.
func (e *encoder) Flush() { e.drain() }

// Submit implements compute.Encoder.
func (e *encoder) Submit() error {
	e.drain()
	return nil
}

// OnDone implements compute.Encoder.
func (e *encoder) OnDone(d compute.Done) {
	defer d.Done() // where an operation panics, too: it reads no more
	e.drain()
}

// Read implements compute.Encoder.
func (e *encoder) Read(dst []float32, x compute.Tensor) {
	e.drain()
	t := own(x)
	if len(dst) != t.rows*t.cols {
		panic(fmt.Sprintf("cpu: Read of %d x %d elements into %d", t.rows, t.cols, len(dst)))
	}
	copy(dst, t.all())
}

// act returns the rows of x in the given format, quantising them where x has changed since the last time.
func (e *encoder) act(x *tensor, kind kernels.ActKind) *kernels.Act {
	a := &x.acts[kind]
	if x.valid[kind] {
		return a
	}
	x.valid[kind] = true
	if kind == kernels.ActF32 {
		a.Kind, a.Rows, a.N, a.F = kind, x.rows, x.cols, x.all()
		return a
	}
	a.Reset(kind, x.rows, x.cols)
	e.quant.a, e.quant.x = a, x
	e.quant.step = rowsAtOnce(x.rows, x.cols, e.pool.threads)
	e.pool.run(&e.quant, cuts(x.rows, e.quant.step))
	return a
}

// quantTask quantises the rows of a tensor.
type quantTask struct {
	a    *kernels.Act
	x    *tensor
	step int
}

func (q *quantTask) do(_, item int) {
	for r := item * q.step; r < min((item+1)*q.step, q.x.rows); r++ {
		q.a.Set(r, q.x.row(r))
	}
}

// cuts is the number of pieces of step that cover n.
func cuts(n, step int) int { return (n + step - 1) / step }

// smallRegion is the number of elements below which cheap element-wise work stays on the caller: waking others would
// cost more.
const smallRegion = 16384

// smallProduct is the number of weight bytes times rows below which matrix products stay on the caller: about two
// microseconds of work, which is what halving them would save and a region costs.
const smallProduct = 48 << 10

// rowsAtOnce cuts rows of cols elements of cheap work into items.
func rowsAtOnce(rows, cols, threads int) int {
	if threads == 1 || rows*cols < smallRegion {
		return max(rows, 1)
	}
	return max(1, rows/(4*threads), smallRegion/4/cols)
}

// product is one queued MatMul.
type product struct {
	dst, x *tensor
	w      *weight
	a      *kernels.Act
	items  int // items of this product
	down   int // pieces its rows are cut into
}

// maxProducts bounds the queue: q, k, v or a router with its guesses, and room.
const maxProducts = 8

// productTask runs queued matrix products as one region.
type productTask struct {
	e     *encoder
	queue [maxProducts]product
	n     int
	rows  int // rows of weights in an item
	cols  int // rows of activations in an item
}

// MatMul implements compute.Encoder. It joins the products that wait unless it reads or writes what one of them writes.
func (e *encoder) MatMul(dst compute.Tensor, w compute.Weight, x compute.Tensor) {
	e.experts.run()
	p := product{dst: own(dst), x: own(x), w: ownWeight(w)}
	if p.dst.cols != p.w.m.Out || p.x.cols != p.w.m.In || p.dst.rows != p.x.rows {
		panic(fmt.Sprintf("cpu: MatMul of %d x %d by a weight of %d rows of %d into %d x %d", p.x.rows, p.x.cols, p.w.m.Out, p.w.m.In, p.dst.rows, p.dst.cols))
	}
	t := &e.products
	for i := range t.n {
		q := &t.queue[i]
		if q.dst == p.x || q.dst == p.dst || q.x == p.dst || q.x.rows != p.x.rows {
			t.run()
			break
		}
	}
	if t.n == maxProducts {
		t.run()
	}
	t.queue[t.n] = p
	t.n++
}

// run computes the queue and empties it.
func (t *productTask) run() {
	if t.n == 0 {
		return
	}
	n := t.n
	t.n = 0 // first: act runs a region of its own, and a panic must not leave the queue full
	out := 0
	for i := range n {
		p := &t.queue[i]
		p.a = t.e.act(p.x, t.e.b.kind(p.w.m.Type))
		p.dst.touch()
		out += p.w.m.Out
	}
	rows := t.queue[0].x.rows
	if rows == 0 {
		return
	}
	t.rows, t.cols = tile(out, rows, t.e.pool.threads)
	items, work := 0, 0
	for i := range n {
		p := &t.queue[i]
		p.down = cuts(p.w.m.Out, t.rows)
		p.items = p.down * cuts(rows, t.cols)
		items += p.items
		work += len(p.w.m.Data) * rows
	}
	if work < smallProduct {
		for i := range items {
			t.do(0, i)
		}
		return
	}
	t.e.pool.run(t, items)
}

// tile chooses how many of out rows of weights and of cols rows of activations make an item. Rows of activations stay
// together as long as there is enough to share out, so that a row of weights is unpacked once for all of them.
func tile(out, cols, threads int) (r, c int) {
	if threads == 1 {
		return 256, cols
	}
	limit := 256
	if cols > 1 {
		limit = 64
	}
	r = min(limit, max(16, cuts(out, 4*threads*16)*16))
	c = cols
	if n := cuts(out, r); n < 3*threads && cols > 8 {
		c = cuts(max(8, cuts(cols, cuts(4*threads, n))), 8) * 8 // whole tiles of columns
	}
	return r, c
}

func (t *productTask) do(worker, item int) {
	p := &t.queue[0]
	for i := 0; item >= p.items; i++ {
		item -= p.items
		p = &t.queue[i+1]
	}
	r0, c0 := item%p.down*t.rows, item/p.down*t.cols
	kernels.MatMul(p.dst.data, p.dst.cols, p.w.m.Type, p.w.m.Data, p.a,
		r0, min(r0+t.rows, p.w.m.Out), c0, min(c0+t.cols, p.x.rows), &t.e.workers[worker].scratch)
}
