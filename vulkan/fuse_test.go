//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
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
	for _, cols := range []int{256, 320, 1003, 2048, 4096} {
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

// routedLayer is a small layer with experts that a device chooses, and the host where there is none.
type routedLayer struct {
	l       compute.ExpertLayer
	rule    *router.Rule
	experts []compute.Expert
}

func newRouted(t *testing.T, b *Backend, key uint64, in, ff, out int) *routedLayer {
	r := &routedLayer{rule: &router.Rule{Experts: 9, K: 3, Gating: router.Softmax, Normalize: true}}
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
	for at, out := range []int{320, 1003, 2048, 2560} {
		r := newRouted(t, f.b, uint64(at+1)<<32, in, ff, out)
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
