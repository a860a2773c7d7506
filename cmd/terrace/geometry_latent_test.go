package main

import (
	"fmt"
	"testing"

	"terrace/gguf"
)

// latent adds a layer of deepseek2: compressed keys and values, dense or with experts.
func latent(qRank, nope, val, leading, dense, shared int, bias bool) func(g *geometry, i int) {
	const rank, rot = 512, 64
	return func(g *geometry, i int) {
		g.vector(i, g.embd, "attn_norm.weight", "ffn_norm.weight")
		if qRank == 0 {
			g.matrix(i, g.embd, g.heads*(nope+rot), "attn_q")
		} else {
			g.matrix(i, g.embd, qRank, "attn_q_a")
			g.vector(i, qRank, "attn_q_a_norm.weight")
			g.matrix(i, qRank, g.heads*(nope+rot), "attn_q_b")
		}
		g.matrix(i, g.embd, rank+rot, "attn_kv_a_mqa")
		g.vector(i, rank, "attn_kv_a_norm.weight")
		if qRank == 0 {
			g.matrix(i, rank, g.heads*(nope+val), "attn_kv_b")
		} else {
			g.add(fmt.Sprintf("blk.%d.attn_k_b.weight", i), gguf.Q8_0, nope, rank, g.heads)
			g.add(fmt.Sprintf("blk.%d.attn_v_b.weight", i), gguf.Q8_0, rank, val, g.heads)
		}
		g.matrix(i, g.heads*val, g.embd, "attn_output")
		if i < leading {
			g.mlp(i, dense, "")
			return
		}
		g.routed(i)
		g.mlp(i, shared*g.ff, "_shexp")
		if bias {
			g.vector(i, g.experts, "exp_probs_b.bias")
		}
	}
}

// gemma adds a layer of gemma4 with its two branches.
func gemma(g *geometry, i int) {
	heads, dim := 8, 256
	if (i+1)%6 == 0 {
		heads, dim = 2, 512
	}
	g.vector(i, g.embd, "attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight", "post_ffw_norm_1.weight", "pre_ffw_norm_2.weight",
		"post_ffw_norm_2.weight", "ffn_gate_inp.scale")
	g.vector(i, dim, "attn_q_norm.weight", "attn_k_norm.weight")
	g.vector(i, 1, "layer_output_scale.weight")
	g.vector(i, g.experts, "ffn_down_exps.scale")
	g.matrix(i, g.embd, g.heads*dim, "attn_q")
	g.matrix(i, g.embd, heads*dim, "attn_k")
	if dim == 256 {
		g.matrix(i, g.embd, heads*dim, "attn_v")
	}
	g.matrix(i, g.heads*dim, g.embd, "attn_output")
	g.mlp(i, 2112, "")
	g.routed(i)
}

