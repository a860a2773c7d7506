package model

import (
	"errors"
	"fmt"
	"math"

	"terrace/internal/fmath"
)

// RopeConfig says how positions turn queries and keys.
type RopeConfig struct {
	Dim     int // leading elements of a head that are rotated
	Base    float32
	Scaling string  // "none", "linear" or "yarn"
	Factor  float64 // positions are divided by it; 1: not scaled
	// ExtFactor mixes in the unscaled angles of the pairs that turn often: 1 for yarn, 0: all angles are scaled.
	ExtFactor          float64
	OrigContext        int     // positions before the scaling, for yarn
	AttnFactor         float64 // multiplies cosines and sines
	BetaFast, BetaSlow float64 // turns within OrigContext from which on, and up to which, a pair counts as fast and slow
	// LogMul is deepseek2's multiplier of ln(Factor) in the scale of scores, which then takes the place of yarn's own
	// magnitude; 0: there is none.
	LogMul float64
	// Sections cuts the pairs into those turned by time, height, width and a fourth position; all zero: one position for all.
	// The first three are a text's position, the fourth is 0.
	Sections [4]int
	// Interleaved sections alternate (IMROPE) instead of following each other.
	Interleaved bool
	Factors     bool // the file's rope_freqs.weight divides the angles
}

// RopeOptions take the place of what a file says about rotation, to extend its context. The zero value of each field
// leaves it to the file.
type RopeOptions struct {
	Scaling     string   // "none", "linear" or "yarn"
	FreqBase    float64  // base of the angles
	FreqScale   float64  // positions are multiplied by it: 1/4 for four times the context
	OrigContext int      // yarn: positions of the model before scaling
	ExtFactor   *float64 // yarn: share of unscaled angles; nil: 1 for yarn and 0 otherwise
	AttnFactor  float64  // yarn: multiplies the magnitude
	BetaFast    float64  // yarn: turns from which on a pair is fast
	BetaSlow    float64  // yarn: turns up to which a pair is slow
}

// IsSet reports whether any field departs from the file.
func (o *RopeOptions) IsSet() bool { return *o != RopeOptions{} }

// Check refuses values that cannot be meant.
func (o *RopeOptions) Check() error {
	for _, v := range []struct {
		name  string
		value float64
	}{{"frequency base", o.FreqBase}, {"frequency scale", o.FreqScale}, {"yarn attention factor", o.AttnFactor}, {"yarn beta fast", o.BetaFast}, {"yarn beta slow", o.BetaSlow}} {
		if !(v.value >= 0) || v.value > math.MaxFloat32 {
			return fmt.Errorf("rope: %s is %v, want a finite number above 0", v.name, v.value)
		}
	}
	if e := o.ExtFactor; e != nil && !(*e >= 0 && *e <= math.MaxFloat32) {
		return fmt.Errorf("rope: yarn extrapolation factor is %v, want a finite number of at least 0", *e)
	}
	if o.OrigContext < 0 || o.OrigContext > maxContext {
		return fmt.Errorf("rope: original context is %d, want 1 to %d", o.OrigContext, maxContext)
	}
	switch o.Scaling {
	case "", "linear", "yarn":
	case "none":
		if o.FreqScale != 0 && o.FreqScale != 1 {
			return fmt.Errorf("rope: frequency scale is %v, and scaling is none", o.FreqScale)
		}
	default:
		return fmt.Errorf("rope: scaling is %q, want none, linear or yarn", o.Scaling)
	}
	if o.FreqBase == 1 {
		return errors.New("rope: frequency base is 1, which turns all pairs alike")
	}
	return nil
}

