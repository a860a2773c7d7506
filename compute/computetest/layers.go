package computetest

import (
	"fmt"
	"math"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// acts are the activations in float64.
var acts = map[compute.Act]func(a, b float64) float64{
	compute.SiLU: func(a, b float64) float64 { return a / (1 + math.Exp(-a)) * b },
	compute.GELU: func(a, b float64) float64 {
		return 0.5 * a * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a))) * b
	},
	compute.ReLU2:   func(a, _ float64) float64 { return max(a, 0) * max(a, 0) },
	compute.Sigmoid: func(a, b float64) float64 { return b / (1 + math.Exp(-a)) },
	compute.SwiGLUOAI: func(a, b float64) float64 {
		a, b = min(a, 7), max(-7, min(b, 7))
		return a / (1 + math.Exp(-1.702*a)) * (b + 1)
	},
}

// layers tests the element-wise operations of a layer's dense part.
func (s Suite) layers(t *testing.T) {
	e := s.Backend.Encoder()
	for _, rows := range []int{1, 40} {
		const cols = 620
		a, b := random(70, rows*cols, 4), random(71, rows*cols, 4)
		each := func(f func(a, b float64, i int) float64) []float64 {
			out := make([]float64, len(a))
			for i := range out {
				out[i] = f(float64(a[i]), float64(b[i]), i)
			}
			return out
		}
		check := func(what string, x compute.Tensor, rel float64, f func(a, b float64, i int) float64) {
			t.Helper()
			want := each(f)
			near(t, what, s.read(t, x), want, relative(want, rel))
		}
		y := s.load(t, b, cols)
		for act, f := range acts {
			x, d, other := s.load(t, a, cols), s.empty(rows, cols), y
			if act == compute.ReLU2 {
				other = nil
			}
			e.Activate(d, x, other, act)
			what := fmt.Sprint("Activate ", act)
			check(what, d, 2e-6, func(a, b float64, _ int) float64 { return f(a, b) })
			e.Activate(x, x, other, act)
			equal(t, what+" in place", s.read(t, x), s.read(t, d))
		}
		x := s.load(t, a, cols)
		e.Mul(x, y)
		check("Mul", x, 1e-7, func(a, b float64, _ int) float64 { return a * b })
		x = s.load(t, a, cols)
		e.Scale(x, 0.3)
		check("Scale", x, 1e-7, func(a, _ float64, _ int) float64 { return a * float64(float32(0.3)) })
		x = s.load(t, a, cols)
		e.Softcap(x, 3)
		check("Softcap", x, 1e-5, func(a, _ float64, _ int) float64 { return 3 * math.Tanh(a/3) })
		bias := random(72, cols, 1)
		x = s.load(t, a, cols)
		e.AddBias(x, s.vector(t, bias))
		check("AddBias", x, 1e-7, func(a, _ float64, i int) float64 { return a + float64(bias[i%cols]) })
		gates := random(73, rows, 2)
		x = s.load(t, a, cols)
		e.GateRows(x, s.load(t, gates, 1))
		check("GateRows", x, 1e-6, func(a, _ float64, i int) float64 { return a / (1 + math.Exp(-float64(gates[i/cols]))) })
		e.Clear(x)
		check("Clear", x, 0, func(_, _ float64, _ int) float64 { return 0 })
		// Heads of 31 queries and 31 gates.
		q, g := s.empty(rows, cols/2), s.empty(rows, cols/2)
		e.SplitHeads(q, g, s.load(t, a, cols), 31)
		var wantQ, wantG []float32
		for i := 0; i < len(a); i += 62 {
			wantQ, wantG = append(wantQ, a[i:i+31]...), append(wantG, a[i+31:i+62]...)
		}
		equal(t, "SplitHeads, queries", s.read(t, q), wantQ)
		equal(t, "SplitHeads, gates", s.read(t, g), wantG)
		// A norm without weights is one with ones.
		ones := make([]float32, cols)
		for i := range ones {
			ones[i] = 1
		}
		n1, n2 := s.empty(rows, cols), s.empty(rows, cols)
		e.RMSNorm(n1, y, nil, 1e-5)
		e.RMSNorm(n2, y, s.vector(t, ones), 1e-5)
		equal(t, "RMSNorm without weights", s.read(t, n1), s.read(t, n2))
		h1, h2 := s.load(t, b, cols), s.load(t, b, cols)
		e.HeadNorm(h1, nil, 31, 1e-5)
		e.HeadNorm(h2, s.vector(t, ones[:31]), 31, 1e-5)
		equal(t, "HeadNorm without weights", s.read(t, h1), s.read(t, h2))
		// Neighbours turned together, in a part of each head of 31.
		const n, first = 16, 5
		cos, sin := make([]float32, rows*n/2), make([]float32, rows*n/2)
		for i := range cos {
			v, u := math.Sincos(float64(i) * 0.37)
			cos[i], sin[i] = float32(u), float32(v)
		}
		x = s.load(t, a, cols)
		e.RoPE(x, 31, first, n, compute.Norm, cos, sin)
		check("RoPE of neighbours", x, 1e-6, func(v, _ float64, i int) float64 {
			j := i%cols%31 - first
			if j < 0 || j >= n {
				return v
			}
			at := i/cols*n/2 + j/2
			if j%2 == 0 {
				return v*float64(cos[at]) - float64(a[i+1])*float64(sin[at])
			}
			return float64(a[i-1])*float64(sin[at]) + v*float64(cos[at])
		})
	}
}

