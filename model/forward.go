package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	Hidden bool      // in place of logits, what the output matrix would make them of: Embd values a row, behind the last norm
	Out    []float32 // receives the logits; its length is what Logits asks for
}

// Seq is a sequence and what one ForwardAll adds to it.
type Seq struct {
	State *State
	Batch
}

// maxAhead is the largest lookahead.
const maxAhead = 2

// logitBytes bounds the buffer that logits of many rows pass through.
const logitBytes = 16 << 20

// Forward appends the tokens of b to st and computes the logits that b asks for. Experts come from src, which may be nil
// for a dense model. Logits do not depend on how tokens were cut into batches. On an error st stands where it stood.
func (m *Model) Forward(ctx context.Context, st *State, b Batch, src Source) error {
	if m.backend == nil {
		panic("model: Forward before Bind")
	}
	w := m.work
	w.alone[0] = Seq{st, b}
	err := m.ForwardAll(ctx, w.alone[:], src)
	w.alone[0] = Seq{}
	return err
}

// ForwardAll is Forward for several sequences in one pass: each gets the logits that it gets alone, and the experts that more
// than one of them needs are asked for once. All tokens together are at most MaxRows. On an error, which names no sequence,
// all of them stand where they stood.
func (m *Model) ForwardAll(ctx context.Context, seqs []Seq, src Source) error {
	rows, err := m.check(seqs)
	if err != nil {
		return err
	}
	w := m.work
	w.ctx, w.src, w.ahead = ctx, src, 0
	if m.cfg.Experts > 0 {
		if src == nil {
			panic("model: Forward without a source of experts")
		}
		w.ahead = src.Lookahead(rows)
		if w.ahead < 0 || w.ahead > maxAhead {
			panic(fmt.Sprintf("model: a lookahead of %d layers, want 0 to %d", w.ahead, maxAhead))
		}
	}
	w.take(seqs)
	for i := range seqs {
		seqs[i].State.begin(len(seqs[i].Tokens))
	}
	if err = m.guarded(w); errors.Is(err, ErrNotFinite) {
		err = m.locate(w, err)
	}
	w.ctx, w.src = nil, nil
	clear(w.seqs)
	if err != nil {
		return err
	}
	for i := range seqs {
		st, n := seqs[i].State, len(seqs[i].Tokens)
		copy(st.ids[min(st.pos, len(st.ids)):], seqs[i].Tokens)
		st.commit(n)
	}
	return nil
}

// walk takes the rows through the layers.
func (m *Model) walk(w *work) error {
	rows := len(w.tokens)
	if m.engram != nil {
		if err := m.engram.ask(w); err != nil {
			return err
		}
		defer m.rows.Release() // after the last Submit
	}
	w.prepare()
	to := w.x
	if m.streams > 0 {
		to = w.h
	}
	w.enc.Embed(to, m.embd, w.tokens)
	if m.embdScale != 0 {
		w.enc.Scale(to, m.embdScale)
	}
	if m.streams > 0 {
		w.enc.Spread(w.x, to)
	}
	for _, start := range m.starts {
		start(w, w.tokens)
	}
	if err := w.probe(-1, ""); err != nil {
		return err
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
			if err := w.probe(i, "token mixer"); err != nil {
				return err
			}
		}
		if w.x.Rows() > w.keep {
			if err := w.narrow(); err != nil {
				return err
			}
		}
		if w.keep == 0 || l.ffn == nil { // the state has what it needs of them
			continue
		}
		if err := l.ffn.run(w); err != nil {
			return err
		}
		if err := w.probe(i, "feed-forward"); err != nil {
			return err
		}
	}
	return m.output(w)
}

