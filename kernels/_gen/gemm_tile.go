package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const tileSignature = "func(out *float32, in *float32, panel *byte, q *int8, d *float32, sums *int16, n int, count int)"

// columns addresses up to eight columns at a fixed distance.
type columns struct {
	base, s1, s3, s5, s7 reg.GPVirtual
}

func newColumns(stride reg.GPVirtual, cols int) columns {
	c := columns{base: GP64(), s1: stride}
	if cols > 2 {
		c.s3 = GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, c.s3)
	}
	if cols > 4 {
		c.s5, c.s7 = GP64(), GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 4}, c.s5)
		LEAQ(Mem{Base: c.s3, Index: stride, Scale: 4}, c.s7)
	}
	return c
}

// at is byte disp of column i.
func (c columns) at(i, disp int) Mem {
	m := Mem{Base: c.base, Disp: disp}
	switch i {
	case 1, 2, 4:
		m.Index, m.Scale = c.s1, uint8(i)
	case 3, 6:
		m.Index, m.Scale = c.s3, uint8(i/3)
	case 5:
		m.Index, m.Scale = c.s5, 1
	case 7:
		m.Index, m.Scale = c.s7, 1
	}
	return m
}

// superTile multiplies count records of a panel with cols columns of Act256. Accumulators of 16 rows lie column by column,
// block by block: out = in + what the block adds.
func (v isa) superTile(s superShape, cols int) {
	name := "gemmSuper" + s.name() + "x" + string(rune('0'+cols)) + v.suffix()
	TEXT(name, 0, tileSignature)
	Pragma("noescape")
	Doc(name + " multiplies a panel of 256-blocks; see gemmTile.")
	stride := Load(Param("n"), GP64()).(reg.GPVirtual)
	ds, ss := GP64(), GP64()
	MOVQ(stride, ds)
	SHRQ(Imm(6), ds)
	LEAQ(Mem{Base: ds, Index: ds, Scale: 2}, ss)
	SHLQ(Imm(2), ss)
	q := newColumns(stride, cols)
	Load(Param("q"), q.base)
	panel := Load(Param("panel"), GP64()).(reg.GPVirtual)
	d := Load(Param("d"), GP64()).(reg.GPVirtual)
	sums := Load(Param("sums"), GP64()).(reg.GPVirtual)
	out := Load(Param("out"), GP64()).(reg.GPVirtual)
	in := Load(Param("in"), GP64()).(reg.GPVirtual)
	tot := make([]reg.VecVirtual, cols)
	acc := make([]reg.VecVirtual, cols)
	for c := range tot {
		tot[c], acc[c] = ZMM(), ZMM()
	}
	Label("block")
	for _, t := range tot {
		v.zero(t)
	}
	g := GP64()
	atOnce := 32 / s.group
	MOVQ(U32(uint32(s.groups()/atOnce)), g)
	loop("group", g, func() {
		for i := range atOnce {
			for c := range acc {
				v.zero(acc[c])
			}
			for k := range s.group / 4 {
				w := v.load(Mem{Base: panel, Disp: s.step(i, k)})
				for c := range acc {
					VPDPBUSD_BCST(q.at(c, s.group*i+4*k), w, acc[c])
				}
			}
			scale := v.load(Mem{Base: panel, Disp: s.scaleAt(i)})
			for c := range acc {
				VPMULLD(scale, acc[c], acc[c])
				VPADDD(acc[c], tot[c], tot[c])
			}
		}
		ADDQ(U32(uint32(atOnce*s.groupBytes())), panel)
		ADDQ(Imm(32), q.base)
	})
	pairs := make([]reg.VecVirtual, s.groups()/2)
	for i := range pairs {
		pairs[i] = v.load(Mem{Base: panel, Disp: 64 * i})
	}
	dw := v.load(Mem{Base: panel, Disp: 64 * len(pairs)})
	var dmin reg.VecVirtual
	if s.mins {
		dmin = v.load(Mem{Base: panel, Disp: 64*len(pairs) + 64})
	}
	dc, sc := GP64(), GP64()
	MOVQ(d, dc)
	MOVQ(sums, sc)
	at := 0
	if s.group == 32 {
		at = 32
	}
	for c := range tot {
		m := tot[c]
		if s.mins {
			m = ZMM()
			v.zero(m)
		}
		for i, p := range pairs {
			VPDPWSSD_BCST(Mem{Base: sc, Disp: at + 4*i}, p, m)
		}
		t := ZMM()
		VMULPS_BCST(Mem{Base: dc}, dw, t)
		VCVTDQ2PS(tot[c], tot[c])
		VMULPS(tot[c], t, t)
		VADDPS(Mem{Base: in, Disp: 64 * c}, t, t)
		if s.mins {
			u := ZMM()
			VMULPS_BCST(Mem{Base: dc}, dmin, u)
			VCVTDQ2PS(m, m)
			VMULPS(m, u, u)
			VSUBPS(u, t, t)
		}
		VMOVUPS(t, Mem{Base: out, Disp: 64 * c})
		if c < cols-1 {
			ADDQ(ds, dc)
			ADDQ(ss, sc)
		}
	}
	ADDQ(U32(uint32(s.record()-s.pairsAt())), panel)
	ADDQ(Imm(4), d)
	ADDQ(Imm(sums256), sums)
	ADDQ(U32(uint32(64*cols)), out)
	ADDQ(U32(uint32(64*cols)), in)
	DECQ(count())
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// joins writes the function that adds up the accumulators of a tile, 4 or 8 a column, and stores the results.
func (v isa) gemmJoin(accs int) {
	name := "gemmJoin" + string(rune('0'+accs)) + v.suffix()
	TEXT(name, 0, "func(dst *float32, ld int, acc *float32, cols int)")
	Pragma("noescape")
	Doc(name + " joins the accumulators of cols columns and stores 16 results of each.")
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
	SHLQ(Imm(2), ld)
	acc := Load(Param("acc"), GP64()).(reg.GPVirtual)
	n := Load(Param("cols"), GP64()).(reg.GPVirtual)
	s := GP64()
	MOVQ(n, s)
	SHLQ(Imm(6), s)
	c := newColumns(s, accs)
	MOVQ(acc, c.base)
	loop("column", n, func() {
		for h := 0; h < 64; h += v.size() {
			sum := func(i, j int) reg.VecVirtual {
				t := v.vec()
				VMOVUPS(c.at(i, h), t)
				VADDPS(c.at(j, h), t, t)
				return t
			}
			var a, b reg.VecVirtual
			if accs == 4 {
				a, b = sum(0, 1), sum(2, 3)
			} else {
				a, b = sum(0, 4), sum(1, 5)
				VADDPS(sum(2, 6), a, a)
				VADDPS(sum(3, 7), b, b)
			}
			VADDPS(b, a, a)
			VMOVUPS(a, Mem{Base: dst, Disp: h})
		}
		ADDQ(Imm(64), c.base)
		ADDQ(ld, dst)
	})
	VZEROUPPER()
	RET()
}

// gemm writes the panel kernels of an instruction set.
func (v isa) gemm() {
	v.gemmUnpackers()
	v.gemmJoin(4)
	v.gemmJoin(8)
	for _, s := range []superShape{shapeQ4K, shapeQ6K} {
		for _, cols := range []int{8, 4, 2} {
			v.superTile(s, cols)
		}
	}
}
