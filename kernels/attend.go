package kernels

import (
	"encoding/binary"
	"math"

	"terrace/compute"
	"terrace/internal/fmath"
)

// attendBlock is the number of positions after which attention folds its scores; block borders are multiples of it.
const attendBlock = 64

// Attend sets out to the attention of one query head over n >= 1 keys at positions first..first+n-1: the sum of values
// weighted by softmax(scale * q.k). Key i (0 <= i < n) starts at byte i*kstride of k and has len(q) elements of type kt;
// value i starts at byte i*vstride of v and has len(out) elements of type vt. Elements of a quantised type are whole blocks.
//
// Order: positions in blocks of 64 by absolute position. Per block, scores are the float dot product times scale; M is
// the running maximum; when it rises, sum and out are multiplied by exp(old-new); weights exp(score-M) are summed in
// order from zero and added to the running sum; out_j = fma(weight, v_j, out_j) in order. At the end out is multiplied
// by the reciprocal of the sum. exp and the reciprocal are those of fmath. Keys and values are widened to float32 first,
// quantised ones as quant decodes them (scale times code, exact), so every type is the same arithmetic.
func Attend(out, q []float32, kt, vt compute.KVType, k, v []byte, kstride, vstride, first, n int, scale float32, s *Scratch) {
	AttendHeads(out, q, 1, kt, vt, k, v, kstride, vstride, first, n, scale, s)
}

// AttendHeads is Attend for heads query heads that read the same keys and values: q holds their len(q)/heads elements
// each, out their results, one head after the other. Each head gets the bits that Attend gives it. Keys and values are
// read, and quantised ones decoded, once for all heads.
func AttendHeads(out, q []float32, heads int, kt, vt compute.KVType, k, v []byte, kstride, vstride, first, n int, scale float32, s *Scratch) {
	a := Attention{Out: out, Q: q, Heads: heads, K: KVRun{kt, k, kstride}, V: KVRun{vt, v, vstride}, First: first, N: n, Scale: scale}
	a.Run(s)
}

// KVRun is where the keys or the values of one head lie: element i of the run begins at byte i*Stride of Data.
type KVRun struct {
	Type   compute.KVType
	Data   []byte
	Stride int
}

// Attention is AttendHeads with all that a layer may ask for.
type Attention struct {
	Out, Q   []float32
	Heads    int
	K, V     KVRun
	First, N int
	// Ring > 0, a multiple of 64 and at least N: the runs hold Ring positions, position p as element p modulo Ring.
	// 0: key i of the N is element i.
	Ring  int
	Scale float32
	// Sinks has a score for each head that joins its softmax as if it came before the first key, with a value of zeros and
	// not multiplied by Scale; nil: none.
	Sinks []float32
}

// Run computes the attention.
func (a *Attention) Run(s *Scratch) {
	if a.Heads < 1 || len(a.Q)%a.Heads != 0 || len(a.Out)%a.Heads != 0 {
		panicf("kernels: attention of %d heads with %d elements of queries and %d of results", a.Heads, len(a.Q), len(a.Out))
	}
	if a.Sinks != nil && len(a.Sinks) != a.Heads {
		panicf("kernels: %d sinks for %d heads", len(a.Sinks), a.Heads)
	}
	a.check()
	s.attn = attention{out: a.Out, q: a.Q, heads: a.Heads, kt: a.K.Type, vt: a.V.Type, k: a.K.Data, v: a.V.Data, kstride: a.K.Stride,
		vstride: a.V.Stride, first: a.First, n: a.N, ring: a.Ring, scale: a.Scale, sinks: a.Sinks}
	current().attend(&s.attn, s)
	s.attn = attention{}
}

// check panics where the heads cannot read that many keys and values.
func (a *Attention) check() {
	kd, vd, kt, vt := len(a.Q)/a.Heads, len(a.Out)/a.Heads, a.K.Type, a.V.Type
	if a.N < 1 || a.First < 0 || kd == 0 || vd == 0 || kd%kt.Block() != 0 || vd%vt.Block() != 0 {
		panicf("kernels: attention of %d keys from position %d, heads of %d and %d elements of %s and %s", a.N, a.First, kd, vd, kt, vt)
	}
	n := a.N
	if a.Ring != 0 {
		if a.Ring%attendBlock != 0 || a.Ring < a.N {
			panicf("kernels: attention of %d keys in a ring of %d", a.N, a.Ring)
		}
		n = a.Ring
	}
	if need := (n-1)*a.K.Stride + kt.RowBytes(kd); a.K.Stride < 0 || len(a.K.Data) < need {
		panicf("kernels: %d bytes of keys, attention reads %d", len(a.K.Data), need)
	}
	if need := (n-1)*a.V.Stride + vt.RowBytes(vd); a.V.Stride < 0 || len(a.V.Data) < need {
		panicf("kernels: %d bytes of values, attention reads %d", len(a.V.Data), need)
	}
}

