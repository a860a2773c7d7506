package synth

import (
	"fmt"
	"math"

	"terrace/gguf"
)

// part says what a tensor belongs to.
type part int

const (
	dense part = iota
	expert
	draft // a block of the file that plain decoding leaves out
	table // the rows of an n-gram table
)

// tensor is one tensor and how its bytes are made: by rows where that is set, from list, or random ones of deviation sigma
// around mean.
type tensor struct {
	gguf.WriteTensor
	part  part
	mean  float64
	sigma float64
	list  []float32
	rows  func(first int, dst []float32) // whole rows from number first on
}

func (t *tensor) bytes() int64 {
	n := int64(t.Type.RowBytes(int(t.Dims[0])))
	for _, d := range t.Dims[1:] {
		n *= int64(d)
	}
	return n
}

func (t *tensor) elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// builder collects metadata and tensors of one model; the first error stays.
type builder struct {
	s     shape
	o     *Options
	mix   mix
	types struct{ dense, embd, head, router, table gguf.Type }
	route *routing
	in    float64 // deviation that undoes a small input of the layer's matrices
	gain  float64 // size of what a block adds to the residual stream, whose embedding has size 1
	part  part

	meta []gguf.Field
	list []tensor
	err  error
}

func (b *builder) put(key string, v any) { b.meta = append(b.meta, gguf.Field{Key: key, Value: v}) }

// u, f, flag and arrays put a key of the architecture.
func (b *builder) u(key string, v int)     { b.put(b.s.arch+"."+key, uint32(v)) }
func (b *builder) f(key string, v float32) { b.put(b.s.arch+"."+key, v) }
func (b *builder) flag(key string, v bool) { b.put(b.s.arch+"."+key, v) }
func (b *builder) array(key string, v any) { b.put(b.s.arch+"."+key, v) }
func (b *builder) uIf(key string, v int)   { b.when(v != 0, func() { b.u(key, v) }) }
func (b *builder) when(ok bool, put func()) {
	if ok {
		put()
	}
}

func (b *builder) add(name string, t gguf.Type, x tensor, dims ...int) *tensor {
	x.Name, x.Type, x.part = name, t, max(x.part, b.part)
	for _, d := range dims {
		x.Dims = append(x.Dims, uint64(d))
	}
	if b.err == nil && dims[0]%t.BlockSize() != 0 {
		b.err = fmt.Errorf("tensor %s: rows of %d elements are no whole blocks of %d (%s)", name, dims[0], t.BlockSize(), t)
	}
	b.list = append(b.list, x)
	return &b.list[len(b.list)-1]
}

// matrix adds a dense matrix of deviation gain/sqrt(dims[0]).
func (b *builder) matrix(name string, gain float64, dims ...int) {
	b.add(name+".weight", fits(b.types.dense, dims[0]), tensor{sigma: gain / math.Sqrt(float64(dims[0]))}, dims...)
}

// float adds random F32 values, those of small tensors that files never quantise.
func (b *builder) float(name string, mean, sigma float64, dims ...int) {
	b.add(name, gguf.F32, tensor{mean: mean, sigma: sigma}, dims...)
}

// norm adds the weight of a norm. All are one, so that the structure the router relies on passes.
func (b *builder) norm(name string, dims ...int) { b.float(name+".weight", 1, 0, dims...) }

// values adds given F32 values.
func (b *builder) values(name string, dims []int, list []float32) {
	b.add(name, gguf.F32, tensor{list: list}, dims...)
}

// spread is n values from lo to hi.
func spread(n int, lo, hi float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = lo + (hi-lo)*float32(i)/float32(max(1, n-1))
	}
	return v
}

// common puts the keys that every architecture has, with feed_forward_length ff.
func (b *builder) common(ff int) {
	s := &b.s
	blocks := s.layers
	if b.o.MTP {
		blocks++
	}
	b.u("block_count", blocks)
	b.u("context_length", s.context)
	b.u("embedding_length", s.hidden)
	if s.plan == "" {
		b.u("feed_forward_length", ff)
	}
	b.u("attention.head_count", s.heads)
	switch {
	case s.attnAt != nil || s.plan != "" || s.kvFull != 0:
		b.array("attention.head_count_kv", b.kvHeads())
	default:
		b.u("attention.head_count_kv", s.kv)
	}
	if s.kvRank == 0 {
		b.u("attention.key_length", s.keyDim)
		b.u("attention.value_length", s.keyDim)
	}
	b.f("attention.layer_norm_rms_epsilon", s.eps)
	if s.plan == "" {
		b.f("rope.freq_base", s.base)
		rot := s.rot
		if rot == 0 {
			rot = s.keyDim
		}
		b.u("rope.dimension_count", rot)
	}
	if s.sections != nil {
		b.array("rope.dimension_sections", s.sections)
	}
	if s.yarnFactor != 0 {
		b.put(s.arch+".rope.scaling.type", "yarn")
		b.f("rope.scaling.factor", s.yarnFactor)
		b.u("rope.scaling.original_context_length", s.yarnContext)
		if s.yarnLog != 0 {
			b.f("rope.scaling.yarn_log_multiplier", s.yarnLog)
		}
	}
	b.u("vocab_size", s.vocab)
	b.u("expert_count", s.experts)
	b.u("expert_used_count", s.topK)
	if b.o.MTP {
		b.u("nextn_predict_layers", 1)
	}
}

