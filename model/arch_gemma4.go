package model

import (
	"math"

	"terrace/compute"
	"terrace/router"
)

// Gemma 4: norms before and after each block, windows on most layers with heads of another size, values normed too. Its large
// model adds a dense branch and an expert branch; its small ones give each layer an embedding of the token, and the last
// layers read the keys and values of earlier ones.
func init() { register("gemma4", gemma4) }

// gemma is what the layers of a Gemma 4 file have in common.
type gemma struct {
	heads, kvHeads, ff []int // by layer
	windowed           []bool
	window             int
	kvFrom             int // layers from here on read the cache of an earlier one
	dim, dimWindowed   int // elements of a head
	rope, ropeWindowed RopeConfig
	caches             []int // by layer: its layer of the cache
	perLayer           int   // elements of a layer's own embedding; 0: none
	embds              *layerEmbeddings
}

func gemma4(b *builder) {
	g := b.gemma()
	c := b.c
	b.suppressed()
	b.layers(func(i int, l *layer) {
		l.mix = b.gemmaAttention(g, i)
		end := &gemmaEnd{eps: c.Eps, block: b.buffer("block", c.Embd, 1)}
		b.vector(&end.post, tensorName(i, "post_ffw_norm.weight"), c.Embd)
		if b.has(tensorName(i, "layer_output_scale.weight")) {
			b.host(&end.scale, tensorName(i, "layer_output_scale.weight"), 1)
		}
		if g.perLayer > 0 {
			end.own = b.ownEmbedding(g, i)
		}
		in := b.norm(i, "ffn_norm")
		if c.Experts == 0 || !b.has(tensorName(i, "ffn_gate_inp.weight")) {
			l.ffn = &dense{in: &gemmaDense{norms: in, end: end}, mlp: b.mlp(i, "", g.ff[i], compute.GELU), out: end.block}
			return
		}
		l.set(b.gemmaExperts(g, i, in, end))
	})
}

// gemma reads the configuration.
func (b *builder) gemma() *gemma {
	r, c := &b.reader, b.c
	c.Layers = r.count("block_count", 0, maxLayers)
	c.Context = r.count("context_length", 0, maxContext)
	c.Embd = r.count("embedding_length", 0, maxWidth)
	c.Eps = float32(r.number("attention.layer_norm_rms_epsilon", math.NaN()))
	c.AttnScale = 1
	g := &gemma{
		heads:   b.perLayer("attention.head_count", maxHeads),
		kvHeads: b.perLayer("attention.head_count_kv", maxHeads),
		ff:      b.perLayer("feed_forward_length", maxWidth),
		dim:     r.count("attention.key_length", 0, maxWidth),
		window:  r.count("attention.sliding_window", 0, maxContext),
		caches:  make([]int, c.Layers),
	}
	g.dimWindowed = r.count("attention.key_length_swa", 0, maxWidth)
	for name, dim := range map[string]int{"attention.value_length": g.dim, "attention.value_length_swa": g.dimWindowed} {
		if v := r.count(name, dim, maxWidth); v != dim {
			r.refuse("metadata key %q is %d, and keys have %d elements a head", r.key(name), v, dim)
		}
	}
	g.windowed = b.windowed(6)
	for i := range g.heads {
		if g.heads[i] < 1 || g.kvHeads[i] < 1 || g.ff[i] < 1 || g.heads[i]%g.kvHeads[i] != 0 {
			r.refuse("layer %d: %d attention heads with %d KV heads, and a feed-forward part of %d", i, g.heads[i], g.kvHeads[i], g.ff[i])
		}
	}
	if r.err != nil {
		return g
	}
	c.Heads, c.KVHeads, c.FF = g.heads[0], g.kvHeads[0], g.ff[0]
	c.KeyDim = g.dim
	r.rope(c, g.dim, b.ropeOpts)
	g.rope = c.Rope
	g.rope.Factors = true
	// Windows are shorter than any context, so their angles are never scaled.
	w := RopeConfig{Scaling: "none", Factor: 1, AttnFactor: 1}
	w.Dim = r.count("rope.dimension_count_swa", g.dimWindowed, maxWidth)
	w.Base = float32(r.number("rope.freq_base_swa", 10000))
	if w.Dim%2 != 0 || w.Dim > g.dimWindowed {
		r.refuse("metadata key %q is %d, want an even number of at most %d, the head size", r.key("rope.dimension_count_swa"), w.Dim, g.dimWindowed)
	}
	g.ropeWindowed = w
	if g.windowed[0] {
		c.KeyDim, c.Rope = g.dimWindowed, w
	}
	c.ValDim = c.KeyDim
	shared := r.some("attention.shared_kv_layers", maxLayers)
	if g.kvFrom = c.Layers - shared; shared > 0 && g.kvFrom < 2 {
		r.refuse("metadata key %q is %d, and 2 of the %d layers must have keys and values of their own", r.key("attention.shared_kv_layers"), shared, c.Layers)
		g.kvFrom = c.Layers
	}
	if g.perLayer = r.some("embedding_length_per_layer_input", maxWidth/maxLayers); g.perLayer > 0 {
		g.embds = b.layerEmbeddings(g)
	}
	if r.some("expert_count", maxExperts) > 0 {
		b.expertSizes(0)
	}
	m := b.m
	m.embdScale = float32(math.Sqrt(float64(c.Embd)))
	m.logitCap = r.factor("final_logit_softcapping", 0)
	return g
}

