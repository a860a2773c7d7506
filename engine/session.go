package engine

import (
	"context"
	"fmt"
	"slices"

	"terrace/model"
	"terrace/prefetch"
	"terrace/router"
)

// Session is one timeline of tokens with its KV cache. Not for concurrent use.
type Session struct {
	e      *Engine
	state  *model.State
	src    model.Source
	pipe   *prefetch.Pipeline                        // in force; nil without experts
	pipes  [prefetch.MaxDepth + 2]*prefetch.Pipeline // by lookahead + 1: those that were in force
	tokens []int32                                   // evaluated so far: tokens[i] stands at position i
	logits []float32                                 // after the last token
	one    [1]int32
}

// NewSession makes an empty timeline of the engine's context size.
func (e *Engine) NewSession() (*Session, error) {
	st, err := e.model.NewState(e.opt.Context, e.opt.KeyType, e.opt.ValType, e.budget.Checkpoints)
	if err != nil {
		return nil, err
	}
	s := &Session{e: e, state: st, logits: make([]float32, e.model.Config().Vocab), tokens: make([]int32, 0, e.opt.Context)}
	if e.cache == nil {
		return s, nil
	}
	c := e.model.Config()
	rules := make([]*router.Rule, c.Layers)
	for l := range rules {
		rules[l] = e.model.Rule(l)
	}
	src := newSource(e.cache, e.shapes, rules, e.opt.GuessAlways)
	src.heat, src.topK = e.heat, c.TopK
	s.src = src
	if err := s.SetRefine(e.opt.Refine); err != nil {
		st.Free()
		return nil, err
	}
	n := e.opt.Lookahead
	if e.opt.auto {
		n = LookaheadAuto
	}
	if err := s.SetLookahead(n); err != nil {
		st.Free()
		return nil, err
	}
	return s, nil
}

