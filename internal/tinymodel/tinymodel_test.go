package tinymodel

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"testing"

	"terrace/gguf"
	"terrace/quant"
)

// weights reads and decodes tensor name of f.
func weights(t *testing.T, f *gguf.File, name string) (w []float32, raw []byte) {
	t.Helper()
	ten, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	file, err := os.Open(f.Shards[ten.Shard].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	raw, w = make([]byte, ten.Length), make([]float32, ten.Elements())
	if _, err := file.ReadAt(raw, ten.Offset); err != nil {
		t.Fatal(err)
	}
	if err := quant.Decode(ten.Type, w, raw); err != nil {
		t.Fatal(err)
	}
	return w, raw
}

// write makes a model and opens it.
func write(t *testing.T, o Options) *gguf.File {
	t.Helper()
	path, err := Write(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDefaultModel(t *testing.T) {
	f := write(t, Options{})
	if len(f.Tensors) != 3+3*12 {
		t.Errorf("%d tensors, want %d", len(f.Tensors), 3+3*12)
	}
	for key, want := range map[string]uint64{
		"block_count": 3, "context_length": 512, "embedding_length": 64, "feed_forward_length": 128,
		"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16,
		"rope.dimension_count": 16, "vocab_size": 288, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32,
	} {
		if got, err := f.Metadata.Uint("qwen3moe." + key); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", key, got, err, want)
		}
	}
	toks, err := f.Metadata.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	if toks.Len() != 288 || toks.At(0) != "Ā" || toks.At(' ') != "Ġ" || toks.At('A') != "A" || toks.At(0xad) != "Ń" || toks.At(255) != "ÿ" ||
		toks.At(256) != "Ġt" || toks.At(EndOfText) != "<|endoftext|>" || toks.At(ImStart) != "<|im_start|>" || toks.At(ImEnd) != "<|im_end|>" ||
		toks.At(MinVocab) != "<|extra_0|>" || toks.At(287) != "<|extra_12|>" {
		t.Errorf("%d tokens, the wrong ones", toks.Len())
	}
	seen := map[string]bool{}
	for i := range toks.Len() {
		if seen[toks.At(i)] {
			t.Errorf("token %d, %q, stands twice", i, toks.At(i))
		}
		seen[toks.At(i)] = true
	}
	gate, _ := f.Tensor("blk.2.ffn_gate_exps.weight")
	down, _ := f.Tensor("blk.2.ffn_down_exps.weight")
	if gate == nil || down == nil || gate.Dims != [4]uint64{64, 32, 8, 1} || down.Dims != [4]uint64{32, 64, 8, 1} {
		t.Fatalf("expert stacks: %v and %v", gate, down)
	}
	// Experts differ, weights have the promised deviation.
	w, raw := weights(t, f, "blk.2.ffn_gate_exps.weight")
	slab := len(raw) / 8
	for e := range 7 {
		if bytes.Equal(raw[e*slab:(e+1)*slab], raw[(e+1)*slab:(e+2)*slab]) {
			t.Errorf("experts %d and %d are the same", e, e+1)
		}
	}
	sum, sq := 0.0, 0.0
	for _, v := range w {
		sum, sq = sum+float64(v), sq+float64(v)*float64(v)
	}
	n := float64(len(w))
	if dev := math.Sqrt(sq / n); math.Abs(dev-1.3/8) > 0.005 || math.Abs(sum/n) > 0.005 {
		t.Errorf("weights have mean %g and deviation %g, want 0 and %g", sum/n, dev, 1.3/8)
	}
	norm, _ := weights(t, f, "output_norm.weight")
	for i, v := range norm {
		if v < 0.4 || v > 1.6 {
			t.Errorf("norm weight %d is %g, not near 1", i, v)
		}
	}
}

// TestSameBytes pins the default model and its dense sister. A new digest is fine where the generator was meant to
// change; golden figures elsewhere then change too.
func TestSameBytes(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "45b8d0ad070e7001"},
		{Options{Seed: 1, Gate: gguf.Q4_0, Up: gguf.Q8_0, Down: gguf.MXFP4, Attn: gguf.F16, Embd: gguf.BF16}, "34a0be371c3b8333"},
		{Options{Arch: Qwen3, Tied: true}, "ff838ba55be2d2af"},
	} {
		path, err := Write(t.TempDir(), c.o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.Sum256(b)
		if got := hex.EncodeToString(h[:8]); got != c.want {
			t.Errorf("seed %d, %s: digest %s, want %s", c.o.Seed, c.o.Arch, got, c.want)
		}
	}
}

func TestTypes(t *testing.T) {
	o := Options{Layers: 2, Hidden: 256, ExpertFFN: 256, Gate: gguf.Q4_K, Up: gguf.Q3_K, Down: gguf.Q6_K, Attn: gguf.Q8_0, Embd: gguf.Q5_K, Output: gguf.F16, HeadDim: 64}
	o.TypeOf = func(name string, ty gguf.Type) gguf.Type {
		if name == "blk.1.ffn_down_exps.weight" {
			return gguf.Q2_K
		}
		return ty
	}
	f := write(t, o)
	for name, want := range map[string]gguf.Type{
		"token_embd.weight": gguf.Q5_K, "output.weight": gguf.F16, "blk.0.attn_q.weight": gguf.Q8_0, "blk.1.attn_output.weight": gguf.Q8_0,
		"blk.0.ffn_gate_exps.weight": gguf.Q4_K, "blk.0.ffn_up_exps.weight": gguf.Q3_K, "blk.0.ffn_down_exps.weight": gguf.Q6_K,
		"blk.1.ffn_down_exps.weight": gguf.Q2_K, "blk.1.ffn_gate_inp.weight": gguf.F32, "blk.1.attn_q_norm.weight": gguf.F32,
	} {
		ten, ok := f.Tensor(name)
		if !ok || ten.Type != want {
			t.Errorf("%s: %v, want %v", name, ten, want)
		}
	}
	// A wider type holds the same weights but for rounding: one seed, one model.
	exact, _ := weights(t, write(t, Options{Layers: 2, Hidden: 256, ExpertFFN: 256, HeadDim: 64}), "blk.0.ffn_down_exps.weight")
	coarse, _ := weights(t, f, "blk.0.ffn_down_exps.weight")
	e2, w2 := 0.0, 0.0
	for i, v := range exact {
		e2, w2 = e2+float64(v-coarse[i])*float64(v-coarse[i]), w2+float64(v)*float64(v)
	}
	if r := math.Sqrt(e2 / w2); r > 0.03 || r == 0 {
		t.Errorf("Q6_K experts differ from F32 ones by %g of their size", r)
	}
}

func TestSplit(t *testing.T) {
	one, many := write(t, Options{Seed: 3}), write(t, Options{Seed: 3, Split: 3})
	if len(many.Shards) != 3 || filepath.Base(many.Path) != "tiny-00001-of-00003.gguf" {
		t.Fatalf("%d shards, opened %s", len(many.Shards), many.Path)
	}
	if len(one.Tensors) != len(many.Tensors) {
		t.Fatalf("%d tensors in one file, %d in three", len(one.Tensors), len(many.Tensors))
	}
	for _, ten := range one.Tensors {
		_, a := weights(t, one, ten.Name)
		_, b := weights(t, many, ten.Name)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: split changed the bytes", ten.Name)
		}
	}
	other := write(t, Options{Seed: 4})
	_, a := weights(t, one, "blk.0.attn_q.weight")
	_, b := weights(t, other, "blk.0.attn_q.weight")
	if bytes.Equal(a, b) {
		t.Error("seeds 3 and 4 give the same weights")
	}
}

