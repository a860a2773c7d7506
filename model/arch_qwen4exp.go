package model

import (
	"math"

	"terrace/compute"
	"terrace/router"
)

// Qwen3.8-Flash-Next: several residual streams with low-rank mixers in place of norms, gated DeltaNet in most layers and
// gated attention over picked blocks in the others, softmax routing with a gated shared expert, and in one layer an
// embedding of the last few tokens, hashed into a table that stays on disk.
func init() { register("qwen4exp", qwen4exp) }

func qwen4exp(b *builder) {
	b.base()
	b.sections(&b.c.Rope, true)
	b.nextn()
	b.expertSizes(0)
	c := b.c
	c.SharedFF = b.count("expert_shared_feed_forward_length", c.ExpertFF, maxWidth)
	streams, rank := b.count("hyper_connection.count", 0, 64), b.count("hyper_connection.low_rank", 0, maxWidth)
	if streams*c.Embd > maxWidth {
		b.refuse("%d streams of %d elements", streams, c.Embd)
	}
	ssm, recurrent := b.ssm(), b.recurrentLayers()
	indexHeads, top := b.blockIndex(recurrent)
	if b.err != nil {
		return
	}
	m := b.m
	m.streams, m.width = streams, streams*c.Embd
	m.outIn = b.hyper("output_hc", streams, rank, false)
	at := b.engram(recurrent)
	b.layers(func(i int, l *layer) {
		in := b.hyper(tensorName(i, "hc_attn"), streams, rank, true)
		switch {
		case recurrent[i]:
			l.mix = b.deltaNet(i, ssm, deltaOpts{in: in, gate: compute.Sigmoid})
		case m.ratios[i] == 0:
			l.mix = b.attention(i, attnOpts{in: in, headNorm: true, gated: true})
		default:
			l.mix = b.sparse(i, attnOpts{in: in, headNorm: true, gated: true}, indexHeads, top)
		}
		if i == at {
			l.mix = both{m.engram, l.mix}
		}
		ffn := b.hyper(tensorName(i, "hc_ffn"), streams, rank, true)
		l.set(b.routed(i, routedOpts{in: ffn, rule: router.Rule{Gating: router.Softmax, Normalize: true}, shared: c.SharedFF, gated: true}))
	})
}

// blockIndex reads which layers have block-sparse attention, whose blocks have one size, and how much they see: the heads of
// the index, and blocks.
func (b *builder) blockIndex(recurrent []bool) (heads, top int) {
	const key = "attention.compress_ratios"
	v := b.perLayer(key, 1<<16)
	heads = b.count("attention.indexer.head_count", 0, maxHeads)
	x := &b.m.index
	x.Dim = b.count("attention.indexer.key_length", 0, maxWidth/heads)
	seen := b.count("attention.indexer.top_k", 0, maxContext)
	if b.err != nil {
		return 0, 0
	}
	b.m.ratios = make([]int, len(recurrent))
	for i := range recurrent {
		n := v[i]
		switch {
		case recurrent[i] || n == 0:
		case n == 1:
			b.refuse("metadata key %q is 1 for layer %d, want 0 or more than 1", b.key(key), i)
		case x.Block != 0 && x.Block != n:
			b.refuse("metadata key %q is %d for layer %d and %d for one before it", b.key(key), n, i, x.Block)
		default:
			b.m.ratios[i], x.Block = n, n
		}
	}
	if x.Block == 0 {
		return heads, 0
	}
	if top = seen / x.Block; top == 0 || seen%x.Block != 0 {
		b.refuse("metadata key %q is %d, want a multiple of the %d of %q", b.key("attention.indexer.top_k"), seen, x.Block, b.key(key))
	}
	if b.c.Rope.Dim > x.Dim {
		b.refuse("metadata key %q is %d, and index keys have %d elements", b.key("rope.dimension_count"), b.c.Rope.Dim, x.Dim)
	}
	return heads, top
}