// suppressed reads which tokens are never to come.
func (b *builder) suppressed() {
	const key = "tokenizer.ggml.suppress_tokens"
	if !b.f.Metadata.Has(key) || b.err != nil {
		return
	}
	ids, err := b.f.Metadata.Ints(key)
	b.take(err)
	b.vocabulary()
	for i, id := range ids {
		if id < 0 || id >= int64(b.c.Vocab) {
			b.refuse("metadata key %q: element %d is %d, and the vocabulary has %d tokens", key, i, id, b.c.Vocab)
			return
		}
		b.m.suppressed = append(b.m.suppressed, int32(id))
	}
}

// gemmaAttention is attention whose values are normed, too, and may be keys, or come from an earlier layer.
type gemmaAttention struct {
	in           *norms
	q, k, v, out compute.Weight // without v the projection of k is the value as well; without k an earlier layer's are read
	qNorm, kNorm compute.Weight
	dim          int
	layer, rope  int
	rotated      int
	eps          float32
	bq, bk, bv   buffer
	att, proj    buffer
}

func (a *gemmaAttention) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	a.in.enter(w, w.h, w.x)
	var k, v compute.Tensor
	if a.k != nil {
		k, v = w.rows(a.bk, rows), w.rows(a.bv, rows)
		e.MatMul(k, a.k, w.h)
		if a.v != nil {
			e.MatMul(v, a.v, w.h)
		} else {
			e.CopyRows(v, k, 0)
		}
		e.HeadNorm(v, nil, a.dim, a.eps)
		a.turn(w, k, a.kNorm, true)
	}
	if w.keep < rows {
		if err := w.narrow(); err != nil {
			return err
		}
	}
	keep := w.x.Rows()
	q, att := w.rows(a.bq, keep), w.rows(a.att, keep)
	if keep > 0 {
		e.MatMul(q, a.q, w.h)
		a.turn(w, q, a.qNorm, false)
	}
	w.attend(att, q, k, v, compute.AttnSpec{Layer: a.layer, Scale: 1})
	if keep == 0 {
		return nil
	}
	y := w.rows(a.proj, keep)
	e.MatMul(y, a.out, att)
	a.in.leave(w, y)
	return nil
}

// turn norms and rotates queries or keys; all tells that they have all rows.
func (a *gemmaAttention) turn(w *work, x compute.Tensor, norm compute.Weight, all bool) {
	w.enc.HeadNorm(x, norm, a.dim, a.eps)
	t := w.turns(a.rope, all)
	w.enc.RoPE(x, a.dim, 0, a.rotated, compute.Neox, t.cos, t.sin)
}

