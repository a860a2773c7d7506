//go:build amd64 && !noasm

package kernels

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"

	"terrace/gguf"
)

// vector lists the levels above the generic one that this machine and its system can run.
func vector() []*level {
	c := &cpuid.CPU
	if !c.Supports(cpuid.AVX2, cpuid.BMI2, cpuid.FMA3, cpuid.F16C) {
		return nil
	}
	if !c.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ, cpuid.AVX512VNNI, cpuid.AVX512VBMI, cpuid.GFNI) {
		return []*level{&avx2}
	}
	return []*level{&avx2, &avx512}
}

var avx2, avx512 level

// bind fills the parts of a level that are the same on all of them.
func bind(l *level, id Level, f32Rows, f32Cols floatKernel, attend *attendKernels) {
	l.id = id
	l.superDots, l.runDots = superDotsVector, runDotsVector
	l.quant32, l.quant256 = quant32Vector, quant256Vector
	l.toHalf, l.rmsNorm, l.siluMul = toHalfVector, rmsNormVector, siluMulVector
	l.addScaled = addScaledVector
	l.decode = generic.decode
	l.decode[gguf.Q8_0] = func(dst []float32, w []byte) { decodeChunks(decodeQ80AVX2, dst, w, 32, 34) }
	l.decode[gguf.Q4_K] = func(dst []float32, w []byte) { decodeChunks(decodeQ4KAVX2, dst, w, 256, 144) }
	l.decode[gguf.Q6_K] = func(dst []float32, w []byte) { decodeChunks(decodeQ6KAVX2, dst, w, 256, 210) }
	l.dots = func(dst []float32, ld int, w, x []float32, s *Scratch) {
		dotsVector(f32Rows, f32Cols, dst, ld, w, x, s)
	}
	l.kvQ8, l.kvQ4 = kvQ8Vector, kvQ4Vector
	l.l2Norm, l.conv4, l.deltaStep, l.sigMul = l2NormVector, conv4VectorAVX2, deltaStepAVX2, sigmoidMulVector
	l.scanStep = scanStepAVX2
	if id == LevelAVX512 {
		l.conv4, l.deltaStep, l.scanStep = conv4VectorAVX512, deltaStepAVX512, scanStepAVX512
		l.siluMul, l.sigMul = siluMulWide, sigmoidMulWide
	}
	l.attend, l.addRows = attend.run, attend.addRows
	l.runs, l.index = attend.attendRuns, attend.indexScores
}

// bindVector fills the vector levels; the generic one is complete.
func bindVector() {
	bindGemm()
	bind(&avx2, LevelAVX2, f32RowsAVX2, f32ColsAVX2, &attendAVX2)
	bind(&avx512, LevelAVX512, f32RowsAVX512, f32ColsAVX512, &attendAVX512)
	avx2.tiles = [len(weightTable)]*tiles{
		gguf.F32:  {rowsF: f32RowsAVX2, colsF: f32ColsAVX2},
		gguf.F16:  {rowsF: f16RowsAVX2, colsF: f16ColsAVX2},
		gguf.BF16: {rowsF: bf16RowsAVX2, colsF: bf16ColsAVX2},
		gguf.Q8_0: {rows: q80RowsAVX2, cols: q80ColsAVX2, single: true},
		gguf.Q4_K: {rows: q4kRowsAVX2, cols: q4kColsAVX2},
		gguf.Q6_K: {rows: q6kRowsAVX2, cols: q6kColsAVX2},
	}
	avx512.tiles = [len(weightTable)]*tiles{
		gguf.F32:  {rowsF: f32RowsAVX512, colsF: f32ColsAVX512},
		gguf.F16:  {rowsF: f16RowsAVX512, colsF: f16ColsAVX512},
		gguf.BF16: {rowsF: bf16RowsAVX512, colsF: bf16ColsAVX512},
		gguf.Q8_0: {rows: q80RowsAVX512, cols: q80ColsAVX512, single: true},
		gguf.Q4_K: {rows: q4kRowsAVX512, cols: q4kColsAVX512},
		gguf.Q6_K: {rows: q6kRowsAVX512, cols: q6kColsAVX512},
	}
	bindMatvec()
}

