package kernels

import (
	"encoding/binary"
	"math"

	"terrace/gguf"
	"terrace/internal/fmath"
	"terrace/quant"
)

// Scratch is one worker's working memory. It grows to the largest shape seen and then allocates nothing.
type Scratch struct {
	row     []float32 // one decoded weight row
	acc     []float32 // partial sums of one weight row, one set a column
	sum0    []int32   // integer sums of one block, one a column
	sum1    []int32
	scores  []float32 // one block of attention scores
	super   super
	run     run
	ordered []int8     // one column of activations in a kernel's own order
	tail    [4]float32 // results of which one counts
	product product    // the call at work; here, because what a function value is given would be allocated
	attn    attention
	heads   headScratch
	runs    []Run // of the attention at work
	pieces  pieces
	counts  []int32 // a histogram
	heap    []candidate
	places  []int32
	gemm    gemmScratch
	aside   [2][chunk]float32 // what an activation puts aside
}

// MatMul sets dst[c*ld+r] to the dot product of weight row r and activation row c for r in [r0,r1) and c in [c0,c1).
//
// w holds whole rows of a.N elements of type t from row 0. a.Kind is KindOf(t), or ActF32: then the rows of a quantised
// type are decoded to float32 as quant does and multiplied as F32 (exact mode). Calls that write different elements may
// run at the same time, each with its own Scratch. The bits of an element depend on its row and column alone.
func MatMul(dst []float32, ld int, t gguf.Type, w []byte, a *Act, r0, r1, c0, c1 int, s *Scratch) {
	kind, ok := KindOf(t)
	if !ok {
		panicf("kernels: no product with weights of %s", t)
	}
	if a.Kind != kind && a.Kind != ActF32 {
		panicf("kernels: weights of %s need activations in %s, not %s", t, kind, a.Kind)
	}
	if r0 >= r1 || c0 >= c1 {
		return
	}
	rb := t.RowBytes(a.N)
	switch {
	case a.N%t.BlockSize() != 0:
		panicf("kernels: rows of %d elements of %s, which has blocks of %d", a.N, t, t.BlockSize())
	case r0 < 0 || c0 < 0 || c1 > a.Rows:
		panicf("kernels: rows from %d and columns %d to %d of %d", r0, c0, c1, a.Rows)
	case len(w) < r1*rb:
		panicf("kernels: %d bytes of weights for %d rows of %d bytes", len(w), r1, rb)
	case r1 > ld && c1-c0 > 1, len(dst) < (c1-1)*ld+r1:
		panicf("kernels: results of %d rows and %d columns in %d floats with %d a column", r1, c1, len(dst), ld)
	}
	m := &s.product
	*m = product{dst: dst, ld: ld, t: t, w: w, rb: rb, a: a, r0: r0, r1: r1, c0: c0, c1: c1}
	l := current()
	switch {
	case a.Kind == ActF32 && l.gemmFloat.takes(m):
		l.gemmFloat.multiply(m, l, s)
	case a.Kind == ActF32 && kind != ActF32:
		m.exact(l, s)
	case l.gemmOf(m) != nil:
		l.gemmOf(m).multiply(m, s)
	case l.tiles[t] != nil && l.tiles[t].serve(a.N, kind.block()):
		l.tiles[t].multiply(m, s)
	default:
		m.generic(l, s)
	}
	*m = product{}
}

// product is one call of MatMul, checked.
type product struct {
	dst            []float32
	ld             int
	t              gguf.Type
	w              []byte
	rb             int // bytes of a weight row
	a              *Act
	r0, r1, c0, c1 int
}

func (m *product) row(r int) []byte { return m.w[r*m.rb : (r+1)*m.rb] }

func (m *product) generic(l *level, s *Scratch) {
	k := &weightTable[m.t]
	switch {
	case k.unpack256 != nil:
		m.super(l, k, s)
	case k.unpack32 != nil:
		m.runs(l, k, s)
	default:
		m.floats(s)
	}
}

// super multiplies types of 256-blocks. Per block two int32 are exact, sums of scaled partial sums; then, by block index
// modulo 4, acc += (d*dy)*isum and acc -= (dmin*dy)*msum, and the four join as (0+1)+(2+3).
func (m *product) super(l *level, k *weightType, s *Scratch) {
	n, nb := m.a.N, m.a.N/256
	size := m.t.BlockBytes()
	cols := m.c1 - m.c0
	s.acc = grow(s.acc, 4*cols)
	s.sum0, s.sum1 = grow(s.sum0, cols), grow(s.sum1, cols)
	u := &s.super
	for r := m.r0; r < m.r1; r++ {
		row := m.row(r)
		clear(s.acc)
		for b := range nb {
			k.unpack256(u, row[b*size:(b+1)*size])
			l.superDots(s.sum0, s.sum1, u, m.a.Q[m.c0*n+256*b:], n, m.a.Sums[(m.c0*nb+b)*sums256:], nb*sums256)
			for c := range cols {
				dy := m.a.D[(m.c0+c)*nb+b]
				acc := &s.acc[4*c+b&3]
				*acc += float32(float32(u.d*dy) * float32(s.sum0[c]))
				if k.mins {
					*acc -= float32(float32(u.dmin*dy) * float32(s.sum1[c]))
				}
			}
		}
		for c := range cols {
			a := s.acc[4*c : 4*c+4]
			m.dst[(m.c0+c)*m.ld+r] = (a[0] + a[1]) + (a[2] + a[3])
		}
	}
}

