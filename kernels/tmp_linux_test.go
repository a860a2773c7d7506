package kernels

import (
	"fmt"
	"math/rand/v2"
"runtime"
	"testing"
)

func BenchmarkParts(b *testing.B) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, typ := range weightTypes() {
		kind, _ := KindOf(typ)
		if kind == ActF32 {
			continue
		}
		n := 1024
		w := randomRows(rng, typ, 32, n, 0.02)
		var a Act
		a.Reset(kind, 8, n)
		for c := range 8 {
			a.Set(c, randomFloats(rng, n, 1))
		}
		for l := LevelAVX2; l <= best(); l++ {
			k := levels()[l].gemm[typ]
			var g gemmScratch
			g.panel = grow(g.panel, 1024/k.block*k.record)
			g.acc = grow(g.acc, 8*8*16)
			m := &product{t: typ, w: w, rb: typ.RowBytes(n), a: &a}
			b.Run(fmt.Sprintf("%s/%s/unpack", typ, l), func(b *testing.B) {
runtime.LockOSThread(); defer runtime.UnlockOSThread(); begin := threadTime(b)
				for b.Loop() {
					k.layOut(m, &g, 0, 0, 1024/k.block)
				}
				b.ReportMetric((threadTime(b)-begin).Seconds()*1e9/float64(b.N)/4, "ns/256")
			})
			for _, cols := range []int{2, 4, 8} {
				if k.tiles[cols] == nil {
					continue
				}
				b.Run(fmt.Sprintf("%s/%s/tile%d", typ, l, cols), func(b *testing.B) {
runtime.LockOSThread(); defer runtime.UnlockOSThread(); begin := threadTime(b)
					for b.Loop() {
						k.tiles[cols](&g.acc[0], &g.acc[0], &g.panel[0], &a.Q[0], &a.D[0], &a.Sums[0], n, k.bias, 1024/k.block)
					}
					t := (threadTime(b) - begin).Seconds() / float64(b.N)
					b.ReportMetric(t*1e9/4, "ns/256")
					b.ReportMetric(2*16*float64(cols)*1024/t/1e9, "GFLOP/s")
				})
			}
		}
	}
}
