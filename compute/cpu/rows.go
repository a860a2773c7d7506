package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/internal/fmath"
	"terrace/kernels"
)

// rowOp names an operation that works on whole rows.
type rowOp uint8

const (
	opEmbed rowOp = iota
	opNorm
	opHeadNorm
	opRoPE
	opActivate
	opAdd
	opBias
	opMul
	opScale
	opGate
	opCap
	opSplit
	opCopy
	opSum
)

// rowTask runs one operation over the rows of dst, step rows an item. Which fields are set depends on the operation.
type rowTask struct {
	e         *encoder
	op        rowOp
	step      int
	dst, x, y *tensor
	w         []float32
	eps       float32 // or the factor of opScale, the limit of opCap
	dim, n    int
	act       compute.Act
	pairs     compute.Pairing
	cos, sin  []float32
	tokens    []int32
	table     *compute.Matrix
	index     []int32
	weights   []float32
	first     int
}

// start runs the task as it is filled in; dst changes. cost is the number of elements of work in a row.
func (t *rowTask) start(cost int) {
	t.dst.touch()
	t.step = rowsAtOnce(t.dst.rows, cost, t.e.pool.threads)
	t.e.pool.run(t, cuts(t.dst.rows, t.step))
	*t = rowTask{e: t.e} // borrowed slices are let go
}

func (t *rowTask) do(worker, item int) {
	for r := item * t.step; r < min((item+1)*t.step, t.dst.rows); r++ {
		t.row(worker, r)
	}
}

func (t *rowTask) row(worker, r int) {
	dst := t.dst.row(r)
	switch t.op {
	case opEmbed:
		n := t.table.Type.RowBytes(t.table.In)
		i := int(t.tokens[r])
		kernels.DecodeRow(t.table.Type, dst, t.table.Data[i*n:(i+1)*n])
	case opNorm:
		kernels.RMSNorm(dst, t.x.row(r), t.w, t.eps)
	case opHeadNorm:
		for h := 0; h < len(dst); h += t.dim {
			kernels.RMSNorm(dst[h:h+t.dim], dst[h:h+t.dim], t.w, t.eps)
		}
	case opRoPE:
		m := t.n / 2
		cos, sin := t.cos[r*m:(r+1)*m], t.sin[r*m:(r+1)*m]
		turn := kernels.RopeNeox
		if t.pairs == compute.Norm {
			turn = kernels.RopeNorm
		}
		for h := t.first; h < len(dst); h += t.dim {
			turn(dst[h:h+t.n], cos, sin)
		}
	case opActivate:
		var b []float32
		if t.y != nil {
			b = t.y.row(r)
		}
		kernels.Activate(t.act, dst, t.x.row(r), b, &t.e.workers[worker].scratch)
	case opAdd:
		kernels.Add(dst, t.x.row(r))
	case opBias:
		kernels.Add(dst, t.w)
	case opMul:
		kernels.Mul(dst, t.x.row(r))
	case opScale:
		kernels.Scale(dst, t.eps)
	case opGate:
		kernels.Scale(dst, fmath.Sigmoid(t.x.row(r)[0]))
	case opCap:
		kernels.Softcap(dst, t.eps)
	case opSplit:
		x, gate := t.x.row(r), t.y.row(r)
		for h := 0; h < len(dst); h += t.dim {
			copy(dst[h:h+t.dim], x[2*h:])
			copy(gate[h:h+t.dim], x[2*h+t.dim:])
		}
	case opCopy:
		copy(dst, t.x.row(t.first+r))
	case opSum:
		w := &t.e.workers[worker]
		if cap(w.sum) < len(dst) {
			w.sum = make([]float32, len(dst))
		}
		s := w.sum[:len(dst)]
		clear(s)
		for i := r * t.n; i < (r+1)*t.n; i++ {
			kernels.AddScaled(s, t.x.row(int(t.index[i])), t.weights[i])
		}
		kernels.Add(dst, s)
	}
}

