package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// grid is a type whose weights are rows of a code book, 4 or 8 at a time, with signs apart. In 256 bits the book lies as
// bytes and is loaded entry by entry; gridWide is for 512.
type grid struct {
	name   string
	dim    int
	scale  float32
	narrow func(k *kq, r int, g *gridNarrow)
}

var grids = []grid{
	{"iq2xxs", 8, 0.125, iq2xxsNarrow},
	{"iq2xs", 8, 0.125, iq2xsNarrow},
	{"iq2s", 8, 0.125, iq2sNarrow},
	{"iq3xxs", 4, 0.25, iq3xxsNarrow},
	{"iq3s", 4, 1, iq3sNarrow},
}

func gridTypes() (ts []superType) {
	size := map[string]int{"iq2xxs": 66, "iq2xs": 74, "iq2s": 82, "iq3xxs": 98, "iq3s": 110}
	for _, g := range grids {
		ts = append(ts, superType{g.name, size[g.name], g.narrowBody})
	}
	return ts
}

// scaled is d, the half at the start of the block, in the parts that codes count.
func (g grid) scaled(k *kq) func() (d, dmin reg.VecVirtual) {
	return func() (reg.VecVirtual, reg.VecVirtual) {
		d := k.four(0)
		if g.scale != 1 {
			VMULPS(floatConst(fmt.Sprintf("parts_%d", int(1/g.scale)), g.scale), d, d)
		}
		return d, nil
	}
}

// gridNarrow is what a row gives in 256 bits: its scales as 16 words, and for run g the codes' and the signs' places.
type gridNarrow struct {
	scales reg.VecVirtual
	// index puts the index of entry e of run g into a register; sign that of octet l's row of the table of signs.
	index func(g, e int, to reg.GPVirtual)
	sign  func(g, l int, to reg.GPVirtual)
}

func (g grid) narrowBody(k *kq) superBody {
	book, signs, i := GP64(), GP64(), GP64()
	MOVQ(global("bytes"+g.name), book)
	table := "sign7"
	if g.name == "iq2s" || g.name == "iq3s" {
		table = "sign8"
	}
	MOVQ(global(table), signs)
	// gather fills a vector from four rows of eight bytes.
	gather := func(row func(l int, x reg.VecVirtual)) reg.VecVirtual {
		lo, hi := k.clean(YMM()), XMM()
		row(0, lo)
		row(1, lo)
		row(2, hi)
		row(3, hi)
		VINSERTI128(Imm(1), hi, lo, lo)
		return lo
	}
	return superBody{scales: g.scaled(k), row: func(r int) (isum, msum reg.VecVirtual) {
		var x gridNarrow
		g.narrow(k, r, &x)
		words := x.scales
		VPADDW(words, words, words)
		VPOR(dwords("word_ones", repeat(8, 0x00010001)...), words, words)
		return k.narrowDots(nil, words, func(run int) (reg.VecVirtual, Op) {
			c := gather(func(l int, v reg.VecVirtual) {
				if g.dim == 8 {
					x.index(run, l, i)
					from := Mem{Base: book, Index: i, Scale: 8}
					if l%2 == 0 {
						VMOVQ(from, v.AsX())
					} else {
						VPINSRQ(Imm(1), from, v.AsX(), v.AsX())
					}
					return
				}
				for h := range 2 {
					x.index(run, 2*l+h, i)
					from := Mem{Base: book, Index: i, Scale: 4}
					if l%2+h == 0 {
						VMOVD(from, v.AsX())
					} else {
						VPINSRD(Imm(uint64(l%2*2+h)), from, v.AsX(), v.AsX())
					}
				}
			})
			s := gather(func(l int, v reg.VecVirtual) {
				x.sign(run, l, i)
				from := Mem{Base: signs, Index: i, Scale: 8}
				if l%2 == 0 {
					VMOVQ(from, v.AsX())
				} else {
					VPINSRQ(Imm(1), from, v.AsX(), v.AsX())
				}
			})
			a := YMM()
			VMOVDQU(k.q.at(0, 32*run), a)
			VPSIGNB(s, a, a)
			return c, a
		}), nil
	}}
}

