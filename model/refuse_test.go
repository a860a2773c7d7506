package model_test

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/model"
)

// rewritten is a fixture after spoil had its way with it.
func rewritten(t testing.TB, name string, spoil func(f *gguf.WriteFile)) []byte {
	t.Helper()
	data := unzip(t, "golden", name, "model.drawn.gz")
	f := openBytes(t, name, data)
	w := gguf.WriteFile{Metadata: f.Metadata.Fields()}
	for i := range f.Tensors {
		x := &f.Tensors[i]
		w.Tensors = append(w.Tensors, gguf.WriteTensor{Name: x.Name, Type: x.Type, Dims: x.Dims[:x.NDims], Data: append([]byte(nil), data[x.Offset:x.End()]...)})
	}
	spoil(&w)
	return encode(t, w)
}

// number sets element i of an F32 tensor.
func number(f *gguf.WriteFile, name string, i int, v float32) {
	binary.LittleEndian.PutUint32(find(f, name).Data[4*i:], math.Float32bits(v))
}

// extra adds a tensor of zeros.
func extra(f *gguf.WriteFile, name string, n int) {
	f.Tensors = append(f.Tensors, gguf.WriteTensor{Name: name, Type: gguf.F32, Dims: []uint64{uint64(n)}, Data: make([]byte, 4*n)})
}

