package kernels

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"terrace/gguf"
)

// unpackedNEON lists the types that NEON multiplies after portable code has taken them apart.
var unpackedNEON = []gguf.Type{gguf.NVFP4, gguf.Q1_0, gguf.Q2_0, gguf.TQ1_0, gguf.TQ2_0, gguf.IQ1S, gguf.IQ1M,
	gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ3S}

// TestVectorTypes checks that no other type falls back to portable code on a vector level.
func TestVectorTypes(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		for _, typ := range weightTypes() {
			if runtime.GOARCH == "arm64" && slices.Contains(unpackedNEON, typ) {
				continue
			}
			if k := current().tiles[typ]; k == nil || k.rows == nil && k.rowsF == nil {
				t.Errorf("%s has no kernel", typ)
			}
		}
	})
}

// TestMatVecLevels compares one column of every type with the portable code, bit by bit, over every number of blocks up
// to 40 and rows that are no multiple of four, with all patterns of weights and activations.
func TestMatVecLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(21, 22))
		var s Scratch
		for _, typ := range weightTypes() {
			kind, _ := KindOf(typ)
			unit := max(typ.BlockSize(), kind.block())
			most, step := 40, 1
			if unit > 64 {
				most = 12
			}
			if raceOn {
				step = 7
			}
			for blocks := 1; blocks <= most; blocks += step {
				wp, xp := weightPatterns[blocks%7], activationPatterns[(blocks/7+blocks)%7]
				n, rows := blocks*unit, 1+rng.IntN(9)
				w, x := patternRows(rng, wp, typ, rows, n), patternFloats(rng, xp, n)
				var a Act
				fillAct(&a, kind, 1, n, x)
				restore := SetLevel(LevelGeneric)
				want := matMulAll(typ, w, &a, rows, 1)
				restore()
				got := make([]float32, rows)
				MatMul(got, rows, typ, w, &a, 0, rows, 0, 1, &s)
				compareBits(t, typ.String()+" "+wp+" weights, "+xp, got, want)
			}
		}
	})
}

// TestMatVecExtremes multiplies the largest codes with the largest activations, all of one sign and of alternating signs,
// under every scale byte: what sums could overflow on.
func TestMatVecExtremes(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(23, 24))
		for _, typ := range weightTypes() {
			kind, _ := KindOf(typ)
			n := 8 * max(typ.BlockSize(), kind.block())
			for b := 0; b < 256; b += 5 {
				w := make([]byte, 4*typ.RowBytes(n))
				for i := range w {
					w[i] = byte(b)
				}
				for at := 0; at < len(w); at += typ.BlockBytes() { // finite scales
					for _, f := range halfFields(typ) {
						binary.LittleEndian.PutUint16(w[at+f:], 0x3c00|uint16(rng.IntN(2))<<15)
					}
				}
				x := make([]float32, n)
				for i := range x {
					x[i] = 3
					if b%2 == 1 && i%2 == 1 {
						x[i] = -3
					}
				}
				var a Act
				fillAct(&a, kind, 1, n, x)
				restore := SetLevel(LevelGeneric)
				want := matMulAll(typ, w, &a, 4, 1)
				restore()
				compareBits(t, typ.String(), matMulAll(typ, w, &a, 4, 1), want)
			}
		}
	})
}

// TestMatVecEnds puts weights and activations at the very end of their memory: a kernel that reads on is found by the
// page behind, which is not there.
func TestMatVecEnds(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(25, 26))
		for _, typ := range weightTypes() {
			kind, _ := KindOf(typ)
			unit := max(typ.BlockSize(), kind.block())
			for _, blocks := range []int{1, 2, 3, 8, 11} {
				n := blocks * unit
				rows := 1 + rng.IntN(6)
				w, done := guarded(t, rows*typ.RowBytes(n))
				copy(w, randomRows(rng, typ, rows, n, 0.1))
				var a Act
				fillAct(&a, kind, 1, n, randomFloats(rng, n, 1))
				restore := SetLevel(LevelGeneric)
				want := matMulAll(typ, w, &a, rows, 1)
				restore()
				compareBits(t, typ.String(), matMulAll(typ, w, &a, rows, 1), want)
				done()
			}
		}
	})
}

func TestReadLoop(t *testing.T) {
	rng := rand.New(rand.NewPCG(27, 28))
	for _, n := range []int{0, 1, 7, 8, 255, 256, 511, 512, 513, 5000, readBytes + 4097} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		want := uint64(0)
		for i, x := range b {
			want += uint64(x) << (8 * (i % 8))
		}
		if got := readLoopGeneric(b); got != want {
			t.Errorf("portable: %d bytes sum to %x, want %x", n, got, want)
		}
		eachLevel(t, func(t *testing.T) {
			if got := ReadLoop(b); got != want {
				t.Errorf("%d bytes sum to %x, want %x", n, got, want)
			}
		})
	}
}

// BenchmarkCache multiplies a matrix that lies in the second-level cache by one column: what the arithmetic alone costs.
func BenchmarkCache(b *testing.B) {
	const rows, n = 64, 2048
	rng := rand.New(rand.NewPCG(6, 6))
	for _, typ := range weightTypes() {
		w := randomRows(rng, typ, rows, n, 0.02)
		kind, _ := KindOf(typ)
		var a Act
		a.Reset(kind, 1, n)
		a.Set(0, randomFloats(rng, n, 1))
		dst := make([]float32, rows)
		var s Scratch
		for l := LevelAVX2; l <= best(); l++ {
			b.Run(typ.String()+"/"+l.String(), func(b *testing.B) {
				defer SetLevel(l)()
				b.SetBytes(int64(len(w)))
				for b.Loop() {
					MatMul(dst, rows, typ, w, &a, 0, rows, 0, 1, &s)
				}
			})
		}
	}
}
