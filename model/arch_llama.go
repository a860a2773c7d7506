package model

import (
	"terrace/compute"
	"terrace/router"
)

// Llama, dense and with experts (Mixtral). The converter has put the rows of queries and keys in the order that rotates
// neighbours.
func init() { register("llama", llama) }

func llama(b *builder) {
	b.base()
	b.denseFF()
	experts := b.some("expert_count", maxExperts) > 0
	if experts {
		b.expertSizes(b.c.FF)
	} else {
		b.some("expert_used_count", maxExperts)
	}
	b.c.Rope.Factors = b.has("rope_freqs.weight")
	b.layers(func(i int, l *layer) {
		l.mix = b.attention(i, attnOpts{pairs: compute.Norm, biases: b.has(tensorName(i, "attn_q.bias")), outBias: b.has(tensorName(i, "attn_output.bias"))})
		in := b.norm(i, "ffn_norm")
		if experts {
			l.set(b.routed(i, routedOpts{in: in, rule: router.Rule{Gating: router.Softmax, Normalize: true}}))
		} else {
			l.ffn = b.dense(i, in)
		}
	})
}
