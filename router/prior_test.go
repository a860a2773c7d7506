package router

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPrior: of two layers whose choices go together the pairs are found, of a layer that repeats itself the last choice,
// and with weights of zero it is the gate.
func TestPrior(t *testing.T) {
	const experts = 16
	rule := &Rule{Experts: experts, K: 2, Gating: Softmax}
	rng := rand.New(rand.NewPCG(1, 1))
	scores := func(chosen []int32) []float32 {
		s := make([]float32, experts)
		for i := range s {
			s[i] = rng.Float32()
		}
		for i, e := range chosen {
			s[e] = 5 - float32(i)
		}
		return s
	}
	pairs, last, gate, mixed := NewPrior(2, experts, 0, 0, 1), NewPrior(2, experts, 0, 1, 0), NewPrior(2, experts, 1, 0, 0), NewPrior(2, experts, 1, 0, 1)
	all := []*Prior{pairs, last, gate, mixed}
	flat := make([]float32, experts)
	flat[15], flat[14] = 2, 1
	sig := Signal{Scores: flat, Rows: 1, Rule: rule}
	var before []int32
	hits, repeats := 0, 0
	for n := range 300 {
		a := int32(rng.IntN(experts))
		first := []int32{a, (a + 1) % experts}
		second := []int32{(3*a + 2) % experts, (3*a + 5) % experts} // a function of the layer before
		for _, p := range all {
			p.Observe(0, first, scores(first))
		}
		got := pairs.Predict(make([]int32, 2), 0, 1, sig)
		if n >= 200 && slices.Contains(got, second[0]) && slices.Contains(got, second[1]) {
			hits++
		}
		if got := last.Predict(make([]int32, 2), 0, 1, sig); n > 0 && slices.Equal(got, before) {
			repeats++
		}
		if got := gate.Predict(make([]int32, 2), 0, 1, sig); !slices.Equal(got, []int32{15, 14}) {
			t.Fatalf("the gate alone gives %v", got)
		}
		s := scores(second)
		for _, p := range all {
			p.Observe(1, second, s)
		}
		before = second
	}
	if hits < 95 {
		t.Errorf("pairs found %d of 100 choices", hits)
	}
	if repeats != 299 {
		t.Errorf("the last choice was guessed %d times of 299", repeats)
	}
	m := make([]float32, 2)
	mixed.Margins(m, mixed.Predict(make([]int32, 2), 0, 1, sig), 0, 1, sig)
	if !(m[0] > m[1] && m[1] > 0) {
		t.Errorf("margins %v", m)
	}
}

// TestLinearBatch: in a batch the mean of earlier scores stands for the tokens before; Margins after Predict sees the same
// scores, and a signal at the same place after an observation is a new one.
func TestLinearBatch(t *testing.T) {
	const n = 4
	m := Map{At: 0, Target: 1, State: nil, Prev: make([]float32, n*n), Bias: []float32{0, 0, 0, 0.5}}
	for e := range n {
		m.Prev[e*n+e] = 1
	}
	l, err := NewLinear(2, n, []Map{m})
	if err != nil {
		t.Fatal(err)
	}
	rule := &Rule{Experts: n, K: 1, Gating: Softmax}
	sig := Signal{Scores: make([]float32, 2*n), Rows: 2, Rule: rule}
	if got := l.Complete(0, 1, sig).Scores; !slices.Equal(got, []float32{0, 0, 0, 0.5, 0, 0, 0, 0.5}) {
		t.Errorf("before anything was seen: %v", got)
	}
	for range 400 {
		l.Observe(1, nil, []float32{2, 0, 0, 0})
		l.Observe(1, nil, []float32{0, 2, 0, 0})
	}
	got := l.Complete(0, 1, sig).Scores
	for r := range 2 {
		if a, b := got[r*n], got[r*n+1]; a < 0.9 || a > 1.1 || b < 0.9 || b > 1.1 || got[r*n+3] != 0.5 {
			t.Errorf("row %d: %v", r, got)
		}
	}
	one := sig.Row(0)
	if got := l.Predict(make([]int32, 1), 0, 1, one); got[0] != 1 {
		t.Errorf("guess %v, the last token's scores say 1", got)
	}
	one.Scores[0] = 9
	l.Observe(0, nil, []float32{0, 0, 0, 0})
	if got := l.Predict(make([]int32, 1), 0, 1, one); got[0] != 0 {
		t.Errorf("guess %v after the signal changed, want 0", got)
	}
}
