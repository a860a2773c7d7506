//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/router"
)

// fusing is a twin whose operations wait for each other, and what these cost on the device.
type fusing struct {
	twin
	b *Backend
	c *cpu.Backend
}

func newFusing(t *testing.T, o Options) *fusing {
	f := &fusing{twin: twin{t: t}, b: open(t, o)}
	var err error
	if f.c, err = cpu.New(cpu.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.c.Close() })
	n := f.b.Numerics()
	f.same = func(string) bool { return n.Fused && n.Double }
	return f
}

// count runs f and answers how many dispatches and barriers that took on the device.
func (w *fusing) count(s *lane, f func()) (dispatches, barriers int64) {
	s.Flush() // what was before ends in a barrier
	before := w.b.enc.stats
	f()
	w.b.enc.drain()
	return w.b.enc.stats.Dispatches - before.Dispatches, w.b.enc.stats.Barriers - before.Barriers
}

// cost fails where f takes other numbers of dispatches and barriers on the device.
func (w *fusing) cost(s *lane, what string, dispatches, barriers int64, f func()) {
	w.t.Helper()
	if d, b := w.count(s, f); s.b == compute.Backend(w.b) && (d != dispatches || b != barriers) {
		w.t.Errorf("%s: %d dispatches and %d barriers, want %d and %d", what, d, b, dispatches, barriers)
	}
}

// TestFusedNorm adds and then norms: one dispatch where nothing comes between, with the CPU's bits in the sum, the norm and what a
// product makes of its int8 form.
func TestFusedNorm(t *testing.T) {
	f := newFusing(t, Options{})
	for _, cols := range []int{256, 320, 1003, 2048, 2880, 4096, 5000} {
		for _, rows := range []int{1, 5, 20} {
			name := fmt.Sprintf("%d x %d", rows, cols)
			f.run(f.b, f.c, func(s *lane) {
				x, y, h := s.load(random(1, rows*cols, 3), cols), s.load(random(2, rows*cols, 3), cols), s.empty(rows, cols)
				w := s.vector(random(3, cols, 1))
				var m compute.Weight
				if cols%256 == 0 {
					q, _ := computetest.Matrix(t, 4, gguf.Q8_0, cols, 3)
					m = s.weight(q)
				}
				for step := range 2 { // a product wants the int8 form from the second time on
					one, barriers := int64(1), int64(0)
					if rows > fuseRows {
						one, barriers = 2, 1
					}
					f.cost(s, "a sum and its norm, "+name, one, barriers, func() {
						s.Add(x, y)
						s.RMSNorm(h, x, w, 1e-6)
					})
					s.keep(fmt.Sprint("sum ", step, name), x)
					s.keep(fmt.Sprint("norm ", step, name), h)
					if m != nil {
						d := s.empty(rows, 3)
						s.MatMul(d, m, h)
						s.keep(fmt.Sprint("product ", step, name), d)
					}
				}
				if rows > fuseRows {
					return
				}
				f.cost(s, "in place, "+name, 1, 0, func() {
					s.Add(x, y)
					s.RMSNorm(x, x, nil, 1e-6)
				})
				s.keep("in place "+name, x)
				f.cost(s, "into what was added, "+name, 2, 1, func() {
					s.Add(x, y)
					s.RMSNorm(y, x, w, 1e-6)
				})
				s.keep("into what was added "+name, y)
				f.cost(s, "with another between, "+name, 3, 2, func() {
					s.Add(x, y)
					s.Scale(x, 0.3)
					s.RMSNorm(h, x, w, 1e-6)
				})
				s.keep("with another between "+name, h)
				f.cost(s, "of another, "+name, 3, 1, func() {
					s.Add(x, y)
					s.Add(y, x)
					s.RMSNorm(h, x, w, 1e-6)
				})
				s.keep("of another "+name, h)
				s.keep("of another, both "+name, y)
				f.cost(s, "two norms, "+name, 2, 1, func() {
					s.Add(x, y)
					s.RMSNorm(h, x, w, 1e-6)
					s.RMSNorm(y, x, nil, 1e-6)
				})
				s.keep("two norms "+name, y)
				s.Add(x, x) // twice the same
				s.RMSNorm(h, x, w, 1e-6)
				s.keep("twice the same "+name, h)
				s.Add(x, y) // nothing follows
				s.keep("alone "+name, x)
			})
		}
	}
	// Views keep the rows that they had.
	f.run(f.b, f.c, func(s *lane) {
		const cols, rows = 256, 6
		x, y, h := s.load(random(5, rows*cols, 3), cols), s.load(random(6, rows*cols, 3), cols), s.empty(rows, cols)
		vx, vy, vh := s.b.NewView(), s.b.NewView(), s.b.NewView()
		vx.Set(x, 1, 2)
		vy.Set(y, 3, 2)
		vh.Set(h, 4, 2)
		s.Clear(h)
		f.cost(s, "views", 1, 0, func() {
			s.Add(vx, vy)
			s.RMSNorm(vh, vx, nil, 1e-6)
		})
		s.Add(vx, vy)
		vy.Set(y, 0, 2)
		s.RMSNorm(h, x, nil, 1e-6)
		s.Add(vx, vy)
		vx.Set(x, 4, 2)
		s.RMSNorm(vh, vx, nil, 1e-6)
		vh.Set(x, 0, 2)
		s.Add(vx, vy)
		s.RMSNorm(vh, vx, nil, 1e-6) // other rows of the same tensor
		s.keep("views, sum", x)
		s.keep("views, norm", h)
	})
	// Rows change where the caller has the results already.
	f.run(f.b, f.c, func(s *lane) {
		x, y, h := s.load(random(7, 4*256, 3), 256), s.load(random(8, 4*256, 3), 256), s.empty(4, 256)
		s.Add(x, y)
		if err := s.Submit(); err != nil {
			t.Fatal(err)
		}
		x.SetRows(2)
		h.SetRows(2)
		s.RMSNorm(h, x, nil, 1e-6)
		s.keep("fewer rows", h)
	})
}

