package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/kernels"
)

// headOp names an operation that works on parts of heads.
type headOp uint8

const (
	opHeadQuant headOp = iota
	opHeadMatMul
	opHeadMatMulT
	opCopyPart
	opPartNorm
)

// headTask runs one operation over the heads of a tensor's rows.
type headTask struct {
	e        *encoder
	op       headOp
	dst, x   *tensor
	to, from compute.Part
	w        *weight
	rows     compute.HeadRows
	norm     []float32
	eps      float32
	heads    int
	step     int         // products: results of a head in an item; otherwise: rows in an item
	pieces   int         // products: items of a head
	act      kernels.Act // parts of x, head by head: head h's rows are h*rows to (h+1)*rows
}

// headsOf is the number of heads of a row of t, of which p is a part.
func headsOf(op string, t *tensor, p compute.Part) int {
	if p.Dim < 1 || t.cols%p.Dim != 0 || p.First < 0 || p.N < 1 || p.First+p.N > p.Dim {
		panic(fmt.Sprintf("cpu: %s of elements %d to %d of heads of %d in rows of %d", op, p.First, p.First+p.N, p.Dim, t.cols))
	}
	return t.cols / p.Dim
}

// pair checks and takes what the operations on two tensors have in common.
func (t *headTask) pair(name string, op headOp, dst compute.Tensor, to compute.Part, x compute.Tensor, from compute.Part) {
	t.op, t.dst, t.x, t.to, t.from = op, own(dst), own(x), to, from
	t.heads = headsOf(name, t.dst, to)
	if n := headsOf(name, t.x, from); n != t.heads || t.x.rows != t.dst.rows || t.x == t.dst {
		panic(fmt.Sprintf("cpu: %s of %d rows of %d heads into %d rows of %d", name, t.x.rows, n, t.dst.rows, t.heads))
	}
}

// matrix checks and takes the weight of a product whose heads have n rows of in elements.
func (t *headTask) matrix(name string, w compute.Weight, rows compute.HeadRows, n, in int) {
	t.w, t.rows = ownWeight(w), rows
	if m := &t.w.m; m.In != in || rows.First < 0 || rows.First+n > rows.Stride || m.Out != t.heads*rows.Stride {
		panic(fmt.Sprintf("cpu: %s by rows %d to %d of each %d, %d elements in %d heads, of a weight of %d rows of %d", name, rows.First, rows.First+n,
			rows.Stride, in, t.heads, m.Out, m.In))
	}
}

// HeadMatMul implements compute.LatentEncoder.
func (e *encoder) HeadMatMul(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	e.drain()
	t := &e.headwise
	t.pair("HeadMatMul", opHeadMatMul, dst, to, x, from)
	t.matrix("HeadMatMul", w, rows, to.N, from.N)
	if t.dst.rows == 0 {
		t.done()
		return
	}
	t.dst.touch()
	kind := e.b.kind(t.w.m.Type)
	t.act.Reset(kind, t.heads*t.x.rows, from.N)
	t.op, t.step = opHeadQuant, 1
	t.run(t.heads, t.heads*t.x.rows*from.N < smallRegion)
	t.op = opHeadMatMul
	t.cut(to.N, t.heads*to.N*t.w.m.Type.RowBytes(from.N)*t.x.rows)
}

// HeadMatMulT implements compute.LatentEncoder.
func (e *encoder) HeadMatMulT(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	e.drain()
	t := &e.headwise
	t.pair("HeadMatMulT", opHeadMatMulT, dst, to, x, from)
	t.matrix("HeadMatMulT", w, rows, from.N, to.N)
	if t.dst.rows == 0 {
		t.done()
		return
	}
	t.dst.touch()
	t.pieces = 1
	t.run(t.heads, t.heads*from.N*t.w.m.Type.RowBytes(to.N)*t.x.rows < smallProduct)
	t.done()
}

// cut shares out n results of each head, work bytes in all, and runs them.
func (t *headTask) cut(n, work int) {
	t.step = n
	if threads := t.e.pool.threads; threads > 1 && t.heads < 4*threads {
		t.step = min(n, max(16, cuts(n*t.heads, 4*threads*16)*16))
	}
	t.pieces = cuts(n, t.step)
	t.run(t.heads*t.pieces, work < smallProduct)
	t.done()
}

