package model

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"terrace/gguf"
)

// plain is a rotation without scaling.
func plain(dim int, base float32) RopeConfig {
	return RopeConfig{Dim: dim, Base: base, Scaling: "none", Factor: 1, AttnFactor: 1}
}

// TestRopeAngles compares with the definition in float64; the float32 recurrence drifts by a few parts in 10^7 a pair.
func TestRopeAngles(t *testing.T) {
	linear := plain(24, 1e6)
	linear.Scaling, linear.Factor = "linear", 4
	yarn := plain(64, 150000)
	yarn.Scaling, yarn.Factor, yarn.ExtFactor, yarn.OrigContext, yarn.BetaFast, yarn.BetaSlow = "yarn", 32, 1, 4096, 32, 1
	half := yarn
	half.ExtFactor, half.AttnFactor = 0.5, 0.8
	latent := yarn
	latent.LogMul = 0.707
	for _, c := range []struct {
		RopeConfig
		low, high, mag float64
	}{
		{plain(24, 10000), 0, 0, 1},
		{linear, 0, 0, 1},
		{yarn, 8, 18, 1.34657}, // the worked example of gpt-oss
		{half, 8, 18, 0.8 * 1.34657},
		{latent, 8, 18, 1},
	} {
		for _, factors := range []bool{false, true} {
			r := newRope(c.RopeConfig)
			if factors {
				r.factors = make([]float32, c.Dim/2)
				for j := range r.factors {
					r.factors[j] = 1 + float32(j%5)
				}
			}
			cos, sin := make([]float32, c.Dim/2), make([]float32, c.Dim/2)
			for _, p := range []int{0, 1, 7, 1000} {
				r.fill(cos, sin, p)
				for j := range cos {
					theta := float64(p) * math.Pow(float64(c.Base), -2*float64(j)/float64(c.Dim))
					if factors {
						theta /= float64(r.factors[j])
					}
					switch c.Scaling {
					case "linear":
						theta /= c.Factor
					case "yarn":
						keep := c.ExtFactor * (1 - min(1, max(0, (float64(j)-c.low)/(c.high-c.low))))
						theta = theta*keep + theta/c.Factor*(1-keep)
					}
					limit := 2e-5 + theta*3e-7*float64(j+2)
					if d := math.Abs(float64(cos[j]) - c.mag*math.Cos(theta)); !(d <= limit) {
						t.Errorf("%+v, position %d, pair %d: cosine %v, want %v", c.RopeConfig, p, j, cos[j], c.mag*math.Cos(theta))
					}
					if d := math.Abs(float64(sin[j]) - c.mag*math.Sin(theta)); !(d <= limit) {
						t.Errorf("%+v, position %d, pair %d: sine %v, want %v", c.RopeConfig, p, j, sin[j], c.mag*math.Sin(theta))
					}
				}
			}
		}
	}
}

