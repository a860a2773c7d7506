package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

func TestRMSNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 21))
	for _, n := range []int{1, 5, 64, 1001, 2048} {
		for _, mag := range []float64{1e-8, 1, 1e15} {
			x, w, dst := randomFloats(rng, n, mag), randomFloats(rng, n, 1), make([]float32, n)
			const eps = float32(1e-6)
			RMSNorm(dst, x, w, eps)
			sum := 0.0
			for _, v := range x {
				sum += float64(v) * float64(v)
			}
			scale := 1 / math.Sqrt(sum/float64(n)+float64(eps))
			for i, got := range dst {
				want := float64(x[i]) * scale * float64(w[i])
				// Three roundings: the scale and the two products.
				if e := math.Abs(float64(got) - want); e > 3.1*math.Abs(want)/(1<<24) {
					t.Fatalf("n=%d: element %d is %g, float64 %g", n, i, got, want)
				}
			}
			y := append([]float32(nil), x...)
			RMSNorm(y, y, w, eps)
			compareBits(t, "RMSNorm in place", y, dst)
		}
	}
}

func TestRopeNeox(t *testing.T) {
	rng := rand.New(rand.NewPCG(22, 23))
	const dim, half = 20, 8 // the last four elements stay
	x := randomFloats(rng, dim, 1)
	y := append([]float32(nil), x...)
	cos, sin := make([]float32, half), make([]float32, half)
	for j := range half {
		s, c := math.Sincos(rng.Float64() * 10)
		cos[j], sin[j] = float32(c), float32(s)
	}
	RopeNeox(y, cos, sin)
	for j := range half {
		want := complex(float64(x[j]), float64(x[j+half])) * complex(float64(cos[j]), float64(sin[j]))
		if math.Abs(float64(y[j])-real(want)) > 1e-6 || math.Abs(float64(y[j+half])-imag(want)) > 1e-6 {
			t.Errorf("pair %d turned to (%g, %g), want %g", j, y[j], y[j+half], want)
		}
	}
	for j := 2 * half; j < dim; j++ {
		if x[j] != y[j] {
			t.Errorf("element %d beyond the pairs changed", j)
		}
	}
}

func TestSiluMul(t *testing.T) {
	for x := -100.0; x < 100; x += 0.037 {
		g := []float32{float32(x)}
		SiluMul(g, g, []float32{3})
		v := float64(float32(x))
		want := 3 * v / (1 + math.Exp(-v))
		// The sigmoid stays at that of -87 below: smaller than 1e-35.
		if e := math.Abs(float64(g[0]) - want); e > 1e-6*math.Abs(want)+1e-35 {
			t.Fatalf("silu(%g)*3 = %g, want %g", x, g[0], want)
		}
		g[0] = float32(x)
		SigmoidMul(g, g, []float32{3})
		want = 3 / (1 + math.Exp(-v))
		if e := math.Abs(float64(g[0]) - want); e > 1e-6*want+1e-36 {
			t.Fatalf("sigmoid(%g)*3 = %g, want %g", x, g[0], want)
		}
	}
}

func TestAddScaled(t *testing.T) {
	rng := rand.New(rand.NewPCG(24, 25))
	x, y := randomFloats(rng, 100, 1), randomFloats(rng, 100, 1)
	sum, scaled := append([]float32(nil), x...), append([]float32(nil), x...)
	Add(sum, y)
	AddScaled(scaled, y, 0.3)
	for i := range x {
		if sum[i] != x[i]+y[i] {
			t.Errorf("element %d: sum %g", i, sum[i])
		}
		p := 0.3 * y[i] // rounded here: a variable is no expression
		if scaled[i] != x[i]+float32(p) {
			t.Errorf("element %d: scaled sum %g", i, scaled[i])
		}
	}
}

// TestDecodeRow compares with exact products by unit vectors.
func TestDecodeRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(26, 27))
	for _, typ := range weightTypes() {
		n := rowLengths(typ)[2]
		w := randomRows(rng, typ, 1, n, 0.25)
		got := make([]float32, n)
		DecodeRow(typ, got, w)
		var s Scratch
		var a Act
		dst := make([]float32, 1)
		for i := 0; i < n; i += 1 + rng.IntN(40) {
			x := make([]float32, n)
			x[i] = 1
			a.Reset(ActF32, 1, n)
			a.Set(0, x)
			MatMul(dst, 1, typ, w, &a, 0, 1, 0, 1, &s)
			if dst[0] != got[i] {
				t.Errorf("%s: element %d decodes to %g, by a product %g", typ, i, got[i], dst[0])
			}
		}
	}
}

// TestNoAllocations holds every function to no allocation once its buffers have grown.
func TestNoAllocations(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	rng := rand.New(rand.NewPCG(28, 29))
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		for _, typ := range weightTypes() {
			kind, _ := KindOf(typ)
			const n, rows, cols = 256, 6, 5
			w := randomRows(rng, typ, rows, n, 0.25)
			x := randomFloats(rng, n, 1)
			dst := make([]float32, rows*cols)
			var s Scratch
			var a, exact Act
			if avg := testing.AllocsPerRun(3, func() {
				a.Reset(kind, cols, n)
				exact.Reset(ActF32, cols, n)
				for c := range cols {
					a.Set(c, x)
					exact.Set(c, x)
				}
				MatMul(dst, rows, typ, w, &a, 0, rows, 0, cols, &s)
				MatMul(dst, rows, typ, w, &a, 1, 3, 0, 1, &s)
				MatMul(dst, rows, typ, w, &exact, 0, rows, 0, cols, &s)
			}); avg != 0 {
				t.Errorf("%s, %s: %g allocations a product", l, typ, avg)
			}
		}
		c := newAttn(rng, 1, compute.KVF16, compute.KVF32, 20, 12, 3, 100)
		out, x := make([]float32, c.vd), randomFloats(rng, 100, 1)
		h := make([]byte, 200)
		var s Scratch
		if avg := testing.AllocsPerRun(3, func() {
			Attend(out, c.q, c.kt, c.vt, c.k, c.v, c.kstride, c.vstride, c.first, c.n, c.scale, &s)
			RMSNorm(x, x, x, 1e-6)
			SiluMul(x, x, x)
			F32ToF16(h, x)
			DecodeRow(gguf.F16, x, h)
		}); avg != 0 {
			t.Errorf("%s: %g allocations in attention and others", l, avg)
		}
		restore()
	}
}
