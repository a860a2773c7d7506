package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// deltaKernels writes the step of a gated DeltaNet head and the short convolution before it.
func deltaKernels() {
	isa{}.delta()
	isa{wide: true}.delta()
	isa{}.scan()
	isa{wide: true}.scan()
	isa{}.conv4()
	isa{wide: true}.conv4()
}

// delta walks the columns in chunks of eight registers: once over the rows for the product with the key, once more to
// update them and multiply with the query. The second walk finds the chunk in a near cache and asks for the next head's rows, so
// that memory is read while it writes (26 GB/s of state instead of 23, AVX-512).
func (v isa) delta() {
	name := "delta" + v.suffix()
	TEXT(name, 0, "func(out *float32, s *float32, q *float32, k *float32, v *float32, dk int, stride int, cols int, decay float32, beta float32, scale float32)")
	Pragma("noescape")
	Doc(name + " is deltaColumns for cols columns, a multiple of 16; the dk rows of s lie at a distance of stride bytes.")
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	state := Load(Param("s"), GP64()).(reg.GPVirtual)
	val := Load(Param("v"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	cols := Load(Param("cols"), GP64()).(reg.GPVirtual)
	all := func(name string) reg.VecVirtual {
		r := v.vec()
		m, _ := Param(name).Resolve()
		VBROADCASTSS(m.Addr, r)
		return r
	}
	decay := all("decay")
	var local Mem
	if !v.wide {
		local = AllocLocal(8 * 32) // the deltas: sixteen registers do not hold them too
	}
	row, kp, qp, n := GP64(), GP64(), GP64(), GP64()
	head := GP64() // bytes of a state: the next head's lies behind
	Load(Param("dk"), head)
	IMULQ(stride, head)
	chunk := func(name string, regs int) {
		t := make([]reg.VecVirtual, regs)
		for i := range t {
			t[i] = v.vec()
			v.zero(t[i])
		}
		MOVQ(state, row)
		Load(Param("k"), kp)
		Load(Param("dk"), n)
		loop(name+"_product", n, func() {
			x := v.vec()
			VBROADCASTSS(Mem{Base: kp}, x)
			for i := range t {
				VFMADD231PS(Mem{Base: row, Disp: i * v.size()}, x, t[i])
			}
			ADDQ(Imm(4), kp)
			ADDQ(stride, row)
		})
		beta := all("beta")
		for i := range t {
			y := v.vec()
			VMOVUPS(Mem{Base: val, Disp: i * v.size()}, y)
			VMULPS(decay, t[i], t[i])
			VSUBPS(t[i], y, t[i])
			VMULPS(beta, t[i], t[i])
			if !v.wide {
				VMOVUPS(t[i], local.Offset(32*i))
			}
		}
		o := make([]reg.VecVirtual, regs)
		for i := range o {
			o[i] = v.vec()
			v.zero(o[i])
		}
		MOVQ(state, row)
		Load(Param("k"), kp)
		Load(Param("q"), qp)
		Load(Param("dk"), n)
		loop(name+"_update", n, func() {
			x, y := v.vec(), v.vec()
			VBROADCASTSS(Mem{Base: kp}, x)
			VBROADCASTSS(Mem{Base: qp}, y)
			for i := range o {
				if i*v.size()%64 == 0 {
					PREFETCHT1(Mem{Base: row, Index: head, Scale: 1, Disp: i * v.size()})
				}
				m := Mem{Base: row, Disp: i * v.size()}
				s := v.vec()
				VMULPS(m, decay, s)
				if v.wide {
					VFMADD231PS(t[i], x, s)
				} else {
					VFMADD231PS(local.Offset(32*i), x, s)
				}
				VMOVUPS(s, m)
				VFMADD231PS(y, s, o[i])
			}
			ADDQ(Imm(4), kp)
			ADDQ(Imm(4), qp)
			ADDQ(stride, row)
		})
		scale := all("scale")
		for i := range o {
			VMULPS(scale, o[i], o[i])
			VMOVUPS(o[i], Mem{Base: out, Disp: i * v.size()})
		}
		size := uint32(regs * v.size())
		ADDQ(U32(size), out)
		ADDQ(U32(size), val)
		ADDQ(U32(size), state)
		SUBQ(U32(size/4), cols)
	}
	Label("many")
	CMPQ(cols, U32(uint32(8*v.size()/4)))
	JLT(LabelRef("few"))
	chunk("many", 8)
	JMP(LabelRef("many"))
	Label("few")
	TESTQ(cols, cols)
	JZ(LabelRef("done"))
	chunk("few", 64/v.size())
	JMP(LabelRef("few"))
	Label("done")
	VZEROUPPER()
	RET()
}

// scan is the second walk of delta alone, for Mamba-2: what enters the columns is given.
func (v isa) scan() {
	name := "scan" + v.suffix()
	TEXT(name, 0, "func(d *float32, s *float32, c *float32, b *float32, n int, stride int, cols int, decay float32)")
	Pragma("noescape")
	Doc(name + " is scanColumns for cols columns, a multiple of 16; the n rows of s lie at a distance of stride bytes.")
	d := Load(Param("d"), GP64()).(reg.GPVirtual)
	state := Load(Param("s"), GP64()).(reg.GPVirtual)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	cols := Load(Param("cols"), GP64()).(reg.GPVirtual)
	decay := v.vec()
	m, _ := Param("decay").Resolve()
	VBROADCASTSS(m.Addr, decay)
	row, bp, cp, n := GP64(), GP64(), GP64(), GP64()
	head := GP64() // bytes of a state: the next head's lies behind
	Load(Param("n"), head)
	IMULQ(stride, head)
	chunk := func(name string, regs int) {
		o := make([]reg.VecVirtual, regs)
		for i := range o {
			o[i] = v.vec()
			v.zero(o[i])
		}
		MOVQ(state, row)
		Load(Param("b"), bp)
		Load(Param("c"), cp)
		Load(Param("n"), n)
		loop(name+"_update", n, func() {
			x, y := v.vec(), v.vec()
			VBROADCASTSS(Mem{Base: bp}, x)
			VBROADCASTSS(Mem{Base: cp}, y)
			for i := range o {
				if i*v.size()%64 == 0 {
					PREFETCHT1(Mem{Base: row, Index: head, Scale: 1, Disp: i * v.size()})
				}
				m := Mem{Base: row, Disp: i * v.size()}
				s := v.vec()
				VMULPS(m, decay, s)
				VFMADD231PS(Mem{Base: d, Disp: i * v.size()}, x, s)
				VMOVUPS(s, m)
				VFMADD231PS(y, s, o[i])
			}
			ADDQ(Imm(4), bp)
			ADDQ(Imm(4), cp)
			ADDQ(stride, row)
		})
		for i := range o {
			VMOVUPS(o[i], Mem{Base: d, Disp: i * v.size()})
		}
		size := uint32(regs * v.size())
		ADDQ(U32(size), d)
		ADDQ(U32(size), state)
		SUBQ(U32(size/4), cols)
	}
	Label("many")
	CMPQ(cols, U32(uint32(8*v.size()/4)))
	JLT(LabelRef("few"))
	chunk("many", 8)
	JMP(LabelRef("many"))
	Label("few")
	TESTQ(cols, cols)
	JZ(LabelRef("done"))
	chunk("few", 64/v.size())
	JMP(LabelRef("few"))
	Label("done")
	VZEROUPPER()
	RET()
}

func (v isa) conv4() {
	name := "conv4" + v.suffix()
	TEXT(name, NOSPLIT, "func(out *float32, x0 *float32, x1 *float32, x2 *float32, x3 *float32, w *float32, ld int, n int)")
	Pragma("noescape")
	Doc(name+" sets out to silu of the four products w[j*ld:]*xj, added by fma from the first on, for n channels, a multiple of", "the vector's lanes.")
	ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), ld)
	w := newLanes(ld)
	Load(Param("w"), w.base)
	step := v.size()
	elemLoop([]string{"out", "x0", "x1", "x2", "x3"}, []int{step, step, step, step, step}, "n", step/4, func(p []reg.GPVirtual) {
		acc := v.vec()
		v.zero(acc)
		for j := range 4 {
			x := v.vec()
			VMOVUPS(Mem{Base: p[1+j]}, x)
			VFMADD231PS(w.at(j, 0), x, acc)
		}
		if v.wide {
			acc = silu16(acc)
		} else {
			acc = silu(acc)
		}
		VMOVUPS(acc, Mem{Base: p[0]})
		ADDQ(Imm(uint64(step)), w.base)
	})
	VZEROUPPER()
	RET()
}
