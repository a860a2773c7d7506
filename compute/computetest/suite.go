// Package computetest is the suite that every backend of compute must pass: each operation against a plain float64
// reference, each row against the same row computed alone.
//
// It is imported by tests only and measures no speed.
package computetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/quant"
)

// types lists every weight type of the numeric contract.
var types = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K,
	gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ3S, gguf.IQ1S, gguf.IQ1M, gguf.IQ4NL, gguf.IQ4XS, gguf.TQ1_0, gguf.TQ2_0,
	gguf.MXFP4, gguf.NVFP4, gguf.Q1_0, gguf.Q2_0,
}

// float reports whether weights of type t meet float32 activations in every mode.
func float(t gguf.Type) bool { return t == gguf.F32 || t == gguf.F16 || t == gguf.BF16 }

// Suite is a backend under test.
type Suite struct {
	Backend compute.Backend
	Exact   bool // activations stay float32 for quantised weights too
	Short   bool // a few weight types instead of all
}

// types lists the weight types to test.
func (s Suite) types() []gguf.Type {
	if s.Short {
		return []gguf.Type{gguf.F32, gguf.F16, gguf.Q4_0, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K, gguf.NVFP4}
	}
	return types
}

// Run runs every test as a subtest of t.
func (s Suite) Run(t *testing.T) {
	t.Run("Embed", s.embed)
	t.Run("MatMul", s.matMul)
	t.Run("Norms", s.norms)
	t.Run("RoPE", s.rope)
	t.Run("Elementwise", s.elementwise)
	t.Run("Attention", s.attention)
	t.Run("ExpertFFN", s.expertFFN)
	t.Run("WeightedSum", s.weightedSum)
	t.Run("Layers", s.layers)
	t.Run("Windows", s.windows)
	t.Run("ExpertKinds", s.expertKinds)
	t.Run("Recurrent", s.recurrent)
	t.Run("Latent", s.latent)
	t.Run("Mix", s.mix)
	t.Run("Streams", s.streams)
	t.Run("SparseAttention", s.sparse)
	t.Run("Copies", s.copies)
	t.Run("Views", s.views)
	t.Run("OnDone", s.onDone)
	t.Run("Refuses", s.refuses)
}

// random returns n values of the given deviation; one in fifty is ten times larger, as in real activations.
func random(seed uint64, n int, dev float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 77))
	x := make([]float32, n)
	for i := range x {
		v := r.NormFloat64() * dev
		if r.IntN(50) == 0 {
			v *= 10
		}
		x[i] = float32(v)
	}
	return x
}

// floats32 is x as the bytes of an F32 weight.
func floats32(x []float32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return b
}

// Matrix makes out rows of in random elements of type t and their float32 values. Encoding to codebooks is slow, so rows
// of quantised types are drawn from eleven.
func Matrix(t testing.TB, seed uint64, typ gguf.Type, in, out int) (compute.Matrix, []float32) {
	t.Helper()
	n := typ.RowBytes(in)
	distinct := out
	if !float(typ) {
		distinct = min(out, 11)
	}
	x := random(seed, in*distinct, 1/math.Sqrt(float64(in)))
	rows := make([]byte, n*distinct)
	if err := quant.Encode(typ, rows, x); err != nil {
		t.Fatal(err)
	}
	m := compute.Matrix{Type: typ, In: in, Out: out, Data: rows}
	if distinct < out {
		r := rand.New(rand.NewPCG(seed, 78))
		m.Data = nil
		for range out {
			i := r.IntN(distinct)
			m.Data = append(m.Data, rows[i*n:(i+1)*n]...)
		}
	}
	values := make([]float32, in*out)
	if err := quant.Decode(typ, values, m.Data); err != nil {
		t.Fatal(err)
	}
	return m, values
}

func (s Suite) weight(t testing.TB, m compute.Matrix) compute.Weight {
	t.Helper()
	w, err := s.Backend.NewWeight(m)
	if err != nil {
		t.Fatal(err)
	}
	if w.Type() != m.Type || w.In() != m.In || w.Out() != m.Out {
		t.Fatalf("a weight of %s %d x %d came back as %s %d x %d", m.Type, m.Out, m.In, w.Type(), w.Out(), w.In())
	}
	return w
}

// vector makes an F32 vector weight.
func (s Suite) vector(t testing.TB, x []float32) compute.Weight {
	t.Helper()
	return s.weight(t, compute.Matrix{Type: gguf.F32, In: len(x), Out: 1, Data: floats32(x)})
}

// load makes a tensor with the values x, rows of cols.
func (s Suite) load(t testing.TB, x []float32, cols int) compute.Tensor {
	t.Helper()
	rows := len(x) / cols
	d := s.Backend.NewTensor(rows, cols)
	d.SetRows(rows)
	ids := make([]int32, rows)
	for i := range ids {
		ids[i] = int32(i)
	}
	s.Backend.Encoder().Embed(d, s.weight(t, compute.Matrix{Type: gguf.F32, In: cols, Out: rows, Data: floats32(x)}), ids)
	return d
}

