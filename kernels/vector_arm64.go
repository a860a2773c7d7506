//go:build arm64 && !noasm

package kernels

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"terrace/compute"
	"terrace/gguf"
)

// vector lists the levels above the generic one that this machine can run: one, where it has SDOT.
func vector() []*level {
	if !cpu.ARM64.HasASIMDDP {
		return nil
	}
	return []*level{&neon}
}

var neon level

// bindVector fills the vector level; the generic one is complete.
func bindVector() {
	neon = level{
		id:     LevelNEON,
		decode: generic.decode,
		dots:   dotsNEON,
		superDots: func(isum, msum []int32, u *super, q []int8, n int, sums []int16, step int) {
			superDotsNEON(&isum[0], &msum[0], &u.q[0], &u.scale[0], &u.min[0], &q[0], n, &sums[0], 2*step, len(isum))
		},
		runDots: func(low, high []int32, u *run, q []int8, n int) {
			runDotsNEON(&low[0], &high[0], &u.q[0], &q[0], n, len(low))
		},
		quant32:   quantise32,
		quant256:  quantise256,
		toHalf:    toHalf,
		kvQ8:      kvQ8Generic,
		kvQ4:      kvQ4Generic,
		rmsNorm:   rmsNorm,
		siluMul:   siluMul,
		addScaled: addScaled,
		attend:    attendNEON.run,
		addRows:   attendNEON.addRows,
		runs:      attendNEON.attendRuns,
		index:     attendNEON.indexScores,
		readLoop:  readLoop,
		l2Norm:    l2Norm,
		deltaStep: deltaStep,
		scanStep:  scanStep,
		sigMul:    sigmoidMulGeneric,
		conv4:     conv4,
	}
	ropePairs[LevelNEON] = ropeVector
	neon.tiles = [len(weightTable)]*tiles{
		gguf.F32:  {rowsF: f32RowsNEON, colsF: f32ColsNEON},
		gguf.F16:  {rowsF: f16RowsNEON, colsF: f16ColsNEON},
		gguf.BF16: {rowsF: bf16RowsNEON, colsF: bf16ColsNEON},
		gguf.Q8_0: {rows: q80RowsNEON, cols: q80ColsNEON, single: true},

		gguf.Q4_0:  {rows: q40RowsNEON, cols: q40ColsNEON, single: true},
		gguf.Q4_1:  {rows: q41RowsNEON, cols: q41ColsNEON, single: true},
		gguf.Q5_0:  {rows: q50RowsNEON, cols: q50ColsNEON, single: true},
		gguf.Q5_1:  {rows: q51RowsNEON, cols: q51ColsNEON, single: true},
		gguf.IQ4NL: {rows: iq4nlRowsNEON, cols: iq4nlColsNEON, single: true},
		gguf.MXFP4: {rows: mxfp4RowsNEON, cols: mxfp4ColsNEON, single: true},

		gguf.Q2_K:  {rows: q2kRowsNEON, cols: q2kColsNEON},
		gguf.Q3_K:  {rows: q3kRowsNEON, cols: q3kColsNEON},
		gguf.Q4_K:  {rows: q4kRowsNEON, cols: q4kColsNEON},
		gguf.Q5_K:  {rows: q5kRowsNEON, cols: q5kColsNEON},
		gguf.Q6_K:  {rows: q6kRowsNEON, cols: q6kColsNEON},
		gguf.IQ4XS: {rows: iq4xsRowsNEON, cols: iq4xsColsNEON},
	}
}

// attendNEON takes heads one by one.
var attendNEON = attendKernels{
	scores:   [2]floatKernel{compute.KVF16: f16RowsNEON, compute.KVF32: f32RowsNEON},
	values:   [2]valueKernel{compute.KVF16: valuesF16NEON, compute.KVF32: valuesF32NEON},
	scaleMax: scaleMaxNEON,
	expSub:   expSubNEON,
	scale:    scaleNEON,
	decode:   [compute.KVTypes]func(dst *float32, w *byte, blocks int){compute.KVQ8_0: decodeQ80NEON, compute.KVQ4_0: decodeQ40NEON},
}

// callElems bounds the elements that one call of an elementwise function takes: tens of microseconds.
const callElems = 1 << 16

// dotsNEON is dotsGeneric by the F32 kernels: w is the weight row.
func dotsNEON(dst []float32, ld int, w, x []float32, s *Scratch) {
	n := len(w)
	wb := (*byte)(unsafe.Pointer(&w[0]))
	c, k := 0, len(x)/n
	for ; k-c >= 4; c += 4 {
		f32ColsNEON(&dst[c*ld], ld, wb, 0, &x[c*n], n, 1)
	}
	for ; c < k; c++ {
		f32RowsNEON(&s.tail[0], 0, wb, 0, &x[c*n], n, 1)
		dst[c*ld] = s.tail[0]
	}
}

// quantChunk is the number of scales that one call makes.
const quantChunk = 64

