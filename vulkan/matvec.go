//go:build cgo && !novulkan

package vulkan

import (
	"terrace/gguf"
	"terrace/kernels"
)

// vecShapes are those of GPUs by type, as measured; a type that is not there goes by shaders/product.comp. vecShort are those of
// rows of vecShortMost elements at most, where they are others.
var (
	vecShapes = map[gguf.Type]vecShape{
		gguf.Q4_K: {128, 4, false}, gguf.Q5_K: {128, 2, false}, gguf.Q6_K: {64, 4, false}, gguf.Q8_0: {64, 4, false}, gguf.MXFP4: {32, 2, true},
	}
	vecShort = map[gguf.Type]vecShape{gguf.Q6_K: {128, 2, false}, gguf.MXFP4: {256, 1, true}}
)

const vecShortMost = 1024

// softShape is that of a driver that computes on the CPU, where compiling takes most of the time.
var softShape = vecShape{32, 2, false}

// Bits of a constant of shaders/matvec.comp.
const (
	vecPair   = 256
	vecInline = 512
	vecAlone  = 1024
)

// vec is the shape for rows of in elements of type t that meet one row of activations.
func (e *encoder) vec(t gguf.Type, in int) (s vecShape, ok bool) {
	if s, ok = vecShapes[t]; !ok || e.b.opts.Exact {
		return s, false
	}
	if short, have := vecShort[t]; have && in <= vecShortMost {
		s = short
	}
	switch {
	case e.b.opts.shape.threads > 0:
		s = e.b.opts.shape
	case e.b.dev.c.info.Kind == Software:
		s = softShape
	}
	s.alone = s.alone && t == gguf.MXFP4
	return s, true
}

// shared bounds the bytes of shared memory that a workgroup takes, but for activations that it quantises.
func (s vecShape) shared() int { return s.threads * (16*s.rows + 4) }

// perGroup is how many rows a workgroup takes.
func (s vecShape) perGroup(t gguf.Type, in int) int {
	span, lanes := 64, 4
	switch k, _ := kernels.KindOf(t); {
	case k != kernels.Act256:
		span, lanes = 32, 8
	case t == gguf.Q6_K:
		span = 128
	}
	if s.alone {
		return s.threads / lanes * s.rows
	}
	across := min(in/span, s.threads)
	return min(s.threads/across, s.threads/(s.rows*lanes)) * s.rows
}

// inlineMost bounds the elements of activations that each workgroup of a product quantises by itself, and the groups that do.
const (
	inlineMost   = 8192
	inlineGroups = 4096
)

// inline reports whether a product of one row of x, which is not quantised yet, shall do that itself.
func (e *encoder) inline(x *tensor, t gguf.Type, in, out, jobs int) bool {
	s, ok := e.vec(t, in)
	if !ok || in > inlineMost || int(e.b.dev.c.f.max_shared) < s.shared()+2*in {
		return false
	}
	k, _ := kernels.KindOf(t)
	a := &x.acts[k]
	if a.valid && a.of == x.root().version {
		return false
	}
	x.wants[k] = true
	return groups(out, s.perGroup(t, in))*jobs <= inlineGroups
}

// aligned reports whether the rows of jobs lie where loads of 16 bytes need them, for types whose blocks are whole such loads.
func aligned(t gguf.Type, jobs []job) bool {
	if t != gguf.Q4_K && t != gguf.Q5_K {
		return true
	}
	for i := range jobs {
		if (jobs[i].w|jobs[i].w2)&15 != 0 {
			return false
		}
	}
	return true
}

// multiplyVec is multiply of single rows.
func (e *encoder) multiplyVec(p *product, s vecShape, jobs uint64, count int) {
	flags, rows := uint32(s.rows), s.perGroup(p.typ, p.in)
	if p.pair {
		flags |= vecPair
		rows /= 2
	}
	if p.inline {
		flags |= vecInline
	}
	if s.alone {
		flags |= vecAlone
	}
	e.begin(shMatvec, [4]uint32{uint32(p.typ), flags, uint32(s.threads), uint32(p.in)})
	e.products(p, jobs)
	e.dispatch(groups(p.out, rows), 1, count)
}
