package tiers

import (
	"fmt"
	"math"
)

// policy scores experts by their uses: among those that may leave, the lowest score leaves first. It only orders; what
// may leave is residency's. Scores are kept for absent experts too, so that one that returns is known.
type policy interface {
	// visit counts one use of each of a layer's distinct experts: once for each Begin.
	visit(layer int, experts []int32)
	// score must not change but by visits of its layer and rescale.
	score(layer, expert int) float64
	// rank makes scores of different layers comparable: away is the time until the layer's next turn, in passes over all
	// layers, above 0 and at most 1. It rises with the score.
	rank(score, away float64) float64
	// seed says how often each of a layer's experts was used in a visit, on average, in earlier runs.
	seed(layer int, use []float32)
	// capacity tells how many experts fit into the cache now.
	capacity(slots int)
	// rescale answers true when scores of layers not visited changed since the last call.
	rescale() bool
}

// newPolicy makes the policy of that name for layers of so many experts.
func newPolicy(p Policy, sizes []int, topK, halfLife int) policy {
	if halfLife == 0 {
		halfLife = 64
	}
	switch p {
	case Reuse:
		return newReuse(sizes, topK)
	case EWMA:
		return newEWMA(sizes, halfLife)
	case LRU:
		return newLRU(sizes)
	}
	panic(fmt.Sprintf("tiers: policy %d", p))
}

// PolicyBytes is the memory on the heap that the policy keeps for layers of so many experts, about.
func PolicyBytes(p Policy, sizes []int) int64 {
	n := int64(0)
	for _, s := range sizes {
		n += 8 * int64(s)
		if p == Reuse {
			n += 4 * int64(s) * int64(s+2*len(reuseLayer{}.inputs)+3)
		}
	}
	return n
}

// ewma is decayed frequency: a use counts half as much after halfLife visits of its layer.
//
// Instead of shrinking all scores at each visit, the weight of a new use grows: 2^(visits/halfLife). Scores stay exact
// functions of the history (a table of halfLife roots, powers of two, additions in the order of uses), so that two runs
// evict alike, and untouched scores never change except by rescale.
//
// Why: on tiny-moe's recorded routing decayed frequency beats LRU by 6 to 28 points and LFU by 8 to 16, flat between
// half-lives of 16 and 64; LRU hits nothing when the cache is smaller than one token's experts.
type ewma struct {
	halfLife int
	roots    []float64 // 2^(i/halfLife)
	pass     []int     // visits of each layer
	latest   int       // greatest of pass
	scores   [][]float64
	base     int // the power of two already divided out
	scaled   bool
}

// maxPower is when scores are scaled down: sums of uses stay far below the largest float64.
const maxPower = 512

func newEWMA(sizes []int, halfLife int) *ewma {
	p := &ewma{halfLife: halfLife, pass: make([]int, len(sizes)), roots: make([]float64, halfLife)}
	for i := range p.roots {
		p.roots[i] = math.Exp2(float64(i) / float64(halfLife))
	}
	for _, n := range sizes {
		p.scores = append(p.scores, make([]float64, n))
	}
	return p
}

func (p *ewma) visit(layer int, experts []int32) {
	// A layer that was passed over (a run that was cancelled in the middle) must not count in a currency of its own for
	// ever: it may lag by a quarter of the half-life, room enough for several sequences that take turns between layers.
	p.pass[layer] = max(p.pass[layer]+1, p.latest-p.halfLife/4)
	p.latest = max(p.latest, p.pass[layer])
	if p.latest/p.halfLife-p.base > maxPower {
		for _, s := range p.scores {
			for i := range s {
				s[i] = math.Ldexp(s[i], -maxPower)
			}
		}
		p.base += maxPower
		p.scaled = true
	}
	n := p.pass[layer]
	use := math.Ldexp(p.roots[n%p.halfLife], n/p.halfLife-p.base)
	for _, e := range experts {
		p.scores[layer][e] += use
	}
}

func (p *ewma) score(layer, expert int) float64 { return p.scores[layer][expert] }
func (p *ewma) rank(score, _ float64) float64   { return score }

// seed gives the score that such use would have had for ever.
func (p *ewma) seed(layer int, use []float32) {
	n := p.pass[layer]
	sum := math.Ldexp(p.roots[n%p.halfLife], n/p.halfLife-p.base) / (1 - 1/math.Exp2(1/float64(p.halfLife)))
	for e, u := range use {
		p.scores[layer][e] = sum * float64(u)
	}
}

func (p *ewma) capacity(int) {}

func (p *ewma) rescale() bool {
	s := p.scaled
	p.scaled = false
	return s
}

// lru scores by the time of the last use.
type lru struct {
	clock float64 // visits of any layer; exact up to 2^53
	last  [][]float64
}

func newLRU(sizes []int) *lru {
	p := &lru{}
	for _, n := range sizes {
		p.last = append(p.last, make([]float64, n))
	}
	return p
}

func (p *lru) visit(layer int, experts []int32) {
	p.clock++
	for _, e := range experts {
		p.last[layer][e] = p.clock
	}
}

func (p *lru) score(layer, expert int) float64 { return p.last[layer][expert] }
func (p *lru) rank(score, _ float64) float64   { return score }
func (p *lru) seed(int, []float32)             {}
func (p *lru) capacity(int)                    {}
func (p *lru) rescale() bool                   { return false }
