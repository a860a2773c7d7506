package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// q8 is the product of Q8_0 rows with 1 or 4 columns of Act32; nb counts blocks of 32. Eight blocks go by at a time, one
// in each lane of a 256-bit accumulator, so that the lane is the block's index modulo 8. Single blocks at the end are
// added to their lanes in memory.
func (v isa) q8(name string, cols int) {
	TEXT(name+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(name + v.suffix() + " multiplies Q8_0 weights; see matrixKernel.")
	const size = 34
	w, wrow := GP64(), Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	nb := Load(Param("nb"), GP64()).(reg.GPVirtual)
	q, d, s := lanes{base: GP64()}, lanes{base: GP64()}, lanes{base: GP64()}
	if cols > 1 {
		x := GP64()
		MOVQ(nb, x)
		SHLQ(Imm(5), x)
		q = newLanes(x)
		x = GP64()
		LEAQ(Mem{Base: nb, Index: nb, Scale: 1}, x)
		s = newLanes(x)
		d = lanes{base: GP64(), s1: s.s1, s3: s.s3, mul: 2}
	}
	spill := AllocLocal(32 * cols)
	acc := make([]reg.VecVirtual, cols)
	for c := range acc {
		acc[c] = YMM()
	}
	var bias, order, ones reg.VecVirtual
	ones = YMM()
	VMOVDQU(dwords("word_ones", repeat(8, 0x00010001)...), ones)
	if v.wide {
		bias = v.constant(fill("sign_bits", 64, func(int) byte { return 0x80 }))
		order = v.constant(dwords("q80_order", 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15))
	}
	n := GP64()
	Label("next")
	MOVQ(wrow, w)
	Load(Param("q"), q.base)
	Load(Param("d"), d.base)
	if v.wide {
		Load(Param("sums"), s.base)
	}
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	Load(Param("nb"), n)
	SHRQ(Imm(3), n)
	JZ(LabelRef("rest"))
	loop("eight", n, func() {
		for o := 0; o < 8*size; o += 64 {
			PREFETCHT0(Mem{Base: w, Disp: prefetchAhead + o})
		}
		scale := YMM()
		VPXOR(scale.AsX(), scale.AsX(), scale.AsX())
		for b := range 8 {
			VPINSRW(Imm(uint64(b)), Mem{Base: w, Disp: b * size}, scale.AsX(), scale.AsX())
		}
		VCVTPH2PS(scale.AsX(), scale)
		var code [4]reg.VecVirtual
		if v.wide {
			for i := range code {
				code[i] = ZMM()
				VMOVDQU(Mem{Base: w, Disp: 2*i*size + 2}, code[i].AsY())
				VINSERTI64X4(Imm(1), Mem{Base: w, Disp: (2*i+1)*size + 2}, code[i], code[i])
				VPXORD(bias, code[i], code[i])
			}
		}
		for c := range cols {
			isum := YMM()
			if v.wide {
				var p [4]reg.VecVirtual
				for i := range p {
					p[i] = ZMM()
					VPXORD(p[i], p[i], p[i])
					VPDPBUSD(q.at(c, 64*i), code[i], p[i])
				}
				v.transpose4(p)
				VPERMD(p[0], order, p[0])
				VEXTRACTI64X4(Imm(1), p[0], isum)
				VPADDD(p[0].AsY(), isum, isum)
				t := YMM()
				VPMOVSXWD(s.at(c, 0), t)
				VPSLLD(Imm(7), t, t)
				VPSUBD(t, isum, isum)
			} else {
				var p [8]reg.VecVirtual
				for b := range p {
					p[b] = q8block(q.at(c, 32*b), Mem{Base: w, Disp: b*size + 2}, ones)
					// Join early: no more than five partial sums live at a time.
					for h := 1; h < 4 && b&h == h; h = 2*h + 1 {
						o := b &^ h
						VPHADDD(p[o+(h+1)/2], p[o], p[o])
					}
				}
				t := YMM()
				VPERM2I128(Imm(0x31), p[4], p[0], t)
				VPERM2I128(Imm(0x20), p[4], p[0], p[0])
				VPADDD(t, p[0], isum)
			}
			VCVTDQ2PS(isum, isum)
			t := YMM()
			VMULPS(d.at(c, 0), scale, t)
			VMULPS(isum, t, t)
			VADDPS(t, acc[c], acc[c])
		}
		ADDQ(U32(8*size), w)
		ADDQ(U32(256), q.base)
		ADDQ(Imm(32), d.base)
		if v.wide {
			ADDQ(Imm(16), s.base)
		}
	})
	Label("rest")
	Load(Param("nb"), n)
	ANDQ(Imm(7), n)
	JZ(LabelRef("join"))
	for c, a := range acc {
		VMOVUPS(a, spill.Offset(32*c))
	}
	i := GP64()
	XORQ(i, i)
	loop("one", n, func() {
		for c := range cols {
			p := q8block(q.at(c, 0), Mem{Base: w, Disp: 2}, ones)
			t := XMM()
			VEXTRACTI128(Imm(1), p, t)
			VPADDD(t, p.AsX(), t)
			x := XMM()
			VPSHUFD(Imm(0x4e), t, x)
			VPADDD(x, t, t)
			VPSHUFD(Imm(0xb1), t, x)
			VPADDD(x, t, t)
			VCVTDQ2PS(t, t)
			VPBROADCASTW(Mem{Base: w}, x)
			VCVTPH2PS(x, x)
			VMULSS(d.at(c, 0), x, x)
			VMULSS(t, x, x)
			m := spill.Offset(32 * c)
			m.Index, m.Scale = i, 4
			VADDSS(m, x, x)
			VMOVSS(x, m)
		}
		INCQ(i)
		ADDQ(Imm(size), w)
		ADDQ(Imm(32), q.base)
		ADDQ(Imm(4), d.base)
	})
	for c, a := range acc {
		VMOVUPS(spill.Offset(32*c), a)
	}
	Label("join")
	out := lanes{base: dst}
	if cols > 1 {
		ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
		SHLQ(Imm(2), ld)
		out = newLanes(ld)
		MOVQ(dst, out.base)
	}
	for c, a := range acc {
		x := XMM()
		VEXTRACTF128(Imm(1), a, x)
		VADDPS(x, a.AsX(), a.AsX())
		VSHUFPS(Imm(0xee), a.AsX(), a.AsX(), x)
		VADDPS(x, a.AsX(), a.AsX())
		VSHUFPS(Imm(0x55), a.AsX(), a.AsX(), x)
		VADDSS(x, a.AsX(), a.AsX())
		VMOVSS(a.AsX(), out.at(c, 0))
	}
	ADDQ(Imm(4), dst)
	ADDQ(param("stride"), wrow)
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// q8block multiplies 32 signed codes with 32 activations: |w| times a with w's sign, summed to eight int32.
func q8block(act, codes Mem, ones reg.VecVirtual) reg.VecVirtual {
	a, w := YMM(), YMM()
	VMOVDQU(act, a)
	VPSIGNB(codes, a, a)
	VPABSB(codes, w)
	VPMADDUBSW(a, w, a)
	VPMADDWD(ones, a, a)
	return a
}
