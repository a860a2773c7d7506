package model

import "terrace/router"

// OLMoE: norms of queries and keys over all heads at once, weights as the softmax gives them.
func init() { register("olmoe", olmoe) }

func olmoe(b *builder) {
	b.base()
	b.denseFF()
	b.expertSizes(b.c.FF)
	b.fixed("expert_weights_norm", false)
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{fullNorm: true})
		l.set(b.routed(i, routedOpts{in: b.norm(i, "ffn_norm"), rule: router.Rule{Gating: router.Softmax}}))
	})
}
