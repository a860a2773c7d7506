package sample

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"terrace/internal/fmath"
)

// ErrBanned is what Next returns when no token is left to choose: every logit is -Inf.
var ErrBanned = errors.New("every token is banned")

// candidate is a token still in the running. key is what the heap orders by.
type candidate struct {
	id         int32
	logit, key float32
}

// before is the order of choice: higher key, then lower id. It is total, so nothing depends on how it is sorted.
func before(a, b candidate) bool { return a.key > b.key || a.key == b.key && a.id < b.id }

func compare(a, b candidate) int {
	if before(a, b) {
		return -1
	}
	return 1
}

// bias is a logit bias of one token.
type bias struct {
	id  int32
	add float32
}

// Sampler chooses the tokens of one sequence. It is not safe for concurrent use.
type Sampler struct {
	p     Params
	seed  int64
	steps []step
	// greedy: the best token wins, and no step in use could take it away before.
	greedy bool
	rng    *rand.Rand
	bias   []bias

	// The window of penalties: counts by id, the distinct ids, each one's place there plus 1, and the ring that tells
	// which token leaves (unused when the window has no end).
	counts, place []int32
	seen          []int32
	ring          []int32
	oldest        int

	logits []float32   // this step's, while dense
	dense  bool        // candidates are those of logits that are not -Inf; cands is not filled
	sorted bool        // cands are in order of logits
	cands  []candidate // the tokens left
	popped []candidate
	probs  []float32 // of cands, not normalised
	total  float64   // their sum at the draw
	before []float32 // probabilities before the adaptive step
	out    []Prob

	chosen int32 // by the last Next, -1 if there was none
	sure   bool  // without a draw

	dry      *dry // nil: off
	mirostat *mirostat
	adaptive *adaptive
}

// New checks p and makes a sampler. Next allocates nothing from its second call on.
func New(p Params) (*Sampler, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	s := &Sampler{p: p, seed: p.Seed, chosen: -1, dry: newDry(p)}
	if p.Seed == -1 || p.Seed == math.MaxUint32 {
		s.seed = int64(rand.Uint32N(math.MaxUint32)) // never the number that means random
	}
	// The generator is Go's PCG-DXSM: 128 bits of state, seeded with the seed and a constant (the digits of pi).
	s.rng = rand.New(rand.NewPCG(uint64(s.seed), 0x243f6a8885a308d3))
	names := p.Samplers
	if names == nil {
		names = DefaultSamplers()
	}
	for _, n := range names {
		s.steps = append(s.steps, stepNames[n])
	}
	switch {
	case p.Temp <= 0:
	case p.Mirostat > 0:
		s.mirostat = &mirostat{version: p.Mirostat, tau: p.MirostatTau, eta: p.MirostatEta, mu: 2 * p.MirostatTau, last: -1}
		// Penalties stay as they are; temperature comes next, named or not; there are no cuts.
		s.steps = slices.DeleteFunc(s.steps, func(st step) bool { return st != penalties && st != dryStep })
		s.steps = append(s.steps, temperature)
	case p.AdaptiveTarget > 0:
		s.adaptive = newAdaptive(p.AdaptiveTarget, p.AdaptiveDecay)
	}
	s.greedy = p.Temp <= 0 && (slices.Contains(s.steps, temperature) && p.TypicalP >= 1 && (p.XTCProbability <= 0 || p.XTCThreshold > 0.5) || p.Mirostat > 0)
	for _, id := range sortedKeys(p.LogitBias) {
		s.bias = append(s.bias, bias{id, p.LogitBias[id]})
	}
	if p.IgnoreEOS {
		for _, id := range p.EOG {
			s.bias = append(s.bias, bias{id, float32(math.Inf(-1))})
		}
	}
	if p.RepeatLastN != 0 {
		s.counts = make([]int32, p.Vocab)
		s.place = make([]int32, p.Vocab)
	}
	s.logits = make([]float32, p.Vocab)
	return s, nil
}

// Seed returns the seed in use: the one asked for, or the one chosen.
func (s *Sampler) Seed() int64 { return s.seed }