// TestLatentGeometries is TestGeometries for models with a compressed cache, and for Gemma 4, whose layers differ.
func TestLatentGeometries(t *testing.T) {
	u := func(n int) any { return uint32(n) }
	keys := func(kv, head, qRank, key, val, leading, dense, shared, gating int, norm bool, scale float32) map[string]any {
		k := map[string]any{"rope.dimension_count": u(64), "attention.head_count_kv": u(kv), "attention.key_length": u(head), "attention.value_length": u(512), "attention.kv_lora_rank": u(512),
			"attention.key_length_mla": u(key), "attention.value_length_mla": u(val), "leading_dense_block_count": u(leading), "feed_forward_length": u(dense),
			"expert_shared_count": u(shared), "expert_gating_func": u(gating), "expert_weights_norm": norm, "expert_weights_scale": scale}
		if qRank > 0 {
			k["attention.q_lora_rank"] = u(qRank)
		} else { // an older file
			delete(k, "attention.key_length_mla")
			delete(k, "attention.value_length_mla")
			k["attention.value_length"] = u(val)
		}
		return k
	}
	v3 := keys(1, 576, 1536, 192, 128, 3, 18432, 1, 2, true, 2.5)
	v3["expert_group_count"], v3["expert_group_used_count"] = u(8), u(4)
	v3["rope.scaling.type"], v3["rope.scaling.factor"], v3["rope.scaling.original_context_length"] = "yarn", float32(40), u(4096)
	v3["rope.scaling.yarn_log_multiplier"] = float32(0.1)
	near, kv := make([]bool, 30), make([]uint32, 30)
	for i := range near {
		near[i], kv[i] = (i+1)%6 != 0, 8
		if !near[i] {
			kv[i] = 2
		}
	}
	gemmaKeys := map[string]any{"attention.head_count_kv": kv, "attention.key_length": u(512), "attention.value_length": u(512), "attention.key_length_swa": u(256),
		"attention.value_length_swa": u(256), "rope.dimension_count": u(512), "rope.dimension_count_swa": u(256), "rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4),
		"attention.sliding_window": u(1024), "attention.sliding_window_pattern": near, "attention.shared_kv_layers": u(0), "embedding_length_per_layer_input": u(0),
		"final_logit_softcapping": float32(30), "feed_forward_length": u(2112)}
	q4, q2 := [2]gguf.Type{gguf.Q4_K, gguf.Q5_0}, [2]gguf.Type{gguf.Q2_K, gguf.Q4_0}
	for _, c := range []struct {
		name   string
		g      geometry
		expert [2]int64
		all    [2]string // GiB
		dense  string    // GiB
		kv     int64
		near   int64
	}{
		{"GLM-4.7-Flash", geometry{arch: "deepseek2", embd: 2048, vocab: 154880, layers: 47, heads: 20, kv: 1, head: 576, experts: 64, topK: 4, ff: 1536,
			keys: keys(1, 576, 768, 256, 256, 1, 10240, 1, 2, true, 1.8), layer: latent(768, 192, 256, 1, 10240, 1, true)},
			[2]int64{5308416, 3096576}, [2]string{"14.6", "8.5"}, "2.1", 54144, 0},
		{"DeepSeek-V2-Lite", geometry{arch: "deepseek2", embd: 2048, vocab: 102400, layers: 27, heads: 16, kv: 16, head: 192, experts: 64, topK: 6, ff: 1408,
			keys: keys(16, 192, 0, 192, 128, 1, 10944, 2, 1, false, 1), layer: latent(0, 128, 128, 1, 10944, 2, false)},
			[2]int64{5226496, 3514368}, [2]string{"8.1", "5.4"}, "1.3", 31104, 0},
		{"DeepSeek-V3", geometry{arch: "deepseek2", embd: 7168, vocab: 129280, layers: 61, heads: 128, kv: 1, head: 576, experts: 256, topK: 8, ff: 2048,
			keys: v3, layer: latent(1536, 128, 128, 3, 18432, 1, true)},
			[2]int64{24772608, 14450688}, [2]string{"343", "200"}, "16.9", 70272, 0},
		{"gemma-4-26B-A4B", geometry{arch: "gemma4", embd: 2816, vocab: 262144, layers: 30, heads: 16, kv: 8, head: 512, experts: 128, topK: 8, ff: 704, tied: true,
			keys: gemmaKeys, layer: gemma, tensors: func(g *geometry) {
				g.add("output_norm.weight", gguf.F32, g.embd)
				g.add("rope_freqs.weight", gguf.F32, 256)
			}},
			[2]int64{3593216, 2416128}, [2]string{"12.9", "8.6"}, "2.4", 25*8192 + 5*4096, 25 * 8192},
	} {
		for k, types := range [][2]gguf.Type{q4, q2} {
			g := c.g
			g.expertType, g.narrow = types[0], types[1]
			r := inspect(g.open(t), false, false)
			if r.Reason != "" {
				t.Errorf("%s: %s", c.name, r.Reason)
				continue
			}
			x, z := r.Experts, r.State
			if x.MinBytes != c.expert[k] || x.MaxBytes != c.expert[k] || digits(x.Bytes, c.all[k]) != c.all[k] || x.PerLayer != g.experts || x.Used != g.topK {
				t.Errorf("%s in %s: experts of %d to %d bytes, %s GiB of them, want %d and %s", c.name, g.expertType, x.MinBytes, x.MaxBytes, digits(x.Bytes, c.all[k]), c.expert[k], c.all[k])
			}
			rest := x.Dense - g.wide()
			if digits(rest, c.dense) != c.dense {
				t.Errorf("%s: the rest is %s GiB (%d bytes), want %s", c.name, digits(rest, c.dense), rest, c.dense)
			}
			if z.KV != c.kv || z.Windowed != c.near || z.Recurrent+z.Conv != 0 {
				t.Errorf("%s: state %+v, want %d bytes a token, %d of them windowed", c.name, z, c.kv, c.near)
			}
		}
	}
}
