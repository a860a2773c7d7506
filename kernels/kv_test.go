package kernels

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/quant"
)

// quantisedKV pairs the quantised cache types with the weight types whose bytes they share.
var quantisedKV = map[compute.KVType]gguf.Type{compute.KVQ8_0: gguf.Q8_0, compute.KVQ4_0: gguf.Q4_0}

// kvFloats are rows that rounding may get wrong: scales from subnormal to overflowing, ties, zeros of both signs, the
// largest magnitude twice with different signs, and what is not finite.
func kvFloats(rng *rand.Rand, blocks int) []float32 {
	x := make([]float32, 0, 32*blocks)
	for b := range blocks {
		block := randomFloats(rng, 32, math.Exp2(float64(rng.IntN(50)-40)))
		switch b % 10 {
		case 1: // codes and halves between them, exactly
			for i := range block {
				block[i] = float32(rng.IntN(509)-254) / 2
			}
			block[rng.IntN(32)] = 127
		case 2:
			for i := range block {
				block[i] = float32(rng.IntN(31)-15) / 2
			}
			block[rng.IntN(32)] = 8 * float32(1-2*rng.IntN(2))
		case 3:
			clear(block)
			block[rng.IntN(32)] = float32(math.Copysign(0, -1))
			block[0] = float32(math.Copysign(0, float64(1-2*rng.IntN(2))))
		case 4:
			i := rng.IntN(31)
			top := float32(math.Exp2(float64(rng.IntN(30) - 15)))
			for j := range block {
				block[j] = float32(math.Mod(float64(block[j]), float64(top)))
			}
			block[i], block[i+1+rng.IntN(31-i)] = top, -top
		case 5:
			block = randomFloats(rng, 32, math.Exp2(float64(-20-rng.IntN(130)))) // scales that halves hold badly or not
		case 6:
			block[rng.IntN(32)] = 65504
		}
		x = append(x, block...)
	}
	return x
}

// TestEncodeKV: the bytes of quant.Encode, and what it decodes, on every level.
func TestEncodeKV(t *testing.T) {
	for l := LevelGeneric; l <= best(); l++ {
		t.Run(l.String(), func(t *testing.T) {
			defer SetLevel(l)()
			rng := rand.New(rand.NewPCG(60, 61))
			for kt, typ := range quantisedKV {
				for _, blocks := range []int{1, 2, 7, 40, 400} {
					x := kvFloats(rng, blocks)
					got, want := make([]byte, kt.RowBytes(len(x))), make([]byte, typ.RowBytes(len(x)))
					EncodeKV(kt, got, x)
					for i := range blocks {
						if err := quant.Encode(typ, want[i*len(want)/blocks:(i+1)*len(want)/blocks], x[32*i:32*i+32]); err != nil {
							t.Fatal(err)
						}
						if g, w := got[i*len(want)/blocks:(i+1)*len(want)/blocks], want[i*len(want)/blocks:(i+1)*len(want)/blocks]; !bytes.Equal(g, w) {
							t.Fatalf("%s, block %d of %v:\n%x, quant encodes\n%x", kt, i, x[32*i:32*i+32], g, w)
						}
					}
					y, z := make([]float32, len(x)), make([]float32, len(x))
					decodeKV(kt, y, got)
					if err := quant.Decode(typ, z, want); err != nil {
						t.Fatal(err)
					}
					compareBits(t, kt.String(), y, z)
				}
			}
		})
	}
}