// rope reads the rotation of heads of keyDim elements. It raises c.Context where the options extend it.
func (r *reader) rope(c *Config, keyDim int, o *RopeOptions) {
	p := &c.Rope
	p.Dim = r.count("rope.dimension_count", keyDim, maxWidth)
	p.Base = float32(r.number("rope.freq_base", 10000))
	if p.Dim%2 != 0 || p.Dim > keyDim {
		r.refuse("metadata key %q is %d, want an even number of at most %d, the head size", r.key("rope.dimension_count"), p.Dim, keyDim)
	}
	p.Factor = r.number("rope.scaling.factor", r.number("rope.scale_linear", 1))
	kind := r.key("rope.scaling.type")
	s, err := r.f.Metadata.StringOr(kind, "linear")
	r.take(err)
	if s != "none" && s != "linear" && s != "yarn" {
		r.refuse("metadata key %q is %.80q, want none, linear or yarn", kind, s)
	}
	p.OrigContext = r.count("rope.scaling.original_context_length", c.Context, maxContext)
	p.AttnFactor = r.number("rope.scaling.attn_factor", 1)
	p.BetaFast = r.number("rope.scaling.yarn_beta_fast", 32)
	p.BetaSlow = r.number("rope.scaling.yarn_beta_slow", 1)
	p.ExtFactor = -1
	if k := r.key("rope.scaling.yarn_ext_factor"); r.f.Metadata.Has(k) {
		p.ExtFactor, err = r.f.Metadata.Float(k)
		r.take(err)
	}
	if k := r.key("rope.scaling.yarn_log_multiplier"); r.f.Metadata.Has(k) {
		p.LogMul, err = r.f.Metadata.Float(k)
		r.take(err)
		switch {
		case !(math.Abs(p.LogMul) <= math.MaxFloat32):
			r.refuse("metadata key %q is %v, want a finite number", k, p.LogMul)
		case r.arch != "deepseek2" && p.LogMul != 0:
			r.refuse("metadata key %q is set, and %s has no rule for it", k, r.arch)
		}
		p.LogMul /= 0.1 // the file holds a tenth of the model's multiplier
	}
	p.Scaling = s
	r.trained = *p
	p.apply(o)
	if p.ExtFactor != 0 && p.Base == 1 {
		r.refuse("metadata key %q is 1, and yarn needs another base", r.key("rope.freq_base"))
	}
	switch {
	case o.FreqBase != 0:
		c.Context = maxContext // how far a new base reaches, nobody but the user can say
	case o.IsSet():
		c.Context = int(min(maxContext, max(float64(c.Context), math.Round(float64(p.OrigContext)*p.Factor))))
	}
}

// apply puts the options in the place of what the file says and settles what follows from the kind of scaling.
func (p *RopeConfig) apply(o *RopeOptions) {
	if o.Scaling != "" {
		p.Scaling = o.Scaling
	}
	if o.FreqScale != 0 {
		p.Factor = 1 / o.FreqScale
	}
	if o.FreqBase != 0 {
		p.Base = float32(o.FreqBase)
	}
	if o.OrigContext != 0 {
		p.OrigContext = o.OrigContext
	}
	if o.AttnFactor != 0 {
		p.AttnFactor *= o.AttnFactor
	}
	if o.BetaFast != 0 {
		p.BetaFast = o.BetaFast
	}
	if o.BetaSlow != 0 {
		p.BetaSlow = o.BetaSlow
	}
	if o.ExtFactor != nil {
		p.ExtFactor = *o.ExtFactor
	}
	if p.Scaling == "none" {
		p.Factor = 1
	}
	if p.ExtFactor < 0 {
		p.ExtFactor = 0
		if p.Scaling == "yarn" {
			p.ExtFactor = 1
		}
	}
	if p.Scaling == "linear" && p.Factor == 1 {
		p.Scaling = "none"
	}
}

// sections reads the cut of the pairs into several positions; it is optional.
func (r *reader) sections(p *RopeConfig, interleaved bool) {
	key := r.key("rope.dimension_sections")
	if !r.f.Metadata.Has(key) {
		return
	}
	v, err := r.f.Metadata.Ints(key)
	if err != nil {
		r.take(err)
		return
	}
	sum := int64(0)
	for i, n := range v {
		if i >= len(p.Sections) || n < 0 || n > int64(p.Dim) {
			r.refuse("metadata key %q is %v, want 4 counts of the %d pairs", key, v, p.Dim/2)
			return
		}
		p.Sections[i], sum = int(n), sum+n
	}
	if sum == 0 {
		r.refuse("metadata key %q is %v, all of them 0", key, v)
	}
	p.Interleaved = interleaved
}

