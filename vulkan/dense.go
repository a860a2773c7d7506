//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"unsafe"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

// quantised is rows of activations as int8.
type quantised struct {
	mem   *store
	track track
	valid bool
	of    uint64 // version of the rows that these are
	size  uint64
	q     uint64 // addresses: codes, scales, sums
	d, s  uint64
}

// room makes room for rows of n elements.
func (a *quantised) room(e *encoder, rows, n int) {
	size := uint64(rows) * uint64(n+n/32*8)
	if a.mem == nil || a.size < size {
		if a.mem != nil {
			e.keep(a.mem)
		}
		if a.mem = e.store(size); a.mem == nil {
			a.mem, size = &store{}, 0
		}
		a.size = size
	}
	a.q = a.mem.addr()
	a.d = a.q + uint64(rows)*uint64(n)
	a.s = a.d + uint64(rows)*uint64(n/32)*4
}

// scratch is memory that an operation uses for itself.
type scratch struct {
	heads quantised
	mem   map[string]*tensor
}

// temp is a tensor of the encoder's own.
func (e *encoder) temp(name string, rows, cols int) *tensor {
	if e.scratch.mem == nil {
		e.scratch.mem = map[string]*tensor{}
	}
	t := e.scratch.mem[name]
	if t == nil || t.cols != cols || t.room < rows {
		if t != nil {
			e.keep(t.mem)
		}
		t = e.tensor(max(rows, 1), cols)
		e.scratch.mem[name] = t
	}
	t.SetRows(rows)
	t.touch()
	return t
}

// wanted is where an operation that writes all rows of x shall leave their form as int8, since somebody wanted it of earlier rows;
// 0: nobody did. made says that it is there.
func (e *encoder) wanted(x *tensor, kind kernels.ActKind) uint64 {
	if x.of != nil || !x.wants[kind] || x.rows == 0 {
		return 0
	}
	x.acts[kind].room(e, x.rows, x.cols)
	return x.acts[kind].q
}

func (e *encoder) made(x *tensor, kind kernels.ActKind) {
	x.acts[kind].valid, x.acts[kind].of = true, x.version
}

// act is where the rows of x lie in the given format, quantised where x has changed since the last time.
func (e *encoder) act(x *tensor, kind kernels.ActKind) (q, d, s uint64, t *track) {
	if kind == kernels.ActF32 {
		return x.addr(), 0, 0, &x.track
	}
	a := &x.acts[kind]
	if v := x.root().version; !a.valid || a.of != v {
		x.wants[kind] = true
		a.room(e, max(x.rows, 1), x.cols)
		e.quantise(a, x.addr(), &x.track, kind, x.cols, x.rows, x.cols, 0, 0, 1)
		a.valid, a.of = true, v
	}
	return a.q, a.d, a.s, &a.track
}

// quantise fills a with n elements from each of the heads of rows rows, head by head.
func (e *encoder) quantise(a *quantised, x uint64, from *track, kind kernels.ActKind, n, rows, ld, first, step, heads int) {
	block := uint32(32)
	if kind == kernels.Act256 {
		block = 256
	}
	e.in(from)
	e.out(&a.track)
	e.begin(shQuantise, [4]uint32{block})
	e.u64(x, a.q, a.d, a.s)
	e.u32(uint32(n), uint32(rows), uint32(ld), uint32(first), uint32(step), uint32(heads))
	y, z := across(rows * heads)
	e.dispatch(groups(n, 256), y, z)
}

// job is a matrix and the rows of activations that it meets, as shaders/product.glsl has it.
type job struct {
	w, w2, bias, bias2, rows uint64
	first, n, act, off       uint32
}

const jobBytes = int(unsafe.Sizeof(job{}))

// product is one dispatch of matrix products.
type product struct {
	typ     gguf.Type // F32 where rows were decoded
	jobs    []job
	at      uint64 // jobs that lie on the device already, count of them; 0: none
	count   int
	most    int // the most rows of a job
	in, out int
	stride  int // bytes of a row
	q, d, s uint64
	dst     uint64
	ld      int
	pair    bool
	act     compute.Act
	inline  bool // q is float32, to be quantised by who multiplies
}

