//go:build cgo && !novulkan

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/compute/cpu"
	"terrace/gguf"
)

// twin runs one recording on two backends and compares what it leaves.
type twin struct {
	t    *testing.T
	same func(op string) bool // whether bits must be equal
}

// lane is one of the two.
type lane struct {
	compute.Encoder
	t   *testing.T
	b   compute.Backend
	out map[string][]float32
}

func (s *lane) weight(m compute.Matrix) compute.Weight {
	w, err := s.b.NewWeight(m)
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

func matrix(x []float32, in int) compute.Matrix {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return compute.Matrix{Type: gguf.F32, In: in, Out: len(x) / in, Data: b}
}

func (s *lane) vector(x []float32) compute.Weight { return s.weight(matrix(x, len(x))) }

func (s *lane) empty(rows, cols int) compute.Tensor {
	d := s.b.NewTensor(rows, cols)
	d.SetRows(rows)
	return d
}

func (s *lane) load(x []float32, cols int) compute.Tensor {
	d := s.empty(len(x)/cols, cols)
	ids := make([]int32, d.Rows())
	for i := range ids {
		ids[i] = int32(i)
	}
	s.Embed(d, s.weight(matrix(x, cols)), ids)
	return d
}

// keep reads x under a name.
func (s *lane) keep(name string, x compute.Tensor) {
	out := make([]float32, x.Rows()*x.Cols())
	s.Read(out, x)
	s.out[name] = out
}

func random(seed uint64, n int, dev float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 5))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * dev)
		if r.IntN(40) == 0 {
			x[i] *= 20
		}
	}
	return x
}

// run compares f on both backends.
func (w *twin) run(b *Backend, c *cpu.Backend, f func(s *lane)) {
	w.t.Helper()
	var lanes [2]lane
	for i, x := range []compute.Backend{c, b} {
		s := lane{Encoder: x.Encoder(), t: w.t, b: x, out: map[string][]float32{}}
		f(&s)
		if err := s.Submit(); err != nil {
			w.t.Fatal(err)
		}
		lanes[i] = s
	}
	for name, want := range lanes[0].out {
		got, differ, worst, top := lanes[1].out[name], 0, 0.0, 0.0
		for i := range want {
			top = max(top, math.Abs(float64(want[i])))
			d := math.Abs(float64(want[i]) - float64(got[i]))
			if math.Float32bits(want[i]) != math.Float32bits(got[i]) && !(want[i] != want[i] && got[i] != got[i]) && (d > 0x1p-125 || b.Numerics().Subnormals) {
				differ++
				worst = max(worst, d)
			}
		}
		if differ > 0 && w.same(name) {
			w.t.Errorf("%s: %d of %d results have other bits than the CPU's, by %.3g of %.3g at most", name, differ, len(want), worst, top)
		} else if differ > 0 {
			w.t.Logf("%s: %d of %d results differ from the CPU's, by %.3g of %.3g at most", name, differ, len(want), worst, top)
			if !(worst <= 1e-5*top) {
				w.t.Errorf("%s: off by %.3g of %.3g", name, worst, top)
			}
		}
	}
}