// Embed implements compute.Encoder.
func (e *encoder) Embed(dst compute.Tensor, w compute.Weight, tokens []int32) {
	e.drain()
	t, m := own(dst), ownWeight(w)
	if t.cols != m.m.In || t.rows != len(tokens) {
		panic(fmt.Sprintf("cpu: Embed of %d tokens from rows of %d into %d x %d", len(tokens), m.m.In, t.rows, t.cols))
	}
	for _, id := range tokens {
		if id < 0 || int(id) >= m.m.Out {
			panic(fmt.Sprintf("cpu: token %d of %d", id, m.m.Out))
		}
	}
	e.rows.op, e.rows.dst, e.rows.table, e.rows.tokens = opEmbed, t, &m.m, tokens
	e.rows.start(t.cols)
}

// factors is the elements of a norm's weight, ones where there is none: multiplying by one is exact.
func (e *encoder) factors(w compute.Weight, n int) []float32 {
	if w != nil {
		return vector(w, n)
	}
	for len(e.ones) < n {
		e.ones = append(e.ones, 1)
	}
	return e.ones[:n]
}

// vector is the elements of a vector weight of n elements.
func vector(w compute.Weight, n int) []float32 {
	v := ownWeight(w).vec
	if len(v) != n {
		panic(fmt.Sprintf("cpu: a vector of %d x %d for %d elements", w.Out(), w.In(), n))
	}
	return v
}

// RMSNorm implements compute.Encoder.
func (e *encoder) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32) {
	e.drain()
	d, t := own(dst), own(x)
	sameShape("RMSNorm", d, t)
	e.rows.op, e.rows.dst, e.rows.x, e.rows.w, e.rows.eps = opNorm, d, t, e.factors(w, t.cols), eps
	e.rows.start(t.cols)
}

// HeadNorm implements compute.Encoder.
func (e *encoder) HeadNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	e.drain()
	t := own(x)
	wholeHeads("HeadNorm", t, dim)
	e.rows.op, e.rows.dst, e.rows.w, e.rows.dim, e.rows.eps = opHeadNorm, t, e.factors(w, dim), dim, eps
	e.rows.start(t.cols)
}

// RoPE implements compute.Encoder.
func (e *encoder) RoPE(x compute.Tensor, dim, first, n int, pairs compute.Pairing, cos, sin []float32) {
	e.drain()
	t := own(x)
	wholeHeads("RoPE", t, dim)
	if n < 2 || n%2 != 0 || first < 0 || first+n > dim || len(cos) != t.rows*n/2 || len(sin) != len(cos) {
		panic(fmt.Sprintf("cpu: RoPE of elements %d to %d of %d with %d cosines and %d sines for %d rows", first, first+n, dim, len(cos), len(sin), t.rows))
	}
	r := &e.rows
	r.op, r.dst, r.dim, r.first, r.n, r.pairs, r.cos, r.sin = opRoPE, t, dim, first, n, pairs, cos, sin
	r.start(t.cols)
}

// Activate implements compute.Encoder.
func (e *encoder) Activate(dst, a, b compute.Tensor, act compute.Act) {
	e.drain()
	r := &e.rows
	r.op, r.dst, r.x, r.act = opActivate, own(dst), own(a), act
	sameShape("Activate", r.dst, r.x)
	if (b == nil) != (act == compute.ReLU2) {
		panic(fmt.Sprintf("cpu: Activate by function %d with a second input %v", act, b))
	}
	if b != nil {
		r.y = own(b)
		sameShape("Activate", r.dst, r.y)
	}
	r.start(8 * r.dst.cols)
}

// Add implements compute.Encoder.
func (e *encoder) Add(x, y compute.Tensor) { e.pair("Add", opAdd, x, y) }

// Mul implements compute.Encoder.
func (e *encoder) Mul(x, y compute.Tensor) { e.pair("Mul", opMul, x, y) }

func (e *encoder) pair(name string, op rowOp, x, y compute.Tensor) {
	e.drain()
	t, u := own(x), own(y)
	sameShape(name, t, u)
	e.rows.op, e.rows.dst, e.rows.x = op, t, u
	e.rows.start(t.cols)
}

