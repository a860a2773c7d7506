package engine

import (
	"context"
	"fmt"

	"terrace/model"
)

// Session is one timeline of tokens with its KV cache. Not for concurrent use.
type Session struct {
	walk
	line
	logits []float32 // after the last token
	one    [1]int32
}

// NewSession makes an empty timeline of the engine's context size.
func (e *Engine) NewSession() (*Session, error) {
	st, err := e.model.NewState(e.opt.Context, e.opt.KeyType, e.opt.ValType, e.budget.Checkpoints)
	if err != nil {
		return nil, err
	}
	s := &Session{line: line{state: st, life: e.lives, tokens: make([]int32, 0, e.opt.Context)}, logits: make([]float32, e.model.Config().Vocab)}
	if err := s.walk.init(e); err != nil {
		st.Free()
		return nil, err
	}
	return s, nil
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
	if err := s.e.checkPrompt(prompt); err != nil {
		return 0, err
	}
	had := len(s.tokens)
	s.e.regain()
	if s.life != s.e.lives {
		s.empty(s.e) // nothing to be gained from what it held
	}
	s.e.stall.enter()
	n, err := s.recall(ctx, prompt)
	s.e.stall.leave()
	s.moved(n, had)
	if err != nil {
		return 0, err
	}
	f := s.fill(prompt, s.e.budget.Checkpoints > 0)
	for !f.done() {
		n, mode := f.next(s.e.opt.Batch)
		f.will(n)
		if err := s.forward(ctx, prompt[f.at:f.at+n], mode, s.logits); err != nil {
			f.drop()
			return f.at - f.keep, err
		}
		f.did(n)
	}
	return len(prompt) - f.keep, nil
}

// Eval appends one token; Logits are those after it. A warm decode step allocates nothing.
func (s *Session) Eval(ctx context.Context, token int32) error {
	s.e.regain()
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
	s.e.stall.enter()
	defer s.e.stall.leave()
	b := model.Batch{Tokens: tokens, Logits: mode, Out: out}
	err := s.revive(ctx, s.e, s.src)
	if err == nil {
		err = s.e.model.Forward(ctx, s.state, b, s.src)
	}
	if err != nil && s.e.gone(err) { // the text so far stands, and the CPU goes on behind it
		s.failed()
		if err = s.revive(ctx, s.e, s.src); err == nil {
			err = s.e.model.Forward(ctx, s.state, b, s.src)
		}
	}
	if err != nil {
		s.failed()
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

// truncate goes back to the first n tokens, or to fewer where the model's state cannot stand there; it answers how many.
func (s *Session) truncate(n int) int {
	had := len(s.tokens)
	n = s.line.truncate(n)
	s.moved(n, had)
	return n
}

// moved tells the tracer that the timeline of had tokens goes on behind the first n.
func (s *Session) moved(n, had int) {
	if t := s.tracer(); t != nil && n == 0 && had > 0 {
		t.seq++
	}
}

// UseCache has the session take prompts from c and keep them there; nil: it stops to.
func (s *Session) UseCache(c *PromptCache) { s.cache = c }

// Keep tells the cache that a turn has ended here.
func (s *Session) Keep() { s.keep(MarkEnd) }

// Save writes the timeline to a file, whole or not at all, and answers the file's size; Load reads it back.
func (s *Session) Save(path string) (bytes int64, err error) {
	return s.e.SaveState(s.state, s.tokens, path)
}

// Load takes the place of the timeline by one that Save wrote, of this model and these settings; any other is refused. Logits
// are those of the next Eval or Sync.
func (s *Session) Load(path string) (bytes int64, err error) {
	had := len(s.tokens)
	bytes, err = s.load(s.e, path)
	s.moved(0, had)
	return bytes, err
}
