package kernels

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"terrace/compute"
)

// guarded returns n bytes that end where readable memory ends.
func guarded(t *testing.T, n int) []byte {
	t.Helper()
	page := syscall.Getpagesize()
	size := (n + page - 1) / page * page
	b, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mprotect(b[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return b[size-n : size : size]
}

func guardedFloats(t *testing.T, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(guarded(t, 4*n)))), n)
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
					w := guarded(t, len(src))
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
			k, v := guarded(t, 74*c.kstride+20*size), guarded(t, 74*c.vstride+20*size)
			copy(k, c.k)
			copy(v, c.v)
			c.k, c.v = k, v
			compareBits(t, "attention", c.run(new(Scratch)), want)
		}
		restore()
	}
}
