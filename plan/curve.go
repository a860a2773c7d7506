package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"terrace/tiers"
)

// CurveVersion is the form of Curve that this program writes; it reads no other.
const CurveVersion = 1

// Curve is a model's reuse curve: what share of the experts that tokens use is found in RAM, by the share of all experts
// that fits there.
type Curve struct {
	Version int          `json:"version"`
	Source  string       `json:"source"` // the trace it comes from
	Policy  string       `json:"policy"` // of the cache
	Layers  int          `json:"layers"`
	Experts int          `json:"experts"` // of a layer
	TopK    int          `json:"top_k"`
	Tokens  int          `json:"tokens"` // that were counted
	Points  []CurvePoint `json:"points"` // rising in both

	Uncertainty float64 `json:"uncertainty,omitempty"` // by which hit rates may be off, either way; 0: that of a replay
}

// CurvePoint is one size of the cache.
type CurvePoint struct {
	Resident float64 `json:"resident"` // share of all experts
	HitRate  float64 `json:"hit_rate"` // of single tokens, once the cache is warm
}

// CurveSizes are the shares at which a curve is measured where nothing else is asked for.
var CurveSizes = []float64{0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// CurveMeter measures a curve in one pass over a trace: the cache that ships is replayed at every size at once.
type CurveMeter struct {
	curve  Curve
	sims   []*tiers.Sim
	passes int
	from   int // passes after which hits count
}

// warmPasses is how much of a trace only fills the caches.
const warmPasses = 256

// NewCurveMeter measures at the given shares, CurveSizes if nil. Shares that leave fewer slots than a token needs in one
// layer are left out.
func NewCurveMeter(source string, layers, experts, topK int, sizes []float64) (*CurveMeter, error) {
	if layers < 1 || experts < 1 || topK < 1 || topK > experts {
		return nil, fmt.Errorf("reuse curve of %s: %d layers of %d experts, %d used by a token", source, layers, experts, topK)
	}
	if sizes == nil {
		sizes = CurveSizes
	}
	m := &CurveMeter{from: warmPasses, curve: Curve{Version: CurveVersion, Source: source, Policy: tiers.Reuse.String(), Layers: layers, Experts: experts, TopK: topK}}
	bytes := make([][]int64, layers)
	for l := range bytes {
		bytes[l] = slices.Repeat([]int64{1}, experts)
	}
	for _, s := range slices.Sorted(slices.Values(sizes)) {
		if !(s > 0 && s <= 1) {
			return nil, fmt.Errorf("reuse curve of %s: a share of %g is not above 0 and at most 1", source, s)
		}
		slots := int(math.Floor(s*float64(layers*experts) + 1e-9))
		if slots < topK {
			continue
		}
		m.sims = append(m.sims, tiers.NewSim(tiers.SimConfig{Bytes: bytes, Slots: slots, TopK: topK}))
		m.curve.Points = append(m.curve.Points, CurvePoint{Resident: float64(slots) / float64(layers*experts)})
	}
	return m, nil
}

// Pass takes the experts that one token, or one batch of a prompt, used in each layer.
func (m *CurveMeter) Pass(layers [][]int32) {
	if m.passes == m.from {
		for _, s := range m.sims {
			s.Restart()
		}
	}
	m.passes++
	for _, s := range m.sims {
		s.Pass(layers)
	}
}

// Curve gives what was measured. A trace that ends before the caches are warm gives an error.
func (m *CurveMeter) Curve() (*Curve, error) {
	if m.passes <= m.from {
		return nil, fmt.Errorf("reuse curve of %s: %d tokens, want more than the %d that only fill the cache", m.curve.Source, m.passes, m.from)
	}
	c := m.curve
	c.Points = slices.Clone(c.Points)
	c.Tokens = m.passes - m.from
	low := 0.0
	for i, s := range m.sims {
		r := s.Result()
		low = max(low, r.HitRate()) // a larger cache may always do as a smaller one does
		c.Points[i].HitRate = low
	}
	return &c, c.check()
}

// HitRate is the hit rate at a share of resident experts: between points on the straight line, from 0 at 0 and to 1 at 1.
func (c *Curve) HitRate(resident float64) float64 {
	before := CurvePoint{}
	for _, p := range c.Points {
		if resident <= p.Resident {
			return between(before, p, resident)
		}
		before = p
	}
	return between(before, CurvePoint{1, 1}, min(resident, 1))
}

func between(a, b CurvePoint, x float64) float64 {
	if x <= a.Resident || b.Resident <= a.Resident {
		return a.HitRate
	}
	return a.HitRate + (b.HitRate-a.HitRate)*(x-a.Resident)/(b.Resident-a.Resident)
}

// ParseCurve reads a curve as JSON; name stands in errors.
func ParseCurve(name string, b []byte) (*Curve, error) {
	c := &Curve{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s: reuse curve: %w", name, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func (c *Curve) check() error {
	if c.Version != CurveVersion {
		return fmt.Errorf("reuse curve of version %d, this program reads version %d", c.Version, CurveVersion)
	}
	if len(c.Points) == 0 {
		return errors.New("reuse curve without points, want at least 1")
	}
	last := CurvePoint{}
	for i, p := range c.Points {
		if !(p.Resident > last.Resident && p.Resident <= 1) || !(p.HitRate >= last.HitRate && p.HitRate <= 1) {
			return fmt.Errorf("reuse curve: point %d is (%g, %g) after (%g, %g); both must rise and stay within 1", i, p.Resident, p.HitRate, last.Resident, last.HitRate)
		}
		last = p
	}
	return nil
}