// multiply records p. The caller has said what is read and written and has reserved room for the jobs.
func (e *encoder) multiply(p *product) {
	jobs, count := p.at, p.count
	if jobs == 0 {
		var b []byte
		count = len(p.jobs)
		b, jobs = e.room(jobBytes * count)
		copy(b, unsafe.Slice((*byte)(unsafe.Pointer(&p.jobs[0])), len(b)))
	}
	if v, ok := e.vec(p.typ, p.in); ok && p.most == 1 && (p.inline || aligned(p.typ, p.jobs)) {
		e.multiplyVec(p, v, jobs, count)
		return
	}
	if s, ok := e.tile(p); ok {
		e.multiplyTiles(p, s, jobs, count)
		return
	}
	cols := 1
	if p.most > 1 {
		cols = e.b.cols
	}
	k, _ := kernels.KindOf(p.typ)
	s, rows := shProduct, 8
	switch k {
	case kernels.ActF32:
		if s, rows = shFloats, 4; e.single(p) {
			s, rows = shSingle, 1
		}
	case kernels.Act256:
		rows = 16
	}
	pair := uint32(0)
	if p.pair {
		pair = 1
	}
	typ := uint32(p.typ)
	if k == kernels.ActF32 && p.typ == gguf.BF16 {
		typ = 2
	}
	if s == shFloats && e.floatTiles(p) {
		e.multiplyFloatTiles(p, typ, jobs, count)
		return
	}
	e.begin(s, [4]uint32{typ, uint32(cols), pair})
	e.products(p, jobs)
	e.dispatch(groups(p.out, rows), groups(p.most, cols), count)
}

// singleRows bounds the rows of a matrix for which shaders/single.comp takes a workgroup each.
const singleRows = 1024

// single tells whether p, of float weights, is for shaders/single.comp, which loads four elements at a time.
func (e *encoder) single(p *product) bool {
	if p.most > 1 || p.pair || len(p.jobs) == 0 || p.out*len(p.jobs) > singleRows || p.in%4 != 0 || e.b.dev.c.f.max_shared < 20<<10 {
		return false
	}
	at := p.q | uint64(p.stride)
	for i := range p.jobs {
		at |= p.jobs[i].w
	}
	return at&15 == 0
}

// products adds what shaders/product.glsl has for constants.
func (e *encoder) products(p *product, jobs uint64) {
	e.u64(e.b.grid.addr(), p.q, p.d, p.s, p.dst, jobs)
	e.u32(uint32(p.in), uint32(p.out), uint32(p.stride), uint32(p.ld), uint32(p.act))
}

// decodeBytes bounds the rows that are decoded at a time.
const decodeBytes = 64 << 20

// decode sets dst, whose rows have as many elements, to rows of weights of type t that begin at w, stride bytes apart.
func (e *encoder) decode(dst *tensor, t gguf.Type, w uint64, from *track, stride int) {
	if from != nil {
		e.in(from)
	}
	e.out(&dst.track)
	dst.touch()
	e.begin(shDecode, [4]uint32{uint32(t)})
	e.u64(e.b.grid.addr(), dst.addr(), w)
	e.u32(uint32(dst.cols), uint32(dst.rows), uint32(stride))
	e.decodeGrid(t, dst.cols, dst.rows)
}

func (e *encoder) decodeGrid(t gguf.Type, cols, rows int) {
	n := cols
	if t.BlockSize() > 1 {
		n = cols / 32
	}
	y, z := across(rows)
	e.dispatch(groups(n, 64), y, z)
}

// matrix records the products of rows of activations with a matrix of rows of weights, decoded first in exact mode. job tells
// what is particular; w is where the rows begin, out of them.
func (e *encoder) matrix(dst, x *tensor, t gguf.Type, w uint64, from *track, j job, in, out, ld int) {
	kind := e.b.kind(t)
	k, _ := kernels.KindOf(t)
	j.w = w
	p := product{typ: t, most: int(j.n), in: in, out: out, stride: t.RowBytes(in), dst: dst.addr(), ld: ld}
	var at *track
	if kind == k {
		p.jobs = []job{j}
		p.inline = p.most == 1 && aligned(t, p.jobs) && e.inline(x, t, in, out, 1)
	}
	if p.inline {
		kind = kernels.ActF32
	}
	p.q, p.d, p.s, at = e.act(x, kind)
	if len(p.jobs) > 0 {
		e.reserve(jobBytes, 1)
		e.in(at, from)
		e.out(&dst.track)
		e.multiply(&p)
		return
	}
	e.decoded(t, w, from, in, out, func(rows *tensor, first int) {
		e.reserve(jobBytes, 1)
		e.in(at, &rows.track)
		e.out(&dst.track)
		j := j
		j.w, j.off = rows.addr(), j.off+uint32(first)
		p.typ, p.out, p.stride, p.jobs = gguf.F32, rows.rows, 4*in, []job{j}
		e.multiply(&p)
	})
}