// Accept puts a token into the window of the penalties: those of the prompt first, then each chosen one, from which mirostat
// and the adaptive step learn.
// A token outside the vocabulary panics.
func (s *Sampler) Accept(id int32) {
	if id < 0 || int(id) >= s.p.Vocab {
		panic(fmt.Sprintf("sample: token %d accepted, the vocabulary has %d tokens", id, s.p.Vocab))
	}
	if s.dry != nil {
		s.dry.accept(id)
	}
	if s.mirostat != nil {
		s.mirostat.accept(id)
	}
	if s.adaptive != nil {
		s.adaptive.accept(id)
	}
	n := s.p.RepeatLastN
	if n == 0 {
		return
	}
	if n > 0 {
		if len(s.ring) < n {
			s.ring = append(s.ring, id)
		} else {
			s.forget(s.ring[s.oldest])
			s.ring[s.oldest] = id
			s.oldest = (s.oldest + 1) % n
		}
	}
	if s.counts[id]++; s.place[id] == 0 {
		s.seen = append(s.seen, id)
		s.place[id] = int32(len(s.seen))
	}
}

// forget takes one occurrence of id out of the window.
func (s *Sampler) forget(id int32) {
	if s.counts[id]--; s.counts[id] > 0 {
		return
	}
	at, last := s.place[id]-1, int32(len(s.seen)-1)
	moved := s.seen[last]
	s.seen[at] = moved
	s.place[moved] = at + 1
	s.seen = s.seen[:last]
	s.place[id] = 0
}

// Next chooses a token by logits, one float32 per token of the vocabulary, which it leaves as they are. Accept is for the
// caller to call. With Mirostat the steps are the penalties that are named, the temperature and mirostat itself, unless
// Temp <= 0. Errors: a logit that is NaN or +Inf, by token; ErrBanned. A slice of another length panics.
func (s *Sampler) Next(logits []float32) (int32, error) {
	s.chosen, s.sure = -1, false
	id, err := s.next(logits)
	if err == nil {
		s.chosen = id
	}
	return id, err
}

func (s *Sampler) next(logits []float32) (int32, error) {
	if len(logits) != s.p.Vocab {
		panic(fmt.Sprintf("sample: %d logits for a vocabulary of %d tokens", len(logits), s.p.Vocab))
	}
	for i, l := range logits {
		if !(l <= math.MaxFloat32) {
			return 0, fmt.Errorf("logit of token %d is %g", i, l)
		}
	}
	copy(s.logits, logits)
	for _, b := range s.bias {
		s.logits[b.id] = min(s.logits[b.id]+b.add, math.MaxFloat32)
	}
	s.dense, s.sorted = true, false
	for _, st := range s.steps {
		if s.greedy && st != penalties && st != dryStep && st != temperature {
			continue
		}
		switch st {
		case penalties:
			s.penalise()
		case dryStep:
			s.breakUp()
		case topNSigma:
			s.cutSigma()
		case topK:
			s.cutTopK()
		case typicalP:
			s.cutTypical()
		case topP:
			s.cutTopP()
		case minP:
			s.cutMinP()
		case xtc:
			s.dropTop()
		case temperature:
			if s.p.Temp <= 0 {
				return s.best()
			}
			s.scale(s.temperature())
		}
		if !s.dense && len(s.cands) == 0 {
			return 0, ErrBanned
		}
	}
	switch {
	case s.greedy:
		return s.best()
	case s.mirostat != nil:
		return s.mirostat.draw(s)
	case s.adaptive != nil:
		return s.adaptive.draw(s)
	}
	return s.draw()
}

// temperature is Temp, or with a range what the uncertainty makes of it: the entropy as a share of the largest possible.
func (s *Sampler) temperature() float32 {
	if s.p.DynatempRange <= 0 {
		return s.p.Temp
	}
	s.fill()
	low, high := max(0, s.p.Temp-s.p.DynatempRange), s.p.Temp+s.p.DynatempRange
	if len(s.cands) < 2 {
		return s.p.Temp
	}
	sum, top := s.weigh(), s.top()
	mean := 0.0
	for i, c := range s.cands {
		if s.probs[i] > 0 {
			mean += float64(float64(s.probs[i]) * float64(c.logit-top))
		}
	}
	share := max(0, min(1, (fmath.Log(sum)-mean/sum)/fmath.Log(float64(len(s.cands)))))
	if share > 0 {
		share = fmath.Pow(share, float64(s.p.DynatempExponent))
	} else if s.p.DynatempExponent == 0 {
		share = 1
	}
	return max(low+float32((high-low)*float32(share)), 1e-6) // of 0 the most probable tokens would be left
}

