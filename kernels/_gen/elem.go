package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// elementwise writes the functions of vectors of float32. They are AVX2 on every level: none of them bounds anything.
// Lengths are multiples of 8 (32 for quantisation) and not zero.
func elementwise() {
	sumSquares()
	scaleRows()
	siluMul()
	expBlock()
	scaleMax()
	scale()
	addScaled()
	toHalf()
	largest()
	quantScales()
	quantize()
}

func ymm(m Mem) reg.VecVirtual {
	r := YMM()
	VMOVUPS(m, r)
	return r
}

func elemLoop(ptrs []string, step []int, n string, per int, body func(p []reg.GPVirtual)) {
	p := make([]reg.GPVirtual, len(ptrs))
	for i, name := range ptrs {
		p[i] = Load(Param(name), GP64()).(reg.GPVirtual)
	}
	c := Load(Param(n), GP64()).(reg.GPVirtual)
	if per > 1 {
		sh := 0
		for 1<<sh < per {
			sh++
		}
		SHRQ(Imm(uint64(sh)), c)
	}
	loop("loop", c, func() {
		body(p)
		for i := range p {
			ADDQ(U32(uint32(step[i])), p[i])
		}
	})
}

func sumSquares() {
	TEXT("sumSquaresAVX2", NOSPLIT, "func(x *float32, n int, acc *float64)")
	Pragma("noescape")
	Doc("sumSquaresAVX2 sets acc[i] to the sum of the squares of the elements with index i modulo 8, in float64.")
	a, b := YMM(), YMM()
	VXORPD(a, a, a)
	VXORPD(b, b, b)
	elemLoop([]string{"x"}, []int{32}, "n", 8, func(p []reg.GPVirtual) {
		x, y := YMM(), YMM()
		VCVTPS2PD(Mem{Base: p[0]}, x)
		VCVTPS2PD(Mem{Base: p[0], Disp: 16}, y)
		VFMADD231PD(x, x, a) // a square is exact in float64: fused or not is the same
		VFMADD231PD(y, y, b)
	})
	acc := Load(Param("acc"), GP64()).(reg.GPVirtual)
	VMOVUPD(a, Mem{Base: acc})
	VMOVUPD(b, Mem{Base: acc, Disp: 32})
	VZEROUPPER()
	RET()
}

