package model

import (
	"fmt"

	"terrace/compute"
)

// SetGuess replaces the router that guesses layer at+distance while layer at runs: w is experts rows of embd elements of
// any type the backend computes with, multiplied with the residual after attention divided by its root mean square. Its
// bytes must stay valid. It is called after Bind and before any Forward; a matrix without bytes brings the target's own
// router back. Guesses steer reads, never a result, so a coarse type is good enough.
func (m *Model) SetGuess(at, distance int, w compute.Matrix) error {
	c := &m.cfg
	switch {
	case m.backend == nil:
		panic("model: SetGuess before Bind")
	case distance < 1 || distance > maxAhead || at < 0 || at+distance >= len(m.layers):
		return fmt.Errorf("model: a guess at layer %d about %d layers ahead, of %d layers", at, distance, len(m.layers))
	case m.layers[at].routed == nil || m.layers[at+distance].routed == nil:
		return fmt.Errorf("model: a guess at layer %d about layer %d, one of which has no router", at, at+distance)
	case w.Data == nil:
		m.layers[at].routed.guess[distance-1] = nil
		return nil
	case w.In != m.width || m.width != c.Embd || w.Out != c.Experts:
		return fmt.Errorf("model: a guess of %d rows of %d, want %d experts x %d", w.Out, w.In, c.Experts, c.Embd)
	}
	g, err := m.backend.NewWeight(w)
	if err != nil {
		return err
	}
	m.layers[at].routed.guess[distance-1] = g
	return nil
}

// Watched is what one layer with experts saw in one Forward, for fitting guesses. The slices are valid during the call.
type Watched struct {
	Layer, Rows int
	In          []float32 // Rows x embd: the residual that entered the layer
	Mid         []float32 // Rows x embd: the residual after attention
	Scores      []float32 // Rows x experts: the layer's own router scores
}

// SetWatch makes f see every layer with experts of every following Forward; nil ends it. Watching costs copies.
func (m *Model) SetWatch(f func(Watched)) { m.watch = f }

// RouterNames are the tensors of a layer's router and of the norm before it; norm is "" where its scores are not the one
// times the other alone.
func (m *Model) RouterNames(layer int) (router, norm string) {
	r := m.layers[layer].routed
	if n, ok := r.in.(*norms); ok && !r.apart && r.scoreBias == nil {
		norm = n.name
	}
	return r.name, norm
}
