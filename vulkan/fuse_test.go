//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/compute/cpu"
	"terrace/gguf"
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