func scaleRows() {
	TEXT("scaleMulAVX2", NOSPLIT, "func(dst *float32, x *float32, w *float32, n int, scale float32)")
	Pragma("noescape")
	Doc("scaleMulAVX2 sets dst to (x*scale)*w.")
	s := YMM()
	m, _ := Param("scale").Resolve()
	VBROADCASTSS(m.Addr, s)
	elemLoop([]string{"dst", "x", "w"}, []int{32, 32, 32}, "n", 8, func(p []reg.GPVirtual) {
		y := YMM()
		VMULPS(Mem{Base: p[1]}, s, y)
		VMULPS(Mem{Base: p[2]}, y, y)
		VMOVUPS(y, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

// exp is fmath.Exp in eight lanes.
func exp(x reg.VecVirtual) reg.VecVirtual {
	c := func(name string, f float32) Mem { return floatConst("exp_"+name, f) }
	low, nan := YMM(), YMM()
	VCMPPS(Imm(1), c("min", -87.33654), x, low) // less than
	VCMPPS(Imm(3), x, x, nan)                   // unordered
	y := YMM()
	VMINPS(c("max", 88.37626), x, y)
	n, t := YMM(), YMM()
	VMULPS(c("log2e", 1.44269504), y, n)
	VADDPS(c("magic", 12582912), n, n)
	VSUBPS(c("magic", 12582912), n, n)
	VMULPS(c("hi", 0.693359375), n, t)
	VSUBPS(t, y, y)
	VMULPS(c("lo", -2.12194440e-4), n, t)
	VSUBPS(t, y, y)
	p := YMM()
	VMULPS(c("c0", 1.9875691500e-4), y, p)
	VADDPS(c("c1", 1.3981999507e-3), p, p)
	for i, f := range []float32{8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		VMULPS(y, p, p)
		VADDPS(c([]string{"c2", "c3", "c4", "c5"}[i], f), p, p)
	}
	VMULPS(y, y, t)
	VMULPS(t, p, p)
	VADDPS(y, p, p)
	VADDPS(c("one", 1), p, p)
	VCVTTPS2DQ(n, n)
	VPSLLD(Imm(23), n, n)
	VPADDD(n, p, p)
	VANDNPS(p, low, p)
	VBLENDVPS(nan, x, p, p)
	return p
}

// recip is fmath.Recip in eight lanes.
func recip(y reg.VecVirtual) reg.VecVirtual {
	guess := dwords("recip_guess", repeat(8, 0x7EF311C3)...)
	two, one := floatConst("recip_two", 2), floatConst("exp_one", 1)
	r, t, k := YMM(), YMM(), YMM()
	VMOVDQU(guess, r)
	VPSUBD(y, r, r)
	VMOVUPS(two, k)
	for range 3 {
		VMULPS(r, y, t)
		VSUBPS(t, k, t)
		VMULPS(t, r, r)
	}
	VMOVUPS(one, k)
	VMULPS(r, y, t)
	VSUBPS(t, k, t)
	VMULPS(t, r, t)
	VADDPS(t, r, r)
	return r
}

// silu is fmath.Silu in eight lanes.
func silu(g reg.VecVirtual) reg.VecVirtual {
	s := sigmoid(g)
	VMULPS(s, g, s)
	return s
}

// sigmoid is fmath.Sigmoid in eight lanes.
func sigmoid(g reg.VecVirtual) reg.VecVirtual {
	x := YMM()
	VMOVUPS(floatConst("silu_min", -87), x)
	VMAXPS(g, x, x) // a NaN in g is taken: the second operand
	VXORPS(dwords("float_sign", repeat(8, 0x80000000)...), x, x)
	e := exp(x)
	VADDPS(floatConst("exp_one", 1), e, e)
	s := recip(e)
	nan := YMM()
	VCMPPS(Imm(3), g, g, nan)
	VBLENDVPS(nan, g, s, s)
	return s
}

func siluMul() {
	TEXT("siluMulAVX2", NOSPLIT, "func(dst *float32, gate *float32, up *float32, n int)")
	Pragma("noescape")
	Doc("siluMulAVX2 sets dst to silu(gate)*up.")
	elemLoop([]string{"dst", "gate", "up"}, []int{32, 32, 32}, "n", 8, func(p []reg.GPVirtual) {
		s := silu(ymm(Mem{Base: p[1]}))
		VMULPS(Mem{Base: p[2]}, s, s)
		VMOVUPS(s, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

func expBlock() {
	TEXT("expSubAVX2", NOSPLIT, "func(p *float32, n int, top float32)")
	Pragma("noescape")
	Doc("expSubAVX2 sets p to exp(p-top).")
	top := YMM()
	m, _ := Param("top").Resolve()
	VBROADCASTSS(m.Addr, top)
	elemLoop([]string{"p"}, []int{32}, "n", 8, func(p []reg.GPVirtual) {
		x := ymm(Mem{Base: p[0]})
		VSUBPS(top, x, x)
		VMOVUPS(exp(x), Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

func scaleMax() {
	TEXT("scaleMaxAVX2", NOSPLIT, "func(p *float32, n int, scale float32) float32")
	Pragma("noescape")
	Doc("scaleMaxAVX2 multiplies p by scale and returns the largest product, at least -Inf, NaN left out.")
	s, top := YMM(), YMM()
	m, _ := Param("scale").Resolve()
	VBROADCASTSS(m.Addr, s)
	VMOVUPS(dwords("minus_inf", repeat(8, 0xff800000)...), top)
	elemLoop([]string{"p"}, []int{32}, "n", 8, func(p []reg.GPVirtual) {
		x := YMM()
		VMULPS(Mem{Base: p[0]}, s, x)
		VMOVUPS(x, Mem{Base: p[0]})
		VMAXPS(top, x, top) // a NaN in x leaves the second operand
	})
	x := XMM()
	VEXTRACTF128(Imm(1), top, x)
	VMAXPS(x, top.AsX(), x)
	t := XMM()
	VSHUFPS(Imm(0x4e), x, x, t)
	VMAXPS(t, x, x)
	VSHUFPS(Imm(0xb1), x, x, t)
	VMAXSS(t, x, x)
	VZEROUPPER()
	Store(x, ReturnIndex(0))
	RET()
}

func scale() {
	TEXT("scaleAVX2", NOSPLIT, "func(x *float32, n int, f float32)")
	Pragma("noescape")
	Doc("scaleAVX2 multiplies x by f.")
	f := YMM()
	m, _ := Param("f").Resolve()
	VBROADCASTSS(m.Addr, f)
	elemLoop([]string{"x"}, []int{32}, "n", 8, func(p []reg.GPVirtual) {
		x := YMM()
		VMULPS(Mem{Base: p[0]}, f, x)
		VMOVUPS(x, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

func toHalf() {
	TEXT("toHalfAVX2", NOSPLIT, "func(dst *byte, src *float32, n int)")
	Pragma("noescape")
	Doc("toHalfAVX2 narrows src to binary16, ties to even.")
	elemLoop([]string{"dst", "src"}, []int{16, 32}, "n", 8, func(p []reg.GPVirtual) {
		VCVTPS2PH(Imm(0), ymm(Mem{Base: p[1]}), Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

func largest() {
	TEXT("largestAVX2", NOSPLIT, "func(d *float32, x *float32, blocks int, per int)")
	Pragma("noescape")
	Doc("largestAVX2 sets d[b] to the largest magnitude in block b of x, as unsigned bits; per, the block length, is a", "multiple of 32.")
	mask := ymm(dwords("float_magnitude", repeat(8, 0x7fffffff)...))
	elemLoop([]string{"d", "x"}, []int{4, 0}, "blocks", 1, func(p []reg.GPVirtual) {
		n := Load(Param("per"), GP64()).(reg.GPVirtual)
		SHRQ(Imm(5), n)
		top := YMM()
		VPXOR(top, top, top)
		loop("within", n, func() {
			for i := range 4 {
				x := YMM()
				VPAND(Mem{Base: p[1], Disp: 32 * i}, mask, x)
				VPMAXUD(x, top, top)
			}
			ADDQ(U32(128), p[1])
		})
		x := XMM()
		VEXTRACTI128(Imm(1), top, x)
		VPMAXUD(x, top.AsX(), x)
		t := XMM()
		VPSHUFD(Imm(0x4e), x, t)
		VPMAXUD(t, x, x)
		VPSHUFD(Imm(0xb1), x, t)
		VPMAXUD(t, x, x)
		VMOVD(x, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

// quantScales is quantScale in eight lanes.
func quantScales() {
	TEXT("quantScalesAVX2", NOSPLIT, "func(d *float32, inv *float32, n int)")
	Pragma("noescape")
	Doc("quantScalesAVX2 turns the magnitudes d into scales, and sets inv to the factors, as quantScale does.")
	c := func(name string, u uint32) Mem { return dwords("quant_"+name, repeat(8, u)...) }
	elemLoop([]string{"d", "inv"}, []int{32, 32}, "n", 8, func(p []reg.GPVirtual) {
		u := ymm(Mem{Base: p[0]})
		m := YMM()
		VPAND(c("mantissa", 0x7fffff), u, m)
		VPOR(floatConst("exp_one", 1), m, m)
		r := recip(m)
		VMULPS(floatConst("quant_127", 127), r, r)
		VPADDD(floatConst("exp_one", 1), r, r)
		e := YMM()
		VPAND(c("exponent", 0x7f800000), u, e)
		VPSUBD(e, r, r)
		d := YMM()
		VMULPS(floatConst("quant_inv127", float32(1.0/127)), u, d)
		// Magnitudes are not negative as int32: signed comparisons serve.
		small, big := YMM(), YMM()
		VMOVDQU(c("min", (127-100)<<23), small)
		VPCMPGTD(u, small, small)
		VPCMPGTD(c("max", 0x7f7fffff), u, big)
		VPANDN(r, small, r)
		VPANDN(r, big, r)
		VPANDN(d, small, d)
		VBLENDVPS(big, c("nan", 0x7fc00000), d, d)
		VMOVUPS(d, Mem{Base: p[0]})
		VMOVUPS(r, Mem{Base: p[1]})
	})
	VZEROUPPER()
	RET()
}

// quantize writes quant32AVX2 and quant256AVX2.
func quantize() {
	// pack32 rounds 32 elements at p to int8, zero where inv is zero.
	pack32 := func(p Mem, inv, keep reg.VecVirtual) reg.VecVirtual {
		var q [4]reg.VecVirtual
		for i := range q {
			q[i] = YMM()
			VMULPS(p.Offset(32*i), inv, q[i])
			VCVTPS2DQ(q[i], q[i])
			VPAND(keep, q[i], q[i])
		}
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		order := ymm(dwords("pack_order", 0, 4, 1, 5, 2, 6, 3, 7))
		VPERMD(q[0], order, q[0])
		return q[0]
	}
	// fours sums each four neighbours to an int32.
	fours := func(q, bytes, words reg.VecVirtual) reg.VecVirtual {
		t := YMM()
		VPMADDUBSW(q, bytes, t)
		VPMADDWD(words, t, t)
		return t
	}
	ones := func() (b, w reg.VecVirtual) {
		return ymm(fill("byte_ones", 32, func(int) byte { return 1 })), ymm(dwords("word_ones", repeat(8, 0x00010001)...))
	}
	factor := func(m Mem) (inv, keep reg.VecVirtual) {
		inv, keep = YMM(), YMM()
		VBROADCASTSS(m, inv)
		VXORPS(keep, keep, keep)
		VCMPPS(Imm(4), keep, inv, keep) // not equal
		return inv, keep
	}

	TEXT("quant32AVX2", NOSPLIT, "func(q *int8, sums *int16, inv *float32, x *float32, blocks int)")
	Pragma("noescape")
	Doc("quant32AVX2 sets q to x*inv rounded, one factor for each 32, and sums to the blocks' sums.")
	b, w := ones()
	elemLoop([]string{"q", "sums", "inv", "x"}, []int{32, 2, 4, 128}, "blocks", 1, func(p []reg.GPVirtual) {
		inv, keep := factor(Mem{Base: p[2]})
		q := pack32(Mem{Base: p[3]}, inv, keep)
		VMOVDQU(q, Mem{Base: p[0]})
		t := fours(q, b, w)
		x, y := XMM(), XMM()
		VEXTRACTI128(Imm(1), t, x)
		VPADDD(x, t.AsX(), x)
		VPSHUFD(Imm(0x4e), x, y)
		VPADDD(y, x, x)
		VPSHUFD(Imm(0xb1), x, y)
		VPADDD(y, x, x)
		VPEXTRW(Imm(0), x, Mem{Base: p[1]})
	})
	VZEROUPPER()
	RET()

	TEXT("quant256AVX2", NOSPLIT, "func(q *int8, sums *int16, inv *float32, x *float32, blocks int)")
	Pragma("noescape")
	Doc("quant256AVX2 does the same for blocks of 256 with their 24 sums.")
	b, w = ones()
	elemLoop([]string{"q", "sums", "inv", "x"}, []int{256, 48, 4, 1024}, "blocks", 1, func(p []reg.GPVirtual) {
		inv, keep := factor(Mem{Base: p[2]})
		var u [2]reg.VecVirtual
		for h := range u {
			var s [4]reg.VecVirtual
			for i := range s {
				q := pack32(Mem{Base: p[3], Disp: 512*h + 128*i}, inv, keep)
				VMOVDQU(q, Mem{Base: p[0], Disp: 128*h + 32*i})
				s[i] = fours(q, b, w)
			}
			// Lane 0 gets the even runs of 16, lane 1 the odd ones.
			VPHADDD(s[1], s[0], s[0])
			VPHADDD(s[3], s[2], s[2])
			VPHADDD(s[2], s[0], s[0])
			u[h] = s[0]
		}
		var both [2]reg.VecVirtual
		for h := range u {
			odd, t := XMM(), XMM()
			both[h] = XMM()
			VEXTRACTI128(Imm(1), u[h], odd)
			VPADDD(odd, u[h].AsX(), both[h])
			VPUNPCKLDQ(odd, u[h].AsX(), t)
			VPUNPCKHDQ(odd, u[h].AsX(), odd)
			VPACKSSDW(odd, t, t)
			VMOVDQU(t, Mem{Base: p[1], Disp: 16 * h})
		}
		VPACKSSDW(both[1], both[0], both[0])
		VMOVDQU(both[0], Mem{Base: p[1], Disp: 32})
	})
	VZEROUPPER()
	RET()
}

func addScaled() {
	TEXT("addScaledAVX2", NOSPLIT, "func(dst *float32, x *float32, n int, w float32)")
	Pragma("noescape")
	Doc("addScaledAVX2 adds w*x to dst, the product rounded first.")
	w := YMM()
	m, _ := Param("w").Resolve()
	VBROADCASTSS(m.Addr, w)
	elemLoop([]string{"dst", "x"}, []int{32, 32}, "n", 8, func(p []reg.GPVirtual) {
		x := YMM()
		VMULPS(Mem{Base: p[1]}, w, x)
		VADDPS(Mem{Base: p[0]}, x, x)
		VMOVUPS(x, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}
