package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

// mixRows is the number of rows that Mix takes at a time: enough to read each weight seldom, few enough that what lies
// between the products stays small however long the batch is.
const mixRows = 64

// mixTask reads streams by a mixer, in the steps of compute.Mixer; the second product and the mean are one region.
type mixTask struct {
	e        *encoder
	m        *compute.Mixer
	dst, x   *tensor
	norm     []float32
	up       *weight
	first    int // row of dst and x that row 0 of what follows belongs to
	n        tensor
	lo, gate tensor
	inject   tensor // a view
	act      *kernels.Act
	width    int
	step     int // rows or columns of an item
	mean     bool
}

// reshape makes t a tensor of n rows of its own, keeping memory.
func (t *tensor) reshape(n, cols int) {
	t.rows, t.cols, t.room = n, cols, n
	t.data = room(t.data, n*cols)
	t.touch()
}

// Mix implements compute.Encoder.
func (e *encoder) Mix(dst, inject, x compute.Tensor, m *compute.Mixer) {
	e.drain()
	t := &e.mix
	t.m, t.dst, t.x = m, own(dst), own(x)
	down, up := ownWeight(m.Down), ownWeight(m.Up)
	t.up, t.width = up, t.dst.cols
	var inj *tensor
	var injW *weight
	if m.Inject != nil {
		inj, injW = own(inject), ownWeight(m.Inject)
	}
	if cols := m.Streams * t.width; t.x.cols != cols || t.x.rows != t.dst.rows || down.m.In != cols || up.m.Out != cols || down.m.Out != up.m.In ||
		(inject == nil) != (m.Inject == nil) || inj != nil && (inj.cols != injW.m.Out || injW.m.In != cols || inj.rows != t.x.rows) {
		panic(fmt.Sprintf("cpu: Mix of %d x %d, %d streams, down %d x %d, up %d x %d into %d x %d", t.x.rows, t.x.cols, m.Streams, down.m.In, down.m.Out,
			up.m.In, up.m.Out, t.dst.rows, t.dst.cols))
	}
	t.norm = vector(m.Norm, t.x.cols)
	t.dst.touch()
	for t.first = 0; t.first < t.x.rows; t.first += mixRows {
		rows := min(mixRows, t.x.rows-t.first)
		t.n.reshape(rows, t.x.cols)
		t.lo.reshape(rows, down.m.Out)
		t.gate.reshape(rows, t.x.cols)
		t.mean, t.step = false, rowsAtOnce(rows, t.x.cols, e.pool.threads)
		e.pool.run(t, cuts(rows, t.step))
		e.MatMul(&t.lo, down, &t.n)
		if inj != nil {
			t.inject.data, t.inject.rows, t.inject.cols = inj.data[t.first*inj.cols:(t.first+rows)*inj.cols], rows, inj.cols
			e.MatMul(&t.inject, injW, &t.n)
		}
		e.products.run()
		kernels.MixSilu(t.lo.all(), m.Streams)
		t.act = e.act(&t.lo, e.b.kind(up.m.Type))
		t.mean, t.step = true, min(256, t.width)
		if e.pool.threads > 1 {
			t.step = min(128, max(16, cuts(t.width, 4*e.pool.threads*16)*16))
		}
		e.pool.run(t, cuts(t.width, t.step))
	}
	if inj != nil {
		inj.touch()
	}
	t.m, t.dst, t.x, t.norm, t.up, t.act, t.inject.data = nil, nil, nil, nil, nil, nil, nil
}

func (t *mixTask) do(worker, item int) {
	if !t.mean {
		for r := item * t.step; r < min((item+1)*t.step, t.n.rows); r++ {
			kernels.NormStreams(t.n.row(r), t.x.row(t.first+r), t.norm, t.m.Streams, t.m.Eps)
		}
		return
	}
	lo := item * t.step
	hi := min(lo+t.step, t.width)
	for c := range t.m.Streams {
		kernels.MatMul(t.gate.data, t.gate.cols, t.up.m.Type, t.up.m.Data, t.act, c*t.width+lo, c*t.width+hi, 0, t.gate.rows, &t.e.workers[worker].scratch)
	}
	for r := range t.n.rows {
		kernels.MixStreams(t.dst.row(t.first+r), t.n.row(r), t.gate.row(r), t.m.Streams, lo, hi)
	}
}

// streamOp names an operation on whole rows of streams.
type streamOp uint8

const (
	opSpread streamOp = iota
	opInject
	opDecode
	opEngram
)