// attention is one call of Run, checked.
type attention struct {
	out, q           []float32
	heads            int
	kt, vt           compute.KVType
	k, v             []byte
	kstride, vstride int
	first, n         int
	ring             int
	scale            float32
	sinks            []float32
}

// at is the element that key i lies in. A block's keys lie one after the other, since a ring is whole blocks.
func (m *attention) at(i int) int {
	if m.ring == 0 {
		return i
	}
	return (m.first + i) % m.ring
}

// begin is the state of head h's softmax before the first key.
func (m *attention) begin(h int) fold {
	if m.sinks == nil {
		return fold{}
	}
	return fold{max: m.sinks[h], sum: 1, any: true}
}

// headsAtOnce is how many query heads a vector kernel of attention takes at a time, where it takes several.
const headsAtOnce = 4

// headScratch is the memory of attention that is not attention's scores.
type headScratch struct {
	folds     []fold
	widened   []float32 // a block of keys or values, decoded
	top, sums [headsAtOnce]float32
}

// fold is the running state of an online softmax.
type fold struct {
	max, sum float32
	any      bool
}

// next takes the largest score of a block and returns the factor for what was summed before; 1 when nothing changes.
func (f *fold) next(top float32) (factor float32) {
	if !f.any {
		f.any, f.max = true, top
		return 1
	}
	if !(top > f.max) {
		return 1
	}
	factor = fmath.Exp(f.max - top)
	f.max = top
	f.sum = float32(f.sum * factor)
	return factor
}

// blockEnd returns how many of the keys from index i on share its block.
func (m *attention) blockEnd(i int) int {
	return min(m.n-i, attendBlock-(m.first+i)%attendBlock)
}

func attendGeneric(m *attention, s *Scratch) {
	kd, vd := len(m.q)/m.heads, len(m.out)/m.heads
	for h := range m.heads {
		m.oneHead(m.out[h*vd:(h+1)*vd], m.q[h*kd:(h+1)*kd], m.begin(h), s)
	}
}

// oneHead is the canonical order of attention.
func (m *attention) oneHead(out, q []float32, f fold, s *Scratch) {
	s.scores = grow(s.scores, attendBlock)
	s.row = grow(s.row, max(len(q), len(out)))
	clear(out)
	for i := 0; i < m.n; {
		nb, at := m.blockEnd(i), m.at(i)
		p := s.scores[:nb]
		key := s.row[:len(q)]
		top := float32(math.Inf(-1))
		for j := range p {
			widenKV(m.kt, key, m.k[(at+j)*m.kstride:])
			p[j] = float32(dotGeneric(key, q) * m.scale)
			if p[j] > top {
				top = p[j]
			}
		}
		if factor := f.next(top); factor != 1 {
			for j := range out {
				out[j] = float32(out[j] * factor)
			}
		}
		sum := float32(0)
		for j, x := range p {
			p[j] = fmath.Exp(x - f.max)
			sum += p[j]
		}
		f.sum += sum
		val := s.row[:len(out)]
		for j, w := range p {
			widenKV(m.vt, val, m.v[(at+j)*m.vstride:])
			for e, x := range val {
				out[e] = fmath.Fma(w, x, out[e])
			}
		}
		i += nb
	}
	inv := fmath.Recip(f.sum)
	for j := range out {
		out[j] = float32(out[j] * inv)
	}
}

// widenKV reads len(dst) elements of a KV cache.
func widenKV(t compute.KVType, dst []float32, b []byte) {
	switch t {
	case compute.KVF16:
		for i := range dst {
			dst[i] = half(b[2*i:])
		}
	case compute.KVF32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	default:
		decodeKV(t, dst, b)
	}
}