// tables is cosines and sines of so many rows.
func tables(seed uint64, n int) (cos, sin []float32) {
	a := random(seed, n, 3)
	for _, v := range a {
		u, w := math.Sincos(float64(v))
		cos, sin = append(cos, float32(w)), append(sin, float32(u))
	}
	return cos, sin
}

// TestFusedHeads norms, rotates and appends heads: one dispatch with the CPU's bits, by its results and by what attention sees later.
func TestFusedHeads(t *testing.T) {
	f := newFusing(t, Options{})
	for at, c := range []struct {
		dim, first, n int
		pairs         compute.Pairing
		kt, vt        compute.KVType
		normed, plain bool
	}{
		{dim: 128, n: 128, kt: compute.KVF16, vt: compute.KVF16, normed: true},
		{dim: 64, first: 8, n: 40, pairs: compute.Norm, kt: compute.KVF32, vt: compute.KVF16, normed: true, plain: true},
		{dim: 96, n: 64, kt: compute.KVQ8_0, vt: compute.KVQ4_0, normed: true},
		{dim: 80, n: 16, pairs: compute.Norm, kt: compute.KVF16, vt: compute.KVF32},
		{dim: 256, first: 32, n: 224, kt: compute.KVQ4_0, vt: compute.KVQ8_0},
	} {
		const heads, kheads, context = 6, 2, 200
		vdim := c.dim / 32 * 32
		for _, rows := range []int{1, 5, 20} {
			name := fmt.Sprintf(" of %d, case %d, %d rows", c.dim, at, rows)
			f.run(f.b, f.c, func(s *lane) {
				kv, err := s.b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: kheads, KeyDim: c.dim, ValDim: vdim}}, Context: context, K: c.kt, V: c.vt})
				if err != nil {
					t.Fatal(err)
				}
				qw, kw := s.vector(random(40, c.dim, 1)), s.vector(random(41, c.dim, 1))
				if c.plain {
					kw = nil
				}
				pos := make([]int32, rows)
				for step := range 3 {
					seed := uint64(100*at + 10*step)
					q, k := s.load(random(seed, rows*heads*c.dim, 2), heads*c.dim), s.load(random(seed+1, rows*kheads*c.dim, 2), kheads*c.dim)
					v, d := s.load(random(seed+2, rows*kheads*vdim, 2), kheads*vdim), s.empty(rows, heads*vdim)
					cos, sin := tables(seed+3, rows*c.n/2)
					cos[0], sin[0] = 0, float32(math.Copysign(0, -1))
					for i := range pos {
						pos[i] = int32(step*rows + i)
					}
					norm := func(x compute.Tensor, w compute.Weight) {
						if c.normed {
							s.HeadNorm(x, w, c.dim, 1e-6)
						}
					}
					spec := compute.AttnSpec{Pos: pos, Scale: 0.1}
					what, dispatches, barriers := "heads"+name, int64(3), int64(2)
					between := func() {}
					switch {
					case rows > fuseRows: // norms, rotations, stores, attention
						dispatches, barriers = 6, 3
						if c.normed {
							dispatches, barriers = 8, 5
						}
					case step == 1: // keys by another table
						what, dispatches = "two tables"+name, 4
						other := slices.Clone(cos)
						other[0] = float32(math.Copysign(0, -1))
						between = func() { cos = other }
					case step == 2: // what comes between
						what, dispatches, barriers = "with another between"+name, 5, 3
						between = func() { s.Scale(v, 0.7) }
					}
					f.cost(s, what, dispatches, barriers, func() {
						norm(q, qw)
						s.RoPE(q, c.dim, c.first, c.n, c.pairs, cos, sin)
						between()
						norm(k, kw)
						s.RoPE(k, c.dim, c.first, c.n, c.pairs, cos, sin)
						clear(sin) // the tables are the caller's again
						s.Attention(d, q, k, v, kv, spec)
					})
					s.keep(fmt.Sprint("queries ", step, name), q)
					s.keep(fmt.Sprint("keys ", step, name), k)
					s.keep(fmt.Sprint("attention ", step, name), d)
				}
			})
		}
	}
	// Sequences that break off.
	f.run(f.b, f.c, func(s *lane) {
		const dim, rows = 64, 4
		cos, sin := tables(60, rows*dim/2)
		x, y := s.load(random(61, rows*2*dim, 2), 2*dim), s.load(random(62, rows*dim, 2), dim)
		w := s.vector(random(63, dim, 1))
		turn := func(x compute.Tensor) { s.RoPE(x, dim, 0, dim, compute.Neox, cos, sin) }
		f.cost(s, "two norms", 2, 0, func() {
			s.HeadNorm(x, w, dim, 1e-6)
			s.HeadNorm(y, w, dim, 1e-6)
		})
		f.cost(s, "a norm of half the heads and a rotation", 2, 1, func() {
			s.HeadNorm(x, w, dim, 1e-6)
			s.RoPE(x, 2*dim, 0, dim, compute.Neox, cos, sin)
		})
		f.cost(s, "two rotations", 1, 0, func() {
			turn(x)
			turn(y)
		})
		f.cost(s, "two rotations of one", 2, 1, func() {
			turn(x)
			turn(x)
		})
		f.cost(s, "two of another accuracy", 2, 0, func() {
			s.HeadNorm(x, w, dim, 1e-6)
			turn(x)
			s.HeadNorm(y, w, dim, 1e-5)
			turn(y)
		})
		v := s.b.NewView()
		v.Set(x, 1, 2)
		s.HeadNorm(v, nil, dim, 1e-6)
		v.Set(x, 0, 2)
		s.RoPE(v, dim, 0, dim, compute.Neox, cos[:dim], sin[:dim])
		s.HeadNorm(x, w, dim, 1e-6)
		turn(x)
		v.Set(x, 2, 2)
		s.HeadNorm(v, nil, dim, 1e-6) // of rows that wait to be turned
		s.RoPE(v, dim, 0, dim, compute.Neox, cos[:dim], sin[:dim])
		s.keep("rows", x)
		turn(y)
		s.keep("others", y)
	})
}

