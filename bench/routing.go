package bench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"terrace/router"
)

// Routing is which experts a run of tokens used: what a cache policy is tried on.
type Routing struct {
	Name    string `json:"name"`
	Experts int    `json:"experts_per_layer"`
	TopK    int    `json:"experts_per_token"`
	Layers  int    `json:"layers"`
	Tokens  int    `json:"tokens"`

	Texts  []int       `json:"-"` // the number of each token's text
	Passes [][][]int32 `json:"-"` // [token][layer], in the order of choice
}

// ReadRouting reads a routing trace, at most limit tokens of it (0: all). A trace does not say how many experts a layer
// has: experts is their number, 0 takes the largest number that occurs, plus one.
func ReadRouting(path string, limit, experts int) (*Routing, error) {
	t, err := router.OpenTrace(path)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	r := &Routing{Name: filepath.Base(path)}
	var line router.TraceLine
	most := int32(-1)
	for limit == 0 || r.Tokens < limit {
		if err := t.Next(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		pass := make([][]int32, len(line.Experts))
		for l, ids := range line.Experts {
			pass[l] = slices.Clone(ids)
			r.TopK = max(r.TopK, len(ids))
			for _, e := range ids {
				most = max(most, e)
			}
		}
		r.Passes = append(r.Passes, pass)
		r.Texts = append(r.Texts, line.Seq)
		r.Tokens, r.Layers = r.Tokens+1, len(pass)
	}
	if r.Tokens == 0 || most < 0 {
		return nil, fmt.Errorf("%s: no token with experts, want at least 1", path)
	}
	r.Experts = int(most) + 1
	if experts != 0 {
		if experts < r.Experts {
			return nil, fmt.Errorf("%s: expert %d occurs, a layer is said to have %d", path, most, experts)
		}
		r.Experts = experts
	}
	return r, nil
}

// total is the number of experts of all layers.
func (r *Routing) total() int { return r.Layers * r.Experts }

// bytes are expert sizes for a simulation: all alike.
func (r *Routing) bytes() [][]int64 {
	b := make([][]int64, r.Layers)
	for l := range b {
		b[l] = make([]int64, r.Experts)
		for e := range b[l] {
			b[l][e] = 1
		}
	}
	return b
}

// prompt says that a pass is a batch of several tokens: it is replayed, its hits are not counted.
func (r *Routing) prompt(pass [][]int32) bool {
	return slices.ContainsFunc(pass, func(ids []int32) bool { return len(ids) > r.TopK })
}

// WithPrompts gives the routing in which the first n tokens of each text are read as one batch, as a prompt is: one pass
// with the experts that any of them used.
func (r *Routing) WithPrompts(n int) *Routing {
	if n < 2 {
		return r
	}
	out := *r
	out.Name = fmt.Sprintf("%s, prompts of %d", r.Name, n)
	out.Texts, out.Passes = nil, nil
	for i := 0; i < len(r.Passes); {
		end := i + 1
		if i == 0 || r.Texts[i] != r.Texts[i-1] {
			for end < len(r.Passes) && end-i < n && r.Texts[end] == r.Texts[i] {
				end++
			}
		}
		pass := make([][]int32, r.Layers)
		for l := range pass {
			for _, p := range r.Passes[i:end] {
				for _, e := range p[l] {
					if !slices.Contains(pass[l], e) {
						pass[l] = append(pass[l], e)
					}
				}
			}
		}
		out.Passes, out.Texts = append(out.Passes, pass), append(out.Texts, r.Texts[i])
		i = end
	}
	out.Tokens = len(out.Passes)
	return &out
}

// RoutingConfig describes invented routing. In every layer some experts are more popular than others, as Zipf's law has
// it; a new topic shuffles the popularity, or it drifts from token to token; and what the last token used is likely to
// be used again.
type RoutingConfig struct {
	Name                          string
	Layers, Experts, TopK, Tokens int
	Seed                          uint64

	Skew  float64 // exponent of Zipf's law
	Reuse float64 // probability that an expert of the last token is kept, for each
	Topic int     // tokens of a topic; 0: one topic
	Turn  float64 // deviation of the logarithm of popularity from topic to topic
	Drift float64 // the same from token to token; it is pulled back so that the deviation stays near Turn
}

// Invented are the routings that `bench cache` makes when it has no trace: popularity mildly and strongly unequal, with
// topics, and popularity that drifts.
func Invented() []RoutingConfig {
	base := RoutingConfig{Layers: 12, Experts: 64, TopK: 4, Tokens: 3000}
	mild, strong, drifting := base, base, base
	mild.Name, mild.Seed, mild.Skew, mild.Reuse, mild.Topic, mild.Turn = "mild", 1, 0.6, 0.25, 300, 1
	strong.Name, strong.Seed, strong.Skew, strong.Reuse, strong.Topic, strong.Turn = "strong", 2, 1, 0.15, 300, 1
	drifting.Name, drifting.Seed, drifting.Skew, drifting.Reuse, drifting.Turn, drifting.Drift = "drifting", 3, 0.6, 0.2, 1.2, 0.1
	return []RoutingConfig{mild, strong, drifting}
}

// MakeRouting invents routing; the same config gives the same routing.
func MakeRouting(c RoutingConfig) *Routing {
	r := &Routing{Name: c.Name, Experts: c.Experts, TopK: c.TopK, Layers: c.Layers, Tokens: c.Tokens}
	src := rand.New(rand.NewPCG(c.Seed, 0x7e44ace))
	base := make([][]float64, c.Layers)  // log popularity of the place in Zipf's law
	shift := make([][]float64, c.Layers) // what topic or drift add to it
	for l := range base {
		base[l], shift[l] = make([]float64, c.Experts), make([]float64, c.Experts)
		for place, e := range src.Perm(c.Experts) {
			base[l][e] = -c.Skew * math.Log(float64(place+1))
			shift[l][e] = c.Turn * src.NormFloat64()
		}
	}
	pull := 1.0
	if c.Drift > 0 && c.Turn > 0 {
		pull = math.Sqrt(max(0, 1-c.Drift*c.Drift/(c.Turn*c.Turn)))
	}
	weight := make([]float64, c.Experts)
	text := 0
	for t := range c.Tokens {
		if c.Topic > 0 && t > 0 && t%c.Topic == 0 {
			text++
			for l := range shift {
				for e := range shift[l] {
					shift[l][e] = c.Turn * src.NormFloat64()
				}
			}
		}
		pass := make([][]int32, c.Layers)
		for l := range pass {
			sum := 0.0
			for e := range weight {
				if c.Drift > 0 {
					shift[l][e] = pull*shift[l][e] + c.Drift*src.NormFloat64()
				}
				weight[e] = math.Exp(base[l][e] + shift[l][e])
				sum += weight[e]
			}
			var ids []int32
			if t > 0 {
				for _, e := range r.Passes[t-1][l] {
					if src.Float64() < c.Reuse {
						ids = append(ids, e)
						sum -= weight[e]
						weight[e] = 0
					}
				}
			}
			for len(ids) < c.TopK {
				x := src.Float64() * sum
				pick := -1
				for e, w := range weight {
					if w > 0 {
						pick = e
						if x -= w; x < 0 {
							break
						}
					}
				}
				ids = append(ids, int32(pick))
				sum -= weight[pick]
				weight[pick] = 0
			}
			pass[l] = ids
		}
		r.Passes, r.Texts = append(r.Passes, pass), append(r.Texts, text)
	}
	return r
}