// AddBias implements compute.Encoder.
func (e *encoder) AddBias(x compute.Tensor, w compute.Weight) {
	e.drain()
	t := own(x)
	e.rows.op, e.rows.dst, e.rows.w = opBias, t, vector(w, t.cols)
	e.rows.start(t.cols)
}

// Scale implements compute.Encoder.
func (e *encoder) Scale(x compute.Tensor, s float32) { e.each(opScale, x, s, 1) }

// Softcap implements compute.Encoder.
func (e *encoder) Softcap(x compute.Tensor, limit float32) { e.each(opCap, x, limit, 8) }

func (e *encoder) each(op rowOp, x compute.Tensor, v float32, cost int) {
	e.drain()
	t := own(x)
	e.rows.op, e.rows.dst, e.rows.eps = op, t, v
	e.rows.start(cost * t.cols)
}

// Clear implements compute.Encoder.
func (e *encoder) Clear(x compute.Tensor) {
	e.drain()
	t := own(x)
	t.touch()
	clear(t.all())
}

// GateRows implements compute.Encoder.
func (e *encoder) GateRows(x, s compute.Tensor) {
	e.drain()
	t, g := own(x), own(s)
	if g.cols != 1 || g.rows != t.rows {
		panic(fmt.Sprintf("cpu: GateRows of %d x %d by %d x %d", t.rows, t.cols, g.rows, g.cols))
	}
	e.rows.op, e.rows.dst, e.rows.x = opGate, t, g
	e.rows.start(t.cols)
}

// SplitHeads implements compute.Encoder.
func (e *encoder) SplitHeads(q, gate, x compute.Tensor, dim int) {
	e.drain()
	d, g, t := own(q), own(gate), own(x)
	sameShape("SplitHeads", d, g)
	wholeHeads("SplitHeads", d, dim)
	if t.cols != 2*d.cols || t.rows != d.rows {
		panic(fmt.Sprintf("cpu: SplitHeads of %d x %d into two of %d x %d", t.rows, t.cols, d.rows, d.cols))
	}
	g.touch()
	e.rows.op, e.rows.dst, e.rows.x, e.rows.y, e.rows.dim = opSplit, d, t, g, dim
	e.rows.start(t.cols)
}

// CopyRows implements compute.Encoder.
func (e *encoder) CopyRows(dst, x compute.Tensor, first int) {
	e.drain()
	d, t := own(dst), own(x)
	if d.cols != t.cols || first < 0 || first+d.rows > t.rows || d == t {
		panic(fmt.Sprintf("cpu: CopyRows of rows %d to %d of %d x %d into rows of %d", first, first+d.rows, t.rows, t.cols, d.cols))
	}
	e.rows.op, e.rows.dst, e.rows.x, e.rows.first = opCopy, d, t, first
	e.rows.start(d.cols)
}

// WeightedSum implements compute.Encoder.
func (e *encoder) WeightedSum(x, parts compute.Tensor, index []int32, weights []float32, k int) {
	e.drain()
	t, p := own(x), own(parts)
	if p.cols != t.cols || len(index) != t.rows*k || len(weights) != len(index) || t == p {
		panic(fmt.Sprintf("cpu: WeightedSum of %d rows and %d weights of %d elements, %d a row, into %d x %d", len(index), len(weights), p.cols, k, t.rows, t.cols))
	}
	for _, i := range index {
		if i < 0 || int(i) >= p.rows {
			panic(fmt.Sprintf("cpu: WeightedSum of part %d of %d", i, p.rows))
		}
	}
	e.rows.op, e.rows.dst, e.rows.x, e.rows.n, e.rows.index, e.rows.weights = opSum, t, p, k, index, weights
	e.rows.start(t.cols * (k + 1))
}

func sameShape(op string, a, b *tensor) {
	if a.rows != b.rows || a.cols != b.cols {
		panic(fmt.Sprintf("cpu: %s of %d x %d and %d x %d", op, a.rows, a.cols, b.rows, b.cols))
	}
}

func wholeHeads(op string, t *tensor, dim int) {
	if dim < 1 || t.cols%dim != 0 {
		panic(fmt.Sprintf("cpu: %s of heads of %d in rows of %d", op, dim, t.cols))
	}
}