func quantise32(q []int8, d []float32, sums []int16, x []float32) {
	var s, inv [quantChunk]float32
	for b := 0; b < len(d); b += quantChunk {
		n := min(len(d)-b, quantChunk)
		largestNEON(&s[0], &x[32*b], n, 32)
		quantScalesNEON(&s[0], &inv[0], (n+7)&^7)
		quant32NEON(&q[32*b], &sums[b], &inv[0], &x[32*b], n)
		copy(d[b:b+n], s[:])
	}
}

func quantise256(q []int8, d []float32, sums []int16, x []float32) {
	var s, inv [quantChunk]float32
	for b := 0; b < len(d); b += quantChunk {
		n := min(len(d)-b, quantChunk)
		largestNEON(&s[0], &x[256*b], n, 256)
		quantScalesNEON(&s[0], &inv[0], (n+7)&^7)
		quant256NEON(&q[256*b], &sums[b*sums256], &inv[0], &x[256*b], n)
		copy(d[b:b+n], s[:])
	}
}

func toHalf(dst []byte, src []float32) {
	for len(src) >= 8 {
		n := min(len(src)&^7, callElems)
		toHalfNEON(&dst[0], &src[0], n)
		dst, src = dst[2*n:], src[n:]
	}
	toHalfGeneric(dst, src)
}

func rmsNorm(dst, x, w []float32, eps float32) {
	n := len(x) &^ 7
	if n == 0 || n > callElems {
		rmsNormGeneric(dst, x, w, eps)
		return
	}
	var acc [8]float64
	sumSquaresNEON(&x[0], n, &acc[0])
	for i, v := range x[n:] {
		acc[i] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), len(x), eps)
	scaleMulNEON(&dst[0], &x[0], &w[0], n, scale)
	for i := n; i < len(x); i++ {
		dst[i] = float32(float32(x[i]*scale) * w[i])
	}
}

func l2Norm(x []float32, eps float32) {
	n := len(x) &^ 7
	if n == 0 || n > callElems {
		l2NormGeneric(x, eps)
		return
	}
	var acc [8]float64
	sumSquaresNEON(&x[0], n, &acc[0])
	for i, v := range x[n:] {
		acc[i] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), 1, eps)
	scaleNEON(&x[0], n, scale)
	for i := n; i < len(x); i++ {
		x[i] = float32(x[i] * scale)
	}
}

func deltaStep(out, s, q, k, v []float32, decay, beta, scale float32) {
	n := len(v) &^ 15
	if n > 0 {
		clear(out[:n])
		valuesF32NEON(&out[0], &k[0], (*byte)(unsafe.Pointer(&s[0])), 4*len(v), len(k), n)
		for j, t := range out[:n] {
			d := v[j] - float32(decay*t)
			out[j] = float32(beta * d)
		}
		deltaUpdateNEON(&out[0], &s[0], &q[0], &k[0], len(k), 4*len(v), n, decay)
		scaleNEON(&out[0], n, scale)
	}
	deltaColumns(out, s, q, k, v, decay, beta, scale, n)
}

func scanStep(d, s, c, b []float32, decay float32) {
	n := len(d) &^ 15
	if n > 0 {
		deltaUpdateNEON(&d[0], &s[0], &c[0], &b[0], len(b), 4*len(d), n, decay)
	}
	scanColumns(d, s, c, b, decay, n)
}

func conv4(out, x0, x1, x2, x3, w []float32, ld int) {
	i := 0
	for n := len(out) &^ 3; i < n; {
		m := min(n-i, callElems)
		conv4NEON(&out[i], &x0[i], &x1[i], &x2[i], &x3[i], &w[i], ld, m)
		i += m
	}
	if i < len(out) {
		conv4Generic(out[i:], x0[i:], x1[i:], x2[i:], x3[i:], w[i:], ld)
	}
}

func siluMul(dst, gate, up []float32) {
	for len(dst) >= 8 {
		n := min(len(dst)&^7, callElems)
		siluMulNEON(&dst[0], &gate[0], &up[0], n)
		dst, gate, up = dst[n:], gate[n:], up[n:]
	}
	siluMulGeneric(dst, gate, up)
}

func addScaled(dst, x []float32, w float32) {
	for len(dst) >= 8 {
		n := min(len(dst)&^7, callElems)
		addScaledNEON(&dst[0], &x[0], n, w)
		dst, x = dst[n:], x[n:]
	}
	addScaledGeneric(dst, x, w)
}

func ropeVector(lo, hi, cos, sin []float32) int {
	n := min(len(lo)&^7, callElems)
	if n > 0 {
		ropeNEON(&lo[0], &hi[0], &cos[0], &sin[0], n)
	}
	return n
}

func readLoop(b []byte) (sum uint64) {
	for len(b) >= 128 {
		n := min(len(b)&^127, readBytes)
		var s [2]uint64
		readLoopNEON(&b[0], n, &s[0])
		sum += s[0] + s[1]
		b = b[n:]
	}
	return sum + readLoopGeneric(b)
}