// windows tests attention in layers of their own kinds side by side: a window in a ring, sinks, values that are the beginning
// of the keys, rows that are there already.
func (s Suite) windows(t *testing.T) {
	e := s.Backend.Encoder()
	const n, group, slack = 170, 4, 20
	kinds := []compute.KVLayer{
		{Heads: 2, KeyDim: 24, ValDim: 16, Window: 30}, {Heads: 1, KeyDim: 64, ValDim: 32, Latent: true}, {Heads: 3, KeyDim: 32, ValDim: 32},
		{Heads: 1, KeyDim: 32, ValDim: 16, Window: 70, Latent: true},
	}
	for _, kt := range []compute.KVType{compute.KVF32, compute.KVF16, compute.KVQ8_0} {
		layers := kinds
		if kt == compute.KVQ8_0 { // whole blocks
			layers = kinds[1:3]
		}
		for l, k := range layers {
			heads := k.Heads * group
			q, key, val := random(80, n*heads*k.KeyDim, 1), random(81, n*k.Heads*k.KeyDim, 1), random(82, n*k.Heads*k.ValDim, 1)
			sink := random(83, heads, 1)
			ks := stored(t, kt, key)
			value := func(p, h, j int) float64 {
				if k.Latent {
					return float64(ks[(p*k.Heads+h)*k.KeyDim+j])
				}
				return float64(val[(p*k.Heads+h)*k.ValDim+j])
			}
			const scale = 0.3
			want := make([]float64, n*heads*k.ValDim)
			for p := range n {
				from := 0
				if k.Window > 0 {
					from = max(0, p-k.Window+1)
				}
				for h := range heads {
					sum, weights := math.Exp(float64(sink[h])), make([]float64, p+1)
					for i := from; i <= p; i++ {
						for j := range k.KeyDim {
							weights[i] += scale * float64(q[(p*heads+h)*k.KeyDim+j]) * float64(ks[(i*k.Heads+h/group)*k.KeyDim+j])
						}
						weights[i] = math.Exp(weights[i])
						sum += weights[i]
					}
					for i := from; i <= p; i++ {
						for j := range k.ValDim {
							want[(p*heads+h)*k.ValDim+j] += weights[i] / sum * value(i, h/group, j)
						}
					}
				}
			}
			var first []float32
			for _, c := range []struct{ slack, cut int }{{n, n}, {slack, slack}, {slack, 1}, {slack, 7}} {
				shape := compute.KVShape{Layers: layers, Context: n, Slack: c.slack, K: kt, V: compute.KVF32}
				if ring := k.Window > 0 && c.slack == slack; ring != (shape.Cells(l) < n) {
					t.Fatalf("%d cells for a window of %d and %d at once", shape.Cells(l), k.Window, c.slack)
				}
				kv, err := s.Backend.NewKV(shape)
				if err != nil {
					t.Fatal(err)
				}
				var got []float32
				for _, p := range starts(0, n, c.cut) {
					pos := make([]int32, p[1]-p[0])
					for i := range pos {
						pos[i] = int32(p[0] + i)
					}
					rows := func(x []float32, cols int) compute.Tensor { return s.load(t, x[p[0]*cols:p[1]*cols], cols) }
					d, tq, tk := s.empty(len(pos), heads*k.ValDim), rows(q, heads*k.KeyDim), rows(key, k.Heads*k.KeyDim)
					var tv compute.Tensor
					if !k.Latent {
						tv = rows(val, k.Heads*k.ValDim)
					}
					spec := compute.AttnSpec{Layer: l, Pos: pos, Scale: scale, Sinks: s.vector(t, sink)}
					e.Attention(d, tq, tk, tv, kv, spec)
					out := s.read(t, d)
					again := s.empty(len(pos), heads*k.ValDim)
					e.Attention(again, tq, nil, nil, kv, spec)
					equal(t, "attention over rows that are there", s.read(t, again), out)
					got = append(got, out...)
				}
				what := fmt.Sprintf("%+v of %s, %d rows at once, batches of %d", k, kt, c.slack, c.cut)
				near(t, what, got, want, relative(want, 3e-5))
				if first == nil {
					first = got
				}
				equal(t, what, got, first)
				kv.Free()
			}
		}
	}
}

