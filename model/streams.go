package model

import "terrace/compute"

// hyper is a residual of several streams: a block reads their gated mean, and what it gives goes to each stream by a factor
// of its own.
type hyper struct {
	mixer compute.Mixer // without Inject before the output
	bare  compute.Mixer // the same without Inject, for guesses
}

// hyper takes the mixer of a block: prefix is "blk.3.hc_attn" or the like.
func (b *builder) hyper(prefix string, streams, rank int, inject bool) *hyper {
	h := &hyper{mixer: compute.Mixer{Streams: streams, Eps: b.c.Eps}}
	n := streams * b.c.Embd
	b.streamNorm(&h.mixer.Norm, prefix+"_norm.weight", streams)
	b.matrix(&h.mixer.Down, prefix+"_down.weight", n, rank)
	b.matrix(&h.mixer.Up, prefix+"_up.weight", rank, n)
	if inject {
		b.matrix(&h.mixer.Inject, prefix+"_inject.weight", n, streams)
	}
	return h
}

// streamNorm takes a norm of all streams, which some files store as a row a stream.
func (b *builder) streamNorm(to *compute.Weight, name string, streams int) {
	if t, ok := b.f.Tensor(name); ok && t.Dims[1] > 1 {
		b.flat(to, name, b.c.Embd, streams)
		return
	}
	b.vector(to, name, streams*b.c.Embd)
}

func (h *hyper) enter(w *work, dst, x compute.Tensor) {
	if h.mixer.Inject == nil {
		w.enc.Mix(dst, nil, x, &h.mixer)
		return
	}
	w.enc.Mix(dst, w.inject, x, &h.mixer)
}

func (h *hyper) peek(w *work, dst, x compute.Tensor) {
	h.bare = h.mixer // whose weights come after loading
	h.bare.Inject = nil
	w.enc.Mix(dst, nil, x, &h.bare)
}

func (h *hyper) leave(w *work, y compute.Tensor) { w.enc.Inject(w.x, y, w.inject) }

func (h *hyper) plain() (float32, bool) { return 0, false }

// sparse is gated attention over the blocks of positions that an index picks.
type sparse struct {
	*attention
	iq, ik, iqNorm compute.Weight
	dim            int // of an index key
	spec           compute.SparseSpec
	biq, bik       buffer
}

// sparse takes the attention of layer i and its index.
func (b *builder) sparse(i int, o attnOpts, heads, top int) *sparse {
	s := &sparse{attention: b.attention(i, o), dim: b.m.index.Dim}
	name := func(s string) string { return tensorName(i, "indexer."+s+".weight") }
	b.matrix(&s.iq, name("q_proj"), b.c.Embd, heads*s.dim)
	b.matrix(&s.ik, name("k_proj"), b.c.Embd, s.dim)
	b.vector(&s.iqNorm, name("q_norm"), s.dim)
	b.vector(&s.spec.Norm, name("k_norm"), s.dim)
	s.spec.IndexLayer, s.spec.Top, s.spec.Eps = b.m.index.Layers, top, b.c.Eps
	b.m.index.Layers++
	b.m.picks = 2 * top * b.m.index.Block
	b.m.blockRope = s.rope
	s.biq, s.bik = b.buffer("index q", heads*s.dim, 1), b.buffer("index k", s.dim, 1)
	return s
}

// run is attention.run with the index beside it.
func (s *sparse) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	s.in.enter(w, w.h, w.x)
	k, v, ik := w.rows(s.bk, rows), w.rows(s.bv, rows), w.rows(s.bik, rows)
	e.MatMul(k, s.k, w.h)
	e.MatMul(v, s.v, w.h)
	e.MatMul(ik, s.ik, w.h)
	if w.keep < rows {
		if err := w.narrow(); err != nil {
			return err
		}
	}
	keep := w.x.Rows()
	q, iq, att, gate := w.rows(s.bq, keep), w.rows(s.biq, keep), w.rows(s.att, keep), w.rows(s.gate, keep)
	if keep > 0 {
		both := w.rows(s.both, keep)
		e.MatMul(both, s.q, w.h)
		e.MatMul(iq, s.iq, w.h)
		e.SplitHeads(q, gate, both, s.keyDim)
		s.turn(w, q, s.qNorm, s.keyDim, false)
		e.HeadNorm(iq, s.iqNorm, s.dim, s.eps)
		t := w.turns(s.rope, false)
		e.RoPE(iq, s.dim, 0, s.rotated, s.pairs, t.cos, t.sin)
	}
	s.turn(w, k, s.kNorm, s.keyDim, true)
	half := w.m.ropes[w.m.blockRope].c.Dim / 2
	for i := range w.seqs {
		one := &w.seqs[i]
		s.spec.AttnSpec = compute.AttnSpec{Layer: s.layer, Pos: w.positions(one), Scale: s.scale}
		from, to := one.block*half, (one.block+one.whole)*half
		s.spec.Index, s.spec.Cos, s.spec.Sin = one.st.index, w.blocks.cos[from:to], w.blocks.sin[from:to]
		e.SparseAttention(w.now(0, att, one), w.now(1, q, one), w.all(2, k, one), w.all(3, v, one), w.now(4, iq, one), w.all(5, ik, one), one.st.kv, &s.spec)
	}
	if keep == 0 {
		return nil
	}
	e.Activate(att, gate, att, compute.Sigmoid)
	y := w.rows(s.proj, keep)
	e.MatMul(y, s.out, att)
	s.in.leave(w, y)
	return nil
}

// wholeBlocks sets the rotations of the first positions of the blocks that the rows make whole, one sequence's after the
// other's.
func (w *work) wholeBlocks() {
	m, t := w.m, &w.blocks
	size := m.index.Block
	n := 0
	for i := range w.seqs {
		s := &w.seqs[i]
		s.block, s.whole = n, (s.st.pos+s.rows)/size-s.st.pos/size
		n += s.whole
	}
	p := m.ropes[m.blockRope]
	half := p.c.Dim / 2
	t.cos, t.sin = grown(t.cos, n*half), grown(t.sin, n*half)
	for i := range w.seqs {
		s := &w.seqs[i]
		for b := range s.whole {
			at := (s.block + b) * half
			p.fill(t.cos[at:at+half], t.sin[at:at+half], (s.st.pos/size+b)*size)
		}
	}
}
