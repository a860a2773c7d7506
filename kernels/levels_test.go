package kernels

import (
	"math"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/quant"
)

// eachLevel runs f under every level above the generic one that this machine has.
func eachLevel(t *testing.T, f func(t *testing.T)) {
	if best() == LevelGeneric {
		t.Skip("no vector level on this machine or in this build")
	}
	for l := LevelAVX2; l <= best(); l++ {
		t.Run(l.String(), func(t *testing.T) {
			defer SetLevel(l)()
			if Features() != l.String() {
				t.Fatalf("level %s is not in use but %s", l, Features())
			}
			f(t)
		})
	}
}

func compareBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if !sameBits(got[i], want[i]) {
			t.Fatalf("%s: element %d is %g (%08x), portable code gives %g (%08x)", what, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// weightPatterns are kinds of weight rows that have broken kernels before.
var weightPatterns = []string{"random", "huge", "tiny", "zero", "ones", "0x80", "any"}

func patternRows(rng *rand.Rand, pattern string, typ gguf.Type, rows, n int) []byte {
	switch pattern {
	case "huge":
		return randomRows(rng, typ, rows, n, 3e4)
	case "tiny":
		return randomRows(rng, typ, rows, n, 1e-7)
	case "zero":
		return make([]byte, rows*typ.RowBytes(n))
	case "ones", "0x80": // saturated codes under ordinary scales
		w := randomRows(rng, typ, rows, n, 1)
		b := map[string]byte{"ones": 0xff, "0x80": 0x80}[pattern]
		size := typ.BlockBytes()
		for i := range w {
			at := i % size
			scale := size <= 4
			for _, f := range halfFields(typ) {
				scale = scale || at == f || at == f+1
			}
			if !scale {
				w[i] = b
			}
		}
		return w
	case "any": // NaN and infinite scales too
		w := make([]byte, rows*typ.RowBytes(n))
		for i := range w {
			w[i] = byte(rng.Uint32())
		}
		return w
	}
	return randomRows(rng, typ, rows, n, 0.25)
}

var activationPatterns = []string{"random", "huge", "tiny", "zero", "saturated", "spikes", "bad"}

func patternFloats(rng *rand.Rand, pattern string, n int) []float32 {
	x := randomFloats(rng, n, 1)
	switch pattern {
	case "huge":
		x = randomFloats(rng, n, 1e37)
	case "tiny":
		x = randomFloats(rng, n, 1e-38)
	case "zero":
		clear(x)
	case "saturated":
		for i := range x {
			x[i] = float32(math.Copysign(3, float64(x[i])))
		}
	case "spikes":
		for i := range x {
			if rng.IntN(100) == 0 {
				x[i] *= 1e4
			}
			if rng.IntN(3) == 0 {
				x[i] = 0
			}
		}
	case "bad":
		x[rng.IntN(n)] = float32(math.NaN())
		x[rng.IntN(n)] = float32(math.Inf(1))
		x[rng.IntN(n)] = float32(math.Inf(-1))
	}
	return x
}

// fillAct sets all rows of a under the portable code.
func fillAct(a *Act, kind ActKind, cols, n int, x []float32) {
	defer SetLevel(LevelGeneric)()
	a.Reset(kind, cols, n)
	for c := range cols {
		a.Set(c, x[c*n:(c+1)*n])
	}
}

func matMulAll(typ gguf.Type, w []byte, a *Act, rows, cols int) []float32 {
	dst := make([]float32, rows*cols)
	MatMul(dst, rows, typ, w, a, 0, rows, 0, cols, new(Scratch))
	return dst
}

// TestMatMulLevels compares every level with the portable code, bit by bit: weight types, row lengths, patterns of
// weights and activations, batches 1..9, rows that are no multiple of four, fast and exact mode.
func TestMatMulLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(5, 6))
		for _, typ := range weightTypes() {
			for _, n := range rowLengths(typ) {
				for i, wp := range weightPatterns {
					if raceOn && i > 1 {
						break // portable code is slow there, and no two goroutines meet here
					}
					xp := activationPatterns[(i+n)%len(activationPatterns)]
					rows, cols := 1+rng.IntN(11), 1+rng.IntN(9)
					w := patternRows(rng, wp, typ, rows, n)
					x := patternFloats(rng, xp, cols*n)
					fast, _ := KindOf(typ)
					for _, kind := range []ActKind{fast, ActF32} {
						var a Act
						fillAct(&a, kind, cols, n, x)
						restore := SetLevel(LevelGeneric)
						want := matMulAll(typ, w, &a, rows, cols)
						restore()
						compareBits(t, typ.String()+" "+wp+" weights, "+xp+" "+kind.String(), matMulAll(typ, w, &a, rows, cols), want)
					}
				}
			}
		}
	})
}

