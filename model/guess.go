package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"terrace/compute"
	"terrace/gguf"
)

// SetGuess replaces the router that guesses layer at+distance while layer at runs: weights are experts x embd float32,
// row-major, to be multiplied with the residual after attention divided by its root mean square. It must be called after
// Bind and before any Forward. nil brings the target's own router back.
func (m *Model) SetGuess(at, distance int, weights []float32) error {
	c := &m.cfg
	switch {
	case m.backend == nil:
		panic("model: SetGuess before Bind")
	case distance < 1 || distance > maxAhead || at < 0 || at+distance >= len(m.layers):
		return fmt.Errorf("model: a guess at layer %d about %d layers ahead, of %d layers", at, distance, len(m.layers))
	case m.layers[at].rule == nil || m.layers[at+distance].rule == nil:
		return fmt.Errorf("model: a guess at layer %d about layer %d, one of which has no router", at, at+distance)
	case weights == nil:
		m.layers[at].guess[distance-1] = nil
		return nil
	case len(weights) != c.Experts*c.Embd:
		return fmt.Errorf("model: a guess of %d numbers, want %d experts x %d", len(weights), c.Experts, c.Embd)
	}
	if m.unit == nil {
		ones := make([]float32, c.Embd)
		for i := range ones {
			ones[i] = 1
		}
		w, err := m.backend.NewWeight(f32Matrix(ones, c.Embd, 1))
		if err != nil {
			return err
		}
		m.unit = w
	}
	w, err := m.backend.NewWeight(f32Matrix(weights, c.Embd, c.Experts))
	if err != nil {
		return err
	}
	m.layers[at].guess[distance-1] = w
	return nil
}

func f32Matrix(v []float32, in, out int) compute.Matrix {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	return compute.Matrix{Type: gguf.F32, In: in, Out: out, Data: b}
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

// RouterNames are the tensors of a layer's router and of the norm before it.
func (m *Model) RouterNames(layer int) (router, norm string) {
	return fmt.Sprintf("blk.%d.ffn_gate_inp.weight", layer), fmt.Sprintf("blk.%d.ffn_norm.weight", layer)
}
