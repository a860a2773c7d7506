package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var elemBytes = map[string]int{"f32": 4, "f16": 2, "bf16": 2}

// widen loads elements of a type into the register to, which is as wide as the vector.
func widen(typ string, m Mem, to reg.VecVirtual, wide bool) {
	switch typ {
	case "f32":
		VMOVUPS(m, to)
	case "f16":
		VCVTPH2PS(m, to)
	case "bf16":
		VPMOVZXWD(m, to)
		VPSLLD(Imm(16), to, to)
	}
}

// widenOne loads one element.
func widenOne(typ string, m Mem, to reg.VecVirtual, tmp reg.GPVirtual) {
	switch typ {
	case "f32":
		VMOVSS(m, to)
	case "f16":
		VPBROADCASTW(m, to)
		VCVTPH2PS(to, to)
	case "bf16":
		MOVWLZX(m, tmp.As32())
		SHLL(Imm(16), tmp.As32())
		VMOVD(tmp.As32(), to)
	}
}

// floats writes the product of float weights with float32 activations: 16 accumulators by element index modulo 16, fused.
// Rows: groups of 4 rows at distance stride. Columns: one row by 4 columns. Elements after the last 16 are added to
// their lanes in memory.
func (v isa) floats(typ string, s shape) {
	TEXT(typ+s.name()+v.suffix(), 0, "func(dst *float32, ld int, w *byte, stride int, x *float32, n int, count int)")
	Pragma("noescape")
	Doc(typ + s.name() + v.suffix() + " multiplies " + typ + " weights; see floatKernel.")
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	w, x, ahead := lanes{base: GP64()}, lanes{base: GP64()}, lanes{}
	if s.rows > 1 {
		w = newLanes(stride)
		ahead = lanes{base: GP64(), s1: w.s1, s3: w.s3, mul: 1}
	} else {
		xs := Load(Param("n"), GP64()).(reg.GPVirtual)
		SHLQ(Imm(2), xs)
		x = newLanes(xs)
	}
	parts := 64 / v.size() // registers an accumulator of 16 lanes
	elem := elemBytes[typ]
	acc := make([][4]reg.VecVirtual, parts)
	for p := range acc {
		for i := range acc[p] {
			acc[p][i] = v.vec()
		}
	}
	spill := AllocLocal(4 * 64)
	n, i, tmp := GP64(), GP64(), GP64()
	Label("next")
	MOVQ(wrow, w.base)
	if s.rows > 1 {
		LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, ahead.base)
	}
	Load(Param("x"), x.base)
	for p := range acc {
		for _, a := range acc[p] {
			if v.wide {
				VPXORD(a, a, a)
			} else {
				VXORPS(a, a, a)
			}
		}
	}
	Load(Param("n"), n)
	SHRQ(Imm(4), n)
	JZ(LabelRef("rest"))
	loop("sixteen", n, func() {
		if s.rows > 1 {
			for r := range s.rows {
				PREFETCHT0(ahead.at(r, 0))
			}
			ADDQ(Imm(uint64(16*elem)), ahead.base)
		} else {
			PREFETCHT0(w.at(0, prefetchAhead))
		}
		for p := range parts {
			off := p * v.size()
			if s.rows > 1 {
				y := v.vec()
				VMOVUPS(x.at(0, off), y)
				for r := range 4 {
					if typ == "f32" {
						VFMADD231PS(w.at(r, off), y, acc[p][r])
						continue
					}
					t := v.vec()
					widen(typ, w.at(r, off/4*elem), t, v.wide)
					VFMADD231PS(t, y, acc[p][r])
				}
			} else {
				t := v.vec()
				widen(typ, w.at(0, off/4*elem), t, v.wide)
				for c := range 4 {
					VFMADD231PS(x.at(c, off), t, acc[p][c])
				}
			}
		}
		ADDQ(Imm(uint64(16*elem)), w.base)
		ADDQ(Imm(64), x.base)
	})
	Label("rest")
	Load(Param("n"), n)
	ANDQ(Imm(15), n)
	JZ(LabelRef("join"))
	for p := range acc {
		for k, a := range acc[p] {
			VMOVUPS(a, spill.Offset(64*k+v.size()*p))
		}
	}
	XORQ(i, i)
	loop("one", n, func() {
		for k := range 4 {
			f, y, sum := XMM(), XMM(), XMM()
			widenOne(typ, w.at(min(k, s.rows-1), 0), f, tmp)
			VMOVSS(x.at(min(k, s.cols-1), 0), y)
			m := spill.Offset(64 * k)
			m.Index, m.Scale = i, 4
			VMOVSS(m, sum)
			VFMADD231SS(y, f, sum)
			VMOVSS(sum, m)
		}
		INCQ(i)
		ADDQ(Imm(uint64(elem)), w.base)
		ADDQ(Imm(4), x.base)
	})
	for p := range acc {
		for k, a := range acc[p] {
			VMOVUPS(spill.Offset(64*k+v.size()*p), a)
		}
	}
	Label("join")
	sum := v.join16(acc)
	if s.rows > 1 {
		VMOVUPS(sum, Mem{Base: dst})
		ADDQ(Imm(16), dst)
		LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, wrow)
	} else {
		ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
		SHLQ(Imm(2), ld)
		out := newLanes(ld)
		MOVQ(dst, out.base)
		scatter(sum, out)
		ADDQ(Imm(4), dst)
		ADDQ(stride, wrow)
	}
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// join16 joins the 16 lanes of four accumulators by halves; lane i of the result is accumulator i's sum.
func (v isa) join16(acc [][4]reg.VecVirtual) reg.VecVirtual {
	var x [4]reg.VecVirtual
	for k := range x {
		y := YMM()
		if v.wide {
			VEXTRACTF64X4(Imm(1), acc[0][k], y)
			VADDPS(y, acc[0][k].AsY(), y)
		} else {
			VADDPS(acc[1][k], acc[0][k], y)
		}
		x[k] = XMM()
		VEXTRACTF128(Imm(1), y, x[k])
		VADDPS(x[k], y.AsX(), x[k])
	}
	for k := 0; k < 4; k += 2 { // (0,2) and (1,3) of two accumulators
		t := XMM()
		VUNPCKHPD(x[k+1], x[k], t)
		VUNPCKLPD(x[k+1], x[k], x[k])
		VADDPS(t, x[k], x[k])
	}
	t := XMM()
	VSHUFPS(Imm(0xdd), x[2], x[0], t)
	VSHUFPS(Imm(0x88), x[2], x[0], x[0])
	VADDPS(t, x[0], x[0])
	return x[0]
}

