package kernels

import (
	"math"
	"unsafe"

	"terrace/gguf"
	"terrace/internal/fmath"
)

// ActKind is a format of activations.
type ActKind uint8

// The formats. A weight type fixes the one it is multiplied with (KindOf).
const (
	ActF32 ActKind = iota // float32 as they are
	Act32                 // int8, one float32 scale per 32
	Act256                // int8, one float32 scale per 256, and sums of 16 and of 32
)

func (k ActKind) String() string {
	switch k {
	case Act32:
		return "int8 by 32"
	case Act256:
		return "int8 by 256"
	}
	return "float32"
}

// block is the number of elements under one scale.
func (k ActKind) block() int {
	switch k {
	case Act32:
		return 32
	case Act256:
		return 256
	}
	return 1
}

// sums is the number of int16 sums kept for each block.
func (k ActKind) sums() int {
	switch k {
	case Act32:
		return 1
	case Act256:
		return sums256
	}
	return 0
}

// sums256 counts the sums of one 256-block: 16 of 16 elements, then 8 of 32.
const sums256 = 24

// KindOf returns the activation format of the fast path of weight type t; false when t is no weight type that can be
// multiplied.
func KindOf(t gguf.Type) (ActKind, bool) {
	if int(t) >= len(weightTable) {
		return 0, false
	}
	k := weightTable[t]
	return k.act, k.ok
}

// Act holds rows of activations in one format. Buffers grow and never shrink, so that a warm Act allocates nothing.
//
// Quantisation of a block x: amax is the largest |x|; below 2^-100 the block is zero (D = 0, Q = 0); otherwise D is
// amax*(1/127) and Q is x*inv rounded half to even, inv being 127/amax by quantScale. A block that holds an infinity or
// a NaN has D = NaN, so that what is computed from it is NaN. Products and sums are rounded one by one and nothing is
// divided, so a GPU can give the same bits.
type Act struct {
	Kind    ActKind
	Rows, N int
	F       []float32 // ActF32: Rows x N
	Q       []int8    // Act32, Act256: Rows x N
	D       []float32 // scales: Rows x N/32 or N/256
	Sums    []int16   // Act32: sum of each block; Act256: sums256 a block
}

// Reset makes room for rows rows of n elements of the given kind. Contents are undefined until Set.
func (a *Act) Reset(kind ActKind, rows, n int) {
	b := kind.block()
	if rows < 0 || n <= 0 || n%b != 0 {
		panicf("kernels: %d activations a row, %s needs a positive multiple of %d", n, kind, b)
	}
	a.Kind, a.Rows, a.N = kind, rows, n
	if kind == ActF32 {
		a.F = grow(a.F, rows*n)
		return
	}
	a.Q = grow(a.Q, rows*n)
	a.D = grow(a.D, rows*n/b)
	a.Sums = grow(a.Sums, rows*n/b*kind.sums())
}

// Set quantises or copies x, of N elements, as row row. Rows are independent: workers may share them.
func (a *Act) Set(row int, x []float32) {
	if row < 0 || row >= a.Rows || len(x) != a.N {
		panicf("kernels: row %d of %d elements for activations of %d rows of %d", row, len(x), a.Rows, a.N)
	}
	n := a.N
	switch a.Kind {
	case ActF32:
		copy(a.F[row*n:], x)
	case Act32:
		b := n / 32
		current().quant32(a.Q[row*n:(row+1)*n], a.D[row*b:(row+1)*b], a.Sums[row*b:(row+1)*b], x)
	case Act256:
		b := n / 256
		current().quant256(a.Q[row*n:(row+1)*n], a.D[row*b:(row+1)*b], a.Sums[row*b*sums256:(row+1)*b*sums256], x)
	}
}

// quantMin is the float32 bits of 2^-100: a block whose largest magnitude lies below is taken as zero, so that scales
// stay clear of subnormals, which some devices flush.
const quantMin = (127 - 100) << 23

// nanBits is the quiet NaN that marks a block with an infinity or a NaN in it.
const nanBits = 0x7fc00000

// inv127 is 1/127 rounded to float32.
const inv127 = float32(1.0 / 127)

// quantScale returns the scale d and the factor inv for a block whose largest magnitude has the bits u. inv comes from
// the reciprocal of the significand in [1, 2), times 127, with the exponent subtracted as an integer.
func quantScale(u uint32) (d, inv float32) {
	if u < quantMin {
		return 0, 0
	}
	if u >= 0x7f800000 {
		return math.Float32frombits(nanBits), 0
	}
	m := math.Float32frombits(u&0x7fffff | 0x3f800000)
	r := float32(fmath.Recip(m) * 127)
	inv = math.Float32frombits(math.Float32bits(r) + 0x3f800000 - u&0x7f800000)
	return float32(math.Float32frombits(u) * inv127), inv
}

// quantBlock quantises one block of any length with one scale.
func quantBlock(q []int8, x []float32) (d float32) {
	amax := uint32(0)
	for _, v := range x {
		amax = max(amax, math.Float32bits(v)&0x7fffffff)
	}
	d, inv := quantScale(amax)
	if inv == 0 {
		clear(q)
		return d
	}
	q = q[:len(x)]
	for i, v := range x {
		// The sum with 1.5*2^23 rounds to an integer, half to even, in its low bits.
		q[i] = int8(math.Float32bits(float32(v*inv) + 12582912))
	}
	return d
}

func sum8(q []int8) int16 {
	s := int16(0)
	for _, v := range q {
		s += int16(v)
	}
	return s
}

func quant32Generic(q []int8, d []float32, sums []int16, x []float32) {
	for b := range d {
		qb := q[32*b : 32*b+32]
		d[b] = quantBlock(qb, x[32*b:32*b+32])
		sums[b] = sum8(qb)
	}
}

func quant256Generic(q []int8, d []float32, sums []int16, x []float32) {
	for b := range d {
		qb := q[256*b : 256*b+256]
		d[b] = quantBlock(qb, x[256*b:256*b+256])
		s := sums[b*sums256 : (b+1)*sums256]
		for g := range 16 {
			s[g] = sum8(qb[16*g : 16*g+16])
		}
		for g := range 8 {
			s[16+g] = s[2*g] + s[2*g+1]
		}
	}
}

// cacheLine is the alignment of buffers that vector code streams.
const cacheLine = 64

// grow returns a slice of n elements on a cache line boundary, s itself when it is large enough.
func grow[T int8 | int16 | int32 | float32 | byte](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	size := int(unsafe.Sizeof(*new(T)))
	b := make([]T, n+cacheLine/size)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (cacheLine - 1))
	return b[off/size : off/size+n : off/size+n]
}