// streamTask runs one operation over the rows of dst, step rows an item.
type streamTask struct {
	e                    *encoder
	op                   streamOp
	step                 int
	dst, x, y, key, norm *tensor
	typ                  gguf.Type
	rows                 [][]byte
	g                    kernels.Engram
}

func (t *streamTask) start(cost int) {
	t.dst.touch()
	t.step = rowsAtOnce(t.dst.rows, cost, t.e.pool.threads)
	t.e.pool.run(t, cuts(t.dst.rows, t.step))
	*t = streamTask{e: t.e} // borrowed slices are let go
}

func (t *streamTask) do(worker, item int) {
	for r := item * t.step; r < min((item+1)*t.step, t.dst.rows); r++ {
		dst := t.dst.row(r)
		switch t.op {
		case opSpread:
			for x := t.x.row(r); len(dst) > 0; dst = dst[len(x):] {
				copy(dst, x)
			}
		case opInject:
			kernels.InjectStreams(dst, t.x.row(r), t.y.row(r))
		case opDecode:
			n := len(t.rows) / t.dst.rows
			w := len(dst) / n
			for i, b := range t.rows[r*n : (r+1)*n] {
				kernels.DecodeRow(t.typ, dst[i*w:(i+1)*w], b)
			}
		case opEngram:
			t.g.Gate(dst, t.norm.row(r), t.x.row(r), t.key.row(r), t.y.row(r), &t.e.workers[worker].scratch)
		}
	}
}

// Spread implements compute.Encoder.
func (e *encoder) Spread(dst, x compute.Tensor) {
	e.drain()
	d, t := own(dst), own(x)
	if d.cols%t.cols != 0 || d.rows != t.rows {
		panic(fmt.Sprintf("cpu: Spread of %d x %d into %d x %d", t.rows, t.cols, d.rows, d.cols))
	}
	e.streams.op, e.streams.dst, e.streams.x = opSpread, d, t
	e.streams.start(d.cols)
}

// Inject implements compute.Encoder.
func (e *encoder) Inject(x, y, inject compute.Tensor) {
	e.drain()
	d, t, f := own(x), own(y), own(inject)
	if d.cols != f.cols*t.cols || d.rows != t.rows || d.rows != f.rows {
		panic(fmt.Sprintf("cpu: Inject of %d x %d by %d x %d into %d x %d", t.rows, t.cols, f.rows, f.cols, d.rows, d.cols))
	}
	e.streams.op, e.streams.dst, e.streams.x, e.streams.y = opInject, d, t, f
	e.streams.start(d.cols)
}

// DecodeRows implements compute.Encoder.
func (e *encoder) DecodeRows(dst compute.Tensor, typ gguf.Type, rows [][]byte) {
	e.drain()
	d := own(dst)
	if d.rows == 0 && len(rows) == 0 {
		return
	}
	if d.rows == 0 || len(rows) == 0 || len(rows)%d.rows != 0 || d.cols%(len(rows)/d.rows) != 0 {
		panic(fmt.Sprintf("cpu: DecodeRows of %d rows into %d x %d", len(rows), d.rows, d.cols))
	}
	e.streams.op, e.streams.dst, e.streams.typ, e.streams.rows = opDecode, d, typ, rows
	e.streams.start(2 * d.cols)
}

// EngramGate implements compute.Encoder.
func (e *encoder) EngramGate(dst, norm, x, key, val compute.Tensor, g *compute.Engram) {
	e.drain()
	s := &e.streams
	d := own(dst)
	s.op, s.dst, s.norm, s.x, s.key, s.y = opEngram, d, own(norm), own(x), own(key), own(val)
	for _, t := range []*tensor{s.norm, s.x, s.key} {
		sameShape("EngramGate", d, t)
	}
	if s.y.rows != d.rows || s.y.cols*g.Streams != d.cols || d == s.x || s.norm == s.x || s.norm == s.key || s.norm == d {
		panic(fmt.Sprintf("cpu: EngramGate of values of %d x %d into %d streams of %d x %d", s.y.rows, s.y.cols, g.Streams, d.rows, d.cols))
	}
	s.g = kernels.Engram{Streams: g.Streams, Eps: g.Eps, KeyNorm: vector(g.KeyNorm, d.cols), QueryNorm: vector(g.QueryNorm, d.cols), ConvNorm: vector(g.ConvNorm, d.cols)}
	s.norm.touch()
	s.key.touch()
	s.start(8 * d.cols)
}
