package tiers

import "fmt"

// SimConfig says what Simulate replays and on what.
type SimConfig struct {
	Bytes    [][]int64 // of each expert, by layer
	Slots    int
	TopK     int // experts a token uses in a layer
	Policy   Policy
	HalfLife int // of EWMA; 64 when 0

	Without ReuseParts // parts of Reuse left out, to see what they are worth
	Order   Order      // a candidate in the place of Policy; nil: Policy

	// Ahead is how many layers ahead the choices are known and asked for early, across passes too: what a perfect
	// lookahead is worth to the cache. 0: none.
	Ahead int
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
	Touches, Reads         int64 // of passes of single tokens
	TouchBytes, ReadBytes  int64
	PromptTouches          int64 // of passes in which a layer wants more than TopK experts
	PromptReads            int64
	PromptBytes, PromptHit int64 // bytes touched, bytes of them that were there
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

// Simulate replays passes[pass][layer] on the residency that ships, with reads that take no time: what it measures is
// what the cache would do. Experts of one layer are needed together. It starts with nothing resident. A layer of a pass
// may be empty. Numbers that do not fit the config are a programmer's mistake and panic.
func Simulate(c SimConfig, passes [][][]int32) SimResult {
	counts := make([]int, len(c.Bytes))
	for i, b := range c.Bytes {
		counts[i] = len(b)
	}
	if c.TopK < 1 || c.Slots < c.TopK {
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
	m.v = newResidency(c.Bytes, c.Slots, c.TopK, 2*c.TopK, p, m)
	var res SimResult
	var r request
	layers := len(c.Bytes)
	for t, pass := range passes {
		if len(pass) != layers {
			panic(fmt.Sprintf("tiers: pass %d has %d layers, the simulation %d", t, len(pass), layers))
		}
		prompt := false
		for _, experts := range pass {
			prompt = prompt || len(experts) > c.TopK
		}
		for l, experts := range pass {
			if c.Ahead > 0 {
				m.v.settle(l, experts)
			}
			if len(experts) == 0 {
				continue
			}
			before, bytes := m.reads, m.bytes
			touched := int64(0)
			for _, e := range experts {
				touched += c.Bytes[l][e]
			}
			m.v.begin(&r, l, experts)
			m.settle()
			if c.Ahead > 0 { // while the layer's experts are held
				for k := 1; k <= c.Ahead; k++ {
					at := t + (l+k)/layers
					if at >= len(passes) {
						break
					}
					m.v.prefetch((l+k)%layers, passes[at][(l+k)%layers])
					m.settle()
				}
			}
			for r.left > 0 {
				it := m.v.lease(&r)
				if it == nil {
					panic("tiers: a simulated request does not get on")
				}
				if len(experts) > c.TopK {
					m.v.release(it)
					m.settle()
				}
			}
			m.v.close(&r)
			m.settle()
			reads, read := m.reads-before, m.bytes-bytes
			if prompt {
				res.PromptTouches += int64(len(experts))
				res.PromptReads += reads
				res.PromptBytes += touched
				res.PromptHit += touched - read
			} else {
				res.Touches += int64(len(experts))
				res.Reads += reads
				res.TouchBytes += touched
				res.ReadBytes += read
			}
		}
	}
	return res
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
func (p orderPolicy) rescale() bool                    { return true }
