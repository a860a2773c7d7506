package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// benchBytes is the size of a weight matrix far larger than the caches.
const benchBytes = 256 << 20

// BenchmarkMatVec streams a large matrix through one column: bytes of weights per second. "read" is the same memory
// through F32, whose rows are all load and no work.
func BenchmarkMatVec(b *testing.B) {
	const n = 2048
	rng := rand.New(rand.NewPCG(1, 1))
	block := make([]byte, benchBytes)
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K} {
		rb := typ.RowBytes(n)
		rows := benchBytes / rb
		unit := randomRows(rng, typ, 64, n, 0.02)
		for at := 0; at < rows*rb; {
			at += copy(block[at:rows*rb], unit)
		}
		kind, _ := KindOf(typ)
		var a Act
		a.Reset(kind, 1, n)
		a.Set(0, randomFloats(rng, n, 1))
		dst := make([]float32, rows)
		var s Scratch
		for l := LevelGeneric; l <= best(); l++ {
			b.Run(fmt.Sprintf("%s/%s", typ, l), func(b *testing.B) {
				defer SetLevel(l)()
				r := rows
				if l == LevelGeneric {
					r /= 32
				}
				b.SetBytes(int64(r * rb))
				for b.Loop() {
					MatMul(dst, rows, typ, block[:rows*rb], &a, 0, r, 0, 1, &s)
				}
			})
		}
	}
}

// BenchmarkMatMul multiplies the matrices of a layer with batches: GFLOP/s, two for each multiply-add.
func BenchmarkMatMul(b *testing.B) {
	const n, rows = 2048, 768
	rng := rand.New(rand.NewPCG(2, 2))
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_K, gguf.Q6_K} {
		w := randomRows(rng, typ, rows, n, 0.02)
		kind, _ := KindOf(typ)
		for _, cols := range []int{1, 4, 8, 32, 128} {
			var a Act
			a.Reset(kind, cols, n)
			for c := range cols {
				a.Set(c, randomFloats(rng, n, 1))
			}
			dst := make([]float32, rows*cols)
			var s Scratch
			for l := LevelAVX2; l <= best(); l++ {
				b.Run(fmt.Sprintf("%s/%d/%s", typ, cols, l), func(b *testing.B) {
					defer SetLevel(l)()
					for b.Loop() {
						MatMul(dst, rows, typ, w, &a, 0, rows, 0, cols, &s)
					}
					b.ReportMetric(2*float64(n*rows*cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}

func BenchmarkSet(b *testing.B) {
	x := randomFloats(rand.New(rand.NewPCG(3, 3)), 2048, 1)
	for _, kind := range []ActKind{Act32, Act256} {
		b.Run(kind.String(), func(b *testing.B) {
			var a Act
			a.Reset(kind, 1, len(x))
			for b.Loop() {
				a.Set(0, x)
			}
		})
	}
}

func BenchmarkElementwise(b *testing.B) {
	x := randomFloats(rand.New(rand.NewPCG(4, 4)), 2048, 1)
	y := make([]float32, len(x))
	for l := LevelGeneric; l <= best(); l++ {
		for name, f := range map[string]func(){
			"RMSNorm": func() { RMSNorm(y, x, x, 1e-6) },
			"SiluMul": func() { SiluMul(y, x, x) },
		} {
			b.Run(name+"/"+l.String(), func(b *testing.B) {
				defer SetLevel(l)()
				b.ReportMetric(float64(fastest(b, f).Nanoseconds()), "ns")
			})
		}
	}
}

func BenchmarkAttend(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	for kt := range compute.KVType(compute.KVTypes) {
		c := newAttn(rng, 1, kt, kt, 128, 128, 0, 4096)
		out := make([]float32, c.vd)
		var s Scratch
		b.Run(kt.String(), func(b *testing.B) {
			b.SetBytes(int64(c.n * kt.RowBytes(c.kd+c.vd)))
			for b.Loop() {
				Attend(out, c.q, kt, kt, c.k, c.v, c.kstride, c.vstride, 0, c.n, c.scale, &s)
			}
		})
	}
}
