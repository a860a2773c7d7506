package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// pairBody is runBody for AVX-512 kernels that do the float work of two rows in one vector, the even row's eight runs in
// its lower half.
type pairBody struct {
	prepare func()
	pair    func(r int) (isum, d reg.VecVirtual) // rows r and r+1: sums with codes too large by the offset, and scales
}

// pairType is a type with such a kernel.
type pairType struct {
	runType
	body func(k *runs) pairBody
}

var pairTypes = []pairType{
	{runType{name: "q20", size: 4 * 18, offset: 1}, q20Pair},
	{runType{name: "q40", size: 8 * 18, offset: 8}, nibblesPair(18, "")},
	{runType{name: "iq4nl", size: 8 * 18, offset: 128}, nibblesPair(18, "kv4")},
	{runType{name: "mxfp4", size: 8 * 17, offset: 12}, nibblesPair(17, "fp4")},
}

// runPairs writes the product of 4 rows with one column of Act32, as runRows does.
func (v isa) runPairs(t pairType) {
	TEXT(t.name+"Rows"+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(t.name + "Rows" + v.suffix() + " multiplies " + t.name + " weights, 8 runs of 32 a row or more; see matrixKernel.")
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	k := &runs{isa: v, t: t.runType, q: GP64(), d: GP64(), s: GP64(), stack: AllocLocal(136)}
	dist := k.stack.Offset(128)
	turned, blank := k.stack, k.stack.Offset(64)
	k.w = newLanes(stride)
	k.ahead = lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
	body := t.body(k)
	acc := [2]reg.VecVirtual{ZMM(), ZMM()}
	step := func(tail func(p reg.VecVirtual)) {
		fetch(k.ahead, t.size)
		body.prepare()
		less, dy := ZMM(), ZMM()
		VBROADCASTI32X4(Mem{Base: k.s}, less)
		VPMOVSXWD(less.AsY(), less)
		if t.offset != 1 {
			o := uint32(t.offset)
			VPMULLD(dwords(fmt.Sprintf("offsets_%d", o), repeat(16, o)...), less, less)
		}
		VBROADCASTF32X8(Mem{Base: k.d}, dy)
		for i, a := range acc {
			isum, d := body.pair(2 * i)
			VPSUBD(less, isum, isum)
			VCVTDQ2PS(isum, isum)
			VMULPS(dy, d, d)
			VMULPS(isum, d, d)
			if tail != nil {
				tail(d)
			}
			VADDPS(d, a, a)
		}
	}
	aheadOf(stride, dist)
	Label("next")
	MOVQ(wrow, k.w.base)
	MOVQ(wrow, k.ahead.base)
	ADDQ(dist, k.ahead.base)
	Load(Param("q"), k.q)
	Load(Param("d"), k.d)
	Load(Param("sums"), k.s)
	for _, a := range acc {
		v.clean(a)
	}
	n := Load(Param("nb"), GP64()).(reg.GPVirtual)
	SHRQ(Imm(3), n)
	loop("eight", n, func() {
		step(nil)
		ADDQ(U32(t.size), k.w.base)
		ADDQ(U32(t.size), k.ahead.base)
		ADDQ(U32(256), k.q)
		ADDQ(Imm(32), k.d)
		ADDQ(Imm(16), k.s)
	})
	Load(Param("nb"), n)
	ANDQ(Imm(7), n)
	JZ(LabelRef("join"))
	{
		// What is left goes as the row's last eight runs: n of them, turned to the first lanes of each half.
		turn, lane, first, half := ZMM(), ZMM(), ZMM(), ZMM()
		VPBROADCASTD(n.As32(), turn)
		k.mov(dwords("iota8_twice", 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7), lane)
		VPSUBD(turn, lane, turn)
		VPSRAD(Imm(31), turn, first)
		k.mov(first, blank)
		k.mov(dwords("half_of_16", 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8), half)
		VPANDD(dwords("dwords_7", repeat(16, 7)...), turn, turn)
		VPORD(half, turn, turn)
		k.mov(turn, turned)
		// Back by 8-n runs.
		SUBQ(Imm(8), n)
		x := GP64()
		IMUL3Q(U32(t.size), n, x)
		SARQ(Imm(3), x) // nb is a number of whole blocks
		ADDQ(x, k.w.base)
		ADDQ(x, k.ahead.base)
		MOVQ(n, x)
		SHLQ(Imm(5), x)
		ADDQ(x, k.q)
		LEAQ(Mem{Base: k.d, Index: n, Scale: 4}, k.d)
		LEAQ(Mem{Base: k.s, Index: n, Scale: 2}, k.s)
		step(func(p reg.VecVirtual) {
			turn := ZMM()
			k.mov(turned, turn)
			VPERMPS(p, turn, p)
			VPANDD(blank, p, p)
		})
	}
	Label("join")
	for i, a := range acc {
		x, y := YMM(), XMM()
		VEXTRACTF64X4(Imm(1), a, x)
		for r, h := range []reg.VecVirtual{a, x} {
			VEXTRACTF32X4(Imm(1), h.AsY(), y)
			VADDPS(y, h.AsX(), h.AsX())
			VSHUFPS(Imm(0xee), h.AsX(), h.AsX(), y)
			VADDPS(y, h.AsX(), h.AsX())
			VSHUFPS(Imm(0x55), h.AsX(), h.AsX(), y)
			VADDSS(y, h.AsX(), h.AsX())
			VMOVSS(h.AsX(), Mem{Base: dst, Disp: 4 * (2*i + r)})
		}
	}
	ADDQ(Imm(16), dst)
	LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, wrow)
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// nibblesPair is nibblesWide for types without minimums and fifth bits: blocks of size bytes that end in 16 of nibbles.
// The scales of four blocks all lie in the first 64 bytes.
func nibblesPair(size int, book string) func(k *runs) pairBody {
	return func(k *runs) pairBody {
		second := 4*size - 64 // where the second load of four blocks starts
		pick := k.constant(fill(fmt.Sprintf("nibbles_%d_%d", size, size-16), 64, func(i int) byte {
			at := size*(i/16) + size - 16 + i%16
			if at >= 64 {
				at += 64 - second
			}
			return byte(at)
		}))
		var heads reg.VecVirtual
		if size == 17 {
			heads = k.constant(fill("pair_heads_17", 64, func(i int) byte { return byte(17*(i%4) + i/4%2*64) }))
		} else {
			heads = k.constant(words("pair_heads_18", 32, func(i int) int { return 9*(i%4) + i/4%2*32 }))
		}
		natural := k.constant(dwords("rows_in_turn", 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15))
		nib := k.constant(k.bytesOf(15))
		var bookReg reg.VecVirtual
		if book != "" {
			bookReg = k.constant(k.book(book, k.t.offset))
		}
		return pairBody{
			prepare: k.splitAct,
			pair: func(r int) (isum, d reg.VecVirtual) {
				var p [4]reg.VecVirtual
				var h [2]reg.VecVirtual
				for row := range 2 {
					var first [2]reg.VecVirtual
					for i := range 2 {
						at := 4 * size * i
						first[i] = ZMM()
						lo, hi := move(pick), ZMM()
						VMOVDQU64(k.w.at(r+row, at), first[i])
						VPERMI2B(k.w.at(r+row, at+second), first[i], lo)
						VPSRLW(Imm(4), lo, hi)
						VPANDD(nib, lo, lo)
						VPANDD(nib, hi, hi)
						if book != "" {
							VPSHUFB(lo, bookReg, lo)
							VPSHUFB(hi, bookReg, hi)
						}
						sum := k.clean(ZMM())
						VPDPBUSD(k.act[2*i], lo, sum)
						VPDPBUSD(k.act[2*i+1], hi, sum)
						p[2*row+i] = sum
					}
					h[row] = move(heads)
					if size == 17 {
						VPERMI2B(first[1], first[0], h[row])
					} else {
						VPERMI2W(first[1], first[0], h[row])
					}
				}
				k.transpose4(p)
				VPERMD(p[0], natural, p[0])
				d = ZMM()
				if size == 17 {
					VPUNPCKLQDQ(h[1].AsX(), h[0].AsX(), h[0].AsX())
					VPMOVZXBD(h[0].AsX(), d)
					k.e8m0Pair(d)
				} else {
					VINSERTI32X4(Imm(1), h[1].AsX(), h[0].AsY(), h[0].AsY())
					VCVTPH2PS(h[0].AsY(), d)
				}
				return p[0], d
			},
		}
	}
}

// e8m0Pair is e8m0 in 512 bits.
func (k *runs) e8m0Pair(e reg.VecVirtual) {
	sub, t, low := ZMM(), ZMM(), K()
	k.mov(dwords("e8m0_sub_16", repeat(16, 0x00200000)...), sub)
	VPSUBD(dwords("dwords_1", repeat(16, 1)...), e, t)
	VPSLLD(Imm(23), t, t)
	VPCMPUD(Imm(1), dwords("dwords_2", repeat(16, 2)...), e, low)
	VPSLLVD(e, sub, low, t)
	VMOVDQA64(t, e)
}
