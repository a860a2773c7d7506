package model_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/internal/tinymodel"
	"terrace/model"
)

// encode is the bytes of a single file.
func encode(t testing.TB, f gguf.WriteFile) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := gguf.Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// set replaces or adds a metadata value; nil removes it.
func set(f *gguf.WriteFile, key string, v any) {
	f.Metadata = slices.DeleteFunc(f.Metadata, func(x gguf.Field) bool { return x.Key == key })
	if v != nil {
		f.Metadata = append(f.Metadata, gguf.Field{Key: key, Value: v})
	}
}

func find(f *gguf.WriteFile, name string) *gguf.WriteTensor {
	i := slices.IndexFunc(f.Tensors, func(x gguf.WriteTensor) bool { return x.Name == name })
	return &f.Tensors[i]
}

func drop(f *gguf.WriteFile, name string) {
	f.Tensors = slices.DeleteFunc(f.Tensors, func(x gguf.WriteTensor) bool { return x.Name == name })
}

func TestLoadRefuses(t *testing.T) {
	for _, c := range []struct {
		spoil func(f *gguf.WriteFile)
		want  string
	}{
		{func(f *gguf.WriteFile) { set(f, "general.architecture", "dbrx") }, `bad.gguf: architecture "dbrx" is not supported, only `},
		{func(f *gguf.WriteFile) { set(f, "general.architecture", nil) }, `metadata key "general.architecture" is missing`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.block_count", nil) }, `metadata key "qwen3moe.block_count" is missing`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.block_count", uint32(1<<31)) }, `metadata key "qwen3moe.block_count" is 2147483648, want 1 to 4096`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.block_count", uint32(4)) }, `tensor "blk.3.attn_norm.weight" of 64 is missing`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.block_count", uint32(2)) }, `tensor "blk.2.attn_norm.weight" (64) is not part of qwen3moe as computed here`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.embedding_length", "wide") }, `metadata key "qwen3moe.embedding_length" is string, want integers`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.head_count", uint32(0)) }, `metadata key "qwen3moe.attention.head_count" is 0, want 1 to 65536`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.head_count_kv", uint32(3)) }, `4 attention heads are no multiple of 3 KV heads`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.head_count_kv", []uint32{2, 2, 1}) }, `metadata key "qwen3moe.attention.head_count_kv" is 2 in layer 0 and 1 in layer 2`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.key_length", uint32(32)) }, `tensor "blk.0.attn_q.weight" is 64 x 64, want 64 x 128`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.layer_norm_rms_epsilon", float32(math.NaN())) }, `epsilon" is NaN, want a finite number above 0`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.rope.dimension_count", uint32(18)) }, `metadata key "qwen3moe.rope.dimension_count" is 18, want an even number of at most 16, the head size`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.rope.scaling.type", "longrope") }, `metadata key "qwen3moe.rope.scaling.type" is "longrope", want none, linear or yarn`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.expert_used_count", uint32(9)) }, `metadata key "qwen3moe.expert_used_count" is 9, more than the 8 of "qwen3moe.expert_count"`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.expert_count", uint32(16)) }, `tensor "blk.0.ffn_gate_inp.weight" is 64 x 8, want 64 x 16`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.expert_gating_func", uint32(2)) }, `metadata key "qwen3moe.expert_gating_func" is 2, and qwen3moe is computed with 1`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.expert_weights_norm", false) }, `metadata key "qwen3moe.expert_weights_norm" is false, and qwen3moe is computed with true`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.attention.sliding_window", uint32(128)) }, `metadata key "qwen3moe.attention.sliding_window" is 128, and qwen3moe is computed with 0`},
		{func(f *gguf.WriteFile) { set(f, "qwen3moe.vocab_size", uint32(300)) }, `tensor "token_embd.weight" has 288 rows, and metadata key "qwen3moe.vocab_size" is 300`},
		{func(f *gguf.WriteFile) { set(f, "tokenizer.ggml.tokens", []string{"a", "b"}) }, `tensor "token_embd.weight" has 288 rows, and metadata key "tokenizer.ggml.tokens" has 2 tokens`},
		{func(f *gguf.WriteFile) { drop(f, "token_embd.weight") }, `tensor "token_embd.weight" is missing`},
		{func(f *gguf.WriteFile) { drop(f, "output_norm.weight") }, `tensor "output_norm.weight" of 64 is missing`},
		{func(f *gguf.WriteFile) { drop(f, "blk.1.ffn_up_exps.weight") }, `tensor "blk.1.ffn_up_exps.weight" of 64 x 32 x 8 is missing`},
		{func(f *gguf.WriteFile) { find(f, "blk.1.attn_v.weight").Name = "blk.1.attn_v.bias" }, `tensor "blk.1.attn_v.weight" of 64 x 32 is missing`},
		{func(f *gguf.WriteFile) {
			f.Tensors = append(f.Tensors, gguf.WriteTensor{Name: "blk.1.attn_q.bias", Type: gguf.F32, Dims: []uint64{64}, Data: make([]byte, 256)})
		}, `tensor "blk.1.attn_q.bias" (64) is not part of qwen3moe as computed here`},
		{func(f *gguf.WriteFile) {
			x := find(f, "blk.2.ffn_norm.weight")
			x.Type, x.Data, x.Fill = gguf.F16, make([]byte, 128), nil
		}, `tensor "blk.2.ffn_norm.weight" is of type F16, want F32`},
	} {
		f, err := tinymodel.File(tinymodel.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.spoil(&f)
		_, err = model.Load(openBytes(t, "bad.gguf", encode(t, f)), model.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bad.gguf: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v\nwant %s", err, c.want)
		}
		if err != nil && !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("error %q does not wrap ErrUnsupported", err)
		}
	}
}

