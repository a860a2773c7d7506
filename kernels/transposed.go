package kernels

import (
	"terrace/gguf"
	"terrace/internal/fmath"
)

// rowsAtOnce is the number of weight rows that MatMulT decodes before it uses them: they stay in the nearest cache.
const rowsAtOnce = 16

// MatMulT multiplies with n rows of weights the other way round: dst[c*ld+j] is the sum over i < n of w[i][j]*x[c*xs+i], for
// c < cols and j < in. w holds n rows of in elements of type t. Rows are decoded as quant does, activations are float32 in
// every mode.
//
// Order: each element by itself, from zero, one fused multiply-add a row, the rows in order.
func MatMulT(dst []float32, ld int, t gguf.Type, w []byte, in int, x []float32, xs, n, cols int, s *Scratch) {
	if _, ok := KindOf(t); !ok {
		panicf("kernels: no product with weights of %s", t)
	}
	if cols < 1 {
		return
	}
	if in < 1 || n < 1 || in%t.BlockSize() != 0 || len(w) < n*t.RowBytes(in) {
		panicf("kernels: %d rows of %d elements of %s in %d bytes", n, in, t, len(w))
	}
	if in > ld && cols > 1 || len(dst) < (cols-1)*ld+in || xs < 0 || len(x) < (cols-1)*xs+n {
		panicf("kernels: %d columns of %d results in %d floats with %d a column, from %d activations with %d a column", cols, in, len(dst), ld, len(x), xs)
	}
	rb := t.RowBytes(in)
	s.row = grow(s.row, rowsAtOnce*in)
	add := current().addRows
	for c := range cols {
		clear(dst[c*ld : c*ld+in])
	}
	for i := 0; i < n; i += rowsAtOnce {
		k := min(rowsAtOnce, n-i)
		for r := range k {
			DecodeRow(t, s.row[r*in:(r+1)*in], w[(i+r)*rb:(i+r+1)*rb])
		}
		for c := range cols {
			add(dst[c*ld:c*ld+in], x[c*xs+i:c*xs+i+k], s.row[:k*in])
		}
	}
}

// addRowsGeneric sets out[j] = fma(p[i], v[i][j], out[j]) for the rows of v in order, as long as out.
func addRowsGeneric(out, p, v []float32) {
	n := len(out)
	for i, w := range p {
		for j, x := range v[i*n : (i+1)*n] {
			out[j] = fmath.Fma(w, x, out[j])
		}
	}
}
