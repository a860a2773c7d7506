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
	if p, ok := m.backend.(compute.Placer); ok {
		p.Layer(at)
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

// RouterParts say what a layer's router makes of the residual divided by its root mean square: times Norm, a vector, and
// Factor, then the product with Router, then plus Bias. They are names of tensors; Bias is "" where there is none, Norm where
// the router sees the residual in another way.
type RouterParts struct {
	Router, Norm, Bias string
	Factor             float32
}

// Plain says that the router is a norm and a matrix, nothing else.
func (p RouterParts) Plain() bool { return p.Norm != "" && p.Bias == "" && p.Factor == 1 }

// RouterParts are those of a layer that has experts.
func (m *Model) RouterParts(layer int) RouterParts {
	r := m.layers[layer].routed
	p := RouterParts{Router: r.name, Bias: r.biasName, Factor: 1}
	switch g := r.gate.(type) {
	case *norms:
		p.Norm = g.name
	case *gemmaGate:
		p.Norm, p.Factor = g.name, g.factor
	}
	return p
}
