package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"terrace/gguf"
	"terrace/quant"
)

// weightTypes lists every type that can be multiplied.
func weightTypes() (ts []gguf.Type) {
	for t := range weightTable {
		if weightTable[t].ok {
			ts = append(ts, gguf.Type(t))
		}
	}
	return ts
}

// halfFields gives the offsets of the binary16 scales in a block of t.
func halfFields(t gguf.Type) []int {
	switch t {
	case gguf.Q2_K:
		return []int{80, 82}
	case gguf.Q3_K, gguf.Q6_K:
		return []int{t.BlockBytes() - 2}
	case gguf.TQ1_0:
		return []int{52}
	case gguf.TQ2_0:
		return []int{64}
	case gguf.Q4_K, gguf.Q5_K, gguf.Q4_1, gguf.Q5_1:
		return []int{0, 2}
	case gguf.MXFP4, gguf.NVFP4, gguf.IQ1M, gguf.F32, gguf.F16, gguf.BF16:
		return nil
	}
	return []int{0}
}

// randomRows makes n weight rows of arbitrary bytes whose scales are finite and of magnitude about mag.
func randomRows(rng *rand.Rand, t gguf.Type, rows, n int, mag float64) []byte {
	w := make([]byte, rows*t.RowBytes(n))
	for i := range w {
		w[i] = byte(rng.Uint32())
	}
	size := t.BlockBytes()
	for b := 0; b < len(w); b += size {
		blk := w[b : b+size]
		for _, at := range halfFields(t) {
			binary.LittleEndian.PutUint16(blk[at:], quant.F32ToF16(float32(rng.NormFloat64()*mag)))
		}
		switch t {
		case gguf.MXFP4:
			blk[0] = byte(127 + math.Log2(mag) + float64(rng.IntN(6)))
		case gguf.IQ1M:
			h := quant.F32ToF16(float32(rng.NormFloat64() * mag))
			for k := range 4 {
				blk[49+2*k] = blk[49+2*k]&15 | byte(h>>(4*k)&15)<<4
			}
		case gguf.F32:
			binary.LittleEndian.PutUint32(blk, math.Float32bits(float32(rng.NormFloat64()*mag)))
		case gguf.F16:
			binary.LittleEndian.PutUint16(blk, quant.F32ToF16(float32(rng.NormFloat64()*mag)))
		case gguf.BF16:
			binary.LittleEndian.PutUint16(blk, quant.F32ToBF16(float32(rng.NormFloat64()*mag)))
		}
	}
	return w
}

func randomFloats(rng *rand.Rand, n int, mag float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * mag)
	}
	return x
}

// magnitude returns, for each element, the size of the terms that its float value is made of: |d*scale*q| + |m|.
func magnitudes(t gguf.Type, row []byte, n int) []float64 {
	k := &weightTable[t]
	out := make([]float64, n)
	switch {
	case k.unpack256 != nil:
		var u super
		for b := range n / 256 {
			k.unpack256(&u, row[b*t.BlockBytes():(b+1)*t.BlockBytes()])
			for i := range 256 {
				out[256*b+i] = math.Abs(float64(u.d) * float64(u.scale[i/16]) * float64(u.q[i]))
				if k.mins {
					out[256*b+i] += math.Abs(float64(u.dmin) * float64(u.min[i/16]))
				}
			}
		}
	case k.unpack32 != nil:
		var u run
		for b := range n / 32 {
			k.unpack32(&u, row, b)
			for i := range 32 {
				out[32*b+i] = math.Abs(float64(u.d[i/16])*float64(u.q[i])) + math.Abs(float64(u.m))
			}
		}
	default:
		v := make([]float32, n)
		widenGeneric(t, v, row)
		for i := range v {
			out[i] = math.Abs(float64(v[i]))
		}
	}
	return out
}

// bounds are the float64 products of one weight row with one row of activations, as they are quantised and as they were
// given, and how far a kernel may be from each.
//
// With eps = 2^-24: the float order has at most blocks+depth roundings of sums and four of each product, and the decoder
// three of each value; quantisation moves each activation by at most half a step of its block.
type bounds struct{ near, far, round, step float64 }

func rowBounds(t *testing.T, typ gguf.Type, row []byte, a *Act, c int, x []float32) bounds {
	t.Helper()
	const eps = 1.0 / (1 << 24)
	n := a.N
	v := make([]float32, n)
	if err := quant.Decode(typ, v, row); err != nil {
		t.Fatal(err)
	}
	mag := magnitudes(typ, row, n)
	var b bounds
	mass := 0.0
	block := a.Kind.block()
	for i, w := range v {
		y, half := float64(x[i]), 0.0
		if a.Kind != ActF32 {
			d := float64(a.D[c*(n/block)+i/block])
			y = d * float64(a.Q[c*n+i])
			half = d * 0.50002
		}
		mass += mag[i] * math.Abs(y)
		b.near += float64(w) * y
		b.far += float64(w) * float64(x[i])
		b.step += math.Abs(float64(w)) * half
	}
	b.round = eps * mass * float64(n/max(block, 16)+16)
	return b
}