// decoded decodes rows of weights, some at a time, and calls f with them.
func (e *encoder) decoded(t gguf.Type, w uint64, from *track, in, out int, f func(rows *tensor, first int)) {
	some := max(1, min(out, decodeBytes/4/in))
	for r := 0; r < out; r += some {
		n := min(some, out-r)
		rows := e.temp("decoded", n, in)
		e.decode(rows, t, w+uint64(r)*uint64(t.RowBytes(in)), from, t.RowBytes(in))
		f(rows, r)
	}
}

// MatMul implements compute.Encoder.
func (e *encoder) MatMul(dst compute.Tensor, w compute.Weight, x compute.Tensor) {
	e.drain()
	d, m, t := own(dst), ownWeight(w), own(x)
	if d.cols != m.m.Out || t.cols != m.m.In || d.rows != t.rows || d == t {
		panic(fmt.Sprintf("vulkan: MatMul of %d x %d by a weight of %d rows of %d into %d x %d", t.rows, t.cols, m.m.Out, m.m.In, d.rows, d.cols))
	}
	if d.rows == 0 {
		return
	}
	for _, p := range *m.parts {
		if p.rows > 0 {
			e.matrix(d, t, m.m.Type, p.r.addr(), &m.track, job{n: uint32(t.rows), off: uint32(p.first)}, m.m.In, p.rows, d.cols)
		}
	}
	d.touch()
}

// Embed implements compute.Encoder.
func (e *encoder) Embed(dst compute.Tensor, w compute.Weight, tokens []int32) {
	e.drain()
	t, m := own(dst), ownWeight(w)
	if t.cols != m.m.In || t.rows != len(tokens) {
		panic(fmt.Sprintf("vulkan: Embed of %d tokens from rows of %d into %d x %d", len(tokens), m.m.In, t.rows, t.cols))
	}
	if len(tokens) == 0 {
		return
	}
	e.reserve(8*len(tokens), 1)
	b, addr := e.room(8 * len(tokens))
	list := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(tokens))
	for i, id := range tokens {
		if id < 0 || int(id) >= m.m.Out {
			panic(fmt.Sprintf("vulkan: token %d of %d", id, m.m.Out))
		}
		list[i] = m.row(int(id))
	}
	e.decode(t, m.m.Type, addr, &m.track, 0)
}

// DecodeRows implements compute.Encoder.
func (e *encoder) DecodeRows(dst compute.Tensor, typ gguf.Type, rows [][]byte) {
	e.drain()
	d := own(dst)
	if d.rows == 0 && len(rows) == 0 {
		return
	}
	if d.rows == 0 || len(rows) == 0 || len(rows)%d.rows != 0 || d.cols%(len(rows)/d.rows) != 0 {
		panic(fmt.Sprintf("vulkan: DecodeRows of %d rows into %d x %d", len(rows), d.rows, d.cols))
	}
	n := len(rows) / d.rows
	w := d.cols / n
	size := typ.RowBytes(w)
	// Rows lie at multiples of 4, whatever their length.
	step := (size + 3) &^ 3
	e.reserve((step+8)*len(rows), 2)
	b, at := e.room(step * len(rows))
	l, addr := e.room(8 * len(rows))
	list := unsafe.Slice((*uint64)(unsafe.Pointer(&l[0])), len(rows))
	for i, r := range rows {
		if len(r) != size {
			panic(fmt.Sprintf("vulkan: DecodeRows of %d bytes of %s for %d elements", len(r), typ, w))
		}
		copy(b[i*step:], r)
		list[i] = at + uint64(i*step)
	}
	e.out(&d.track)
	d.touch()
	e.begin(shDecode, [4]uint32{uint32(typ)})
	e.u64(e.b.grid.addr(), d.addr(), addr)
	e.u32(uint32(w), uint32(len(rows)), 0)
	e.decodeGrid(typ, w, len(rows))
}

// normForms is the longest run whose forms as int8 shaders/norm.comp leaves.
const normForms = 2048

// normShape is how many elements of a run shaders/norm.comp has in sight at a time, and the threads of a workgroup.
func (e *encoder) normShape(dim int) (span, threads int) {
	f := &e.b.dev.c.f
	switch {
	case dim <= 512 || f.max_shared < 28<<10:
		return 512, 128
	case dim > normForms && dim <= 3072:
		return 3072, 256
	case dim > normForms && dim <= 4096 && f.max_shared >= 36<<10 && f.max_invocations >= 512:
		return 4096, 512
	}
	return normForms, 256
}

