// Package tinymodel writes small models with seeded random weights, for the tests of every room that needs a whole GGUF
// file. It is not for shipping and not a converter: the models speak gibberish, but all their tensors matter.
package tinymodel

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"terrace/gguf"
	"terrace/quant"
)

// The architectures that can be written.
const (
	Qwen3MoE = "qwen3moe"
	Qwen3    = "qwen3" // dense
)

// Options is the shape of a model. The zero value is a qwen3moe model of 3 layers with 8 experts of which 2 work on a
// token, all in F32; zero fields take the values given here. The bytes written depend on the options alone.
type Options struct {
	Arch      string  // Qwen3MoE
	Layers    int     // 3
	Hidden    int     // 64: width of the residual stream
	Heads     int     // 4 query heads
	KVHeads   int     // 2, a divisor of Heads
	HeadDim   int     // 16, even
	Experts   int     // 8 a layer (Qwen3MoE)
	TopK      int     // 2 experts a token (1 of 1)
	ExpertFFN int     // 32: inner width of an expert
	FFN       int     // 128: inner width of the dense feed-forward (Qwen3); for Qwen3MoE only named in the metadata
	Vocab     int     // 288; at least MinVocab
	Context   int     // 512
	Tied      bool    // no output.weight: the embedding is the head
	RopeBase  float32 // 10000
	Seed      uint64

	// Types of the matrices. Zero is F32. Norms and the router are F32 always.
	Embd   gguf.Type // token_embd.weight
	Output gguf.Type // output.weight
	Attn   gguf.Type // attn_q, attn_k, attn_v, attn_output
	Gate   gguf.Type // ffn_gate, ffn_gate_exps
	Up     gguf.Type // ffn_up, ffn_up_exps
	Down   gguf.Type // ffn_down, ffn_down_exps

	// TypeOf, if not nil, has the last word on a matrix: it is given the tensor's name and the type chosen above.
	TypeOf func(tensor string, t gguf.Type) gguf.Type

	// Split is the number of files; 0 and 1 mean one.
	Split int
}

// Write makes a model in dir and returns the path to open: dir/tiny.gguf, or the first of the parts
// dir/tiny-00001-of-0000N.gguf. Weights are made as they are written, so a model may be larger than memory.
//
// It fails on a shape that makes no model, on a row length that is no multiple of its type's block, on a type that quant
// cannot encode, and when the files cannot be written.
func Write(dir string, o Options) (path string, err error) {
	f, err := File(o)
	if err != nil {
		return "", err
	}
	prefix := filepath.Join(dir, "tiny")
	if o.Split > 1 {
		parts, err := gguf.WriteSplit(prefix, f, o.Split, nil)
		if err != nil {
			return "", err
		}
		return parts[0], nil
	}
	path = prefix + ".gguf"
	if err := gguf.Create(path, f); err != nil {
		return "", err
	}
	return path, nil
}

// Temp is Write into a directory of its own below the system's one for temporary files, for benchmarks and fuzz targets
// without a test's directory. remove deletes it.
func Temp(o Options) (path string, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "tinymodel-*")
	if err != nil {
		return "", nil, err
	}
	path, err = Write(dir, o)
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	return path, func() error { return os.RemoveAll(dir) }, nil
}

// File is the model of o before it is written, for tests that spoil a part of it first.
func File(o Options) (gguf.WriteFile, error) {
	if err := o.complete(); err != nil {
		return gguf.WriteFile{}, err
	}
	b := builder{o: o}
	b.tensors()
	if b.err != nil {
		return gguf.WriteFile{}, b.err
	}
	return gguf.WriteFile{Metadata: o.metadata(), Tensors: b.list}, nil
}

