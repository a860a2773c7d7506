package engine

import (
	"context"
	"fmt"
	"slices"

	"terrace/model"
)

// line is a sequence and the tokens it holds.
type line struct {
	state  *model.State
	tokens []int32 // evaluated so far: tokens[i] stands at position i
	cache  *PromptCache
	life   int  // Engine.lives when the state began to hold them
	anew   bool // they were evaluated anew in the midst of a piece of a prompt, so that nothing was captured on the way
}

// common is the number of tokens at the beginning that prompt shares; its last token is never counted, since its logits are
// asked for.
func (l *line) common(prompt []int32) int { return common(l.tokens, prompt[:max(len(prompt)-1, 0)]) }

// recall goes back to what the line and prompt have in common, or on to what the cache has more of it. It may read from disk.
// It answers how many tokens the line holds.
func (l *line) recall(ctx context.Context, prompt []int32) (int, error) {
	if l.cache == nil {
		return l.truncate(l.common(prompt)), nil
	}
	n, err := l.cache.Restore(ctx, l.state, l.tokens, prompt)
	l.tokens = append(l.tokens[:0], prompt[:n]...)
	return n, err
}

// keep shows the line to the cache.
func (l *line) keep(m Mark) {
	if l.cache != nil {
		l.cache.Keep(l.state, l.tokens, m)
	}
}

// load takes the place of the line by what save wrote to a file.
func (l *line) load(e *Engine, path string) (bytes int64, err error) {
	ids, bytes, err := e.RestoreState(l.state, path)
	if err != nil {
		l.tokens = l.tokens[:l.state.Pos()]
		return 0, err
	}
	l.tokens = append(l.tokens[:0], ids...)
	return bytes, nil
}

// truncate goes back to the first n tokens, or to fewer where the model's state cannot stand there; it answers how many.
func (l *line) truncate(n int) int {
	n = l.state.Truncate(n)
	l.tokens = slices.Delete(l.tokens, n, len(l.tokens))
	return n
}

// filling is a prompt on its way into a line.
type filling struct {
	l      *line
	prompt []int32
	keep   int // tokens that the line held already
	at     int // tokens that it holds now
	stop   int // where a piece ends early, for a checkpoint
	last   int // where the latest checkpoint was made
	snaps  captures

	private bool // nothing of it goes to the cache
}

// fill brings prompt into a line that holds its first tokens and no others. With saves its state makes checkpoints on the way.
func (l *line) fill(prompt []int32, saves bool) filling {
	keep := len(l.tokens)
	f := filling{l: l, prompt: prompt, keep: keep, at: keep, last: keep}
	l.state.Save()
	if l.cache == nil && saves && len(prompt)-f.keep >= checkpointGap {
		f.stop = len(prompt) - checkpointTail
	}
	return f
}

// done tells that the line holds the prompt.
func (f *filling) done() bool { return f.at == len(f.prompt) }

// next is the number of tokens of the next piece, most or fewer, and the logits that are wanted of it.
func (f *filling) next(most int) (int, model.LogitsMode) {
	n := min(most, len(f.prompt)-f.at)
	if f.at < f.stop {
		n = min(n, f.stop-f.at)
	}
	if f.at+n == len(f.prompt) {
		return n, model.LastLogits
	}
	return n, model.NoLogits
}

// will tells that n tokens are about to be evaluated.
func (f *filling) will(n int) {
	if f.l.cache != nil && !f.private {
		f.snaps.drop(f.l.state)
		f.snaps = f.l.cache.capture(f.l.state, f.prompt, f.at, n)
	}
}

// drop ends the filling, whether the prompt is there or not.
func (f *filling) drop() {
	if f.l != nil {
		f.snaps.drop(f.l.state)
	}
}

// did tells that n tokens were evaluated.
func (f *filling) did(n int) {
	if f.at += n; f.at == f.stop || f.at-f.last >= checkpointGap {
		f.l.state.Save()
		f.last = f.at
	}
	if f.l.cache == nil || f.private {
		return
	}
	if f.l.anew {
		f.l.anew = false
		f.drop()
	}
	f.l.cache.keepCaptured(f.l.state, f.l.tokens, &f.snaps)
	if f.done() {
		f.l.keep(MarkAll)
	} else {
		f.l.keep(MarkMore)
	}
}

// PromptTooLong is the refusal of a prompt that no context holds; it wraps ErrPrompt.
type PromptTooLong struct{ Tokens, Context int }

func (e *PromptTooLong) Error() string {
	return fmt.Sprintf("%v has %d tokens, the context holds %d", ErrPrompt, e.Tokens, e.Context)
}

// Unwrap is ErrPrompt.
func (e *PromptTooLong) Unwrap() error { return ErrPrompt }

// checkPrompt refuses what can be no prompt.
func (e *Engine) checkPrompt(prompt []int32) error {
	if len(prompt) == 0 {
		return fmt.Errorf("%w is empty: 0 tokens, want at least 1", ErrPrompt)
	}
	if len(prompt) > e.opt.Context {
		return &PromptTooLong{len(prompt), e.opt.Context}
	}
	for i, id := range prompt {
		if id < 0 || int(id) >= e.model.Config().Vocab {
			return fmt.Errorf("%w: token %d of it is %d, outside the vocabulary of %d", ErrPrompt, i, id, e.model.Config().Vocab)
		}
	}
	return nil
}

// checkpointGap is the least distance of checkpoints within a prompt: a copy of the state costs about what a token does.
const checkpointGap = 64

// checkpointTail is how far before the end of a prompt a checkpoint is made: chat templates end a prompt with a few tokens
// that open the answer, and the next request often has others there.
const checkpointTail = 8

// revive evaluates a line's tokens anew after what it remembered was lost.
func (l *line) revive(ctx context.Context, e *Engine, src model.Source) error {
	if l.life == e.lives {
		return nil
	}
	l.life, l.anew = e.lives, true
	l.state.Lost()
	for at := 0; at < len(l.tokens); {
		n := min(e.opt.Batch, len(l.tokens)-at)
		if err := e.model.Forward(ctx, l.state, model.Batch{Tokens: l.tokens[at : at+n]}, src); err != nil {
			l.tokens = l.tokens[:at]
			return err
		}
		at += n
	}
	return nil
}

// empty forgets everything.
func (l *line) empty(e *Engine) {
	l.life, l.tokens = e.lives, l.tokens[:0]
	l.state.Lost()
}