// yarnGain is yarn's magnitude for scores over a context longer by factor f.
func yarnGain(f, mul float64) float64 {
	if f <= 1 {
		return 1
	}
	return 1 + float64(0.1*mul*fmath.Log(f))
}

// magnitude multiplies cosines and sines.
func (p *RopeConfig) magnitude() float64 {
	if p.ExtFactor == 0 || p.LogMul != 0 {
		return p.AttnFactor
	}
	return p.AttnFactor * yarnGain(p.Factor, 1)
}

// scoreGain is what deepseek2 multiplies the scale of scores by, once for queries and once for keys.
func (p *RopeConfig) scoreGain() float64 {
	gain := p.magnitude()
	if p.ExtFactor == 0 {
		gain *= 1 + float64(0.1*fmath.Log(p.Factor))
	}
	return gain * (1 + float64(0.1*p.LogMul*fmath.Log(p.Factor)))
}

// rope turns positions into the cosines and sines of a rotation, with the same bits on every machine.
type rope struct {
	c       RopeConfig
	pairs   int     // rotated elements of a head / 2
	step    float32 // base^(-2/dim): from one pair's angle to the next one's
	scale   float32 // of positions
	ramp    []float32
	mag     float32   // multiplies cosines and sines
	factors []float32 // an angle is divided by its own; nil: none
	still   []bool    // pairs that text does not turn; nil: none
}

// newRope prepares the rotation of c.
func newRope(c RopeConfig) *rope {
	r := &rope{c: c, pairs: c.Dim / 2, scale: float32(1 / c.Factor), mag: float32(c.magnitude())}
	r.step = float32(fmath.Pow(float64(c.Base), float64(float32(-2)/float32(c.Dim))))
	if c.Sections != [4]int{} {
		r.still = c.still()
	}
	if c.ExtFactor == 0 {
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
		r.ramp[j] = float32((1 - min(1, max(0, (float32(j)-low)/max(0.001, high-low)))) * float32(c.ExtFactor))
	}
	return r
}

// check refuses factors that are not above zero, once they are there.
func (r *rope) check() error {
	for i, f := range r.factors {
		if !(f > 0) {
			return fmt.Errorf("tensor %q: factor %d is %v, want a number above 0", "rope_freqs.weight", i, f)
		}
	}
	return nil
}

// still lists the pairs that belong to the fourth position, which text leaves at 0; nil where there are none.
func (c *RopeConfig) still() []bool {
	s := c.Sections
	all := s[0] + s[1] + s[2] + s[3]
	var still []bool
	for j := range c.Dim / 2 {
		k := j % all
		turned := k < s[0]+s[1]+s[2]
		if c.Interleaved {
			turned = k < 3*s[k%3]
		}
		if !turned {
			if still == nil {
				still = make([]bool, c.Dim/2)
			}
			still[j] = true
		}
	}
	return still
}

// fill sets the cosines and sines of position p for each pair. The angle of a pair is the float32 product of the one
// before it and step, beginning at p, as ggml has it: at long positions the rounding of that recurrence shows in logits.
func (r *rope) fill(cos, sin []float32, p int) {
	theta := float32(p)
	for j := range r.pairs {
		raw := theta
		switch {
		case r.still != nil && r.still[j]:
			raw = 0
		case r.factors != nil:
			raw = float32(theta / r.factors[j])
		}
		t := float32(r.scale * raw)
		if r.ramp != nil {
			t = float32(t*(1-r.ramp[j])) + float32(raw*r.ramp[j])
		}
		s, c := fmath.Sincos(float64(t))
		cos[j] = float32(float32(c) * r.mag)
		sin[j] = float32(float32(s) * r.mag)
		theta = float32(theta * r.step)
	}
}
