package model

import (
	"terrace/compute"
	"terrace/router"
)

// ERNIE 4.5 with experts: a softmax router with a bias for the selection, experts in every so manieth layer after the leading
// ones, a shared expert.
func init() { register("ernie4_5-moe", ernie) }

func ernie(b *builder) {
	b.base()
	b.denseFF()
	b.leading()
	b.expertSizes(0)
	b.c.SharedFF = b.count("expert_shared_feed_forward_length", max(1, b.c.ExpertFF*b.some("expert_shared_count", maxExperts)), maxWidth)
	step := b.count("interleave_moe_layer_step", 1, maxLayers)
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{pairs: compute.Norm})
		in := b.norm(i, "ffn_norm")
		if i < b.c.Leading || (i+1)%step != 0 {
			l.ffn = b.dense(i, in)
			return
		}
		shared := 0
		if b.has(tensorName(i, "ffn_gate_shexp.weight")) {
			shared = b.c.SharedFF
		}
		l.set(b.routed(i, routedOpts{in: in, rule: router.Rule{Gating: router.Softmax, Normalize: true}, bias: b.has(tensorName(i, "exp_probs_b.bias")), shared: shared}))
	})
}
