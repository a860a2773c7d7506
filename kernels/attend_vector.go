//go:build (amd64 || arm64) && !noasm

package kernels

import (
	"unsafe"

	"terrace/compute"
	"terrace/internal/fmath"
)

// valueKernel sets out[j] = fma(p[i], v[i][j], out[j]) for rows i < n at distance stride and j < dims, a multiple of 16.
type valueKernel func(out, p *float32, v *byte, stride, n, dims int)

// attendKernels is the vector code of attention on one level. scores and values are indexed by the float types of a
// cache; quantised keys and values are decoded to float32 block by block.
type attendKernels struct {
	scores   [2]floatKernel // rows kernels
	values   [2]valueKernel
	scaleMax func(p *float32, n int, scale float32) float32
	expSub   func(p *float32, n int, top float32)
	scale    func(x *float32, n int, f float32)
	decode   [compute.KVTypes]func(dst *float32, w *byte, blocks int) // nil where portable code decodes
	four     *fourHeads                                               // nil where heads go one by one
}

// fourHeads is the code for four query heads at a time. Scores lie key by key, the four heads side by side.
type fourHeads struct {
	scores   [2]func(p *float32, k *byte, stride int, q *float32, n, groups int)
	values   [2]func(out, p *float32, v *byte, stride, n, dims int, sums *float32)
	scaleMax func(p *float32, n int, scale float32, top *float32)
	expSub   func(p *float32, n int, top *float32)
}

// quadScores is the room for the scores of four heads: a call with fewer than four keys writes some places behind the last.
const quadScores = headsAtOnce * (attendBlock + headsAtOnce)

// kvRows is a block of keys or values of a float type.
type kvRows struct {
	t      compute.KVType
	b      []byte
	stride int
}

func (r *kvRows) at(i int) *byte { return &r.b[i*r.stride] }

// rows gives n rows of dim elements from element i of a run on, decoded where they are quantised.
func (k *attendKernels) rows(s *Scratch, t compute.KVType, b []byte, stride, dim, i, n int) kvRows {
	b = b[i*stride:]
	if t.Block() == 1 {
		return kvRows{t, b, stride}
	}
	s.heads.widened = grow(s.heads.widened, attendBlock*dim)
	dst := s.heads.widened
	per := t.RowBytes(dim)
	switch decode := k.decode[t]; {
	case decode == nil:
		for j := range n {
			decodeKV(t, dst[j*dim:(j+1)*dim], b[j*stride:])
		}
	case stride == per:
		decode(&dst[0], &b[0], n*dim/32)
	default:
		for j := range n {
			decode(&dst[j*dim], &b[j*stride], dim/32)
		}
	}
	return kvRows{compute.KVF32, unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 4*len(dst)), 4 * dim}
}

// run is attendGeneric with the heads inside the walk over blocks.
func (k *attendKernels) run(m *attention, s *Scratch) {
	kd, vd := len(m.q)/m.heads, len(m.out)/m.heads
	quads := 0
	if k.four != nil && kd%16 == 0 && vd%16 == 0 {
		quads = m.heads / headsAtOnce
	}
	single := quads * headsAtOnce // the first head that goes alone
	s.scores = grow(s.scores, quads*quadScores+(m.heads-single)*attendBlock)
	place := func(h int) []float32 { return s.scores[quads*quadScores+(h-single)*attendBlock:][:attendBlock] }
	if cap(s.heads.folds) < m.heads {
		s.heads.folds = make([]fold, m.heads)
	}
	s.heads.folds = s.heads.folds[:m.heads]
	folds := s.heads.folds
	for h := range folds {
		folds[h] = m.begin(h)
	}
	clear(m.out)
	for i := 0; i < m.n; {
		nb, at := m.blockEnd(i), m.at(i)
		keys := k.rows(s, m.kt, m.k, m.kstride, kd, at, nb)
		for g := range quads {
			h := g * headsAtOnce
			k.weights4(m, s, s.scores[g*quadScores:(g+1)*quadScores], &keys, h, kd, vd, nb)
		}
		for h := single; h < m.heads; h++ {
			k.weights(m, s, place(h), &keys, h, kd, vd, nb)
		}
		values := k.rows(s, m.vt, m.v, m.vstride, vd, at, nb)
		for g := range quads {
			h := g * headsAtOnce
			k.four.values[values.t](&m.out[h*vd], &s.scores[g*quadScores], values.at(0), values.stride, nb, vd, &s.heads.sums[0])
			for j, x := range s.heads.sums {
				folds[h+j].sum += x
			}
		}
		for h := single; h < m.heads; h++ {
			k.addValues(s, m.out[h*vd:(h+1)*vd], place(h)[:nb], &values)
		}
		i += nb
	}
	for h := range folds {
		k.multiply(m.out[h*vd:(h+1)*vd], fmath.Recip(folds[h].sum))
	}
}

