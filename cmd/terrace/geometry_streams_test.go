package main

import (
	"fmt"
	"math"
	"testing"

	"terrace/gguf"
)

// TestStreamsGeometry: inspect gives the sizes of Qwen3.8-Flash-Next, with or without the block that predicts further tokens.
func TestStreamsGeometry(t *testing.T) {
	u := func(n int) any { return uint32(n) }
	const embd, streams, rank, conv, value = 2560, 4, 320, 10240, 6144
	sizes := []uint64{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}
	starts := make([]uint64, len(sizes))
	for i := range sizes[1:] {
		starts[i+1] = starts[i] + sizes[i]
	}
	ratios := func(n int) []int32 {
		out := make([]int32, n)
		for i := 3; i < 48; i += 4 {
			out[i] = 4
		}
		return out
	}
	mixer := func(g *geometry, i int, name string) {
		g.vector(i, streams*embd, name+"_norm.weight")
		g.matrix(i, streams*embd, rank, name+"_down")
		g.matrix(i, rank, streams*embd, name+"_up")
		g.matrix(i, streams*embd, streams, name+"_inject")
	}
	g := geometry{
		arch: "qwen4exp", embd: embd, vocab: 248320, layers: 48, heads: 24, kv: 2, head: 256, experts: 512, topK: 10, ff: 640,
		keys: map[string]any{
			"rope.dimension_count": u(64), "rope.freq_base": float32(1e7), "rope.dimension_sections": []int32{11, 11, 10, 0}, "full_attention_interval": u(4),
			"ssm.conv_kernel": u(4), "ssm.inner_size": u(value), "ssm.state_size": u(128), "ssm.time_step_rank": u(48), "ssm.group_count": u(16),
			"expert_shared_feed_forward_length": u(640), "hyper_connection.count": u(streams), "hyper_connection.low_rank": u(rank),
			"attention.indexer.head_count": u(4), "attention.indexer.key_length": u(128), "attention.indexer.top_k": u(2048), "attention.compress_ratios": ratios(48),
			"ple.layers": []uint32{1}, "ple.ngram_size": u(3), "ple.heads_per_ngram": u(8), "ple.conv_kernel": u(4), "ple.eos_token_id": u(248044), "ple.image_token_id": u(248056),
			"embedding_length_per_layer_input": u(160), "ple.layer_multipliers": []uint64{23703573157769, 20109073645365, 8052911324071},
			"ple.head_vocab_sizes": sizes, "ple.head_offsets": starts,
		},
		tensors: func(g *geometry) {
			g.add("output_hc_norm.weight", gguf.F32, streams*embd)
			g.add("output_hc_down.weight", gguf.Q8_0, streams*embd, rank)
			g.add("output_hc_up.weight", gguf.Q8_0, rank, streams*embd)
			g.add("per_layer_token_embd.weight", gguf.IQ4NL, 160, 320001536)
		},
		layer: func(g *geometry, i int) {
			mixer(g, i, "hc_attn")
			mixer(g, i, "hc_ffn")
			if i%4 == 3 || i == 48 {
				g.matrix(i, embd, 2*24*256, "attn_q")
				g.matrix(i, embd, 512, "attn_k", "attn_v")
				g.matrix(i, value, embd, "attn_output")
				g.vector(i, 256, "attn_q_norm.weight", "attn_k_norm.weight")
				g.matrix(i, embd, 512, "indexer.q_proj")
				g.matrix(i, embd, 128, "indexer.k_proj")
				g.vector(i, 128, "indexer.q_norm.weight", "indexer.k_norm.weight")
			} else {
				g.matrix(i, embd, conv, "attn_qkv")
				g.matrix(i, embd, value, "attn_gate")
				g.add(fmt.Sprintf("blk.%d.ssm_conv1d.weight", i), gguf.F32, 4, conv)
				g.vector(i, 48, "ssm_dt.bias", "ssm_a")
				g.matrix(i, embd, 48, "ssm_beta", "ssm_alpha")
				g.vector(i, 128, "ssm_norm.weight")
				g.matrix(i, value, embd, "ssm_out")
			}
			if i == 1 {
				g.matrix(i, embd, streams*embd, "ple_key")
				g.matrix(i, embd, embd, "ple_value")
				g.vector(i, streams*embd, "ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight")
				g.add("blk.1.ple_conv1d.weight", gguf.F32, 4, streams*embd)
			}
			g.routed(i)
			g.vector(i, embd, "ffn_gate_inp_shexp.weight")
			g.mlp(i, 640, "_shexp")
		},
	}
	for _, w := range []struct {
		types  [2]gguf.Type
		expert int64
		all    string // GiB
		mtp    bool
	}{
		{[2]gguf.Type{gguf.Q4_K, gguf.Q5_0}, 2969600, "68.0", false},
		{[2]gguf.Type{gguf.Q2_K, gguf.Q4_0}, 1996800, "45.7", false},
		{[2]gguf.Type{gguf.Q4_K, gguf.IQ4NL}, 2764800, "63.3", false},
		{[2]gguf.Type{gguf.Q2_0, gguf.Q2_0}, 1382400, "31.6", true},
	} {
		g.expertType, g.narrow, g.layers = w.types[0], w.types[1], 48
		g.keys["block_count"], g.keys["attention.compress_ratios"] = u(48), ratios(48)
		if w.mtp {
			g.layers = 49
			g.keys["block_count"], g.keys["attention.compress_ratios"], g.keys["nextn_predict_layers"] = u(49), ratios(49), u(1)
		}
		f := g.open(t)
		r := inspect(f, false, false)
		if r.Reason != "" {
			t.Errorf("%s: %s", g.expertType, r.Reason)
			continue
		}
		x := r.Experts
		if x.MinBytes != w.expert || x.MaxBytes != w.expert || digits(x.Bytes, w.all) != w.all || x.Total != 48*512 || x.Used != 10 {
			t.Errorf("%s: %d experts of %d to %d bytes, %s GiB, want %d and %s", g.expertType, x.Total, x.MinBytes, x.MaxBytes, digits(x.Bytes, w.all), w.expert, w.all)
		}
		if rest := x.Dense - g.wide(); !w.mtp && digits(rest, "4.9") != "4.9" {
			t.Errorf("the rest is %d bytes, want 4.9 GiB", rest)
		}
		z := r.State
		if z.KV != 24576 || z.Index != 3072 || z.Recurrent != 113246208 || z.Conv != 4423680+368640 || z.Window != 0 {
			t.Errorf("state %+v", z)
		}
		if r.Table.Bytes != 28800138240 || r.Table.Rows != 320001536 || digits(r.Table.Bytes, "26.8") != "26.8" {
			t.Errorf("table %+v", r.Table)
		}
		// All parameters, experts and table included.
		if n := float64(r.Params); !w.mtp && math.Abs(n-176943899520) > 0 {
			t.Errorf("%.0f parameters, want 176943899520", n)
		}
	}
}
