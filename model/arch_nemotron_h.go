package model

import (
	"terrace/compute"
	"terrace/router"
)

// Nemotron-H with experts: each layer is one block behind one norm, Mamba-2 where it has neither KV heads nor a feed-forward
// width, attention without rotation where it has KV heads, experts of two matrices with squared ReLU, or such a network
// without experts.
func init() { register("nemotron_h_moe", nemotronH) }

func nemotronH(b *builder) {
	b.still = true
	kv := b.mixedBase()
	ff := b.perLayer("feed_forward_length", maxWidth)
	b.expertSizes(0)
	b.c.SharedFF = b.some("expert_shared_feed_forward_length", maxWidth)
	if n := b.some("expert_shared_count", maxExperts); n > 1 {
		b.refuse("metadata key %q is %d, and %s is computed with 1", b.key("expert_shared_count"), n, b.arch)
	}
	ssm := b.ssm()
	rule := router.Rule{Gating: b.gating(router.Sigmoid), Normalize: b.flag("expert_weights_norm", false), Scale: b.factor("expert_weights_scale", 1)}
	b.groups(&rule)
	b.layers(func(i int, l *layer) {
		switch {
		case kv[i] > 0:
			l.mix = b.attention(i, attnOpts{noRope: true})
		case ff[i] == 0:
			l.mix = b.mamba2(i, ssm)
		case b.has(tensorName(i, "ffn_gate_inp.weight")):
			l.set(b.routed(i, routedOpts{in: b.norm(i, "attn_norm"), rule: rule, bias: true, act: compute.ReLU2, shared: b.c.SharedFF}))
		default:
			l.ffn = &dense{in: b.norm(i, "attn_norm"), mlp: b.mlp(i, "", ff[i], compute.ReLU2), out: b.buffer("block", b.c.Embd, 1)}
		}
	})
}
