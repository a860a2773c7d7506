package tiers

import (
	"fmt"
	"slices"
)

// SimConfig says what Simulate replays and on what.
type SimConfig struct {
	Bytes    [][]int64 // of each expert, by layer
	Slots    int       // experts that fit, all in slots of the largest size
	Arena    int64     // or, if not 0, the bytes of an arena of slots of each layer's size
	TopK     int       // experts a token uses in a layer
	Policy   Policy
	HalfLife int // of EWMA; 64 when 0

	Without ReuseParts // parts of Reuse left out, to see what they are worth
	Order   Order      // a candidate in the place of Policy; nil: Policy

	// Ahead is how many layers ahead the choices are known, across passes too, and protected if they are resident: what
	// a perfect lookahead is worth to the cache. With AheadReads those that are absent are read early as well. 0: none.
	Ahead      int
	AheadReads bool
}

// Order is a policy that does not ship, for comparisons: the door through which candidates come.
type Order interface {
	// Visit counts one use of each of a layer's distinct experts.
	Visit(layer int, experts []int32)
	// Score of an expert: the lowest leaves first, whatever its layer. It may change by any Visit.
	Score(layer, expert int) float64
}

// SimResult counts what a replay did. A read is an expert that had to be brought from disk.
type SimResult struct {
	Touches, Reads        int64 // of passes of single tokens
	TouchBytes, ReadBytes int64

	PromptTouches, PromptReads   int64 // of passes in which a layer wants more than TopK experts
	PromptBytes, PromptReadBytes int64 // touched, read
}

// HitRate is the share of single tokens' touches that needed no read.
func (r *SimResult) HitRate() float64 { return share(r.Touches-r.Reads, r.Touches) }

// ByteHitRate is the same by bytes.
func (r *SimResult) ByteHitRate() float64 { return share(r.TouchBytes-r.ReadBytes, r.TouchBytes) }