// superDotsGeneric sets isum[c] to the scaled sum of codes times column c's activations, which start at q[c*n], and
// msum[c] to the sum of mins times its sums of 16, at sums[c*step].
func superDotsGeneric(isum, msum []int32, u *super, q []int8, n int, sums []int16, step int) {
	for c := range isum {
		i, m := int32(0), int32(0)
		x, xs := q[c*n:][:256], sums[c*step:][:16]
		for g, sc := range u.scale {
			i += int32(sc) * dot16((*[16]int8)(u.q[16*g:]), (*[16]int8)(x[16*g:]))
			m += int32(u.min[g]) * int32(xs[g])
		}
		isum[c], msum[c] = i, m
	}
}

func dot16(w, a *[16]int8) int32 {
	s := int32(0)
	for i, v := range w {
		s += int32(v) * int32(a[i])
	}
	return s
}

// runs multiplies types with a float scale a block. By index of the run of 32 modulo 8, acc += (d*dy)*isum, then, for
// types with a minimum, acc += (m*dy)*asum; the eight join by halves. NVFP4 adds its two halves one after the other.
func (m *product) runs(l *level, k *weightType, s *Scratch) {
	n, nb := m.a.N, m.a.N/32
	cols := m.c1 - m.c0
	s.acc = grow(s.acc, 8*cols)
	s.sum0, s.sum1 = grow(s.sum0, cols), grow(s.sum1, cols)
	u := &s.run
	for r := m.r0; r < m.r1; r++ {
		row := m.row(r)
		clear(s.acc)
		for b := range nb {
			k.unpack32(u, row, b)
			l.runDots(s.sum0, s.sum1, u, m.a.Q[m.c0*n+32*b:], n)
			for c := range cols {
				at := (m.c0+c)*nb + b
				dy := m.a.D[at]
				acc := &s.acc[8*c+b&7]
				if k.halves {
					*acc += float32(float32(u.d[0]*dy) * float32(s.sum0[c]))
					*acc += float32(float32(u.d[1]*dy) * float32(s.sum1[c]))
				} else {
					*acc += float32(float32(u.d[0]*dy) * float32(s.sum0[c]+s.sum1[c]))
				}
				if k.mins {
					*acc += float32(float32(u.m*dy) * float32(m.a.Sums[at]))
				}
			}
		}
		for c := range cols {
			m.dst[(m.c0+c)*m.ld+r] = join8((*[8]float32)(s.acc[8*c:]))
		}
	}
}

// runDotsGeneric sets low[c] and high[c] to the sums over the two halves of a run for column c, which starts at q[c*n].
func runDotsGeneric(low, high []int32, u *run, q []int8, n int) {
	for c := range low {
		x := (*[32]int8)(q[c*n:])
		low[c] = dot16((*[16]int8)(u.q[:]), (*[16]int8)(x[:]))
		high[c] = dot16((*[16]int8)(u.q[16:]), (*[16]int8)(x[16:]))
	}
}

func join8(a *[8]float32) float32 {
	return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

// floats multiplies F32, F16 and BF16 weights with float32 activations by dotF32.
func (m *product) floats(s *Scratch) {
	n := m.a.N
	s.row = grow(s.row, n)
	for r := m.r0; r < m.r1; r++ {
		widenGeneric(m.t, s.row, m.row(r))
		for c := m.c0; c < m.c1; c++ {
			m.dst[c*m.ld+r] = dotGeneric(s.row, m.a.F[c*n:(c+1)*n])
		}
	}
}

// exact multiplies quantised weights with float32 activations.
func (m *product) exact(l *level, s *Scratch) {
	n := m.a.N
	s.row = grow(s.row, n)
	for r := m.r0; r < m.r1; r++ {
		decodeRow(l, m.t, s.row, m.row(r))
		l.dots(m.dst[m.c0*m.ld+r:], m.ld, s.row, m.a.F[m.c0*n:m.c1*n], s)
	}
}

// dotsGeneric sets dst[c*ld] to the dot product of w and the c-th run of len(w) elements of x.
func dotsGeneric(dst []float32, ld int, w, x []float32, _ *Scratch) {
	n := len(w)
	for c := range len(x) / n {
		dst[c*ld] = dotGeneric(w, x[c*n:(c+1)*n])
	}
}

// dotGeneric is the float dot product: 16 accumulators by element index modulo 16, fused multiply-add, joined by halves.
func dotGeneric(w, x []float32) float32 {
	var acc [16]float32
	x = x[:len(w)]
	for i, v := range w {
		acc[i&15] = fmath.Fma(v, x[i], acc[i&15])
	}
	return join16(&acc)
}

func join16(a *[16]float32) float32 {
	for h := 8; h > 0; h /= 2 {
		for i := range h {
			a[i] += a[i+h]
		}
	}
	return a[0]
}

// widenGeneric decodes a row of a float type.
func widenGeneric(t gguf.Type, dst []float32, w []byte) {
	switch t {
	case gguf.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(w[4*i:]))
		}
	case gguf.F16:
		for i := range dst {
			dst[i] = half(w[2*i:])
		}
	case gguf.BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(w[2*i:])) << 16)
		}
	}
}

// DecodeRow sets dst to the float32 values of one row of weights of type t, w having exactly the bytes of len(dst)
// elements. Values are those of quant.
func DecodeRow(t gguf.Type, dst []float32, w []byte) {
	if b := t.BlockSize(); b == 0 || len(dst)%b != 0 || len(w) != t.RowBytes(len(dst)) {
		panicf("kernels: %d bytes of %s for %d elements", len(w), t, len(dst))
	}
	decodeRow(current(), t, dst, w)
}

func decodeRow(l *level, t gguf.Type, dst []float32, w []byte) {
	if int(t) < len(l.decode) {
		if f := l.decode[t]; f != nil {
			f(dst, w)
			return
		}
	}
	if err := quant.Decode(t, dst, w); err != nil {
		panic(err) // types and sizes were checked
	}
}