// breakUp is DRY.
func (s *Sampler) breakUp() {
	if s.dry == nil {
		return
	}
	s.dry.look()
	if len(s.dry.touched) == 0 {
		return
	}
	if s.dense {
		for _, id := range s.dry.touched {
			s.logits[id] -= s.dry.penalty(s.dry.longest[id])
		}
		return
	}
	s.sorted = false
	for i := range s.cands {
		if c := &s.cands[i]; s.dry.longest[c.id] > 0 {
			c.logit -= s.dry.penalty(s.dry.longest[c.id])
		}
	}
}

// fill makes candidates of the logits that are not -Inf.
func (s *Sampler) fill() {
	if !s.dense {
		return
	}
	s.dense = false
	s.cands = s.cands[:0]
	for i, l := range s.logits {
		if l >= -math.MaxFloat32 {
			s.cands = append(s.cands, candidate{id: int32(i), logit: l})
		}
	}
}

func (s *Sampler) penalty(l float32, count int32) float32 {
	if l <= 0 {
		l *= s.p.RepeatPenalty
	} else {
		l /= s.p.RepeatPenalty
	}
	l -= float32(float32(count) * s.p.FrequencyPenalty)
	return min(l-s.p.PresencePenalty, math.MaxFloat32)
}

func (s *Sampler) penalise() {
	if s.p.RepeatLastN == 0 || s.p.RepeatPenalty == 1 && s.p.FrequencyPenalty == 0 && s.p.PresencePenalty == 0 {
		return
	}
	if s.dense {
		for _, id := range s.seen {
			s.logits[id] = s.penalty(s.logits[id], s.counts[id])
		}
		return
	}
	s.sorted = false
	for i := range s.cands {
		if c := &s.cands[i]; s.counts[c.id] > 0 {
			c.logit = s.penalty(c.logit, s.counts[c.id])
		}
	}
}

// cutSigma keeps logits >= best - n * standard deviation.
func (s *Sampler) cutSigma() {
	if s.p.TopNSigma <= 0 {
		return
	}
	s.fill()
	if len(s.cands) < 2 {
		return
	}
	sum, top := 0.0, s.cands[0].logit
	for _, c := range s.cands {
		sum += float64(c.logit)
		top = max(top, c.logit)
	}
	mean := sum / float64(len(s.cands))
	square := 0.0
	for _, c := range s.cands {
		d := float64(c.logit) - mean
		square += float64(d * d)
	}
	low := top - float32(s.p.TopNSigma*float32(math.Sqrt(square/float64(len(s.cands)))))
	s.keep(func(c candidate) bool { return c.logit >= low })
}

// keep leaves the candidates that ok accepts, in their order.
func (s *Sampler) keep(ok func(candidate) bool) {
	n := 0
	for _, c := range s.cands {
		if ok(c) {
			s.cands[n] = c
			n++
		}
	}
	s.cands = s.cands[:n]
}

// heapMost is the largest k for which a heap of k beats a heap of the whole vocabulary.
const heapMost = 1024

