package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"terrace/gguf"
)

// TestGemmLevels compares the panel path with the portable code: rows that are no multiple of 16, columns 1 to 70, every
// number of blocks up to a few chunks, all patterns.
func TestGemmLevels(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(21, 22))
		for _, typ := range weightTypes() {
			gemmCases(t, rng, typ, 32)
		}
	})
}

func gemmCases(t *testing.T, rng *rand.Rand, typ gguf.Type, cases int) {
	kind, _ := KindOf(typ)
	block := max(typ.BlockSize(), kind.block())
	if raceOn {
		cases = 3
	}
	var s Scratch
	for i := range cases {
		cols, rows := 1+rng.IntN(70), 16+rng.IntN(40)
		exact := kind == ActF32 || i%8 == 5
		if exact { // slow in portable code
			cols, rows = 1+rng.IntN(12), 4+rng.IntN(9)
		} else if i%2 == 0 {
			cols = 2 + i%20
		}
		n := block * (1 + rng.IntN(max(11, 80/(block/32+1))))
		if i%8 == 0 {
			n = block
		}
		wp, xp := weightPatterns[rng.IntN(len(weightPatterns))], activationPatterns[rng.IntN(len(activationPatterns))]
		w := patternRows(rng, wp, typ, rows, n)
		if kind == ActF32 {
			n = []int{1 + rng.IntN(100), 900 + rng.IntN(300), 2048}[i%3]
			w = patternRows(rng, wp, typ, rows, n)
		}
		var a Act
		kind := kind
		if exact {
			kind = ActF32
		}
		fillAct(&a, kind, cols, n, patternFloats(rng, xp, cols*n))
		r0, c0 := rng.IntN(3), rng.IntN(2)
		r0, c0 = min(r0, max(0, rows-16)), min(c0, cols-1)
		got, want := make([]float32, rows*cols), make([]float32, rows*cols)
		MatMul(got, rows, typ, w, &a, r0, rows, c0, cols, &s)
		restore := SetLevel(LevelGeneric)
		MatMul(want, rows, typ, w, &a, r0, rows, c0, cols, new(Scratch))
		restore()
		compareBits(t, fmt.Sprintf("%s %d rows of %d, %d columns, %s weights, %s activations", typ, rows-r0, n, cols-c0, wp, xp), got, want)
	}
}