// normed is what a norm is about.
type normed struct {
	dst, x, z         *tensor
	w                 compute.Weight
	dim, heads        int
	step, first, wide int // from run to run in a row; of w
	eps, over         float32
	gate              uint32
	sum               *summed // of which x consists first; nil: x is there
}

func (e *encoder) norm(n normed) {
	q32, q256 := uint64(0), uint64(0)
	span, threads := e.normShape(n.dim)
	if n.heads == 1 && n.dim == n.dst.cols && n.dim <= min(span, normForms) && n.dim%256 == 0 {
		q32, q256 = e.wanted(n.dst, kernels.Act32), e.wanted(n.dst, kernels.Act256)
	}
	w := uint64(0)
	if n.w != nil {
		w = e.vector(n.w, max(n.dim, n.wide*n.heads))
	}
	e.in(&n.x.track)
	z, weights, flags, k := uint64(0), uint64(0), uint32(0), 1
	if n.z != nil {
		e.in(&n.z.track)
		z = n.z.addr()
	}
	if s := n.sum; s != nil {
		z, flags = s.y.addr(), 1
		if s.weights != nil {
			flags, weights, k = 2, s.weights.addr(), s.k
			e.in(&s.weights.track)
		}
		e.in(&s.y.track)
		e.out(&s.x.track)
		s.x.touch()
	}
	if (n.dim|n.x.cols|n.step|n.first|n.wide)&3 == 0 && (n.dst.addr()|n.x.addr()|w|z)&15 == 0 && n.dim <= span && n.gate == 0 {
		flags |= 4
	}
	e.out(&n.dst.track)
	if q32 > 0 {
		e.out(&n.dst.acts[kernels.Act32].track)
	}
	if q256 > 0 {
		e.out(&n.dst.acts[kernels.Act256].track)
	}
	n.dst.touch()
	e.begin(shNorm, [4]uint32{flags, uint32(span), uint32(threads), uint32(k)})
	e.u64(n.dst.addr(), n.x.addr(), w, z)
	e.u32(uint32(n.dim), uint32(n.heads), uint32(n.x.rows), uint32(n.x.cols), uint32(n.step), uint32(n.first), uint32(n.wide))
	e.f32(n.eps)
	e.f32(n.over)
	e.u32(n.gate)
	e.u64(q32, q256, weights)
	x, y := across(n.x.rows * n.heads)
	e.dispatch(x, y, 1)
	if q32 > 0 {
		e.made(n.dst, kernels.Act32)
	}
	if q256 > 0 {
		e.made(n.dst, kernels.Act256)
	}
}

// RMSNorm implements compute.Encoder.
func (e *encoder) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32) {
	d, t := own(dst), own(x)
	sameShape("RMSNorm", d, t)
	e.norm(normed{dst: d, x: t, w: w, dim: t.cols, heads: 1, eps: eps, over: float32(t.cols), sum: e.before(d, t)})
}

// HeadNorm implements compute.Encoder.
func (e *encoder) HeadNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	t := own(x)
	wholeHeads("HeadNorm", t, dim)
	h := turn{x: t, normed: true, dim: dim, eps: eps}
	if w != nil {
		h.w = ownVector(w, dim)
	}
	if !e.hold(h) {
		e.turn(&h)
	}
}

// GatedNorm implements compute.Encoder.
func (e *encoder) GatedNorm(dst, x, z compute.Tensor, w compute.Weight, dim int, eps float32, act compute.Act) {
	e.drain()
	d, t, g := own(dst), own(x), own(z)
	sameShape("GatedNorm", d, t)
	sameShape("GatedNorm", d, g)
	wholeHeads("GatedNorm", t, dim)
	gate := map[compute.Act]uint32{compute.SiLU: 1, compute.Sigmoid: 2}[act]
	if gate == 0 {
		panic(fmt.Sprintf("vulkan: GatedNorm with function %d", act))
	}
	e.norm(normed{dst: d, x: t, z: g, w: w, dim: dim, heads: t.cols / dim, step: dim, eps: eps, over: float32(dim), gate: gate})
}

// GroupNorm implements compute.Encoder.
func (e *encoder) GroupNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	e.drain()
	t := own(x)
	wholeHeads("GroupNorm", t, dim)
	e.norm(normed{dst: t, x: t, w: w, dim: dim, heads: t.cols / dim, step: dim, wide: dim, eps: eps, over: float32(dim)})
}

