package router

import (
	"fmt"
	"math"
)

// Map is a fitted guess at the router scores of layer Target, made while layer At runs:
//
//	score = State u + Prev p + Own o + Bias
//
// u is the residual divided by its root mean square (no norm weight), p the previous token's true scores at the target
// layer, o this token's at layer At. It is the ridge-regression form of "run the next router early": the target's own router on u is one point of
// the same space, so a fit can only be better on the texts it was made of.
type Map struct {
	At, Target int
	State      []float32 // Experts x Hidden, row-major; whoever has the residual multiplies by it (and may keep it elsewhere)
	Prev       []float32 // Experts x Experts, row-major
	Own        []float32 // Experts x Experts, or empty: nothing that u does not say already
	Bias       []float32 // Experts
}

// Linear predicts by fitted maps and, where a pair of layers has none, as GateAhead does. A Signal for a pair with a map
// carries State u as its scores; Linear adds the rest. Where the signal has several rows, the tokens before most of them are
// not through yet, and a mean of earlier scores stands for theirs.
type Linear struct {
	GateAhead
	// Mul adds w x to dst, w being len(dst) x len(x), row-major; nil: a plain loop.
	Mul func(dst, w, x []float32)

	maps   map[[2]int]*Map
	prev   [][]float32 // by layer: the true scores it saw last, nil before there were any
	mean   [][]float32 // by layer: of the scores seen, later ones weighing more
	scores []float32

	done [2]int   // layers that scores is about,
	of   *float32 // and the signal it was made of; nil: none
}

var _ Predictor = (*Linear)(nil)

// NewLinear takes maps between layers of a model; each must be of experts experts.
func NewLinear(layers, experts int, maps []Map) (*Linear, error) {
	l := &Linear{maps: map[[2]int]*Map{}, prev: make([][]float32, layers), mean: make([][]float32, layers)}
	for i := range maps {
		m := &maps[i]
		switch {
		case m.At < 0 || m.Target <= m.At || m.Target >= layers:
			return nil, fmt.Errorf("router: a map from layer %d to layer %d of %d", m.At, m.Target, layers)
		case len(m.Bias) != experts || len(m.Prev) != experts*experts || len(m.Own) != 0 && len(m.Own) != experts*experts || len(m.State)%experts != 0:
			return nil, fmt.Errorf("router: the map from layer %d to %d has %d, %d and %d numbers for %d experts", m.At, m.Target, len(m.State), len(m.Prev), len(m.Bias), experts)
		}
		for _, part := range [][]float32{m.State, m.Prev, m.Own, m.Bias} {
			for _, x := range part {
				if !finite(x) {
					return nil, fmt.Errorf("router: the map from layer %d to %d holds %v", m.At, m.Target, x)
				}
			}
		}
		l.maps[[2]int{m.At, m.Target}] = m
	}
	return l, nil
}

// Predict implements Predictor.
func (l *Linear) Predict(dst []int32, at, target int, s Signal) []int32 {
	return l.GateAhead.Predict(dst, at, target, l.Complete(at, target, s))
}

// Margins implements Predictor.
func (l *Linear) Margins(dst []float32, ids []int32, at, target int, s Signal) {
	l.GateAhead.Margins(dst, ids, at, target, l.Complete(at, target, s))
}

// Complete adds what the map knows beside the residual to a signal's scores; without a map the signal stays as it is.
// The result is valid until the next call.
func (l *Linear) Complete(at, target int, s Signal) Signal {
	m := l.maps[[2]int{at, target}]
	if m == nil {
		return s
	}
	s.check()
	n := s.Rule.Experts
	if l.of == &s.Scores[0] && l.done == [2]int{at, target} && len(l.scores) >= len(s.Scores) { // Margins after Predict
		s.Scores = l.scores[:len(s.Scores)]
		return s
	}
	l.of, l.done = &s.Scores[0], [2]int{at, target}
	if len(l.scores) < len(s.Scores) {
		l.scores = make([]float32, len(s.Scores))
	}
	out := l.scores[:len(s.Scores)]
	first := out[:n] // what all rows have in common, then row 0, which comes last
	copy(first, m.Bias)
	if s.Rows == 1 {
		l.add(first, m.Prev, l.prev[target])
		l.add(first, m.Own, l.prev[at])
	} else {
		l.add(first, m.Prev, l.mean[target])
		l.add(first, m.Own, l.mean[at])
	}
	for r := s.Rows - 1; r >= 0; r-- {
		row := out[r*n : (r+1)*n]
		for e := range row {
			row[e] = s.Scores[r*n+e] + first[e]
		}
	}
	s.Scores = out
	return s
}

// add adds w x to out; nothing where either is empty.
func (l *Linear) add(out, w, x []float32) {
	n := len(x)
	switch {
	case n == 0 || len(w) == 0:
	case l.Mul != nil:
		l.Mul(out, w, x)
	default:
		for e := range out {
			sum := float32(0)
			for j, v := range w[e*n : (e+1)*n] {
				sum += float32(v * x[j])
			}
			out[e] += sum
		}
	}
}

// meanReach is how many tokens weigh in the mean of scores.
const meanReach = 64

// Observe implements Predictor. It must be told of layer At before a guess made there.
func (l *Linear) Observe(layer int, chosen []int32, scores []float32) {
	l.of = nil // a later signal may lie at the same place
	n := len(scores)
	if n == 0 {
		return
	}
	experts := 0
	for _, m := range l.maps {
		experts = len(m.Bias)
		break
	}
	if experts == 0 || n%experts != 0 {
		return
	}
	for _, x := range scores {
		if !finite(x) || math.Abs(float64(x)) > 1e6 { // the layer itself reports it; a guess must not remember it
			return
		}
	}
	if l.prev[layer] == nil {
		l.prev[layer], l.mean[layer] = make([]float32, experts), make([]float32, experts)
		copy(l.mean[layer], scores)
	}
	rows := n / experts
	w := float32(1 / float64(min(meanReach, max(2, meanReach/rows)))) // a batch is many tokens
	for e, m := range l.mean[layer] {
		sum := float32(0)
		for r := range rows {
			sum += scores[r*experts+e]
		}
		l.mean[layer][e] = m + float32(w*(sum/float32(rows)-m))
	}
	last := scores[n-experts:]
	copy(l.prev[layer], last)
}