// TestFusedMasked compares one dispatch with several on a device without float64, whose sums are not the CPU's to the bit.
func TestFusedMasked(t *testing.T) {
	const dim, rows, cols = 128, 3, 2048
	var want map[string][]float32
	for _, apart := range []bool{true, false} {
		b := open(t, Options{Mask: []string{"float64"}, apart: apart})
		s := lane{Encoder: b.Encoder(), t: t, b: b, out: map[string][]float32{}}
		x, y, h := s.load(random(50, rows*cols, 3), cols), s.load(random(51, rows*cols, 3), cols), s.empty(rows, cols)
		s.Add(x, y)
		s.RMSNorm(h, x, s.vector(random(52, cols, 1)), 1e-6)
		kv, err := b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 1, KeyDim: dim, ValDim: dim}}, Context: 9, K: compute.KVQ8_0, V: compute.KVQ4_0})
		if err != nil {
			t.Fatal(err)
		}
		q, k, v, d := s.load(random(53, rows*2*dim, 2), 2*dim), s.load(random(54, rows*dim, 2), dim), s.load(random(55, rows*dim, 2), dim), s.empty(rows, 2*dim)
		cos, sin := tables(56, rows*dim/2)
		for _, x := range []compute.Tensor{q, k} {
			s.HeadNorm(x, nil, dim, 1e-6)
			s.RoPE(x, dim, 0, dim, compute.Neox, cos, sin)
		}
		s.Attention(d, q, k, v, kv, compute.AttnSpec{Pos: []int32{0, 1, 2}, Scale: 0.1})
		for name, x := range map[string]compute.Tensor{"sum": x, "norm": h, "queries": q, "keys": k, "attention": d} {
			s.keep(name, x)
		}
		if err := s.Submit(); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = s.out
		}
		for name, x := range want {
			if !sameBits(s.out[name], x) {
				t.Errorf("%s: one dispatch has other bits than several", name)
			}
		}
	}
}