// FuzzMatMulLevels does the same for what the fuzzer chooses; its seeds run with the tests.
func FuzzMatMulLevels(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed), uint8(seed/3), uint8(1+seed%9), uint8(seed%7), uint8(seed*5%7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, typeAt, blocks, cols, wp, xp uint8) {
		rng := rand.New(rand.NewPCG(seed, 7))
		types := weightTypes()
		typ := types[int(typeAt)%len(types)]
		kind, _ := KindOf(typ)
		n := (1 + int(blocks%16)) * max(typ.BlockSize(), kind.block())
		if typ.BlockSize() == 1 {
			n += int(blocks) * 3
		}
		c, rows := 1+int(cols%9), 1+rng.IntN(9)
		w := patternRows(rng, weightPatterns[int(wp)%len(weightPatterns)], typ, rows, n)
		x := patternFloats(rng, activationPatterns[int(xp)%len(activationPatterns)], c*n)
		for _, kind := range []ActKind{kind, ActF32} {
			var a Act
			fillAct(&a, kind, c, n, x)
			restore := SetLevel(LevelGeneric)
			want := matMulAll(typ, w, &a, rows, c)
			restore()
			for l := LevelAVX2; l <= best(); l++ {
				restore := SetLevel(l)
				got := matMulAll(typ, w, &a, rows, c)
				restore()
				compareBits(t, typ.String()+" on "+l.String(), got, want)
			}
		}
	})
}

// TestQuantiseLevels compares quantised activations, sums and scales.
func TestQuantiseLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(8, 9))
		for _, kind := range []ActKind{Act32, Act256} {
			for _, blocks := range []int{1, 2, 3, 7, 8, 9, 63, 64, 65, 100} {
				for _, p := range activationPatterns {
					n := blocks * kind.block()
					x := patternFloats(rng, p, n)
					for i := range x { // scales of all sizes side by side
						if p == "random" && i%kind.block() == 0 {
							f := float32(math.Exp2(float64(rng.IntN(270) - 140)))
							for j := range kind.block() {
								x[i+j] *= f
							}
						}
					}
					var a, b Act
					fillAct(&a, kind, 1, n, x)
					b.Reset(kind, 1, n)
					b.Set(0, x)
					compareBits(t, kind.String()+" scales, "+p, b.D, a.D)
					for i := range a.Q {
						if a.Q[i] != b.Q[i] {
							t.Fatalf("%s, %s: code %d of %g is %d, portable code gives %d", kind, p, i, x[i], b.Q[i], a.Q[i])
						}
					}
					for i := range a.Sums {
						if a.Sums[i] != b.Sums[i] {
							t.Fatalf("%s, %s: sum %d is %d, portable code gives %d", kind, p, i, b.Sums[i], a.Sums[i])
						}
					}
				}
			}
		}
	})
}