// empty makes a tensor with rows rows of garbage.
func (s Suite) empty(rows, cols int) compute.Tensor {
	d := s.Backend.NewTensor(max(rows, 1), cols)
	d.SetRows(rows)
	return d
}

// read runs what is recorded and answers x.
func (s Suite) read(t testing.TB, x compute.Tensor) []float32 {
	t.Helper()
	out := make([]float32, x.Rows()*x.Cols())
	s.Backend.Encoder().Read(out, x)
	if err := s.Backend.Encoder().Submit(); err != nil {
		t.Fatal(err)
	}
	return out
}

// near fails where an element of got lies farther from want than bound of its index allows.
func near(t testing.TB, what string, got []float32, want []float64, bound func(i int) float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= bound(i)) {
			t.Fatalf("%s: element %d is %v, want %v: off by %.3g, bound %.3g", what, i, got[i], want[i], d, bound(i))
		}
	}
}

// equal fails where bits differ.
func equal(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v, want the bits of %v", what, i, got[i], want[i])
		}
	}
}

func relative(want []float64, r float64) func(int) float64 {
	most := 0.0
	for _, v := range want {
		most = max(most, math.Abs(v))
	}
	return func(i int) float64 { return r * (math.Abs(want[i]) + 0.1*most) }
}

func (s Suite) embed(t *testing.T) {
	for _, typ := range s.types() {
		m, x := Matrix(t, 1, typ, 256, 9)
		d := s.empty(5, 256)
		ids := []int32{8, 0, 3, 3, 7}
		s.Backend.Encoder().Embed(d, s.weight(t, m), ids)
		var want []float32
		for _, id := range ids {
			want = append(want, x[id*256:(id+1)*256]...)
		}
		equal(t, typ.String(), s.read(t, d), want)
	}
}

func (s Suite) matMul(t *testing.T) {
	e := s.Backend.Encoder()
	for _, typ := range s.types() {
		if !s.Backend.Supports(typ) {
			t.Errorf("%s is not supported", typ)
			continue
		}
		for _, shape := range [][2]int{{256, 1}, {256, 90}, {768, 33}} {
			in, out := shape[0], shape[1]
			m, w := Matrix(t, 2, typ, in, out)
			weight := s.weight(t, m)
			const most = 5
			x := random(3, most*in, 1)
			var alone []float32
			for _, rows := range []int{1, 2, most} {
				a := s.load(t, x[:rows*in], in)
				d := s.empty(rows, out)
				e.MatMul(d, weight, a)
				got := s.read(t, d)
				want := make([]float64, rows*out)
				bound := make([]float64, rows*out)
				for r := range rows {
					row := x[r*in : (r+1)*in]
					top := 0.0
					for _, v := range row {
						top = max(top, math.Abs(float64(v)))
					}
					for o := range out {
						sum, size, weights := 0.0, 0.0, 0.0
						for i, v := range row {
							p := float64(v) * float64(w[o*in+i])
							sum, size, weights = sum+p, size+math.Abs(p), weights+math.Abs(float64(w[o*in+i]))
						}
						want[r*out+o] = sum
						bound[r*out+o] = 1e-5 * size
						if !s.Exact && !float(typ) {
							bound[r*out+o] += weights * top / 127 * 0.51 // half a step of int8 activations
						}
					}
				}
				what := fmt.Sprintf("%s, %d rows of %d to %d", typ, rows, in, out)
				near(t, what, got, want, func(i int) float64 { return bound[i] })
				if rows == most {
					equal(t, what+": first row alone", alone, got[:out])
				} else if rows == 1 {
					alone = got
				}
			}
		}
	}
	// Products that wait for each other, one of which depends on another.
	in := 256
	x := s.load(t, random(4, 3*in, 1), in)
	m1, _ := Matrix(t, 5, gguf.Q8_0, in, in)
	m2, _ := Matrix(t, 6, gguf.F16, in, in)
	a, b, c, b2, c2 := s.empty(3, in), s.empty(3, in), s.empty(3, in), s.empty(3, in), s.empty(3, in)
	w1, w2 := s.weight(t, m1), s.weight(t, m2)
	e.MatMul(a, w1, x)
	e.MatMul(b, w2, x)
	e.MatMul(c, w1, a)
	e.MatMul(a, w2, x) // overwrites what c reads
	gotB, gotC := s.read(t, b), s.read(t, c)
	e.MatMul(b2, w2, x)
	s.read(t, b2)
	e.MatMul(a, w1, x)
	s.read(t, a)
	e.MatMul(c2, w1, a)
	equal(t, "independent products", gotB, s.read(t, b2))
	equal(t, "a product of a product", gotC, s.read(t, c2))
}

