package model

import (
	"context"
	"fmt"
	"math"
)

// LogitsMode says of which rows of a batch Forward computes the logits.
type LogitsMode uint8

// The rows whose logits are wanted.
const (
	NoLogits   LogitsMode = iota
	LastLogits            // of the last token: Vocab values
	AllLogits             // of every token: tokens x Vocab values
)

// Batch is what one Forward adds to a sequence.
type Batch struct {
	Tokens []int32
	Logits LogitsMode
	Out    []float32 // receives the logits; its length is what Logits asks for
}

// maxAhead is the largest lookahead.
const maxAhead = 2

// logitBytes bounds the buffer that logits of many rows pass through.
const logitBytes = 16 << 20

// Forward appends the tokens of b to st and computes the logits that b asks for. Experts come from src, which may be nil
// for a dense model. Logits do not depend on how tokens were cut into batches. On an error st stands where it stood.
func (m *Model) Forward(ctx context.Context, st *State, b Batch, src Source) error {
	if err := m.check(st, &b); err != nil {
		return err
	}
	w := m.work
	w.ctx, w.st, w.src, w.ahead = ctx, st, src, 0
	if m.cfg.Experts > 0 {
		if src == nil {
			panic("model: Forward without a source of experts")
		}
		w.ahead = src.Lookahead(len(b.Tokens))
		if w.ahead < 0 || w.ahead > maxAhead {
			panic(fmt.Sprintf("model: a lookahead of %d layers, want 0 to %d", w.ahead, maxAhead))
		}
	}
	w.want = len(b.Out) / m.cfg.Vocab
	st.begin(len(b.Tokens))
	err := m.walk(w, &b)
	w.ctx, w.st, w.src = nil, nil, nil
	if err != nil {
		return err
	}
	copy(st.ids[min(st.pos, len(st.ids)):], b.Tokens)
	st.commit(len(b.Tokens))
	return nil
}

// walk takes the batch through the layers.
func (m *Model) walk(w *work, b *Batch) error {
	rows := len(b.Tokens)
	if m.engram != nil {
		if err := m.engram.ask(w, b.Tokens); err != nil {
			return err
		}
		defer m.rows.Release() // after the last Submit
	}
	w.prepare(rows, w.st.pos)
	to := w.x
	if m.streams > 0 {
		to = w.h
	}
	w.enc.Embed(to, m.embd, b.Tokens)
	if m.embdScale != 0 {
		w.enc.Scale(to, m.embdScale)
	}
	if m.streams > 0 {
		w.enc.Spread(w.x, to)
	}
	for _, start := range m.starts {
		start(w, b.Tokens)
	}
	for i := range m.layers {
		l := &m.layers[i]
		if m.watch != nil && l.routed != nil {
			w.watchIn = grown(w.watchIn, rows*m.width)
			w.enc.Read(w.watchIn, w.x)
		}
		if err := w.ctx.Err(); err != nil {
			// What is recorded still reads the experts of the layer before.
			if serr := w.enc.Submit(); serr != nil {
				err = serr
			}
			return err
		}
		w.keep = rows
		if i == len(m.layers)-1 {
			w.keep = w.want
		}
		if l.mix != nil {
			if err := l.mix.run(w); err != nil {
				return err
			}
		}
		if w.x.Rows() > w.keep {
			if err := w.narrow(w.keep); err != nil {
				return err
			}
		}
		if w.keep == 0 || l.ffn == nil { // the state has what it needs of them
			continue
		}
		if err := l.ffn.run(w); err != nil {
			return err
		}
	}
	return m.output(w, b)
}

// check says why b cannot be appended to st.
func (m *Model) check(st *State, b *Batch) error {
	if m.backend == nil {
		panic("model: Forward before Bind")
	}
	n := len(b.Tokens)
	switch {
	case n == 0:
		return fmt.Errorf("model: an empty batch, want 1 to %d tokens", m.maxRows)
	case n > m.maxRows:
		return fmt.Errorf("model: a batch of %d tokens, want at most %d", n, m.maxRows)
	case n > st.ctx-st.pos:
		return fmt.Errorf("model: %d tokens after the %d in a context of %d: %w", n, st.pos, st.ctx, ErrContextFull)
	}
	for i, id := range b.Tokens {
		if id < 0 || int(id) >= m.cfg.Vocab {
			return fmt.Errorf("model: token %d of the batch is %d, outside the vocabulary of %d", i, id, m.cfg.Vocab)
		}
	}
	want := 0
	switch b.Logits {
	case LastLogits:
		want = m.cfg.Vocab
	case AllLogits:
		want = n * m.cfg.Vocab
	}
	if len(b.Out) != want {
		panic(fmt.Sprintf("model: room for %d logits, the batch asks for %d", len(b.Out), want))
	}
	return nil
}

// output computes the logits that b asks for, some rows at a time.
func (m *Model) output(w *work, b *Batch) error {
	e, vocab := w.enc, m.cfg.Vocab
	n, some := len(b.Out)/vocab, logitRows(&m.cfg, m.maxRows)
	out := b.Out
	for r := 0; r < n; r += some {
		k := min(some, n-r)
		w.lastX.SetRows(k)
		w.lastH.SetRows(k)
		w.logits.SetRows(k)
		e.CopyRows(w.lastX, w.x, r)
		m.outIn.enter(w, w.lastH, w.lastX)
		e.MatMul(w.logits, m.head, w.lastH)
		if m.logitScale != 0 {
			e.Scale(w.logits, m.logitScale)
		}
		if m.logitCap != 0 {
			e.Softcap(w.logits, m.logitCap)
		}
		e.Read(out[:k*vocab], w.logits)
		if err := e.Submit(); err != nil {
			return err
		}
		for i := range k {
			for _, id := range m.suppressed {
				out[i*vocab+int(id)] = float32(math.Inf(-1))
			}
		}
		out = out[k*vocab:]
	}
	return e.Submit()
}
