package engine

import (
	"slices"

	"terrace/router"
)

// tracer records the routing of each token with the guesses that were made for it. It holds one pass at most: what a batch
// needs, set aside when the largest has been seen.
type tracer struct {
	w     *router.TraceWriter
	rules []*router.Rule // by layer
	place []int          // of each layer among those with experts, -1 for the others
	seq   int            // number of the timeline
	err   error          // the first; nothing is recorded after it

	layers  []tracedLayer // those with experts
	line    router.TraceLine
	scratch router.Scratch
}

// tracedLayer is one layer of a pass. The last layer of a prompt sees the last rows only.
type tracedLayer struct {
	rows    int
	ids     []int32 // rows x top-k
	weights []float32
	guess   [2][]int32 // rows x top-k, -1 where there is none; empty: no guesses were made
}

// SetTrace records every following token of the session into w, whole passes at a time, until SetTrace(nil), and returns
// the first error that recording met since it began; after one, nothing more was recorded. A layer that a token did not
// run (the last of a prompt, which nobody sees) has an empty list, and so have guesses that were not made.
func (s *Session) SetTrace(w *router.TraceWriter) error {
	src, ok := s.src.(*source)
	if !ok {
		return nil
	}
	var err error
	if src.trace != nil {
		err = src.trace.err
	}
	if src.trace = nil; w == nil {
		return err
	}
	t := &tracer{w: w, rules: src.rules}
	n := 0
	for _, r := range src.rules {
		if r == nil {
			t.place = append(t.place, -1)
			continue
		}
		t.place = append(t.place, n)
		n++
	}
	t.layers = make([]tracedLayer, n)
	t.line = router.TraceLine{Experts: make([][]int32, n), Weights: make([][]float32, n)}
	src.trace = t
	return err
}

// layer notes a layer's choice, before its guesses are settled.
func (t *tracer) layer(l int, choices []int32, scores []float32, guesses func(layer, distance int) []int32, depth int) {
	if t.err != nil || t.place[l] < 0 {
		return
	}
	r := t.rules[l]
	x := &t.layers[t.place[l]]
	x.rows = len(choices) / r.K
	x.ids = append(x.ids[:0], choices...)
	x.weights = slices.Grow(x.weights[:0], len(choices))[:len(choices)]
	for i := range x.rows {
		// The model has made the same choice of the same scores.
		if err := r.TopK(scores[i*r.Experts:(i+1)*r.Experts], x.ids[i*r.K:(i+1)*r.K], x.weights[i*r.K:(i+1)*r.K], &t.scratch); err != nil {
			t.err = err
			return
		}
	}
	for d := range x.guess {
		x.guess[d] = x.guess[d][:0]
		if d < depth {
			if g := guesses(l, d+1); len(g) == len(choices) {
				x.guess[d] = append(x.guess[d], g...)
			}
		}
	}
}

// drop forgets a pass that failed.
func (t *tracer) drop() {
	for i := range t.layers {
		t.layers[i].rows = 0
	}
}

// pass writes the tokens of a pass, the first of which stands at position pos.
func (t *tracer) pass(tokens []int32, pos int) {
	defer t.drop()
	l := &t.line
	for r := range tokens {
		if t.err != nil {
			return
		}
		l.Seq, l.Pos, l.Token = t.seq, pos+r, int(tokens[r])
		l.Guess1, l.Guess2 = l.Guess1[:0], l.Guess2[:0]
		any := [2]bool{}
		for i := range t.layers {
			x := &t.layers[i]
			at := r - (len(tokens) - x.rows)
			k := 0
			if x.rows > 0 {
				k = len(x.ids) / x.rows
			}
			if at < 0 {
				k = 0
			}
			at = max(at, 0)
			l.Experts[i], l.Weights[i] = x.ids[at*k:(at+1)*k], x.weights[at*k:(at+1)*k]
			g := [2][]int32{}
			for d := range g {
				if k > 0 && len(x.guess[d]) > 0 {
					g[d] = x.guess[d][at*k : (at+1)*k]
					if n := slices.Index(g[d], -1); n >= 0 {
						g[d] = g[d][:n]
					}
					any[d] = any[d] || len(g[d]) > 0
				}
			}
			l.Guess1, l.Guess2 = append(l.Guess1, g[0]), append(l.Guess2, g[1])
		}
		if !any[0] {
			l.Guess1 = l.Guess1[:0]
		}
		if !any[1] {
			l.Guess2 = l.Guess2[:0]
		}
		t.err = t.w.Write(l)
	}
}