func (s Suite) norms(t *testing.T) {
	e := s.Backend.Encoder()
	for _, cols := range []int{3, 64, 2048} {
		const rows, eps = 21, 1e-4
		x, w := random(7, rows*cols, 2), random(8, cols, 1)
		norm := func(dim int, w []float32) []float64 {
			out := make([]float64, len(x))
			for i := 0; i < len(x); i += dim {
				sum := 0.0
				for _, v := range x[i : i+dim] {
					sum += float64(v) * float64(v)
				}
				for j := range dim {
					out[i+j] = float64(x[i+j]) / math.Sqrt(sum/float64(dim)+eps) * float64(w[j])
				}
			}
			return out
		}
		a, d := s.load(t, x, cols), s.empty(rows, cols)
		e.RMSNorm(d, a, s.vector(t, w), eps)
		want := norm(cols, w)
		near(t, "RMSNorm", s.read(t, d), want, func(i int) float64 { return 1e-6 * (math.Abs(want[i]) + 1e-6) })
		e.RMSNorm(a, a, s.vector(t, w), eps)
		equal(t, "RMSNorm in place", s.read(t, a), s.read(t, d))
		if cols%32 == 0 {
			h := s.load(t, x, cols)
			e.HeadNorm(h, s.vector(t, w[:32]), 32, eps)
			want := norm(32, w[:32])
			near(t, "HeadNorm", s.read(t, h), want, func(i int) float64 { return 1e-6 * (math.Abs(want[i]) + 1e-6) })
		}
	}
}

func (s Suite) rope(t *testing.T) {
	const rows, heads, dim, n = 5, 3, 24, 16
	x := random(9, rows*heads*dim, 1)
	cos, sin := make([]float32, rows*n/2), make([]float32, rows*n/2)
	for i := range cos {
		b, a := math.Sincos(float64(i) * 0.37)
		cos[i], sin[i] = float32(a), float32(b)
	}
	a := s.load(t, x, heads*dim)
	s.Backend.Encoder().RoPE(a, dim, 0, n, compute.Neox, cos, sin)
	want := make([]float64, len(x))
	for i := range x {
		r, j := i/(heads*dim), i%dim
		switch {
		case j < n/2:
			want[i] = float64(x[i])*float64(cos[r*n/2+j]) - float64(x[i+n/2])*float64(sin[r*n/2+j])
		case j < n:
			j -= n / 2
			want[i] = float64(x[i-n/2])*float64(sin[r*n/2+j]) + float64(x[i])*float64(cos[r*n/2+j])
		default:
			want[i] = float64(x[i])
		}
	}
	near(t, "RoPE", s.read(t, a), want, relative(want, 1e-6))
}

func (s Suite) elementwise(t *testing.T) {
	e := s.Backend.Encoder()
	for _, rows := range []int{1, 40} {
		const cols = 600
		g, u := random(10, rows*cols, 4), random(11, rows*cols, 2)
		silu, sum := make([]float64, len(g)), make([]float64, len(g))
		for i := range g {
			silu[i] = float64(g[i]) / (1 + math.Exp(-float64(g[i]))) * float64(u[i])
			sum[i] = float64(float32(float64(g[i]) + float64(u[i])))
		}
		gate, up, d := s.load(t, g, cols), s.load(t, u, cols), s.empty(rows, cols)
		e.Activate(d, gate, up, compute.SiLU)
		near(t, "SwiGLU", s.read(t, d), silu, relative(silu, 1e-6))
		e.Activate(gate, gate, up, compute.SiLU)
		equal(t, "SwiGLU in place", s.read(t, gate), s.read(t, d))
		x := s.load(t, g, cols)
		e.Add(x, up)
		near(t, "Add", s.read(t, x), sum, func(int) float64 { return 0 })
		if rows > 3 {
			part := s.empty(2, cols)
			e.CopyRows(part, up, rows-2)
			equal(t, "CopyRows", s.read(t, part), u[(rows-2)*cols:])
		}
	}
	// A tensor that was an input of a product and is written again is quantised again.
	m, _ := Matrix(t, 12, gguf.Q4_K, 256, 30)
	w := s.weight(t, m)
	x, y := s.load(t, random(13, 256, 1), 256), s.load(t, random(14, 256, 1), 256)
	d1, d2 := s.empty(1, 30), s.empty(1, 30)
	e.MatMul(d1, w, x)
	s.read(t, d1)
	e.Add(x, y)
	e.MatMul(d1, w, x)
	fresh := s.load(t, s.read(t, x), 256)
	e.MatMul(d2, w, fresh)
	equal(t, "product after a write", s.read(t, d1), s.read(t, d2))
}
