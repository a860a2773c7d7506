package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"terrace/compute"
)

// newGroup makes one attention of several heads over the same keys and values.
func newGroup(rng *rand.Rand, mag float64, kt, vt compute.KVType, kd, vd, first, n, heads int) attnCase {
	c := newAttn(rng, mag, kt, vt, kd, vd, first, n)
	c.q = randomFloats(rng, heads*kd, mag)
	return c
}

// TestAttendHeads: every head of a group gets the bits that it gets alone in portable Go, on every level.
func TestAttendHeads(t *testing.T) {
	rng := rand.New(rand.NewPCG(16, 17))
	var s Scratch
	for l := LevelGeneric; l <= best(); l++ {
		for _, shape := range attnShapes {
			for _, n := range []int{1, 2, 3, 4, 5, 7, 64, 65, 130, 200} {
				for _, heads := range []int{1, 3, 4, 7, 8} {
					if (raceOn || l == LevelGeneric) && (n%5 != 0 || heads > 4) || raceOn && n > 70 {
						continue
					}
					first := []int{0, 1, 30, 63, 100}[rng.IntN(5)]
					kt, vt := anyKV(rng, shape.kd), anyKV(rng, shape.vd)
					c := newGroup(rng, []float64{0.1, 1, 4, 30}[rng.IntN(4)], kt, vt, shape.kd, shape.vd, first, n, heads)
					if rng.IntN(8) == 0 {
						c.q[rng.IntN(len(c.q))] = float32(math.NaN())
					}
					out := make([]float32, heads*c.vd)
					restore := SetLevel(l)
					AttendHeads(out, c.q, heads, kt, vt, c.k, c.v, c.kstride, c.vstride, first, n, c.scale, &s)
					restore()
					restore = SetLevel(LevelGeneric)
					for h := range heads {
						one := c
						one.q = c.q[h*c.kd : (h+1)*c.kd]
						compareBits(t, fmt.Sprintf("%s, head %d of %d, %d x %d, %d keys from %d", l, h, heads, c.kd, c.vd, n, first), out[h*c.vd:(h+1)*c.vd], one.run(&s))
					}
					restore()
				}
			}
		}
	}
}

func TestAttendHeadsAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	c := newGroup(rand.New(rand.NewPCG(1, 1)), 1, compute.KVF16, compute.KVF16, 64, 64, 0, 100, 5)
	out := make([]float32, 5*c.vd)
	var s Scratch
	if n := testing.AllocsPerRun(20, func() {
		AttendHeads(out, c.q, 5, c.kt, c.vt, c.k, c.v, c.kstride, c.vstride, 0, c.n, c.scale, &s)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestRopeLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(18, 19))
		for h := 0; h < 70; h++ {
			x, cos, sin := randomFloats(rng, 2*h+3, 2), randomFloats(rng, h, 1), randomFloats(rng, h, 1)
			want := append([]float32(nil), x...)
			restore := SetLevel(LevelGeneric)
			RopeNeox(want, cos, sin)
			restore()
			RopeNeox(x, cos, sin)
			compareBits(t, fmt.Sprintf("%d pairs", h), x, want)
		}
	})
}

// fastest is the shortest time of one run of f: what the kernel takes when nobody disturbs it.
func fastest(b *testing.B, f func()) time.Duration {
	least := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		f()
		least = min(least, time.Since(start))
	}
	return least
}

func BenchmarkAttendHeads(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	const heads = 8
	for l := LevelAVX2; l <= best(); l++ {
		for kt := range compute.KVType(compute.KVTypes) {
			for _, n := range []int{256, 8192} { // in the cache, and not
				c := newGroup(rng, 1, kt, kt, 128, 128, 0, n, heads)
				c.kstride, c.vstride = kt.RowBytes(128), kt.RowBytes(128)
				out := make([]float32, heads*c.vd)
				var s Scratch
				flops := float64(heads * c.n * 2 * (c.kd + c.vd))
				for _, at := range []int{heads, 4, 1} {
					b.Run(fmt.Sprintf("%s/%s/%d/%d at once", l, kt, n, at), func(b *testing.B) {
						defer SetLevel(l)()
						d := fastest(b, func() {
							for h := 0; h < heads; h += at {
								AttendHeads(out[h*c.vd:(h+at)*c.vd], c.q[h*c.kd:(h+at)*c.kd], at, c.kt, c.vt, c.k, c.v, c.kstride, c.vstride, 0, c.n, c.scale, &s)
							}
						})
						b.ReportMetric(flops/d.Seconds()/1e9, "GFLOP/s")
					})
				}
			}
		}
	}
}