// TestFamiliesRefuse: what a family has no rule for is refused by name, at Load or, where it lies in tensor data, at Bind.
func TestFamiliesRefuse(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *gguf.WriteFile)
		want  string
	}{
		{"llama", func(f *gguf.WriteFile) { set(f, "general.architecture", "clip") }, `holds the vision part of a model (architecture "clip")`},
		{"llama", func(f *gguf.WriteFile) { extra(f, "v.blk.0.attn_q.bias", 8) }, `tensor "v.blk.0.attn_q.bias" (8) is of a model's vision part`},
		{"llama", func(f *gguf.WriteFile) { extra(f, "blk.1.attn_q_norm.weight", 32) }, `tensor "blk.1.attn_q_norm.weight" (32) is not part of llama`},
		{"llama", func(f *gguf.WriteFile) { number(f, "rope_freqs.weight", 3, 0) }, `tensor "rope_freqs.weight": factor 3 is 0, want a number above 0`},
		{"llama", func(f *gguf.WriteFile) { set(f, "llama.logit_scale", float32(2)) }, `metadata key "llama.logit_scale" is 2, and llama is computed with 1`},
		{"llama-moe", func(f *gguf.WriteFile) { set(f, "llama.expert_gating_func", uint32(2)) }, `metadata key "llama.expert_gating_func" is 2, and llama is computed with 1`},
		{"qwen2moe", func(f *gguf.WriteFile) { set(f, "qwen2moe.expert_weights_norm", true) }, `metadata key "qwen2moe.expert_weights_norm" is true, and qwen2moe is computed with false`},
		{"qwen2moe", func(f *gguf.WriteFile) { drop(f, "blk.2.attn_k.bias") }, `tensor "blk.2.attn_k.bias" of 48 is missing`},
		{"qwen2moe", func(f *gguf.WriteFile) { drop(f, "blk.2.ffn_gate_inp_shexp.weight") }, `tensor "blk.2.ffn_gate_inp_shexp.weight" of 96 is missing`},
		{"olmoe", func(f *gguf.WriteFile) { set(f, "olmoe.attention.clamp_kqv", float32(8)) }, `metadata key "olmoe.attention.clamp_kqv" is 8, and olmoe is computed with 0`},
		{"gpt-oss", func(f *gguf.WriteFile) { set(f, "gpt-oss.expert_gating_func", uint32(1)) }, `metadata key "gpt-oss.expert_gating_func" is 1, and gpt-oss is computed with 3`},
		{"gpt-oss", func(f *gguf.WriteFile) { set(f, "gpt-oss.attention.sliding_window", nil) }, `metadata key "gpt-oss.attention.sliding_window" is missing`},
		{"gpt-oss", func(f *gguf.WriteFile) { set(f, "gpt-oss.attention.sliding_window_pattern", []bool{true, false}) }, `"gpt-oss.attention.sliding_window_pattern" has 2 elements for 4 layers`},
		{"gpt-oss", func(f *gguf.WriteFile) { drop(f, "blk.3.attn_sinks.weight") }, `tensor "blk.3.attn_sinks.weight" of 6 is missing`},
		{"gpt-oss", func(f *gguf.WriteFile) { find(f, "blk.1.ffn_down_exps.bias").Dims = []uint64{8, 64} }, `tensor "blk.1.ffn_down_exps.bias" is 8 x 64, want 64 x 8`},
		{"glm4moe", func(f *gguf.WriteFile) { set(f, "glm4moe.nextn_predict_layers", uint32(5)) }, `metadata key "glm4moe.nextn_predict_layers" is 5, and "glm4moe.block_count" is 5 with them`},
		{"glm4moe", func(f *gguf.WriteFile) { set(f, "glm4moe.nextn_predict_layers", nil) }, `tensor "blk.4.nextn`},
		{"glm4moe", func(f *gguf.WriteFile) { set(f, "glm4moe.leading_dense_block_count", uint32(9)) }, `metadata key "glm4moe.leading_dense_block_count" is 9, more than the 4 layers`},
		{"glm4moe", func(f *gguf.WriteFile) { set(f, "glm4moe.expert_gating_func", uint32(7)) }, `gating function 7 is outside 1..3`},
		{"glm4moe", func(f *gguf.WriteFile) { number(f, "blk.2.exp_probs_b.bias", 5, float32(math.NaN())) }, `layer 2: router: selection bias of expert 5 is NaN`},
		{"granitemoe", func(f *gguf.WriteFile) { set(f, "granitemoe.residual_scale", float32(-1)) }, `metadata key "granitemoe.residual_scale" is -1, want a finite number above 0`},
		{"minimax-m2", func(f *gguf.WriteFile) { drop(f, "blk.0.exp_probs_b.bias") }, `tensor "blk.0.exp_probs_b.bias" of 8 is missing`},
		{"minimax-m2", func(f *gguf.WriteFile) { set(f, "minimax-m2.expert_shared_count", uint32(1)) }, `metadata key "minimax-m2.expert_shared_count" is 1, and minimax-m2 is computed with 0`},
		{"bailingmoe2", func(f *gguf.WriteFile) { set(f, "bailingmoe2.expert_group_count", uint32(3)) }, `16 experts cannot be cut into 3 equal groups`},
		{"ernie4_5-moe", func(f *gguf.WriteFile) { set(f, "ernie4_5-moe.interleave_moe_layer_step", uint32(2)) }, `tensor "blk.2.ffn_gate.weight" of 64 x 128 is missing`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.attention.kv_lora_rank", nil) }, `metadata key "deepseek2.attention.kv_lora_rank" is missing`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.rope.dimension_count", uint32(40)) }, `keys of 40 elements a head, of which metadata key "deepseek2.rope.dimension_count" says 40 are rotated`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.attention.scale", float32(0.1)) }, `metadata key "deepseek2.attention.scale" is set, and deepseek2 has a scale of its own`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.attention.temperature_scale", float32(0.1)) }, `metadata key "deepseek2.attention.temperature_scale" is 0.1`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.attention.q_lora_rank", uint32(0)) }, `tensor "blk.0.attn_q.weight" of 64 x 160 is missing`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.expert_group_used_count", uint32(9)) }, `used group count 9 is outside 1..4, the group count`},
		{"deepseek2-v3", func(f *gguf.WriteFile) { find(f, "blk.2.attn_k_b.weight").Dims = []uint64{32, 24, 4} }, `tensor "blk.2.attn_k_b.weight" is 32 x 24 x 4, want 24 x 32 x 4`},
		{"deepseek2-lite", func(f *gguf.WriteFile) { drop(f, "blk.5.attn_kv_b.weight") }, `tensor "blk.5.attn_k_b.weight" of 12 x 16 x 2 is missing`},
		{"gemma4", func(f *gguf.WriteFile) { set(f, "gemma4.attention.value_length", uint32(32)) }, `metadata key "gemma4.attention.value_length" is 32, and keys have 40 elements a head`},
		{"gemma4", func(f *gguf.WriteFile) { set(f, "gemma4.attention.head_count_kv", []uint32{2, 2, 3, 2, 2, 1}) }, `layer 2: 4 attention heads with 3 KV heads`},
		{"gemma4", func(f *gguf.WriteFile) { set(f, "gemma4.attention.sliding_window", nil) }, `metadata key "gemma4.attention.sliding_window" is missing`},
		{"gemma4", func(f *gguf.WriteFile) { drop(f, "rope_freqs.weight") }, `tensor "rope_freqs.weight" of 20 is missing`},
		{"gemma4", func(f *gguf.WriteFile) { drop(f, "blk.3.post_ffw_norm_2.weight") }, `tensor "blk.3.post_ffw_norm_2.weight" of 64 is missing`},
		{"gemma4", func(f *gguf.WriteFile) { number(f, "blk.2.ffn_down_exps.scale", 4, float32(math.Inf(1))) }, `layer 2: router: scale of expert 4 is +Inf`},
		{"gemma4", func(f *gguf.WriteFile) { set(f, "tokenizer.ggml.suppress_tokens", []int32{5, 320}) }, `metadata key "tokenizer.ggml.suppress_tokens": element 1 is 320, and the vocabulary has 320 tokens`},
		{"gemma4-small", func(f *gguf.WriteFile) { set(f, "gemma4.attention.shared_kv_layers", uint32(5)) }, `metadata key "gemma4.attention.shared_kv_layers" is 5, and 2 of the 6 layers must have keys and values of their own`},
		{"gemma4-small", func(f *gguf.WriteFile) { set(f, "gemma4.attention.shared_kv_layers", uint32(4)) }, `layer 2 reads the keys and values of layer 1, which are of another kind (windows false and true, 1 and 2 heads)`},
		{"gemma4-small", func(f *gguf.WriteFile) { drop(f, "blk.5.inp_gate.weight") }, `tensor "blk.5.inp_gate.weight" of 32 x 8 is missing`},
		{"gemma4-small", func(f *gguf.WriteFile) { set(f, "gemma4.embedding_length_per_layer_input", uint32(0)) }, `tensor "per_layer_token_embd.weight" (48 x 320) is not part of gemma4`},
	} {
		data := rewritten(t, c.name, c.spoil)
		f := openBytes(t, "bad.gguf", data)
		m, err := model.Load(f, model.Options{})
		if err == nil {
			be, cerr := cpu.New(cpu.Options{Threads: 1})
			if cerr != nil {
				t.Fatal(cerr)
			}
			err = m.Bind(be, func(name string) []byte {
				x, _ := f.Tensor(name)
				return data[x.Offset:x.End()]
			})
			be.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bad.gguf") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v\n\twant %s", c.name, err, c.want)
		}
		if !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("%s: error %v is not ErrUnsupported", c.name, err)
		}
	}
}

// TestPredictionLayers: a file without the tensors of the layers that only predict further tokens is the same model.
func TestPredictionLayers(t *testing.T) {
	whole := unzip(t, "golden", "glm4moe", "model.drawn.gz")
	cut := rewritten(t, "glm4moe", func(f *gguf.WriteFile) {
		for i := 0; i < len(f.Tensors); {
			if name := f.Tensors[i].Name; strings.HasPrefix(name, "blk.4.") {
				drop(f, name)
				continue
			}
			i++
		}
	})
	if len(cut) >= len(whole) {
		t.Fatal("nothing was cut")
	}
	ids := tokens(9)
	if r, j, same := sameBits(newRig(t, cut, exact).feed(t, ids, 9), newRig(t, whole, exact).feed(t, ids, 9)); !same {
		t.Errorf("token %d, logit %d differs", r, j)
	}
}
