package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// families maps general.architecture to the function that reads such a file and puts its layers together. Each file
// arch_*.go adds its own.
var families = map[string]func(*builder){}

func register(arch string, load func(*builder)) {
	if families[arch] != nil {
		panic("model: architecture " + arch + " registered twice")
	}
	families[arch] = load
}

// Families lists the architectures that can be loaded.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// builder makes a Model from a file: it reads metadata (reader), takes tensors one by one (tensors.go) and makes blocks.
// The first error stays; what is built after it is not used.
type builder struct {
	reader
	m        *Model
	c        *Config
	ropeOpts *RopeOptions
	still    bool // nothing is rotated, whatever keys say
	used     map[string]bool
}

// build reads f into m, rotation as the options want it.
func (m *Model) build(f *gguf.File, rope *RopeOptions) error {
	b := &builder{reader: reader{f: f}, m: m, c: &m.cfg, ropeOpts: rope, used: map[string]bool{}}
	arch, err := f.Metadata.String("general.architecture")
	if err != nil {
		return &loadError{err.Error()}
	}
	load := families[arch]
	switch {
	case arch == "clip" || arch == "mmproj":
		b.refuse("the file holds the vision part of a model (architecture %.80q), give the text model's file", arch)
	case load == nil:
		b.refuse("architecture %.80q is not supported, only %s", arch, strings.Join(Families(), ", "))
	}
	if b.err != nil {
		return b.err
	}
	b.arch, b.c.Arch = arch, arch
	load(b)
	if b.err != nil {
		return b.err
	}
	b.checkNeutral()
	b.surplus()
	return b.err
}

// layers takes the embedding, then calls one for each layer and takes the output's tensors. Reading ends at the first error:
// a file that claims 4096 layers and has no tensors costs no time.
func (b *builder) layers(one func(i int, l *layer)) {
	if b.err != nil {
		return
	}
	b.embedding()
	if b.m.width == 0 {
		b.m.width = b.c.Embd
	}
	b.m.layers = make([]layer, b.c.Layers)
	b.m.experts = make([][]ExpertDesc, b.c.Layers)
	for i := range b.m.layers {
		if b.err != nil {
			return
		}
		b.m.stateLayers = append(b.m.stateLayers, [3]int{len(b.m.kvLayers), len(b.m.recurrent.Layers), b.m.index.Layers})
		one(i, &b.m.layers[i])
	}
	b.output()
}

// buffer asks for a tensor of cols columns and each rows a token of a batch. Blocks that give the same role, columns and
// rows share it: a buffer holds what a block computes while it runs, nothing longer.
func (b *builder) buffer(role string, cols, each int) buffer {
	x := bufferSpec{role, cols, each}
	i := slices.Index(b.m.buffers, x)
	if i < 0 {
		i = len(b.m.buffers)
		b.m.buffers = append(b.m.buffers, x)
	}
	return buffer(i)
}

// kvLayer adds a layer to the KV cache.
func (b *builder) kvLayer(l compute.KVLayer) int {
	b.m.kvLayers = append(b.m.kvLayers, l)
	return len(b.m.kvLayers) - 1
}

// recurrentLayer adds a layer to the recurrent state.
func (b *builder) recurrentLayer(l compute.RecurrentLayer) int {
	b.m.recurrent.Layers = append(b.m.recurrent.Layers, l)
	return len(b.m.recurrent.Layers) - 1
}

// tensorName is the name of a tensor of layer i.
func tensorName(i int, name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }

// norm takes the norm before a block of layer i, such as "attn_norm".
func (b *builder) norm(i int, name string) *norms {
	n := &norms{eps: b.c.Eps, name: tensorName(i, name+".weight")}
	b.vector(&n.pre, n.name, b.c.Embd)
	return n
}

