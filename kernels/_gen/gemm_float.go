package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// floatTile writes the product of 4 rows of float32 weights with cols columns, for count runs of 16 elements: 16
// accumulators an element, which lie as [column][row][16] and go from in to out. AVX2 takes lanes 0..7 of them first.
func (v isa) floatTile(cols int) {
	name := "gemmFloatx" + string(rune('0'+cols)) + v.suffix()
	TEXT(name, 0, "func(out *float32, in *float32, w *float32, stride int, x *float32, n int, count int)")
	Pragma("noescape")
	Doc(name + " multiplies 4 rows with columns of floats; see gemmFloat.")
	stride, xs := Load(Param("stride"), GP64()).(reg.GPVirtual), Load(Param("n"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), stride)
	SHLQ(Imm(2), xs)
	w, x := newColumns(stride, 4), newColumns(xs, cols)
	out, in, n := GP64(), GP64(), GP64()
	Load(Param("out"), out)
	Load(Param("in"), in)
	acc := make([]reg.VecVirtual, 4*cols)
	for i := range acc {
		acc[i] = v.vec()
	}
	for h := 0; h < 64; h += v.size() {
		for i, a := range acc {
			VMOVUPS(Mem{Base: in, Disp: 64*i + h}, a)
		}
		Load(Param("w"), w.base)
		Load(Param("x"), x.base)
		Load(Param("count"), n)
		loop([]string{"step", "step_high"}[h/32], n, func() {
			var wr [4]reg.VecVirtual
			for r := range wr {
				wr[r] = v.vec()
				VMOVUPS(w.at(r, h), wr[r])
			}
			for c := range cols {
				y := v.vec()
				VMOVUPS(x.at(c, h), y)
				for r := range wr {
					VFMADD231PS(y, wr[r], acc[4*c+r])
				}
			}
			ADDQ(Imm(64), w.base)
			ADDQ(Imm(64), x.base)
		})
		for i, a := range acc {
			VMOVUPS(a, Mem{Base: out, Disp: 64*i + h})
		}
	}
	VZEROUPPER()
	RET()
}

// floatJoin writes the function that joins the accumulators of cols columns and stores 4 results of each.
func (v isa) floatJoin() {
	name := "gemmFloatJoin" + v.suffix()
	TEXT(name, 0, "func(dst *float32, ld int, acc *float32, cols int)")
	Pragma("noescape")
	Doc(name + " joins 16 accumulators of each of 4 rows by cols columns.")
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), ld)
	from := Load(Param("acc"), GP64()).(reg.GPVirtual)
	n := Load(Param("cols"), GP64()).(reg.GPVirtual)
	loop("column", n, func() {
		acc := make([][4]reg.VecVirtual, 64/v.size())
		for p := range acc {
			for r := range 4 {
				acc[p][r] = v.vec()
				VMOVUPS(Mem{Base: from, Disp: 64*r + v.size()*p}, acc[p][r])
			}
		}
		VMOVUPS(v.join16(acc), Mem{Base: dst})
		ADDQ(U32(256), from)
		ADDQ(ld, dst)
	})
	VZEROUPPER()
	RET()
}

// widenRow writes the function that decodes whole runs of 16 halves or bfloat16.
func (v isa) widenRow(typ string) {
	name := "gemmWiden" + map[string]string{"f16": "F16", "bf16": "BF16"}[typ] + v.suffix()
	TEXT(name, 0, "func(dst *float32, w *byte, count int)")
	Pragma("noescape")
	Doc(name + " decodes count runs of 16 elements.")
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	w := Load(Param("w"), GP64()).(reg.GPVirtual)
	n := Load(Param("count"), GP64()).(reg.GPVirtual)
	loop("step", n, func() {
		for h := 0; h < 64; h += v.size() {
			t := v.vec()
			widen(typ, Mem{Base: w, Disp: h / 2}, t, v.wide)
			VMOVUPS(t, Mem{Base: dst, Disp: h})
		}
		ADDQ(Imm(32), w)
		ADDQ(Imm(64), dst)
	})
	VZEROUPPER()
	RET()
}

func (v isa) floatGemm() {
	v.widenRow("f16")
	v.widenRow("bf16")
	v.floatJoin()
	if v.wide {
		v.floatTile(4)
	}
	v.floatTile(2)
}
