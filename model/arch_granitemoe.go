package model

import (
	"terrace/compute"
	"terrace/router"
)

// Granite with experts: factors on embeddings, on what each block adds, on attention scores and on logits.
func init() { register("granitemoe", granitemoe) }

func granitemoe(b *builder) {
	b.base()
	b.denseFF()
	b.expertSizes(b.c.FF)
	b.c.SharedFF = b.some("expert_shared_feed_forward_length", maxWidth)
	b.m.embdScale = b.factor("embedding_scale", 0)
	if s := b.factor("logit_scale", 1); s != 1 {
		b.m.logitScale = 1 / s // it divides
	}
	scale := b.factor("residual_scale", 0)
	b.layers(func(i int, l *layer) {
		in := b.norm(i, "attn_norm")
		in.scale = scale
		l.mix = b.attention(i, attnOpts{in: in, pairs: compute.Norm})
		in = b.norm(i, "ffn_norm")
		in.scale = scale
		l.set(b.routed(i, routedOpts{in: in, rule: router.Rule{Gating: router.Softmax, Normalize: true}, shared: b.c.SharedFF}))
	})
}