// TestBindRefuses: a type without arithmetic and bytes of another length.
func TestBindRefuses(t *testing.T) {
	f, err := tinymodel.File(tinymodel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := find(&f, "blk.0.ffn_up_exps.weight")
	x.Type, x.Data, x.Fill = gguf.I32, make([]byte, 64*32*8*4), nil
	be, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.Load(openBytes(t, "odd.gguf", encode(t, f)), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = m.Bind(be, func(string) []byte { return nil })
	if err == nil || !errors.Is(err, model.ErrUnsupported) || !strings.HasPrefix(err.Error(), "odd.gguf: layer 0, expert 0 is of type I32, which cpu (") {
		t.Errorf("error %v, want the type I32 of layer 0 refused", err)
	}
	m, err = model.Load(openBytes(t, "short.gguf", tiny(t, tinymodel.Options{})), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = m.Bind(be, func(string) []byte { return make([]byte, 100) })
	if want := `short.gguf: tensor "token_embd.weight": 100 bytes brought, want 73728`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestMerged: fused q, k, v and merged gate and up are the same model.
func TestMerged(t *testing.T) {
	o := tinymodel.Options{Layers: 2, Gate: gguf.Q8_0, Up: gguf.Q8_0}
	plain, err := tinymodel.File(o)
	if err != nil {
		t.Fatal(err)
	}
	whole := func(f *gguf.WriteFile, name string) (gguf.WriteTensor, []byte) {
		x := *find(f, name)
		if x.Data != nil {
			return x, x.Data
		}
		var b bytes.Buffer
		if err := x.Fill(&b); err != nil {
			t.Fatal(err)
		}
		return x, b.Bytes()
	}
	merged := gguf.WriteFile{Metadata: plain.Metadata, Tensors: slices.Clone(plain.Tensors)}
	for _, l := range []string{"blk.0.", "blk.1."} {
		q, qb := whole(&plain, l+"attn_q.weight")
		k, kb := whole(&plain, l+"attn_k.weight")
		v, vb := whole(&plain, l+"attn_v.weight")
		qkv := gguf.WriteTensor{Name: l + "attn_qkv.weight", Type: q.Type, Dims: []uint64{q.Dims[0], q.Dims[1] + k.Dims[1] + v.Dims[1]}, Data: slices.Concat(qb, kb, vb)}
		g, gb := whole(&plain, l+"ffn_gate_exps.weight")
		_, ub := whole(&plain, l+"ffn_up_exps.weight")
		both := gguf.WriteTensor{Name: l + "ffn_gate_up_exps.weight", Type: g.Type, Dims: []uint64{g.Dims[0], 2 * g.Dims[1], g.Dims[2]}}
		n := len(gb) / int(g.Dims[2])
		for e := range int(g.Dims[2]) {
			both.Data = append(append(both.Data, gb[e*n:(e+1)*n]...), ub[e*n:(e+1)*n]...)
		}
		for _, s := range []string{"attn_q", "attn_k", "attn_v", "ffn_gate_exps", "ffn_up_exps"} {
			drop(&merged, l+s+".weight")
		}
		merged.Tensors = append(merged.Tensors, qkv, both)
	}
	ids := tokens(15)
	s := setup{cpu: cpu.Options{Threads: 1}}
	a, b := newRig(t, encode(t, plain), s), newRig(t, encode(t, merged), s)
	if _, _, same := sameBits(a.feed(t, ids, 15), b.feed(t, ids, 15)); !same {
		t.Error("merged tensors give other logits")
	}
	if a.Footprint() != b.Footprint() {
		t.Errorf("footprints %+v and %+v differ", a.Footprint(), b.Footprint())
	}
}

// TestTables: the lists that the engine works from cover the file's tensors exactly once.
func TestTables(t *testing.T) {
	for _, o := range []tinymodel.Options{{Tied: true}, {Arch: tinymodel.Qwen3}, tinyOptions} {
		data := tiny(t, o)
		f := openBytes(t, "tiny.gguf", data)
		m, err := model.Load(f, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var ranges []gguf.Extent
		for _, d := range m.Dense() {
			x, ok := f.Tensor(d.Name)
			if !ok || x.Extent != d.Extent || x.Type != d.Type || int(x.Dims[0]) != d.In || int(x.Dims[1]) != d.Out {
				t.Errorf("dense tensor %+v is %+v in the file", d, x)
			}
			ranges = append(ranges, d.Extent)
		}
		var experts, largest int64
		for _, l := range m.Experts() {
			for _, e := range l {
				for _, p := range []model.Piece{e.Gate, e.Up, e.Down} {
					if want := int64(p.Type.RowBytes(p.In) * p.Out); p.Length != want {
						t.Errorf("a piece of %d x %d %s has %d bytes, want %d", p.Out, p.In, p.Type, p.Length, want)
					}
					ranges = append(ranges, p.Extent)
				}
				experts += e.Bytes()
				largest = max(largest, e.Bytes())
			}
		}
		slices.SortFunc(ranges, func(a, b gguf.Extent) int { return int(a.Offset - b.Offset) })
		total := int64(0)
		for i, r := range ranges {
			total += r.Length
			if i > 0 && ranges[i-1].End() > r.Offset {
				t.Errorf("ranges %+v and %+v overlap", ranges[i-1], r)
			}
		}
		all := int64(0)
		for i := range f.Tensors {
			all += f.Tensors[i].Length
		}
		p := m.Footprint()
		if total != all || p.Dense+p.Experts != all || p.Experts != experts || p.LargestExpert != largest {
			t.Errorf("%+v: tables cover %d of %d bytes; footprint %+v, experts %d, largest %d", o, total, all, p, experts, largest)
		}
		if o.Tied != m.Config().Tied {
			t.Errorf("tied: %t, want %t", m.Config().Tied, o.Tied)
		}
		c := m.Config()
		if n := m.KVShape(1, compute.KVF16, compute.KVF16).Bytes(); n != int64(c.Layers*c.KVHeads*(c.KeyDim+c.ValDim)*2) {
			t.Errorf("KV of a token: %d bytes", n)
		}
	}
}

// TestDemoModel loads the demo model's header: the shape that testdata/README.md names.
func TestDemoModel(t *testing.T) {
	f, err := gguf.Open(filepath.Join("..", "testdata", "tiny-moe-Q4_K.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := m.Config()
	if c.Layers != 8 || c.Experts != 32 || c.TopK != 4 || c.Embd != 256 || c.Heads != 8 || c.KVHeads != 2 || c.KeyDim != 64 || c.ExpertFF != 256 || c.Vocab != 5632 || c.Context != 1024 {
		t.Errorf("config %+v", c)
	}
	if st, err := os.Stat(f.Path); err != nil || m.Footprint().Dense+m.Footprint().Experts > st.Size() {
		t.Errorf("footprint %+v in a file of %v (%v)", m.Footprint(), st, err)
	}
}

// FuzzLoad: whatever a file's metadata and shapes say, Load answers a model or one line.
func FuzzLoad(f *testing.F) {
	for _, o := range []tinymodel.Options{{Layers: 1, Vocab: 288, Experts: 2, Hidden: 32, ExpertFFN: 32}, {Arch: tinymodel.Qwen3, Layers: 1, Hidden: 32, FFN: 32, Vocab: 288}} {
		f.Add(tiny(f, o))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := gguf.OpenReader(bytes.NewReader(data), int64(len(data)), "fuzz")
		if err != nil {
			return
		}
		m, err := model.Load(g, model.Options{})
		if err != nil && (!errors.Is(err, model.ErrUnsupported) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("error %q", err)
		}
		if err == nil && m.Footprint().Dense <= 0 {
			t.Errorf("footprint %+v", m.Footprint())
		}
	})
}
