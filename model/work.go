package model

import (
	"context"

	"terrace/compute"
	"terrace/router"
)

// buffer is the number of a tensor that blocks share.
type buffer int

// bufferSpec says what a buffer is for; each counts its rows a token.
type bufferSpec struct {
	role       string
	cols, each int
}

// work is one Forward at work: what it is about, and the buffers of the walk. They grow to the largest batch and are used
// again by the next.
type work struct {
	m       *Model
	enc     compute.Encoder
	buffers []compute.Tensor

	ctx    context.Context
	src    Source
	seqs   []seqWork
	alone  [1]Seq
	views  [6]compute.View // of rows of one of several sequences
	tokens []int32         // of all sequences, one after the other, as their rows are
	ahead  int             // layers to guess
	want   int             // rows of the last layer that anybody will see
	keep   int             // rows that go on after the layer at work has read all of them

	// Of models with several residual streams: what each gets of a block's output; the hash of the last tokens; the rotation of
	// the blocks that the batch makes whole.
	inject    compute.Tensor
	window    []int32
	tableRows []int64
	blocks    table

	x, h         compute.Tensor // the rows at work, all of the batch or its last ones (narrow): the residual; a block's input
	carried      []carried
	lastX, lastH compute.Tensor
	logits       compute.Tensor
	pos          []int32 // of all rows of the batch
	tables       []table // by rotation
	narrowed     bool    // x has the wanted rows only
	keptTables   []table // by rotation, of the wanted rows
	wanted       []float32
	seen         [maxAhead + 1]compute.Tensor
	hostScores   [maxAhead + 1][]float32 // rows x experts: of the layer itself, then of those ahead
	choices      []int32                 // rows x top-k experts in the router's order
	weights      []float32               // their weights
	index        []int32                 // rows of parts that hold their outputs
	scratch      router.Scratch

	distinct []int32 // experts of the layer that the batch needs, rising
	offset   []int32 // experts+1: where an expert's rows begin in rowOf and pairOf
	rowOf    []int32 // rows of the batch, grouped by expert
	pairOf   []int32 // places in choices, grouped by expert
	taken    []bool  // experts handed out already

	there  []there // layers whose experts the device chooses
	chosen []int32 // these

	probing bool  // this walk looks for the block behind which numbers are not finite
	found   error // where it found it

	watchIn, watchMid []float32 // rows x width, for a watcher
}

// seqWork is a sequence's part of the rows.
type seqWork struct {
	st           *State
	first, rows  int // its rows
	at, want     int // its rows among the wanted ones of all; they are its last
	block, whole int // of models with picked blocks: the first of the blocks that its rows make whole, and how many
	hidden       bool
	out          []float32
}

// carried is a tensor of the walk that narrow goes on with the last rows of.
type carried struct {
	cur      *compute.Tensor
	all, one compute.Tensor
}

// carrySpec is a tensor of a block that is carried.
type carrySpec struct {
	cur  *compute.Tensor
	cols int
}

// table holds the cosines and sines of a rotation for the rows of a batch.
type table struct{ cos, sin []float32 }

// maxChosen is the most rows of a pass whose experts a device may choose.
const maxChosen = 4096

func newWork(m *Model) *work {
	c, b, rows := &m.cfg, m.backend, m.maxRows
	w := &work{m: m, enc: b.Encoder(), tables: make([]table, len(m.ropes)), keptTables: make([]table, len(m.ropes))}
	for i := range w.views {
		w.views[i] = b.NewView()
	}
	w.carry(&w.x, m.width)
	w.carry(&w.h, c.Embd)
	if m.streams > 0 {
		w.carry(&w.inject, m.streams)
	}
	for _, s := range m.carries {
		w.carry(s.cur, s.cols)
	}
	for _, s := range m.buffers {
		w.buffers = append(w.buffers, b.NewTensor(rows*s.each, s.cols))
	}
	some := logitRows(c, rows)
	w.lastX, w.lastH, w.logits = b.NewTensor(some, m.width), b.NewTensor(some, c.Embd), b.NewTensor(some, c.Vocab)
	return w
}

// logitRows is how many rows pass through the output at a time.
func logitRows(c *Config, rows int) int { return min(rows, max(1, logitBytes/4/c.Vocab)) }

// carry makes the two forms of a tensor that lives through the layers.
func (w *work) carry(cur *compute.Tensor, cols int) {
	b := w.m.backend
	w.carried = append(w.carried, carried{cur, b.NewTensor(w.m.maxRows, cols), b.NewTensor(w.m.maxRows, cols)})
}

// WorkBytes is what the activations of one pass of rows tokens take, the quantised copies of them included, and what is
// derived from weights.
func (m *Model) WorkBytes(rows int) int64 {
	c := &m.cfg
	n := m.width + c.Embd + m.streams
	for _, s := range m.buffers {
		n += s.cols * s.each
	}
	for _, s := range m.carries {
		n += s.cols
	}
	if c.Experts > 0 {
		n += (maxAhead+1)*c.Experts + 3*c.TopK*c.ExpertFF // scores on the host, the inside of experts
	}
	for _, r := range m.ropes {
		n += r.c.Dim
	}
	n += m.picks
	size := int64(rows)*int64(n)*4*4/3 + logitBytes + m.turned
	if m.index.Layers > 0 {
		size += 8 << 20 // scores of blocks
	}
	if m.streams > 0 {
		const some = 64 // rows that a mixer takes at a time
		size += 3 * 4 * some * int64(m.width)
	}
	return size
}

// rows is buffer b with rows rows for the block at work.
func (w *work) rows(b buffer, rows int) compute.Tensor {
	t := w.buffers[b]
	t.SetRows(rows)
	return t
}

