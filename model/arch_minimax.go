package model

import "terrace/router"

// MiniMax-M2: norms of queries and keys over all heads at once, part of each head turns, the router has a bias for the
// selection.
func init() { register("minimax-m2", minimax) }

func minimax(b *builder) {
	b.base()
	b.expertSizes(0)
	rule := router.Rule{Gating: b.gating(router.Sigmoid), Normalize: b.flag("expert_weights_norm", true), Scale: b.factor("expert_weights_scale", 0)}
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{fullNorm: true})
		l.set(b.routed(i, routedOpts{in: b.norm(i, "ffn_norm"), rule: rule, bias: true}))
	})
}
