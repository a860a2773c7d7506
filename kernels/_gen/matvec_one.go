package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The smallest types, in 256 bits for both instruction sets: what limits them is looking up, not multiplying.

var oneTypes = []superType{
	{"tq10", 54, tq10Narrow},
	{"iq1s", 50, iq1Narrow(func(k *kq, r int) iq1Row {
		x := YMM()
		VPMOVZXWD(k.w.at(r, 34), x)
		VPSRLD(Imm(12), x, x)
		VPAND(dwords("dword_7", repeat(8, 7)...), x, x)
		doubled(x)
		return iq1Row{scales: x, index: func(g, l int, to reg.GPVirtual) {
			t, h := GP64(), GP64()
			MOVWLZX(k.w.at(r, 34+2*g), h.As32())
			MOVL(h.As32(), t.As32())
			SHRL(Imm(15), h.As32()) // the minus
			SHLL(Imm(11), h.As32())
			if l == 3 {
				SHRL(Imm(1), t.As32())
			} else {
				SHLL(Imm(uint64(8-3*l)), t.As32())
			}
			ANDL(U32(0x700), t.As32())
			ORL(t.As32(), h.As32())
			MOVBLZX(k.w.at(r, 2+4*g+l), to.As32())
			ORL(h.As32(), to.As32())
		}}
	}, func(k *kq) reg.VecVirtual { return k.four(0) })},
	{"iq1m", 56, iq1Narrow(func(k *kq, r int) iq1Row {
		x := YMM()
		VPBROADCASTQ(k.w.at(r, 48), x)
		VPSHUFB(fill("iq1m_words", 32, func(i int) byte { return byte(2*(i/8) + i%2) }), x, x)
		VPMULLW(words("iq1m_up", 16, func(i int) int { return 512 >> (3 * (i % 4)) }), x, x)
		VPSRLW(Imm(9), x, x)
		VPAND(words("word_7", 16, func(int) int { return 7 }), x, x)
		return iq1Row{scales: x, index: func(g, l int, to reg.GPVirtual) {
			t := GP64()
			MOVBLZX(k.w.at(r, 32+2*g+l/2), t.As32())
			if l%2 == 0 {
				ANDL(U32(15), t.As32())
			} else {
				SHRL(Imm(4), t.As32())
			}
			SHLL(Imm(8), t.As32())
			MOVBLZX(k.w.at(r, 4*g+l), to.As32())
			ORL(t.As32(), to.As32())
		}}
	}, func(k *kq) reg.VecVirtual {
		// The four upper nibbles of the scale words are the half.
		x := k.clean(XMM())
		q, m := GP64(), GP64()
		MOVQ(U64(0xf000f000f000f000), m)
		for r := range 4 {
			MOVQ(k.w.at(r, 48), q)
			PEXTQ(m, q, q)
			VPINSRW(Imm(uint64(r)), q.As32(), x, x)
		}
		VCVTPH2PS(x, x)
		return x
	})},
}

// iq1Row is a row's scales, 16 words before doubling and adding one, and where the index of octet l of run g is put.
type iq1Row struct {
	scales reg.VecVirtual
	index  func(g, l int, to reg.GPVirtual)
}

// iq1Narrow multiplies grids of -1, 0, 1. The book holds 9 more than eighths of weights, the eighth with the plus added
// for its lower 2048 entries, with the minus for the others.
func iq1Narrow(row func(k *kq, r int) iq1Row, half func(k *kq) reg.VecVirtual) func(k *kq) superBody {
	return func(k *kq) superBody {
		book, i := GP64(), GP64()
		MOVQ(global("bytesiq1"), book)
		return superBody{
			scales: func() (d, dmin reg.VecVirtual) {
				d = half(k)
				VMULPS(floatConst("parts_8", 0.125), d, d)
				return d, nil
			},
			row: func(r int) (isum, msum reg.VecVirtual) {
				x := row(k, r)
				s, t, sum := x.scales, YMM(), k.clean(YMM())
				VPADDW(s, s, s)
				VPOR(dwords("word_ones", repeat(8, 0x00010001)...), s, s)
				VPMULLW(words("word_9", 16, func(int) int { return 9 }), s, t)
				VPMADDWD(k.s.at(0, 0), t, t)
				VPSUBD(t, sum, sum)
				return k.narrowDots(sum, s, func(g int) (reg.VecVirtual, Op) {
					lo, hi := k.clean(YMM()), XMM()
					for l := range 4 {
						x.index(g, l, i)
						from := Mem{Base: book, Index: i, Scale: 8}
						v := []reg.VecVirtual{lo, hi}[l/2].AsX()
						if l%2 == 0 {
							VMOVQ(from, v)
						} else {
							VPINSRQ(Imm(1), from, v, v)
						}
					}
					VINSERTI128(Imm(1), hi, lo, lo)
					return lo, k.q.at(0, 32*g)
				}), nil
			},
		}
	}
}

// tq10Narrow takes base-3 digits off: a byte times three leaves the next digit on top, which is how often 86 and 171 fit.
func tq10Narrow(k *kq) superBody {
	ones := k.constant(dwords("word_ones", repeat(8, 0x00010001)...))
	neg := YMM()
	thrice := func(x reg.VecVirtual) reg.VecVirtual {
		y := YMM()
		VPADDB(x, x, y)
		VPADDB(x, y, y)
		return y
	}
	return superBody{
		prepare: func() {
			VMOVDQU(dwords("word_minus_1_narrow", repeat(8, 0xffffffff)...), neg)
			VPMADDWD(k.s.at(0, 0), neg, neg)
		},
		scales: k.one(52),
		row: func(r int) (isum, msum reg.VecVirtual) {
			var sum reg.VecVirtual
			add := func(g int, x reg.VecVirtual) {
				a, b := YMM(), YMM()
				VPMAXUB(k.bytesOf(86), x, a)
				VPCMPEQB(x, a, a)
				VPMAXUB(k.bytesOf(171), x, b)
				VPCMPEQB(x, b, b)
				VPADDB(b, a, a)
				VPABSB(a, a)
				VPMADDUBSW(k.q.at(0, 32*g), a, a)
				if sum == nil {
					sum = a
				} else {
					VPADDW(a, sum, sum)
				}
			}
			x := YMM()
			VMOVDQU(k.w.at(r, 0), x)
			for n := range 5 {
				add(n, x)
				if n < 4 {
					x = thrice(x)
				}
			}
			// 16 bytes: digits 0 and 1, 2 and 3, and 4 beside the last four bytes' four.
			y, z := YMM(), YMM()
			VBROADCASTI128(k.w.at(r, 32), y)
			VPBLENDD(Imm(0xf0), thrice(y), y, y)
			add(5, y)
			y = thrice(thrice(y))
			add(6, y)
			y = thrice(thrice(y))
			VPBROADCASTD(k.w.at(r, 48), z)
			VPBLENDD(Imm(0xf0), z, y, y)
			for n := 1; n < 4; n++ {
				z = thrice(z)
				VPBLENDD(Imm(0xf0<<n&0xf0), z, y, y)
			}
			add(7, y)
			VPMADDWD(ones, sum, sum)
			VPADDD(neg, sum, sum)
			return sum, nil
		},
	}
}
