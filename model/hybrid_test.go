package model_test

import (
	"fmt"
	"strings"
	"testing"

	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/model"
)

// TestOldQwen3Next: files whose DeltaNet has queries, keys, values and gates in one matrix, by key heads, give the same bits.
func TestOldQwen3Next(t *testing.T) {
	const groups, key, val = 2, 24, 48
	old := rewritten(t, "qwen3next", func(f *gguf.WriteFile) {
		for i := range 6 {
			p := fmt.Sprintf("blk.%d.", i)
			if (i+1)%3 == 0 {
				continue
			}
			qkv, z := *find(f, p+"attn_qkv.weight"), *find(f, p+"attn_gate.weight")
			row := int(qkv.Dims[0]) * 2 // F16
			in := gguf.WriteTensor{Name: p + "ssm_in.weight", Type: qkv.Type, Dims: []uint64{qkv.Dims[0], qkv.Dims[1] + z.Dims[1]}}
			take := func(x gguf.WriteTensor, first, n int) { in.Data = append(in.Data, x.Data[first*row:(first+n)*row]...) }
			for g := range groups {
				take(qkv, g*key, key)
				take(qkv, (groups+g)*key, key)
				take(qkv, 2*groups*key+g*val, val)
				take(z, g*val, val)
			}
			drop(f, qkv.Name)
			drop(f, z.Name)
			f.Tensors = append(f.Tensors, in)
		}
	})
	ids, s := tokens(40), setup{cpu: cpu.Options{Threads: 2}}
	want := newRig(t, unzip(t, "golden", "qwen3next", "model.drawn.gz"), s).feed(t, ids, 40)
	if i, j, same := sameBits(newRig(t, old, s).feed(t, ids, 7), want); !same {
		t.Errorf("token %d, logit %d differs", i, j)
	}
}

// TestHybridKeys: what says which layers are recurrent may be told in two ways, and layers that predict further tokens are left
// out.
func TestHybridKeys(t *testing.T) {
	ids, s := tokens(20), setup{cpu: cpu.Options{Threads: 1}}
	want := newRig(t, unzip(t, "golden", "qwen35moe", "model.drawn.gz"), s).feed(t, ids, 20)
	for what, change := range map[string]func(f *gguf.WriteFile){
		"an array of recurrent layers": func(f *gguf.WriteFile) {
			set(f, "qwen35moe.attention.recurrent_layers", []bool{true, true, false, true, true, false})
			set(f, "qwen35moe.full_attention_interval", uint32(2))
		},
		"a layer that predicts": func(f *gguf.WriteFile) {
			set(f, "qwen35moe.block_count", uint32(7))
			set(f, "qwen35moe.nextn_predict_layers", uint32(1))
			extra(f, "blk.6.nextn.eh_proj.weight", 256)
			extra(f, "blk.6.attn_norm.weight", 128)
		},
	} {
		r := newRig(t, rewritten(t, "qwen35moe", change), s)
		if i, j, same := sameBits(r.feed(t, ids, 20), want); !same || r.Config().Layers != 6 {
			t.Errorf("%s: %d layers, token %d, logit %d differs", what, r.Config().Layers, i, j)
		}
	}
}

func TestHybridsRefuse(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *gguf.WriteFile)
		want  string
	}{
		{"qwen3next", func(f *gguf.WriteFile) { set(f, "qwen3next.ssm.inner_size", uint32(94)) }, `metadata key "qwen3next.ssm.inner_size" is 94, no multiple of the 4 heads of "qwen3next.ssm.time_step_rank"`},
		{"qwen3next", func(f *gguf.WriteFile) { set(f, "qwen3next.ssm.group_count", uint32(3)) }, `metadata key "qwen3next.ssm.time_step_rank" is 4, no multiple of the 3 of "qwen3next.ssm.group_count"`},
		{"qwen3next", func(f *gguf.WriteFile) { set(f, "qwen3next.ssm.conv_kernel", uint32(1)) }, `metadata key "qwen3next.ssm.conv_kernel" is 1, want at least 2`},
		{"qwen3next", func(f *gguf.WriteFile) { drop(f, "blk.0.ssm_ba.weight") }, `tensor "blk.0.ssm_ba.weight" of 64 x 8 is missing`},
		{"qwen35moe", func(f *gguf.WriteFile) { extra(f, "blk.2.ssm_a", 4) }, `tensor "blk.2.ssm_a" (4) is not part of qwen35moe`},
		{"qwen35moe", func(f *gguf.WriteFile) { set(f, "qwen35moe.attention.recurrent_layers", []bool{true, false}) }, `metadata key "qwen35moe.attention.recurrent_layers" has 2 elements, the model 6 layers`},
		{"lfm2moe", func(f *gguf.WriteFile) {
			set(f, "lfm2moe.attention.head_count_kv", []int32{0, 0, 2, 0, 4, 0})
		}, `metadata key "lfm2moe.attention.head_count_kv" is 4 in layer 4, 2 before it`},
		{"lfm2moe", func(f *gguf.WriteFile) { set(f, "lfm2moe.shortconv.l_cache", uint32(1)) }, `metadata key "lfm2moe.shortconv.l_cache" is 1, want at least 2`},
		{"nemotron_h_moe", func(f *gguf.WriteFile) { set(f, "nemotron_h_moe.moe_latent_size", uint32(64)) }, `metadata key "nemotron_h_moe.moe_latent_size" is 64, and nemotron_h_moe is computed with 0`},
		{"nemotron_h_moe", func(f *gguf.WriteFile) { set(f, "nemotron_h_moe.expert_shared_count", uint32(2)) }, `metadata key "nemotron_h_moe.expert_shared_count" is 2, and nemotron_h_moe is computed with 1`},
		{"nemotron_h_moe", func(f *gguf.WriteFile) { extra(f, "blk.1.ffn_gate_shexp.weight", 4) }, `tensor "blk.1.ffn_gate_shexp.weight" (4) is not part of nemotron_h_moe`},
	} {
		_, err := model.Load(openBytes(t, "bad.gguf", rewritten(t, c.name, c.spoil)), model.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bad.gguf: ") {
			t.Errorf("%s: error %v, want %s", c.name, err, c.want)
		}
	}
}
