package model

import "terrace/router"

// GLM-4.5 and its kin: half of each head turns, the larger ones norm queries and keys by heads, the router has a bias for the
// selection, a shared expert is added as it is. The last block predicts further tokens and is left out.
func init() { register("glm4moe", glm4moe) }

func glm4moe(b *builder) {
	b.base()
	b.denseFF()
	b.nextn()
	b.leading()
	b.sections(&b.c.Rope, false)
	b.expertSizes(0)
	b.c.SharedFF = b.c.ExpertFF * b.some("expert_shared_count", maxExperts)
	rule := router.Rule{Gating: b.gating(router.Sigmoid), Normalize: b.flag("expert_weights_norm", true), Scale: b.factor("expert_weights_scale", 0)}
	b.groups(&rule)
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{headNorm: true, optional: true, biases: b.has(tensorName(i, "attn_q.bias"))})
		in := b.norm(i, "post_attention_norm")
		if i < b.c.Leading {
			l.ffn = b.dense(i, in)
		} else {
			l.set(b.routed(i, routedOpts{in: in, rule: rule, bias: true, shared: b.c.SharedFF}))
		}
	})
}
