package engine

import (
	"fmt"

	"terrace/compute"
	"terrace/model"
	"terrace/prefetch"
	"terrace/router"
)

// walk is who goes through the layers: where experts come from and who guesses them.
type walk struct {
	e     *Engine
	src   model.Source
	pipe  *prefetch.Pipeline                        // in force; nil without experts
	pipes [prefetch.MaxDepth + 2]*prefetch.Pipeline // by lookahead + 1: those that were in force
}

// init makes the walk of an engine.
func (s *walk) init(e *Engine) error {
	s.e = e
	if e.cache == nil {
		return nil
	}
	c := e.model.Config()
	rules := make([]*router.Rule, c.Layers)
	for l := range rules {
		rules[l] = e.model.Rule(l)
	}
	src := newSource(e.cache, e.shapes, rules, e.opt.GuessAlways)
	src.stall = &e.stall
	src.heat, src.mon, src.topK = e.heat, e.mon, c.TopK
	src.keeper, _ = e.backend.(compute.Keeper)
	if e.gpu != nil {
		src.tier = e.gpu.tier
	}
	s.src = src
	if err := s.SetRefine(e.opt.Refine); err != nil {
		return err
	}
	n := e.opt.Lookahead
	if e.opt.auto {
		n = LookaheadAuto
	}
	return s.SetLookahead(n)
}

// failed tells that a pass has ended with an error.
func (s *walk) failed() {
	if s.pipe != nil {
		s.pipe.Reset() // no layer will come to settle its guesses, and they hold slots
	}
	if t := s.tracer(); t != nil {
		t.drop()
	}
}

// SetLookahead changes how many layers ahead experts are guessed from the next token on: 0, 1, 2 or LookaheadAuto, at most
// what the engine was opened with, since guesses need slots. What a setting learned is kept until it comes back. No result
// depends on it.
func (s *walk) SetLookahead(n int) error {
	e := s.e
	depth, auto := n, n == LookaheadAuto
	if auto {
		depth = e.opt.Lookahead
	}
	if n < LookaheadAuto || depth > e.opt.Lookahead {
		return fmt.Errorf("%w: lookahead is %d layers, want 0 to %d, which the engine was opened with", ErrUsage, n, e.opt.Lookahead)
	}
	src, ok := s.src.(*source)
	if !ok {
		return nil
	}
	p := &s.pipes[n+1]
	if *p == nil {
		c := e.model.Config()
		pred, err := e.newPredictor()
		if err != nil {
			return err
		}
		*p, err = prefetch.New(prefetch.Options{
			Cache: s.e.guessed(), Predictor: pred, Layers: c.Layers, Experts: c.Experts, TopK: c.TopK,
			Depth: depth, Auto: auto, Cap: guessCap(e.budget.Slots, c.TopK, depth, c.Experts), Log: e.log,
		})
		if err != nil {
			return err
		}
	}
	if s.pipe != nil && s.pipe != *p {
		s.pipe.Reset()
	}
	s.pipe, src.pipe, src.ahead = *p, *p, depth
	return nil
}

// SetRefine turns second hints on or off, which are made of a layer's output: better guesses of the next layer, later. Fitted
// maps are of another signal: with them it is refused.
func (s *walk) SetRefine(on bool) error {
	if on && s.e.guesser.fitted != nil {
		return fmt.Errorf("%w: the fitted predictor has no maps of a layer's output, so it cannot refine a guess", ErrUsage)
	}
	if src, ok := s.src.(*source); ok {
		src.refine = on
	}
	return nil
}

// OnRoute calls f with the experts chosen at each layer: rows x top-k ids in the router's order, valid during the call.
func (s *walk) OnRoute(f func(layer int, choices []int32)) {
	if w, ok := s.src.(*source); ok {
		w.rec = f
	}
}

// tracer records, or is nil.
func (s *walk) tracer() *tracer {
	if src, ok := s.src.(*source); ok {
		return src.trace
	}
	return nil
}
