package model

import (
	"fmt"

	"terrace/compute"
)

// ngrams is the hash of the last tokens into rows of a table. Of each length from 2 to len(mul) tokens there are per heads,
// each with a range of rows of its own.
type ngrams struct {
	mul           []uint64 // a token's factor by its distance from the last
	sizes, starts []uint64 // of each head: rows, and the first
	per           int
	end           int32 // the token that separates texts: nothing before it counts
}

// heads is the number of rows a token needs.
func (g *ngrams) heads() int { return len(g.sizes) }

// rows sets dst to the rows of the last token of window, which has len(mul) tokens or fewer at the beginning of a sequence.
// A token that is missing or ends a text counts as an end, and so do all before it. The arithmetic is modulo 2^64.
func (g *ngrams) rows(dst []int64, window []int32) {
	last := len(window) - 1
	mix := uint64(window[last]) * g.mul[0]
	cut := false
	for n := 1; n < len(g.mul); n++ {
		t := g.end
		if !cut && last >= n {
			t = window[last-n]
		}
		cut = cut || t == g.end
		mix ^= uint64(t) * g.mul[n]
		for h := (n - 1) * g.per; h < n*g.per; h++ {
			dst[h] = int64(mix%g.sizes[h] + g.starts[h])
		}
	}
}

// engram adds an n-gram embedding to the streams of the residual.
type engram struct {
	ngrams
	gate                              compute.Engram
	key, value, conv                  compute.Weight
	layer, dilation                   int // of the recurrent state
	bembd, bkey, bvalue, bnorm, bconv buffer
}

// ask asks the table for the rows of the tokens, each of which follows those of its sequence.
func (g *engram) ask(w *work) error {
	m, n := w.m, g.heads()
	if m.rows == nil {
		panic("model: Forward without a table's rows")
	}
	back := len(g.mul) - 1
	w.tableRows = grown(w.tableRows, len(w.tokens)*n)
	for i := range w.seqs {
		s := &w.seqs[i]
		before := min(back, s.st.pos)
		w.window = append(append(w.window[:0], s.st.ids[s.st.pos-before:s.st.pos]...), w.tokens[s.first:s.first+s.rows]...)
		for j := range s.rows {
			at := (s.first + j) * n
			g.rows(w.tableRows[at:at+n], w.window[max(0, before+j-back):before+j+1])
		}
	}
	return m.rows.Want(w.tableRows)
}

func (g *engram) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	raw, err := w.m.rows.Rows(w.ctx)
	if err != nil {
		if serr := e.Submit(); serr != nil { // what is recorded still reads the experts of the layer before
			err = serr
		}
		return fmt.Errorf("n-gram rows: %w", err)
	}
	embd, key, value := w.rows(g.bembd, rows), w.rows(g.bkey, rows), w.rows(g.bvalue, rows)
	norm, conv := w.rows(g.bnorm, rows), w.rows(g.bconv, rows)
	e.DecodeRows(embd, w.m.table.Type, raw)
	e.MatMul(key, g.key, embd)
	e.MatMul(value, g.value, embd)
	e.EngramGate(key, norm, w.x, key, value, &g.gate)
	w.conv(conv, norm, compute.ConvSpec{Layer: g.layer, Weight: g.conv, Dilation: g.dilation, SiLU: true})
	e.Add(conv, key)
	e.Add(w.x, conv)
	return nil
}

// both runs two blocks one after the other.
type both struct{ first, second block }

func (b both) run(w *work) error {
	if err := b.first.run(w); err != nil {
		return err
	}
	return b.second.run(w)
}