// attnOpts are what an attention block has besides the four projections. The zero value is grouped-query attention with
// the configuration's head sizes and rotation in NEOX pairs over the whole context.
type attnOpts struct {
	in       residual // nil: the norm attn_norm
	pairs    compute.Pairing
	noRope   bool
	rope     *RopeConfig // nil: the configuration's
	headNorm bool        // attn_q_norm and attn_k_norm of a head's elements
	fullNorm bool        // the same over all heads' elements at once
	optional bool        // the norms are there or not
	biases   bool        // of q, k and v
	outBias  bool
	sinks    bool
	gated    bool // attn_q gives dim queries, then dim gates a head
	window   int
	kvHeads  int // 0: the configuration's
}

// attention takes the attention of layer i.
func (b *builder) attention(i int, o attnOpts) *attention {
	c := b.c
	a := &attention{in: o.in, heads: c.Heads, kvHeads: c.KVHeads, keyDim: c.KeyDim, valDim: c.ValDim, eps: c.Eps, scale: c.AttnScale, rope: -1, gated: o.gated}
	if a.in == nil {
		a.in = b.norm(i, "attn_norm")
	}
	if o.kvHeads > 0 {
		a.kvHeads = o.kvHeads
	}
	name := func(s string) string { return tensorName(i, s) }
	q, k, v := a.heads*a.keyDim, a.kvHeads*a.keyDim, a.kvHeads*a.valDim
	rows := q
	if o.gated {
		rows = 2 * q
		a.both, a.gate = b.buffer("q+gate", rows, 1), b.buffer("attn gate", q, 1)
	}
	if b.has(name("attn_qkv.weight")) {
		// The rows of the three projections, one after the other.
		if t := b.find(name("attn_qkv.weight"), c.Embd, rows+k+v); t != nil {
			n := b.add(t)
			b.m.binds = append(b.m.binds, bind{tensor: n, rows: rows, to: &a.q}, bind{tensor: n, first: rows, rows: k, to: &a.k}, bind{tensor: n, first: rows + k, rows: v, to: &a.v})
		}
	} else {
		b.matrix(&a.q, name("attn_q.weight"), c.Embd, rows)
		b.matrix(&a.k, name("attn_k.weight"), c.Embd, k)
		b.matrix(&a.v, name("attn_v.weight"), c.Embd, v)
	}
	if o.biases {
		b.vector(&a.qBias, name("attn_q.bias"), rows)
		b.vector(&a.kBias, name("attn_k.bias"), k)
		b.vector(&a.vBias, name("attn_v.bias"), v)
	}
	if o.optional && !b.has(name("attn_q_norm.weight")) {
		o.headNorm, o.fullNorm = false, false
	}
	if o.headNorm || o.fullNorm {
		a.normDim[0], a.normDim[1] = a.keyDim, a.keyDim
		if o.fullNorm {
			a.normDim[0], a.normDim[1] = q, k
		}
		b.vector(&a.qNorm, name("attn_q_norm.weight"), a.normDim[0])
		b.vector(&a.kNorm, name("attn_k_norm.weight"), a.normDim[1])
	}
	b.matrix(&a.out, name("attn_output.weight"), a.heads*a.valDim, c.Embd)
	if o.outBias {
		b.vector(&a.outBias, name("attn_output.bias"), c.Embd)
	}
	if o.sinks {
		b.vector(&a.sinks, name("attn_sinks.weight"), a.heads)
	}
	if !o.noRope {
		r := c.Rope
		if o.rope != nil {
			r = *o.rope
		}
		a.rope, a.rotated, a.pairs = b.rotation(r), r.Dim, o.pairs
	}
	a.layer = b.kvLayer(compute.KVLayer{Heads: a.kvHeads, KeyDim: a.keyDim, ValDim: a.valDim, Window: o.window})
	a.bq, a.bk, a.bv = b.buffer("q", q, 1), b.buffer("k", k, 1), b.buffer("v", v, 1)
	a.att, a.proj = b.buffer("attention", a.heads*a.valDim, 1), b.buffer("block", c.Embd, 1)
	return a
}