// run does items of the operation, on the caller where the work is small.
func (t *headTask) run(items int, small bool) {
	if !small {
		t.e.pool.run(t, items)
		return
	}
	for i := range items {
		t.do(0, i)
	}
}

// done lets go of what was borrowed.
func (t *headTask) done() {
	t.dst, t.x, t.w, t.norm = nil, nil, nil, nil
}

// CopyPart implements compute.LatentEncoder.
func (e *encoder) CopyPart(dst compute.Tensor, to compute.Part, x compute.Tensor, from compute.Part) {
	e.drain()
	t := &e.headwise
	t.pair("CopyPart", opCopyPart, dst, to, x, from)
	if to.N != from.N {
		panic(fmt.Sprintf("cpu: CopyPart of %d elements to %d", from.N, to.N))
	}
	t.dst.touch()
	t.rowwise(t.heads * to.N)
}

// PartNorm implements compute.LatentEncoder.
func (e *encoder) PartNorm(x compute.Tensor, p compute.Part, w compute.Weight, eps float32) {
	e.drain()
	t := &e.headwise
	t.op, t.dst, t.to, t.eps = opPartNorm, own(x), p, eps
	t.heads = headsOf("PartNorm", t.dst, p)
	t.norm = vector(w, p.N)
	t.dst.touch()
	t.rowwise(t.heads * p.N)
}

// rowwise runs a cheap operation of cost elements a row.
func (t *headTask) rowwise(cost int) {
	t.step = rowsAtOnce(t.dst.rows, cost, t.e.pool.threads)
	t.e.pool.run(t, cuts(t.dst.rows, t.step))
	t.done()
}

func (t *headTask) do(worker, item int) {
	switch t.op {
	case opHeadQuant:
		for r := range t.x.rows {
			t.act.Set(item*t.x.rows+r, slice(t.x.row(r), t.from, item))
		}
	case opHeadMatMul:
		h, r0 := item/t.pieces, item%t.pieces*t.step
		w := &t.e.workers[worker]
		rowsOf(&w.view, &t.act, h*t.x.rows, t.x.rows)
		m := &t.w.m
		kernels.MatMul(t.dst.data[h*t.to.Dim+t.to.First:], t.dst.cols, m.Type, t.head(h, t.to.N), &w.view,
			r0, min(r0+t.step, t.to.N), 0, t.x.rows, &w.scratch)
	case opHeadMatMulT:
		kernels.MatMulT(t.dst.data[item*t.to.Dim+t.to.First:], t.dst.cols, t.w.m.Type, t.head(item, t.from.N), t.to.N,
			t.x.data[item*t.from.Dim+t.from.First:], t.x.cols, t.from.N, t.x.rows, &t.e.workers[worker].scratch)
	default:
		for r := item * t.step; r < min((item+1)*t.step, t.dst.rows); r++ {
			for h := range t.heads {
				y := slice(t.dst.row(r), t.to, h)
				if t.op == opCopyPart {
					copy(y, slice(t.x.row(r), t.from, h))
				} else {
					kernels.RMSNorm(y, y, t.norm, t.eps)
				}
			}
		}
	}
}

// slice is part p of head h of a row.
func slice(row []float32, p compute.Part, h int) []float32 {
	at := h*p.Dim + p.First
	return row[at : at+p.N]
}

// head is the bytes of the n rows of the weight that belong to head h.
func (t *headTask) head(h, n int) []byte {
	rb := t.w.m.Type.RowBytes(t.w.m.In)
	at := (h*t.rows.Stride + t.rows.First) * rb
	return t.w.m.Data[at : at+n*rb]
}

// rowsOf sets v to a view of n rows of a from row j on.
func rowsOf(v, a *kernels.Act, j, n int) {
	v.Kind, v.Rows, v.N = a.Kind, n, a.N
	if a.Kind == kernels.ActF32 {
		v.F = a.F[j*a.N : (j+n)*a.N]
		return
	}
	d, s := len(a.D)/a.Rows, len(a.Sums)/a.Rows
	v.Q, v.D, v.Sums = a.Q[j*a.N:(j+n)*a.N], a.D[j*d:(j+n)*d], a.Sums[j*s:(j+n)*s]
}
