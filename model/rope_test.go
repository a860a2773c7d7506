package model

import (
	"math"
	"testing"
)

// TestRopeAngles compares with the definition in float64; the float32 recurrence drifts by a few parts in 10^7 a pair.
func TestRopeAngles(t *testing.T) {
	yarn := RopeConfig{Dim: 64, Base: 150000, Scaling: "yarn", Factor: 32, OrigContext: 4096, AttnFactor: 1, BetaFast: 32, BetaSlow: 1}
	for _, c := range []struct {
		RopeConfig
		low, high, mag float64
	}{
		{RopeConfig{Dim: 24, Base: 10000, Scaling: "none", Factor: 1}, 0, 0, 1},
		{RopeConfig{Dim: 24, Base: 1e6, Scaling: "linear", Factor: 4}, 0, 0, 1},
		{yarn, 8, 18, 1.34657}, // the worked example of gpt-oss
	} {
		r := newRope(c.RopeConfig)
		cos, sin := make([]float32, c.Dim/2), make([]float32, c.Dim/2)
		for _, p := range []int{0, 1, 7, 1000} {
			r.fill(cos, sin, p)
			for j := range cos {
				theta := float64(p) * math.Pow(float64(c.Base), -2*float64(j)/float64(c.Dim))
				switch c.Scaling {
				case "linear":
					theta /= c.Factor
				case "yarn":
					keep := 1 - min(1, max(0, (float64(j)-c.low)/(c.high-c.low)))
					theta = theta*keep + theta/c.Factor*(1-keep)
				}
				limit := 2e-5 + theta*3e-7*float64(j+2)
				if d := math.Abs(float64(cos[j]) - c.mag*math.Cos(theta)); !(d <= limit) {
					t.Errorf("%s, position %d, pair %d: cosine %v, want %v", c.Scaling, p, j, cos[j], c.mag*math.Cos(theta))
				}
				if d := math.Abs(float64(sin[j]) - c.mag*math.Sin(theta)); !(d <= limit) {
					t.Errorf("%s, position %d, pair %d: sine %v, want %v", c.Scaling, p, j, sin[j], c.mag*math.Sin(theta))
				}
			}
		}
	}
}