// rotation is the number of a rotation in the model's list.
func (b *builder) rotation(r RopeConfig) int {
	for i, x := range b.m.ropes {
		if x.c == r {
			return i
		}
	}
	x := newRope(r)
	b.m.ropes = append(b.m.ropes, x)
	if r.Factors {
		b.host(&x.factors, "rope_freqs.weight", r.Dim/2)
	}
	return len(b.m.ropes) - 1
}

// mlp takes a dense feed-forward part of layer i: suffix is "" or "_shexp".
func (b *builder) mlp(i int, suffix string, ff int, act compute.Act) *mlp {
	m := &mlp{act: act}
	c := b.c
	name := func(s string) string { return tensorName(i, s+suffix+".weight") }
	if act != compute.ReLU2 {
		b.matrix(&m.gate, name("ffn_gate"), c.Embd, ff)
		m.bg = b.buffer("gate", ff, 1)
	}
	b.matrix(&m.up, name("ffn_up"), c.Embd, ff)
	b.matrix(&m.down, name("ffn_down"), ff, c.Embd)
	m.bu = b.buffer("up", ff, 1)
	return m
}

// dense takes the feed-forward part of a layer without experts.
func (b *builder) dense(i int, in residual) *dense {
	return &dense{in: in, mlp: b.mlp(i, "", b.c.FF, compute.SiLU), out: b.buffer("block", b.c.Embd, 1)}
}

// routedOpts are what a layer of experts has besides the router's matrix.
type routedOpts struct {
	in        residual
	gate      residual    // how the router sees the residual; nil: as the experts do
	rule      router.Rule // Experts and K are the configuration's
	bias      bool        // exp_probs_b.bias, for the selection
	scoreBias bool        // ffn_gate_inp.bias, added to the scores
	biases    bool        // of the experts' matrices
	act       compute.Act
	shared    int  // width of a shared expert; 0: none
	gated     bool // its output is multiplied by a sigmoid
}

// routed takes the experts of layer i.
func (b *builder) routed(i int, o routedOpts) *routed {
	c := b.c
	r := &routed{at: i, in: o.in, gate: o.gate, act: o.act, ff: c.ExpertFF, eps: c.Eps}
	name := func(s string) string { return tensorName(i, s) }
	rule := o.rule
	rule.Experts, rule.K = c.Experts, c.TopK
	r.rule = &rule
	if err := rule.Validate(); err != nil {
		b.refuse("layer %d: %v", i, err)
	}
	r.name = name("ffn_gate_inp.weight")
	b.matrix(&r.router, r.name, c.Embd, c.Experts)
	if o.scoreBias {
		r.biasName = name("ffn_gate_inp.bias")
		b.vector(&r.scoreBias, r.biasName, c.Experts)
	}
	if o.bias {
		b.host(&r.rule.Bias, name("exp_probs_b.bias"), c.Experts)
	}
	b.stacks(i, o.act != compute.ReLU2)
	if o.biases {
		b.host(&r.gateBias, name("ffn_gate_exps.bias"), c.ExpertFF, c.Experts)
		b.host(&r.upBias, name("ffn_up_exps.bias"), c.ExpertFF, c.Experts)
		b.host(&r.downBias, name("ffn_down_exps.bias"), c.Embd, c.Experts)
	}
	r.block = b.buffer("block", c.Embd, 1)
	if o.shared > 0 {
		r.shared = b.mlp(i, "_shexp", o.shared, o.act)
		if o.gated {
			b.vector(&r.sharedGate, name("ffn_gate_inp_shexp.weight"), c.Embd)
			r.gates = b.buffer("shared gate", 1, 1)
		}
	}
	r.parts = b.buffer("parts", c.Embd, c.TopK)
	if r.gate == nil {
		r.gate = r.in
	} else {
		r.gateIn, r.apart = b.buffer("router input", c.Embd, 1), true
	}
	for k := range r.scores {
		r.scores[k] = b.buffer(fmt.Sprint("scores ", k), c.Experts, 1)
	}
	for k := range r.peeks {
		r.peeks[k] = b.buffer(fmt.Sprint("guess ", k), c.Embd, 1)
	}
	return r
}
