package sample

import (
	"math"

	"terrace/internal/fmath"
)

// The samplers of this file draw the token themselves and learn from it.

// surprise is the base-2 logarithm of 1/p.
func surprise(p float64) float32 {
	return float32(-fmath.Log(max(p, math.SmallestNonzeroFloat32)) * math.Log2E)
}

// mirostat keeps the surprise of the drawn tokens at tau: mu is the largest surprise allowed, moved after each draw.
type mirostat struct {
	version  int
	tau, eta float32
	mu       float32
	last     int32 // the token drawn last, -1 once it has been learnt from
	seen     float32
}

// mirostatTop is the number of tokens from which version 1 estimates how the vocabulary is distributed.
const mirostatTop = 100

// draw cuts the candidates and draws one.
func (m *mirostat) draw(s *Sampler) (int32, error) {
	s.fill()
	if len(s.cands) == 0 {
		return 0, ErrBanned
	}
	if m.version == 1 {
		n := m.count(s)
		s.order(n)
		s.cands = s.cands[:n]
	} else {
		// The first that is too surprising, and all behind it, go; one stays.
		sum, top := s.weigh(), s.top()
		least := float64(sum * pow2(-m.mu))
		s.keep(func(c candidate) bool { return float64(fmath.Exp(c.logit-top)) >= least || c.logit == top })
		s.sorted = false
	}
	id, err := s.draw()
	if err == nil {
		m.last, m.seen = id, surprise(s.chance(id))
	}
	return id, err
}

func pow2(x float32) float64 { return fmath.Pow(2, max(-90, min(90, float64(x)))) }

// count is how many of the most probable tokens version 1 keeps, from an estimate of Zipf's exponent.
func (m *mirostat) count(s *Sampler) int {
	n := min(mirostatTop, len(s.cands))
	s.order(n)
	num, den := 0.0, 0.0
	for i := range n - 1 {
		t := fmath.Log(float64(i+2) / float64(i+1))
		b := float64(s.cands[i].logit) - float64(s.cands[i+1].logit)
		num += float64(t * b)
		den += float64(t * t)
	}
	if !(den > 0) || !(num > 0) {
		return len(s.cands)
	}
	zipf := num / den
	eps := zipf - 1
	k := float64(eps*pow2(m.mu)) / (1 - fmath.Pow(float64(s.p.Vocab), -eps))
	if !(k > 0) {
		return 1
	}
	k = fmath.Pow(k, 1/zipf)
	switch {
	case !(k >= 1):
		return 1
	case k >= float64(len(s.cands)):
		return len(s.cands)
	}
	return int(k)
}

func (m *mirostat) accept(id int32) {
	if id == m.last {
		m.mu -= float32(m.eta * (m.seen - m.tau))
		m.last = -1
	}
}

// adaptive draws tokens of about the probability target: a token's logit falls with its distance from what makes the
// weighted mean of the probabilities drawn so far the target.
type adaptive struct {
	target, decay float32
	sum, weight   float64 // of the probabilities drawn, the older the less
	last          int32
	seen          float64
}

// The shape of the preference: its width, its height and how steeply it falls.
const (
	adaptiveWidth = 0.3
	adaptivePeak  = 5
	adaptiveSteep = 10
)

func newAdaptive(target, decay float32) *adaptive {
	rest := 1 - float64(decay)
	return &adaptive{target: target, decay: decay, sum: float64(target) / rest, weight: 1 / rest, last: -1}
}

func (a *adaptive) draw(s *Sampler) (int32, error) {
	s.fill()
	if len(s.cands) == 0 {
		return 0, ErrBanned
	}
	sum := s.weigh()
	want := max(0, min(1, 2*float64(a.target)-a.sum/a.weight))
	s.before = s.before[:0]
	for i := range s.cands {
		p := float64(s.probs[i]) / sum
		s.before = append(s.before, float32(p))
		d := math.Abs(p-want) / adaptiveWidth
		s.cands[i].logit = float32(adaptivePeak - float64(adaptiveSteep*d*d)/(1+d))
	}
	s.sorted = false
	id, err := s.draw()
	if err == nil {
		a.last = id
		for i, c := range s.cands {
			if c.id == id {
				a.seen = float64(s.before[i])
			}
		}
	}
	return id, err
}

func (a *adaptive) accept(id int32) {
	if id == a.last {
		a.sum = a.seen + float64(float64(a.decay)*a.sum)
		a.weight = 1 + float64(float64(a.decay)*a.weight)
		a.last = -1
	}
}