// TestBits compares with the CPU's fast mode, bit by bit where Numerics promises it.
func TestBits(t *testing.T) {
	b := open(t, Options{})
	c, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	n := b.Numerics()
	always := twin{t: t, same: func(string) bool { return true }}
	fused := twin{t: t, same: func(string) bool { return n.Fused }}
	double := twin{t: t, same: func(string) bool { return n.Double }}
	both := twin{t: t, same: func(string) bool { return n.Fused && n.Double }}

	types := []gguf.Type{gguf.Q8_0, gguf.Q4_K, gguf.Q6_K, gguf.MXFP4, gguf.NVFP4, gguf.IQ3S}
	if !testing.Short() && b.Info().Kind != Software {
		types = append(types, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q2_K, gguf.Q3_K, gguf.Q5_K, gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ1S,
			gguf.IQ1M, gguf.IQ4NL, gguf.IQ4XS, gguf.TQ1_0, gguf.TQ2_0, gguf.Q1_0, gguf.Q2_0)
	}
	for _, typ := range types {
		const in, out, ff = 1280, 70, 512
		m, _ := computetest.Matrix(t, 1, typ, in, out)
		var x compute.Expert
		x.Gate, _ = computetest.Matrix(t, 2, typ, in, ff)
		x.Up, _ = computetest.Matrix(t, 3, typ, in, ff)
		x.Down, _ = computetest.Matrix(t, 4, typ, ff, 90)
		x.GateBias, x.DownBias = random(5, ff, 1), random(6, 90, 1)
		always.run(b, c, func(s *lane) {
			a := s.load(random(7, 11*in, 2), in)
			for _, rows := range []int{1, 11} {
				y, d := s.empty(rows, in), s.empty(rows, out)
				s.CopyRows(y, a, 0)
				s.MatMul(d, s.weight(m), y)
				s.keep(fmt.Sprintf("%s, %d rows", typ, rows), d)
			}
			p := s.empty(4, 90)
			s.Clear(p)
			s.ExpertFFN(p, 0, &x, a, []int32{9})
			s.ExpertFFN(p, 3, &x, a, []int32{2})
			s.keep(fmt.Sprintf("an expert of %s, single rows", typ), p)
			q := s.empty(4, 90)
			s.ExpertFFN(q, 0, &x, a, []int32{3, 1, 8, 10})
			s.keep(fmt.Sprintf("an expert of %s", typ), q)
		})
	}
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16} {
		m, _ := computetest.Matrix(t, 8, typ, 1003, 70)
		fused.run(b, c, func(s *lane) {
			a, d := s.load(random(9, 5*1003, 1), 1003), s.empty(5, 70)
			s.MatMul(d, s.weight(m), a)
			s.keep(typ.String(), d)
		})
	}
	always.run(b, c, func(s *lane) {
		const rows, cols = 7, 320
		x, y := random(10, rows*cols, 8), random(11, rows*cols, 8)
		for act := range compute.Sigmoid + 1 {
			a, other := s.load(x, cols), s.load(y, cols)
			if act == compute.ReLU2 {
				other = nil
			}
			s.Activate(a, a, other, act)
			s.keep(fmt.Sprint("activation ", act), a)
		}
		for name, f := range map[string]func(a compute.Tensor){
			"Softcap": func(a compute.Tensor) { s.Softcap(a, 5) }, "Scale": func(a compute.Tensor) { s.Scale(a, 0.37) },
			"Add": func(a compute.Tensor) { s.Add(a, s.load(y, cols)) }, "Mul": func(a compute.Tensor) { s.Mul(a, s.load(y, cols)) },
			"AddBias":  func(a compute.Tensor) { s.AddBias(a, s.vector(y[:cols])) },
			"GateRows": func(a compute.Tensor) { s.GateRows(a, s.load(y[:rows], 1)) },
			"RoPE":     func(a compute.Tensor) { s.RoPE(a, 80, 8, 64, compute.Neox, y[:rows*32], x[:rows*32]) },
			"Inject":   func(a compute.Tensor) { s.Inject(a, s.load(y[:rows*80], 80), s.load(x[:rows*4], 4)) },
		} {
			a := s.load(x, cols)
			f(a)
			s.keep(name, a)
		}
	})
	double.run(b, c, func(s *lane) {
		for _, cols := range []int{64, 320, 2048} {
			x := random(12, 9*cols, 3)
			a := s.load(x, cols)
			s.RMSNorm(a, a, s.vector(random(13, cols, 1)), 1e-6)
			s.keep(fmt.Sprint("RMSNorm of ", cols), a)
			g := s.load(x, cols)
			s.GatedNorm(g, g, s.load(x, cols), s.vector(random(13, 32, 1)), 32, 1e-6, compute.SiLU)
			s.keep(fmt.Sprint("GatedNorm in ", cols), g)
		}
	})
	for _, kt := range []compute.KVType{compute.KVF32, compute.KVF16, compute.KVQ8_0, compute.KVQ4_0} {
		w := fused
		if kt >= compute.KVQ8_0 {
			w = both
		}
		w.run(b, c, func(s *lane) {
			const n, heads, group, dim = 200, 2, 4, 64
			kv, err := s.b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: heads, KeyDim: dim, ValDim: dim}}, Context: n, K: kt, V: kt})
			if err != nil {
				t.Fatal(err)
			}
			pos := make([]int32, n)
			for i := range pos {
				pos[i] = int32(i)
			}
			d := s.empty(n, heads*group*dim)
			s.Attention(d, s.load(random(14, n*heads*group*dim, 1), heads*group*dim), s.load(random(15, n*heads*dim, 1), heads*dim), s.load(random(16, n*heads*dim, 1), heads*dim),
				kv, compute.AttnSpec{Pos: pos, Scale: 0.2, Sinks: s.vector(random(17, heads*group, 1))})
			s.keep("Attention over "+kt.String(), d)
		})
	}
	both.run(b, c, func(s *lane) {
		const rows, heads, dk, dv = 30, 4, 32, 48
		const ch = 2*2*dk + heads*dv
		r, err := s.b.NewRecurrent(compute.RecurrentShape{Layers: []compute.RecurrentLayer{{Channels: ch, Back: 3, Heads: heads, KeyDim: dk, ValDim: dv}}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		x, y, d := s.load(random(18, rows*ch, 1), ch), s.empty(rows, ch), s.empty(rows, heads*dv)
		s.ShortConv(y, x, r, compute.ConvSpec{Weight: s.weight(matrix(random(19, 4*ch, 1), 4)), SiLU: true})
		s.keep("ShortConv", y)
		a := random(20, heads, 1)
		for i := range a {
			a[i] = -float32(math.Abs(float64(a[i])))
		}
		s.DeltaNet(d, y, s.load(random(21, rows*heads, 2), heads), s.load(random(22, rows*heads, 2), heads), r,
			compute.DeltaSpec{KeyHeads: 2, A: s.vector(a), Dt: s.vector(random(23, heads, 1)), Eps: 1e-6, Scale: 0.3})
		s.keep("DeltaNet", d)
	})
}