// TestEncodeKVBad: what a scale cannot hold makes the whole block NaN, and only that block.
func TestEncodeKVBad(t *testing.T) {
	rng := rand.New(rand.NewPCG(62, 63))
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		for kt := range quantisedKV {
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -1e7} {
				x := randomFloats(rng, 96, 1)
				x[32+rng.IntN(32)] = bad
				b, y := make([]byte, kt.RowBytes(96)), make([]float32, 96)
				EncodeKV(kt, b, x)
				decodeKV(kt, y, b)
				for i, v := range y {
					if (v != v) != (i/32 == 1) {
						t.Fatalf("%s on %s: element %d is %g beside %g in block 1", kt, l, i, v, bad)
					}
				}
				if b[kt.RowBytes(32)] != 0 || b[kt.RowBytes(32)+1] != 0x7e {
					t.Fatalf("%s on %s: the scale of a block with %g is %x", kt, l, bad, b[kt.RowBytes(32):][:2])
				}
			}
			// The largest that has a scale, beyond what quant takes.
			top := map[compute.KVType]float32{compute.KVQ8_0: 65504 * 127, compute.KVQ4_0: -65504 * 8}[kt]
			x := make([]float32, 32)
			x[3] = top
			b, y := make([]byte, kt.RowBytes(32)), make([]float32, 32)
			EncodeKV(kt, b, x)
			decodeKV(kt, y, b)
			if y[3] != top {
				t.Errorf("%s on %s: %g came back as %g", kt, l, top, y[3])
			}
		}
		restore()
	}
}

// FuzzEncodeKV: any bits, every level against the portable code.
func FuzzEncodeKV(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0x80, 0x3f, 0, 0}, 32))
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0x80, 0xff, 0xff, 0x7f, 0x7f}, 16))
	f.Fuzz(func(t *testing.T, raw []byte) {
		x := make([]float32, 32*(1+len(raw)/128))
		for i := range raw[:len(raw)&^3] {
			if i%4 == 0 {
				x[i/4] = math.Float32frombits(uint32(raw[i]) | uint32(raw[i+1])<<8 | uint32(raw[i+2])<<16 | uint32(raw[i+3])<<24)
			}
		}
		for kt := range quantisedKV {
			var want []byte
			for l := LevelGeneric; l <= best(); l++ {
				restore := SetLevel(l)
				b := make([]byte, kt.RowBytes(len(x)))
				EncodeKV(kt, b, x)
				restore()
				if want == nil {
					want = b
				}
				if !bytes.Equal(b, want) {
					t.Fatalf("%s on %s: %x, portable code %x", kt, l, b, want)
				}
			}
		}
	})
}

// FuzzAttend: heads of any shape over any cache, every level against the portable code.
func FuzzAttend(f *testing.F) {
	for seed := range uint64(24) {
		f.Add(seed, uint8(seed), uint8(seed*7), uint8(seed*3), uint8(1+seed*11), uint8(seed*5))
	}
	f.Fuzz(func(t *testing.T, seed uint64, types, kd, vd, n, first uint8) {
		rng := rand.New(rand.NewPCG(seed, 64))
		kt, vt := compute.KVType(types%compute.KVTypes), compute.KVType(types/4%compute.KVTypes)
		dim := func(t compute.KVType, d uint8) int { return t.Block() * (1 + int(d)%(160/t.Block())) }
		heads := 1 + int(types/16%9)
		c := newGroup(rng, math.Exp2(float64(rng.IntN(12)-6)), kt, vt, dim(kt, kd), dim(vt, vd), int(first), 1+int(n), heads)
		if seed%4 == 0 { // saturated and infinite codes and scales
			for i := range c.k {
				c.k[i] = byte(rng.Uint32())
			}
		}
		var s Scratch
		var want []float32
		for l := LevelGeneric; l <= best(); l++ {
			restore := SetLevel(l)
			got := c.run(&s)
			restore()
			if want == nil {
				want = got
			}
			compareBits(t, l.String(), got, want)
		}
	})
}

func BenchmarkEncodeKV(b *testing.B) {
	x := randomFloats(rand.New(rand.NewPCG(3, 3)), 1024, 1)
	for kt := range compute.KVType(compute.KVTypes) {
		dst := make([]byte, kt.RowBytes(len(x)))
		for l := LevelGeneric; l <= best(); l++ {
			b.Run(kt.String()+"/"+l.String(), func(b *testing.B) {
				defer SetLevel(l)()
				b.SetBytes(int64(4 * len(x)))
				for b.Loop() {
					EncodeKV(kt, dst, x)
				}
			})
		}
	}
}