func TestDense(t *testing.T) {
	f := write(t, Options{Arch: Qwen3, Tied: true})
	if len(f.Tensors) != 2+3*11 {
		t.Errorf("%d tensors, want %d", len(f.Tensors), 2+3*11)
	}
	if _, ok := f.Tensor("output.weight"); ok {
		t.Error("a tied model has an output matrix")
	}
	if ten, ok := f.Tensor("blk.0.ffn_down.weight"); !ok || ten.Dims != [4]uint64{128, 64, 1, 1} {
		t.Errorf("ffn_down: %v", ten)
	}
	if f.Metadata.Has("qwen3.expert_count") {
		t.Error("a dense model counts experts")
	}
}

func TestTemp(t *testing.T) {
	path, remove, err := Temp(Options{Layers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gguf.Open(path); err != nil {
		t.Error(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Arch: "llama"}, `tinymodel: architecture "llama", have "qwen3moe" and "qwen3"`},
		{Options{Layers: -1}, "tinymodel: Layers is -1, want at least 1"},
		{Options{Heads: 6, KVHeads: 4}, "tinymodel: 6 query heads are no multiple of 4 key heads"},
		{Options{HeadDim: 15}, "tinymodel: head size 15 is odd and cannot be rotated in pairs"},
		{Options{TopK: 9}, "tinymodel: 9 experts a token of 8"},
		{Options{Vocab: 200}, "tinymodel: vocabulary of 200 tokens, want at least 275"},
		{Options{Split: -2}, "tinymodel: -2 parts, want at least 1"},
		{Options{Gate: gguf.Q4_K}, "tinymodel: tensor blk.0.ffn_gate_exps.weight: rows of 64 elements are not whole blocks of 256 (Q4_K)"},
		{Options{Embd: gguf.Q8_K}, "tinymodel: tensor token_embd.weight: no encoder for Q8_K"},
	} {
		if _, err := Write(t.TempDir(), c.o); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if _, err := Write(filepath.Join(t.TempDir(), "nowhere"), Options{}); err == nil {
		t.Error("wrote into a directory that is not there")
	}
}