func (s *Sampler) cutTopK() {
	k := s.p.TopK
	if k <= 0 {
		return
	}
	if !s.dense {
		s.order(min(k, len(s.cands)))
		s.cands = s.cands[:min(k, len(s.cands))]
		return
	}
	if k > heapMost {
		s.fill()
		s.order(min(k, len(s.cands)))
		s.cands = s.cands[:min(k, len(s.cands))]
		return
	}
	// A heap with the worst of the best k on top; ids come in rising order, so an equal logit never displaces one.
	s.dense = false
	h := s.cands[:0]
	for i, l := range s.logits {
		if len(h) == k && l <= h[0].key || !(l >= -math.MaxFloat32) {
			continue
		}
		c := candidate{id: int32(i), logit: l, key: l}
		if len(h) < k {
			h = append(h, c)
			for j := len(h) - 1; j > 0; {
				up := (j - 1) / 2
				if !before(h[up], h[j]) {
					break
				}
				h[up], h[j] = h[j], h[up]
				j = up
			}
			continue
		}
		h[0] = c
		for j := 0; ; {
			worst := j
			for _, d := range [2]int{2*j + 1, 2*j + 2} {
				if d < k && before(h[worst], h[d]) {
					worst = d
				}
			}
			if worst == j {
				break
			}
			h[j], h[worst] = h[worst], h[j]
			j = worst
		}
	}
	slices.SortFunc(h, compare)
	s.cands, s.sorted = h, true
}

// order brings the first n candidates into the order of logits; the rest follow in no order.
func (s *Sampler) order(n int) {
	if s.sorted {
		return
	}
	for i := range s.cands {
		s.cands[i].key = s.cands[i].logit
	}
	s.pop(func(got []candidate) bool { return len(got) < n })
	s.sorted = n >= len(s.cands)
}

// pop takes candidates off by their keys, best first, for as long as more says so; cands are then those in their order,
// followed by the rest.
func (s *Sampler) pop(more func(got []candidate) bool) int {
	h := s.cands
	for i := len(h)/2 - 1; i >= 0; i-- {
		sift(h, i)
	}
	s.popped = s.popped[:0]
	for len(h) > 0 && more(s.popped) {
		s.popped = append(s.popped, h[0])
		last := len(h) - 1
		h[0] = h[last]
		h = h[:last]
		sift(h, 0)
	}
	n := len(s.popped)
	copy(s.cands[n:], h) // h is the front of cands, so the copy may overlap: copy handles that
	copy(s.cands, s.popped)
	return n
}

// sift restores the heap below i: the best candidate on top.
func sift(h []candidate, i int) {
	for {
		top := i
		for _, d := range [2]int{2*i + 1, 2*i + 2} {
			if d < len(h) && before(h[d], h[top]) {
				top = d
			}
		}
		if top == i {
			return
		}
		h[i], h[top] = h[top], h[i]
		i = top
	}
}

// weigh fills probs with exp(logit - best) and returns their sum, added in the order of the candidates.
func (s *Sampler) weigh() float64 {
	top := s.cands[0].logit
	for _, c := range s.cands {
		top = max(top, c.logit)
	}
	s.probs = s.probs[:0]
	sum := 0.0
	for _, c := range s.cands {
		p := fmath.Exp(c.logit - top)
		s.probs = append(s.probs, p)
		sum += float64(p)
	}
	return sum
}

func (s *Sampler) cutTopP() {
	if s.p.TopP >= 1 {
		return
	}
	s.fill()
	if len(s.cands) == 0 {
		return
	}
	want := float64(float64(s.p.TopP) * s.weigh())
	top := s.top()
	least := max(s.p.MinKeep, 1)
	got := 0.0
	if s.sorted {
		for i := range s.cands {
			if got += float64(s.probs[i]); got >= want && i+1 >= least {
				s.cands = s.cands[:i+1]
				break
			}
		}
		return
	}
	for i := range s.cands {
		s.cands[i].key = s.cands[i].logit
	}
	n := s.pop(func(have []candidate) bool {
		if len(have) > 0 {
			got += float64(fmath.Exp(have[len(have)-1].logit - top))
		}
		return len(have) < least || got < want
	})
	s.cands, s.sorted = s.cands[:n], true
}

// top is the highest logit among the candidates.
func (s *Sampler) top() float32 {
	t := s.cands[0].logit
	for _, c := range s.cands {
		t = max(t, c.logit)
	}
	return t
}

func (s *Sampler) cutMinP() {
	if s.p.MinP <= 0 {
		return
	}
	s.fill()
	if len(s.cands) == 0 {
		return
	}
	if least := min(s.p.MinKeep, len(s.cands)); least > 1 {
		s.order(least)
		top := s.cands[0].logit
		i := 0
		s.keep(func(c candidate) bool {
			i++
			return i <= least || fmath.Exp(c.logit-top) >= s.p.MinP
		})
		return
	}
	top := s.top()
	s.keep(func(c candidate) bool { return fmath.Exp(c.logit-top) >= s.p.MinP })
}