// complete fills in what is zero and checks the shape.
func (o *Options) complete() error {
	if o.Arch == "" {
		o.Arch = Qwen3MoE
	}
	if o.Arch != Qwen3MoE && o.Arch != Qwen3 {
		return fmt.Errorf("tinymodel: architecture %q, have %q and %q", o.Arch, Qwen3MoE, Qwen3)
	}
	if o.TopK == 0 && o.Experts == 1 {
		o.TopK = 1
	}
	for _, f := range []struct {
		name string
		v    *int
		def  int
	}{
		{"Layers", &o.Layers, 3}, {"Hidden", &o.Hidden, 64}, {"Heads", &o.Heads, 4}, {"KVHeads", &o.KVHeads, 2},
		{"HeadDim", &o.HeadDim, 16}, {"Experts", &o.Experts, 8}, {"TopK", &o.TopK, 2}, {"ExpertFFN", &o.ExpertFFN, 32},
		{"FFN", &o.FFN, 128}, {"Vocab", &o.Vocab, 288}, {"Context", &o.Context, 512},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 0 {
			return fmt.Errorf("tinymodel: %s is %d, want at least 1", f.name, *f.v)
		}
	}
	if o.RopeBase == 0 {
		o.RopeBase = 10000
	}
	switch {
	case o.Heads%o.KVHeads != 0:
		return fmt.Errorf("tinymodel: %d query heads are no multiple of %d key heads", o.Heads, o.KVHeads)
	case o.HeadDim%2 != 0:
		return fmt.Errorf("tinymodel: head size %d is odd and cannot be rotated in pairs", o.HeadDim)
	case o.Arch == Qwen3MoE && o.TopK > o.Experts:
		return fmt.Errorf("tinymodel: %d experts a token of %d", o.TopK, o.Experts)
	case o.Vocab < MinVocab:
		return fmt.Errorf("tinymodel: vocabulary of %d tokens, want at least %d", o.Vocab, MinVocab)
	case o.Split < 0:
		return fmt.Errorf("tinymodel: %d parts, want at least 1", o.Split)
	}
	return nil
}

// fileTypes are the labels of general.file_type; files of other types are labelled by their nearest relative, F32.
var fileTypes = map[gguf.Type]uint32{
	gguf.F16: 1, gguf.Q4_0: 2, gguf.Q4_1: 3, gguf.Q8_0: 7, gguf.Q5_0: 8, gguf.Q5_1: 9, gguf.Q2_K: 10, gguf.Q3_K: 11,
	gguf.Q4_K: 14, gguf.Q5_K: 16, gguf.Q6_K: 18, gguf.IQ4NL: 25, gguf.IQ4XS: 30, gguf.BF16: 32, gguf.TQ1_0: 36,
	gguf.TQ2_0: 37, gguf.MXFP4: 38, gguf.NVFP4: 39, gguf.Q1_0: 40, gguf.Q2_0: 41,
}

// metadata has the keys that files of these architectures carry, in their usual order.
func (o *Options) metadata() []gguf.Field {
	kv := []gguf.Field{
		{Key: "general.architecture", Value: o.Arch},
		{Key: "general.type", Value: "model"},
		{Key: "general.name", Value: fmt.Sprintf("tiny-random-%s-seed%d", o.Arch, o.Seed)},
		{Key: "general.file_type", Value: fileTypes[o.Gate]},
		{Key: "general.quantization_version", Value: uint32(2)},
	}
	u := func(key string, v int) { kv = append(kv, gguf.Field{Key: o.Arch + "." + key, Value: uint32(v)}) }
	f := func(key string, v float32) { kv = append(kv, gguf.Field{Key: o.Arch + "." + key, Value: v}) }
	u("block_count", o.Layers)
	u("context_length", o.Context)
	u("embedding_length", o.Hidden)
	u("feed_forward_length", o.FFN)
	u("attention.head_count", o.Heads)
	u("attention.head_count_kv", o.KVHeads)
	u("attention.key_length", o.HeadDim)
	u("attention.value_length", o.HeadDim)
	f("attention.layer_norm_rms_epsilon", 1e-6)
	f("rope.freq_base", o.RopeBase)
	u("rope.dimension_count", o.HeadDim)
	u("vocab_size", o.Vocab)
	if o.Arch == Qwen3MoE {
		u("expert_count", o.Experts)
		u("expert_used_count", o.TopK)
		u("expert_feed_forward_length", o.ExpertFFN)
	}
	return append(kv, o.vocabulary()...)
}

// builder collects the tensors; the first error stays.
type builder struct {
	o    Options
	list []gguf.WriteTensor
	err  error
}