// values writes the weighted sum of value rows: out[j] = fma(p[i], v[i][j], out[j]) for i in order, for dims elements, a
// multiple of 16.
func (v isa) values(typ string) {
	TEXT("values"+map[string]string{"f32": "F32", "f16": "F16"}[typ]+v.suffix(), 0, "func(out *float32, p *float32, v *byte, stride int, n int, dims int)")
	Pragma("noescape")
	Doc("values" + map[string]string{"f32": "F32", "f16": "F16"}[typ] + v.suffix() + " adds n rows of values, weighted by p, to out; see valueKernel.")
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	vbase := Load(Param("v"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	dims := Load(Param("dims"), GP64()).(reg.GPVirtual)
	lane := v.size() / 4
	elem := elemBytes[typ]
	chunk := func(name string, regs int) {
		acc := make([]reg.VecVirtual, regs)
		for i := range acc {
			acc[i] = v.vec()
			VMOVUPS(Mem{Base: out, Disp: i * v.size()}, acc[i])
		}
		p, row, n := GP64(), GP64(), GP64()
		Load(Param("p"), p)
		Load(Param("n"), n)
		MOVQ(vbase, row)
		loop(name, n, func() {
			w := v.vec()
			VBROADCASTSS(Mem{Base: p}, w)
			for i, a := range acc {
				m := Mem{Base: row, Disp: i * lane * elem}
				if typ == "f32" {
					VFMADD231PS(m, w, a)
				} else {
					t := v.vec()
					VCVTPH2PS(m, t)
					VFMADD231PS(t, w, a)
				}
			}
			ADDQ(Imm(4), p)
			ADDQ(stride, row)
		})
		for i, a := range acc {
			VMOVUPS(a, Mem{Base: out, Disp: i * v.size()})
		}
		ADDQ(U32(uint32(regs*v.size())), out)
		ADDQ(U32(uint32(regs*lane*elem)), vbase)
		SUBQ(U32(uint32(regs*lane)), dims)
	}
	Label("many")
	CMPQ(dims, U32(uint32(8*lane)))
	JLT(LabelRef("few"))
	chunk("rows_many", 8)
	JMP(LabelRef("many"))
	Label("few")
	TESTQ(dims, dims)
	JZ(LabelRef("done"))
	chunk("rows_few", 16/lane)
	JMP(LabelRef("few"))
	Label("done")
	VZEROUPPER()
	RET()
}