// expertKinds tests experts with biases, other activations and without a gate: they give the bits of the dense operations.
func (s Suite) expertKinds(t *testing.T) {
	e := s.Backend.Encoder()
	const embd, ff, rows = 256, 288, 5
	for act := range acts {
		if act == compute.Sigmoid {
			continue
		}
		for _, typ := range []gguf.Type{gguf.F16, gguf.Q8_0, gguf.MXFP4} {
			for _, biased := range []bool{false, true} {
				x := experts(t, 1, embd, ff, typ, typ, typ)[0]
				x.Act = act
				if biased {
					x.GateBias, x.UpBias, x.DownBias = random(90, ff, 1), random(91, ff, 1), random(92, embd, 1)
				}
				in := s.load(t, random(93, rows*embd, 3), embd)
				g, u, d := s.empty(rows, ff), s.empty(rows, ff), s.empty(rows, embd)
				product := func(dst compute.Tensor, m compute.Matrix, x compute.Tensor, b []float32) {
					e.MatMul(dst, s.weight(t, m), x)
					if b != nil {
						e.AddBias(dst, s.vector(t, b))
					}
				}
				product(u, x.Up, in, x.UpBias)
				if act == compute.ReLU2 {
					x.Gate, x.GateBias = compute.Matrix{}, nil
					e.Activate(g, u, nil, act)
				} else {
					product(g, x.Gate, in, x.GateBias)
					e.Activate(g, g, u, act)
				}
				product(d, x.Down, g, x.DownBias)
				want := s.read(t, d)
				for _, ids := range [][]int32{{3}, {0, 1, 2, 3, 4}} {
					parts := s.empty(len(ids), embd)
					e.ExpertFFN(parts, 0, &x, in, ids)
					var w []float32
					for _, id := range ids {
						w = append(w, want[int(id)*embd:(int(id)+1)*embd]...)
					}
					equal(t, fmt.Sprintf("an expert of %s, activation %d, biases %t, %d rows", typ, act, biased, len(ids)), s.read(t, parts), w)
				}
			}
		}
	}
}