// doubled copies the low word of each dword into the high one.
func doubled(x reg.VecVirtual) {
	t := YMM()
	VPSLLD(Imm(16), x, t)
	VPOR(t, x, x)
}

// field puts bits from on of the dword at m, n of them, into to.
func field(m Mem, from, n int, to reg.GPVirtual) {
	MOVL(m, to.As32())
	if from > 0 {
		SHRL(Imm(uint64(from)), to.As32())
	}
	ANDL(U32(1<<n-1), to.As32())
}

func byteAt(k *kq, r, base int) func(g, e int, to reg.GPVirtual) {
	return func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, base+4*g+e), to.As32()) }
}

func iq2xxsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, 2+8*g+e), to.As32()) }
	x.sign = func(g, l int, to reg.GPVirtual) { field(k.w.at(r, 6+8*g), 7*l, 7, to) }
	lo, hi := YMM(), YMM()
	VMOVDQU(k.w.at(r, 2), lo)
	VMOVDQU(k.w.at(r, 34), hi)
	VPSRLQ(Imm(60), lo, lo)
	VPSRLQ(Imm(60), hi, hi)
	VPACKUSDW(hi, lo, lo)
	VPERMQ(Imm(0xd8), lo, lo)
	doubled(lo)
	x.scales = lo
}

func iq3xxsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, 2+8*g+e), to.As32()) }
	x.sign = func(g, l int, to reg.GPVirtual) { field(k.w.at(r, 66+4*g), 7*l, 7, to) }
	x.scales = YMM()
	VMOVDQU(k.w.at(r, 66), x.scales)
	VPSRLD(Imm(28), x.scales, x.scales)
	doubled(x.scales)
}

// nibbleWords makes words of eight bytes of nibbles.
func (k *kq) nibbleWords(r, at int) reg.VecVirtual {
	x, t := YMM(), YMM()
	VPMOVZXBD(k.w.at(r, at), x)
	VPSLLD(Imm(12), x, t)
	VPOR(t, x, x)
	VPAND(dwords("word_15_narrow", repeat(8, 0x000f000f)...), x, x)
	return x
}

func iq2xsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) {
		MOVWLZX(k.w.at(r, 2+8*g+2*e), to.As32())
		ANDL(U32(511), to.As32())
	}
	x.sign = func(g, l int, to reg.GPVirtual) {
		MOVWLZX(k.w.at(r, 2+8*g+2*l), to.As32())
		SHRL(Imm(9), to.As32())
	}
	x.scales = k.nibbleWords(r, 66)
}

// withHigh adds n bits from bit from on of the byte at m to the index of eight bits at low.
func withHigh(low, m Mem, from, n int, to reg.GPVirtual) {
	t := GP64()
	MOVBLZX(m, t.As32())
	if from < 8 {
		SHLL(Imm(uint64(8-from)), t.As32())
	}
	ANDL(U32((1<<n-1)<<8), t.As32())
	MOVBLZX(low, to.As32())
	ORL(t.As32(), to.As32())
}

func iq2sNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { withHigh(k.w.at(r, 2+4*g+e), k.w.at(r, 66+g), 2*e, 2, to) }
	x.sign = byteAt(k, r, 34)
	x.scales = k.nibbleWords(r, 74)
}

func iq3sNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { withHigh(k.w.at(r, 2+8*g+e), k.w.at(r, 66+g), e, 1, to) }
	x.sign = byteAt(k, r, 74)
	x.scales = YMM()
	VPBROADCASTD(k.w.at(r, 106), x.scales)
	VPSRLVD(dwords("each_nibble", 0, 4, 8, 12, 16, 20, 24, 28), x.scales, x.scales)
	VPAND(dwords("dword_15", repeat(8, 15)...), x.scales, x.scales)
	doubled(x.scales)
}