// TestQuantise checks the format against its definition in float64.
func TestQuantise(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 11))
	for _, kind := range []ActKind{Act32, Act256} {
		b := kind.block()
		for range 200 {
			scale := math.Exp2(float64(rng.IntN(200) - 90))
			x := randomFloats(rng, b, scale)
			var a Act
			a.Reset(kind, 1, b)
			a.Set(0, x)
			amax := 0.0
			for _, v := range x {
				amax = max(amax, math.Abs(float64(v)))
			}
			if e := math.Abs(float64(a.D[0])*127/amax - 1); e > 1.0/(1<<22) {
				t.Fatalf("%s: scale %g for a largest magnitude of %g", kind, a.D[0], amax)
			}
			for i, q := range a.Q {
				if e := math.Abs(float64(x[i])*127/amax - float64(q)); e > 0.5+1e-4 || q == -128 {
					t.Fatalf("%s: code %d for %g under %g", kind, q, x[i], amax)
				}
			}
			for i, s := range a.Sums {
				at, n := 16*i, 16
				if kind == Act32 {
					at, n = 0, 32
				} else if i >= 16 {
					at, n = 32*(i-16), 32
				}
				want := 0
				for _, q := range a.Q[at : at+n] {
					want += int(q)
				}
				if int(s) != want {
					t.Fatalf("%s: sum %d is %d, codes sum to %d", kind, i, s, want)
				}
			}
		}
		var a Act
		a.Reset(kind, 1, b)
		for name, v := range map[string]float32{"NaN": float32(math.NaN()), "+Inf": float32(math.Inf(1)), "-Inf": float32(math.Inf(-1))} {
			x := randomFloats(rng, b, 1)
			x[b/2] = v
			a.Set(0, x)
			if a.D[0] == a.D[0] || a.Q[0] != 0 {
				t.Errorf("%s: a block with %s has scale %g and code %d", kind, name, a.D[0], a.Q[0])
			}
		}
		a.Set(0, make([]float32, b))
		if a.D[0] != 0 || a.Q[0] != 0 {
			t.Errorf("%s: a block of zeros has scale %g", kind, a.D[0])
		}
	}
}

// TestElementwiseLevels compares the functions of vectors.
func TestElementwiseLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(12, 13))
		both := func(f func(dst []float32), n int) (got, want []float32) {
			got, want = make([]float32, n), make([]float32, n)
			f(got)
			defer SetLevel(LevelGeneric)()
			f(want)
			return got, want
		}
		for _, n := range []int{1, 3, 7, 8, 9, 15, 16, 64, 100, 1023, 1024, 2048} {
			for _, p := range activationPatterns {
				x, y := patternFloats(rng, p, n), randomFloats(rng, n, 3)
				got, want := both(func(d []float32) { RMSNorm(d, x, y, 1e-6) }, n)
				compareBits(t, "RMSNorm "+p, got, want)
				got, want = both(func(d []float32) { SiluMul(d, x, y) }, n)
				compareBits(t, "SiluMul "+p, got, want)
				got, want = both(func(d []float32) { SigmoidMul(d, x, y) }, n)
				compareBits(t, "SigmoidMul "+p, got, want)
				got, want = both(func(d []float32) { copy(d, y); AddScaled(d, x, 0.37) }, n)
				compareBits(t, "AddScaled "+p, got, want)
				got, want = both(func(d []float32) { copy(d, y); Add(d, x) }, n)
				compareBits(t, "Add "+p, got, want)
				for i := range x {
					x[i] *= 60
				}
				got, want = both(func(d []float32) { SiluMul(d, x, y) }, n)
				compareBits(t, "SiluMul, 60 times "+p, got, want)
				got, want = both(func(d []float32) { SigmoidMul(d, x, y) }, n)
				compareBits(t, "SigmoidMul, 60 times "+p, got, want)
				b, c := make([]byte, 2*n), make([]byte, 2*n)
				F32ToF16(b, x)
				toHalfGeneric(c, x)
				if string(b) != string(c) {
					t.Fatalf("F32ToF16 %s of %d differs from portable code", p, n)
				}
			}
		}
		// All halves, and float32 around each.
		for h := range 1 << 16 {
			f := quant.F16ToF32(uint16(h))
			x := make([]float32, 16)
			for i := range x {
				x[i] = math.Float32frombits(math.Float32bits(f) + uint32(i-8)*0x7ff)
			}
			var b, c [32]byte
			F32ToF16(b[:], x)
			toHalfGeneric(c[:], x)
			if b != c {
				t.Fatalf("F32ToF16 beside half %04x: %x, portable code %x", h, b, c)
			}
		}
	})
}

// kvBytes stores rows of x as a KV cache of type kt at distance stride.
func kvBytes(kt compute.KVType, x []float32, dim, stride int) []byte {
	defer SetLevel(LevelGeneric)()
	rows := len(x) / dim
	b := make([]byte, rows*stride)
	for r := range rows {
		EncodeKV(kt, b[r*stride:][:kt.RowBytes(dim)], x[r*dim:(r+1)*dim])
	}
	return b
}

// anyKV draws a type that can store heads of dim elements.
func anyKV(rng *rand.Rand, dim int) compute.KVType {
	if dim%32 != 0 {
		return compute.KVType(rng.IntN(2))
	}
	return compute.KVType(rng.IntN(compute.KVTypes))
}

