package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"terrace/gguf"
)

// geometry makes the header of a published model: its real dimensions, experts in one type, all else in Q8_0. Matrices whose
// rows are no whole blocks of the experts' type get the 32-block type that quantisers put in its place.
type geometry struct {
	arch               string
	embd, vocab        int
	layers             int // without those that only predict further tokens
	heads, kv, head    int
	experts, topK, ff  int
	expertType, narrow gguf.Type
	keys               map[string]any // beyond the common ones, without the architecture's name
	tensors            func(g *geometry)
	layer              func(g *geometry, i int)

	tied bool // the head is the embedding

	list []gguf.WriteTensor
}

func (g *geometry) add(name string, t gguf.Type, dims ...int) {
	w := gguf.WriteTensor{Name: name, Type: t, Fill: func(io.Writer) error { return errHeaderOnly }}
	for _, d := range dims {
		w.Dims = append(w.Dims, uint64(d))
	}
	g.list = append(g.list, w)
}

// matrix and vector add a weight of layer i; matrix takes the names of all that have one shape.
func (g *geometry) matrix(i, in, out int, names ...string) {
	for _, n := range names {
		g.add(fmt.Sprintf("blk.%d.%s.weight", i, n), gguf.Q8_0, in, out)
	}
}

func (g *geometry) vector(i, n int, names ...string) {
	for _, name := range names {
		g.add(fmt.Sprintf("blk.%d.%s", i, name), gguf.F32, n)
	}
}

// attention adds grouped-query attention.
func (g *geometry) attention(i int) {
	g.vector(i, g.embd, "attn_norm.weight")
	g.matrix(i, g.embd, g.heads*g.head, "attn_q")
	g.matrix(i, g.embd, g.kv*g.head, "attn_k", "attn_v")
	g.matrix(i, g.heads*g.head, g.embd, "attn_output")
}

func (g *geometry) biases(i int) {
	g.vector(i, g.heads*g.head, "attn_q.bias")
	g.vector(i, g.kv*g.head, "attn_k.bias", "attn_v.bias")
}

// routed adds a router and the three stacks.
func (g *geometry) routed(i int) {
	g.matrix(i, g.embd, g.experts, "ffn_gate_inp")
	stack := func(in, out int, names ...string) {
		t := g.expertType
		if in%t.BlockSize() != 0 {
			t = g.narrow
		}
		for _, n := range names {
			g.add(fmt.Sprintf("blk.%d.%s.weight", i, n), t, in, out, g.experts)
		}
	}
	stack(g.embd, g.ff, "ffn_gate_exps", "ffn_up_exps")
	stack(g.ff, g.embd, "ffn_down_exps")
}

func (g *geometry) mlp(i, ff int, suffix string) {
	g.matrix(i, g.embd, ff, "ffn_gate"+suffix, "ffn_up"+suffix)
	g.matrix(i, ff, g.embd, "ffn_down"+suffix)
}

var errHeaderOnly = errors.New("header only")

// zeros is a file whose end is not there.
type zeros struct{ head []byte }

func (z zeros) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(z.head)) {
		copy(p, z.head[off:])
	}
	return len(p), nil
}