// TestRopeSections: which pairs belong to the position that text leaves at 0.
func TestRopeSections(t *testing.T) {
	for _, c := range []struct {
		dim         int
		sections    [4]int
		interleaved bool
		still       []int
	}{
		{64, [4]int{11, 11, 10, 0}, true, nil}, // Qwen3.5
		{64, [4]int{8, 12, 12, 0}, false, nil},
		{16, [4]int{2, 2, 2, 2}, false, []int{6, 7}},
		{16, [4]int{2, 2, 1, 3}, true, []int{5, 6, 7}},
		{24, [4]int{4, 1, 1, 0}, true, []int{4, 5, 10, 11}},
	} {
		r := plain(c.dim, 10000)
		r.Sections, r.Interleaved = c.sections, c.interleaved
		var got []int
		for j, s := range r.still() {
			if s {
				got = append(got, j)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.still) {
			t.Errorf("%d elements, sections %v, interleaved %t: pairs %v stay, want %v", c.dim, c.sections, c.interleaved, got, c.still)
		}
		cos, sin := make([]float32, c.dim/2), make([]float32, c.dim/2)
		newRope(r).fill(cos, sin, 3)
		for _, j := range c.still {
			if cos[j] != 1 || sin[j] != 0 {
				t.Errorf("pair %d is turned by (%v, %v)", j, cos[j], sin[j])
			}
		}
	}
}

// TestScoreGain: the multipliers of DeepSeek's two public models.
func TestScoreGain(t *testing.T) {
	for _, c := range []struct{ mul, want float64 }{{0.0707, 1.2608}, {0.1, 1.3689}} {
		p := plain(64, 10000)
		p.Scaling, p.ExtFactor, p.Factor, p.LogMul = "yarn", 1, 40, c.mul/0.1
		if got := p.scoreGain(); math.Abs(got-c.want) > 1e-4 || p.magnitude() != 1 {
			t.Errorf("multiplier %v: gain %v and magnitude %v, want %v and 1", c.mul, got, p.magnitude(), c.want)
		}
	}
	if p := plain(64, 10000); p.scoreGain() != 1 {
		t.Errorf("gain without scaling is %v, want 1", p.scoreGain())
	}
}

// TestRopeOptions: what a user says wins over the file, as llama.cpp has it.
func TestRopeOptions(t *testing.T) {
	zero, half := 0.0, 0.5
	file := func() *reader {
		meta := &gguf.Metadata{}
		return &reader{f: &gguf.File{Path: "x.gguf", Metadata: meta}, arch: "qwen3"}
	}
	base := RopeConfig{Dim: 64, Base: 10000, Scaling: "none", Factor: 1, OrigContext: 1000, AttnFactor: 1, BetaFast: 32, BetaSlow: 1}
	for _, c := range []struct {
		o       RopeOptions
		change  func(p *RopeConfig)
		context int
	}{
		{RopeOptions{}, func(*RopeConfig) {}, 1000},
		{RopeOptions{Scaling: "linear", FreqScale: 0.25}, func(p *RopeConfig) { p.Scaling, p.Factor = "linear", 4 }, 4000},
		{RopeOptions{FreqScale: 0.5}, func(p *RopeConfig) { p.Scaling, p.Factor = "linear", 2 }, 2000},
		{RopeOptions{Scaling: "yarn", FreqScale: 0.25, OrigContext: 800, BetaFast: 20, BetaSlow: 2, AttnFactor: 1.5}, func(p *RopeConfig) {
			p.Scaling, p.Factor, p.ExtFactor, p.OrigContext, p.BetaFast, p.BetaSlow, p.AttnFactor = "yarn", 4, 1, 800, 20, 2, 1.5
		}, 3200},
		{RopeOptions{Scaling: "yarn", FreqScale: 0.25, ExtFactor: &zero}, func(p *RopeConfig) { p.Scaling, p.Factor = "yarn", 4 }, 4000},
		{RopeOptions{Scaling: "yarn", FreqScale: 0.25, ExtFactor: &half}, func(p *RopeConfig) { p.Scaling, p.Factor, p.ExtFactor = "yarn", 4, 0.5 }, 4000},
		{RopeOptions{Scaling: "none"}, func(*RopeConfig) {}, 1000},
		{RopeOptions{FreqBase: 1e6}, func(p *RopeConfig) { p.Base = 1e6 }, maxContext},
	} {
		want := base
		c.change(&want)
		cfg := Config{Context: 1000}
		r := file()
		r.rope(&cfg, 64, &c.o)
		if err := c.o.Check(); err != nil || r.err != nil {
			t.Errorf("%+v: %v, %v", c.o, err, r.err)
		}
		if cfg.Rope != want || cfg.Context != c.context {
			t.Errorf("%+v: %+v with a context of %d, want %+v with %d", c.o, cfg.Rope, cfg.Context, want, c.context)
		}
	}
	for want, o := range map[string]RopeOptions{
		`scaling is "longrope", want`: {Scaling: "longrope"}, "base is -1": {FreqBase: -1}, "base is 1,": {FreqBase: 1}, "scale is 0.5, and": {Scaling: "none", FreqScale: 0.5},
		"context is -3": {OrigContext: -3}, "beta fast is NaN": {BetaFast: math.NaN()}, "factor is -1": {AttnFactor: -1},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %q", o, err, want)
		}
	}
}
