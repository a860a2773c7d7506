package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"terrace/compute"
	"terrace/gguf"
)

// find takes tensor name of the given dimensions; nil, with the reason kept, when it is not there like that.
func (b *builder) find(name string, dims ...int) *gguf.Tensor {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.refuse("tensor %q of %s is missing", name, shape(dims))
		return nil
	}
	b.used[name] = true
	for i, have := range t.Dims {
		want := uint64(1)
		if i < len(dims) {
			want = uint64(dims[i])
		}
		if have != want {
			b.refuse("tensor %q is %s, want %s", name, shapeOf(t), shape(dims))
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
func (b *builder) add(t *gguf.Tensor) int {
	b.m.dense = append(b.m.dense, DenseTensor{Name: t.Name, Extent: t.Extent, Type: t.Type, In: int(t.Dims[0]), Out: int(t.Dims[1])})
	return len(b.m.dense) - 1
}

// matrix takes a dense weight of out rows of in elements.
func (b *builder) matrix(to *compute.Weight, name string, in, out int) {
	if t := b.find(name, in, out); t != nil {
		b.m.binds = append(b.m.binds, bind{tensor: b.add(t), rows: out, to: to})
	}
}

// vector takes a norm's weights, which are F32 in every file.
func (b *builder) vector(to *compute.Weight, name string, n int) {
	t := b.find(name, n)
	if t == nil {
		return
	}
	if t.Type != gguf.F32 {
		b.refuse("tensor %q is of type %s, want %s", name, t.Type, gguf.F32)
		return
	}
	b.m.binds = append(b.m.binds, bind{tensor: b.add(t), rows: 1, to: to})
}

// flat is vector for numbers that the file has in two dimensions.
func (b *builder) flat(to *compute.Weight, name string, dims ...int) {
	t := b.find(name, dims...)
	if t == nil {
		return
	}
	if t.Type != gguf.F32 {
		b.refuse("tensor %q is of type %s, want %s", name, t.Type, gguf.F32)
		return
	}
	n := 1
	for _, d := range dims {
		n *= d
	}
	at := b.add(t)
	b.m.dense[at].In, b.m.dense[at].Out = n, 1
	b.m.binds = append(b.m.binds, bind{tensor: at, rows: 1, to: to})
}

// has reports whether the file has a tensor.
func (b *builder) has(name string) bool {
	_, ok := b.f.Tensor(name)
	return ok
}

// host takes an F32 tensor whose numbers are wanted beside the arithmetic. They stay where they are in memory.
func (b *builder) host(to *[]float32, name string, dims ...int) {
	t := b.find(name, dims...)
	if t == nil {
		return
	}
	if t.Type != gguf.F32 {
		b.refuse("tensor %q is of type %s, want %s", name, t.Type, gguf.F32)
		return
	}
	b.m.binds = append(b.m.binds, bind{tensor: b.add(t), host: to})
}

// floats is data as numbers; it is copied where it does not lie as they would.
func floats(data []byte) []float32 {
	n := len(data) / 4
	if n == 0 {
		return nil
	}
	var probe [2]byte
	binary.NativeEndian.PutUint16(probe[:], 1)
	if p := unsafe.Pointer(&data[0]); uintptr(p)%4 == 0 && probe[0] == 1 {
		return unsafe.Slice((*float32)(p), n)
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return x
}

// embedding takes the token embeddings and learns the vocabulary's size.
func (b *builder) embedding() {
	b.vocabulary()
	if b.err == nil {
		b.matrix(&b.m.embd, "token_embd.weight", b.c.Embd, b.c.Vocab)
	}
}

// output takes the last norm, unless the architecture has set another, and the head, which is the embedding where it is
// missing.
func (b *builder) output() {
	if b.m.outIn == nil {
		n := &norms{eps: b.c.Eps, name: "output_norm.weight"}
		b.vector(&n.pre, n.name, b.c.Embd)
		b.m.outIn = n
	}
	if b.has("output.weight") {
		b.matrix(&b.m.head, "output.weight", b.c.Embd, b.c.Vocab)
	} else {
		b.c.Tied = true
	}
}

// surplus refuses what was not taken: a bias or a scale that is not applied would still give fluent text.
func (b *builder) surplus() {
	for i := range b.f.Tensors {
		t := &b.f.Tensors[i]
		if b.used[t.Name] || b.skip(t.Name) {
			continue
		}
		if strings.HasPrefix(t.Name, "v.") || strings.HasPrefix(t.Name, "mm.") {
			b.refuse("tensor %q (%s) is of a model's vision part, which is not computed here", t.Name, shapeOf(t))
			return
		}
		b.refuse("tensor %q (%s) is not part of %s as computed here", t.Name, shapeOf(t), b.c.Arch)
		return
	}
}

// skip reports whether a tensor belongs to a layer that only predicts further tokens.
func (b *builder) skip(name string) bool {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return false
	}
	i, err := strconv.Atoi(rest[:max(0, strings.IndexByte(rest, '.'))])
	return err == nil && i >= b.c.Layers && i < b.c.Layers+b.extra
}

// vocabulary sets Vocab from the embedding and checks it against the tokens.
func (b *builder) vocabulary() {
	const name = "token_embd.weight"
	t, ok := b.f.Tensor(name)
	if !ok {
		b.refuse("tensor %q is missing", name)
		return
	}
	if t.Dims[1] > maxWidth {
		b.refuse("tensor %q is %s, more than %d rows", name, shapeOf(t), maxWidth)
		return
	}
	b.m.cfg.Vocab = int(t.Dims[1])
	const key = "tokenizer.ggml.tokens"
	if b.f.Metadata.Has(key) {
		tokens, err := b.f.Metadata.Strings(key)
		b.take(err)
		if err == nil && tokens.Len() != b.m.cfg.Vocab {
			b.refuse("tensor %q has %d rows, and metadata key %q has %d tokens", name, b.m.cfg.Vocab, key, tokens.Len())
		}
	}
	if key := b.key("vocab_size"); b.f.Metadata.Has(key) {
		n, err := b.f.Metadata.Uint(key)
		b.take(err)
		if err == nil && n != uint64(b.m.cfg.Vocab) {
			b.refuse("tensor %q has %d rows, and metadata key %q is %d", name, b.m.cfg.Vocab, key, n)
		}
	}
}

// stacks takes the expert matrices of layer i and cuts them into experts.
func (b *builder) stacks(i int, gated bool) {
	c := b.c
	name := func(s string) string { return tensorName(i, s+".weight") }
	experts := make([]ExpertDesc, c.Experts)
	b.m.experts[i] = experts
	down := b.find(name("ffn_down_exps"), c.ExpertFF, c.Embd, c.Experts)
	if gated && b.has(name("ffn_gate_up_exps")) {
		// Merged: of each expert first the rows of gate, then those of up.
		both := b.find(name("ffn_gate_up_exps"), c.Embd, 2*c.ExpertFF, c.Experts)
		for e := range experts {
			x := &experts[e]
			p := b.slab(both, e, c.Embd, 2*c.ExpertFF)
			p.Out, p.Length = c.ExpertFF, p.Length/2
			x.Gate, x.Up = p, p
			x.Up.Offset += p.Length
			x.Down = b.slab(down, e, c.ExpertFF, c.Embd)
		}
		return
	}
	var gate *gguf.Tensor
	if gated {
		gate = b.find(name("ffn_gate_exps"), c.Embd, c.ExpertFF, c.Experts)
	}
	up := b.find(name("ffn_up_exps"), c.Embd, c.ExpertFF, c.Experts)
	for e := range experts {
		experts[e] = ExpertDesc{
			Gate: b.slab(gate, e, c.Embd, c.ExpertFF),
			Up:   b.slab(up, e, c.Embd, c.ExpertFF),
			Down: b.slab(down, e, c.ExpertFF, c.Embd),
		}
	}
}

// slab is the matrix of expert e in a stack that find took; t is nil after an error, and where experts have no such matrix.
func (b *builder) slab(t *gguf.Tensor, e, in, out int) Piece {
	if t == nil {
		return Piece{}
	}
	x, err := t.Slab(e)
	b.take(err)
	return Piece{Extent: x, Type: t.Type, In: in, Out: out}
}
