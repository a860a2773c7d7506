package model

import "terrace/router"

// Qwen1.5-MoE and Qwen2-MoE: biases of queries, keys and values, weights as the softmax gives them, a gated shared expert.
func init() { register("qwen2moe", qwen2moe) }

func qwen2moe(b *builder) {
	b.base()
	b.denseFF()
	b.expertSizes(max(1, b.c.FF/max(1, b.count("expert_used_count", 0, maxExperts))))
	b.c.SharedFF = b.count("expert_shared_feed_forward_length", b.c.FF, maxWidth)
	b.fixed("expert_weights_norm", false)
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{biases: true})
		l.set(b.routed(i, routedOpts{in: b.norm(i, "ffn_norm"), rule: router.Rule{Gating: router.Softmax}, shared: b.c.SharedFF, gated: true}))
	})
}
