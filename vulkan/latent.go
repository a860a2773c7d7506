//go:build cgo && !novulkan

package vulkan

import (
	"errors"
	"fmt"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

// headsOf is the number of heads of a row of t, of which p is a part.
func headsOf(op string, t *tensor, p compute.Part) int {
	if p.Dim < 1 || t.cols%p.Dim != 0 || p.First < 0 || p.N < 1 || p.First+p.N > p.Dim {
		panic(fmt.Sprintf("vulkan: %s of elements %d to %d of heads of %d in rows of %d", op, p.First, p.First+p.N, p.Dim, t.cols))
	}
	return t.cols / p.Dim
}

// headPair checks what the operations on two tensors have in common.
func headPair(name string, dst compute.Tensor, to compute.Part, x compute.Tensor, from compute.Part) (d, t *tensor, heads int) {
	d, t = own(dst), own(x)
	heads = headsOf(name, d, to)
	if n := headsOf(name, t, from); n != heads || t.rows != d.rows || t == d {
		panic(fmt.Sprintf("vulkan: %s of %d rows of %d heads into %d rows of %d", name, t.rows, n, d.rows, heads))
	}
	return d, t, heads
}

// headMatrix checks the weight of a product whose heads have n rows of in elements.
func headMatrix(name string, w compute.Weight, rows compute.HeadRows, n, in, heads int) *weight {
	x := ownWeight(w)
	if m := &x.m; m.In != in || rows.First < 0 || rows.First+n > rows.Stride || m.Out != heads*rows.Stride {
		panic(fmt.Sprintf("vulkan: %s by rows %d to %d of each %d, %d elements in %d heads, of a weight of %d rows of %d", name, rows.First, rows.First+n,
			rows.Stride, in, heads, m.Out, m.In))
	}
	return x
}

var errSplitHeads = errors.New("vulkan: a weight of heads is larger than the device gives in one piece")

// HeadMatMul implements compute.LatentEncoder: a job a head.
func (e *encoder) HeadMatMul(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	e.drain()
	d, t, heads := headPair("HeadMatMul", dst, to, x, from)
	m := headMatrix("HeadMatMul", w, rows, to.N, from.N, heads)
	d.touch()
	if d.rows == 0 {
		return
	}
	if len(*m.parts) > 1 && (*m.parts)[1].rows > 0 {
		e.fail(errSplitHeads)
		return
	}
	kind := e.b.kind(m.m.Type)
	k, _ := kernels.KindOf(m.m.Type)
	p := product{typ: m.m.Type, most: d.rows, in: from.N, out: to.N, stride: m.m.Type.RowBytes(from.N), dst: d.addr(), ld: d.cols}
	a := &e.scratch.heads
	at := &a.track
	if kind == kernels.ActF32 {
		// The parts of heads side by side, head by head.
		part := e.temp("head parts", heads*d.rows, from.N)
		for h := range heads {
			e.in(&t.track)
			e.out(&part.track)
			e.each(each{op: ewCopyPart, dst: part.at(h * d.rows), x: t.addr() + uint64(h*from.Dim+from.First)*4, n: d.rows * from.N, cols: from.N,
				a: from.N, b: 1, c: from.N, d: t.cols})
			part.track.wrote = 0 // rows of heads are apart
		}
		part.track.wrote = e.epoch
		p.q, at = part.addr(), &part.track
	} else {
		a.room(e, heads*d.rows, from.N)
		e.quantise(a, t.addr(), &t.track, kind, from.N, d.rows, t.cols, from.First, from.Dim, heads)
		p.q, p.d, p.s = a.q, a.d, a.s
	}
	base := (*m.parts)[0].r.addr()
	if kind != k {
		all, err := e.b.all(m)
		if err != nil {
			e.fail(err)
			return
		}
		base, p.typ, p.stride = all, gguf.F32, 4*from.N
	}
	e.reserve(jobBytes*heads, 1)
	for h := range heads {
		p.jobs = append(p.jobs, job{w: base + uint64(h*rows.Stride+rows.First)*uint64(p.stride), n: uint32(d.rows), act: uint32(h * d.rows), off: uint32(h*to.Dim + to.First)})
	}
	e.in(at, &m.track)
	e.out(&d.track)
	e.multiply(&p)
}

// HeadMatMulT implements compute.LatentEncoder, over the weight's rows as float32.
func (e *encoder) HeadMatMulT(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	e.drain()
	d, t, heads := headPair("HeadMatMulT", dst, to, x, from)
	m := headMatrix("HeadMatMulT", w, rows, from.N, to.N, heads)
	d.touch()
	if d.rows == 0 {
		return
	}
	all, err := e.b.all(m)
	if err != nil {
		e.fail(err)
		return
	}
	e.in(&t.track, &m.track)
	e.out(&d.track)
	e.begin(shTransposed, [4]uint32{})
	e.u64(all, t.addr(), d.addr())
	e.u32(uint32(to.N), uint32(from.N), uint32(rows.Stride), uint32(rows.First))
	e.u32(uint32(t.cols), uint32(from.Dim), uint32(from.First), uint32(d.cols), uint32(to.Dim), uint32(to.First))
	e.dispatch(groups(to.N, 64), heads, d.rows)
}

// CopyPart implements compute.LatentEncoder.
func (e *encoder) CopyPart(dst compute.Tensor, to compute.Part, x compute.Tensor, from compute.Part) {
	e.drain()
	d, t, heads := headPair("CopyPart", dst, to, x, from)
	if to.N != from.N {
		panic(fmt.Sprintf("vulkan: CopyPart of %d elements to %d", from.N, to.N))
	}
	e.in(&t.track)
	e.out(&d.track)
	d.touch()
	e.each(each{op: ewCopyPart, dst: d.addr() + 4*uint64(to.First), x: t.addr() + 4*uint64(from.First), n: d.rows * heads * to.N, cols: heads * to.N,
		a: to.N, b: heads, c: to.Dim, d: from.Dim})
}

// PartNorm implements compute.LatentEncoder.
func (e *encoder) PartNorm(x compute.Tensor, p compute.Part, w compute.Weight, eps float32) {
	e.drain()
	t := own(x)
	heads := headsOf("PartNorm", t, p)
	e.norm(normed{dst: t, x: t, w: w, dim: p.N, heads: heads, step: p.Dim, first: p.First, eps: eps, over: float32(p.N)})
}
