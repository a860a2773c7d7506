package router

import (
	"fmt"
	"math"
)

// Signal is what is known, while one layer runs, about the routing of a later one.
type Signal struct {
	// Scores holds Rows x Rule.Experts router scores: the target layer's norm and router applied to today's state, one
	// row a token of the batch.
	Scores []float32
	Rows   int
	Rule   *Rule // the target layer's own rule
}

// Row is the signal of row i alone.
func (s Signal) Row(i int) Signal {
	n := s.Rule.Experts
	return Signal{Scores: s.Scores[i*n : (i+1)*n], Rows: 1, Rule: s.Rule}
}

// check panics where the parts of a signal do not fit together.
func (s Signal) check() {
	if s.Rule == nil {
		panic("router: a signal without the target layer's rule")
	}
	if s.Rows < 1 || len(s.Scores) != s.Rows*s.Rule.Experts {
		panic(fmt.Sprintf("router: a signal has %d scores for %d rows of %d experts", len(s.Scores), s.Rows, s.Rule.Experts))
	}
}

// Predictor guesses the experts of a layer ahead and learns from the truth. It is used by one walk through the layers
// at a time, from one goroutine.
type Predictor interface {
	// Predict ranks the experts that layer target will likely need, seen from layer at, the likeliest first. It fills
	// dst with at most len(dst) of them and returns that part of dst. It changes nothing that a later Predict depends on.
	Predict(dst []int32, at, target int, s Signal) []int32
	// Margins sets dst[i] to how far expert ids[i] stands above the choice's edge in one row's scores, as the function
	// Margins does.
	Margins(dst []float32, ids []int32, at, target int, s Signal)
	// Observe tells the true choice of a layer: rows x K expert numbers, in row order, in selection order within a row,
	// and the router scores they were chosen by, rows x experts; both are valid during the call. Scores may be nil.
	Observe(layer int, chosen []int32, scores []float32)
}

// GateAhead takes the target layer's router at its word although it looks at an earlier state. For one row it ranks by
// the layer's own rule, bias and groups included; for several rows each row votes for its K best, and the ranking is by
// votes, ties by lower expert number, experts without a vote left out. A row with a NaN or +Inf score has no guess: the
// layer itself will report it.
//
// The zero value is ready; it allocates nothing once it has seen its largest rule.
type GateAhead struct {
	scratch Scratch
	ids     []int32
	votes   []float32
}

var _ Predictor = (*GateAhead)(nil)

// Predict implements Predictor.
func (g *GateAhead) Predict(dst []int32, at, target int, s Signal) []int32 {
	s.check()
	if target <= at {
		panic(fmt.Sprintf("router: a guess at layer %d about layer %d, which is not ahead", at, target))
	}
	r := s.Rule
	if s.Rows == 1 {
		return dst[:g.rank(r, dst, s.Scores)]
	}
	if len(g.ids) < r.K {
		g.ids = make([]int32, r.K)
	}
	if len(g.votes) < r.Experts {
		g.votes = make([]float32, r.Experts)
	}
	votes := g.votes[:r.Experts]
	clear(votes)
	for i := range s.Rows {
		for _, id := range g.ids[:g.rank(r, g.ids[:r.K], s.Row(i).Scores)] {
			votes[id]++
		}
	}
	n := best(dst, votes, nil, r.Experts)
	for n > 0 && votes[dst[n-1]] == 0 {
		n--
	}
	return dst[:n]
}

// rank fills ids with the likeliest experts of one row and returns how many there are: none where a score is no number.
// Gating functions rise with the score, so where nothing is added to them the scores' own order does.
func (g *GateAhead) rank(r *Rule, ids []int32, scores []float32) int {
	if r.Bias == nil && r.Groups <= 1 {
		top := float32(math.Inf(-1))
		for _, v := range scores {
			if v != v || v > math.MaxFloat32 {
				return 0
			}
			top = max(top, v)
		}
		if math.IsInf(float64(top), -1) {
			return 0
		}
		return best(ids, scores, nil, r.Experts)
	}
	n, err := r.rank(scores, ids, &g.scratch)
	if err != nil {
		return 0
	}
	return n
}

// Margins implements Predictor.
func (g *GateAhead) Margins(dst []float32, ids []int32, at, target int, s Signal) {
	s.check()
	if s.Rows != 1 {
		panic(fmt.Sprintf("router: margins of %d rows, want 1", s.Rows))
	}
	r, scores := s.Rule, s.Scores
	if r.Bias != nil { // the choice is made by other values
		g.scratch.grow(r)
		if r.gate(g.scratch.probs[:r.Experts], scores) != nil {
			clear(dst)
			return
		}
		sel := g.scratch.sel[:r.Experts]
		for i, p := range g.scratch.probs[:r.Experts] {
			sel[i] = p + r.Bias[i]
		}
		scores = sel
	}
	Margins(dst, ids, scores, r.K, &g.scratch)
}

// Observe implements Predictor; the plain gate learns nothing.
func (g *GateAhead) Observe(layer int, chosen []int32, scores []float32) {}
