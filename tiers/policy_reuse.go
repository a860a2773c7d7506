package tiers

// reuse scores an expert by how often its layer will soon want it again, learned while the model runs.
//
// For each expert a handful of numbers is kept: how often its layer wanted it lately, at several speeds of forgetting,
// and how often it was wanted right after the experts that its layer has just used (the follow table, which learns the
// habits of the text at hand). The score is a weighted sum of them. The weights are shared by all layers and fitted by
// least squares to what came: every sampleVisits visits a layer's numbers are kept, and when the uses that follow are
// known, both go into the sums of the fit.
//
// Everything is additions, multiplications and divisions in a fixed order, so that two runs evict alike on any machine.
// One visit costs (experts used + speeds) x experts of the layer, a microsecond at 128 experts and 8 used; nothing is
// allocated.
//
// Figures, and what was tried beside it: bench/results, RATIONALE.md.
type reuse struct {
	topK    int
	layers  []reuseLayer
	without ReuseParts

	weights [reuseInputs]float64
	gram    [reuseInputs][reuseInputs]float64 // sums of products of inputs; the lower triangle
	moments [reuseInputs]float64              // sums of inputs times outcome
	samples int                               // layers' samples since the last fit

	// keeps says how far the outcome looks ahead: a use one visit later counts so much less. A cache that turns over
	// within a token should know the next visit, a larger one what is wanted for long.
	keeps float32
	idle  bool // everything fits, so that nothing ever leaves: only some visits count, in case that changes
}

// ReuseParts names parts of the policy that a simulation may leave out.
type ReuseParts uint8

// The parts, to be joined by |.
const (
	ReuseFollow ReuseParts = 1 << iota // which experts follow which
	ReuseTurns                         // when a layer's turn comes
	ReuseFit                           // fitting the weights
)

// The inputs of the score: use in the last visit, use at the speeds of forgets, use after the present experts, and 1.
const (
	reuseSpeeds = 6
	reuseFollow = reuseSpeeds
	reuseOne    = reuseSpeeds + 1
	reuseInputs = reuseSpeeds + 2
)

// forgets is the share of the past that a visit of the layer replaces.
var forgets = [reuseSpeeds]float32{1, 1. / 8, 1. / 32, 1. / 128, 1. / 512, 1. / 2048}

// slowSpeed is the first of forgets that a long prompt changes.
const slowSpeed = 3

const (
	followForgets = 1. / 32 // as forgets, for a row of the follow table, when its expert is used
	seedVisits    = 64      // visits that earlier runs count for
	followPrior   = 2       // uses that the even prior of a row counts for

	sampleVisits = 8      // visits of a layer that are one sample of the fit
	restShare    = 64     // a layer rests between samples, for 1/64 of the visits it has seen,
	restMost     = 24     // and at most so many
	idleVisits   = 8      // of so many visits one counts while everything fits
	longestKeeps = 3. / 4 // see reuse.keeps
	fitKeeps     = 1 - 1./256
	fitPrior     = 8 // how firmly the weights stand before anything was learned, in squared inputs
)

// reusePrior are the weights before anything was learned, about what the demo model's trace teaches.
var reusePrior = [reuseInputs]float64{0.03, 0.15, 0.2, 0.25, 0, 0, 0.35, 0}

type reuseLayer struct {
	experts int
	visits  int
	inputs  [reuseFollow + 1][]float32
	scores  []float64

	follow []float32 // [f*experts + e]: sum of weights of f's uses that e followed
	sum    []float32 // by f: sum of weights
	weight []float32 // by f: weight of the next use; grows, so that older ones count less
	last   []int32   // experts of the last visit; empty when that does not say what came before

	skipped int // visits since the last one that counted, while idle
	rest    int // visits until the next sample
	age     int // visits since the sample was taken, -1: none
	sample  [reuseFollow + 1][]float32
	outcome []float32
	factor  float32 // what a use now adds to the outcome
}

func newReuse(sizes []int, topK int) *reuse {
	p := &reuse{topK: topK, layers: make([]reuseLayer, len(sizes)), weights: reusePrior}
	for i := range p.layers {
		l := &p.layers[i]
		n := sizes[i]
		l.experts, l.age = n, -1
		l.scores = make([]float64, n)
		l.outcome = make([]float32, n)
		for k := range l.inputs {
			l.inputs[k], l.sample[k] = make([]float32, n), make([]float32, n)
		}
		l.follow, l.sum, l.weight = make([]float32, n*n), make([]float32, n), make([]float32, n)
		l.last = make([]int32, 0, 2*topK)
		if n == 0 {
			continue
		}
		even := float32(min(topK, n)) / float32(n)
		for f := range n {
			l.sum[f], l.weight[f] = followPrior, 1
			for e := range n {
				l.follow[f*n+e] = float32(followPrior * even)
			}
		}
		for k := range l.inputs {
			for e := range n {
				l.inputs[k][e] = even
			}
		}
	}
	return p
}

