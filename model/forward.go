package model

import (
	"context"
	"fmt"

	"terrace/compute"
	"terrace/router"
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

// work holds the buffers of a walk. They grow to the largest batch and are used again by the next.
type work struct {
	enc compute.Encoder

	x, h                   compute.Tensor // the rows at work: all of the batch, or its last one (narrow)
	allX, allH, oneX, oneH compute.Tensor
	q, k, v, att, proj     compute.Tensor
	gate, up               compute.Tensor // dense layers
	guess                  [maxAhead]compute.Tensor
	scores                 [maxAhead + 1]compute.Tensor
	parts                  compute.Tensor // outputs of experts, in order of arrival
	last, logits           compute.Tensor

	pos        []int32
	cos, sin   []float32
	hostScores [maxAhead + 1][]float32 // rows x experts: of the layer itself, then of those ahead
	choices    []int32                 // rows x top-k experts in the router's order
	weights    []float32               // their weights
	index      []int32                 // rows of parts that hold their outputs
	scratch    router.Scratch

	distinct []int32 // experts of the layer that the batch needs, rising
	offset   []int32 // experts+1: where an expert's rows begin in rowOf and pairOf
	rowOf    []int32 // rows of the batch, grouped by expert
	pairOf   []int32 // places in choices, grouped by expert
	taken    []bool  // experts handed out already

	watchIn, watchMid []float32 // rows x embd, for a watcher
}

func newWork(m *Model) *work {
	c, b, rows := &m.cfg, m.backend, m.maxRows
	w := &work{enc: b.Encoder()}
	w.allX, w.allH, w.proj = b.NewTensor(rows, c.Embd), b.NewTensor(rows, c.Embd), b.NewTensor(rows, c.Embd)
	w.oneX, w.oneH = b.NewTensor(1, c.Embd), b.NewTensor(1, c.Embd)
	w.q, w.att = b.NewTensor(rows, c.Heads*c.KeyDim), b.NewTensor(rows, c.Heads*c.ValDim)
	w.k, w.v = b.NewTensor(rows, c.KVHeads*c.KeyDim), b.NewTensor(rows, c.KVHeads*c.ValDim)
	some := min(rows, max(1, logitBytes/4/c.Vocab))
	w.last, w.logits = b.NewTensor(some, c.Embd), b.NewTensor(some, c.Vocab)
	if c.Experts == 0 {
		w.gate, w.up = b.NewTensor(rows, c.FF), b.NewTensor(rows, c.FF)
		return w
	}
	for i := range w.guess {
		w.guess[i] = b.NewTensor(rows, c.Embd)
	}
	for i := range w.scores {
		w.scores[i] = b.NewTensor(rows, c.Experts)
	}
	w.parts = b.NewTensor(rows*c.TopK, c.Embd)
	w.distinct = make([]int32, 0, c.Experts)
	w.offset = make([]int32, c.Experts+1)
	w.taken = make([]bool, c.Experts)
	return w
}

// grown is s with n elements, which may be garbage.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// prepare sets the buffers to a batch of rows rows from position pos on.
func (w *work) prepare(m *Model, rows, pos, ahead int) {
	w.x, w.h = w.allX, w.allH
	for _, t := range [...]compute.Tensor{w.x, w.h, w.k, w.v} {
		t.SetRows(rows)
	}
	half := m.rope.pairs
	w.pos = grown(w.pos, rows)
	w.cos, w.sin = grown(w.cos, rows*half), grown(w.sin, rows*half)
	for i := range rows {
		w.pos[i] = int32(pos + i)
		m.rope.fill(w.cos[i*half:(i+1)*half], w.sin[i*half:(i+1)*half], pos+i)
	}
	w.setRows(&m.cfg, rows, ahead)
}

// setRows sets what comes after keys and values to rows rows.
func (w *work) setRows(c *Config, rows, ahead int) {
	for _, t := range [...]compute.Tensor{w.q, w.att, w.proj} {
		t.SetRows(rows)
	}
	if c.Experts == 0 {
		w.gate.SetRows(rows)
		w.up.SetRows(rows)
		return
	}
	for i := range ahead {
		w.guess[i].SetRows(rows)
	}
	for i := range ahead + 1 {
		w.scores[i].SetRows(rows)
		w.hostScores[i] = grown(w.hostScores[i], rows*c.Experts)
	}
	n := rows * c.TopK
	w.parts.SetRows(n)
	w.choices, w.weights, w.index = grown(w.choices, n), grown(w.weights, n), grown(w.index, n)
	w.rowOf, w.pairOf = grown(w.rowOf, n), grown(w.pairOf, n)
}

// narrow goes on with the last rows rows of the batch, one or none.
func (w *work) narrow(c *Config, rows int) error {
	if err := w.enc.Submit(); err != nil { // the number of rows changes
		return err
	}
	w.oneX.SetRows(rows)
	w.oneH.SetRows(rows)
	if rows > 0 {
		w.enc.CopyRows(w.oneX, w.x, w.x.Rows()-rows)
		w.enc.CopyRows(w.oneH, w.h, w.h.Rows()-rows)
	}
	w.x, w.h = w.oneX, w.oneH
	w.setRows(c, rows, 0)
	return nil
}

// Forward appends the tokens of b to st and computes the logits that b asks for. Experts come from src, which may be nil
// for a dense model. On an error st stands where it stood. Logits do not depend on how tokens were cut into batches.
func (m *Model) Forward(ctx context.Context, st *State, b Batch, src Source) error {
	if err := m.check(st, &b); err != nil {
		return err
	}
	w := m.work
	ahead := 0
	if m.cfg.Experts > 0 {
		if src == nil {
			panic("model: Forward without a source of experts")
		}
		ahead = src.Lookahead(len(b.Tokens))
		if ahead < 0 || ahead > maxAhead {
			panic(fmt.Sprintf("model: a lookahead of %d layers, want 0 to %d", ahead, maxAhead))
		}
	}
	w.prepare(m, len(b.Tokens), st.pos, ahead)
	w.enc.Embed(w.x, m.embd, b.Tokens)
	want := len(b.Out) / m.cfg.Vocab // rows of the last layer that anybody will see
	for i := range m.layers {
		if m.watch != nil && m.layers[i].rule != nil {
			w.watchIn = grown(w.watchIn, len(b.Tokens)*m.cfg.Embd)
			w.enc.Read(w.watchIn, w.x)
		}
		if err := ctx.Err(); err != nil {
			// What is recorded still reads the experts of the layer before.
			if serr := w.enc.Submit(); serr != nil {
				err = serr
			}
			return err
		}
		keep := len(b.Tokens)
		if i == len(m.layers)-1 {
			keep = want
		}
		if err := m.attention(st, i, keep); err != nil {
			return err
		}
		switch {
		case keep == 0: // its keys and values are stored
		case m.layers[i].rule == nil:
			m.feedForward(i)
		default:
			if err := m.routed(ctx, i, ahead, want, src); err != nil {
				return err
			}
		}
	}
	if err := m.output(&b); err != nil {
		return err
	}
	st.pos += len(b.Tokens)
	return nil
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

// attention stores the keys and values of layer i and adds its attention to the residual of the last keep rows, with
// which the walk goes on.
func (m *Model) attention(st *State, i, keep int) error {
	w, c, l := m.work, &m.cfg, &m.layers[i]
	e, rows := w.enc, w.x.Rows()
	e.RMSNorm(w.h, w.x, l.attnNorm, c.Eps)
	e.MatMul(w.k, l.k, w.h)
	e.MatMul(w.v, l.v, w.h)
	if keep < rows {
		if err := w.narrow(c, keep); err != nil {
			return err
		}
	}
	if keep > 0 {
		e.MatMul(w.q, l.q, w.h)
		e.HeadNorm(w.q, l.qNorm, c.KeyDim, c.Eps)
		at := (rows - keep) * m.rope.pairs
		e.RoPE(w.q, c.KeyDim, c.Rope.Dim, w.cos[at:], w.sin[at:])
	}
	e.HeadNorm(w.k, l.kNorm, c.KeyDim, c.Eps)
	e.RoPE(w.k, c.KeyDim, c.Rope.Dim, w.cos, w.sin)
	e.Attention(w.att, w.q, w.k, w.v, st.kv, i, w.pos, c.AttnScale)
	if keep > 0 {
		e.MatMul(w.proj, l.attnOut, w.att)
		e.Add(w.x, w.proj)
	}
	return nil
}

// feedForward adds a dense layer's feed-forward part to the residual.
func (m *Model) feedForward(i int) {
	w, l := m.work, &m.layers[i]
	e := w.enc
	e.RMSNorm(w.h, w.x, l.ffnNorm, m.cfg.Eps)
	e.MatMul(w.gate, l.gate, w.h)
	e.MatMul(w.up, l.up, w.h)
	e.SwiGLU(w.gate, w.gate, w.up)
	e.MatMul(w.proj, l.down, w.gate)
	e.Add(w.x, w.proj)
}

// routed adds layer i's experts to the residual and offers guesses about the next ahead layers, about the last one for the
// want rows it will have.
func (m *Model) routed(ctx context.Context, i, ahead, want int, src Source) error {
	w, c, l := m.work, &m.cfg, &m.layers[i]
	e := w.enc
	last := len(m.layers) - 1
	ahead = min(ahead, last-i)
	if want == 0 && i+ahead == last { // the last layer will need no experts
		ahead = max(ahead-1, 0)
	}
	e.RMSNorm(w.h, w.x, l.ffnNorm, c.Eps)
	e.MatMul(w.scores[0], l.router, w.h)
	var plain compute.Tensor // the residual with the unit norm, once for all distances
	for k := range ahead {
		norm, by, in := m.layers[i+1+k].ffnNorm, m.layers[i+1+k].router, w.guess[k]
		if l.guess[k] != nil {
			norm, by = m.unit, l.guess[k]
			if plain != nil {
				norm, in = nil, plain
			}
			plain = in
		}
		if norm != nil {
			e.RMSNorm(in, w.x, norm, c.Eps)
		}
		e.MatMul(w.scores[k+1], by, in)
	}
	for k := range ahead + 1 {
		e.Read(w.hostScores[k], w.scores[k])
	}
	rows := w.x.Rows()
	if m.watch != nil {
		w.watchMid = grown(w.watchMid, rows*c.Embd)
		e.Read(w.watchMid, w.x)
	}
	if err := e.Submit(); err != nil {
		return err
	}
	if m.watch != nil {
		m.watch(Watched{Layer: i, Rows: rows, In: w.watchIn[len(w.watchIn)-rows*c.Embd:], Mid: w.watchMid, Scores: w.hostScores[0]})
	}
	for r := range rows {
		at, to := r*c.Experts, r*c.TopK
		err := l.rule.TopK(w.hostScores[0][at:at+c.Experts], w.choices[to:to+c.TopK], w.weights[to:to+c.TopK], &w.scratch)
		if err != nil {
			return fmt.Errorf("layer %d, token %d: %w", i, w.pos[r], err)
		}
	}
	w.group(c.Experts, c.TopK)
	req, err := src.Begin(ctx, i, w.distinct, w.choices, w.hostScores[0])
	if err != nil {
		return fmt.Errorf("layer %d: %w", i, err)
	}
	// Guesses come after the need: its reads are queued first, and no guess can take a slot from it.
	for k := range ahead {
		n := rows
		if i+1+k == last {
			n = want
		}
		src.Hint(i, i+1+k, w.hostScores[k+1][(rows-n)*c.Experts:], n)
	}
	if err := w.experts(ctx, req); err != nil {
		// What is recorded still reads the experts that the request holds.
		if serr := e.Submit(); serr != nil {
			err = serr
		}
		req.Done()
		return fmt.Errorf("layer %d: %w", i, err)
	}
	e.WeightedSum(w.x, w.parts, w.index, w.weights, c.TopK)
	e.OnDone(req)
	if r, ok := src.(Refiner); ok && ahead > 0 && rows == 1 && r.Refine() {
		return m.refine(i, src)
	}
	return nil
}

// refine offers a second guess about the next layer, made of the layer's output.
func (m *Model) refine(i int, src Source) error {
	w, e := m.work, m.work.enc
	norm, by := m.layers[i+1].ffnNorm, m.layers[i+1].router
	if g := m.layers[i].guess[0]; g != nil {
		norm, by = m.unit, g
	}
	e.RMSNorm(w.guess[0], w.x, norm, m.cfg.Eps)
	e.MatMul(w.scores[1], by, w.guess[0])
	e.Read(w.hostScores[1], w.scores[1])
	if err := e.Submit(); err != nil {
		return err
	}
	src.Hint(i, i+1, w.hostScores[1], 1)
	return nil
}

// group sorts the choices of a layer by expert.
func (w *work) group(experts, k int) {
	clear(w.offset)
	clear(w.taken)
	for _, id := range w.choices {
		w.offset[id+1]++
	}
	w.distinct = w.distinct[:0]
	for id := range experts {
		if w.offset[id+1] > 0 {
			w.distinct = append(w.distinct, int32(id))
		}
		w.offset[id+1] += w.offset[id]
	}
	// offset[id] serves as the expert's write position and ends up as the next one's beginning; then it moves back.
	for p, id := range w.choices {
		at := w.offset[id]
		w.rowOf[at], w.pairOf[at] = int32(p/k), int32(p)
		w.offset[id]++
	}
	copy(w.offset[1:], w.offset[:experts])
	w.offset[0] = 0
}

// experts records each expert of the layer as it arrives. Outputs lie in order of arrival; index finds them.
func (w *work) experts(ctx context.Context, req Request) error {
	first := int32(0)
	for int(first) < len(w.choices) { // not until the request has none left: those whose reads failed are an error to be met
		id, x, ok, err := req.Next(ctx, false)
		if err == nil && !ok {
			// Nothing is ready: run what has arrived, so that its slots can hold what comes next.
			if err = w.enc.Submit(); err == nil {
				req.Recycle()
				id, x, ok, err = req.Next(ctx, true)
			}
		}
		if err != nil {
			return err
		}
		if !ok || w.taken[id] || w.offset[id+1] == w.offset[id] {
			panic(fmt.Sprintf("model: the source handed out expert %d (%t) out of turn, of %v", id, ok, w.distinct))
		}
		w.taken[id] = true
		from, to := w.offset[id], w.offset[id+1]
		w.enc.ExpertFFN(w.parts, int(first), x, w.h, w.rowOf[from:to])
		for j := from; j < to; j++ {
			w.index[w.pairOf[j]] = first + j - from
		}
		first += to - from
	}
	return nil
}

// output computes the logits that b asks for, some rows at a time.
func (m *Model) output(b *Batch) error {
	w, e := m.work, m.work.enc
	n, some := len(b.Out)/m.cfg.Vocab, max(1, min(m.maxRows, logitBytes/4/m.cfg.Vocab))
	out := b.Out
	for r := 0; r < n; r += some {
		k := min(some, n-r)
		w.last.SetRows(k)
		w.logits.SetRows(k)
		e.CopyRows(w.last, w.x, r)
		e.RMSNorm(w.last, w.last, m.outNorm, m.cfg.Eps)
		e.MatMul(w.logits, m.head, w.last)
		e.Read(out[:k*m.cfg.Vocab], w.logits)
		out = out[k*m.cfg.Vocab:]
		if err := e.Submit(); err != nil {
			return err
		}
	}
	return e.Submit()
}