// The operations of shaders/elementwise.comp.
const (
	ewAdd = iota
	ewMul
	ewScale
	ewBias
	ewActivate
	ewGate
	ewCap
	ewSplitHeads
	ewCopyPart
	ewSpread
	ewInject
	ewSplitGroups
	ewMixSilu
	ewMixStreams
)

// each is an element-wise operation with n results in rows of cols.
type each struct {
	op         uint32
	dst, x, y  uint64
	n, cols    int
	a, b, c, d int
	f, g       float32
}

func (e *encoder) each(o each) {
	e.begin(shElementwise, [4]uint32{o.op})
	e.u64(o.dst, o.x, o.y)
	e.u32(uint32(o.n), uint32(o.cols), uint32(o.a), uint32(o.b), uint32(o.c), uint32(o.d))
	e.f32(o.f)
	e.f32(o.g)
	x, y := across(groups(o.n, 256))
	e.dispatch(x, y, 1)
}

// RoPE implements compute.Encoder.
func (e *encoder) RoPE(x compute.Tensor, dim, first, n int, pairs compute.Pairing, cos, sin []float32) {
	t := own(x)
	wholeHeads("RoPE", t, dim)
	if n < 2 || n%2 != 0 || first < 0 || first+n > dim || len(cos) != t.rows*n/2 || len(sin) != len(cos) {
		panic(fmt.Sprintf("vulkan: RoPE of elements %d to %d of %d with %d cosines and %d sines for %d rows", first, first+n, dim, len(cos), len(sin), t.rows))
	}
	r := turn{x: t, turned: true, dim: dim, first: first, n: n, pairs: pairs}
	if !e.rotate(r, cos, sin) {
		r.cos, r.sin = numbers(e, cos), numbers(e, sin)
		e.rotation(&r)
	}
}

// rotation records the rotation of t alone.
func (e *encoder) rotation(t *turn) {
	e.out(&t.x.track)
	t.x.touch()
	norm := uint32(0)
	if t.pairs == compute.Norm {
		norm = 1
	}
	heads, half := t.x.cols/t.dim, t.n/2
	count := t.x.rows * heads * half
	e.begin(shRope, [4]uint32{})
	e.u64(t.x.addr(), t.cos, t.sin)
	e.u32(uint32(count), uint32(heads), uint32(t.dim), uint32(t.first), uint32(half), norm)
	gx, gy := across(groups(count, 64))
	e.dispatch(gx, gy, 1)
}

// Activate implements compute.Encoder.
func (e *encoder) Activate(dst, a, b compute.Tensor, act compute.Act) {
	e.drain()
	d, x := own(dst), own(a)
	sameShape("Activate", d, x)
	if (b == nil) != (act == compute.ReLU2) {
		panic(fmt.Sprintf("vulkan: Activate by function %d with a second input %v", act, b))
	}
	o := each{op: ewActivate, dst: d.addr(), x: x.addr(), n: d.rows * d.cols, cols: d.cols, a: int(act)}
	e.in(&x.track)
	if b != nil {
		y := own(b)
		sameShape("Activate", d, y)
		e.in(&y.track)
		o.y = y.addr()
	}
	e.out(&d.track)
	d.touch()
	e.each(o)
}

// Add implements compute.Encoder.
func (e *encoder) Add(x, y compute.Tensor) {
	e.drain()
	d, t := own(x), own(y)
	sameShape("Add", d, t)
	e.later(summed{x: d, y: t})
}

// Mul implements compute.Encoder.
func (e *encoder) Mul(x, y compute.Tensor) {
	e.drain()
	d, t := own(x), own(y)
	sameShape("Mul", d, t)
	e.in(&t.track)
	e.change(d, each{op: ewMul, x: t.addr()})
}

// change is an operation on all elements of d in place.
func (e *encoder) change(d *tensor, o each) {
	e.out(&d.track)
	d.touch()
	o.dst, o.n, o.cols = d.addr(), d.rows*d.cols, d.cols
	e.each(o)
}

// AddBias implements compute.Encoder.
func (e *encoder) AddBias(x compute.Tensor, w compute.Weight) {
	e.drain()
	t := own(x)
	e.change(t, each{op: ewBias, x: e.vector(w, t.cols)})
}

// Scale implements compute.Encoder.
func (e *encoder) Scale(x compute.Tensor, s float32) {
	e.drain()
	e.change(own(x), each{op: ewScale, f: s})
}