// SetLookahead changes how many layers ahead this session guesses from the next token on: 0, 1, 2 or LookaheadAuto, at most
// what the engine was opened with, since guesses need slots. What a setting learned is kept until it comes back. No result
// depends on it.
func (s *Session) SetLookahead(n int) error {
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
			Cache: prefetch.Over(e.cache), Predictor: pred, Layers: c.Layers, Experts: c.Experts, TopK: c.TopK,
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
func (s *Session) SetRefine(on bool) error {
	if on && s.e.guesser.fitted != nil {
		return fmt.Errorf("%w: the fitted predictor has no maps of a layer's output, so it cannot refine a guess", ErrUsage)
	}
	if src, ok := s.src.(*source); ok {
		src.refine = on
	}
	return nil
}

// OnRoute calls f with the experts chosen at each layer: rows x top-k ids in the router's order, valid during the call.
func (s *Session) OnRoute(f func(layer int, choices []int32)) {
	if w, ok := s.src.(*source); ok {
		w.rec = f
	}
}

// Close frees the timeline's memory and saves the heat that was learned.
func (s *Session) Close() {
	s.state.Free()
	if s.e.heat != nil {
		s.e.heat.save()
	}
}

// Pos is the number of tokens evaluated.
func (s *Session) Pos() int { return len(s.tokens) }

// Logits are those after the last token, one per vocabulary entry; valid until the next call.
func (s *Session) Logits() []float32 { return s.logits }

// Sync makes the timeline equal to prompt: the common prefix is kept as far as the model's state can go back to it, the rest
// is evaluated in batches, and Logits are those of the last token. It returns how many tokens were evaluated. On an error the
// timeline holds what was evaluated before it.
func (s *Session) Sync(ctx context.Context, prompt []int32) (int, error) {
	if len(prompt) == 0 {
		return 0, fmt.Errorf("%w is empty: 0 tokens, want at least 1", ErrPrompt)
	}
	if len(prompt) > s.e.opt.Context {
		return 0, fmt.Errorf("%w has %d tokens, the context holds %d", ErrPrompt, len(prompt), s.e.opt.Context)
	}
	keep := 0
	for keep < len(s.tokens) && keep < len(prompt)-1 && s.tokens[keep] == prompt[keep] {
		keep++ // the last token is always evaluated: its logits are asked for
	}
	keep = s.truncate(keep)
	s.state.Save()
	stop, last := 0, keep // stop: where a batch ends early, for a checkpoint; last: where the latest one was made
	if len(prompt)-keep >= checkpointGap && s.e.budget.Checkpoints > 0 {
		stop = len(prompt) - checkpointTail
	}
	for at := keep; at < len(prompt); {
		n := min(s.e.opt.Batch, len(prompt)-at)
		if at < stop {
			n = min(n, stop-at)
		}
		mode := model.NoLogits
		if at+n == len(prompt) {
			mode = model.LastLogits
		}
		if err := s.forward(ctx, prompt[at:at+n], mode, s.logits); err != nil {
			return at - keep, err
		}
		at += n
		if at == stop || at-last >= checkpointGap {
			s.state.Save()
			last = at
		}
	}
	return len(prompt) - keep, nil
}

// maxCheckpoints bounds the checkpoints of a session.
const maxCheckpoints = 8

// checkpointShare is the part of the RAM budget that checkpoints may take, as its reciprocal; one is made in any case.
const checkpointShare = 32

// checkpointGap is the least distance of checkpoints within a prompt: a copy of the state costs about what a token does.
const checkpointGap = 64

// checkpointTail is how far before the end of a prompt a checkpoint is made: chat templates end a prompt with a few tokens
// that open the answer, and the next request often has others there.
const checkpointTail = 8

// checkpoints is how many copies of a recurrent state of so many bytes a budget has room for. Without them a timeline that
// goes back by a token is evaluated anew.
func checkpoints(bytes, budget int64) int {
	if bytes == 0 {
		return 0
	}
	return int(min(max(budget/checkpointShare/bytes, 1), maxCheckpoints))
}

// Eval appends one token; Logits are those after it. A warm decode step allocates nothing.
func (s *Session) Eval(ctx context.Context, token int32) error {
	s.one[0] = token
	return s.forward(ctx, s.one[:], model.LastLogits, s.logits)
}

// EvalAll appends tokens (at most a batch) and writes the logits of every one to out, len(tokens) rows.
func (s *Session) EvalAll(ctx context.Context, tokens []int32, out []float32) error {
	return s.forward(ctx, tokens, model.AllLogits, out)
}

func (s *Session) forward(ctx context.Context, tokens []int32, mode model.LogitsMode, out []float32) error {
	if mode == model.NoLogits {
		out = nil
	}
	if err := s.e.model.Forward(ctx, s.state, model.Batch{Tokens: tokens, Logits: mode, Out: out}, s.src); err != nil {
		if s.pipe != nil {
			s.pipe.Reset() // no layer will come to settle its guesses, and they hold slots
		}
		if t := s.tracer(); t != nil {
			t.drop()
		}
		return err
	}
	if t := s.tracer(); t != nil {
		t.pass(tokens, len(s.tokens))
	}
	s.tokens = append(s.tokens, tokens...)
	return nil
}

// Reset empties the timeline.
func (s *Session) Reset() { s.truncate(0) }

// Truncate forgets all but the first n tokens, of which there must be as many. Logits stay as they were.
func (s *Session) Truncate(n int) {
	if n < 0 || n > len(s.tokens) {
		panic(fmt.Sprintf("engine: a timeline of %d tokens cut at %d", len(s.tokens), n))
	}
	s.truncate(n)
}

// tracer records, or is nil.
func (s *Session) tracer() *tracer {
	if src, ok := s.src.(*source); ok {
		return src.trace
	}
	return nil
}

// truncate goes back to the first n tokens, or to fewer where the model's state cannot stand there; it answers how many.
func (s *Session) truncate(n int) int {
	n = s.state.Truncate(n)
	if t := s.tracer(); t != nil && n == 0 && len(s.tokens) > 0 {
		t.seq++
	}
	s.tokens = slices.Delete(s.tokens, n, len(s.tokens))
	return n
}
