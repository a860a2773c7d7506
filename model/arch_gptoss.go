package model

import (
	"terrace/compute"
	"terrace/router"
)

// gpt-oss: every second layer sees a window, scores compete with a learned sink, everything has a bias, the router chooses by
// the raw score and weighs the chosen by a softmax over them.
func init() { register("gpt-oss", gptoss) }

func gptoss(b *builder) {
	b.base()
	b.expertSizes(0)
	if g := b.gating(router.SoftmaxWeight); g != router.SoftmaxWeight {
		b.refuse("metadata key %q is %d, and %s is computed with %d", b.key("expert_gating_func"), g, b.arch, router.SoftmaxWeight)
	}
	window := b.count("attention.sliding_window", 0, maxContext)
	near := b.c.Rope // of windows, whose base and factor stay the file's where options extend the context
	near.Base, near.Factor = float32(b.number("rope.freq_base_swa", float64(b.trained.Base))), b.trained.Factor
	windowed := b.windowed(2)
	b.layers(func(i int, l *layer) {
		o := attnOpts{biases: true, outBias: true, sinks: true}
		if windowed[i] {
			o.window, o.rope = window, &near
		}
		l.mix = b.attention(i, o)
		l.set(b.routed(i, routedOpts{
			in: b.norm(i, "post_attention_norm"), rule: router.Rule{Gating: router.SoftmaxWeight}, scoreBias: true, biases: true, act: compute.SwiGLUOAI,
		}))
	})
}