// callElems bounds the elements that one call of an elementwise function takes: tens of microseconds.
const callElems = 1 << 16

func decodeChunks(f func(dst *float32, w *byte, blocks int), dst []float32, w []byte, elems, size int) {
	for len(dst) > 0 {
		n := min(len(dst)/elems, callElems/elems)
		f(&dst[0], &w[0], n)
		dst, w = dst[n*elems:], w[n*size:]
	}
}

// dotsVector is dotsGeneric by the F32 kernels: w is the weight row.
func dotsVector(rows, cols floatKernel, dst []float32, ld int, w, x []float32, s *Scratch) {
	n := len(w)
	wb := (*byte)(unsafe.Pointer(&w[0]))
	c, k := 0, len(x)/n
	for ; k-c >= 4; c += 4 {
		cols(&dst[c*ld], ld, wb, 0, &x[c*n], n, 1)
	}
	for ; c < k; c++ {
		rows(&s.tail[0], 0, wb, 0, &x[c*n], n, 1)
		dst[c*ld] = s.tail[0]
	}
}

func superDotsVector(isum, msum []int32, u *super, q []int8, n int, sums []int16, step int) {
	superDotsAVX2(&isum[0], &msum[0], &u.q[0], &u.scale[0], &u.min[0], &q[0], n, &sums[0], 2*step, len(isum))
}

func runDotsVector(low, high []int32, u *run, q []int8, n int) {
	runDotsAVX2(&low[0], &high[0], &u.q[0], &q[0], n, len(low))
}

// quantChunk is the number of scales that one call makes.
const quantChunk = 64

func quant32Vector(q []int8, d []float32, sums []int16, x []float32) {
	var s, inv [quantChunk]float32
	for b := 0; b < len(d); b += quantChunk {
		n := min(len(d)-b, quantChunk)
		largestAVX2(&s[0], &x[32*b], n, 32)
		quantScalesAVX2(&s[0], &inv[0], (n+7)&^7)
		quant32AVX2(&q[32*b], &sums[b], &inv[0], &x[32*b], n)
		copy(d[b:b+n], s[:])
	}
}

func quant256Vector(q []int8, d []float32, sums []int16, x []float32) {
	var s, inv [quantChunk]float32
	for b := 0; b < len(d); b += quantChunk {
		n := min(len(d)-b, quantChunk)
		largestAVX2(&s[0], &x[256*b], n, 256)
		quantScalesAVX2(&s[0], &inv[0], (n+7)&^7)
		quant256AVX2(&q[256*b], &sums[b*sums256], &inv[0], &x[256*b], n)
		copy(d[b:b+n], s[:])
	}
}

func toHalfVector(dst []byte, src []float32) {
	for len(src) >= 8 {
		n := min(len(src)&^7, callElems)
		toHalfAVX2(&dst[0], &src[0], n)
		dst, src = dst[2*n:], src[n:]
	}
	toHalfGeneric(dst, src)
}

func rmsNormVector(dst, x, w []float32, eps float32) {
	n := len(x) &^ 7
	if n == 0 || n > callElems {
		rmsNormGeneric(dst, x, w, eps)
		return
	}
	var acc [8]float64
	sumSquaresAVX2(&x[0], n, &acc[0])
	for i, v := range x[n:] {
		acc[i] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), len(x), eps)
	scaleMulAVX2(&dst[0], &x[0], &w[0], n, scale)
	for i := n; i < len(x); i++ {
		dst[i] = float32(float32(x[i]*scale) * w[i])
	}
}

func siluMulVector(dst, gate, up []float32) {
	for len(dst) >= 8 {
		n := min(len(dst)&^7, callElems)
		siluMulAVX2(&dst[0], &gate[0], &up[0], n)
		dst, gate, up = dst[n:], gate[n:], up[n:]
	}
	siluMulGeneric(dst, gate, up)
}

func addScaledVector(dst, x []float32, w float32) {
	for len(dst) >= 8 {
		n := min(len(dst)&^7, callElems)
		addScaledAVX2(&dst[0], &x[0], n, w)
		dst, x = dst[n:], x[n:]
	}
	addScaledGeneric(dst, x, w)
}
