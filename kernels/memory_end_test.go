package kernels

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"terrace/compute"
)

// held is guarded memory that is freed when the test ends.
func held(t *testing.T, n int) []byte {
	b, free := guarded(t, n)
	t.Cleanup(free)
	return b
}

func guardedFloats(t *testing.T, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(held(t, 4*n)))), n)
}

// TestMemoryEnds multiplies and attends at the end of readable memory, as a mapped file may have it: a kernel that reads
// or writes beyond its operands dies here.
func TestMemoryEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(30, 31))
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		for _, typ := range weightTypes() {
			kind, _ := KindOf(typ)
			for _, n := range rowLengths(typ)[:3] {
				for _, rows := range []int{1, 3, 5, 8} {
					src := randomRows(rng, typ, rows, n, 0.25)
					w := held(t, len(src))
					copy(w, src)
					for _, cols := range []int{1, 5} {
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
		for _, kt := range []compute.KVType{compute.KVF16, compute.KVF32} {
			c := newAttn(rng, 1, kt, kt, 20, 20, 3, 75)
			want := c.run(new(Scratch))
			size := int(kt.Size())
			k, v := held(t, 74*c.kstride+20*size), held(t, 74*c.vstride+20*size)
			copy(k, c.k)
			copy(v, c.v)
			c.k, c.v = k, v
			compareBits(t, "attention", c.run(new(Scratch)), want)
		}
		restore()
	}
}