// check says why the batches cannot be appended, and answers how many tokens they have.
func (m *Model) check(seqs []Seq) (rows int, err error) {
	if m.backend == nil {
		panic("model: Forward before Bind")
	}
	for i := range seqs {
		st, b := seqs[i].State, &seqs[i].Batch
		n := len(b.Tokens)
		rows += n
		switch {
		case n == 0:
			return 0, fmt.Errorf("model: an empty batch, want 1 to %d tokens", m.maxRows)
		case n > m.maxRows:
			return 0, fmt.Errorf("model: a batch of %d tokens, want at most %d", n, m.maxRows)
		case n > st.ctx-st.pos:
			return 0, fmt.Errorf("model: %d tokens after the %d in a context of %d: %w", n, st.pos, st.ctx, ErrContextFull)
		}
		for j, id := range b.Tokens {
			if id < 0 || int(id) >= m.cfg.Vocab {
				return 0, fmt.Errorf("model: token %d of the batch is %d, outside the vocabulary of %d", j, id, m.cfg.Vocab)
			}
		}
		each := m.cfg.Vocab
		if b.Hidden {
			each = m.cfg.Embd
		}
		if want := b.wanted() * each; len(b.Out) != want {
			panic(fmt.Sprintf("model: room for %d values, the batch asks for %d", len(b.Out), want))
		}
		for j := range i {
			if seqs[j].State == st {
				panic(fmt.Sprintf("model: batches %d and %d are of one sequence", j, i))
			}
		}
	}
	switch {
	case len(seqs) == 0:
		panic("model: Forward of no sequence")
	case rows > m.maxRows:
		return 0, fmt.Errorf("model: %d tokens of %d sequences, want at most %d together", rows, len(seqs), m.maxRows)
	case len(seqs) > 1 && m.watch != nil:
		panic("model: several sequences before a watcher")
	}
	return rows, nil
}

// wanted is the number of rows whose logits are asked for, the last ones of the batch.
func (b *Batch) wanted() int {
	switch b.Logits {
	case LastLogits:
		return 1
	case AllLogits:
		return len(b.Tokens)
	}
	return 0
}

// output computes the logits that are asked for, or what comes before them, some rows at a time.
func (m *Model) output(w *work) error {
	e := w.enc
	heads := slices.ContainsFunc(w.seqs, func(s seqWork) bool { return s.want > 0 && !s.hidden })
	some := logitRows(&m.cfg, m.maxRows)
	for r := 0; r < w.want; r += some {
		k := min(some, w.want-r)
		w.lastX.SetRows(k)
		w.lastH.SetRows(k)
		e.CopyRows(w.lastX, w.x, r)
		m.outIn.enter(w, w.lastH, w.lastX)
		if heads {
			w.logits.SetRows(k)
			e.MatMul(w.logits, m.head, w.lastH)
			if m.logitScale != 0 {
				e.Scale(w.logits, m.logitScale)
			}
			if m.logitCap != 0 {
				e.Softcap(w.logits, m.logitCap)
			}
		}
		for i := range w.seqs {
			s := &w.seqs[i]
			from, to := max(r, s.at), min(r+k, s.at+s.want) // of the kept rows
			if from >= to {
				continue
			}
			what, cols := w.logits, m.cfg.Vocab
			if s.hidden {
				what, cols = w.lastH, m.cfg.Embd
			}
			e.Read(s.out[(from-s.at)*cols:(to-s.at)*cols], w.part(0, what, from-r, to-from))
		}
		if err := e.Submit(); err != nil {
			return err
		}
	}
	if len(w.there) > 0 {
		err := e.Submit()
		if err == nil {
			err = w.chosenThere()
		}
		if err != nil {
			return err
		}
	}
	if err := m.badLogits(w); err != nil {
		return errors.Join(err, e.Submit())
	}
	for i := range w.seqs {
		if w.seqs[i].hidden {
			continue
		}
		for out := w.seqs[i].out; len(out) > 0; out = out[m.cfg.Vocab:] {
			for _, id := range m.suppressed {
				out[id] = float32(math.Inf(-1))
			}
		}
	}
	return e.Submit()
}