// tensors lists the model's tensors in the order of real files. The gains keep the residual stream and the logits within
// a few units and spread the router's scores, so that a wrong expert or a forgotten norm shows in the logits.
func (b *builder) tensors() {
	o := &b.o
	n, q, kv := o.Hidden, o.Heads*o.HeadDim, o.KVHeads*o.HeadDim
	embd := 0.7 * sqrt(n)
	if o.Tied {
		embd = 2
	}
	b.matrix("token_embd.weight", o.Embd, embd, n, o.Vocab)
	b.norm("output_norm.weight", n, 1)
	if !o.Tied {
		b.matrix("output.weight", o.Output, 2, n, o.Vocab)
	}
	for l := range o.Layers {
		p := fmt.Sprintf("blk.%d.", l)
		b.norm(p+"attn_norm.weight", n, 1)
		b.matrix(p+"attn_q.weight", o.Attn, 1.4, n, q)
		b.matrix(p+"attn_k.weight", o.Attn, 1.4, n, kv)
		b.matrix(p+"attn_v.weight", o.Attn, 1.4, n, kv)
		b.norm(p+"attn_q_norm.weight", o.HeadDim, 1.3)
		b.norm(p+"attn_k_norm.weight", o.HeadDim, 1.3)
		b.matrix(p+"attn_output.weight", o.Attn, 1.6, q, n)
		b.norm(p+"ffn_norm.weight", n, 1)
		if o.Arch == Qwen3 {
			b.matrix(p+"ffn_gate.weight", o.Gate, 1.3, n, o.FFN)
			b.matrix(p+"ffn_up.weight", o.Up, 1.3, n, o.FFN)
			b.matrix(p+"ffn_down.weight", o.Down, 1.8, o.FFN, n)
			continue
		}
		b.add(p+"ffn_gate_inp.weight", gguf.F32, 0, 1.5/sqrt(n), n, o.Experts)
		b.matrix(p+"ffn_gate_exps.weight", o.Gate, 1.3, n, o.ExpertFFN, o.Experts)
		b.matrix(p+"ffn_up_exps.weight", o.Up, 1.3, n, o.ExpertFFN, o.Experts)
		b.matrix(p+"ffn_down_exps.weight", o.Down, 2.5, o.ExpertFFN, n, o.Experts)
	}
}

// norm adds an F32 vector around mean.
func (b *builder) norm(name string, n int, mean float32) { b.add(name, gguf.F32, mean, 0.15, n) }

// matrix adds weights of deviation gain/sqrt(dims[0]) in type t, on which TypeOf may differ.
func (b *builder) matrix(name string, t gguf.Type, gain float32, dims ...int) {
	if b.o.TypeOf != nil {
		t = b.o.TypeOf(name, t)
	}
	b.add(name, t, 0, gain/sqrt(dims[0]), dims...)
}

// add adds a tensor of weights mean + dev*noise.
func (b *builder) add(name string, t gguf.Type, mean, dev float32, dims ...int) {
	switch {
	case b.err != nil:
		return
	case !quant.Encodable(t):
		b.err = fmt.Errorf("tinymodel: tensor %s: no encoder for %v", name, t)
		return
	case dims[0]%t.BlockSize() != 0:
		b.err = fmt.Errorf("tinymodel: tensor %s: rows of %d elements are not whole blocks of %d (%v)", name, dims[0], t.BlockSize(), t)
		return
	}
	ext, rows := make([]uint64, len(dims)), 1
	for i, d := range dims {
		ext[i] = uint64(d)
		if i > 0 {
			rows *= d
		}
	}
	seed := b.o.Seed
	fill := func(w io.Writer) error {
		r := newNoise(seed, name)
		row, enc := make([]float32, dims[0]), make([]byte, t.RowBytes(dims[0]))
		for range rows {
			for i := range row {
				row[i] = mean + float32(dev*r.next())
			}
			if err := quant.Encode(t, enc, row); err != nil {
				return err
			}
			if _, err := w.Write(enc); err != nil {
				return err
			}
		}
		return nil
	}
	b.list = append(b.list, gguf.WriteTensor{Name: name, Type: t, Dims: ext, Fill: fill})
}