// weights sets p to the weights of a block of keys for head h, not yet divided by their sum.
func (k *attendKernels) weights(m *attention, s *Scratch, p []float32, keys *kvRows, h, kd, vd, nb int) {
	q, scores := &m.q[h*kd], k.scores[keys.t]
	if nb >= 4 {
		scores(&p[0], 0, keys.at(0), keys.stride, q, kd, nb/4)
		if nb%4 != 0 {
			scores(&p[nb-4], 0, keys.at(nb-4), keys.stride, q, kd, 1)
		}
	} else {
		for j := range nb {
			scores(&s.tail[0], 0, keys.at(j), 0, q, kd, 1)
			p[j] = s.tail[0]
		}
	}
	whole := (nb + 7) &^ 7
	for j := nb; j < whole; j++ {
		p[j] = p[0] // keeps the largest
	}
	f := &s.heads.folds[h]
	if factor := f.next(k.scaleMax(&p[0], whole, m.scale)); factor != 1 {
		k.multiply(m.out[h*vd:(h+1)*vd], factor)
	}
	k.expSub(&p[0], whole, f.max)
	sum := float32(0)
	for _, w := range p[:nb] {
		sum += w
	}
	f.sum += sum
}

// weights4 does the same for the four heads from h on; the sums come with the values.
func (k *attendKernels) weights4(m *attention, s *Scratch, p []float32, keys *kvRows, h, kd, vd, nb int) {
	q, scores := &m.q[h*kd], k.four.scores[keys.t]
	if nb >= 4 {
		scores(&p[0], keys.at(0), keys.stride, q, kd, nb/4)
		if nb%4 != 0 {
			scores(&p[headsAtOnce*(nb-4)], keys.at(nb-4), keys.stride, q, kd, 1)
		}
	} else {
		for j := range nb { // each as four times itself; the next ones overwrite the copies
			scores(&p[headsAtOnce*j], keys.at(j), 0, q, kd, 1)
		}
	}
	whole := (nb + 3) &^ 3
	for j := nb; j < whole; j++ {
		copy(p[headsAtOnce*j:headsAtOnce*(j+1)], p[:headsAtOnce]) // keeps the largest
	}
	top := &s.heads.top
	k.four.scaleMax(&p[0], headsAtOnce*whole, m.scale, &top[0])
	for j := range top {
		f := &s.heads.folds[h+j]
		if factor := f.next(top[j]); factor != 1 {
			k.multiply(m.out[(h+j)*vd:(h+j+1)*vd], factor)
		}
		top[j] = f.max
	}
	k.four.expSub(&p[0], headsAtOnce*whole, &top[0])
}

// addValues adds rows of values, weighted by p, to out; the elements after the last 16 in portable code.
func (k *attendKernels) addValues(s *Scratch, out, p []float32, v *kvRows) {
	dims := len(out) &^ 15
	if dims > 0 {
		k.values[v.t](&out[0], &p[0], v.at(0), v.stride, len(p), dims)
	}
	if dims == len(out) {
		return
	}
	s.row = grow(s.row, len(out)-dims)
	for j, w := range p {
		widenKV(v.t, s.row, v.b[j*v.stride+v.t.RowBytes(dims):])
		for e, x := range s.row {
			out[dims+e] = fmath.Fma(w, x, out[dims+e])
		}
	}
}

// multiply multiplies x by f.
func (k *attendKernels) multiply(x []float32, f float32) {
	n := len(x) &^ 7
	if n > 0 {
		k.scale(&x[0], n, f)
	}
	for i := n; i < len(x); i++ {
		x[i] = float32(x[i] * f)
	}
}
