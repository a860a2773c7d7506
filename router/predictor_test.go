package router

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGateAheadOneRow(t *testing.T) {
	r := Rule{Experts: 6, K: 2, Gating: Sigmoid, Bias: []float32{0, 0, 0, 0, 0, 1}}
	s := Signal{Scores: []float32{0, 3, 1, 3, 2, -2}, Rows: 1, Rule: &r}
	var g GateAhead
	for want, n := range map[[4]int32]int{{5, 1, 3, 4}: 4, {5, 1}: 2} {
		if d := cmp.Diff(want[:n], g.Predict(make([]int32, n), 0, 2, s)); d != "" {
			t.Error(d)
		}
	}
	grouped := Rule{Experts: 6, K: 2, Gating: Sigmoid, Groups: 2, GroupsUsed: 1}
	s.Rule = &grouped
	// sigmoid(3)+sigmoid(1) < sigmoid(3)+sigmoid(2): the second group, which has only three to offer.
	if d := cmp.Diff([]int32{3, 4, 5}, g.Predict(make([]int32, 5), 0, 1, s)); d != "" {
		t.Error(d)
	}
	s = Signal{Scores: []float32{0, 3, nan, 3, 2, -2}, Rows: 1, Rule: &r}
	if got := g.Predict(make([]int32, 3), 0, 1, s); len(got) != 0 {
		t.Errorf("guesses %v from a score that is no number", got)
	}
}

func TestGateAheadVotes(t *testing.T) {
	r := Rule{Experts: 6, K: 2, Gating: Softmax}
	s := Signal{Rows: 5, Rule: &r, Scores: []float32{
		9, 8, 0, 0, 0, 0, // 0 1
		0, 0, 0, 0, 8, 9, // 5 4
		0, 0, 0, 0, 7, 9, // 5 4
		0, 5, 0, 6, 0, 0, // 3 1
		inf, 0, 0, 0, 0, 0, // no vote
	}}
	var g GateAhead
	// Two votes for 1, 4 and 5, one for 0 and 3, none for 2.
	if d := cmp.Diff([]int32{1, 4, 5, 0, 3}, g.Predict(make([]int32, 6), 4, 5, s)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int32{1, 4, 5}, g.Predict(make([]int32, 3), 4, 5, s)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Signal{Scores: s.Scores[6:12], Rows: 1, Rule: &r}, s.Row(1)); d != "" {
		t.Error(d)
	}
}

// With K guesses the prediction of one row is the choice that TopK would make on the same scores.
func TestGateAheadIsTheRule(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	for range 500 {
		r := Rule{Experts: 32, K: 1 + rnd.Intn(6), Gating: Gating(1 + rnd.Intn(3)), Bias: make([]float32, 32)}
		if rnd.Intn(2) == 0 {
			r.Groups, r.GroupsUsed = 4, 1+rnd.Intn(4)
		}
		scores := make([]float32, 32)
		for i := range scores {
			scores[i], r.Bias[i] = float32(rnd.Intn(20))/4, float32(rnd.Intn(4))/8
		}
		ids, weights := make([]int32, r.K), make([]float32, r.K)
		if err := r.TopK(scores, ids, weights, new(Scratch)); err != nil {
			t.Fatal(err)
		}
		got := new(GateAhead).Predict(make([]int32, r.K), 0, 1, Signal{Scores: scores, Rows: 1, Rule: &r})
		if !slices.Equal(got, ids) {
			t.Fatalf("%+v: guesses %v, choice %v", r, got, ids)
		}
	}
}

func TestGateAheadAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("allocation counts mean nothing under the race detector")
	}
	r := Rule{Experts: 32, K: 4, Gating: Softmax}
	s := Signal{Scores: make([]float32, 32*7), Rows: 7, Rule: &r}
	for i := range s.Scores {
		s.Scores[i] = float32(i * 31 % 97)
	}
	var p Predictor = new(GateAhead)
	dst := make([]int32, 8)
	if n := testing.AllocsPerRun(50, func() {
		p.Predict(dst, 0, 1, s)
		p.Predict(dst, 0, 2, s.Row(3))
		p.Observe(1, dst[:4], nil)
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}
