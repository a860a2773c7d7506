package synth

import "math"

// architectures builds each architecture's keys and tensors.
var architectures = map[string]func(*builder){
	"qwen3moe":       plain("ffn_norm", true),
	"llama":          plain("ffn_norm", false),
	"olmoe":          plain("ffn_norm", false),
	"qwen2moe":       plain("ffn_norm", true),
	"granitemoe":     plain("ffn_norm", false),
	"minimax-m2":     plain("ffn_norm", true),
	"bailingmoe2":    plain("ffn_norm", true),
	"ernie4_5-moe":   plain("ffn_norm", true),
	"glm4moe":        plain("post_attention_norm", true),
	"gpt-oss":        gptOss,
	"qwen3next":      hybrid,
	"qwen35moe":      hybrid,
	"qwen4exp":       streams,
	"deepseek2":      latent,
	"gemma4":         gemma,
	"lfm2moe":        shortConvs,
	"nemotron_h_moe": mambas,
}

// plain is attention and experts, with a norm before each. Some architectures know an expert's width by a key of its
// own, others by feed_forward_length.
func plain(ffnNorm string, widthKey bool) func(b *builder) {
	return func(b *builder) {
		s := &b.s
		scale := 1.0
		if widthKey {
			ff := s.ff
			if ff == 0 {
				ff = s.expertFF
			}
			b.common(ff)
			b.expertKeys()
		} else {
			b.common(s.expertFF)
		}
		if s.arch != "glm4moe" {
			b.uIf("expert_shared_feed_forward_length", s.shared)
		}
		if s.arch == "ernie4_5-moe" {
			b.u("interleave_moe_layer_step", 1)
		}
		if s.embdScale != 0 {
			b.f("embedding_scale", s.embdScale)
			b.f("residual_scale", s.residScale)
			b.f("logit_scale", s.logitScale)
			b.f("attention.scale", s.attnScale)
			scale = 1 / float64(s.embdScale)
			b.gain /= float64(s.residScale)
		}
		b.embedding("output_norm", scale)
		b.blocks(func(p string, i int) {
			b.norm(p+"attn_norm", s.hidden)
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim})
			b.norm(p+ffnNorm, s.hidden)
			if i < s.leading {
				b.feedForward(p, "", s.ff)
				return
			}
			b.moe(p, i)
			if s.shared > 0 {
				b.sharedExperts(p)
			}
			if i == s.layers {
				b.nextn(p)
			}
		})
	}
}

// gptOss has attention with sinks, every second layer within a window, and a bias everywhere.
func gptOss(b *builder) {
	s := &b.s
	b.common(s.ff)
	b.expertKeys()
	b.u("attention.sliding_window", s.window)
	b.embedding("output_norm", 1)
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", s.hidden)
		b.attention(p, attention{kv: s.kv, keyDim: s.keyDim, outBias: true})
		b.float(p+"attn_sinks.weight", 0, 0.5, s.heads)
		b.norm(p+"post_attention_norm", s.hidden)
		b.moe(p, i)
		b.float(p+"ffn_gate_inp.bias", 0, 0.1, s.experts)
		b.float(p+"ffn_gate_exps.bias", 0, 0.1, s.expertFF, s.experts)
		b.float(p+"ffn_up_exps.bias", 0, 0.1, s.expertFF, s.experts)
		b.float(p+"ffn_down_exps.bias", 0, 0.01, s.hidden, s.experts)
	})
}

// hybrid is DeltaNet layers with gated attention among them.
func hybrid(b *builder) {
	s := &b.s
	b.common(s.ff)
	b.expertKeys()
	b.u("expert_shared_feed_forward_length", s.shared)
	b.deltaNetKeys()
	b.embedding("output_norm", 1)
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", s.hidden)
		if s.full(i) || i == s.layers {
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim, gated: true})
		} else {
			b.deltaNet(p)
		}
		b.norm(p+"post_attention_norm", s.hidden)
		b.moe(p, i)
		b.sharedExperts(p)
		if i == s.layers {
			b.nextn(p)
		}
	})
}

