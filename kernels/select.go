package kernels

import (
	"math"
	"slices"

	"terrace/compute"
)

// IndexScores sets dst[i] to the sum over heads h of max(0, q[h].key[i]) for the len(dst) keys that begin at bytes i*stride
// of keys, elements of type t, float16 or float32; q holds the heads' queries one after the other. Products are the float
// dot product; what is positive is summed in the order of the heads, from zero, so that a score is never negative nor NaN.
func IndexScores(dst, q []float32, heads int, t compute.KVType, keys []byte, stride int, s *Scratch) {
	if heads < 1 || len(q) == 0 || len(q)%heads != 0 || t != compute.KVF16 && t != compute.KVF32 {
		panicf("kernels: IndexScores of %d heads with %d elements of queries against keys of %s", heads, len(q), t)
	}
	if need := (len(dst)-1)*stride + t.RowBytes(len(q)/heads); len(dst) > 0 && (stride < 0 || len(keys) < need) {
		panicf("kernels: %d bytes of index keys, IndexScores reads %d", len(keys), need)
	}
	if len(dst) > 0 {
		s.attn = attention{out: dst, q: q, heads: heads, kt: t, k: keys, kstride: stride}
		current().index(&s.attn, s)
		s.attn = attention{}
	}
}

func indexGeneric(m *attention, s *Scratch) {
	d := len(m.q) / m.heads
	s.row = grow(s.row, d)
	for i := range m.out {
		widenKV(m.kt, s.row, m.k[i*m.kstride:])
		sum := float32(0)
		for h := range m.heads {
			if p := dotGeneric(s.row, m.q[h*d:(h+1)*d]); p > 0 {
				sum += p
			}
		}
		m.out[i] = sum
	}
}

// Picked says which positions block-sparse attention sees: with len(scores) whole blocks of Block positions and Tail more
// behind them, the Keep positions with the largest scores, those of the tail before all others.
//
// Keep is seldom a whole number of blocks, and then, as among blocks of equal score, it has to be said which of the equal
// positions are taken. They are those that stay in a heap of Keep positions through which all go in order: the heap and its
// steps are those of std::partial_sort in GNU's library, because llama.cpp on a CPU selects so.
type Picked struct {
	Block, Tail, Keep int
}

// tailScore is larger than the score of any block.
const tailScore = 1e9

// Runs appends the positions to dst as runs. Scores are neither negative nor NaN.
func (x *Picked) Runs(dst []Run, scores []float32, s *Scratch) []Run {
	b, whole := x.Block, len(scores)
	all := whole*b + x.Tail
	if x.Keep >= all {
		return append(dst, Run{N: int32(all)})
	}
	need := x.Keep - x.Tail // positions of whole blocks
	if need < 1 {
		panicf("kernels: %d positions of which %d are a tail", x.Keep, x.Tail)
	}
	border, above, equal := s.largest(scores, (need+b-1)/b)
	rest := need - above*b // positions of the blocks at the border
	var some []int32
	if rest < equal*b {
		some = x.tied(scores, border, s)
	}
	for i, v := range scores {
		switch {
		case v > border || v == border && some == nil:
			dst = addRun(dst, int32(i*b), int32(b))
		case v == border:
			for len(some) > 0 && int(some[0])/b == i {
				dst = addRun(dst, some[0], 1)
				some = some[1:]
			}
		}
	}
	if x.Tail > 0 {
		dst = addRun(dst, int32(whole*b), int32(x.Tail))
	}
	return dst
}

// addRun adds n positions from first on to runs.
func addRun(runs []Run, first, n int32) []Run {
	if i := len(runs) - 1; i >= 0 && runs[i].First+runs[i].N == first {
		runs[i].N += n
		return runs
	}
	return append(runs, Run{first, n})
}

// selectBits is the number of bits of a score that one round of largest looks at.
const selectBits = 11

// largest finds the k-th largest score, how many are larger and how many are equal. The bits of such floats rise with
// their values; the k-th largest is found from the highest bits on: a histogram of the next bits of all that agree so far
// says where it lies.
func (s *Scratch) largest(scores []float32, k int) (value float32, above, equal int) {
	s.counts = grow(s.counts, 1<<selectBits)
	prefix, mask, left := uint32(0), uint32(0), int32(k)
	for shift := 32 - selectBits; ; shift = max(shift-selectBits, 0) {
		clear(s.counts)
		for _, v := range scores {
			if u := math.Float32bits(v); u&mask == prefix {
				s.counts[u>>shift&(1<<selectBits-1)]++
			}
		}
		b := int32(1<<selectBits - 1)
		for ; s.counts[b] < left; b-- {
			left -= s.counts[b]
		}
		prefix = prefix&^((1<<selectBits-1)<<shift) | uint32(b)<<shift
		mask |= (1<<selectBits - 1) << shift
		if shift == 0 {
			return math.Float32frombits(prefix), k - int(left), int(s.counts[b])
		}
	}
}

// candidate is a position in the heap of tied.
type candidate struct {
	score float32
	at    int32
}

// tied lists the positions with the score border that are taken, rising.
func (x *Picked) tied(scores []float32, border float32, s *Scratch) []int32 {
	b, n := x.Block, x.Keep
	if cap(s.heap) < n {
		s.heap = make([]candidate, n)
	}
	h := s.heap[:n]
	for i := range h {
		h[i] = candidate{tailScore, int32(i)}
		if i/b < len(scores) {
			h[i].score = scores[i/b]
		}
	}
	for i := n/2 - 1; i >= 0; i-- {
		sink(h, i, h[i])
	}
	enter := func(i int, v float32) {
		if v > h[0].score {
			sink(h, 0, candidate{v, int32(i)})
		}
	}
	i := n
	for ; i%b != 0 && i < len(scores)*b; i++ {
		enter(i, scores[i/b])
	}
	for ; i < len(scores)*b; i += b {
		if v := scores[i/b]; v > h[0].score {
			for j := range b {
				enter(i+j, v)
			}
		}
	}
	for ; i < len(scores)*b+x.Tail; i++ {
		enter(i, tailScore)
	}
	s.places = s.places[:0]
	for _, c := range h {
		if c.score == border {
			s.places = append(s.places, c.at)
		}
	}
	slices.Sort(s.places)
	return s.places
}

// sink puts c at place i of a heap whose smallest score is on top, or below it: the hole goes down along the smaller of the
// two children, the second where they are equal, to the end, and then c goes up while what is above is larger.
func sink(h []candidate, i int, c candidate) {
	n, top := len(h), i
	for i < (n-1)/2 {
		k := 2*i + 2
		if h[k].score > h[k-1].score {
			k--
		}
		h[i] = h[k]
		i = k
	}
	if n%2 == 0 && i == n/2-1 { // one child
		h[i] = h[2*i+1]
		i = 2*i + 1
	}
	for i > top {
		up := (i - 1) / 2
		if !(h[up].score > c.score) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
}

// DecodeKV sets dst to the float32 values of elements that EncodeKV stored in b.
func DecodeKV(t compute.KVType, dst []float32, b []byte) {
	if len(dst)%t.Block() != 0 || len(b) < t.RowBytes(len(dst)) {
		panicf("kernels: %d elements of %s in %d bytes", len(dst), t, len(b))
	}
	widenKV(t, dst, b)
}