// routedLayer is a small layer with experts that a device chooses, and the host where there is none.
type routedLayer struct {
	l       compute.ExpertLayer
	rule    *router.Rule
	experts []compute.Expert
}

func newRouted(t *testing.T, b *Backend, key uint64, experts, k, in, ff, out int) *routedLayer {
	r := &routedLayer{rule: &router.Rule{Experts: experts, K: k, Gating: router.Softmax, Normalize: true}}
	shape := func(in, out int) compute.Matrix { return compute.Matrix{Type: gguf.Q8_0, In: in, Out: out} }
	r.l.N, r.l.Key, r.l.Gate, r.l.Up, r.l.Down = r.rule.Experts, key, shape(in, ff), shape(in, ff), shape(ff, out)
	for i := range r.rule.Experts {
		x := compute.Expert{Key: key + uint64(i)}
		x.Gate, _ = computetest.Matrix(t, key+uint64(3*i), gguf.Q8_0, in, ff)
		x.Up, _ = computetest.Matrix(t, key+uint64(3*i+1), gguf.Q8_0, in, ff)
		x.Down, _ = computetest.Matrix(t, key+uint64(3*i+2), gguf.Q8_0, ff, out)
		if err := b.Put(&x); err != nil {
			t.Fatal(err)
		}
		r.experts = append(r.experts, x)
	}
	if !b.HoldLayer(key, r.l.N) {
		t.Fatal("the layer is not kept")
	}
	return r
}

// run adds the layer's part to sum.
func (r *routedLayer) run(s *lane, sum, scores, x compute.Tensor) {
	n := x.Rows() * r.rule.K
	ids := make([]int32, n)
	if c, ok := s.Encoder.(*encoder); ok {
		c.RoutedFFN(sum, scores, x, r.rule, &r.l, 0.7, ids)
		return
	}
	host := make([]float32, scores.Rows()*scores.Cols())
	s.Read(host, scores)
	if err := s.Submit(); err != nil {
		s.t.Fatal(err)
	}
	weights, index, parts := make([]float32, n), make([]int32, n), s.empty(n, sum.Cols())
	for i := range x.Rows() {
		a, b := i*r.rule.K, (i+1)*r.rule.K
		if err := r.rule.TopK(host[i*r.rule.Experts:(i+1)*r.rule.Experts], ids[a:b], weights[a:b], &router.Scratch{}); err != nil {
			s.t.Fatal(err)
		}
	}
	for j, id := range ids {
		s.ExpertFFN(parts, j, &r.experts[id], x, []int32{int32(j / r.rule.K)})
		index[j], weights[j] = int32(j), float32(weights[j]*0.7)
	}
	s.WeightedSum(sum, parts, index, weights, r.rule.K)
}

