package model

import "terrace/router"

// Qwen3: grouped-query attention with a norm of each query and key head, softmax routing with renormalised weights; and
// its dense relative.
func init() {
	register("qwen3", func(b *builder) { qwen3(b, false) })
	register("qwen3moe", func(b *builder) { qwen3(b, true) })
}

func qwen3(b *builder, experts bool) {
	b.base()
	b.denseFF()
	if experts {
		b.expertSizes(max(1, b.c.FF/max(1, b.count("expert_used_count", 0, maxExperts))))
	}
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{headNorm: true})
		in := b.norm(i, "ffn_norm")
		if experts {
			l.set(b.routed(i, routedOpts{in: in, rule: router.Rule{Gating: router.Softmax, Normalize: true}}))
		} else {
			l.ffn = b.dense(i, in)
		}
	})
}
