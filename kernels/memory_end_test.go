package kernels

import (
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"unsafe"

	"terrace/compute"
	"terrace/gguf"
)

func guardedBytes(t *testing.T, n int) []byte {
	b, done := guarded(t, n)
	t.Cleanup(done)
	return b
}

func guardedFloats(t *testing.T, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(guardedBytes(t, 4*n)))), n)
}

// TestMemoryEnds multiplies and attends at the end of readable memory, as a mapped file may have it.
func TestMemoryEnds(t *testing.T) {
	for l := LevelGeneric; l <= best(); l++ {
		t.Run(l.String(), func(t *testing.T) {
			defer SetLevel(l)()
			for _, typ := range weightTypes() {
				t.Run(typ.String(), func(t *testing.T) {
					defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
					defer func() {
						if r := recover(); r != nil {
							t.Errorf("reads or writes beyond its operands: %v", r)
						}
					}()
					memoryEnds(t, typ)
				})
			}
			t.Run("attention", func(t *testing.T) {
				defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
				rng := rand.New(rand.NewPCG(32, 33))
				for kt := range compute.KVType(compute.KVTypes) {
					dim := 20
					if kt.Block() > 1 {
						dim = 96
					}
					for _, heads := range []int{1, 4, 5} {
						c := newGroup(rng, 1, kt, kt, dim, dim, 3, 75, heads)
						want := c.run(new(Scratch))
						n := kt.RowBytes(dim)
						k, v := guardedBytes(t, 74*c.kstride+n), guardedBytes(t, 74*c.vstride+n)
						copy(k, c.k)
						copy(v, c.v)
						c.k, c.v = k, v
						compareBits(t, "attention", c.run(new(Scratch)), want)
						row := guardedBytes(t, n)
						x := guardedFloats(t, dim)
						copy(x, c.kf)
						EncodeKV(kt, row, x)
						if string(row) != string(c.k[:n]) {
							t.Errorf("%s: other bytes at the end of memory", kt)
						}
					}
				}
			})
		})
	}
}

func memoryEnds(t *testing.T, typ gguf.Type) {
	rng := rand.New(rand.NewPCG(30, 31))
	kind, _ := KindOf(typ)
	for _, n := range rowLengths(typ)[:3] {
		for _, rows := range []int{1, 3, 5, 20} {
			src := randomRows(rng, typ, rows, n, 0.25)
			w := guardedBytes(t, len(src))
			copy(w, src)
			for _, cols := range []int{1, 5, 9} {
				for _, kind := range []ActKind{kind, ActF32} {
					var a Act
					fillAct(&a, kind, cols, n, patternFloats(rng, "random", cols*n))
					if kind == ActF32 {
						f := guardedFloats(t, len(a.F))
						copy(f, a.F)
						a.F = f
					}
					dst := guardedFloats(t, rows*cols)
					MatMul(dst, rows, typ, w, &a, 0, rows, 0, cols, new(Scratch))
					compareBits(t, typ.String(), dst, matMulAll(typ, src, &a, rows, cols))
				}
			}
		}
	}
}