func checkRow(t *testing.T, typ gguf.Type, row []byte, a *Act, c int, x []float32, got float32) {
	t.Helper()
	b := rowBounds(t, typ, row, a, c, x)
	if e := math.Abs(float64(got) - b.near); !(e <= b.round) {
		t.Errorf("%s n=%d: %g, float64 over the same activations %g: error %g above %g", typ, a.N, got, b.near, e, b.round)
	}
	if e := math.Abs(float64(got) - b.far); !(e <= b.round+b.step) {
		t.Errorf("%s n=%d: %g, float64 %g: error %g above %g", typ, a.N, got, b.far, e, b.round+b.step)
	}
}

// rowLengths are lengths that rows of t may have.
func rowLengths(t gguf.Type) []int {
	switch weightTable[t].act {
	case Act256:
		return []int{256, 512, 768, 1024, 1280, 2048, 2816}
	case Act32:
		b := max(32, t.BlockSize())
		return []int{b, 2 * b, 3 * b, 5 * b, 8 * b, 9 * b, 15 * b, 23 * b}
	}
	return []int{1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 100, 129, 256, 1023}
}

func TestMatMulAgainstQuant(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range weightTypes() {
		for _, n := range rowLengths(typ) {
			for _, exact := range []bool{false, true} {
				kind, _ := KindOf(typ)
				if exact {
					kind = ActF32
				}
				const rows, cols = 3, 2
				w := randomRows(rng, typ, rows, n, 0.25)
				var a Act
				a.Reset(kind, cols, n)
				x := randomFloats(rng, cols*n, 1)
				for c := range cols {
					a.Set(c, x[c*n:(c+1)*n])
				}
				var s Scratch
				dst := make([]float32, rows*cols)
				MatMul(dst, rows, typ, w, &a, 0, rows, 0, cols, &s)
				for r := range rows {
					for c := range cols {
						checkRow(t, typ, w[r*typ.RowBytes(n):(r+1)*typ.RowBytes(n)], &a, c, x[c*n:(c+1)*n], dst[c*rows+r])
					}
				}
			}
		}
	}
}

// sameBits compares float32 by bits; any NaN equals any NaN.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// TestMatMulCuts checks that an element's bits do not depend on the batch or on how rows and columns are cut.
func TestMatMulCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, typ := range weightTypes() {
		kind, _ := KindOf(typ)
		n := rowLengths(typ)[3]
		const rows, cols = 11, 9
		w := randomRows(rng, typ, rows, n, 0.25)
		var a Act
		a.Reset(kind, cols, n)
		for c := range cols {
			a.Set(c, randomFloats(rng, n, 1))
		}
		var s Scratch
		want := make([]float32, rows*cols)
		MatMul(want, rows, typ, w, &a, 0, rows, 0, cols, &s)
		for range 20 {
			got := make([]float32, rows*cols)
			rc, cc := rng.IntN(rows+1), rng.IntN(cols+1)
			for _, r := range [][2]int{{0, rc}, {rc, rows}} {
				for _, c := range [][2]int{{0, cc}, {cc, cols}} {
					MatMul(got, rows, typ, w, &a, r[0], r[1], c[0], c[1], &s)
				}
			}
			for i := range want {
				if !sameBits(got[i], want[i]) {
					t.Fatalf("%s: cut at row %d, column %d: element %d is %g, whole %g", typ, rc, cc, i, got[i], want[i])
				}
			}
		}
	}
}

func TestMatMulRefusals(t *testing.T) {
	var a Act
	a.Reset(Act256, 2, 256)
	dst := make([]float32, 8)
	w := make([]byte, 4*144)
	for name, f := range map[string]func(){
		"type":       func() { MatMul(dst, 4, gguf.I8, w, &a, 0, 4, 0, 1, new(Scratch)) },
		"kind":       func() { MatMul(dst, 4, gguf.Q8_0, w, &a, 0, 1, 0, 1, new(Scratch)) },
		"weights":    func() { MatMul(dst, 8, gguf.Q4_K, w, &a, 0, 5, 0, 1, new(Scratch)) },
		"columns":    func() { MatMul(dst, 4, gguf.Q4_K, w, &a, 0, 4, 0, 3, new(Scratch)) },
		"results":    func() { MatMul(dst[:7], 4, gguf.Q4_K, w, &a, 0, 4, 0, 2, new(Scratch)) },
		"row length": func() { a.Reset(Act32, 1, 32); MatMul(dst, 4, gguf.Q1_0, w, &a, 0, 1, 0, 1, new(Scratch)) },
		"reset":      func() { a.Reset(Act256, 1, 100) },
		"set":        func() { a.Reset(Act256, 1, 256); a.Set(1, make([]float32, 256)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("broken contract was accepted")
				}
			}()
			f()
		})
	}
}

func ExampleMatMul() {
	w := []byte{0, 0, 128, 63, 0, 0, 0, 64} // the row (1, 2)
	var a Act
	a.Reset(ActF32, 1, 2)
	a.Set(0, []float32{10, 1})
	dst := make([]float32, 1)
	MatMul(dst, 1, gguf.F32, w, &a, 0, 1, 0, 1, new(Scratch))
	fmt.Println(dst[0])
	// Output: 12
}