// expertKeys puts the keys of the router's rule and of shared experts, those that are set.
func (b *builder) expertKeys() {
	s := &b.s
	b.u("expert_feed_forward_length", s.expertFF)
	b.uIf("expert_shared_count", s.sharedCount)
	b.uIf("leading_dense_block_count", s.leading)
	b.when(s.scale != 0, func() { b.f("expert_weights_scale", s.scale) })
	b.when(s.normKey, func() { b.flag("expert_weights_norm", s.renorm) })
	b.uIf("expert_gating_func", s.gating)
	b.when(s.groups > 0, func() {
		b.u("expert_group_count", s.groups)
		b.u("expert_group_used_count", s.groupsUsed)
	})
}

// embedding adds the top tensors. scale undoes a factor that the architecture gives to embeddings.
func (b *builder) embedding(outNorm string, scale float64) {
	s := &b.s
	t := b.add("token_embd.weight", fits(b.types.embd, s.hidden), tensor{sigma: 1}, s.hidden, s.vocab)
	t.rows = func(first int, dst []float32) { b.route.embeddings(first, dst, scale) }
	switch {
	case outNorm == "":
	case s.tied:
		// Signs of its own part the head from the embedding, else every token would be followed by itself.
		size := headSize / (scale * math.Sqrt(float64(s.hidden)))
		if s.logitScale != 0 {
			size *= float64(s.logitScale)
		}
		signs := make([]float32, s.hidden)
		r := newRandom(b.o.Seed, "head signs")
		for i := range signs {
			signs[i] = float32(size * (2*float64(r.next()&1) - 1))
		}
		b.values(outNorm+".weight", []int{s.hidden}, signs)
	default:
		b.norm(outNorm, s.hidden)
	}
	if !s.tied {
		t := b.add("output.weight", fits(b.types.head, s.hidden), tensor{sigma: headSize * b.in / math.Sqrt(float64(s.hidden))}, s.hidden, s.vocab)
		if b.o.Topics > 0 {
			t.rows = b.route.heads
		}
	}
}

// attention is what differs between the attention parts of a file's layers.
type attention struct {
	kv, keyDim int
	gated, noV bool // noV: the keys are the values
	outBias    bool
}

// attention adds one of grouped queries.
func (b *builder) attention(p string, a attention) {
	s := &b.s
	q, kv := s.heads*a.keyDim, a.kv*a.keyDim
	rows := q
	if a.gated {
		rows *= 2
	}
	if s.fusedQKV {
		b.matrix(p+"attn_qkv", b.in, s.hidden, q+2*kv)
	} else {
		b.matrix(p+"attn_q", b.in, s.hidden, rows)
		b.matrix(p+"attn_k", b.in, s.hidden, kv)
		if !a.noV {
			b.matrix(p+"attn_v", b.in, s.hidden, kv)
		}
	}
	if s.qkBias {
		b.float(p+"attn_q.bias", 0, 0.1, q)
		b.float(p+"attn_k.bias", 0, 0.1, kv)
		b.float(p+"attn_v.bias", 0, 0.1, kv)
	}
	switch s.qkNorm {
	case headNorm:
		b.norm(p+"attn_q_norm", a.keyDim)
		b.norm(p+"attn_k_norm", a.keyDim)
	case fullNorm:
		b.norm(p+"attn_q_norm", q)
		b.norm(p+"attn_k_norm", kv)
	}
	gain := b.gain
	if a.gated {
		gain *= 2 // a sigmoid halves what comes
	}
	b.matrix(p+"attn_output", gain, q, s.hidden)
	if a.outBias {
		b.float(p+"attn_output.bias", 0, 0.01, s.hidden)
	}
}

// feedForward adds a dense one of width ff; suffix is that of shared experts.
func (b *builder) feedForward(p, suffix string, ff int) {
	n := b.s.hidden
	b.matrix(p+"ffn_gate"+suffix, b.in, n, ff)
	b.matrix(p+"ffn_up"+suffix, b.in, n, ff)
	b.matrix(p+"ffn_down"+suffix, b.gain/rmsGated, ff, n)
}

// headSize is the deviation of logits.
const headSize = 3

// rmsGated is about the size of silu(x)*y for x and y of size 1.
const rmsGated = 0.6