// engram takes the n-gram embedding and answers its layer.
func (b *builder) engram(recurrent []bool) int {
	c, m := b.c, b.m
	g := &engram{}
	m.engram = g
	at := b.whole("ple.layers", 1, 0, uint64(c.Layers-1))
	length := b.count("ple.ngram_size", 0, 16)
	g.per = b.count("ple.heads_per_ngram", 0, 1<<10)
	taps := b.count("ple.conv_kernel", 0, 64)
	width := b.count("embedding_length_per_layer_input", 0, maxWidth)
	n := (length - 1) * g.per
	g.mul = b.whole("ple.layer_multipliers", length, 0, math.MaxUint64)
	g.sizes = b.whole("ple.head_vocab_sizes", n, 1, 1<<48)
	g.starts = b.whole("ple.head_offsets", n, 0, 1<<48)
	end := b.whole("ple.eos_token_id", 1, 0, math.MaxInt32)
	b.key("ple.image_token_id") // of pictures, which are not computed here
	if b.err != nil {
		return 0
	}
	g.end, g.dilation = int32(end[0]), length
	switch {
	case length < 2:
		b.refuse("metadata key %q is %d, want at least 2", b.key("ple.ngram_size"), length)
	case n*width != c.Embd:
		b.refuse("%d rows of %d elements (metadata key %q) a token, want %d together", n, width, b.key("embedding_length_per_layer_input"), c.Embd)
	case !recurrent[at[0]]:
		b.refuse("metadata key %q is %d, a layer of attention", b.key("ple.layers"), at[0])
	case taps < 2:
		b.refuse("metadata key %q is %d, want at least 2", b.key("ple.conv_kernel"), taps)
	}
	b.table("per_layer_token_embd.weight", width)
	if b.err != nil {
		return 0
	}
	for h := range g.sizes {
		if end := g.starts[h] + g.sizes[h]; end > uint64(m.table.Rows) {
			b.refuse("head %d of the n-grams (%q, %q) ends at row %d, tensor %q has %d", h, b.key("ple.head_offsets"), b.key("ple.head_vocab_sizes"), end, m.table.Name, m.table.Rows)
			return 0
		}
	}
	i, hd := int(at[0]), m.width
	name := func(s string) string { return tensorName(i, "ple_"+s+".weight") }
	b.matrix(&g.key, name("key"), c.Embd, hd)
	b.matrix(&g.value, name("value"), c.Embd, c.Embd)
	g.gate.Streams, g.gate.Eps = m.streams, c.Eps
	b.streamNorm(&g.gate.KeyNorm, name("norm_key"), m.streams)
	b.streamNorm(&g.gate.QueryNorm, name("norm_query"), m.streams)
	b.streamNorm(&g.gate.ConvNorm, name("norm_conv"), m.streams)
	b.matrix(&g.conv, name("conv1d"), taps, hd)
	g.layer = b.recurrentLayer(compute.RecurrentLayer{Channels: hd, Back: (taps - 1) * g.dilation})
	g.bembd, g.bvalue, g.bkey = b.buffer("n-gram rows", c.Embd, 1), b.buffer("n-gram values", c.Embd, 1), b.buffer("n-gram keys", hd, 1)
	g.bnorm, g.bconv = b.buffer("conv in", hd, 1), b.buffer("conv out", hd, 1)
	return i
}

// whole reads n integers of full 64 bits from least to most, or one that stands alone.
func (b *builder) whole(name string, n int, least, most uint64) []uint64 {
	out := make([]uint64, max(n, 1))
	v, err := b.f.Metadata.Ints(b.key(name))
	if b.take(err); err != nil {
		return out
	}
	if len(v) != n {
		b.refuse("metadata key %q has %d elements, want %d", b.key(name), len(v), n)
		return out
	}
	for i, x := range v {
		if out[i] = uint64(x); x < 0 || out[i] < least || out[i] > most {
			b.refuse("metadata key %q is %d at %d, want %d to %d", b.key(name), x, i, least, min(most, math.MaxInt64))
			return out
		}
	}
	return out
}

// table takes the tensor whose rows come by themselves.
func (b *builder) table(name string, cols int) {
	t, ok := b.f.Tensor(name)
	switch {
	case !ok:
		b.refuse("tensor %q of %d x any number of rows is missing", name, cols)
	case t.Dims[0] != uint64(cols) || t.Dims[2] > 1 || t.Dims[3] > 1:
		b.refuse("tensor %q is %s, want %d elements a row", name, shapeOf(t), cols)
	default:
		b.used[name] = true
		b.m.table = &TableDesc{Name: name, Extent: t.Extent, Type: t.Type, Cols: cols, Rows: int64(t.Dims[1])}
	}
}
