package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// matvecs writes the products of the types that kquant and q8 leave out: 4 weight rows by one column.
func matvecs(v isa) {
	for _, t := range append(runTypes, smallTypes...) {
		if !v.wide || t.wide != nil {
			v.runRows(t)
		}
	}
	for _, t := range superTypes(v) {
		v.superRows(t)
	}
	if v.wide {
		for _, g := range gridsWide {
			v.gridRows(g)
		}
		v.orders()
		for _, t := range quadTypes {
			v.quadRows(t)
		}
		for _, t := range pairTypes {
			v.runPairs(t)
		}
	} else {
		for _, t := range oneTypes {
			v.superRows(t)
		}
	}
	v.readLoop()
}

// bytesOf is a full-width constant of equal bytes.
func (v isa) bytesOf(b byte) Mem {
	return fill(fmt.Sprintf("bytes_%02x", b), v.size(), func(int) byte { return b })
}

// table16 repeats 16 bytes in every lane, for VPSHUFB.
func (v isa) table16(name string, t []byte) Mem {
	return fill(name, v.size(), func(i int) byte { return t[i%16] })
}

// move copies a register; it costs a name, not an operation.
func move(a reg.VecVirtual) reg.VecVirtual {
	t := ZMM()
	VMOVDQA64(a, t)
	return t
}

// In 512-bit kernels registers 16 to 31 are in play, also as halves and quarters, so instructions have to be of the EVEX
// kind there.

// mov copies between memory and registers.
func (v isa) mov(from, to Op) {
	if v.wide {
		VMOVDQU32(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// upper is the upper half of a 256-bit register.
func (v isa) upper(y reg.VecVirtual) reg.VecVirtual {
	x := XMM()
	if v.wide {
		VEXTRACTI32X4(Imm(1), y.AsY(), x)
	} else {
		VEXTRACTI128(Imm(1), y.AsY(), x)
	}
	return x
}

// clean zeroes a register of which a part will be written and all of it read; the generator would else take what is left
// for a value that comes from before.
func (v isa) clean(r reg.VecVirtual) reg.VecVirtual {
	VXORPS(r, r, r) // of all such instructions, one that the generator knows not to read r
	return r
}

// totals adds up the lanes of four int32 vectors of 256 or 512 bits, which are destroyed.
func totals(a [4]reg.VecVirtual) reg.VecVirtual {
	size := a[0].Size()
	t := ZMM()
	as := func(r reg.VecVirtual) Op {
		if size == 64 {
			return r.AsZ()
		}
		return r.AsY()
	}
	VPUNPCKHDQ(as(a[1]), as(a[0]), as(t))
	VPUNPCKLDQ(as(a[1]), as(a[0]), as(a[0]))
	VPADDD(as(t), as(a[0]), as(a[0]))
	VPUNPCKHDQ(as(a[3]), as(a[2]), as(t))
	VPUNPCKLDQ(as(a[3]), as(a[2]), as(a[2]))
	VPADDD(as(t), as(a[2]), as(a[2]))
	VPUNPCKHQDQ(as(a[2]), as(a[0]), as(t))
	VPUNPCKLQDQ(as(a[2]), as(a[0]), as(a[0]))
	VPADDD(as(t), as(a[0]), as(a[0]))
	if size == 64 {
		VEXTRACTI64X4(Imm(1), a[0], t.AsY())
		VPADDD(t.AsY(), a[0].AsY(), a[0].AsY())
	}
	x := XMM()
	VEXTRACTI32X4(Imm(1), a[0].AsY(), x)
	VPADDD(x, a[0].AsX(), x)
	return x
}

// bitMatrix is the operand of VGF2P8AFFINEQB that makes bit i of every byte the parity of the bits in masks[i].
func bitMatrix(masks [8]byte) uint64 {
	m := uint64(0)
	for i, x := range masks {
		m |= uint64(x) << (8 * (7 - i))
	}
	return m
}

// bitField is the matrix that moves n bits from position from to position to and clears the others.
func bitField(from, n, to int) uint64 {
	var masks [8]byte
	for i := range n {
		masks[to+i] = 1 << (from + i)
	}
	return bitMatrix(masks)
}

// qwords is a constant of 64-bit words.
func qwords(name string, w ...uint64) Mem {
	b := make([]byte, 8*len(w))
	for i, x := range w {
		binary.LittleEndian.PutUint64(b[8*i:], x)
	}
	return bytesConst(name, b)
}

// halfMatrix is a bit matrix for the lower and one for the upper half of a ZMM.
func halfMatrix(name string, low, high uint64) Mem {
	return qwords(name, low, low, low, low, high, high, high, high)
}

// words is a constant of 16-bit words made by f.
func words(name string, n int, f func(i int) int) Mem {
	return fill(name, 2*n, func(i int) byte { return byte(f(i/2) >> (8 * (i % 2))) })
}

// aheadBytes is how far before their use lines of weights are asked for, at least: what the memory sends in its latency.
// Rows lie one after the other, so a whole number of groups of 4 rows is taken. 6 to 12 thousand were best on Zen 5.
const aheadBytes = 8192

// aheadOf sets dist to the distance in bytes of the rows that are fetched while others are multiplied.
func aheadOf(stride reg.GPVirtual, dist Mem) {
	group, d := GP64(), GP64()
	MOVQ(stride, group)
	SHLQ(Imm(2), group)
	MOVQ(group, d)
	JZ(LabelRef("still")) // one row as four
	Label("further")
	CMPQ(d, U32(aheadBytes))
	JAE(LabelRef("still"))
	ADDQ(group, d)
	JMP(LabelRef("further"))
	Label("still")
	MOVQ(d, dist)
}

// fetch asks for the lines of the next group's rows at the same place.
func fetch(ahead lanes, bytes int) {
	for r := range 4 {
		for o := 0; o < bytes; o += 64 {
			PREFETCHT0(ahead.at(r, o))
		}
	}
}

// global is a variable of package kernels.
func global(name string) Mem { return NewDataAddr(Symbol{Name: "·" + name}, 0) }

// readLoop writes the sum of memory as 64-bit words, eight vectors a step: nothing but loads, the ceiling of any kernel
// that streams weights.
func (v isa) readLoop() {
	TEXT("readLoop"+v.suffix(), NOSPLIT, "func(p *byte, steps int) uint64")
	Pragma("noescape")
	Doc("readLoop" + v.suffix() + " adds up steps times 8 vectors of 64-bit words.")
	p, n := Load(Param("p"), GP64()).(reg.GPVirtual), Load(Param("steps"), GP64()).(reg.GPVirtual)
	var acc [8]reg.VecVirtual
	for i := range acc {
		acc[i] = v.clean(v.vec())
	}
	loop("step", n, func() {
		for i, a := range acc {
			VPADDQ(Mem{Base: p, Disp: i * v.size()}, a, a)
		}
		ADDQ(U32(8*v.size()), p)
	})
	for h := 4; h > 0; h /= 2 {
		for i := range h {
			VPADDQ(acc[i+h], acc[i], acc[i])
		}
	}
	if v.wide {
		t := YMM()
		VEXTRACTI64X4(Imm(1), acc[0], t)
		VPADDQ(t, acc[0].AsY(), acc[0].AsY())
	}
	x := v.upper(acc[0])
	VPADDQ(x, acc[0].AsX(), x)
	y := XMM()
	VPSHUFD(Imm(0x4e), x, y)
	VPADDQ(x, y, x)
	r := GP64()
	VMOVQ(x, r)
	Store(r, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
