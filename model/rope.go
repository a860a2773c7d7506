package model

import (
	"math"

	"terrace/internal/fmath"
)

// rope turns positions into the cosines and sines of a rotation, with the same bits on every machine.
type rope struct {
	pairs int     // rotated elements of a head / 2
	step  float32 // base^(-2/dim): from one pair's angle to the next one's
	scale float32 // of positions
	ramp  []float32
	mag   float32 // multiplies cosines and sines
}

// newRope prepares the rotation of c.
func newRope(c RopeConfig) *rope {
	r := &rope{pairs: c.Dim / 2, scale: 1, mag: 1}
	r.step = float32(fmath.Pow(float64(c.Base), float64(float32(-2)/float32(c.Dim))))
	if c.Scaling == "none" {
		return r
	}
	r.scale = float32(1 / c.Factor)
	if c.Scaling == "linear" {
		return r
	}
	// YaRN: pairs that turn often within the original context keep their angle, slow ones are stretched, with a ramp
	// between the two.
	border := func(beta float64) float64 {
		return float64(c.Dim) * fmath.Log(float64(c.OrigContext)/(beta*2*math.Pi)) / (2 * fmath.Log(float64(c.Base)))
	}
	low := float32(max(0, math.Floor(border(c.BetaFast))))
	high := float32(min(float64(c.Dim-1), math.Ceil(border(c.BetaSlow))))
	r.ramp = make([]float32, r.pairs)
	for j := range r.ramp {
		r.ramp[j] = 1 - min(1, max(0, (float32(j)-low)/max(0.001, high-low)))
	}
	r.mag = float32(c.AttnFactor * (1 + float64(0.1*fmath.Log(c.Factor))))
	return r
}

// fill sets the cosines and sines of position p for each pair. The angle of a pair is the float32 product of the one
// before it and step, beginning at p, as ggml has it: at long positions the rounding of that recurrence shows in logits.
func (r *rope) fill(cos, sin []float32, p int) {
	theta := float32(p)
	for j := range r.pairs {
		t := float32(r.scale * theta)
		if r.ramp != nil {
			t = float32(t*(1-r.ramp[j])) + float32(theta*r.ramp[j])
		}
		s, c := fmath.Sincos(float64(t))
		cos[j] = float32(float32(c) * r.mag)
		sin[j] = float32(float32(s) * r.mag)
		theta = float32(theta * r.step)
	}
}
