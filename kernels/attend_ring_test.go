package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"terrace/compute"
)

// TestAttentionRings: keys in a ring give the bits of keys in a row, with sinks and without, on every level; and a sink takes
// its share of the weights.
func TestAttentionRings(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 21))
	var s Scratch
	for _, shape := range []struct{ kd, vd, heads int }{{64, 64, 8}, {24, 16, 3}, {128, 32, 5}, {32, 64, 4}} {
		for _, kt := range []compute.KVType{compute.KVF32, compute.KVF16, compute.KVQ8_0} {
			if shape.kd%kt.Block() != 0 || shape.vd%kt.Block() != 0 {
				continue
			}
			for _, at := range []struct{ first, n, ring int }{{0, 1, 64}, {37, 90, 128}, {130, 128, 128}, {1000, 70, 192}, {63, 65, 128}} {
				c := newGroup(rng, 1, kt, kt, shape.kd, shape.vd, at.first, at.n, shape.heads)
				sinks := randomFloats(rng, shape.heads, 2)
				ring := func(b []byte, stride, row int) []byte {
					out := make([]byte, at.ring*row)
					for i := range at.n {
						copy(out[(at.first+i)%at.ring*row:][:row], b[i*stride:])
					}
					return out
				}
				kr, vr := kt.RowBytes(c.kd), kt.RowBytes(c.vd)
				run := func(l Level, ringed bool, sinks []float32) []float32 {
					defer SetLevel(l)()
					out := make([]float32, shape.heads*c.vd)
					a := Attention{Out: out, Q: c.q, Heads: shape.heads, K: KVRun{kt, c.k, c.kstride}, V: KVRun{kt, c.v, c.vstride}, First: at.first, N: at.n, Scale: c.scale, Sinks: sinks}
					if ringed {
						a.K, a.V, a.Ring = KVRun{kt, ring(c.k, c.kstride, kr), kr}, KVRun{kt, ring(c.v, c.vstride, vr), vr}, at.ring
					}
					a.Run(&s)
					return out
				}
				want, plain := run(LevelGeneric, false, sinks), run(LevelGeneric, false, nil)
				for l := LevelGeneric; l <= best(); l++ {
					what := fmt.Sprintf("%s, %+v, %s, %+v", l, shape, kt, at)
					compareBits(t, what+" in a row", run(l, false, sinks), want)
					compareBits(t, what+" in a ring", run(l, true, sinks), want)
					compareBits(t, what+" in a ring without sinks", run(l, true, nil), plain)
				}
				for i, v := range want {
					if p := plain[i]; v*p < 0 || v*v > p*p {
						t.Fatalf("%+v: element %d is %v with a sink and %v without", at, i, v, p)
					}
				}
			}
		}
	}
}

// TestActivateLevels: every level gives the bits of portable Go.
func TestActivateLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(22, 23))
		var s Scratch
		for _, n := range []int{0, 1, 7, 64, 65, 200} {
			a, b := randomFloats(rng, n, 5), randomFloats(rng, n, 5)
			for act := compute.SiLU; act <= compute.Sigmoid; act++ {
				y := b
				if act == compute.ReLU2 {
					y = nil
				}
				want, got := make([]float32, n), make([]float32, n)
				restore := SetLevel(LevelGeneric)
				Activate(act, want, a, y, &s)
				restore()
				Activate(act, got, a, y, &s)
				compareBits(t, fmt.Sprintf("activation %d of %d", act, n), got, want)
				x := append([]float32(nil), a...)
				Activate(act, x, x, y, &s)
				compareBits(t, fmt.Sprintf("activation %d of %d in place", act, n), x, want)
			}
		}
	})
}
