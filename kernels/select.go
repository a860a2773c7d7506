package kernels

import (
	"math"

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

// selectBits is the number of bits of a key that one round of SelectTop looks at.
const selectBits = 11

// SelectTop appends to dst the places of the k largest scores, rising; among equals the first ones. Scores are neither
// negative nor NaN. With k scores or fewer it takes all.
func SelectTop(dst []int32, scores []float32, k int, s *Scratch) []int32 {
	if k >= len(scores) {
		for i := range scores {
			dst = append(dst, int32(i))
		}
		return dst
	}
	if k <= 0 {
		return dst
	}
	// The bits of such floats rise with their values. The k-th largest is found from the highest bits on: a histogram of
	// the next bits of all that agree so far says where it lies.
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
			break
		}
	}
	for i, v := range scores {
		switch u := math.Float32bits(v); {
		case u > prefix:
			dst = append(dst, int32(i))
		case u == prefix && left > 0:
			left--
			dst = append(dst, int32(i))
		}
	}
	return dst
}

// DecodeKV sets dst to the float32 values of elements that EncodeKV stored in b.
func DecodeKV(t compute.KVType, dst []float32, b []byte) {
	if len(dst)%t.Block() != 0 || len(b) < t.RowBytes(len(dst)) {
		panicf("kernels: %d elements of %s in %d bytes", len(dst), t, len(b))
	}
	widenKV(t, dst, b)
}
