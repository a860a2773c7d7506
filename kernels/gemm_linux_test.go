package kernels

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time of the calling thread: what other programs on the machine do does not count.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkGemm multiplies a matrix with batches as one worker does: rows in items of 64, all columns. GFLOP/s counts two
// for each multiply-add and the thread's processor time.
func BenchmarkGemm(b *testing.B) {
	const n, rows, item = 2048, 768, 64
	rng := rand.New(rand.NewPCG(2, 2))
	for _, typ := range weightTypes() {
		w := randomRows(rng, typ, rows, n, 0.02)
		kind, _ := KindOf(typ)
		for _, cols := range []int{1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512} {
			for _, mode := range []ActKind{kind, ActF32} {
				name := "fast"
				if mode == ActF32 {
					name = "exact"
				}
				var a Act
				var s Scratch
				dst := make([]float32, rows*cols)
				for l := LevelAVX2; l <= best(); l++ {
					b.Run(fmt.Sprintf("%s/%s/%d/%s", typ, name, cols, l), func(b *testing.B) {
						defer SetLevel(l)()
						if a.Rows != cols {
							a.Reset(mode, cols, n)
							for c := range cols {
								a.Set(c, randomFloats(rng, n, 1))
							}
						}
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
						for r := 0; r < rows; r += item { // memory and caches
							MatMul(dst, rows, typ, w, &a, r, r+item, 0, cols, &s)
						}
						begin, r := threadTime(b), 0
						for b.Loop() {
							MatMul(dst, rows, typ, w, &a, r, r+item, 0, cols, &s)
							r = (r + item) % rows
						}
						b.ReportMetric(2*float64(n*item*cols*b.N)/(threadTime(b)-begin).Seconds()/1e9, "GFLOP/s")
					})
				}
				if kind == ActF32 {
					break
				}
			}
		}
	}
}
