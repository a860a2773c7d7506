package model

import (
	"math"

	"terrace/router"
)

// DeepSeek-V2, V3 and their relatives (Kimi K2, GLM-4.7-Flash): latent attention, some dense layers first, then experts with
// shared ones beside them.
func init() { register("deepseek2", deepseek2) }

func deepseek2(b *builder) {
	b.base()
	b.nextn()
	b.denseFF()
	b.expertSizes(0)
	b.leading()
	c := b.c
	o := latentOpts{
		qRank:  b.some("attention.q_lora_rank", maxWidth),
		rank:   b.count("attention.kv_lora_rank", 0, maxWidth/c.Heads),
		keyDim: b.count("attention.key_length_mla", c.KeyDim, maxWidth/c.Heads),
		valDim: b.count("attention.value_length_mla", c.ValDim, maxWidth/c.Heads),
	}
	if o.keyDim <= c.Rope.Dim {
		b.refuse("keys of %d elements a head, of which metadata key %q says %d are rotated", o.keyDim, b.key("rope.dimension_count"), c.Rope.Dim)
		return
	}
	if b.present("attention.scale") {
		b.refuse("metadata key %q is set, and deepseek2 has a scale of its own", b.key("attention.scale"))
	}
	gain := c.Rope.scoreGain()
	o.scale = float32(gain * gain / math.Sqrt(float64(o.keyDim)))
	c.AttnScale, c.KVHeads, c.KeyDim, c.ValDim = o.scale, 1, o.rank+c.Rope.Dim, o.rank
	c.SharedFF = c.ExpertFF * b.some("expert_shared_count", 1<<10)
	rule := router.Rule{Normalize: b.flag("expert_weights_norm", false), Scale: b.factor("expert_weights_scale", 1)}
	b.groups(&rule)
	b.layers(func(i int, l *layer) {
		if i == 0 {
			rule.Gating = b.gating(router.Softmax)
			if !b.present("expert_gating_func") && (c.Layers+b.extra == 47 || c.Layers+b.extra == 48) && c.Vocab == 154880 {
				rule.Gating = router.Sigmoid // GLM-4.7-Flash, whose first files do not say
			}
		}
		l.mix = b.latent(i, o)
		in := b.norm(i, "ffn_norm")
		if i < c.Leading {
			l.ffn = b.dense(i, in)
			return
		}
		l.set(b.routed(i, routedOpts{in: in, rule: rule, bias: b.has(tensorName(i, "exp_probs_b.bias")), shared: c.SharedFF}))
	})
}
