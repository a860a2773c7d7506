package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// unpacked writes the integer sums of weights that portable code has taken apart into signed codes, for any number of
// columns: |w| times a with w's sign.
func unpacked() {
	column := func(act Mem, code reg.VecVirtual) reg.VecVirtual {
		a, w := YMM(), YMM()
		VMOVDQU(act, a)
		VPSIGNB(code, a, a)
		VPABSB(code, w)
		VPMADDUBSW(a, w, a)
		return a
	}
	total := func(t reg.VecVirtual, dst Mem) {
		x, y := XMM(), XMM()
		VEXTRACTI128(Imm(1), t, x)
		VPADDD(x, t.AsX(), x)
		VPSHUFD(Imm(0x4e), x, y)
		VPADDD(y, x, x)
		VPSHUFD(Imm(0xb1), x, y)
		VPADDD(y, x, x)
		VMOVD(x, dst)
	}

	TEXT("superDotsAVX2", NOSPLIT, "func(isum *int32, msum *int32, codes *int8, scale *int16, min *int16, q *int8, n int, sums *int16, step int, cols int)")
	Pragma("noescape")
	Doc("superDotsAVX2 is superDotsGeneric: isum and msum of one super-block for cols columns, at distances of n bytes of", "activations and step bytes of sums.")
	w := Load(Param("codes"), GP64()).(reg.GPVirtual)
	sc, mn := ymm(Mem{Base: Load(Param("scale"), GP64())}), ymm(Mem{Base: Load(Param("min"), GP64())})
	lo, hi := YMM(), YMM()
	VPERMQ(Imm(0x44), sc, lo)
	VPERMQ(Imm(0xee), sc, hi)
	isum, msum := Load(Param("isum"), GP64()).(reg.GPVirtual), Load(Param("msum"), GP64()).(reg.GPVirtual)
	q, s := Load(Param("q"), GP64()).(reg.GPVirtual), Load(Param("sums"), GP64()).(reg.GPVirtual)
	n := Load(Param("cols"), GP64()).(reg.GPVirtual)
	loop("column", n, func() {
		acc := YMM()
		VPXOR(acc, acc, acc)
		for g := range 8 {
			p := column(Mem{Base: q, Disp: 32 * g}, ymm(Mem{Base: w, Disp: 32 * g}))
			t := YMM()
			VPSHUFB(wordSpread([]string{"pair0", "pair1", "pair2", "pair3"}[g%4], 32, func(l int) int { return 2*(g%4) + l }), []reg.VecVirtual{lo, hi}[g/4], t)
			VPMADDWD(t, p, p)
			VPADDD(p, acc, acc)
		}
		total(acc, Mem{Base: isum})
		t := YMM()
		VPMADDWD(Mem{Base: s}, mn, t)
		total(t, Mem{Base: msum})
		ADDQ(Imm(4), isum)
		ADDQ(Imm(4), msum)
		ADDQ(param("n"), q)
		ADDQ(param("step"), s)
	})
	VZEROUPPER()
	RET()

	TEXT("runDotsAVX2", NOSPLIT, "func(low *int32, high *int32, codes *int8, q *int8, n int, cols int)")
	Pragma("noescape")
	Doc("runDotsAVX2 is runDotsGeneric: the sums of both halves of a run of 32 for cols columns at a distance of n bytes.")
	code := ymm(Mem{Base: Load(Param("codes"), GP64())})
	ones := ymm(dwords("word_ones", repeat(8, 0x00010001)...))
	low, high := Load(Param("low"), GP64()).(reg.GPVirtual), Load(Param("high"), GP64()).(reg.GPVirtual)
	q = Load(Param("q"), GP64()).(reg.GPVirtual)
	n = Load(Param("cols"), GP64()).(reg.GPVirtual)
	loop("column", n, func() {
		p := column(Mem{Base: q}, code)
		VPMADDWD(ones, p, p)
		t := YMM()
		VPSHUFD(Imm(0x4e), p, t)
		VPADDD(t, p, p)
		VPSHUFD(Imm(0xb1), p, t)
		VPADDD(t, p, p)
		VMOVD(p.AsX(), Mem{Base: low})
		VEXTRACTI128(Imm(1), p, p.AsX())
		VMOVD(p.AsX(), Mem{Base: high})
		ADDQ(Imm(4), low)
		ADDQ(Imm(4), high)
		ADDQ(param("n"), q)
	})
	VZEROUPPER()
	RET()
}