// streams is qwen4exp: the hybrid on a residual of several streams, with an n-gram table and an indexer for attention.
func streams(b *builder) {
	s := &b.s
	n, wide := s.hidden, s.hidden*s.streams
	b.common(s.ff)
	b.expertKeys()
	b.u("expert_shared_feed_forward_length", s.shared)
	b.deltaNetKeys()
	b.u("hyper_connection.count", s.streams)
	b.u("hyper_connection.low_rank", s.lowRank)
	b.u("attention.indexer.head_count", s.indexHeads)
	b.u("attention.indexer.key_length", s.indexDim)
	b.u("attention.indexer.top_k", s.indexTop)
	blocks := s.layers
	if b.o.MTP {
		blocks++
	}
	ratios := make([]uint32, blocks)
	for i := range s.layers {
		if s.full(i) {
			ratios[i] = uint32(s.compress)
		}
	}
	b.array("attention.compress_ratios", ratios)
	offsets := make([]uint64, len(s.headSizes))
	for i := range offsets[1:] {
		offsets[i+1] = offsets[i] + s.headSizes[i]
	}
	b.array("ple.layers", []uint32{uint32(s.pleLayer)})
	b.u("ple.ngram_size", s.ngram)
	b.u("ple.heads_per_ngram", s.perGram)
	b.u("ple.conv_kernel", s.pleConv)
	b.u("ple.eos_token_id", s.eos)
	b.u("ple.image_token_id", s.image)
	b.array("ple.layer_multipliers", s.multipliers)
	b.array("ple.head_offsets", offsets)
	b.array("ple.head_vocab_sizes", s.headSizes)
	b.u("embedding_length_per_layer_input", s.tableWidth)

	b.in = 2 // a mixer's gates are about one half
	b.embedding("", 1)
	mixer := func(name string) {
		// Gates of size one half: lo is silu of N(0,1)/streams.
		b.norm(name+"_norm", wide)
		b.matrix(name+"_down", 1, wide, s.lowRank)
		b.matrix(name+"_up", 4, s.lowRank, wide)
	}
	mixer("output_hc")
	b.add("per_layer_token_embd.weight", b.types.table, tensor{part: table, sigma: 1}, s.tableWidth, int(s.tableRows))
	b.blocks(func(p string, i int) {
		for _, half := range []string{"attn", "ffn"} {
			mixer(p + "hc_" + half)
			b.float(p+"hc_"+half+"_inject.weight", 0, 1/math.Sqrt(float64(wide)), wide, s.streams)
		}
		switch {
		case i == s.layers:
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim, gated: true})
		case s.full(i):
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim, gated: true})
			b.matrix(p+"indexer.q_proj", b.in, n, s.indexHeads*s.indexDim)
			b.matrix(p+"indexer.k_proj", b.in, n, s.indexDim)
			b.norm(p+"indexer.q_norm", s.indexDim)
			b.norm(p+"indexer.k_norm", s.indexDim)
		default:
			b.deltaNet(p)
		}
		if i == s.pleLayer {
			b.matrix(p+"ple_key", 1, n, wide)
			b.matrix(p+"ple_value", b.gain, n, n)
			for _, k := range []string{"key", "query", "conv"} {
				b.norm(p+"ple_norm_"+k, wide)
			}
			b.float(p+"ple_conv1d.weight", 0, 0.1, s.pleConv, wide)
		}
		b.moe(p, i)
		b.sharedExperts(p)
		if i == s.layers {
			b.matrix(p+"nextn.eh_proj", 1, 2*n, n)
			b.norm(p+"nextn.enorm", n)
			b.norm(p+"nextn.hnorm", wide)
			mixer(p + "nextn.hc_head")
		}
	})
}

// latent is deepseek2: keys and values compressed into one vector a position.
func latent(b *builder) {
	s := &b.s
	n := s.hidden
	b.common(s.ff)
	b.expertKeys()
	b.uIf("attention.q_lora_rank", s.qRank)
	b.u("attention.kv_lora_rank", s.kvRank)
	key := s.nope + s.rot
	b.u("attention.key_length", s.kvRank+s.rot)
	b.u("attention.value_length", s.kvRank)
	b.u("attention.key_length_mla", key)
	b.u("attention.value_length_mla", s.valDim)
	b.embedding("output_norm", 1)
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", n)
		if s.qRank > 0 {
			b.matrix(p+"attn_q_a", 1, n, s.qRank)
			b.norm(p+"attn_q_a_norm", s.qRank)
			b.matrix(p+"attn_q_b", 1, s.qRank, s.heads*key)
		} else {
			b.matrix(p+"attn_q", 1, n, s.heads*key)
		}
		b.matrix(p+"attn_kv_a_mqa", 1, n, s.kvRank+s.rot)
		b.norm(p+"attn_kv_a_norm", s.kvRank)
		b.matrix(p+"attn_k_b", 1, s.nope, s.kvRank, s.heads)
		b.matrix(p+"attn_v_b", 1, s.kvRank, s.valDim, s.heads)
		b.matrix(p+"attn_output", b.gain, s.heads*s.valDim, n)
		b.norm(p+"ffn_norm", n)
		if i < s.leading {
			b.feedForward(p, "", s.ff)
			return
		}
		b.moe(p, i)
		b.sharedExperts(p)
	})
}