// attnCase is one attention with random contents.
type attnCase struct {
	q, kf, vf        []float32
	k, v             []byte
	kt, vt           compute.KVType
	kstride, vstride int
	kd, vd, first, n int
	scale            float32
}

func newAttn(rng *rand.Rand, mag float64, kt, vt compute.KVType, kd, vd, first, n int) attnCase {
	c := attnCase{kt: kt, vt: vt, kd: kd, vd: vd, first: first, n: n, scale: float32(1 / math.Sqrt(float64(kd)))}
	c.kstride, c.vstride = kt.RowBytes(kd), vt.RowBytes(vd)
	if rng.IntN(2) == 0 {
		c.kstride, c.vstride = c.kstride+4*rng.IntN(9), c.vstride+2*rng.IntN(9)
	}
	c.q, c.kf, c.vf = randomFloats(rng, kd, mag), randomFloats(rng, kd*n, mag), randomFloats(rng, vd*n, 1)
	c.k, c.v = kvBytes(kt, c.kf, kd, c.kstride), kvBytes(vt, c.vf, vd, c.vstride)
	return c
}

// run is the attention of all heads in q.
func (c *attnCase) run(s *Scratch) []float32 {
	heads := len(c.q) / c.kd
	out := make([]float32, heads*c.vd)
	AttendHeads(out, c.q, heads, c.kt, c.vt, c.k, c.v, c.kstride, c.vstride, c.first, c.n, c.scale, s)
	return out
}

var attnShapes = []struct{ kd, vd int }{{128, 128}, {64, 64}, {16, 32}, {20, 12}, {192, 128}, {7, 5}, {576, 512}}

func TestAttendLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(14, 15))
		var s Scratch
		for _, shape := range attnShapes {
			for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 31, 63, 64, 65, 100, 130, 200} {
				for _, first := range []int{0, 1, 30, 63, 64, 100} {
					if raceOn && (first != 30 || n%5 != 0) {
						continue
					}
					kt, vt := anyKV(rng, shape.kd), anyKV(rng, shape.vd)
					c := newAttn(rng, []float64{0.1, 1, 4, 30}[rng.IntN(4)], kt, vt, shape.kd, shape.vd, first, n)
					restore := SetLevel(LevelGeneric)
					want := c.run(&s)
					restore()
					compareBits(t, "attention", c.run(&s), want)
				}
			}
		}
	})
}

// TestAttend compares with softmax in float64.
func TestAttend(t *testing.T) {
	rng := rand.New(rand.NewPCG(16, 17))
	var s Scratch
	for _, shape := range attnShapes {
		for _, n := range []int{1, 5, 64, 65, 200} {
			for kt := range compute.KVType(compute.KVTypes) {
				if shape.kd%kt.Block() != 0 || shape.vd%kt.Block() != 0 {
					continue
				}
				c := newAttn(rng, 1, kt, kt, shape.kd, shape.vd, rng.IntN(100), n)
				key, val := make([]float32, shape.kd), make([]float32, shape.vd)
				score, sum, top := make([]float64, n), 0.0, math.Inf(-1)
				for i := range score {
					widenKV(kt, key, c.k[i*c.kstride:])
					for j, x := range key {
						score[i] += float64(x) * float64(c.q[j])
					}
					score[i] *= float64(c.scale)
					top = max(top, score[i])
				}
				want, mass := make([]float64, shape.vd), make([]float64, shape.vd)
				for i, x := range score {
					score[i] = math.Exp(x - top)
					sum += score[i]
				}
				for i, p := range score {
					widenKV(kt, val, c.v[i*c.vstride:])
					for j, x := range val {
						want[j] += p / sum * float64(x)
						mass[j] += p / sum * math.Abs(float64(x))
					}
				}
				// Scores are off by at most dim roundings of |q||k|, which exp turns into relative errors.
				tol := math.Exp2(-24) * float64(4*shape.kd+2*n+40)
				for j, got := range c.run(&s) {
					if e := math.Abs(float64(got) - want[j]); e > tol*mass[j]*float64(4) {
						t.Fatalf("dims %d %d, %d keys, %s: element %d is %g, float64 %g", shape.kd, shape.vd, n, kt, j, got, want[j])
					}
				}
			}
		}
	}
}