// TestFusedExperts adds what experts make and norms the sum.
func TestFusedExperts(t *testing.T) {
	f := newFusing(t, Options{Memory: 1 << 30})
	f.b.SetTier(64 << 20)
	const in, ff = 256, 128
	for at, out := range []int{320, 1003, 2048, 2560, 4160} {
		r := newRouted(t, f.b, uint64(at+1)<<32, 9, 3, in, ff, out)
		for _, rows := range []int{1, 5} {
			name := fmt.Sprintf("%d x %d", rows, out)
			f.run(f.b, f.c, func(s *lane) {
				x, scores := s.load(random(70, rows*in, 1), in), s.load(random(71, rows*9, 2), 9)
				sum, h := s.load(random(72, rows*out, 1), out), s.empty(rows, out)
				w := s.vector(random(73, out, 1))
				for step := range 2 {
					r.run(s, sum, scores, x)
					dispatches, barriers := f.count(s, func() { r.run(s, sum, scores, x) })
					f.cost(s, "experts and a norm, "+name, dispatches, barriers, func() { // which is free
						r.run(s, sum, scores, x)
						s.RMSNorm(h, sum, w, 1e-6)
					})
					s.keep(fmt.Sprint("sum ", step, name), sum)
					s.keep(fmt.Sprint("norm ", step, name), h)
				}
				r.run(s, sum, scores, x)
				s.Scale(sum, 0.5)
				s.RMSNorm(h, sum, w, 1e-6)
				s.keep("with another between "+name, h)
				r.run(s, sum, scores, x)
				r.run(s, sum, scores, x)
				s.keep("twice "+name, sum)
			})
		}
		f.b.ReleaseLayer(r.l.Key)
	}
}

// TestRoutedMany chooses of as many experts as models have, and of more than the choice has in sight.
func TestRoutedMany(t *testing.T) {
	f := newFusing(t, Options{Memory: 1 << 30})
	f.b.SetTier(64 << 20)
	for at, n := range []int{128, 300} {
		r := newRouted(t, f.b, uint64(at+1)<<32, n, 10, 64, 32, 64)
		f.run(f.b, f.c, func(s *lane) {
			for _, rows := range []int{1, 4} {
				sum := s.load(random(75, rows*64, 1), 64)
				r.run(s, sum, s.load(random(76, rows*n, 2), n), s.load(random(77, rows*64, 1), 64))
				s.keep(fmt.Sprintf("%d rows, %d experts", rows, n), sum)
			}
		})
		f.b.ReleaseLayer(r.l.Key)
	}
}

// stack is a model's layers, each of them the same one, in the order in which package model has its operations.
type stack struct {
	*routedLayer
	layers                      int
	normA, normF, normQ, normK  compute.Weight
	q, k, v, o, gate            compute.Weight
	x, h, tq, tk, tv, att, proj compute.Tensor
	scores                      compute.Tensor
	kv                          compute.KV
}

const stackWidth, stackHeads, stackKV, stackDim = 256, 4, 2, 64

func newStack(s *lane, r *routedLayer, layers int) *stack {
	w := &stack{routedLayer: r, layers: layers}
	dense := func(seed uint64, in, out int) compute.Weight {
		m, _ := computetest.Matrix(s.t, seed, gguf.Q8_0, in, out)
		return s.weight(m)
	}
	w.normA, w.normF = s.vector(random(80, stackWidth, 1)), s.vector(random(81, stackWidth, 1))
	w.normQ, w.normK = s.vector(random(82, stackDim, 1)), s.vector(random(83, stackDim, 1))
	w.q, w.k, w.v = dense(84, stackWidth, stackHeads*stackDim), dense(85, stackWidth, stackKV*stackDim), dense(86, stackWidth, stackKV*stackDim)
	w.o, w.gate = dense(87, stackHeads*stackDim, stackWidth), s.weight(matrix(random(88, stackWidth*r.rule.Experts, 0.1), stackWidth))
	w.x, w.h, w.proj, w.scores = s.empty(1, stackWidth), s.empty(1, stackWidth), s.empty(1, stackWidth), s.empty(1, r.rule.Experts)
	w.tq, w.tk, w.tv, w.att = s.empty(1, stackHeads*stackDim), s.empty(1, stackKV*stackDim), s.empty(1, stackKV*stackDim), s.empty(1, stackHeads*stackDim)
	shape := compute.KVShape{Context: 100, K: compute.KVF16, V: compute.KVF16}
	for range layers {
		shape.Layers = append(shape.Layers, compute.KVLayer{Heads: stackKV, KeyDim: stackDim, ValDim: stackDim})
	}
	var err error
	if w.kv, err = s.b.NewKV(shape); err != nil {
		s.t.Fatal(err)
	}
	return w
}

