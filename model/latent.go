package model

import "terrace/compute"

// latent is multi-head latent attention in its absorbed form: the cache holds one compressed vector and one rotated part a
// token for all heads, queries are brought to the compressed space by the key half of the decompression, and what attention
// gives is brought back by its value half.
type latent struct {
	in                            residual
	q                             compute.Weight // nil where queries are compressed too:
	qDown, qNorm, qUp             compute.Weight
	down, norm, out               compute.Weight // norm is the compressed part's
	key, val                      compute.Weight // both halves of the decompression may be rows of one weight
	joint                         bool           // they are: keys meet theirs transposed
	keyRows, valRows              compute.HeadRows
	heads, nope, rotated          int
	rank, valDim                  int
	layer, rope                   int
	scale, eps                    float32
	bq, bqDown, bWide, bkv, ba, b buffer
	bproj                         buffer
	plain, turned, wide, tail     compute.Part
}

// run stores the compressed rows and adds the attention of the last w.keep ones, with which the walk goes on.
func (a *latent) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	a.in.enter(w, w.h, w.x)
	kv := w.rows(a.bkv, rows)
	e.MatMul(kv, a.down, w.h)
	e.PartNorm(kv, a.wide, a.norm, a.eps)
	t := w.turns(a.rope, true)
	e.RoPE(kv, a.wide.Dim, a.rank, a.rotated, compute.Norm, t.cos, t.sin)
	if w.keep < rows {
		if err := w.narrow(); err != nil {
			return err
		}
	}
	keep := w.x.Rows()
	q, att := w.rows(a.bWide, keep), w.rows(a.ba, keep)
	if keep > 0 {
		p := w.rows(a.bq, keep)
		if a.q != nil {
			e.MatMul(p, a.q, w.h)
		} else {
			c := w.rows(a.bqDown, keep)
			e.MatMul(c, a.qDown, w.h)
			e.RMSNorm(c, c, a.qNorm, a.eps)
			e.MatMul(p, a.qUp, c)
		}
		t := w.turns(a.rope, false)
		e.RoPE(p, a.plain.Dim, a.nope, a.rotated, compute.Norm, t.cos, t.sin)
		if a.joint {
			e.HeadMatMulT(q, a.wide, a.key, a.keyRows, p, a.plain)
		} else {
			e.HeadMatMul(q, a.wide, a.key, a.keyRows, p, a.plain)
		}
		e.CopyPart(q, a.tail, p, a.turned)
	}
	w.attend(att, q, kv, nil, compute.AttnSpec{Layer: a.layer, Scale: a.scale})
	if keep == 0 {
		return nil
	}
	o, y := w.rows(a.b, keep), w.rows(a.bproj, keep)
	e.HeadMatMul(o, compute.Part{Dim: a.valDim, N: a.valDim}, a.val, a.valRows, att, compute.Part{Dim: a.rank, N: a.rank})
	e.MatMul(y, a.out, o)
	a.in.leave(w, y)
	return nil
}

// latentOpts are the sizes of latent attention.
type latentOpts struct {
	qRank  int // of compressed queries; 0: they are not compressed
	rank   int // of the compressed keys and values
	keyDim int // of a head's query and key, rotated part included
	valDim int // of a head's value
	scale  float32
}

// latent takes the latent attention of layer i.
func (b *builder) latent(i int, o latentOpts) *latent {
	c := b.c
	rot := c.Rope.Dim
	a := &latent{in: b.norm(i, "attn_norm"), heads: c.Heads, nope: o.keyDim - rot, rotated: rot, rank: o.rank, valDim: o.valDim, scale: o.scale, eps: c.Eps}
	name := func(s string) string { return tensorName(i, s+".weight") }
	q := a.heads * o.keyDim
	if o.qRank == 0 {
		b.matrix(&a.q, name("attn_q"), c.Embd, q)
	} else {
		b.matrix(&a.qDown, name("attn_q_a"), c.Embd, o.qRank)
		b.vector(&a.qNorm, name("attn_q_a_norm"), o.qRank)
		b.matrix(&a.qUp, name("attn_q_b"), o.qRank, q)
		a.bqDown = b.buffer("q compressed", o.qRank, 1)
	}
	b.matrix(&a.down, name("attn_kv_a_mqa"), c.Embd, a.rank+rot)
	b.vector(&a.norm, name("attn_kv_a_norm"), a.rank)
	if b.has(name("attn_kv_b")) {
		// One matrix: of each head the rows of keys, then those of values.
		each := a.nope + a.valDim
		if t := b.find(name("attn_kv_b"), a.rank, a.heads*each); t != nil {
			n := b.add(t)
			b.m.binds = append(b.m.binds, bind{tensor: n, rows: a.heads * each, to: &a.key}, bind{tensor: n, rows: a.heads * each, to: &a.val})
		}
		a.joint, a.keyRows, a.valRows = true, compute.HeadRows{Stride: each}, compute.HeadRows{Stride: each, First: a.nope}
	} else {
		b.stacked(&a.key, name("attn_k_b"), a.nope, a.rank, a.heads)
		b.stacked(&a.val, name("attn_v_b"), a.rank, a.valDim, a.heads)
		a.keyRows, a.valRows = compute.HeadRows{Stride: a.rank}, compute.HeadRows{Stride: a.valDim}
	}
	b.matrix(&a.out, name("attn_output"), a.heads*a.valDim, c.Embd)
	a.rope = b.rotation(c.Rope)
	a.layer = b.kvLayer(compute.KVLayer{Heads: 1, KeyDim: a.rank + rot, ValDim: a.rank, Latent: true})
	a.plain, a.turned = compute.Part{Dim: o.keyDim, N: a.nope}, compute.Part{Dim: o.keyDim, First: a.nope, N: rot}
	a.wide, a.tail = compute.Part{Dim: a.rank + rot, N: a.rank}, compute.Part{Dim: a.rank + rot, First: a.rank, N: rot}
	a.bq, a.bWide, a.bkv = b.buffer("q", q, 1), b.buffer("q absorbed", a.heads*(a.rank+rot), 1), b.buffer("compressed", a.rank+rot, 1)
	a.ba, a.b, a.bproj = b.buffer("attention compressed", a.heads*a.rank, 1), b.buffer("attention", a.heads*a.valDim, 1), b.buffer("block", c.Embd, 1)
	return a
}

// stacked takes n matrices of out rows of in elements that lie one behind the other, as one.
func (b *builder) stacked(to *compute.Weight, name string, in, out, n int) {
	if t := b.find(name, in, out, n); t != nil {
		k := b.add(t)
		b.m.dense[k].Out = out * n
		b.m.binds = append(b.m.binds, bind{tensor: k, rows: out * n, to: to})
	}
}
