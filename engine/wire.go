package engine

import (
	"context"

	"terrace/compute"
	"terrace/model"
	"terrace/prefetch"
	"terrace/router"
	"terrace/tiers"
)

// source answers a forward pass: guesses become early reads, choices become leases. It belongs to one sequence. This file
// is the one place that knows both storage and arithmetic.
type source struct {
	cache   *tiers.Cache
	pipe    *prefetch.Pipeline
	shapes  []expertShape  // by layer
	rules   []*router.Rule // by layer
	ahead   int
	refine  bool // a second hint, from the layer's output
	always  bool // guess even when there is nothing to read
	free    []*request
	rec     func(layer int, choices []int32) // routing listener, or nil
	trace   *tracer                          // recorder, or nil
	heat    *heat                            // counts uses, or nil
	mon     *monitor                         // sees choices, or nil
	topK    int
	keeper  compute.Keeper // keeps experts on a device; nil: there is none
	tier    *vram          // counts what was found there; nil: there is none
	missing []int32        // those of a layer that it does not
	stall   *stallWatch    // hears that work moves, or nil
	layers  []keptLayer    // by layer, for a device that chooses experts
	met     []bool         // by expert, while choices are counted
}

// keptLayer is a layer all of whose experts a device keeps, until Done.
type keptLayer struct {
	compute.ExpertLayer
	keeper compute.LayerKeeper
}

// Done is part of compute.Done.
func (l *keptLayer) Done() { l.keeper.ReleaseLayer(l.Key) }

// Keeps is part of model.Keeping. A trace needs the scores, and a device that keeps no experts for good has no whole layers.
func (s *source) Keeps(layer int) (*compute.ExpertLayer, compute.Done, bool) {
	k, ok := s.keeper.(compute.LayerKeeper)
	if !ok || s.tier == nil || s.trace != nil {
		return nil, nil, false
	}
	if s.layers == nil {
		s.layers = make([]keptLayer, len(s.shapes))
	}
	l := &s.layers[layer]
	if l.keeper == nil {
		h := &s.shapes[layer]
		l.Gate, l.Up, l.Down, l.Key, l.N, l.keeper = h.gate, h.up, h.down, expertKey(layer, 0), s.rules[layer].Experts, k
	}
	if !k.HoldLayer(l.Key, l.N) {
		return nil, nil, false
	}
	return &l.ExpertLayer, l, true
}

// Chosen is part of model.Keeping.
func (s *source) Chosen(layer int, choices []int32) {
	s.chosen(layer, choices)
	if n := s.rules[layer].Experts; len(s.met) < n {
		s.met = make([]bool, n)
	}
	distinct := int64(0)
	for _, x := range choices {
		if !s.met[x] {
			s.met[x] = true
			distinct++
		}
	}
	clear(s.met)
	s.tier.hits[layer].Add(distinct)
}

// chosen tells those who want to know.
func (s *source) chosen(layer int, choices []int32) {
	if s.rec != nil {
		s.rec(layer, choices)
	}
	if s.heat != nil {
		s.heat.use(layer, choices, s.topK)
	}
	if s.mon != nil {
		s.mon.routed(layer, choices)
	}
}

// expertShape holds a layer's matrix types and shapes; the bytes come from a lease.
type expertShape struct{ gate, up, down compute.Matrix }

func newSource(c *tiers.Cache, shapes []expertShape, rules []*router.Rule, always bool) *source {
	return &source{cache: c, shapes: shapes, rules: rules, always: always}
}

// Lookahead is part of model.Source. Guesses have a price, the routers of the layers ahead, and no use once every expert
// is in RAM.
func (s *source) Lookahead(rows int) int {
	if s.ahead > 0 && !s.always && (s.cache.Complete() || s.tier != nil && s.tier.whole.Load()) {
		return 0
	}
	return s.pipe.Depth(rows)
}

// Refine is part of model.Refiner.
func (s *source) Refine() bool { return s.refine }

// Hint is part of model.Source.
func (s *source) Hint(at, target int, scores []float32, rows int) {
	s.pipe.Hint(at, target, router.Signal{Scores: scores, Rows: rows, Rule: s.rules[target]})
}

