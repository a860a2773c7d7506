package model

import "terrace/compute"

// block is a part of a layer. run computes it for the rows of w.x and adds the result to them.
type block interface {
	run(w *work) error
}

// residual is how blocks read the residual and add to it.
type residual interface {
	// enter sets dst to a block's input, made of x: rows of the residual. What leave needs of them it keeps.
	enter(w *work, dst, x compute.Tensor)
	// peek is enter for a guess about a block of a later layer: nothing is kept.
	peek(w *work, dst, x compute.Tensor)
	// leave adds a block's output y to w.x; y may be changed.
	leave(w *work, y compute.Tensor)
	// plain tells that leave adds y times a factor and nothing else, so that a block may do that itself.
	plain() (factor float32, ok bool)
}

// norms is the residual of most models: an RMS norm before each block, in some a norm after it or a factor.
type norms struct {
	pre, post compute.Weight // post is nil where there is none
	scale     float32        // of the block's output; 0: 1
	eps       float32
	name      string // of pre's tensor
}

func (n *norms) enter(w *work, dst, x compute.Tensor) { w.enc.RMSNorm(dst, x, n.pre, n.eps) }
func (n *norms) peek(w *work, dst, x compute.Tensor)  { w.enc.RMSNorm(dst, x, n.pre, n.eps) }

func (n *norms) leave(w *work, y compute.Tensor) {
	if n.post != nil {
		w.enc.RMSNorm(y, y, n.post, n.eps)
	}
	if n.scale != 0 && n.scale != 1 {
		w.enc.Scale(y, n.scale)
	}
	w.enc.Add(w.x, y)
}

func (n *norms) plain() (float32, bool) {
	if n.scale == 0 {
		return 1, n.post == nil
	}
	return n.scale, n.post == nil
}

// attention is softmax attention over a KV cache.
type attention struct {
	in                    residual
	q, k, v, out          compute.Weight
	qBias, kBias, vBias   compute.Weight // nil: none
	outBias               compute.Weight
	qNorm, kNorm          compute.Weight // nil: none
	normDim               [2]int         // elements that the norms of q and k take together
	sinks                 compute.Weight
	gated                 bool
	layer                 int // of the KV cache
	heads, kvHeads        int
	keyDim, valDim        int
	rope                  int // into Model.ropes; -1: none
	rotated               int
	pairs                 compute.Pairing
	scale, eps            float32
	bq, bk, bv, att, proj buffer
	both, gate            buffer // gated
}

// run stores the keys and values of all rows and adds the attention of the last w.keep ones, with which the walk goes on.
func (a *attention) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	a.in.enter(w, w.h, w.x)
	k, v := w.rows(a.bk, rows), w.rows(a.bv, rows)
	e.MatMul(k, a.k, w.h)
	e.MatMul(v, a.v, w.h)
	if w.keep < rows {
		if err := w.narrow(); err != nil {
			return err
		}
	}
	keep := w.x.Rows()
	q, att := w.rows(a.bq, keep), w.rows(a.att, keep)
	if keep > 0 {
		if a.gated {
			both := w.rows(a.both, keep)
			e.MatMul(both, a.q, w.h)
			if a.qBias != nil {
				e.AddBias(both, a.qBias)
			}
			e.SplitHeads(q, w.rows(a.gate, keep), both, a.keyDim)
		} else {
			e.MatMul(q, a.q, w.h)
			if a.qBias != nil {
				e.AddBias(q, a.qBias)
			}
		}
		a.turn(w, q, a.qNorm, a.normDim[0], false)
	}
	if a.kBias != nil {
		e.AddBias(k, a.kBias)
	}
	if a.vBias != nil {
		e.AddBias(v, a.vBias)
	}
	a.turn(w, k, a.kNorm, a.normDim[1], true)
	w.attend(att, q, k, v, compute.AttnSpec{Layer: a.layer, Scale: a.scale, Sinks: a.sinks})
	if keep == 0 {
		return nil
	}
	if a.gated {
		e.Activate(att, w.rows(a.gate, keep), att, compute.Sigmoid)
	}
	y := w.rows(a.proj, keep)
	e.MatMul(y, a.out, att)
	if a.outBias != nil {
		e.AddBias(y, a.outBias)
	}
	a.in.leave(w, y)
	return nil
}

// turn norms and rotates queries or keys; all tells that they have all rows.
func (a *attention) turn(w *work, x compute.Tensor, norm compute.Weight, dim int, all bool) {
	if norm != nil {
		w.enc.HeadNorm(x, norm, dim, a.eps)
	}
	if a.rope >= 0 {
		t := w.turns(a.rope, all)
		w.enc.RoPE(x, a.keyDim, 0, a.rotated, a.pairs, t.cos, t.sin)
	}
}

// mlp is a feed-forward network of dense weights.
type mlp struct {
	gate, up, down compute.Weight
	act            compute.Act
	bg, bu         buffer
}

// apply sets dst to the network of h.
func (m *mlp) apply(w *work, dst, h compute.Tensor) {
	e, rows := w.enc, h.Rows()
	u := w.rows(m.bu, rows)
	if m.act == compute.ReLU2 {
		e.MatMul(u, m.up, h)
		e.Activate(u, u, nil, m.act)
		e.MatMul(dst, m.down, u)
		return
	}
	g := w.rows(m.bg, rows)
	e.MatMul(g, m.gate, h)
	e.MatMul(u, m.up, h)
	e.Activate(g, g, u, m.act)
	e.MatMul(dst, m.down, g)
}

// dense is the feed-forward part of a layer without experts.
type dense struct {
	in  residual
	mlp *mlp
	out buffer
}

func (d *dense) run(w *work) error {
	d.in.enter(w, w.h, w.x)
	y := w.rows(d.out, w.x.Rows())
	d.mlp.apply(w, y, w.h)
	d.in.leave(w, y)
	return nil
}
