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

const (
	followForgets = 1. / 32 // as forgets, for a row of the follow table, when its expert is used
	followPrior   = 2       // uses that the even prior of a row counts for

	sampleVisits = 16     // visits of a layer that are one sample of the fit
	outcomeKeeps = 3. / 4 // a use one visit later counts so much less in the outcome
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
		l.last = make([]int32, 0, topK)
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

func (p *reuse) visit(layer int, experts []int32) {
	l := &p.layers[layer]
	if len(experts) == 0 {
		return
	}
	// More experts than a few tokens choose are those of a prompt: each counts as its share of one token's uses, and
	// nothing follows them.
	share, sweep := float32(1), len(experts) > 2*p.topK
	if len(experts) > p.topK {
		share = float32(p.topK) / float32(len(experts))
	}
	l.visits++
	p.observe(l, experts, share, sweep)

	for k, rate := range forgets {
		if even := 1 / float32(l.visits+1); rate < even {
			rate = even
		}
		in := l.inputs[k]
		keep, add := 1-rate, float32(rate*share)
		for e := range in {
			in[e] = float32(in[e] * keep)
		}
		for _, e := range experts {
			in[e] += add
		}
	}
	p.learnFollow(l, experts, sweep)
	p.rate(l)

	if l.age < 0 && !sweep {
		for k := range l.inputs {
			copy(l.sample[k], l.inputs[k])
		}
		clear(l.outcome)
		l.age, l.factor = 0, 1-outcomeKeeps
	}
}

// learnFollow notes that experts came after the last visit's and asks the table what comes after them.
func (p *reuse) learnFollow(l *reuseLayer, experts []int32, sweep bool) {
	n, out := l.experts, l.inputs[reuseFollow]
	if sweep || p.without&ReuseFollow != 0 {
		l.last = l.last[:0]
		copy(out, l.inputs[2])
		return
	}
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
	for _, f := range experts {
		row, scale := l.follow[int(f)*n:][:n], 1/float32(l.sum[f]*float32(len(experts)))
		for e, x := range row {
			out[e] += float32(x * scale)
		}
	}
}

// rate makes the layer's scores.
func (p *reuse) rate(l *reuseLayer) {
	for e := range l.scores {
		s := p.weights[reuseOne]
		for k := range l.inputs {
			s += float64(p.weights[k] * float64(l.inputs[k][e]))
		}
		l.scores[e] = s
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
	l.factor = float32(l.factor * outcomeKeeps)
	if l.age++; l.age < sampleVisits {
		return
	}
	l.age = -1
	var x [reuseInputs]float64
	x[reuseOne] = 1
	for e := range l.experts {
		y := float64(l.outcome[e])
		for k := range l.sample {
			x[k] = float64(l.sample[k][e])
		}
		for i := range x {
			p.moments[i] += float64(x[i] * y)
			for j := range i + 1 {
				p.gram[i][j] += float64(x[i] * x[j])
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

func (p *reuse) rescale() bool { return false }
