package model

import (
	"terrace/router"
)

// Qwen3-Next and Qwen3.5: gated DeltaNet in most layers and gated attention in every fourth, softmax routing with
// renormalised weights and a shared expert with a gate of its own; and the dense relative.
func init() {
	register("qwen3next", func(b *builder) { qwenHybrid(b, deltaOpts{joint: true, grouped: true}, true) })
	register("qwen35moe", func(b *builder) { qwenHybrid(b, deltaOpts{}, true) })
	register("qwen35", func(b *builder) { qwenHybrid(b, deltaOpts{}, false) })
}

func qwenHybrid(b *builder, o deltaOpts, experts bool) {
	b.base()
	if !o.joint {
		b.sections(&b.c.Rope, true)
	}
	b.nextn()
	if experts {
		b.expertSizes(0)
		b.c.SharedFF = b.count("expert_shared_feed_forward_length", b.c.ExpertFF, maxWidth)
	} else {
		b.denseFF()
	}
	ssm, recurrent := b.ssm(), b.recurrentLayers()
	b.layers(func(i int, l *layer) {
		if recurrent[i] {
			l.mix = b.deltaNet(i, ssm, o)
		} else {
			l.mix = b.attention(i, attnOpts{headNorm: true, gated: true})
		}
		in := b.norm(i, "post_attention_norm") // before the feed-forward part, in spite of its name
		if experts {
			l.set(b.routed(i, routedOpts{in: in, rule: router.Rule{Gating: router.Softmax, Normalize: true}, shared: b.c.SharedFF, gated: true}))
		} else {
			l.ffn = b.dense(i, in)
		}
	})
}

// recurrentLayers says which layers of a hybrid have no attention: attention.recurrent_layers tells each, else every
// full_attention_interval-th has attention.
func (b *builder) recurrentLayers() []bool {
	out := make([]bool, b.c.Layers)
	if b.present("attention.recurrent_layers") {
		for i, n := range b.perLayer("attention.recurrent_layers", 1)[:len(out)] {
			out[i] = n != 0
		}
		return out
	}
	every := b.count("full_attention_interval", 4, maxLayers)
	for i := range out {
		out[i] = (i+1)%every != 0
	}
	return out
}
