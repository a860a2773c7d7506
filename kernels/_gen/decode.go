package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// decoders writes the conversion of whole blocks to float32, in quant's order of operations, for exact mode.
func decoders() {
	TEXT("decodeQ80AVX2", NOSPLIT, "func(dst *float32, w *byte, blocks int)")
	Pragma("noescape")
	Doc("decodeQ80AVX2 decodes blocks of Q8_0.")
	elemLoop([]string{"dst", "w"}, []int{128, 34}, "blocks", 1, func(p []reg.GPVirtual) {
		d := half(Mem{Base: p[1]})
		for i := range 4 {
			codes(Mem{Base: p[1], Disp: 2 + 8*i}, d, nil, Mem{Base: p[0], Disp: 32 * i})
		}
	})
	VZEROUPPER()
	RET()

	TEXT("decodeQ4KAVX2", 0, "func(dst *float32, w *byte, blocks int)")
	Pragma("noescape")
	Doc("decodeQ4KAVX2 decodes blocks of Q4_K.")
	scales, mins, bytes := AllocLocal(32), AllocLocal(32), AllocLocal(64)
	nib := ymm(fill("nibble", 32, func(int) byte { return 15 }))
	k := &kq{shape: shape{4, 1}}
	elemLoop([]string{"dst", "w"}, []int{1024, 144}, "blocks", 1, func(p []reg.GPVirtual) {
		h := YMM()
		VMOVDQU(Mem{Base: p[1]}, h.AsX())
		d, dmin := half(Mem{Base: p[1]}), half(Mem{Base: p[1], Disp: 2})
		k.scalesQ4K(h)
		s := YMM()
		VPMOVZXBD(h.AsX(), s)
		VCVTDQ2PS(s, s)
		VMULPS(s, d, s)
		VMOVUPS(s, scales)
		VPSRLDQ(Imm(8), h.AsX(), h.AsX())
		VPMOVZXBD(h.AsX(), s)
		VCVTDQ2PS(s, s)
		VMULPS(s, dmin, s)
		VMOVUPS(s, mins)
		for g := range 4 {
			lo, hi := ymm(Mem{Base: p[1], Disp: 16 + 32*g}), YMM()
			VPSRLW(Imm(4), lo, hi)
			VPAND(nib, lo, lo)
			VPAND(nib, hi, hi)
			VMOVDQU(lo, bytes)
			VMOVDQU(hi, bytes.Offset(32))
			for j := range 2 {
				sc, mn := YMM(), YMM()
				VBROADCASTSS(scales.Offset(8*g+4*j), sc)
				VBROADCASTSS(mins.Offset(8*g+4*j), mn)
				for i := range 4 {
					codes(bytes.Offset(32*j+8*i), sc, mn, Mem{Base: p[0], Disp: 256*g + 128*j + 32*i})
				}
			}
		}
	})
	VZEROUPPER()
	RET()

	TEXT("decodeQ6KAVX2", 0, "func(dst *float32, w *byte, blocks int)")
	Pragma("noescape")
	Doc("decodeQ6KAVX2 decodes blocks of Q6_K.")
	scales, bytes = AllocLocal(64), AllocLocal(32)
	nib = ymm(fill("nibble", 32, func(int) byte { return 15 }))
	top := ymm(fill("top_bits", 32, func(int) byte { return 0x30 }))
	off := ymm(fill("code_32", 32, func(int) byte { return 32 }))
	elemLoop([]string{"dst", "w"}, []int{1024, 210}, "blocks", 1, func(p []reg.GPVirtual) {
		d := half(Mem{Base: p[1], Disp: 208})
		for i := range 2 {
			s := YMM()
			VPMOVSXBD(Mem{Base: p[1], Disp: 192 + 8*i}, s)
			VCVTDQ2PS(s, s)
			VMULPS(s, d, s)
			VMOVUPS(s, scales.Offset(32*i))
		}
		for h := range 2 {
			for c := range 4 {
				l, t := ymm(Mem{Base: p[1], Disp: 64*h + 32*(c%2)}), ymm(Mem{Base: p[1], Disp: 128 + 32*h})
				if c >= 2 {
					VPSRLW(Imm(4), l, l)
				}
				switch c {
				case 0:
					VPSLLW(Imm(4), t, t)
				case 1:
					VPSLLW(Imm(2), t, t)
				case 3:
					VPSRLW(Imm(2), t, t)
				}
				VPAND(nib, l, l)
				VPAND(top, t, t)
				VPOR(t, l, l)
				VPSUBB(off, l, l)
				VMOVDQU(l, bytes)
				for j := range 2 {
					sc := YMM()
					VBROADCASTSS(scales.Offset(4*(8*h+2*c+j)), sc)
					for i := range 2 {
						codes(bytes.Offset(16*j+8*i), sc, nil, Mem{Base: p[0], Disp: 512*h + 128*c + 64*j + 32*i})
					}
				}
			}
		}
	})
	VZEROUPPER()
	RET()
}

// half widens one half to all lanes.
func half(m Mem) reg.VecVirtual {
	d := YMM()
	VPBROADCASTW(m, d.AsX())
	VCVTPH2PS(d.AsX(), d)
	return d
}

// codes stores scale*code - min for eight signed bytes.
func codes(src Mem, scale, min reg.VecVirtual, dst Mem) {
	x := YMM()
	VPMOVSXBD(src, x)
	VCVTDQ2PS(x, x)
	VMULPS(x, scale, x)
	if min != nil {
		VSUBPS(min, x, x)
	}
	VMOVUPS(x, dst)
}
