package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// half16 widens one half to all lanes of a full register.
func (v isa) halfAll(m Mem) reg.VecVirtual {
	d := v.vec()
	VPBROADCASTW(m, d.AsX())
	VCVTPH2PS(d.AsX(), d.AsX())
	VBROADCASTSS(d.AsX(), d)
	return d
}

// scaled stores scale*code for as many signed bytes as the vector has lanes.
func (v isa) scaled(src Op, scale reg.VecVirtual, dst Mem) {
	x := v.vec()
	VPMOVSXBD(src, x)
	VCVTDQ2PS(x, x)
	VMULPS(scale, x, x)
	VMOVUPS(x, dst)
}

func (v isa) decodeQ80() {
	name := "decodeQ80" + v.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, w *byte, blocks int)")
	Pragma("noescape")
	Doc(name + " decodes blocks of Q8_0.")
	lanes := v.size() / 4
	elemLoop([]string{"dst", "w"}, []int{128, 34}, "blocks", 1, func(p []reg.GPVirtual) {
		d := v.halfAll(Mem{Base: p[1]})
		for i := 0; i < 32; i += lanes {
			v.scaled(Mem{Base: p[1], Disp: 2 + i}, d, Mem{Base: p[0], Disp: 4 * i})
		}
	})
	VZEROUPPER()
	RET()
}

func (v isa) decodeQ40() {
	name := "decodeQ40" + v.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, w *byte, blocks int)")
	Pragma("noescape")
	Doc(name + " decodes blocks of Q4_0.")
	nib, eight := XMM(), XMM()
	VMOVDQU(fill("nibble", 32, func(int) byte { return 15 }), nib)
	VMOVDQU(fill("code_8", 32, func(int) byte { return 8 }), eight)
	elemLoop([]string{"dst", "w"}, []int{128, 18}, "blocks", 1, func(p []reg.GPVirtual) {
		d := v.halfAll(Mem{Base: p[1]})
		lo, hi := XMM(), XMM()
		VMOVDQU(Mem{Base: p[1], Disp: 2}, lo)
		VPSRLW(Imm(4), lo, hi)
		for i, c := range []reg.VecVirtual{lo, hi} {
			VPAND(nib, c, c)
			VPSUBB(eight, c, c)
			v.scaled(c, d, Mem{Base: p[0], Disp: 64 * i})
			if !v.wide {
				VPSRLDQ(Imm(8), c, c)
				v.scaled(c, d, Mem{Base: p[0], Disp: 64*i + 32})
			}
		}
	})
	VZEROUPPER()
	RET()
}

// encodeKV writes kvQ8Generic and kvQ4Generic in eight lanes.
func encodeKV(typ string) {
	four := typ == "q40"
	name := map[string]string{"q80": "encodeQ80AVX2", "q40": "encodeQ40AVX2"}[typ]
	TEXT(name, NOSPLIT, "func(dst *byte, x *float32, blocks int)")
	Pragma("noescape")
	Doc(name + " stores blocks of 32 elements as EncodeKV says.")
	c := func(name string, u uint32) Mem { return dwords("kv_"+name, repeat(8, u)...) }
	size, lo, hi := 34, float32(-127), float32(127)
	if four {
		size, lo, hi = 18, -8, 7
	}
	elemLoop([]string{"dst", "x"}, []int{size, 128}, "blocks", 1, func(p []reg.GPVirtual) {
		at := func(i int) Mem { return Mem{Base: p[1], Disp: 32 * i} }
		mask, top := ymm(dwords("float_magnitude", repeat(8, 0x7fffffff)...)), YMM()
		VPAND(at(0), mask, top)
		for i := 1; i < 4; i++ {
			t := YMM()
			VPAND(at(i), mask, t)
			VPMAXUD(t, top, top)
		}
		x, t := XMM(), XMM()
		VEXTRACTI128(Imm(1), top, x)
		VPMAXUD(x, top.AsX(), x)
		VPSHUFD(Imm(0x4e), x, t)
		VPMAXUD(t, x, x)
		VPSHUFD(Imm(0xb1), x, t)
		VPMAXUD(t, x, x) // the largest magnitude in all lanes
		if four {
			// The first element that has it; zeros count as +0.
			VPBROADCASTD(x, top)
			m, bits := GP32(), GP32()
			for i := range 4 {
				e := YMM()
				VPAND(at(i), mask, e)
				VPCMPEQD(top, e, e)
				if i == 0 {
					VMOVMSKPS(e, m)
					continue
				}
				VMOVMSKPS(e, bits)
				SHLL(Imm(uint64(8*i)), bits)
				ORL(bits, m)
			}
			BSFL(m, m)
			MOVL(Mem{Base: p[1], Index: m.As64(), Scale: 4}, m)
			VMOVD(x, bits)
			TESTL(bits, bits)
			CMOVLEQ(bits, m)
			VMOVD(m, x)
		}
		div := floatConst("kv_127", 127)
		if four {
			div = floatConst("kv_minus8", -8)
		}
		VDIVSS(div, x, x)
		VCVTPS2PH(Imm(0), x, x)
		h, mag, nan := GP32(), GP32(), GP32()
		VPEXTRW(Imm(0), x, h)
		MOVL(h, mag)
		ANDL(U32(0x7fff), mag)
		MOVL(U32(0x7e00), nan)
		CMPL(mag, U32(0x7c00))
		CMOVLCC(nan, h)
		MOVW(h.As16(), Mem{Base: p[0]})
		VMOVD(h, x)
		VCVTPH2PS(x, x)
		d, keep := YMM(), YMM()
		VBROADCASTSS(x, d)
		VXORPS(keep, keep, keep)
		VCMPPS(Imm(12), keep, d, keep) // ordered and not equal
		magic, one, sign := ymm(floatConst("kv_half", 0.5)), ymm(floatConst("exp_one", 1)), ymm(dwords("float_sign", repeat(8, 0x80000000)...))
		var q [4]reg.VecVirtual
		for i := range q {
			q[i] = YMM()
			y, up, s := YMM(), YMM(), YMM()
			VMOVUPS(at(i), y)
			VDIVPS(d, y, y)
			VROUNDPS(Imm(3), y, q[i]) // towards zero
			VSUBPS(q[i], y, up)
			VPAND(mask, up, up)
			VCMPPS(Imm(2), up, magic, up) // a half or more is lost
			VPAND(one, up, up)
			VPAND(sign, y, s)
			VPOR(s, up, up)
			VADDPS(up, q[i], q[i])
			VMAXPS(floatConst("kv_lo"+typ, lo), q[i], q[i])
			VMINPS(floatConst("kv_hi"+typ, hi), q[i], q[i])
			VCVTTPS2DQ(q[i], q[i])
			VPAND(keep, q[i], q[i])
		}
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		VPERMD(q[0], ymm(dwords("pack_order", 0, 4, 1, 5, 2, 6, 3, 7)), q[0])
		if !four {
			VMOVDQU(q[0], Mem{Base: p[0], Disp: 2})
			return
		}
		VPADDB(c("eights", 0x08080808), q[0], q[0])
		VEXTRACTI128(Imm(1), q[0], x)
		VPSLLW(Imm(4), x, x)
		VPOR(x, q[0].AsX(), x)
		VMOVDQU(x, Mem{Base: p[0], Disp: 2})
	})
	VZEROUPPER()
	RET()
}
