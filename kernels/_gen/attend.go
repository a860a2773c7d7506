package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// attendKernels writes what attention needs for four query heads that share their keys and values, the blocks of quantised
// caches, and the rotation of positions.
func attendKernels() {
	for _, t := range []string{"f32", "f16"} {
		scores4(t)
		values4(t)
		scores4Narrow(t)
		values4Narrow(t)
	}
	for _, v := range []isa{{}, {wide: true}} {
		v.scaleMax4()
		v.expSub4()
		v.decodeQ40()
	}
	isa{wide: true}.decodeQ80()
	encodeKV("q80")
	encodeKV("q40")
	isa{wide: true}.gateMul("silu", silu16)
	isa{wide: true}.gateMul("sigmoid", sigmoid16)
	isa{}.gateMul("sigmoid", sigmoid)
	rope()
}

var upper = map[string]string{"f32": "F32", "f16": "F16"}

// scores4 writes the products of four queries with groups of four keys: 16 accumulators of 16 lanes, joined by halves.
// The joins of all 16 go together, so that the last one leaves a key's four products side by side.
func scores4(typ string) {
	name := "scores4" + upper[typ] + "AVX512"
	TEXT(name, 0, "func(p *float32, k *byte, stride int, q *float32, n int, groups int)")
	Pragma("noescape")
	Doc(name+" sets p[4*i+j] to the product of key i and query j of n elements, a multiple of 16; keys lie at distance stride,", "4*groups of them, queries side by side.")
	p := Load(Param("p"), GP64()).(reg.GPVirtual)
	key := Load(Param("k"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	groups := Load(Param("groups"), GP64()).(reg.GPVirtual)
	qs := Load(Param("n"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), qs)
	k, q := newLanes(stride), newLanes(qs)
	n := GP64()
	var acc [4][4]reg.VecVirtual // [query][key]
	Label("group")
	MOVQ(key, k.base)
	Load(Param("q"), q.base)
	Load(Param("n"), n)
	SHRQ(Imm(4), n)
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = ZMM()
			VPXORD(acc[i][j], acc[i][j], acc[i][j])
		}
	}
	loop("sixteen", n, func() {
		var x [4]reg.VecVirtual
		for j := range x {
			x[j] = ZMM()
			widen(typ, k.at(j, 0), x[j], true)
		}
		for i := range acc {
			y := ZMM()
			VMOVUPS(q.at(i, 0), y)
			for j := range x {
				VFMADD231PS(y, x[j], acc[i][j])
			}
		}
		ADDQ(Imm(uint64(16*elemBytes[typ])), k.base)
		ADDQ(Imm(64), q.base)
	})
	pair := func(a, b reg.VecVirtual, lo, hi uint64) { // a becomes the sum of two shuffles of a and b
		t := ZMM()
		VSHUFF32X4(Imm(hi), b, a, t)
		VSHUFF32X4(Imm(lo), b, a, a)
		VADDPS(t, a, a)
	}
	// Lanes (i, i+8), then (i, i+4): afterwards the 128-bit lane of vector i is a key, four partial sums of query i.
	for i := range acc {
		pair(acc[i][0], acc[i][1], 0x44, 0xee)
		pair(acc[i][2], acc[i][3], 0x44, 0xee)
		pair(acc[i][0], acc[i][2], 0x88, 0xdd)
	}
	for i := 0; i < 4; i += 2 { // (i, i+2)
		t := ZMM()
		VUNPCKHPD(acc[i+1][0], acc[i][0], t)
		VUNPCKLPD(acc[i+1][0], acc[i][0], acc[i][0])
		VADDPS(t, acc[i][0], acc[i][0])
	}
	t := ZMM()
	VSHUFPS(Imm(0xdd), acc[2][0], acc[0][0], t)
	VSHUFPS(Imm(0x88), acc[2][0], acc[0][0], acc[0][0])
	VADDPS(t, acc[0][0], acc[0][0])
	VMOVUPS(acc[0][0], Mem{Base: p})
	ADDQ(Imm(64), p)
	LEAQ(Mem{Base: key, Index: stride, Scale: 4}, key)
	DECQ(groups)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// scores4Narrow is scores4 for AVX2: one key at a time, two registers of eight lanes for each query.
func scores4Narrow(typ string) {
	name := "scores4" + upper[typ] + "AVX2"
	TEXT(name, 0, "func(p *float32, k *byte, stride int, q *float32, n int, groups int)")
	Pragma("noescape")
	Doc(name+" sets p[4*i+j] to the product of key i and query j of n elements, a multiple of 16; keys lie at distance stride,", "4*groups of them, queries side by side.")
	p := Load(Param("p"), GP64()).(reg.GPVirtual)
	key := Load(Param("k"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	keys := Load(Param("groups"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), keys)
	qs := Load(Param("n"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), qs)
	q := newLanes(qs)
	k, n := GP64(), GP64()
	v := isa{}
	acc := make([][4]reg.VecVirtual, 2)
	Label("key")
	MOVQ(key, k)
	Load(Param("q"), q.base)
	Load(Param("n"), n)
	SHRQ(Imm(4), n)
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = YMM()
			VXORPS(acc[i][j], acc[i][j], acc[i][j])
		}
	}
	loop("sixteen", n, func() {
		for i := range acc {
			x := YMM()
			widen(typ, Mem{Base: k, Disp: 8 * i * elemBytes[typ]}, x, false)
			for j := range acc[i] {
				VFMADD231PS(q.at(j, 32*i), x, acc[i][j])
			}
		}
		ADDQ(Imm(uint64(16*elemBytes[typ])), k)
		ADDQ(Imm(64), q.base)
	})
	VMOVUPS(v.join16(acc), Mem{Base: p})
	ADDQ(Imm(16), p)
	ADDQ(stride, key)
	DECQ(keys)
	JNZ(LabelRef("key"))
	VZEROUPPER()
	RET()
}

// values4Narrow is values4 for AVX2.
func values4Narrow(typ string) {
	name := "values4" + upper[typ] + "AVX2"
	TEXT(name, 0, "func(out *float32, p *float32, v *byte, stride int, n int, dims int, sums *float32)")
	Pragma("noescape")
	Doc(name+" sets out[h][j] to fma(p[4*i+h], v[i][j], out[h][j]) for rows i < n in order, four heads h of dims elements, a multiple of", "16, and sums[h] to the sum of p[4*i+h] in order.")
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	vbase := Load(Param("v"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	dims := Load(Param("dims"), GP64()).(reg.GPVirtual)
	hs := GP64()
	MOVQ(dims, hs)
	SHLQ(Imm(2), hs)
	o := newLanes(hs)
	MOVQ(out, o.base)
	sum := XMM()
	Label("sixteen")
	var acc [4][2]reg.VecVirtual
	for h := range acc {
		for r := range acc[h] {
			acc[h][r] = YMM()
			VMOVUPS(o.at(h, 32*r), acc[h][r])
		}
	}
	p, row, n := GP64(), GP64(), GP64()
	Load(Param("p"), p)
	Load(Param("n"), n)
	MOVQ(vbase, row)
	VXORPS(sum, sum, sum)
	loop("rows", n, func() {
		var x [2]reg.VecVirtual
		for r := range x {
			x[r] = YMM()
			widen(typ, Mem{Base: row, Disp: 8 * r * elemBytes[typ]}, x[r], false)
		}
		VADDPS(Mem{Base: p}, sum, sum)
		for h := range acc {
			w := YMM()
			VBROADCASTSS(Mem{Base: p, Disp: 4 * h}, w)
			for r, a := range acc[h] {
				VFMADD231PS(x[r], w, a)
			}
		}
		ADDQ(Imm(16), p)
		ADDQ(stride, row)
	})
	for h := range acc {
		for r, a := range acc[h] {
			VMOVUPS(a, o.at(h, 32*r))
		}
	}
	ADDQ(Imm(64), o.base)
	ADDQ(Imm(uint64(16*elemBytes[typ])), vbase)
	SUBQ(Imm(16), dims)
	JNZ(LabelRef("sixteen"))
	sums := Load(Param("sums"), GP64()).(reg.GPVirtual)
	VMOVUPS(sum, Mem{Base: sums})
	VZEROUPPER()
	RET()
}

// values4 writes the weighted sums of value rows for four heads at once.
func values4(typ string) {
	name := "values4" + upper[typ] + "AVX512"
	TEXT(name, 0, "func(out *float32, p *float32, v *byte, stride int, n int, dims int, sums *float32)")
	Pragma("noescape")
	Doc(name+" sets out[h][j] to fma(p[4*i+h], v[i][j], out[h][j]) for rows i < n in order, four heads h of dims elements, a multiple of", "16, and sums[h] to the sum of p[4*i+h] in order.")
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	vbase := Load(Param("v"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	dims := Load(Param("dims"), GP64()).(reg.GPVirtual)
	hs := GP64()
	MOVQ(dims, hs)
	SHLQ(Imm(2), hs)
	o := newLanes(hs)
	MOVQ(out, o.base)
	sum := XMM()
	chunk := func(name string, regs int) {
		var acc [4][]reg.VecVirtual
		for h := range acc {
			for r := range regs {
				a := ZMM()
				VMOVUPS(o.at(h, 64*r), a)
				acc[h] = append(acc[h], a)
			}
		}
		p, row, n := GP64(), GP64(), GP64()
		Load(Param("p"), p)
		Load(Param("n"), n)
		MOVQ(vbase, row)
		VXORPS(sum, sum, sum)
		loop(name, n, func() {
			var x []reg.VecVirtual
			for r := range regs {
				t := ZMM()
				widen(typ, Mem{Base: row, Disp: r * 16 * elemBytes[typ]}, t, true)
				x = append(x, t)
			}
			VADDPS(Mem{Base: p}, sum, sum)
			for h := range acc {
				w := ZMM()
				VBROADCASTSS(Mem{Base: p, Disp: 4 * h}, w)
				for r, a := range acc[h] {
					VFMADD231PS(x[r], w, a)
				}
			}
			ADDQ(Imm(16), p)
			ADDQ(stride, row)
		})
		for h := range acc {
			for r, a := range acc[h] {
				VMOVUPS(a, o.at(h, 64*r))
			}
		}
		ADDQ(U32(uint32(64*regs)), o.base)
		ADDQ(U32(uint32(16*regs*elemBytes[typ])), vbase)
		SUBQ(U32(uint32(16*regs)), dims)
	}
	Label("many")
	CMPQ(dims, Imm(64))
	JLT(LabelRef("few"))
	chunk("rows_many", 4)
	JMP(LabelRef("many"))
	Label("few")
	TESTQ(dims, dims)
	JZ(LabelRef("done"))
	chunk("rows_few", 1)
	JMP(LabelRef("few"))
	Label("done")
	sums := Load(Param("sums"), GP64()).(reg.GPVirtual)
	VMOVUPS(sum, Mem{Base: sums})
	VZEROUPPER()
	RET()
}

func (v isa) scaleMax4() {
	name := "scaleMax4" + v.suffix()
	TEXT(name, NOSPLIT, "func(p *float32, n int, scale float32, top *float32)")
	Pragma("noescape")
	Doc(name+" multiplies n floats, a multiple of 16, by scale and sets top[j] to the largest product of index j modulo 4,", "at least -Inf, NaN left out.")
	s, top := v.vec(), v.vec()
	m, _ := Param("scale").Resolve()
	VBROADCASTSS(m.Addr, s)
	VBROADCASTSS(dwords("minus_inf", repeat(8, 0xff800000)...), top)
	elemLoop([]string{"p"}, []int{v.size()}, "n", v.size()/4, func(p []reg.GPVirtual) {
		x := v.vec()
		VMULPS(Mem{Base: p[0]}, s, x)
		VMOVUPS(x, Mem{Base: p[0]})
		VMAXPS(top, x, top) // a NaN in x leaves the second operand
	})
	if v.wide {
		h := YMM()
		VEXTRACTF32X8(Imm(1), top, h)
		VMAXPS(h, top.AsY(), top.AsY())
	}
	x := XMM()
	VEXTRACTF128(Imm(1), top.AsY(), x)
	VMAXPS(x, top.AsX(), x)
	out := Load(Param("top"), GP64()).(reg.GPVirtual)
	VMOVUPS(x, Mem{Base: out})
	VZEROUPPER()
	RET()
}

func (v isa) expSub4() {
	name := "expSub4" + v.suffix()
	TEXT(name, NOSPLIT, "func(p *float32, n int, top *float32)")
	Pragma("noescape")
	Doc(name + " sets n floats p, a multiple of 16, to exp(p-top[index modulo 4]).")
	top := v.vec()
	t := Load(Param("top"), GP64()).(reg.GPVirtual)
	if v.wide {
		VBROADCASTF32X4(Mem{Base: t}, top)
	} else {
		VBROADCASTF128(Mem{Base: t}, top)
	}
	elemLoop([]string{"p"}, []int{v.size()}, "n", v.size()/4, func(p []reg.GPVirtual) {
		x := v.vec()
		VMOVUPS(Mem{Base: p[0]}, x)
		VSUBPS(top, x, x)
		if v.wide {
			x = exp16(x)
		} else {
			x = exp(x)
		}
		VMOVUPS(x, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

// exp16 is fmath.Exp in 16 lanes.
func exp16(x reg.VecVirtual) reg.VecVirtual {
	c := func(name string, f float32) Mem { return floatConst("exp_"+name, f) }
	kept, nan := K(), K()
	VCMPPS_BCST(Imm(5), c("min", -87.33654), x, kept) // not less than, so that NaN is kept
	VCMPPS(Imm(3), x, x, nan)                         // unordered
	y := ZMM()
	VMINPS_BCST(c("max", 88.37626), x, y)
	n, t := ZMM(), ZMM()
	VMULPS_BCST(c("log2e", 1.44269504), y, n)
	VADDPS_BCST(c("magic", 12582912), n, n)
	VSUBPS_BCST(c("magic", 12582912), n, n)
	VMULPS_BCST(c("hi", 0.693359375), n, t)
	VSUBPS(t, y, y)
	VMULPS_BCST(c("lo", -2.12194440e-4), n, t)
	VSUBPS(t, y, y)
	p := ZMM()
	VMULPS_BCST(c("c0", 1.9875691500e-4), y, p)
	VADDPS_BCST(c("c1", 1.3981999507e-3), p, p)
	for i, f := range []float32{8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		VMULPS(y, p, p)
		VADDPS_BCST(c([]string{"c2", "c3", "c4", "c5"}[i], f), p, p)
	}
	VMULPS(y, y, t)
	VMULPS(t, p, p)
	VADDPS(y, p, p)
	VADDPS_BCST(c("one", 1), p, p)
	VCVTTPS2DQ(n, n)
	VPSLLD(Imm(23), n, n)
	VPADDD(n, p, p)
	r := ZMM()
	VMOVUPS_Z(p, kept, r)
	VMOVUPS(x, nan, r)
	return r
}

// recip16 is fmath.Recip in 16 lanes.
func recip16(y reg.VecVirtual) reg.VecVirtual {
	r, t, two, one := ZMM(), ZMM(), ZMM(), ZMM()
	VPBROADCASTD(dwords("recip_guess", repeat(8, 0x7EF311C3)...), r)
	VBROADCASTSS(floatConst("recip_two", 2), two)
	VBROADCASTSS(floatConst("exp_one", 1), one)
	VPSUBD(y, r, r)
	for range 3 {
		VMULPS(r, y, t)
		VSUBPS(t, two, t)
		VMULPS(t, r, r)
	}
	VMULPS(r, y, t)
	VSUBPS(t, one, t)
	VMULPS(t, r, t)
	VADDPS(t, r, r)
	return r
}

// silu16 is fmath.Silu in 16 lanes.
func silu16(g reg.VecVirtual) reg.VecVirtual {
	s := sigmoid16(g)
	VMULPS(s, g, s)
	return s
}

// sigmoid16 is fmath.Sigmoid in 16 lanes.
func sigmoid16(g reg.VecVirtual) reg.VecVirtual {
	x := ZMM()
	VBROADCASTSS(floatConst("silu_min", -87), x)
	VMAXPS(g, x, x) // a NaN in g is taken: the second operand
	VPXORD_BCST(dwords("float_sign", repeat(8, 0x80000000)...), x, x)
	e := exp16(x)
	VADDPS_BCST(floatConst("exp_one", 1), e, e)
	s := recip16(e)
	nan := K()
	VCMPPS(Imm(3), g, g, nan)
	VMOVUPS(g, nan, s)
	return s
}

// gateMul writes the product of a vector with a function of its gate; SwiGLU's AVX2 form is among the common ones.
func (v isa) gateMul(name string, f func(g reg.VecVirtual) reg.VecVirtual) {
	full := name + "Mul" + v.suffix()
	TEXT(full, NOSPLIT, "func(dst *float32, gate *float32, up *float32, n int)")
	Pragma("noescape")
	Doc(full + " sets dst to " + name + "(gate)*up; n is a multiple of the vector's lanes.")
	step := v.size()
	elemLoop([]string{"dst", "gate", "up"}, []int{step, step, step}, "n", step/4, func(p []reg.GPVirtual) {
		g := v.vec()
		VMOVUPS(Mem{Base: p[1]}, g)
		s := f(g)
		VMULPS(Mem{Base: p[2]}, s, s)
		VMOVUPS(s, Mem{Base: p[0]})
	})
	VZEROUPPER()
	RET()
}

func rope() {
	TEXT("ropeAVX2", NOSPLIT, "func(lo *float32, hi *float32, cos *float32, sin *float32, n int)")
	Pragma("noescape")
	Doc("ropeAVX2 turns n pairs (lo, hi), a multiple of 8, by their angles; products and sums are rounded one by one.")
	elemLoop([]string{"lo", "hi", "cos", "sin"}, []int{32, 32, 32, 32}, "n", 8, func(p []reg.GPVirtual) {
		a, b := ymm(Mem{Base: p[0]}), ymm(Mem{Base: p[1]})
		c, s := ymm(Mem{Base: p[2]}), ymm(Mem{Base: p[3]})
		ac, bs, as, bc := YMM(), YMM(), YMM(), YMM()
		VMULPS(a, c, ac)
		VMULPS(b, s, bs)
		VMULPS(a, s, as)
		VMULPS(b, c, bc)
		VSUBPS(bs, ac, ac)
		VADDPS(as, bc, bc)
		VMOVUPS(ac, Mem{Base: p[0]})
		VMOVUPS(bc, Mem{Base: p[1]})
	})
	VZEROUPPER()
	RET()
}
