package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math"

	"terrace/chat"
	"terrace/sample"
	"terrace/tokenizer"
)

// Request is one answer to be made.
type Request struct {
	Prompt     []int32
	Max        int // tokens to generate at most; 0: until the context is full
	Sampler    *sample.Sampler
	IgnoreEOS  bool // do not stop at end tokens
	StopLoops  bool // end the answer at a loop (sample.LoopDetector); otherwise it is told in the statistics and the log only
	HashLogits bool
	Show       map[int32]bool          // control tokens whose text Emit gets, for whoever reads an answer by its marks
	Emit       func(text []byte) error // gets the text as it grows, whole characters only; may be nil
}

// Finish says why an answer ended.
type Finish string

// The reasons.
const (
	FinishStop    Finish = "stop"    // an end token
	FinishLength  Finish = "length"  // Max tokens, the context is full, or a loop that was to be stopped
	FinishAborted Finish = "aborted" // the context was cancelled or an error occurred
)

// Result is a finished answer.
type Result struct {
	Tokens []int32 // generated, the end token not included
	Finish Finish
	Stats  Stats
}

// Chat renders messages with the model's template and returns the prompt's tokens. Text from messages never becomes a
// control token.
func (e *Engine) Chat(conv chat.Conversation) ([]int32, error) {
	parts, err := e.tmpl.Render(conv)
	if err != nil {
		return nil, err
	}
	tp := make([]tokenizer.Part, len(parts))
	n := 0
	for i, p := range parts {
		tp[i] = tokenizer.Part{Text: p.Text, Special: !p.User}
		n += len(p.Text)
	}
	if err := e.checkText(n); err != nil {
		return nil, err
	}
	return e.tok.EncodeParts(nil, tp, true), nil
}

// Text returns the tokens of a text that is a prompt as it stands: spellings of special tokens in it are these tokens.
func (e *Engine) Text(text string) ([]int32, error) {
	if err := e.checkText(len(text)); err != nil {
		return nil, err
	}
	return e.tok.Encode(nil, text, true, true), nil
}

// MaxText is the longest text in bytes that can fit the context.
func (e *Engine) MaxText() int { return e.tok.MaxBytes(e.opt.Context) }

// checkText refuses n bytes that cannot fit the context, whatever they are: cutting a huge text into tokens takes many
// times its size in memory, which the budget does not hold.
func (e *Engine) checkText(n int) error {
	if least := e.tok.MinTokens(n); least > e.opt.Context {
		return fmt.Errorf("%w of %d bytes has at least %d tokens, the context holds %d", ErrPrompt, n, least, e.opt.Context)
	}
	return nil
}

// looped logs that an answer repeats itself.
func (e *Engine) looped(l *sample.Loop, stops bool) {
	what := "goes on"
	if stops {
		what = "is ended"
	}
	e.log.Warn("an answer repeats itself and "+what, "period", l.Period, "since_token", l.At, "tokens", l.Tokens)
}

// Generate evaluates the prompt and samples the answer. The session keeps what was evaluated, so a following prompt that
// begins alike starts there.
func (s *Session) Generate(ctx context.Context, r Request) (Result, error) {
	m := s.begin(len(r.Prompt))
	res := Result{Finish: FinishAborted}
	var h hash.Hash
	var buf []byte
	if r.HashLogits {
		h, buf = sha256.New(), make([]byte, 4*len(s.logits))
	}
	n, err := s.Sync(ctx, r.Prompt)
	m.evaluated = n
	m.promptDone()
	stream := s.e.tok.NewStream(false).Show(r.Show)
	loops := sample.NewLoopDetector()
	for err == nil {
		if r.Max > 0 && len(res.Tokens) >= r.Max {
			res.Finish = FinishLength
			break
		}
		if h != nil {
			for i, v := range s.logits {
				binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
			}
			h.Write(buf)
		}
		var id int32
		if id, err = r.Sampler.Next(s.logits); err != nil {
			break
		}
		r.Sampler.Accept(id)
		m.token()
		if s.e.tok.IsEOG(id) && !r.IgnoreEOS {
			res.Finish = FinishStop
			break
		}
		res.Tokens = append(res.Tokens, id)
		if r.Emit != nil {
			if err = r.Emit(stream.Push(id)); err != nil {
				break
			}
		}
		if loops.Accept(id) {
			s.e.looped(loops.Loop(), r.StopLoops)
			if r.StopLoops {
				res.Finish = FinishLength
				break
			}
		}
		if s.Pos() >= s.e.opt.Context {
			res.Finish = FinishLength
			break
		}
		if r.Max > 0 && len(res.Tokens) >= r.Max {
			continue // nothing will be sampled after it
		}
		if err = s.Eval(ctx, id); err == nil && s.cache != nil && s.Pos()%checkpointGap == 0 {
			s.cache.Keep(s.state, s.tokens, MarkMore)
		}
	}
	s.Keep()
	if r.Emit != nil {
		if tail := stream.Flush(); len(tail) > 0 && err == nil {
			err = r.Emit(tail)
		}
	}
	res.Stats = m.end()
	res.Stats.FinishReason, res.Stats.Loop = res.Finish, loops.Loop()
	if h != nil {
		res.Stats.LogitsSHA256 = hex.EncodeToString(h.Sum(nil))
	}
	if errors.Is(err, ErrPrompt) {
		return res, err
	}
	if err != nil {
		return res, fmt.Errorf("after %d of the prompt's %d tokens and %d generated: %w", min(s.Pos(), len(r.Prompt)), len(r.Prompt), len(res.Tokens), err)
	}
	return res, nil
}
