package model

import "terrace/router"

// Ling and Ring 2: queries, keys and values in one matrix, experts chosen within groups, a shared expert of a width of its own.
func init() { register("bailingmoe2", bailingmoe2) }

func bailingmoe2(b *builder) {
	b.base()
	b.denseFF()
	b.nextn()
	b.leading()
	b.expertSizes(0)
	b.c.SharedFF = b.count("expert_shared_feed_forward_length", max(1, b.c.ExpertFF*b.some("expert_shared_count", maxExperts)), maxWidth)
	rule := router.Rule{Gating: b.gating(router.Sigmoid), Normalize: b.flag("expert_weights_norm", false), Scale: b.factor("expert_weights_scale", 0)}
	b.groups(&rule)
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{headNorm: true})
		in := b.norm(i, "ffn_norm")
		if i < b.c.Leading {
			l.ffn = b.dense(i, in)
		} else {
			l.set(b.routed(i, routedOpts{in: in, rule: rule, bias: b.has(tensorName(i, "exp_probs_b.bias")), shared: b.c.SharedFF}))
		}
	})
}
