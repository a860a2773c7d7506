package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/kernels"
)

// rowOp names an operation that works on whole rows.
type rowOp uint8

const (
	opEmbed rowOp = iota
	opNorm
	opHeadNorm
	opRoPE
	opSwiGLU
	opAdd
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
	eps       float32
	dim, n    int
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
		for h := 0; h < len(dst); h += t.dim {
			kernels.RopeNeox(dst[h:h+t.dim], cos, sin)
		}
	case opSwiGLU:
		kernels.SiluMul(dst, t.x.row(r), t.y.row(r))
	case opAdd:
		kernels.Add(dst, t.x.row(r))
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

// vector is the elements of a vector weight of n elements.
func vector(w compute.Weight, n int) []float32 {
	v := ownWeight(w).vec
	if len(v) != n {
		panic(fmt.Sprintf("cpu: a norm weight of %d x %d for %d elements", w.Out(), w.In(), n))
	}
	return v
}

// RMSNorm implements compute.Encoder.
func (e *encoder) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32) {
	e.drain()
	d, t := own(dst), own(x)
	sameShape("RMSNorm", d, t)
	e.rows.op, e.rows.dst, e.rows.x, e.rows.w, e.rows.eps = opNorm, d, t, vector(w, t.cols), eps
	e.rows.start(t.cols)
}

// HeadNorm implements compute.Encoder.
func (e *encoder) HeadNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	e.drain()
	t := own(x)
	wholeHeads("HeadNorm", t, dim)
	e.rows.op, e.rows.dst, e.rows.w, e.rows.dim, e.rows.eps = opHeadNorm, t, vector(w, dim), dim, eps
	e.rows.start(t.cols)
}

// RoPE implements compute.Encoder.
func (e *encoder) RoPE(x compute.Tensor, dim, n int, cos, sin []float32) {
	e.drain()
	t := own(x)
	wholeHeads("RoPE", t, dim)
	if n < 2 || n%2 != 0 || n > dim || len(cos) != t.rows*n/2 || len(sin) != len(cos) {
		panic(fmt.Sprintf("cpu: RoPE of %d of %d elements with %d cosines and %d sines for %d rows", n, dim, len(cos), len(sin), t.rows))
	}
	e.rows.op, e.rows.dst, e.rows.dim, e.rows.n, e.rows.cos, e.rows.sin = opRoPE, t, dim, n, cos, sin
	e.rows.start(t.cols)
}

// SwiGLU implements compute.Encoder.
func (e *encoder) SwiGLU(dst, gate, up compute.Tensor) {
	e.drain()
	d, g, u := own(dst), own(gate), own(up)
	sameShape("SwiGLU", d, g)
	sameShape("SwiGLU", d, u)
	e.rows.op, e.rows.dst, e.rows.x, e.rows.y = opSwiGLU, d, g, u
	e.rows.start(8 * d.cols)
}

// Add implements compute.Encoder.
func (e *encoder) Add(x, y compute.Tensor) {
	e.drain()
	t, u := own(x), own(y)
	sameShape("Add", t, u)
	e.rows.op, e.rows.dst, e.rows.x = opAdd, t, u
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

// attendTask appends to a KV cache, then computes the attention of each query head.
type attendTask struct {
	e              *encoder
	dst, q, k, v   *tensor
	kv             *kv
	layer          int
	pos            []int32
	scale          float32
	heads, group   int // query heads; query heads of a KV head
	rowsAt         int // rows of an append item; 0: the attention itself
	headsAt        int // query heads of an attention item
	parts          int // attention items of a row
	keyDim, valDim int
}

// Attention implements compute.Encoder.
func (e *encoder) Attention(dst, q, k, v compute.Tensor, cache compute.KV, layer int, pos []int32, scale float32) {
	e.drain()
	t := &e.attend
	c, ok := cache.(*kv)
	if !ok {
		panic(fmt.Sprintf("cpu: a KV cache of another backend (%T)", cache))
	}
	t.dst, t.q, t.k, t.v, t.kv, t.layer, t.pos, t.scale = own(dst), own(q), own(k), own(v), c, layer, pos, scale
	s := &c.shape
	t.keyDim, t.valDim = s.KeyDim, s.ValDim
	t.heads = t.q.cols / s.KeyDim
	t.group = t.heads / s.Heads
	rows := t.k.rows
	if t.heads*s.KeyDim != t.q.cols || t.group*s.Heads != t.heads || t.heads == 0 || t.k.cols != s.Heads*s.KeyDim || t.v.cols != s.Heads*s.ValDim ||
		t.dst.cols != t.heads*s.ValDim || t.v.rows != rows || t.q.rows > rows || t.dst.rows != t.q.rows || len(pos) != rows {
		panic(fmt.Sprintf("cpu: Attention of q %d x %d, k %d x %d, v %d x %d into %d x %d with %d KV heads of %d and %d, %d positions", t.q.rows, t.q.cols,
			t.k.rows, t.k.cols, t.v.rows, t.v.cols, t.dst.rows, t.dst.cols, s.Heads, s.KeyDim, s.ValDim, len(pos)))
	}
	if layer < 0 || layer >= s.Layers {
		panic(fmt.Sprintf("cpu: Attention in layer %d of a KV cache of %d", layer, s.Layers))
	}
	for i, p := range pos {
		if p < 0 || int(p) >= s.Context || i > 0 && p != pos[i-1]+1 {
			panic(fmt.Sprintf("cpu: position %d in row %d of a KV cache of %d", p, i, s.Context))
		}
	}
	threads := e.pool.threads
	t.rowsAt = rowsAtOnce(rows, t.k.cols+t.v.cols, threads)
	e.pool.run(t, cuts(rows, t.rowsAt))
	t.rowsAt = 0
	// The query heads of one KV head share one reading of the keys and values where there is work enough for everybody, or the
	// same for everybody.
	rows = t.q.rows
	switch items := rows * s.Heads; {
	case threads == 1 || items >= 4*threads || items >= 2*threads && items%threads == 0:
		t.headsAt = t.group
	case t.group%4 == 0 && rows*t.heads/4 >= threads:
		t.headsAt = 4
	default:
		t.headsAt = 1
	}
	t.parts = t.heads / t.headsAt
	t.dst.touch()
	e.pool.run(t, rows*t.parts)
	*t = attendTask{e: e}
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
	kernels.AttendHeads(t.dst.row(r)[h*vd:(h+t.headsAt)*vd], t.q.row(r)[h*kd:(h+t.headsAt)*kd], t.headsAt, t.kv.shape.K, t.kv.shape.V,
		t.kv.keys(t.layer, h/t.group), t.kv.values(t.layer, h/t.group), t.kv.shape.K.RowBytes(kd), t.kv.shape.V.RowBytes(vd),
		0, int(t.pos[t.k.rows-t.q.rows+r])+1, t.scale, &t.e.workers[worker].scratch)
}

// append stores row r of the keys and values.
func (t *attendTask) append(r int) {
	k, v, p := t.k.row(r), t.v.row(r), int(t.pos[r])
	for h := range t.kv.shape.Heads {
		put(t.kv.keys(t.layer, h), t.kv.shape.K, p, k[h*t.keyDim:(h+1)*t.keyDim])
		put(t.kv.values(t.layer, h), t.kv.shape.V, p, v[h*t.valDim:(h+1)*t.valDim])
	}
}