// grown is s with n elements, which may be garbage.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// take lays the sequences' rows one after the other.
func (w *work) take(seqs []Seq) {
	w.seqs, w.tokens, w.pos, w.want = w.seqs[:0], w.tokens[:0], w.pos[:0], 0
	for i := range seqs {
		q := &seqs[i]
		s := seqWork{st: q.State, first: len(w.tokens), rows: len(q.Tokens), at: w.want, want: q.wanted(), hidden: q.Hidden, out: q.Out}
		w.seqs = append(w.seqs, s)
		w.tokens = append(w.tokens, q.Tokens...)
		w.want += s.want
		for j := range q.Tokens {
			w.pos = append(w.pos, int32(q.State.pos+j))
		}
	}
}

// prepare sets the walk to the rows of all sequences.
func (w *work) prepare() {
	rows := len(w.tokens)
	for i := range w.carried {
		c := &w.carried[i]
		c.all.SetRows(rows)
		*c.cur = c.all
	}
	w.narrowed = false
	w.there = w.there[:0]
	w.chosen = w.chosen[:0]
	if w.m.index.Layers > 0 {
		w.wholeBlocks()
	}
	for r, p := range w.m.ropes {
		t, half := &w.tables[r], p.c.Dim/2
		t.cos, t.sin = grown(t.cos, rows*half), grown(t.sin, rows*half)
		for i, pos := range w.pos {
			p.fill(t.cos[i*half:(i+1)*half], t.sin[i*half:(i+1)*half], int(pos))
		}
	}
}

// narrow goes on with the wanted rows, if there are any.
func (w *work) narrow() error {
	if err := w.enc.Submit(); err != nil { // the number of rows changes
		return err
	}
	for i := range w.carried {
		c := &w.carried[i]
		c.one.SetRows(w.want)
		for j := range w.seqs {
			if s := &w.seqs[j]; s.want > 0 {
				w.enc.CopyRows(w.part(0, c.one, s.at, s.want), *c.cur, s.first+s.rows-s.want)
			}
		}
		*c.cur = c.one
	}
	for r, p := range w.m.ropes {
		t, all, half := &w.keptTables[r], &w.tables[r], p.c.Dim/2
		t.cos, t.sin = grown(t.cos, w.want*half)[:0], grown(t.sin, w.want*half)[:0]
		for j := range w.seqs {
			s := &w.seqs[j]
			from, to := (s.first+s.rows-s.want)*half, (s.first+s.rows)*half
			t.cos, t.sin = append(t.cos, all.cos[from:to]...), append(t.sin, all.sin[from:to]...)
		}
	}
	w.narrowed = true
	return nil
}

// part is n rows of t from row first on. There are as many views as their numbers say; each is in use until it is asked for
// again.
func (w *work) part(view int, t compute.Tensor, first, n int) compute.Tensor {
	if n == t.Rows() {
		return t
	}
	v := w.views[view]
	v.Set(t, first, n)
	return v
}

// all is the part of sequence s of t, which has all rows; nil stays nil.
func (w *work) all(view int, t compute.Tensor, s *seqWork) compute.Tensor {
	if t == nil {
		return nil
	}
	return w.part(view, t, s.first, s.rows)
}

// now is the part of sequence s of t, which has the rows that x has.
func (w *work) now(view int, t compute.Tensor, s *seqWork) compute.Tensor {
	if w.narrowed {
		return w.part(view, t, s.at, s.want)
	}
	return w.part(view, t, s.first, s.rows)
}

// positions are those of a sequence's rows.
func (w *work) positions(s *seqWork) []int32 { return w.pos[s.first : s.first+s.rows] }

// turns is rotation r of the rows that x has, or of all.
func (w *work) turns(r int, all bool) *table {
	if w.narrowed && !all {
		return &w.keptTables[r]
	}
	return &w.tables[r]
}

// attend records attention of each sequence over its own cache: q and dst have the rows that x has, k and v all; they may be
// nil.
func (w *work) attend(dst, q, k, v compute.Tensor, spec compute.AttnSpec) {
	for i := range w.seqs {
		s := &w.seqs[i]
		spec.Pos = w.positions(s)
		w.enc.Attention(w.now(0, dst, s), w.now(1, q, s), w.all(2, k, s), w.all(3, v, s), s.st.kv, spec)
	}
}

// conv records a convolution of each sequence over its own past.
func (w *work) conv(dst, x compute.Tensor, spec compute.ConvSpec) {
	for i := range w.seqs {
		s := &w.seqs[i]
		w.enc.ShortConv(w.all(0, dst, s), w.all(1, x, s), s.st.rec, spec)
	}
}

// where names row i of those that x has, for errors.
func (w *work) where(i int) int32 {
	if !w.narrowed {
		return w.pos[i]
	}
	for j := range w.seqs {
		if s := &w.seqs[j]; i < s.at+s.want {
			return w.pos[s.first+s.rows-s.want+i-s.at]
		}
	}
	panic("model: a row of no sequence")
}

// last is the rows of x, n elements each of all rows, that the last layer will have.
func (w *work) last(x []float32, n int) []float32 {
	rows := len(w.tokens)
	switch {
	case w.want == rows:
		return x
	case len(w.seqs) == 1:
		return x[(rows-w.want)*n:]
	}
	w.wanted = grown(w.wanted, w.want*n)[:0]
	for i := range w.seqs {
		s := &w.seqs[i]
		w.wanted = append(w.wanted, x[(s.first+s.rows-s.want)*n:(s.first+s.rows)*n]...)
	}
	return w.wanted
}
