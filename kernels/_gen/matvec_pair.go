package main

import (
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
			VPMULLD(dwords("offsets_16", repeat(16, o)...), less, less)
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
