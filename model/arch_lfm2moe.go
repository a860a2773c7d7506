package model

import "terrace/router"

// LFM2: gated short convolutions in most layers and grouped-query attention in those that have KV heads, some dense layers
// first, then experts chosen with a bias.
func init() { register("lfm2moe", lfm2moe) }

func lfm2moe(b *builder) {
	kv := b.mixedBase()
	b.denseFF()
	b.expertSizes(0)
	b.leading()
	taps := b.count("shortconv.l_cache", 0, 64)
	if taps < 2 {
		b.refuse("metadata key %q is %d, want at least 2", b.key("shortconv.l_cache"), taps)
	}
	rule := router.Rule{Gating: b.gating(router.Softmax), Normalize: true, Scale: b.factor("expert_weights_scale", 1)}
	if !b.has("output_norm.weight") {
		n := &norms{eps: b.c.Eps, name: "token_embd_norm.weight"} // its place is the end, whatever its name says
		b.vector(&n.pre, n.name, b.c.Embd)
		b.m.outIn = n
	}
	b.layers(func(i int, l *layer) {
		if kv[i] > 0 {
			l.mix = b.attention(i, attnOpts{headNorm: true})
		} else {
			l.mix = b.shortConv(i, taps)
		}
		in := b.norm(i, "ffn_norm")
		if i < b.c.Leading {
			l.ffn = b.dense(i, in)
		} else {
			l.set(b.routed(i, routedOpts{in: in, rule: rule, bias: true}))
		}
	})
}
