package kernels

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// BenchmarkCrossover multiplies a matrix far larger than the caches with few columns, by panels and without them: where
// panels win is gemmKernel.min.
func BenchmarkCrossover(b *testing.B) {
	const n, item = 2048, 64
	rng := rand.New(rand.NewPCG(2, 2))
	for _, typ := range weightTypes() {
		kind, _ := KindOf(typ)
		if kind == ActF32 {
			continue
		}
		const rows = 32 << 10
		unit := randomRows(rng, typ, 64, n, 0.02)
		w := make([]byte, 0, rows*typ.RowBytes(n))
		for len(w) < cap(w) {
			w = append(w, unit...)
		}
		for _, cols := range []int{1, 2, 3, 4, 5, 6, 8, 16} {
			var a Act
			var s Scratch
			dst := make([]float32, rows*cols)
			a.Reset(kind, cols, n)
			for c := range cols {
				a.Set(c, randomFloats(rng, n, 1))
			}
			for l := LevelAVX2; l <= best(); l++ {
				for _, panels := range []bool{false, true} {
					if panels && cols == 1 {
						continue
					}
					b.Run(fmt.Sprintf("%s/%d/%s/panels=%t", typ, cols, l, panels), func(b *testing.B) {
						defer SetLevel(l)()
						k := current().gemm[typ]
						defer func(min int) { k.min = min }(k.min)
						k.min = 2
						if !panels {
							k.min = 1 << 20
						}
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
						MatMul(dst, rows, typ, w, &a, 0, item, 0, cols, &s)
						begin, r := threadTime(b), 0
						for b.Loop() {
							MatMul(dst, rows, typ, w, &a, r, r+item, 0, cols, &s)
							r = (r + item) % rows
						}
						b.ReportMetric(2*float64(n*item*cols*b.N)/(threadTime(b)-begin).Seconds()/1e9, "GFLOP/s")
					})
				}
			}
		}
	}
}
