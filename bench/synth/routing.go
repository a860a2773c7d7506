package synth

import "math"

// routing makes embeddings and routers that go together, so that the choice of experts has what a cache and a guess live
// on: some experts are wanted more than others (Skew), the experts of a layer go with those of the layer before
// (Corr), and tokens of a topic choose alike (Topics).
//
// Every embedding leans by align along one common direction, through which a router's preference acts for every token;
// the rest of it is the token's own, or its topic's. Blocks add little to the residual (Gain), so that this passes
// through the layers.
type routing struct {
	o       *Options
	hidden  int
	experts int
	in      float64 // what makes up for inputs of routers and head that are smaller than 1
	gain    float64

	common []float32
	pool   []float32   // normal numbers, of which each token takes a window
	topics [][]float32 // directions

	layer  int         // whose rows these are; -1: none yet
	noise  [][]float32 // of unit size, without a share along common
	prefer []float64   // in units of scores
}

const (
	align      = 0.5 // share of an embedding along the common direction
	topicShare = 0.6 // of what is not, along the topic's
	routerSize = 1.5 // deviation of router scores between tokens
)

func newRouting(o *Options, s *shape) *routing {
	return &routing{o: o, hidden: s.hidden, experts: s.experts, in: 1, gain: o.Gain, layer: -1}
}

// directions makes what embeddings and routers share, on first use.
func (g *routing) directions() {
	if g.common != nil {
		return
	}
	r := newRandom(g.o.Seed, "common")
	g.common = make([]float32, g.hidden)
	for i := range g.common {
		g.common[i] = float32(int(r.next()&1)*2 - 1)
	}
	g.pool = make([]float32, 1<<18)
	for i := range g.pool {
		g.pool[i] = float32(r.normal())
	}
	for range g.o.Topics {
		v := make([]float32, g.hidden)
		g.normal(r, v)
		g.topics = append(g.topics, v)
	}
}

// normal fills v with normal numbers that have nothing along the common direction.
func (g *routing) normal(r *random, v []float32) {
	dot := 0.0
	for i := range v {
		v[i] = float32(r.normal())
		dot += float64(v[i] * g.common[i])
	}
	for i := range v {
		v[i] -= float32(dot/float64(len(v))) * g.common[i]
	}
}

// own is the part of a token's embedding that is not common, of size 1.
func (g *routing) own(token int, v []float32) {
	r := newRandom(g.o.Seed, "token")
	r.state += uint64(token) * 0xd1342543de82ef95
	at := int(r.next() % uint64(len(g.pool)-len(v)))
	window := g.pool[at : at+len(v)]
	if len(g.topics) == 0 {
		copy(v, window)
		return
	}
	topic, w := g.topics[token%len(g.topics)], float32(math.Sqrt(1-topicShare*topicShare))
	for i := range v {
		v[i] = w*window[i] + topicShare*topic[i]
	}
}

// embeddings fills whole rows from token first on.
func (g *routing) embeddings(first int, dst []float32, scale float64) {
	g.directions()
	a, w := float32(scale*align), float32(scale*math.Sqrt(1-align*align))
	for ; len(dst) > 0; first++ {
		v := dst[:g.hidden]
		g.own(first, v)
		for i := range v {
			v[i] = a*g.common[i] + w*v[i]
		}
		dst = dst[g.hidden:]
	}
}

// heads fills rows of an output matrix that makes the next token of a topic the likeliest after a token.
func (g *routing) heads(first int, dst []float32) {
	g.directions()
	for ; len(dst) > 0; first++ {
		v := dst[:g.hidden]
		prev := first - len(g.topics)
		if prev < 0 {
			prev = first
		}
		g.own(prev, v)
		for i := range v {
			v[i] *= 12 * float32(g.in) / float32(g.hidden)
		}
		dst = dst[g.hidden:]
	}
}

// router fills whole rows of a layer's router from expert first on.
func (g *routing) router(layer, first int, dst []float32) {
	g.advance(layer)
	// The residual grows by its blocks, and the common direction's share of it falls.
	depth := math.Sqrt(1 + 1.1*float64(layer)*g.gain*g.gain)
	n := float32(g.in * routerSize / math.Sqrt(float64(g.hidden)))
	for e := first; len(dst) > 0; e++ {
		b := float32(g.in * g.prefer[e] * depth / (align * float64(g.hidden)))
		for i, x := range g.noise[e] {
			dst[i] = n*x + b*g.common[i]
		}
		dst = dst[g.hidden:]
	}
}

// advance walks the routers to a layer, since each resembles the one before.
func (g *routing) advance(layer int) {
	g.directions()
	if layer < g.layer {
		g.layer = -1
	}
	for g.layer < layer {
		g.layer++
		r := newRandom(g.o.Seed, "router")
		r.state += uint64(g.layer) * 0xd1342543de82ef95
		g.prefer = make([]float64, g.experts)
		for rank, e := range r.shuffled(g.experts) {
			g.prefer[e] = -g.o.Skew * math.Log(float64(rank+1))
		}
		order, noise := r.shuffled(g.experts), make([][]float32, g.experts)
		c := g.o.Corr
		w := float32(math.Sqrt(1 - c*c))
		for e := range noise {
			noise[e] = make([]float32, g.hidden)
			g.normal(r, noise[e])
			if g.layer > 0 && c > 0 {
				for i, x := range g.noise[order[e]] {
					noise[e][i] = float32(c)*x + w*noise[e][i]
				}
			}
		}
		g.noise = noise
	}
}
