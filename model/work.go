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

	ctx   context.Context
	st    *State
	src   Source
	ahead int // layers to guess
	want  int // rows of the last layer that anybody will see
	keep  int // rows that go on after the layer at work has read all of them

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

	watchIn, watchMid []float32 // rows x width, for a watcher
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

func newWork(m *Model) *work {
	c, b, rows := &m.cfg, m.backend, m.maxRows
	w := &work{m: m, enc: b.Encoder(), tables: make([]table, len(m.ropes))}
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
	w.carried = append(w.carried, carried{cur, b.NewTensor(w.m.maxRows, cols), b.NewTensor(1, cols)})
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

// prepare sets the walk to a batch of rows rows from position pos on.
func (w *work) prepare(rows, pos int) {
	for i := range w.carried {
		c := &w.carried[i]
		c.all.SetRows(rows)
		*c.cur = c.all
	}
	w.pos = grown(w.pos, rows)
	for i := range w.pos {
		w.pos[i] = int32(pos + i)
	}
	if w.m.index.Layers > 0 {
		w.wholeBlocks(rows, pos)
	}
	for r, p := range w.m.ropes {
		t, half := &w.tables[r], p.c.Dim/2
		t.cos, t.sin = grown(t.cos, rows*half), grown(t.sin, rows*half)
		for i := range rows {
			p.fill(t.cos[i*half:(i+1)*half], t.sin[i*half:(i+1)*half], pos+i)
		}
	}
}

// narrow goes on with the last rows rows of the batch, one or none.
func (w *work) narrow(rows int) error {
	if err := w.enc.Submit(); err != nil { // the number of rows changes
		return err
	}
	for i := range w.carried {
		c := &w.carried[i]
		c.one.SetRows(rows)
		if rows > 0 {
			w.enc.CopyRows(c.one, *c.cur, (*c.cur).Rows()-rows)
		}
		*c.cur = c.one
	}
	return nil
}