// gemma is gemma4 with experts: norms on both sides of each part, a dense feed-forward beside the experts.
func gemma(b *builder) {
	s := &b.s
	n := s.hidden
	b.common(s.ff)
	b.expertKeys()
	pattern := make([]bool, s.layers)
	for i := range pattern {
		pattern[i] = !s.full(i)
	}
	b.array("attention.sliding_window_pattern", pattern)
	b.u("attention.sliding_window", s.window)
	b.u("attention.key_length_swa", s.keyDimSWA)
	b.u("attention.value_length_swa", s.keyDimSWA)
	b.u("rope.dimension_count_swa", s.keyDimSWA)
	b.f("rope.freq_base_swa", 10000)
	b.u("attention.shared_kv_layers", 0)
	b.u("embedding_length_per_layer_input", 0)
	b.f("final_logit_softcapping", s.softcap)
	b.embedding("output_norm", 1/math.Sqrt(float64(n)))
	// Global layers rotate a quarter of their pairs; the others have no frequency.
	freqs := make([]float32, s.keyDim/2)
	for i := range freqs {
		freqs[i] = 1
		if i >= len(freqs)/4 {
			freqs[i] = 1e30
		}
	}
	b.values("rope_freqs.weight", []int{len(freqs)}, freqs)
	gain := float64(b.gain)
	after := func(name string) { b.float(name+".weight", gain, 0, n) }
	b.gain = 1 // the norms after each part give the size
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", n)
		a := attention{kv: s.kv, keyDim: s.keyDimSWA}
		if s.full(i) {
			a = attention{kv: s.kvFull, keyDim: s.keyDim, noV: true}
		}
		b.attention(p, a)
		after(p + "post_attention_norm")
		b.values(p+"layer_output_scale.weight", []int{1}, []float32{1})
		b.norm(p+"ffn_norm", n)
		b.feedForward(p, "", s.ff)
		b.moe(p, i)
		b.float(p+"ffn_gate_inp.scale", math.Sqrt(float64(n)), 0, n)
		b.float(p+"ffn_down_exps.scale", 1, 0, s.experts)
		b.norm(p+"pre_ffw_norm_2", n)
		b.norm(p+"post_ffw_norm_1", n)
		b.norm(p+"post_ffw_norm_2", n)
		after(p + "post_ffw_norm")
	})
}

// shortConvs is lfm2moe: short convolutions with attention among them.
func shortConvs(b *builder) {
	s := &b.s
	n := s.hidden
	b.common(s.ff)
	b.expertKeys()
	b.u("shortconv.l_cache", s.conv)
	b.embedding("token_embd_norm", 1)
	has := make([]bool, s.layers)
	for _, i := range s.attnAt {
		if i < s.layers {
			has[i] = true
		}
	}
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", n)
		if has[i] {
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim})
		} else {
			b.matrix(p+"shortconv.in_proj", 1, n, 3*n)
			b.float(p+"shortconv.conv.weight", 0, 0.5, s.conv, n)
			b.matrix(p+"shortconv.out_proj", b.gain, n, n)
		}
		b.norm(p+"ffn_norm", n)
		if i < s.leading {
			b.feedForward(p, "", s.ff)
			return
		}
		b.moe(p, i)
	})
}

// mambas is nemotron_h_moe: each layer is one of Mamba-2 (M), attention (*) and experts without a gate (E).
func mambas(b *builder) {
	s := &b.s
	n := s.hidden
	b.common(0)
	widths := make([]int32, s.layers)
	for i := range widths {
		if s.plan[i] == 'E' {
			widths[i] = int32(s.expertFF)
		}
	}
	b.array("feed_forward_length", widths)
	b.f("attention.layer_norm_epsilon", s.eps)
	b.expertKeys()
	b.u("expert_shared_feed_forward_length", s.shared)
	b.u("ssm.conv_kernel", s.conv)
	b.u("ssm.inner_size", s.inner)
	b.u("ssm.state_size", s.stateDim)
	b.u("ssm.time_step_rank", s.timeRank)
	b.u("ssm.group_count", s.groupCount)
	b.embedding("output_norm", 1)
	xbc := s.inner + 2*s.groupCount*s.stateDim
	b.blocks(func(p string, i int) {
		b.norm(p+"attn_norm", n)
		switch s.plan[i] {
		case 'M':
			b.matrix(p+"ssm_in", 1, n, s.inner+xbc+s.timeRank)
			b.float(p+"ssm_conv1d.weight", 0, 0.5, s.conv, xbc)
			b.float(p+"ssm_conv1d.bias", 0, 0.1, xbc)
			b.values(p+"ssm_dt.bias", []int{s.timeRank}, spread(s.timeRank, -4, 0))
			b.values(p+"ssm_a", []int{1, s.timeRank}, spread(s.timeRank, -2, -0.1))
			b.values(p+"ssm_d", []int{1, s.timeRank}, spread(s.timeRank, 0.3, 1.5))
			b.norm(p+"ssm_norm", s.inner/s.groupCount, s.groupCount)
			b.matrix(p+"ssm_out", b.gain/rmsGated, s.inner, n)
		case '*':
			b.attention(p, attention{kv: s.kv, keyDim: s.keyDim})
		default:
			b.moe(p, i)
			b.matrix(p+"ffn_up_shexp", 1, n, s.shared)
			b.matrix(p+"ffn_down_shexp", b.gain/1.2, s.shared, n)
		}
	})
}
