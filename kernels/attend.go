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
	if heads < 1 || len(q)%heads != 0 || len(out)%heads != 0 {
		panicf("kernels: attention of %d heads with %d elements of queries and %d of results", heads, len(q), len(out))
	}
	checkAttention(len(out)/heads, len(q)/heads, kt, vt, k, v, kstride, vstride, first, n)
	s.attn = attention{out: out, q: q, heads: heads, kt: kt, vt: vt, k: k, v: v, kstride: kstride, vstride: vstride,
		first: first, n: n, scale: scale}
	current().attend(&s.attn, s)
	s.attn = attention{}
}

// checkAttention panics where heads of kd and vd elements cannot read n keys and values.
func checkAttention(vd, kd int, kt, vt compute.KVType, k, v []byte, kstride, vstride, first, n int) {
	if n < 1 || first < 0 || kd == 0 || vd == 0 || kd%kt.Block() != 0 || vd%vt.Block() != 0 {
		panicf("kernels: attention of %d keys from position %d, heads of %d and %d elements of %s and %s", n, first, kd, vd, kt, vt)
	}
	if need := (n-1)*kstride + kt.RowBytes(kd); kstride < 0 || len(k) < need {
		panicf("kernels: %d bytes of keys, attention reads %d", len(k), need)
	}
	if need := (n-1)*vstride + vt.RowBytes(vd); vstride < 0 || len(v) < need {
		panicf("kernels: %d bytes of values, attention reads %d", len(v), need)
	}
}

// attention is one call of AttendHeads, checked.
type attention struct {
	out, q           []float32
	heads            int
	kt, vt           compute.KVType
	k, v             []byte
	kstride, vstride int
	first, n         int
	scale            float32
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
		m.oneHead(m.out[h*vd:(h+1)*vd], m.q[h*kd:(h+1)*kd], s)
	}
}

// oneHead is the canonical order of attention.
func (m *attention) oneHead(out, q []float32, s *Scratch) {
	s.scores = grow(s.scores, attendBlock)
	s.row = grow(s.row, max(len(q), len(out)))
	clear(out)
	var f fold
	for i := 0; i < m.n; {
		nb := m.blockEnd(i)
		p := s.scores[:nb]
		key := s.row[:len(q)]
		top := float32(math.Inf(-1))
		for j := range p {
			widenKV(m.kt, key, m.k[(i+j)*m.kstride:])
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
			widenKV(m.vt, val, m.v[(i+j)*m.vstride:])
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