// gemmaAttention takes the attention of layer i.
func (b *builder) gemmaAttention(g *gemma, i int) *gemmaAttention {
	c := b.c
	a := &gemmaAttention{in: b.norm(i, "attn_norm"), dim: g.dim, eps: c.Eps}
	b.vector(&a.in.post, tensorName(i, "post_attention_norm.weight"), c.Embd)
	rope, window := g.rope, 0
	if g.windowed[i] {
		a.dim, rope, window = g.dimWindowed, g.ropeWindowed, g.window
	}
	a.rope, a.rotated = b.rotation(rope), rope.Dim
	name := func(s string) string { return tensorName(i, s+".weight") }
	q, kv := g.heads[i]*a.dim, g.kvHeads[i]*a.dim
	b.matrix(&a.q, name("attn_q"), c.Embd, q)
	b.vector(&a.qNorm, name("attn_q_norm"), a.dim)
	if i < g.kvFrom {
		b.matrix(&a.k, name("attn_k"), c.Embd, kv)
		b.vector(&a.kNorm, name("attn_k_norm"), a.dim)
		if b.has(name("attn_v")) {
			b.matrix(&a.v, name("attn_v"), c.Embd, kv)
		}
		a.layer = b.kvLayer(compute.KVLayer{Heads: g.kvHeads[i], KeyDim: a.dim, ValDim: a.dim, Window: window})
		a.bk, a.bv = b.buffer("k", kv, 1), b.buffer("v", kv, 1)
	} else {
		// The last layer of its own kind that has keys and values; what a file keeps of its own is not used.
		from := g.kvFrom - 1
		if g.windowed[i] {
			from--
		}
		if g.windowed[from] != g.windowed[i] || g.kvHeads[from] != g.kvHeads[i] {
			b.refuse("layer %d reads the keys and values of layer %d, which are of another kind (windows %t and %t, %d and %d heads)", i, from,
				g.windowed[i], g.windowed[from], g.kvHeads[i], g.kvHeads[from])
		}
		a.layer = g.caches[from]
		for _, s := range []string{"attn_k", "attn_v", "attn_k_norm"} {
			b.used[name(s)] = true
		}
	}
	g.caches[i] = a.layer
	b.matrix(&a.out, name("attn_output"), q, c.Embd)
	a.bq, a.att, a.proj = b.buffer("q", q, 1), b.buffer("attention", q, 1), b.buffer("block", c.Embd, 1)
	return a
}

// gemmaEnd is how a layer ends: the norm behind the feed-forward part, the layer's own embedding, its scale.
type gemmaEnd struct {
	post  compute.Weight
	own   *ownEmbedding
	scale []float32 // one number, or nil
	eps   float32
	block buffer
}

func (n *gemmaEnd) leave(w *work, y compute.Tensor) {
	e := w.enc
	e.RMSNorm(y, y, n.post, n.eps)
	e.Add(w.x, y)
	if n.own != nil {
		n.own.add(w, y, n.eps)
	}
	if n.scale != nil {
		e.Scale(w.x, n.scale[0])
	}
}

// gemmaDense is the residual around a feed-forward part without experts.
type gemmaDense struct {
	*norms
	end *gemmaEnd
}

func (d *gemmaDense) leave(w *work, y compute.Tensor) { d.end.leave(w, y) }
func (d *gemmaDense) plain() (float32, bool)          { return 0, false }

// gemmaBranches is the residual around experts: it adds the dense branch, each branch normed by itself.
type gemmaBranches struct {
	experts, dense *norms // each with a norm behind it
	mlp            *mlp
	end            *gemmaEnd
	h, sum         buffer
}

func (g *gemmaBranches) enter(w *work, dst, x compute.Tensor) { g.experts.enter(w, dst, x) }
func (g *gemmaBranches) peek(w *work, dst, x compute.Tensor)  { g.experts.peek(w, dst, x) }
func (g *gemmaBranches) plain() (float32, bool)               { return 0, false }

// beside computes the dense branch, while experts are read.
func (g *gemmaBranches) beside(w *work) {
	rows := w.x.Rows()
	h, y := w.rows(g.h, rows), w.rows(g.sum, rows)
	g.dense.enter(w, h, w.x)
	g.mlp.apply(w, y, h)
	w.enc.RMSNorm(y, y, g.dense.post, g.dense.eps)
}

func (g *gemmaBranches) leave(w *work, y compute.Tensor) {
	w.enc.RMSNorm(y, y, g.experts.post, g.experts.eps)
	w.enc.Add(y, w.rows(g.sum, y.Rows()))
	g.end.leave(w, y)
}

// gemmaGate is the router's own view of the residual: normed, scaled, divided by the root of its width.
type gemmaGate struct {
	norms
	factor float32
}

func (g *gemmaGate) enter(w *work, dst, x compute.Tensor) {
	g.norms.enter(w, dst, x)
	w.enc.Scale(dst, g.factor)
}

func (g *gemmaGate) peek(w *work, dst, x compute.Tensor) { g.enter(w, dst, x) }

