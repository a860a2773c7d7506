package sample

import (
	"math"

	"terrace/internal/fmath"
)

// Prob is a token and its probability.
type Prob struct {
	ID int32
	P  float32
}

// Probs gives the probabilities of the last Next after all steps: the Params.Probs most probable of the tokens that were
// left, best first, and the chosen one at the end if it is not among them. They are valid until the next call. It is empty
// if Params.Probs is 0. A greedy choice is certain.
func (s *Sampler) Probs() []Prob {
	s.out = s.out[:0]
	n := s.p.Probs
	if n <= 0 || s.chosen < 0 {
		return s.out
	}
	if s.sure {
		s.out = append(s.out, Prob{s.chosen, 1})
		return s.out
	}
	chosen := Prob{s.chosen, float32(s.chance(s.chosen))}
	top := s.top()
	s.order(min(n, len(s.cands)))
	found := false
	for _, c := range s.cands[:min(n, len(s.cands))] {
		s.out = append(s.out, Prob{c.id, float32(float64(fmath.Exp(c.logit-top)) / s.total)})
		found = found || c.id == s.chosen
	}
	if !found {
		s.out = append(s.out, chosen)
	}
	return s.out
}

// chance is the probability of a candidate at the last draw.
func (s *Sampler) chance(id int32) float64 {
	top := s.top()
	for _, c := range s.cands {
		if c.id == id {
			return float64(fmath.Exp(c.logit-top)) / s.total
		}
	}
	return 0
}

// Greedy tells that Next gives the token of the highest logit, penalties included, and draws nothing.
func (s *Sampler) Greedy() bool { return s.greedy }

// Sure tells that id was chosen without Next, because there was no choice; Probs then says so.
func (s *Sampler) Sure(id int32) { s.chosen, s.sure = id, true }

// Logprob is a token and the logarithm of its probability; one that cannot come has the lowest finite float32.
type Logprob struct {
	ID      int32
	Logprob float64
}

// LogSum is the logarithm of the sum of the exponentials of logits: a token's log probability is its logit less that.
// The sum is in float64 and in the order of the tokens. It is -Inf if every logit is.
func LogSum(logits []float32) float64 {
	top := float32(math.Inf(-1))
	for _, l := range logits {
		top = max(top, l)
	}
	if !(top >= -math.MaxFloat32) {
		return math.Inf(-1)
	}
	sum := 0.0
	for _, l := range logits {
		sum += float64(fmath.Exp(l - top))
	}
	return float64(top) + fmath.Log(sum)
}

// TopLogprobs appends the n most probable tokens to dst, best first, of equal ones the lower id first, and then the tokens
// of more, by the raw softmax of logits.
func TopLogprobs(dst []Logprob, logits []float32, n int, more ...int32) []Logprob {
	sum := LogSum(logits)
	value := func(id int32) Logprob {
		v := float64(logits[id]) - sum
		if !(v >= -math.MaxFloat32) {
			v = -math.MaxFloat32
		}
		return Logprob{id, v}
	}
	n = min(n, len(logits))
	from := len(dst)
	for id := range int32(len(logits)) {
		got := dst[from:]
		if n <= 0 || len(got) == n && !(logits[id] > logits[got[n-1].ID]) {
			continue
		}
		at := len(got)
		for at > 0 && logits[id] > logits[got[at-1].ID] {
			at--
		}
		if len(got) < n {
			dst = append(dst, Logprob{})
			got = dst[from:]
		}
		copy(got[at+1:], got[at:])
		got[at] = Logprob{ID: id}
	}
	for i := range dst[from:] {
		dst[from+i] = value(dst[from+i].ID)
	}
	for _, id := range more {
		dst = append(dst, value(id))
	}
	return dst
}
