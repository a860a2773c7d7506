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
	cache  *tiers.Cache
	pipe   *prefetch.Pipeline
	shapes []expertShape  // by layer
	rules  []*router.Rule // by layer
	ahead  int
	refine bool // a second hint, from the layer's output
	always bool // guess even when there is nothing to read
	free   []*request
	rec    func(layer int, choices []int32) // routing listener, or nil
	trace  *tracer                          // recorder, or nil
	heat   *heat                            // counts uses, or nil
	topK   int
}

// expertShape holds a layer's matrix types and shapes; the bytes come from a lease.
type expertShape struct{ gate, up, down compute.Matrix }

func newSource(c *tiers.Cache, shapes []expertShape, rules []*router.Rule, always bool) *source {
	return &source{cache: c, shapes: shapes, rules: rules, always: always}
}

// Lookahead is part of model.Source. Guesses have a price, the routers of the layers ahead, and no use once every expert
// is in RAM.
func (s *source) Lookahead(rows int) int {
	if s.ahead > 0 && !s.always && s.cache.Complete() {
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
	if s.rec != nil {
		s.rec(layer, choices)
	}
	if s.heat != nil {
		s.heat.use(layer, choices, s.topK)
	}
	if s.trace != nil {
		s.trace.layer(layer, choices, scores, s.pipe.Guesses, s.ahead)
	}
	s.pipe.Settle(layer, experts, choices, scores)
	q, err := s.cache.Begin(layer, experts)
	if err != nil {
		return nil, err
	}
	var r *request
	if n := len(s.free); n > 0 {
		r, s.free = s.free[n-1], s.free[:n-1]
	} else {
		r = &request{src: s}
	}
	r.q, r.shape = q, &s.shapes[layer]
	return r, nil
}

// request turns leases into experts with types and shapes. The experts handed out keep their place in memory until they
// are recycled.
type request struct {
	src    *source
	q      *tiers.Request
	shape  *expertShape
	leases []tiers.Lease
	exps   []*compute.Expert
}

// Next is part of model.Request.
func (r *request) Next(ctx context.Context, wait bool) (int32, *compute.Expert, bool, error) {
	l, ok, err := r.q.Next(ctx, wait)
	if !ok || err != nil {
		return 0, nil, false, err
	}
	n := len(r.leases)
	r.leases = append(r.leases, l)
	if n == len(r.exps) {
		r.exps = append(r.exps, new(compute.Expert))
	}
	e, v := r.exps[n], l.Views()
	e.Gate, e.Up, e.Down = r.shape.gate, r.shape.up, r.shape.down
	e.Gate.Data, e.Up.Data, e.Down.Data = v[0], v[1], v[2]
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
	r.q.Close()
	r.q = nil
	r.src.free = append(r.src.free, r)
}