// token takes a token at a position through the layers and answers its last norm.
func (w *stack) token(s *lane, embd compute.Weight, id, at int32) []float32 {
	cos, sin := tables(uint64(90+at), stackDim/2)
	s.Embed(w.x, embd, []int32{id})
	for l := range w.layers {
		s.RMSNorm(w.h, w.x, w.normA, 1e-6)
		s.MatMul(w.tk, w.k, w.h)
		s.MatMul(w.tv, w.v, w.h)
		s.MatMul(w.tq, w.q, w.h)
		s.HeadNorm(w.tq, w.normQ, stackDim, 1e-6)
		s.RoPE(w.tq, stackDim, 0, stackDim, compute.Neox, cos, sin)
		s.HeadNorm(w.tk, w.normK, stackDim, 1e-6)
		s.RoPE(w.tk, stackDim, 0, stackDim, compute.Neox, cos, sin)
		s.Attention(w.att, w.tq, w.tk, w.tv, w.kv, compute.AttnSpec{Layer: l, Pos: []int32{at}, Scale: 0.125})
		s.MatMul(w.proj, w.o, w.att)
		s.Add(w.x, w.proj)
		s.RMSNorm(w.h, w.x, w.normF, 1e-6)
		s.MatMul(w.scores, w.gate, w.h)
		w.run(s, w.x, w.scores, w.h)
	}
	s.RMSNorm(w.h, w.x, w.normA, 1e-6)
	out := make([]float32, stackWidth)
	s.Read(out, w.h)
	if err := s.Submit(); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// TestFusedStack takes tokens through layers as a model does: the CPU's bits, so many dispatches and barriers a layer, and commands
// that are the same from token to token.
func TestFusedStack(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(map[bool]string{false: "fused", true: "apart"}[apart], func(t *testing.T) { fusedStack(t, apart) })
	}
}

func fusedStack(t *testing.T, apart bool) {
	f := newFusing(t, Options{Memory: 1 << 30, apart: apart})
	f.b.SetTier(16 << 20)
	r := newRouted(t, f.b, 1<<32, 9, 3, stackWidth, 64, stackWidth)
	defer f.b.ReleaseLayer(r.l.Key)
	const layers, tokens = 40, 5 // more layers than are sent at once
	f.run(f.b, f.c, func(s *lane) {
		w := newStack(s, r, layers)
		embd := s.weight(matrix(random(95, 11*stackWidth, 1), stackWidth))
		var all []float32
		for at := range int32(tokens) {
			if err := s.Submit(); err != nil {
				t.Fatal(err)
			}
			before := f.b.Stats()
			all = append(all, w.token(s, embd, 7*at%11, at)...)
			n := f.b.Stats()
			if s.b != compute.Backend(f.b) || at < 2 {
				continue
			}
			// Queries, keys and values; their heads; two of attention; its product; the residual with the norm; the router; the choice; two of
			// experts; their sum with the norm. Before the layers there is a token, and the first norm is alone.
			dispatches, barriers := n.Dispatches-before.Dispatches, n.Barriers-before.Barriers+n.Submits-before.Submits
			t.Logf("token %d: %d dispatches, %d barriers or submissions, %d submissions, %d of them replayed", at, dispatches, barriers, n.Submits-before.Submits, n.Replayed-before.Replayed)
			if apart {
				continue
			}
			if dispatches != 13*layers+2 || barriers > 11*layers+4 {
				t.Errorf("token %d: %d dispatches, %d barriers and submissions in %d layers, want 13 and 11 a layer", at, dispatches, barriers, layers)
			}
			if n.Submits-before.Submits < 2 || n.Replayed == before.Replayed {
				t.Errorf("token %d: %d submissions, %d of them replayed", at, n.Submits-before.Submits, n.Replayed-before.Replayed)
			}
		}
		s.out["tokens"] = all
	})
}
