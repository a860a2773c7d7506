package model_test

import (
	"math"
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/model"
)

// TestSuppressedTokens: gemma4's list of tokens that never come takes their logits and no others, of every row.
func TestSuppressedTokens(t *testing.T) {
	ids := tokens(9)
	plain := newRig(t, unzip(t, "golden", "gemma4", "model.drawn.gz"), setup{cpu: cpu.Options{Threads: 2}}).feed(t, ids, 9)
	data := rewritten(t, "gemma4", func(f *gguf.WriteFile) { set(f, "tokenizer.ggml.suppress_tokens", []int32{7, 319, 0}) })
	got := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}}).feed(t, ids, 4)
	for r := range got {
		for j, v := range got[r] {
			want := plain[r][j]
			if j == 7 || j == 319 || j == 0 {
				want = float32(math.Inf(-1))
			}
			if v != want {
				t.Fatalf("row %d: logit %d is %v, want %v", r, j, v, want)
			}
		}
	}
}

// TestCompressedCache: both forms of deepseek2 keep one compressed vector and one rotated part a token and layer, nothing a
// head; gemma4's shared layers keep nothing.
func TestCompressedCache(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers int
		bytes  int64 // of a token in float16
	}{
		{"deepseek2-lite", 27, 27 * 2 * (16 + 16)},
		{"deepseek2-v3", 4, 4 * 2 * (32 + 16)},
		{"gemma4-small", 3, 2 * (2*2*2*16 + 2*24)},
	} {
		m, err := model.Load(openBytes(t, c.name, unzip(t, "golden", c.name, "model.drawn.gz")), model.Options{MaxRows: 1})
		if err != nil {
			t.Fatal(err)
		}
		s := m.KVShape(1, compute.KVF16, compute.KVF16)
		if got := s.Bytes(); len(s.Layers) != c.layers || got != c.bytes {
			t.Errorf("%s: %d layers cache %d bytes a token, want %d and %d", c.name, len(s.Layers), got, c.layers, c.bytes)
		}
	}
}

// TestSharedKVIgnoresOwn: what a file keeps of keys and values for layers that read an earlier layer's is neither used nor
// read.
func TestSharedKVIgnoresOwn(t *testing.T) {
	data := rewritten(t, "gemma4-small", func(f *gguf.WriteFile) {
		k := *find(f, "blk.1.attn_k.weight")
		k.Name = "blk.4.attn_k.weight"
		f.Tensors = append(f.Tensors, k)
	})
	r := newRig(t, data, exact)
	if slices.ContainsFunc(r.Dense(), func(d model.DenseTensor) bool { return d.Name == "blk.4.attn_k.weight" }) {
		t.Error("keys that no layer uses are read")
	}
	ids := tokens(40)
	want := newRig(t, unzip(t, "golden", "gemma4-small", "model.drawn.gz"), exact).feed(t, ids, 40)
	if i, j, same := sameBits(r.feed(t, ids, 40), want); !same {
		t.Errorf("token %d, logit %d is another", i, j)
	}
}

// TestQuietRouterKey: the first files of GLM-4.7-Flash do not name the router's function.
func TestQuietRouterKey(t *testing.T) {
	data := rewritten(t, "deepseek2-v3", func(f *gguf.WriteFile) { set(f, "deepseek2.expert_gating_func", nil) })
	m, err := model.Load(openBytes(t, "x.gguf", data), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if g := m.Rule(3).Gating.String(); g != "softmax" {
		t.Errorf("without the key the router is %s, want softmax", g)
	}
}