// capacity sets the outcome's reach: a cache that holds the experts of x tokens looks about x visits ahead.
func (p *reuse) capacity(slots int) {
	token := p.topK * len(p.layers)
	p.keeps = min(max(1-float32(token)/float32(max(slots, 1)), 0), longestKeeps)
	total := 0
	for i := range p.layers {
		total += p.layers[i].experts
	}
	p.idle = slots >= total
}

// seed takes earlier use as what seedVisits visits would have taught.
func (p *reuse) seed(layer int, use []float32) {
	l := &p.layers[layer]
	l.visits = max(l.visits, seedVisits)
	for k := 1; k < len(l.inputs); k++ {
		copy(l.inputs[k], use)
	}
	clear(l.inputs[0])
	l.last, l.age = l.last[:0], -1
	for f := range l.experts {
		l.sum[f], l.weight[f] = followPrior, 1
		for e, u := range use {
			l.follow[f*l.experts+e] = float32(followPrior * u)
		}
	}
	for e := range l.scores {
		l.scores[e] = p.weights[reuseOne]
	}
	for k := range l.inputs {
		p.addInput(l, k)
	}
}

func (p *reuse) visit(layer int, experts []int32) {
	l := &p.layers[layer]
	if len(experts) == 0 {
		return
	}
	// More experts than a few tokens choose are those of a prompt: each counts as its share of one token's uses, and
	// nothing follows them. When they are most of the layer's, how many they are tells little and must not make experts
	// of one layer better than those of another; that the prompt did not use an expert only counts in the long run.
	share, sweep, fastest := float32(1), len(experts) > 2*p.topK, 0
	switch {
	case 2*len(experts) > l.experts && sweep:
		share, fastest = float32(p.topK)/float32(l.experts), slowSpeed
	case len(experts) > p.topK:
		share = float32(p.topK) / float32(len(experts))
	}
	if p.idle {
		if l.skipped++; l.skipped < idleVisits {
			return
		}
		l.skipped, l.age, l.last = 0, -1, l.last[:0]
	}
	l.visits++
	p.observe(l, experts, share, sweep)
	for e := range l.scores {
		l.scores[e] = p.weights[reuseOne]
	}
	p.forget(l, experts, share, fastest)
	p.follows(l, experts, sweep)

	if l.age < 0 && !sweep && !p.idle {
		if l.rest--; l.rest > 0 {
			return
		}
		for k := range l.inputs {
			copy(l.sample[k], l.inputs[k])
		}
		clear(l.outcome)
		l.age, l.factor = 0, 1-p.keeps
	}
}

// forget brings the uses at each speed from fastest on up to date and adds the parts of all speeds to the scores.
func (p *reuse) forget(l *reuseLayer, experts []int32, share float32, fastest int) {
	if fastest == 0 { // the last visit alone is mostly zeros
		in, w := l.inputs[0], float64(p.weights[0]*float64(share))
		clear(in)
		for _, e := range experts {
			in[e] = share
			l.scores[e] += w
		}
	}
	for k := range fastest {
		p.addInput(l, k)
	}
	for k := max(fastest, 1); k < reuseSpeeds; k++ {
		rate := max(forgets[k], 1/float32(l.visits+1))
		in := l.inputs[k]
		scores := l.scores[:len(in)]
		keep, w := 1-rate, p.weights[k]
		for e, x := range in {
			x = float32(x * keep)
			in[e] = x
			scores[e] += float64(w * float64(x))
		}
		add := float32(rate * share)
		w = float64(w * float64(add))
		for _, e := range experts {
			in[e] += add
			scores[e] += w
		}
	}
}

