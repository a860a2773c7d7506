package model

import (
	"fmt"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// directory takes the tensors of a file one by one, checks their shapes and remembers which were taken.
type directory struct {
	reader
	m    *Model
	used map[string]bool
}

// find takes tensor name of the given dimensions; nil, with the reason kept, when it is not there like that.
func (d *directory) find(name string, dims ...int) *gguf.Tensor {
	t, ok := d.f.Tensor(name)
	if !ok {
		d.refuse("tensor %q of %s is missing", name, shape(dims))
		return nil
	}
	d.used[name] = true
	for i, have := range t.Dims {
		want := uint64(1)
		if i < len(dims) {
			want = uint64(dims[i])
		}
		if have != want {
			d.refuse("tensor %q is %s, want %s", name, shapeOf(t), shape(dims))
			return nil
		}
	}
	return t
}

func shape(dims []int) string {
	s := ""
	for i, n := range dims {
		if i > 0 {
			s += " x "
		}
		s += fmt.Sprint(n)
	}
	return s
}

func shapeOf(t *gguf.Tensor) string {
	dims := make([]int, max(t.NDims, 1))
	for i := range dims {
		dims[i] = int(t.Dims[i])
	}
	return shape(dims)
}

// add puts t into the list of dense tensors.
func (d *directory) add(t *gguf.Tensor) int {
	d.m.dense = append(d.m.dense, DenseTensor{Name: t.Name, Extent: t.Extent, Type: t.Type, In: int(t.Dims[0]), Out: int(t.Dims[1])})
	return len(d.m.dense) - 1
}

// matrix takes a dense weight of out rows of in elements.
func (d *directory) matrix(to *compute.Weight, name string, in, out int) {
	if t := d.find(name, in, out); t != nil {
		d.m.binds = append(d.m.binds, bind{tensor: d.add(t), rows: out, to: to})
	}
}

// vector takes a norm's weights, which are F32 in every file.
func (d *directory) vector(to *compute.Weight, name string, n int) {
	t := d.find(name, n)
	if t == nil {
		return
	}
	if t.Type != gguf.F32 {
		d.refuse("tensor %q is of type %s, want %s", name, t.Type, gguf.F32)
		return
	}
	d.m.binds = append(d.m.binds, bind{tensor: d.add(t), rows: 1, to: to})
}

// readTensors finds every tensor of the architecture and refuses what is left over: a bias or a scale that is not
// applied would still give fluent text.
func (m *Model) readTensors(f *gguf.File) error {
	c := &m.cfg
	d := &directory{reader: reader{f: f, arch: c.Arch}, m: m, used: map[string]bool{}}
	d.vocabulary()
	if d.err != nil {
		return d.err
	}
	d.matrix(&m.embd, "token_embd.weight", c.Embd, c.Vocab)
	m.layers = make([]layer, c.Layers)
	m.experts = make([][]ExpertDesc, c.Layers)
	for i := range m.layers {
		d.block(i)
		if d.err != nil {
			return d.err // before a file with 4096 layers and no tensors costs time
		}
	}
	d.vector(&m.outNorm, "output_norm.weight", c.Embd)
	if _, ok := f.Tensor("output.weight"); ok {
		d.matrix(&m.head, "output.weight", c.Embd, c.Vocab)
	} else {
		c.Tied = true
	}
	for i := range f.Tensors {
		if t := &f.Tensors[i]; !d.used[t.Name] {
			d.refuse("tensor %q (%s) is not part of %s as computed here", t.Name, shapeOf(t), c.Arch)
		}
	}
	return d.err
}

// vocabulary sets Vocab from the embedding and checks it against the tokens.
func (d *directory) vocabulary() {
	const name = "token_embd.weight"
	t, ok := d.f.Tensor(name)
	if !ok {
		d.refuse("tensor %q is missing", name)
		return
	}
	if t.Dims[1] > maxWidth {
		d.refuse("tensor %q is %s, more than %d rows", name, shapeOf(t), maxWidth)
		return
	}
	d.m.cfg.Vocab = int(t.Dims[1])
	const key = "tokenizer.ggml.tokens"
	if d.f.Metadata.Has(key) {
		tokens, err := d.f.Metadata.Strings(key)
		d.take(err)
		if err == nil && tokens.Len() != d.m.cfg.Vocab {
			d.refuse("tensor %q has %d rows, and metadata key %q has %d tokens", name, d.m.cfg.Vocab, key, tokens.Len())
		}
	}
	if key := d.key("vocab_size"); d.f.Metadata.Has(key) {
		n, err := d.f.Metadata.Uint(key)
		d.take(err)
		if err == nil && n != uint64(d.m.cfg.Vocab) {
			d.refuse("tensor %q has %d rows, and metadata key %q is %d", name, d.m.cfg.Vocab, key, n)
		}
	}
}

// block takes the tensors of layer i.
func (d *directory) block(i int) {
	c, l := &d.m.cfg, &d.m.layers[i]
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
	d.vector(&l.attnNorm, name("attn_norm"), c.Embd)
	q, k, v := c.Heads*c.KeyDim, c.KVHeads*c.KeyDim, c.KVHeads*c.ValDim
	if _, ok := d.f.Tensor(name("attn_qkv")); ok {
		// The rows of the three projections, one after the other.
		if t := d.find(name("attn_qkv"), c.Embd, q+k+v); t != nil {
			n := d.add(t)
			d.m.binds = append(d.m.binds, bind{n, 0, q, &l.q}, bind{n, q, k, &l.k}, bind{n, q + k, v, &l.v})
		}
	} else {
		d.matrix(&l.q, name("attn_q"), c.Embd, q)
		d.matrix(&l.k, name("attn_k"), c.Embd, k)
		d.matrix(&l.v, name("attn_v"), c.Embd, v)
	}
	d.vector(&l.qNorm, name("attn_q_norm"), c.KeyDim)
	d.vector(&l.kNorm, name("attn_k_norm"), c.KeyDim)
	d.matrix(&l.attnOut, name("attn_output"), c.Heads*c.ValDim, c.Embd)
	d.vector(&l.ffnNorm, name("ffn_norm"), c.Embd)
	if c.Experts == 0 {
		d.matrix(&l.gate, name("ffn_gate"), c.Embd, c.FF)
		d.matrix(&l.up, name("ffn_up"), c.Embd, c.FF)
		d.matrix(&l.down, name("ffn_down"), c.FF, c.Embd)
		return
	}
	l.rule = &router.Rule{Experts: c.Experts, K: c.TopK, Gating: router.Softmax, Normalize: true}
	if err := l.rule.Validate(); err != nil {
		d.refuse("layer %d: %v", i, err)
	}
	d.matrix(&l.router, name("ffn_gate_inp"), c.Embd, c.Experts)
	d.stacks(i, name)
}

// stacks takes the expert matrices of layer i and cuts them into experts.
func (d *directory) stacks(i int, name func(string) string) {
	c := &d.m.cfg
	experts := make([]ExpertDesc, c.Experts)
	d.m.experts[i] = experts
	down := d.find(name("ffn_down_exps"), c.ExpertFF, c.Embd, c.Experts)
	if _, ok := d.f.Tensor(name("ffn_gate_up_exps")); ok {
		// Merged: of each expert first the rows of gate, then those of up.
		both := d.find(name("ffn_gate_up_exps"), c.Embd, 2*c.ExpertFF, c.Experts)
		for e := range experts {
			x := &experts[e]
			p := d.slab(both, e, c.Embd, 2*c.ExpertFF)
			p.Out, p.Length = c.ExpertFF, p.Length/2
			x.Gate, x.Up = p, p
			x.Up.Offset += p.Length
			x.Down = d.slab(down, e, c.ExpertFF, c.Embd)
		}
		return
	}
	gate := d.find(name("ffn_gate_exps"), c.Embd, c.ExpertFF, c.Experts)
	up := d.find(name("ffn_up_exps"), c.Embd, c.ExpertFF, c.Experts)
	for e := range experts {
		experts[e] = ExpertDesc{
			Gate: d.slab(gate, e, c.Embd, c.ExpertFF),
			Up:   d.slab(up, e, c.Embd, c.ExpertFF),
			Down: d.slab(down, e, c.ExpertFF, c.Embd),
		}
	}
}

// slab is the matrix of expert e in a stack that find took; t is nil after an error.
func (d *directory) slab(t *gguf.Tensor, e, in, out int) Piece {
	if t == nil {
		return Piece{}
	}
	x, err := t.Slab(e)
	d.take(err)
	return Piece{Extent: x, Type: t.Type, In: in, Out: out}
}
