package computetest

import (
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// views: an operation over a run of a tensor's rows gives what it gives over a tensor of these rows alone, though the view is
// set to others before Submit, and what is written through a view is seen in the tensor.
func (s Suite) views(t *testing.T) {
	e := s.Backend.Encoder()
	const heads, dim, n = 2, 32, 9
	cut := []int{5, 4} // rows of two sequences
	l := compute.KVLayer{Heads: heads, KeyDim: dim, ValDim: dim}
	shape := compute.KVShape{Layers: []compute.KVLayer{l}, Context: 64}
	q, k, v := random(70, n*heads*dim, 1), random(71, n*heads*dim, 1), random(72, n*heads*dim, 1)
	tq, tk, tv, out := s.load(t, q, heads*dim), s.load(t, k, heads*dim), s.load(t, v, heads*dim), s.empty(n, heads*dim)
	vq, vk, vv, vo := s.Backend.NewView(), s.Backend.NewView(), s.Backend.NewView(), s.Backend.NewView()
	cache := func() compute.KV {
		kv, err := s.Backend.NewKV(shape)
		if err != nil {
			t.Fatal(err)
		}
		return kv
	}
	kvs := []compute.KV{cache(), cache()}
	spec := func(rows int) compute.AttnSpec {
		pos := make([]int32, rows)
		for i := range pos {
			pos[i] = int32(i)
		}
		return compute.AttnSpec{Pos: pos, Scale: 0.2}
	}
	first := 0
	for i, rows := range cut {
		for _, x := range []struct {
			v compute.View
			t compute.Tensor
		}{{vq, tq}, {vk, tk}, {vv, tv}, {vo, out}} {
			x.v.Set(x.t, first, rows)
			if x.v.Rows() != rows || x.v.Cols() != heads*dim {
				t.Fatalf("a view of %d rows of %d has %d of %d", rows, heads*dim, x.v.Rows(), x.v.Cols())
			}
		}
		e.Attention(vo, vq, vk, vv, kvs[i], spec(rows))
		first += rows
	}
	got := s.read(t, out)
	first = 0
	for i, rows := range cut {
		part := func(x []float32) compute.Tensor {
			return s.load(t, x[first*heads*dim:(first+rows)*heads*dim], heads*dim)
		}
		want := s.empty(rows, heads*dim)
		kv := cache()
		e.Attention(want, part(q), part(k), part(v), kv, spec(rows))
		equal(t, "attention of a sequence", got[first*heads*dim:(first+rows)*heads*dim], s.read(t, want))
		// A copied beginning goes on as what it was copied from.
		more, copied := s.empty(1, heads*dim), cache()
		copied.CopyPrefix(kvs[i], rows)
		next := s.load(t, q[:heads*dim], heads*dim)
		e.Attention(more, next, next, next, copied, compute.AttnSpec{Pos: []int32{int32(rows)}, Scale: 0.2})
		other := s.empty(1, heads*dim)
		e.Attention(other, next, next, next, kv, compute.AttnSpec{Pos: []int32{int32(rows)}, Scale: 0.2})
		equal(t, "after a copied beginning", s.read(t, more), s.read(t, other))
		first += rows
	}
	// A product has met out before a view changes it: its rows are not those that were quantised then.
	m, _ := Matrix(t, 73, gguf.Q8_0, heads*dim, 3)
	w := s.weight(t, m)
	y := s.empty(n, 3)
	e.MatMul(y, w, out)
	before := s.read(t, y)
	vo.Set(out, 2, 3)
	e.CopyRows(vo, tv, 4)
	e.MatMul(y, w, out)
	after := s.read(t, y)
	want := s.empty(3, 3)
	e.MatMul(want, w, s.load(t, v[4*heads*dim:7*heads*dim], heads*dim))
	equal(t, "a product of rows written through a view", after[2*3:5*3], s.read(t, want))
	equal(t, "a product of the rows beside them", after[:2*3], before[:2*3])
	vo.Set(out, 2, 3)
	part := make([]float32, 3*heads*dim)
	e.Read(part, vo)
	if err := e.Submit(); err != nil {
		t.Fatal(err)
	}
	equal(t, "rows read through a view", part, v[4*heads*dim:7*heads*dim])
}