// follows notes that experts came after the last visit's, asks the table what comes after them and adds that to the
// scores.
func (p *reuse) follows(l *reuseLayer, experts []int32, sweep bool) {
	n, out := l.experts, l.inputs[reuseFollow]
	if sweep || p.idle || p.without&ReuseFollow != 0 {
		l.last = l.last[:0]
		copy(out, l.inputs[2])
	} else {
		for _, f := range l.last {
			row, w := l.follow[int(f)*n:][:n], l.weight[f]
			for _, e := range experts {
				row[e] += w
			}
			l.sum[f] += w
			l.weight[f] = float32(w * (1 / (1 - followForgets)))
			if l.weight[f] > 1<<20 {
				for e := range row {
					row[e] *= 1. / (1 << 20)
				}
				l.sum[f] *= 1. / (1 << 20)
				l.weight[f] *= 1. / (1 << 20)
			}
		}
		l.last = append(l.last[:0], experts...)
		clear(out)
		count := float32(len(experts))
		i := 0
		for ; i+4 <= len(experts); i += 4 { // four rows at a time: out is the slower half of the work
			f0, f1, f2, f3 := int(experts[i]), int(experts[i+1]), int(experts[i+2]), int(experts[i+3])
			r0, r1, r2, r3 := l.follow[f0*n:][:len(out)], l.follow[f1*n:][:len(out)], l.follow[f2*n:][:len(out)], l.follow[f3*n:][:len(out)]
			s0, s1, s2, s3 := 1/float32(l.sum[f0]*count), 1/float32(l.sum[f1]*count), 1/float32(l.sum[f2]*count), 1/float32(l.sum[f3]*count)
			for e := range out {
				out[e] += (float32(r0[e]*s0) + float32(r1[e]*s1)) + (float32(r2[e]*s2) + float32(r3[e]*s3))
			}
		}
		for ; i < len(experts); i++ {
			f := int(experts[i])
			row, s := l.follow[f*n:][:len(out)], 1/float32(l.sum[f]*count)
			for e := range out {
				out[e] += float32(row[e] * s)
			}
		}
	}
	p.addInput(l, reuseFollow)
}

// addInput adds an input's part to the scores.
func (p *reuse) addInput(l *reuseLayer, k int) {
	w, in := p.weights[k], l.inputs[k]
	scores := l.scores[:len(in)]
	for e, x := range in {
		scores[e] += float64(w * float64(x))
	}
}

// observe adds this visit's uses to the outcome of the layer's sample and hands a sample that is old enough to the fit.
func (p *reuse) observe(l *reuseLayer, experts []int32, share float32, sweep bool) {
	if l.age < 0 {
		return
	}
	if sweep { // what follows a prompt says nothing about what came before it
		l.age = -1
		return
	}
	for _, e := range experts {
		l.outcome[e] += float32(l.factor * share)
	}
	l.factor = float32(l.factor * p.keeps)
	if l.age++; l.age < sampleVisits {
		return
	}
	l.age, l.rest = -1, min(l.visits/restShare, restMost)
	var x [reuseInputs]float64
	x[reuseOne] = 1
	for e, y := range l.outcome {
		for k := range l.sample {
			x[k] = float64(l.sample[k][e])
		}
		for i := range x {
			p.moments[i] += float64(x[i] * float64(y))
			row := &p.gram[i]
			for j, v := range x[:i+1] {
				row[j] += float64(x[i] * v)
			}
		}
	}
	if p.samples++; p.samples >= len(p.layers) {
		p.samples = 0
		if p.without&ReuseFit != 0 {
			return
		}
		p.fit()
	}
}

// fit finds the weights that explain the outcomes best, held to the prior ones as if those had been seen fitPrior times,
// and ages the sums. The sums plus fitPrior on the diagonal are positive definite, so the pivots are at least fitPrior.
func (p *reuse) fit() {
	var m [reuseInputs][reuseInputs]float64 // L and D of the square-root-free Cholesky decomposition
	var v [reuseInputs]float64
	for i := range m {
		for j := range i + 1 {
			s := p.gram[i][j]
			if i == j {
				s += fitPrior
			}
			for k := range j {
				s -= float64(float64(m[i][k]*m[j][k]) * m[k][k])
			}
			if i == j {
				m[i][i] = max(s, fitPrior/2) // rounding cannot bring it to 0
			} else {
				m[i][j] = s / m[j][j]
			}
		}
		s := p.moments[i] + float64(fitPrior*reusePrior[i])
		for k := range i {
			s -= float64(m[i][k] * v[k])
		}
		v[i] = s
	}
	for i := reuseInputs - 1; i >= 0; i-- {
		s := v[i] / m[i][i]
		for k := i + 1; k < reuseInputs; k++ {
			s -= float64(m[k][i] * p.weights[k])
		}
		p.weights[i] = s
	}
	for i := range p.gram {
		p.moments[i] *= fitKeeps
		for j := range i + 1 {
			p.gram[i][j] *= fitKeeps
		}
	}
}

func (p *reuse) score(layer, expert int) float64 { return p.layers[layer].scores[expert] }

// rank is minus the time, in passes, until an expert of that score is wanted again: its layer's next turn, and from there
// the inverse of how often the layer wants it.
func (p *reuse) rank(score float64, away float64) float64 {
	const rare = 1. / 4096
	if p.without&ReuseTurns != 0 {
		return score
	}
	return -(1/max(score, rare) + away)
}

// chance is how often an expert of that score is wanted in a turn of its layer.
func (p *reuse) chance(score float64) float64 { return score }

func (p *reuse) rescale() bool { return false }
