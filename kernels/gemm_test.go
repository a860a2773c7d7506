package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"terrace/gguf"
)

// usePanels makes every level that has panels take them from two columns on, whatever is faster.
func usePanels() (restore func()) {
	var undo []func()
	for _, l := range levels() {
		for _, k := range l.gemm {
			if k != nil {
				from := k.min
				undo = append(undo, func() { k.min = from })
				k.min = 0
			}
		}
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// gemmCase is a product that panels and tiles of rows by columns take part in.
type gemmCase struct {
	typ        gguf.Type
	kind       ActKind
	n          int // elements of a row
	rows, cols int
	r0, c0     int // where the product begins
	wp, xp     string
}

func (c gemmCase) String() string {
	return fmt.Sprintf("%s by %s, %d rows of %d from %d, %d columns from %d, %s weights, %s activations", c.typ, c.kind, c.rows, c.n, c.r0, c.cols, c.c0, c.wp, c.xp)
}

// check compares all levels with the portable code, and that nothing outside the product is written.
func (c gemmCase) check(t *testing.T, rng *rand.Rand) {
	t.Helper()
	w := patternRows(rng, c.wp, c.typ, c.rows, c.n)
	var a Act
	fillAct(&a, c.kind, c.cols, c.n, patternFloats(rng, c.xp, c.cols*c.n))
	product := func() []float32 {
		dst := make([]float32, c.rows*c.cols)
		for i := range dst {
			dst[i] = -77
		}
		MatMul(dst, c.rows, c.typ, w, &a, c.r0, c.rows, c.c0, c.cols, new(Scratch))
		return dst
	}
	restore := SetLevel(LevelGeneric)
	want := product()
	restore()
	for l := LevelAVX2; l <= best(); l++ {
		restore := SetLevel(l)
		got := product()
		restore()
		compareBits(t, l.String()+", "+c.String(), got, want)
	}
}

// TestGemm compares panels with the portable code: rows that are no multiple of 16, columns 1 to 70, every number of
// blocks up to some chunks, all patterns.
func TestGemm(t *testing.T) {
	if best() == LevelGeneric {
		t.Skip("no vector level on this machine or in this build")
	}
	defer usePanels()()
	rng := rand.New(rand.NewPCG(21, 22))
	for _, typ := range weightTypes() {
		kind, _ := KindOf(typ)
		if kind == ActF32 {
			continue
		}
		block := max(typ.BlockSize(), kind.block())
		blocks := panelBlocks*256/block*2 + 3
		for i := range 36 {
			if raceOn && i > 2 {
				break // portable code is slow there, and no two goroutines meet here
			}
			c := gemmCase{typ: typ, kind: kind, n: block * (1 + rng.IntN(blocks)), rows: 16 + rng.IntN(34), cols: 1 + rng.IntN(12)}
			switch {
			case i < 12: // all ways to cut columns
				c.cols = 1 + i
			case i%6 == 0:
				c.cols = 13 + rng.IntN(58)
			}
			if i%5 == 0 {
				c.n = block * (1 + i/5)
			}
			c.r0, c.c0 = rng.IntN(min(3, c.rows-15)), rng.IntN(min(2, c.cols))
			c.wp, c.xp = weightPatterns[i%len(weightPatterns)], activationPatterns[rng.IntN(len(activationPatterns))]
			c.check(t, rng)
		}
	}
}

// TestGemmColumns cuts columns whose activations exceed colBytes, so that one is left for the last part.
func TestGemmColumns(t *testing.T) {
	if best() == LevelGeneric || raceOn {
		t.Skip("no vector level on this machine or in this build, or slow")
	}
	rng := rand.New(rand.NewPCG(28, 29))
	for _, c := range []gemmCase{{typ: gguf.Q4_K, kind: Act256, n: 16384}, {typ: gguf.Q8_0, kind: Act32, n: 16416}} {
		for _, cols := range []int{32, 33, 65} {
			if cols*c.n <= colBytes {
				t.Fatalf("%d columns of %d bytes are not cut", cols, c.n)
			}
			c.rows, c.cols, c.wp, c.xp = 17, cols, "random", "random"
			c.check(t, rng)
		}
	}
}

// TestGemmFloat does the same for float32 activations: 4 rows and more, any row length that the type allows.
func TestGemmFloat(t *testing.T) {
	if best() == LevelGeneric {
		t.Skip("no vector level on this machine or in this build")
	}
	rng := rand.New(rand.NewPCG(23, 24))
	for _, typ := range weightTypes() {
		lengths := []int{1, 15, 16, 17, 31, 100, 1023, 1024, 1025, 2048, 2070}
		if b := typ.BlockSize(); b > 1 {
			lengths = []int{b, 5 * b, 1024 + b}
		}
		for i, n := range lengths {
			if raceOn && i > 1 {
				break
			}
			c := gemmCase{typ: typ, kind: ActF32, n: n, rows: 4 + rng.IntN(8), cols: 1 + rng.IntN(11)}
			c.r0, c.c0 = rng.IntN(min(3, c.rows-3)), rng.IntN(min(2, c.cols))
			c.wp, c.xp = weightPatterns[rng.IntN(len(weightPatterns))], activationPatterns[rng.IntN(len(activationPatterns))]
			c.check(t, rng)
		}
	}
}

// FuzzGemm lets the fuzzer choose; its seeds run with the tests.
func FuzzGemm(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, uint8(seed), uint8(seed/3), uint8(seed%9), uint8(seed*7), uint8(seed%7), uint8(seed*5%7), seed%5 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, typeAt, blocks, rows, cols, wp, xp uint8, exact bool) {
		defer usePanels()()
		types := weightTypes()
		typ := types[int(typeAt)%len(types)]
		kind, _ := KindOf(typ)
		if exact {
			kind = ActF32
		}
		n := (1 + int(blocks%12)) * max(typ.BlockSize(), kind.block())
		if typ.BlockSize() == 1 {
			n += int(blocks)
		}
		gemmCase{typ: typ, kind: kind, n: n, rows: 16 + int(rows%24), cols: 1 + int(cols%24),
			wp: weightPatterns[int(wp)%len(weightPatterns)], xp: activationPatterns[int(xp)%len(activationPatterns)]}.check(t, rand.New(rand.NewPCG(seed, 25)))
	})
}

// TestGemmAllocations checks that a warm product allocates nothing.
func TestGemmAllocations(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	defer usePanels()()
	rng := rand.New(rand.NewPCG(26, 27))
	var s Scratch
	for _, typ := range weightTypes() {
		kind, _ := KindOf(typ)
		for _, k := range []ActKind{kind, ActF32} {
			const n, rows, cols = 512, 20, 9
			w := randomRows(rng, typ, rows, n, 0.1)
			var a Act
			fillAct(&a, k, cols, n, randomFloats(rng, cols*n, 1))
			dst := make([]float32, rows*cols)
			f := func() { MatMul(dst, rows, typ, w, &a, 0, rows, 0, cols, &s) }
			f()
			if got := testing.AllocsPerRun(5, f); got != 0 {
				t.Errorf("%s by %s: %g allocations", typ, k, got)
			}
		}
	}
}