func share(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Sim is a replay that is fed pass by pass.
type Sim struct {
	c      SimConfig
	m      *simMover
	r      request
	future [][][]int32 // passes from the present one on, as far as Ahead needs them
	listed []int32
	res    SimResult
}

// NewSim makes a replay on the residency that ships, with reads that take no time: what it measures is what the cache
// would do. It starts with nothing resident. Numbers that cannot be are a programmer's mistake and panic.
func NewSim(c SimConfig) *Sim {
	counts := make([]int, len(c.Bytes))
	for i, b := range c.Bytes {
		counts[i] = len(b)
	}
	if c.TopK < 1 || c.Arena == 0 && c.Slots < c.TopK {
		panic(fmt.Sprintf("tiers: a simulation of %d slots for %d experts a token", c.Slots, c.TopK))
	}
	var p policy
	if c.Order != nil {
		p = orderPolicy{c.Order}
	} else {
		p = newPolicy(c.Policy, counts, c.TopK, c.HalfLife)
		if q, ok := p.(*reuse); ok {
			q.without = c.Without
		}
	}
	m := &simMover{}
	if c.Arena == 0 {
		m.v = newResidency(c.Bytes, c.Slots, c.TopK, 2*c.TopK, p, m)
	} else {
		largest := make([]int64, len(c.Bytes))
		for l, b := range c.Bytes {
			largest[l] = slices.Max(append([]int64{0}, b...))
		}
		z := sizesOf(largest, counts)
		least := z.min(func(l int) int { return counts[l] }, Need{TopK: c.TopK})
		if c.Arena < least {
			panic(fmt.Sprintf("tiers: a simulation of %d bytes, of which two layers' experts take %d", c.Arena, least))
		}
		m.v = newSized(c.Bytes, z, c.Arena, least, c.TopK, p, m)
	}
	return &Sim{c: c, m: m}
}

// Result is what was counted since the beginning or Restart.
func (s *Sim) Result() SimResult { return s.res }

// Restart sets the counts to 0; what is resident and what was learned stay.
func (s *Sim) Restart() { s.res = SimResult{} }

// Pass uses the experts of each layer in turn; those of one layer are needed together. A layer may want none, and more
// than TopK, as a prompt does. With Ahead, passes are played later than they come; Flush plays the last ones.
func (s *Sim) Pass(layers [][]int32) {
	if len(layers) != len(s.c.Bytes) {
		panic(fmt.Sprintf("tiers: a pass of %d layers in a simulation of %d", len(layers), len(s.c.Bytes)))
	}
	s.future = append(s.future, layers)
	if len(s.future) > 1+(s.c.Ahead+len(layers)-1)/len(layers) {
		s.play()
	}
}

// Flush plays the passes that were waiting for their future.
func (s *Sim) Flush() {
	for len(s.future) > 0 {
		s.play()
	}
}

func (s *Sim) play() {
	v, topK, layers := s.m.v, s.c.TopK, len(s.c.Bytes)
	pass := s.future[0]
	prompt := false
	for _, experts := range pass {
		prompt = prompt || len(experts) > topK
	}
	for l, experts := range pass {
		if s.c.Ahead > 0 {
			v.settle(l, experts)
		}
		if len(experts) == 0 {
			continue
		}
		reads, read, touched := s.m.reads, s.m.bytes, int64(0)
		for _, e := range experts {
			touched += s.c.Bytes[l][e]
		}
		v.begin(&s.r, l, experts)
		s.m.settle()
		for k := 1; k <= s.c.Ahead; k++ { // while the layer's experts are held
			if at := (l + k) / layers; at < len(s.future) {
				s.ahead((l+k)%layers, s.future[at][(l+k)%layers])
			}
		}
		for s.r.left > 0 {
			it := v.lease(&s.r)
			if it == nil {
				panic("tiers: a simulated request does not get on")
			}
			if len(experts) > topK {
				v.release(it)
				s.m.settle()
			}
		}
		v.close(&s.r)
		s.m.settle()
		reads, read = s.m.reads-reads, s.m.bytes-read
		if prompt {
			s.res.PromptTouches += int64(len(experts))
			s.res.PromptReads += reads
			s.res.PromptBytes += touched
			s.res.PromptReadBytes += read
		} else {
			s.res.Touches += int64(len(experts))
			s.res.Reads += reads
			s.res.TouchBytes += touched
			s.res.ReadBytes += read
		}
	}
	n := copy(s.future, s.future[1:])
	s.future = s.future[:n]
}

// ahead tells the cache what a layer will want.
func (s *Sim) ahead(layer int, experts []int32) {
	if !s.c.AheadReads {
		s.listed = s.listed[:0]
		for _, e := range experts {
			if s.m.v.where[layer][e] >= 0 {
				s.listed = append(s.listed, e)
			}
		}
		experts = s.listed
	}
	s.m.v.prefetch(layer, experts)
	s.m.settle()
}

// Simulate replays passes[pass][layer]; see NewSim and Sim.Pass.
func Simulate(c SimConfig, passes [][][]int32) SimResult {
	s := NewSim(c)
	for _, p := range passes {
		s.Pass(p)
	}
	s.Flush()
	return s.res
}

// simMover reads without taking time.
type simMover struct {
	v       *residency
	started []int32
	reads   int64
	bytes   int64
}

func (m *simMover) start(i int32, _ Priority) {
	s := &m.v.slots[i]
	m.reads++
	m.bytes += m.v.size[s.layer][s.expert]
	m.started = append(m.started, i)
}

// settle ends the reads that were started, and those that this starts.
func (m *simMover) settle() {
	for n := len(m.started); n > 0; n = len(m.started) {
		i := m.started[n-1]
		m.started = m.started[:n-1]
		m.v.done(i, nil)
	}
}

func (m *simMover) promote(int32)     {}
func (m *simMover) cancel(int32) bool { return false }
func (m *simMover) begun(int32) bool  { return true }
func (m *simMover) wake(*request)     {}

// orderPolicy lets a candidate stand where a policy stands.
type orderPolicy struct{ o Order }

func (p orderPolicy) visit(layer int, experts []int32) { p.o.Visit(layer, experts) }
func (p orderPolicy) score(layer, expert int) float64  { return p.o.Score(layer, expert) }
func (p orderPolicy) rank(score, _ float64) float64    { return score }
func (p orderPolicy) seed(int, []float32)              {}
func (p orderPolicy) capacity(int)                     {}
func (p orderPolicy) rescale() bool                    { return true }

// Sim describes a replay in an arena like this cache's as it is now, slot for slot.
func (c *Cache) Sim() SimConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := SimConfig{Arena: c.v.room.target, TopK: c.v.topK, Policy: c.policy}
	for l, experts := range c.experts {
		b := make([]int64, len(experts))
		for e := range b {
			b[e] = c.v.layer(l)
		}
		s.Bytes = append(s.Bytes, b)
	}
	return s
}
