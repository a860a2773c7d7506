package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"terrace/gguf"
	"terrace/quant"
)

func TestMatMulT(t *testing.T) {
	rng := rand.New(rand.NewPCG(70, 71))
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_K, gguf.Q6_K} {
		for _, shape := range [][2]int{{1, 256}, {16, 256}, {37, 512}, {50, 40}} {
			n, in := shape[0], shape[1]
			if in%typ.BlockSize() != 0 {
				continue
			}
			const cols, pad = 3, 5
			w := randomRows(rng, typ, n, in, 0.25)
			f := make([]float32, n*in)
			if err := quant.Decode(typ, f, w); err != nil {
				t.Fatal(err)
			}
			x := randomFloats(rng, cols*(n+pad), 1)
			var s Scratch
			what := fmt.Sprintf("%s, %d rows of %d", typ, n, in)
			run := func() []float32 {
				dst := randomFloats(rng, cols*(in+pad), 1)
				MatMulT(dst, in+pad, typ, w, in, x, n+pad, n, cols, &s)
				return dst
			}
			restore := SetLevel(LevelGeneric)
			want := run()
			restore()
			for c := range cols {
				for j := range in {
					sum, size := 0.0, 0.0
					for i := range n {
						p := float64(f[i*in+j]) * float64(x[c*(n+pad)+i])
						sum, size = sum+p, size+math.Abs(p)
					}
					if got := want[c*(in+pad)+j]; !(math.Abs(float64(got)-sum) <= 1e-6*size) {
						t.Fatalf("%s: column %d, element %d is %g, want %g", what, c, j, got, sum)
					}
				}
			}
			// A column's bits do not depend on the other columns.
			one := make([]float32, in)
			MatMulT(one, in, typ, w, in, x[n+pad:], 0, n, 1, &s)
			compareBits(t, what+": one column", one, want[in+pad:in+pad+in])
			for l := LevelGeneric + 1; l <= best(); l++ {
				restore := SetLevel(l)
				got := run()
				restore()
				for c := range cols {
					compareBits(t, what+", "+l.String(), got[c*(in+pad):][:in], want[c*(in+pad):][:in])
				}
			}
		}
	}
}
