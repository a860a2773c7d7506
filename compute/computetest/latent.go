package computetest

import (
	"fmt"
	"math"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// parts copies part p of head h of the rows of x, which have cols elements.
func parts(x []float32, cols int, p compute.Part, h int) (out []float32) {
	for r := 0; r < len(x); r += cols {
		at := r + h*p.Dim + p.First
		out = append(out, x[at:at+p.N]...)
	}
	return out
}

// latent tests the operations on parts of heads: each head gives the bits that it gives alone, by the operations on whole
// rows, and what lies beside a part stays.
func (s Suite) latent(t *testing.T) {
	e := s.Backend.Encoder()
	const heads, most = 3, 5
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_K} {
		const in, out = 256, 40
		from, to := compute.Part{Dim: in + 24, First: 16, N: in}, compute.Part{Dim: out + 9, First: 5, N: out}
		rows := compute.HeadRows{Stride: out + 8, First: 3}
		m, values := Matrix(t, 60, typ, in, heads*rows.Stride)
		w := s.weight(t, m)
		rb := typ.RowBytes(in)
		x, before := random(61, most*heads*from.Dim, 1), random(62, most*heads*to.Dim, 1)
		for _, n := range []int{1, 2, most} {
			d := s.load(t, before[:n*heads*to.Dim], heads*to.Dim)
			e.HeadMatMul(d, to, w, rows, s.load(t, x[:n*heads*from.Dim], heads*from.Dim), from)
			got := s.read(t, d)
			want := append([]float32(nil), before[:n*heads*to.Dim]...)
			for h := range heads {
				own := m
				first := h*rows.Stride + rows.First
				own.Out, own.Data = out, m.Data[first*rb:(first+out)*rb]
				one := s.empty(n, out)
				e.MatMul(one, s.weight(t, own), s.load(t, parts(x[:n*heads*from.Dim], heads*from.Dim, from, h), in))
				for r, v := range s.read(t, one) {
					want[r/out*heads*to.Dim+h*to.Dim+to.First+r%out] = v
				}
			}
			equal(t, fmt.Sprintf("HeadMatMul, %s, %d rows", typ, n), got, want)
		}
		// Transposed: out elements of a head of the input meet as many rows, and in sums come out.
		var alone []float32
		for _, n := range []int{1, 2, most} {
			y := random(63, most*heads*to.Dim, 1)[:n*heads*to.Dim]
			start := x[:n*heads*from.Dim]
			d := s.load(t, start, heads*from.Dim)
			e.HeadMatMulT(d, from, w, rows, s.load(t, y, heads*to.Dim), to)
			got := s.read(t, d)
			want, bound := make([]float64, len(start)), make([]float64, len(start))
			for i, v := range start {
				want[i] = float64(v)
			}
			for r := range n {
				for h := range heads {
					for j := range in {
						at := (r*heads+h)*from.Dim + from.First + j
						want[at] = 0
						for i := range out {
							p := float64(values[(h*rows.Stride+rows.First+i)*in+j]) * float64(y[(r*heads+h)*to.Dim+to.First+i])
							want[at], bound[at] = want[at]+p, bound[at]+1e-6*math.Abs(p)
						}
					}
				}
			}
			near(t, fmt.Sprintf("HeadMatMulT, %s, %d rows", typ, n), got, want, func(i int) float64 { return bound[i] })
			if n == 1 {
				alone = got
			}
			equal(t, fmt.Sprintf("HeadMatMulT, %s, %d rows: first row alone", typ, n), got[:len(alone)], alone)
		}
	}
	for _, n := range []int{1, 70} {
		from, to := compute.Part{Dim: 96, First: 20, N: 64}, compute.Part{Dim: 80, First: 16, N: 64}
		x, before, w := random(64, n*heads*from.Dim, 2), random(65, n*heads*to.Dim, 1), random(66, from.N, 1)
		a, d := s.load(t, x, heads*from.Dim), s.load(t, before, heads*to.Dim)
		e.CopyPart(d, to, a, from)
		e.PartNorm(a, from, s.vector(t, w), 1e-4)
		copied, normed := append([]float32(nil), before...), append([]float32(nil), x...)
		for h := range heads {
			p := parts(x, heads*from.Dim, from, h)
			b := s.load(t, p, from.N)
			e.RMSNorm(b, b, s.vector(t, w), 1e-4)
			for i, v := range s.read(t, b) {
				r, j := i/from.N, i%from.N
				copied[(r*heads+h)*to.Dim+to.First+j] = p[i]
				normed[(r*heads+h)*from.Dim+from.First+j] = v
			}
		}
		equal(t, "CopyPart", s.read(t, d), copied)
		equal(t, "PartNorm", s.read(t, a), normed)
	}
}