// gemmaExperts takes the two branches of layer i; dense is the norm before the dense one.
func (b *builder) gemmaExperts(g *gemma, i int, dense *norms, end *gemmaEnd) *routed {
	c := b.c
	name := func(s string) string { return tensorName(i, s) }
	x := &gemmaBranches{experts: b.norm(i, "pre_ffw_norm_2"), dense: dense, mlp: b.mlp(i, "", g.ff[i], compute.GELU), end: end}
	x.h, x.sum = b.buffer("branch input", c.Embd, 1), b.buffer("branch", c.Embd, 1)
	b.vector(&x.dense.post, name("post_ffw_norm_1.weight"), c.Embd)
	b.vector(&x.experts.post, name("post_ffw_norm_2.weight"), c.Embd)
	gate := &gemmaGate{factor: float32(1 / math.Sqrt(float64(c.Embd)))}
	gate.eps, gate.name = c.Eps, name("ffn_gate_inp.scale")
	b.vector(&gate.pre, gate.name, c.Embd)
	r := b.routed(i, routedOpts{in: x, gate: gate, rule: router.Rule{Gating: router.Softmax, Normalize: true}, act: compute.GELU})
	r.beside = x.beside
	if b.has(name("ffn_down_exps.scale")) {
		b.host(&r.rule.ExpertScale, name("ffn_down_exps.scale"), c.Experts)
	}
	return r
}

// layerEmbeddings gives each token an embedding for each layer: one of its own plus one made of the token's embedding.
type layerEmbeddings struct {
	tokens, proj, norm compute.Weight
	dim, layers        int
	embd               int
	eps                float32
	all                compute.Tensor // rows x layers*dim, carried through the layers
	own                buffer
}

// layerEmbeddings takes the tensors that all layers share.
func (b *builder) layerEmbeddings(g *gemma) *layerEmbeddings {
	c := b.c
	p := &layerEmbeddings{dim: g.perLayer, layers: c.Layers, embd: c.Embd, eps: c.Eps}
	n := p.dim * p.layers
	if b.vocabulary(); b.err != nil {
		return p
	}
	b.matrix(&p.tokens, "per_layer_token_embd.weight", n, c.Vocab)
	b.matrix(&p.proj, "per_layer_model_proj.weight", c.Embd, n)
	b.vector(&p.norm, "per_layer_proj_norm.weight", p.dim)
	p.own = b.buffer("layer embeddings", n, 1)
	b.m.carries = append(b.m.carries, carrySpec{&p.all, n})
	b.m.starts = append(b.m.starts, p.start)
	return p
}

// start computes the embeddings of a batch, whose residual is the scaled token embedding.
func (p *layerEmbeddings) start(w *work, tokens []int32) {
	e := w.enc
	e.MatMul(p.all, p.proj, w.x)
	e.Scale(p.all, float32(1/math.Sqrt(float64(p.embd))))
	e.HeadNorm(p.all, p.norm, p.dim, p.eps)
	own := w.rows(p.own, len(tokens))
	e.Embed(own, p.tokens, tokens)
	e.Scale(own, float32(math.Sqrt(float64(p.dim))))
	e.Add(p.all, own)
	e.Scale(p.all, float32(math.Sqrt(0.5)))
}

// ownEmbedding adds a layer's own embedding of the token to the residual, gated by the residual.
type ownEmbedding struct {
	all             *layerEmbeddings
	layer           int
	gate, out, post compute.Weight
	bg, bx          buffer
}

// ownEmbedding takes the tensors of layer i's own embedding.
func (b *builder) ownEmbedding(g *gemma, i int) *ownEmbedding {
	c := b.c
	o := &ownEmbedding{all: g.embds, layer: i, bg: b.buffer("own gate", g.perLayer, 1), bx: b.buffer("own embedding", g.perLayer, 1)}
	b.matrix(&o.gate, tensorName(i, "inp_gate.weight"), c.Embd, g.perLayer)
	b.matrix(&o.out, tensorName(i, "proj.weight"), g.perLayer, c.Embd)
	b.vector(&o.post, tensorName(i, "post_norm.weight"), c.Embd)
	return o
}

// add uses y, a tensor as wide as the residual.
func (o *ownEmbedding) add(w *work, y compute.Tensor, eps float32) {
	e, rows, dim := w.enc, w.x.Rows(), o.all.dim
	g, x := w.rows(o.bg, rows), w.rows(o.bx, rows)
	e.MatMul(g, o.gate, w.x)
	e.CopyPart(x, compute.Part{Dim: dim, N: dim}, o.all.all, compute.Part{Dim: dim * o.all.layers, First: dim * o.layer, N: dim})
	e.Activate(g, g, x, compute.GELU)
	e.MatMul(y, o.out, g)
	e.RMSNorm(y, y, o.post, eps)
	e.Add(w.x, y)
}
