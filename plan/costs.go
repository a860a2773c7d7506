package plan

import (
	"errors"
	"math"
)

// Trial is what a model of known shape did on a machine of known rates; speeds are tokens per second.
type Trial struct {
	Decode  float64 // all experts resident
	Prefill float64 // the same, a prompt of a batch
	Starved float64 // decoding with a part of the experts resident
	Bytes   float64 // that a token read then
	Wait    float64 // seconds of a token that it waited for reads then
	Busy    float64 // seconds of a token that the disk was at work then
	Prompt  float64 // a prompt of a batch then
	Read    float64 // bytes that the prompt read
	Waited  float64 // seconds that the prompt waited for them
}

// FitCosts finds what an engine takes beyond sums of bytes over rates, from a trial. Figures that a disturbed measurement
// would give are held within what any machine can show.
func FitCosts(s Shape, m Machine, t Trial) (Costs, error) {
	if !(t.Decode > 0 && t.Prefill > 0 && t.Starved > 0) {
		return Costs{}, errors.New("a trial without speeds says nothing about an engine")
	}
	if err := m.check(); err != nil {
		return Costs{}, err
	}
	hold := func(v, low, high float64) float64 {
		if math.IsNaN(v) {
			return low
		}
		return min(max(v, low), high)
	}
	c := DefaultCosts
	// Row, Ask and PromptAsk are taken off what was measured instead.
	m.Engine = Costs{Efficiency: 1, Prefill: 1, Layer: c.Layer, Read: c.Read, ReadPrompt: c.ReadPrompt, Held: c.Held, Overlap: c.Overlap, Exposed: c.Exposed, Latency: c.Latency}
	full := s.Fixed
	full.Slots = full.Experts
	p := Plan{Machine: m, shape: s, curve: DefaultCurve(s.Arch)}
	layers := float64(s.Layers) * c.Layer
	ideal := p.decode(placed{ram: full}, hits{all: 1}).Token - layers
	c.Efficiency = hold(ideal/(1/t.Decode-layers), 0.1, 1.5)
	rows := float64(min(s.Batch, promptTokens, s.Context))
	ideal = rows/p.prefill(placed{ram: full}) - layers
	c.Prefill = hold(ideal/(rows/t.Prefill-layers-rows*s.RowOps/1e9*c.Row), 0.1, 1.5)
	if t.Bytes > 0 {
		work := 1/t.Starved - t.Wait
		c.Read = hold((work-1/t.Decode-float64(s.ExpertLayers)*c.Ask)/(t.Bytes/1e9), 0.02, 3)
		c.Held = 2 * c.Read // as where both were measured (DefaultCosts)
		if work > 0 && t.Busy > 0 {
			c.Overlap = hold((t.Busy-t.Wait)/work, 0.1, 0.95)
		}
	}
	if t.Prompt > 0 && t.Read > 0 {
		c.ReadPrompt = hold((rows/t.Prompt-t.Waited-rows/t.Prefill-t.Read/s.MeanExpert()*c.PromptAsk)/(t.Read/1e9), 0.02, 3)
	}
	return c, nil
}
