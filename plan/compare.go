package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
)

// LowBits is the bits of a routed weight below which models are known to fall into loops before anything else shows.
const LowBits = 3.5

// Divergence is how far a quantised model was measured to be from its original.
type Divergence struct {
	Model   string  `json:"model"` // general.name
	Types   string  `json:"types"` // of routed experts, as Shape.Types
	Bits    float64 `json:"bits"`  // of a routed weight
	Against string  `json:"against"`
	KLD     float64 `json:"kld"`  // mean Kullback-Leibler divergence of next-token distributions, natural units
	Top1    float64 `json:"top1"` // share of equal first choices
	Ratio   float64 `json:"ppl_ratio"`
	Source  string  `json:"source"` // who measured it, on what
}

// divergences are the measurements that ship. One is listed only with its source, so that there are few.
var divergences = sync.OnceValue(func() (all []Divergence) {
	b, err := data.ReadFile("data/divergence.json")
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		panic("plan: data/divergence.json: " + err.Error())
	}
	return all
})

// Measured finds a measurement of the file whose shape is s: the same model, in the same types to a hundredth of a bit. nil
// where nobody is known to have measured it.
func (s *Shape) Measured() *Divergence {
	for _, d := range divergences() {
		if s.Model != "" && strings.EqualFold(d.Model, s.Model) && d.Types == s.Types && math.Abs(d.Bits-s.BitsPerWeight()) < 0.01 {
			return &d
		}
	}
	return nil
}

// Candidate is one of several files of a model.
type Candidate struct {
	Name     string
	Bits     float64 // of a routed weight; of any where there are no experts
	Measured *Divergence
	Row      Row // what the machine does with it
}

// Low says whether c has so few bits that it needs a warning.
func (c *Candidate) Low() bool { return c.Bits < LowBits }

// Choose says which candidate to take, -1 for none, and why. Quality decides: the least measured divergence where all that
// could be taken were measured, else the most bits. Speed only bounds the choice: what decodes fewer than speed tokens a second
// is not taken while something does; and what has fewer bits than LowBits is not taken at all.
func Choose(cs []Candidate, speed float64) (take int, why string) {
	var fit, low, fast []int
	for i := range cs {
		switch c := &cs[i]; {
		case !c.Row.Fits:
		case c.Low():
			low = append(low, i)
		default:
			if fit = append(fit, i); c.Row.Decode >= speed {
				fast = append(fast, i)
			}
		}
	}
	most := func(of []int, v func(*Candidate) float64) int {
		best := of[0]
		for _, i := range of[1:] {
			if v(&cs[i]) > v(&cs[best]) {
				best = i
			}
		}
		return best
	}
	bits := func(c *Candidate) float64 { return c.Bits }
	switch {
	case len(fast) > 0:
		measured := true
		for _, i := range fast {
			measured = measured && cs[i].Measured != nil
		}
		if measured && len(fast) > 1 {
			i := most(fast, func(c *Candidate) float64 { return -c.Measured.KLD })
			return i, fmt.Sprintf("the least measured divergence of the %d that fit, have %g bits a weight and reach %g tokens/s", len(fast), LowBits, speed)
		}
		i := most(fast, bits)
		return i, fmt.Sprintf("the most bits a weight, %.2f, of the %d that fit, have at least %g and reach %g tokens/s", cs[i].Bits, len(fast), LowBits, speed)
	case len(fit) > 0:
		i := most(fit, func(c *Candidate) float64 { return c.Row.Decode })
		return i, fmt.Sprintf("none reaches %g tokens/s; of the %d that fit and have at least %g bits a weight it comes nearest", speed, len(fit), LowBits)
	case len(low) > 0:
		i := most(low, bits)
		return -1, fmt.Sprintf("only files below %g bits a weight fit, which tend to loop; %s has the most bits, %.2f: a smaller model in more bits is the better choice", LowBits, cs[i].Name, cs[i].Bits)
	case len(cs) == 0:
		return -1, "there is nothing to choose from"
	}
	i := most(allOf(len(cs)), func(c *Candidate) float64 { return -float64(c.Row.Least) })
	return -1, fmt.Sprintf("none fits; the least that any needs is a budget of %d bytes, for %s", cs[i].Row.Least, cs[i].Name)
}

func allOf(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