// cutTypical keeps the tokens whose surprise is closest to the expected one until their probabilities exceed p. With
// d = logit - best, surprise is log(sum) - d and its expectation log(sum) - E[d]: the difference needs no logarithm.
func (s *Sampler) cutTypical() {
	if s.p.TypicalP >= 1 {
		return
	}
	s.fill()
	if len(s.cands) == 0 {
		return
	}
	sum := s.weigh()
	top := s.top()
	mean := 0.0
	for i, c := range s.cands {
		if s.probs[i] > 0 {
			mean += float64(float64(s.probs[i]) * float64(c.logit-top))
		}
	}
	mean /= sum
	for i := range s.cands {
		c := &s.cands[i]
		c.key = -float32(math.Abs(float64(c.logit-top) - mean))
	}
	want := float64(float64(s.p.TypicalP) * sum)
	least := max(s.p.MinKeep, 1)
	got := 0.0
	n := s.pop(func(have []candidate) bool {
		if len(have) > 0 {
			got += float64(fmath.Exp(have[len(have)-1].logit - top))
		}
		return len(have) < least || got <= want
	})
	s.cands, s.sorted = s.cands[:n], false
}

// dropTop is XTC: with the given chance, of the tokens at or above the threshold only the least probable stays.
func (s *Sampler) dropTop() {
	if s.p.XTCProbability <= 0 || s.p.XTCThreshold > 0.5 {
		return
	}
	s.fill()
	if len(s.cands) < 2 || s.rng.Float64() >= float64(s.p.XTCProbability) {
		return
	}
	low := float64(float64(s.p.XTCThreshold) * s.weigh())
	above, least := 0, -1
	for i, c := range s.cands {
		if float64(s.probs[i]) < low {
			continue
		}
		above++
		if least < 0 || c.logit < s.cands[least].logit || c.logit == s.cands[least].logit && c.id > s.cands[least].id {
			least = i
		}
	}
	if above < 2 || len(s.cands)-above+1 < s.p.MinKeep {
		return
	}
	i := -1
	stays := s.cands[least].id
	s.keep(func(c candidate) bool {
		i++
		return float64(s.probs[i]) < low || c.id == stays
	})
}

func (s *Sampler) scale(temp float32) {
	s.fill()
	if len(s.cands) == 0 {
		return
	}
	base := float32(0)
	if top := s.top(); !(float32(math.Abs(float64(top/temp))) <= math.MaxFloat32) {
		base = top // so small a temperature: only differences still have a meaning
	}
	for i := range s.cands {
		s.cands[i].logit = (s.cands[i].logit - base) / temp
	}
}

// best gives the token of the highest logit, of equal ones the lowest id.
func (s *Sampler) best() (int32, error) {
	s.sure = true
	if s.dense {
		at := 0
		for i, l := range s.logits {
			if l > s.logits[at] {
				at = i
			}
		}
		if !(s.logits[at] >= -math.MaxFloat32) {
			return 0, ErrBanned
		}
		return int32(at), nil
	}
	b := s.cands[0]
	for _, c := range s.cands[1:] {
		if c.logit > b.logit || c.logit == b.logit && c.id < b.id {
			b = c
		}
	}
	return b.id, nil
}

// draw picks a candidate by its probability, with one number of the generator.
func (s *Sampler) draw() (int32, error) {
	s.fill()
	if len(s.cands) == 0 {
		return 0, ErrBanned
	}
	s.total = s.weigh()
	at := float64(s.rng.Float64() * s.total)
	for i, p := range s.probs {
		if at -= float64(p); at < 0 {
			return s.cands[i].id, nil
		}
	}
	for i := len(s.probs) - 1; i >= 0; i-- { // rounding left a crumb: the last token that can be drawn
		if s.probs[i] > 0 {
			return s.cands[i].id, nil
		}
	}
	return s.cands[len(s.cands)-1].id, nil
}