// open writes the header and opens it as if the data followed.
func (g *geometry) open(t *testing.T) *gguf.File {
	t.Helper()
	g.list = nil
	meta := []gguf.Field{{Key: "general.architecture", Value: g.arch}}
	keys := map[string]any{
		"block_count": uint32(g.layers), "context_length": uint32(131072), "embedding_length": uint32(g.embd),
		"attention.head_count": uint32(g.heads), "attention.head_count_kv": uint32(g.kv), "attention.key_length": uint32(g.head),
		"attention.value_length": uint32(g.head), "attention.layer_norm_rms_epsilon": float32(1e-5), "feed_forward_length": uint32(g.ff),
	}
	if g.experts > 0 {
		keys["expert_count"], keys["expert_used_count"], keys["expert_feed_forward_length"] = uint32(g.experts), uint32(g.topK), uint32(g.ff)
	}
	for k, v := range g.keys {
		keys[k] = v
	}
	for k, v := range keys {
		meta = append(meta, gguf.Field{Key: g.arch + "." + k, Value: v})
	}
	g.add("token_embd.weight", gguf.Q8_0, g.embd, g.vocab)
	if !g.tied {
		g.add("output.weight", gguf.Q8_0, g.embd, g.vocab)
	}
	if g.tensors == nil {
		g.add("output_norm.weight", gguf.F32, g.embd)
	} else {
		g.tensors(g)
	}
	for i := range g.layers {
		g.layer(g, i)
	}
	var head bytes.Buffer
	if err := gguf.Write(&head, gguf.WriteFile{Metadata: meta, Tensors: g.list}); !errors.Is(err, errHeaderOnly) {
		t.Fatal(err)
	}
	f, err := gguf.OpenReader(zeros{head.Bytes()}, 1<<50, g.arch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestGeometries: inspect gives the sizes of published models, which were computed elsewhere from their dimensions: bytes of an
// expert, of all experts and of the rest in GiB as digits, of keys and values a token.
func TestGeometries(t *testing.T) {
	u := func(n int) any { return uint32(n) }
	qwen3 := func(g *geometry, i int) {
		g.attention(i)
		g.vector(i, g.head, "attn_q_norm.weight", "attn_k_norm.weight")
		g.vector(i, g.embd, "ffn_norm.weight")
		g.routed(i)
	}
	oss := func(g *geometry, i int) {
		g.attention(i)
		g.biases(i)
		g.vector(i, g.embd, "attn_output.bias", "post_attention_norm.weight")
		g.vector(i, g.heads, "attn_sinks.weight")
		g.routed(i)
		g.vector(i, g.experts, "ffn_gate_inp.bias")
		for _, n := range []string{"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"} {
			g.add(fmt.Sprintf("blk.%d.%s.bias", i, n), gguf.F32, g.ff, g.experts)
		}
	}
	ossKeys := map[string]any{"attention.sliding_window": u(128), "rope.freq_base": float32(150000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(32),
		"rope.scaling.original_context_length": u(4096)}
	glm := func(leading, dense int, norms bool) func(g *geometry, i int) {
		return func(g *geometry, i int) {
			g.attention(i)
			g.biases(i)
			if norms {
				g.vector(i, g.head, "attn_q_norm.weight", "attn_k_norm.weight")
			}
			g.vector(i, g.embd, "post_attention_norm.weight")
			if i < leading {
				g.mlp(i, dense, "")
				return
			}
			g.routed(i)
			g.vector(i, g.experts, "exp_probs_b.bias")
			g.mlp(i, g.ff, "_shexp")
		}
	}
	glmKeys := func(leading, dense int, scale float32) map[string]any {
		return map[string]any{"rope.dimension_count": u(64), "expert_shared_count": u(1), "leading_dense_block_count": u(leading), "feed_forward_length": u(dense),
			"expert_gating_func": u(2), "expert_weights_norm": true, "expert_weights_scale": scale}
	}
	plain := func(g *geometry, i int) {
		g.attention(i)
		g.vector(i, g.embd, "ffn_norm.weight")
		g.routed(i)
	}
	olmoe := func(g *geometry, i int) {
		plain(g, i)
		g.vector(i, g.heads*g.head, "attn_q_norm.weight")
		g.vector(i, g.kv*g.head, "attn_k_norm.weight")
	}
	q4, q2, mx := [2]gguf.Type{gguf.Q4_K, gguf.Q5_0}, [2]gguf.Type{gguf.Q2_K, gguf.Q4_0}, [2]gguf.Type{gguf.MXFP4, gguf.MXFP4}
	type want struct {
		types  [2]gguf.Type
		expert int64
		all    string // GiB
	}
	for _, c := range []struct {
		name  string
		g     geometry
		want  []want
		dense string // GiB
		kv    int64
		near  int64 // of kv, in windowed layers
	}{
		{"Qwen3-30B-A3B", geometry{arch: "qwen3moe", embd: 2048, vocab: 151936, layers: 48, heads: 32, kv: 4, head: 128, experts: 128, topK: 8, ff: 768, layer: qwen3},
			[]want{{q4, 2654208, "15.2"}, {q2, 1548288, "8.9"}}, "1.52", 98304, 0},
		{"Qwen3-235B-A22B", geometry{arch: "qwen3moe", embd: 4096, vocab: 151936, layers: 94, heads: 64, kv: 4, head: 128, experts: 128, topK: 8, ff: 1536, layer: qwen3},
			[]want{{q4, 10616832, "119"}, {q2, 6193152, "69.4"}}, "7.9", 192512, 0},
		{"gpt-oss-20b", geometry{arch: "gpt-oss", embd: 2880, vocab: 201088, layers: 24, heads: 64, kv: 8, head: 64, experts: 32, topK: 4, ff: 2880, keys: ossKeys, layer: oss},
			[]want{{mx, 13219200, "9.5"}}, "1.8", 49152, 24576},
		{"gpt-oss-120b", geometry{arch: "gpt-oss", embd: 2880, vocab: 201088, layers: 36, heads: 64, kv: 8, head: 64, experts: 128, topK: 4, ff: 2880, keys: ossKeys, layer: oss},
			[]want{{mx, 13219200, "56.7"}}, "2.1", 73728, 36864},
		{"GLM-4.5-Air", geometry{arch: "glm4moe", embd: 4096, vocab: 151552, layers: 46, heads: 96, kv: 8, head: 128, experts: 128, topK: 8, ff: 1408, keys: glmKeys(1, 10944, 1), layer: glm(1, 10944, false)},
			[]want{{q4, 10452992, "56.1"}, {q2, 7028736, "37.7"}}, "7.1", 188416, 0},
		{"GLM-4.5", geometry{arch: "glm4moe", embd: 5120, vocab: 151552, layers: 92, heads: 96, kv: 8, head: 128, experts: 160, topK: 8, ff: 1536, keys: glmKeys(3, 12288, 2.5), layer: glm(3, 12288, true)},
			[]want{{q4, 13271040, "176"}, {q2, 7741440, "103"}}, "16.7", 376832, 0},
		{"Mixtral-8x7B", geometry{arch: "llama", embd: 4096, vocab: 32000, layers: 32, heads: 32, kv: 8, head: 128, experts: 8, topK: 2, ff: 14336, layer: plain},
			[]want{{q4, 99090432, "23.6"}, {q2, 57802752, "13.8"}}, "1.6", 131072, 0},
		{"OLMoE-1B-7B", geometry{arch: "olmoe", embd: 2048, vocab: 50304, layers: 16, heads: 16, kv: 16, head: 128, experts: 64, topK: 8, ff: 1024, layer: olmoe},
			[]want{{q4, 3538944, "3.4"}, {q2, 2064384, "2.0"}}, "0.47", 131072, 0},
	} {
		for _, w := range c.want {
			g := c.g
			g.expertType, g.narrow = w.types[0], w.types[1]
			r := inspect(g.open(t), false, false)
			if r.Reason != "" {
				t.Errorf("%s: %s", c.name, r.Reason)
				continue
			}
			x, z := r.Experts, r.State
			if x.MinBytes != w.expert || x.MaxBytes != w.expert || digits(x.Bytes, w.all) != w.all || x.PerLayer != g.experts || x.Used != g.topK {
				t.Errorf("%s in %s: experts of %d to %d bytes, %s GiB of them, want %d and %s", c.name, g.expertType, x.MinBytes, x.MaxBytes, digits(x.Bytes, w.all), w.expert, w.all)
			}
			rest := x.Dense - g.wide() // the figures count vectors as Q8_0 too
			if digits(rest, c.dense) != c.dense {
				t.Errorf("%s: the rest is %s GiB (%d bytes), want %s", c.name, digits(rest, c.dense), rest, c.dense)
			}
			if z.KV != c.kv || z.Windowed != c.near || z.Recurrent+z.Conv != 0 {
				t.Errorf("%s: state %+v, want %d bytes a token, %d of them windowed", c.name, z, c.kv, c.near)
			}
		}
	}
}

// wide is what vectors take beyond what they would in Q8_0.
func (g *geometry) wide() int64 {
	n := uint64(0)
	for _, w := range g.list {
		if w.Type == gguf.F32 {
			e := uint64(1)
			for _, d := range w.Dims {
				e *= d
			}
			n += 4*e - e*34/32
		}
	}
	return int64(n)
}

// digits is n bytes in GiB with as many digits after the point as like has.
func digits(n int64, like string) string {
	after := 0
	if i := bytes.IndexByte([]byte(like), '.'); i >= 0 {
		after = len(like) - i - 1
	}
	return fmt.Sprintf("%.*f", after, float64(n)/(1<<30))
}