// Softcap implements compute.Encoder.
func (e *encoder) Softcap(x compute.Tensor, limit float32) {
	e.drain()
	e.change(own(x), each{op: ewCap, f: limit, g: 1 / limit})
}

// Clear implements compute.Encoder.
func (e *encoder) Clear(x compute.Tensor) {
	e.drain()
	t := own(x)
	t.touch()
	if t.rows > 0 {
		e.out(&t.track)
		e.fill(t.region(), 0, uint64(t.rows)*uint64(t.cols)*4, 0)
	}
}

// GateRows implements compute.Encoder.
func (e *encoder) GateRows(x, s compute.Tensor) {
	e.drain()
	t, g := own(x), own(s)
	if g.cols != 1 || g.rows != t.rows {
		panic(fmt.Sprintf("vulkan: GateRows of %d x %d by %d x %d", t.rows, t.cols, g.rows, g.cols))
	}
	e.in(&g.track)
	e.change(t, each{op: ewGate, x: g.addr()})
}

// SplitHeads implements compute.Encoder.
func (e *encoder) SplitHeads(q, gate, x compute.Tensor, dim int) {
	e.drain()
	d, g, t := own(q), own(gate), own(x)
	sameShape("SplitHeads", d, g)
	wholeHeads("SplitHeads", d, dim)
	if t.cols != 2*d.cols || t.rows != d.rows {
		panic(fmt.Sprintf("vulkan: SplitHeads of %d x %d into two of %d x %d", t.rows, t.cols, d.rows, d.cols))
	}
	e.in(&t.track)
	e.out(&g.track)
	g.touch()
	e.change(d, each{op: ewSplitHeads, x: t.addr(), y: g.addr(), a: dim})
}

// CopyRows implements compute.Encoder.
func (e *encoder) CopyRows(dst, x compute.Tensor, first int) {
	e.drain()
	d, t := own(dst), own(x)
	if d.cols != t.cols || first < 0 || first+d.rows > t.rows || d == t {
		panic(fmt.Sprintf("vulkan: CopyRows of rows %d to %d of %d x %d into rows of %d", first, first+d.rows, t.rows, t.cols, d.cols))
	}
	if d.rows == 0 {
		return
	}
	e.in(&t.track)
	e.out(&d.track)
	d.touch()
	if e.err != nil {
		return
	}
	n := uint64(d.cols) * 4
	e.copy(d.region(), 0, t.region(), uint64(first)*n, uint64(d.rows)*n)
}

// WeightedSum implements compute.Encoder.
func (e *encoder) WeightedSum(x, parts compute.Tensor, index []int32, weights []float32, k int) {
	e.drain()
	t, p := own(x), own(parts)
	if p.cols != t.cols || len(index) != t.rows*k || len(weights) != len(index) || t == p {
		panic(fmt.Sprintf("vulkan: WeightedSum of %d rows and %d weights of %d elements, %d a row, into %d x %d", len(index), len(weights), p.cols, k, t.rows, t.cols))
	}
	for _, i := range index {
		if i < 0 || int(i) >= p.rows {
			panic(fmt.Sprintf("vulkan: WeightedSum of part %d of %d", i, p.rows))
		}
	}
	e.reserve(8*len(index), 2)
	at, by := numbers(e, index), numbers(e, weights)
	e.in(&p.track)
	e.weigh(t, p, at, by, k)
}

// weigh adds to each row of t k rows of parts, by weights; index 0: they lie in the order of these. Who calls has said what is read.
func (e *encoder) weigh(t, parts *tensor, index, weights uint64, k int) {
	e.out(&t.track)
	t.touch()
	e.begin(shWeighted, [4]uint32{})
	e.u64(t.addr(), parts.addr(), index, weights)
	e.u32(uint32(t.cols), uint32(k), uint32(t.rows))
	y, z := across(t.rows)
	e.dispatch(groups(t.cols, 64), y, z)
}

func sameShape(op string, a, b *tensor) {
	if a.rows != b.rows || a.cols != b.cols {
		panic(fmt.Sprintf("vulkan: %s of %d x %d and %d x %d", op, a.rows, a.cols, b.rows, b.cols))
	}
}

func wholeHeads(op string, t *tensor, dim int) {
	if dim < 1 || t.cols%dim != 0 {
		panic(fmt.Sprintf("vulkan: %s of heads of %d in rows of %d", op, dim, t.cols))
	}
}
