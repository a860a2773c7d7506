package main

import (
	"encoding/binary"
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is a vector width: AVX2 with FMA and F16C, or AVX-512 with VNNI.
type isa struct{ wide bool }

func (v isa) suffix() string {
	if v.wide {
		return "AVX512"
	}
	return "AVX2"
}

// vec takes a fresh register of the full width.
func (v isa) vec() reg.VecVirtual {
	if v.wide {
		return ZMM()
	}
	return YMM()
}

// shape is a tile: weight rows by activation columns. One of them is 1.
type shape struct{ rows, cols int }

func (s shape) name() string {
	if s.rows > 1 {
		return "Rows"
	}
	return "Cols"
}

// lanes addresses four streams at a fixed distance from each other: mul (1 or 2) times s1.
type lanes struct {
	base, s1, s3 reg.GPVirtual
	mul          uint8
	off          int // added to every displacement
}

// newLanes makes streams at the distance held in stride.
func newLanes(stride reg.GPVirtual) lanes {
	l := lanes{base: GP64(), s1: stride, s3: GP64(), mul: 1}
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, l.s3)
	return l
}

// at is byte disp of stream i.
func (l lanes) at(i, disp int) Mem {
	m := Mem{Base: l.base, Disp: l.off + disp}
	switch i {
	case 1:
		m.Index, m.Scale = l.s1, l.mul
	case 2:
		m.Index, m.Scale = l.s1, 2*l.mul
	case 3:
		m.Index, m.Scale = l.s3, l.mul
	}
	return m
}

var consts = map[string]Mem{}

// constBytes is what they are, by the name of the symbol.
var constBytes = map[string][]byte{}

// bytesConst is a named constant of any multiple of eight bytes.
func bytesConst(name string, b []byte) Mem {
	if m, ok := consts[name]; ok {
		return m
	}
	m := GLOBL("k_"+name, RODATA|NOPTR)
	for i := 0; i < len(b); i += 8 {
		DATA(i, U64(binary.LittleEndian.Uint64(b[i:])))
	}
	consts[name] = m
	constBytes[m.Symbol.Name] = b
	return m
}

// fill is n bytes made by f of the index.
func fill(name string, n int, f func(i int) byte) Mem {
	b := make([]byte, n)
	for i := range b {
		b[i] = f(i)
	}
	return bytesConst(fmt.Sprintf("%s_%d", name, n), b)
}

// dwords is a constant of 32-bit words.
func dwords(name string, w ...uint32) Mem {
	b := make([]byte, 4*len(w))
	for i, x := range w {
		binary.LittleEndian.PutUint32(b[4*i:], x)
	}
	return bytesConst(name, b)
}

// floatConst is a float32 in eight lanes.
func floatConst(name string, f float32) Mem {
	u := math.Float32bits(f)
	return dwords(name, u, u, u, u, u, u, u, u)
}

// load32 loads a constant of the full width into a fresh register.
func (v isa) constant(m Mem) reg.VecVirtual {
	r := v.vec()
	if v.wide {
		VMOVDQU32(m, r)
	} else {
		VMOVDQU(m, r)
	}
	return r
}

// size is the vector width in bytes.
func (v isa) size() int {
	if v.wide {
		return 64
	}
	return 32
}

// loop runs body n > 0 times; n is destroyed.
func loop(name string, n reg.GPVirtual, body func()) {
	Label(name)
	body()
	DECQ(n)
	JNZ(LabelRef(name))
}

// sum4 adds up the lanes of four int32 vectors: element i of dst is the total of vector i. The vectors are destroyed.
func (v isa) sum4(a [4]reg.VecVirtual, dst reg.VecVirtual) {
	if !v.wide {
		VPHADDD(a[1], a[0], a[0])
		VPHADDD(a[3], a[2], a[2])
		VPHADDD(a[2], a[0], a[0])
		t := XMM()
		VEXTRACTI128(Imm(1), a[0], t)
		VPADDD(t, a[0].AsX(), dst.AsX())
		return
	}
	v.transpose4(a)
	t := YMM()
	VEXTRACTI64X4(Imm(1), a[0], t)
	VPADDD(t, a[0].AsY(), t)
	x := XMM()
	VEXTRACTI128(Imm(1), t, x)
	VPADDD(x, t.AsX(), dst.AsX())
}

// transpose4 leaves in each 128-bit lane of a[0] the sums over that lane of the four vectors.
func (v isa) transpose4(a [4]reg.VecVirtual) {
	t := ZMM()
	VPUNPCKHDQ(a[1], a[0], t)
	VPUNPCKLDQ(a[1], a[0], a[0])
	VPADDD(t, a[0], a[0])
	VPUNPCKHDQ(a[3], a[2], t)
	VPUNPCKLDQ(a[3], a[2], a[2])
	VPADDD(t, a[2], a[2])
	VPUNPCKHQDQ(a[2], a[0], t)
	VPUNPCKLQDQ(a[2], a[0], a[0])
	VPADDD(t, a[0], a[0])
}

// prefetchAhead is how far before its use a line of weights is asked for, in bytes.
const prefetchAhead = 4096