// moe adds router and experts of layer i.
func (b *builder) moe(p string, i int) {
	s := &b.s
	n, e := s.hidden, s.experts
	t := b.add(p+"ffn_gate_inp.weight", b.types.router, tensor{}, n, e)
	t.rows = func(first int, dst []float32) { b.route.router(i, first, dst) }
	if s.probsBias {
		b.float(p+"exp_probs_b.bias", 0, 0.01, e)
	}
	x := b.mix.of(i, s.layers)
	// The mean of topK experts is smaller by the root of topK.
	down := b.gain * math.Sqrt(float64(s.topK)) / rmsGated / math.Sqrt(float64(s.expertFF))
	if s.plan != "" {
		down *= rmsGated / 1.2 // a squared ReLU
	}
	if s.scale != 0 {
		down /= float64(s.scale)
	}
	put := func(name string, t gguf.Type, sigma float64, dims ...int) {
		if b.part == dense {
			b.part = expert
			defer func() { b.part = dense }()
		}
		b.add(p+name+".weight", fits(t, dims[0]), tensor{sigma: sigma}, dims...)
	}
	up := b.in / math.Sqrt(float64(n))
	switch {
	case s.plan != "":
		put("ffn_up_exps", x.up, up, n, s.expertFF, e)
	case s.merged:
		if b.err == nil && fits(x.gate, n) != fits(x.up, n) {
			b.err = fmt.Errorf("tensor %sffn_gate_up_exps: gate is %s and up %s, and %s keeps both in one", p, x.gate, x.up, s.arch)
		}
		put("ffn_gate_up_exps", x.gate, up, n, 2*s.expertFF, e)
	default:
		put("ffn_gate_exps", x.gate, up, n, s.expertFF, e)
		put("ffn_up_exps", x.up, up, n, s.expertFF, e)
	}
	put("ffn_down_exps", x.down, down, s.expertFF, n, e)
}

// sharedExperts adds those that every token uses.
func (b *builder) sharedExperts(p string) {
	s := &b.s
	b.feedForward(p, "_shexp", s.shared)
	if s.sharedGate {
		b.float(p+"ffn_gate_inp_shexp.weight", 0, 1/math.Sqrt(float64(s.hidden)), s.hidden)
	}
}

// deltaNet adds a layer with a gated DeltaNet.
func (b *builder) deltaNet(p string) {
	s := &b.s
	key, val := s.groupCount*s.stateDim, s.timeRank*s.stateDim
	b.matrix(p+"attn_qkv", b.in, s.hidden, 2*key+val)
	b.matrix(p+"attn_gate", b.in, s.hidden, val)
	b.float(p+"ssm_conv1d.weight", 0, 0.5, s.conv, 2*key+val)
	b.values(p+"ssm_dt.bias", []int{s.timeRank}, spread(s.timeRank, -4, 0))
	b.values(p+"ssm_a", []int{s.timeRank}, spread(s.timeRank, -1, -0.05))
	if s.jointBA {
		b.matrix(p+"ssm_ba", b.in, s.hidden, 2*s.timeRank)
	} else {
		b.matrix(p+"ssm_beta", b.in, s.hidden, s.timeRank)
		b.matrix(p+"ssm_alpha", b.in, s.hidden, s.timeRank)
	}
	b.norm(p+"ssm_norm", s.stateDim)
	b.matrix(p+"ssm_out", b.gain/rmsGated, val, s.hidden)
}

func (b *builder) deltaNetKeys() {
	s := &b.s
	b.u("ssm.conv_kernel", s.conv)
	b.u("ssm.inner_size", s.stateDim*s.timeRank)
	b.u("ssm.state_size", s.stateDim)
	b.u("ssm.time_step_rank", s.timeRank)
	b.u("ssm.group_count", s.groupCount)
	b.u("full_attention_interval", s.fullEvery)
}

// full reports whether layer i of a hybrid has attention.
func (s *shape) full(i int) bool { return (i+1)%s.fullEvery == 0 }

// kvHeads is the number of key heads of each layer.
func (b *builder) kvHeads() []int32 {
	s := &b.s
	v := make([]int32, s.layers)
	for _, i := range s.attnAt {
		if i < s.layers {
			v[i] = int32(s.kv)
		}
	}
	for i := range v {
		switch {
		case s.plan != "" && s.plan[i] == '*':
			v[i] = int32(s.kv)
		case s.kvFull != 0 && s.full(i):
			v[i] = int32(s.kvFull)
		case s.kvFull != 0:
			v[i] = int32(s.kv)
		}
	}
	return v
}

// blocks calls f for every layer and its prefix, and, where the file has one, for the block that drafts.
func (b *builder) blocks(f func(p string, i int)) {
	for i := range b.s.layers {
		f(fmt.Sprintf("blk.%d.", i), i)
	}
	if b.o.MTP {
		b.part = draft
		f(fmt.Sprintf("blk.%d.", b.s.layers), b.s.layers)
		b.part = dense
	}
}

// nextn adds what joins a block that drafts to the others.
func (b *builder) nextn(p string) {
	n := b.s.hidden
	b.matrix(p+"nextn.eh_proj", 1, 2*n, n)
	for _, k := range []string{"enorm", "hnorm", "shared_head_norm"} {
		b.norm(p+"nextn."+k, n)
	}
}