// Begin is part of model.Source.
func (s *source) Begin(ctx context.Context, layer int, experts, choices []int32, scores []float32) (model.Request, error) {
	s.stall.beat(layer)
	s.chosen(layer, choices)
	if s.trace != nil {
		s.trace.layer(layer, choices, scores, s.pipe.Guesses, s.ahead)
	}
	s.pipe.Settle(layer, experts, choices, scores)
	var r *request
	if n := len(s.free); n > 0 {
		r, s.free = s.free[n-1], s.free[:n-1]
	} else {
		r = &request{src: s}
	}
	r.layer, r.shape = layer, &s.shapes[layer]
	if s.keeper != nil {
		s.missing = s.missing[:0]
		for _, x := range experts {
			if s.keeper.Hold(expertKey(layer, x)) {
				r.held = append(r.held, x)
			} else {
				s.missing = append(s.missing, x)
			}
		}
		if s.tier != nil && len(r.held) > 0 {
			s.tier.hits[layer].Add(int64(len(r.held)))
		}
		if experts = s.missing; len(experts) == 0 {
			return r, nil
		}
	}
	q, err := s.cache.Begin(layer, experts)
	if err != nil {
		r.Done()
		return nil, err
	}
	r.q = q
	return r, nil
}

// expertKey names an expert for a compute.Keeper.
func expertKey(layer int, expert int32) uint64 { return uint64(layer)<<32 | uint64(expert) + 1 }

// elsewhere is a cache whose experts need not be read ahead where a device keeps them.
type elsewhere struct {
	prefetch.Cache
	keeper compute.Keeper
}

func (c elsewhere) PrefetchOver(layer int, expert int32, chance float32) int {
	if c.keeper.Keeps(expertKey(layer, expert)) {
		return 0
	}
	return c.Cache.PrefetchOver(layer, expert, chance)
}

// request turns leases into experts with types and shapes. The experts handed out keep their place in memory until they
// are recycled.
type request struct {
	src    *source
	q      *tiers.Request
	shape  *expertShape
	leases []tiers.Lease
	exps   []*compute.Expert
	layer  int
	held   []int32 // experts that the device keeps, until Done
	given  int     // of these, handed out
	there  []*compute.Expert
}

// Next is part of model.Request.
func (r *request) Next(ctx context.Context, wait bool) (int32, *compute.Expert, bool, error) {
	if i := r.given; i < len(r.held) {
		r.given++
		if i == len(r.there) {
			r.there = append(r.there, new(compute.Expert))
		}
		e := r.there[i]
		e.Gate, e.Up, e.Down, e.Key = r.shape.gate, r.shape.up, r.shape.down, expertKey(r.layer, r.held[i])
		return r.held[i], e, true, nil
	}
	if r.q == nil {
		return 0, nil, false, nil
	}
	l, ok, err := r.q.Next(ctx, wait)
	if !ok || err != nil {
		return 0, nil, false, err
	}
	r.src.stall.beat(r.layer)
	n := len(r.leases)
	r.leases = append(r.leases, l)
	if n == len(r.exps) {
		r.exps = append(r.exps, new(compute.Expert))
	}
	e, v := r.exps[n], l.Views()
	e.Gate, e.Up, e.Down = r.shape.gate, r.shape.up, r.shape.down
	e.Gate.Data, e.Up.Data, e.Down.Data = v[0], v[1], v[2]
	e.Key = expertKey(r.layer, int32(l.Expert()))
	return int32(l.Expert()), e, true, nil
}

// Recycle is part of model.Request.
func (r *request) Recycle() {
	for _, l := range r.leases {
		l.Release()
	}
	r.leases = r.leases[:0]
}

// Done is part of model.Request and compute.Done.
func (r *request) Done() {
	r.Recycle()
	if r.q != nil {
		r.q.Close()
		r.q = nil
	}
	for _, x := range r.held {
		r.src.keeper.Release(expertKey(r.layer, x))
	}
	r.held, r.given = r.held[:0], 0
	r.src.free = append(r.src.free, r)
}
