package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const tileSignature = "func(out *float32, in *float32, panel *byte, q *int8, d *float32, sums *int16, n int, bias int, count int)"

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
	name := "gemmSuper" + s.name() + v.stepsName(s.steps) + "x" + string(rune('0'+cols)) + v.suffix()
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
	parts := 64 / v.size()
	tot := make([]reg.VecVirtual, cols*parts) // [column][part of the rows]
	for i := range tot {
		tot[i] = v.vec()
	}
	// The generator takes zeroing for a use of what was there before, so each register is named once.
	var acc, mins []reg.VecVirtual
	for range cols {
		if v.wide {
			acc = append(acc, v.vec())
		}
	}
	for range parts {
		mins = append(mins, v.vec())
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
			v.superGroup(s, cols, i, q, panel, tot, acc)
		}
		ADDQ(U32(uint32(atOnce*s.groupBytes())), panel)
		ADDQ(Imm(32), q.base)
	})
	signed := !v.wide && s.steps == 0
	dc, sc := GP64(), GP64()
	MOVQ(d, dc)
	MOVQ(sums, sc)
	at := 0
	if s.group == 32 {
		at = 32
	}
	pairs := make([]reg.VecVirtual, s.groups()/2)
	if v.wide {
		for i := range pairs {
			pairs[i] = v.load(Mem{Base: panel, Disp: 64 * i})
		}
	}
	for c := range cols {
		m := make([]reg.VecVirtual, parts)
		for p := range m {
			m[p] = tot[c*parts+p]
			if s.mins {
				m[p] = mins[p]
				v.zero(m[p])
			}
		}
		for i := range pairs {
			if signed {
				break
			}
			if v.wide {
				VPDPWSSD_BCST(Mem{Base: sc, Disp: at + 4*i}, pairs[i], m[0])
				continue
			}
			y := YMM()
			VPBROADCASTD(Mem{Base: sc, Disp: at + 4*i}, y)
			for p := range m {
				t := YMM()
				VPMADDWD(Mem{Base: panel, Disp: 64*i + 32*p}, y, t)
				VPADDD(t, m[p], m[p])
			}
		}
		dy := v.vec()
		VBROADCASTSS(Mem{Base: dc}, dy)
		for p := range m {
			io := Mem{Base: in, Disp: 64*c + v.size()*p}
			x, t := tot[c*parts+p], v.vec()
			VMULPS(Mem{Base: panel, Disp: 64*len(pairs) + v.size()*p}, dy, t)
			VCVTDQ2PS(x, x)
			VMULPS(x, t, t)
			VADDPS(io, t, t)
			if s.mins {
				u := v.vec()
				VMULPS(Mem{Base: panel, Disp: 64*len(pairs) + 64 + v.size()*p}, dy, u)
				VCVTDQ2PS(m[p], m[p])
				VMULPS(m[p], u, u)
				VSUBPS(u, t, t)
			}
			io.Base = out
			VMOVUPS(t, io)
		}
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

// superGroup adds scale times the sums of a group, the i-th from panel and q on, to tot.
func (v isa) superGroup(s superShape, cols, i int, q columns, panel reg.GPVirtual, tot, acc []reg.VecVirtual) {
	if !v.wide {
		narrowDots(v, q, Mem{Base: panel, Disp: s.step(i, 0)}, s.group*i, s.group/4, s.steps, cols, tot, func(p int) Op {
			return Mem{Base: panel, Disp: s.scaleAt(i) + 32*p}
		})
		return
	}
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

// gemmJoin writes the function that adds up the accumulators of a tile, 4 or 8 a column, and stores the results.
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
	v.superTiles()
	v.floatGemm()
}

func (v isa) superTiles() {
	v.superUnpackers()
	v.runUnpackers()
	v.codebooks()
	if v.wide {
		for _, cols := range []int{8, 4, 2} {
			for _, s := range []superShape{{group: 32, mins: true}, {group: 16, mins: true}, {group: 32}, {group: 16}} {
				v.superTile(s, cols)
			}
			for _, s := range []runShape{{}, {mins: true}, {halves: true}} {
				v.runTile(s, cols)
			}
		}
		return
	}
	for _, s := range []superShape{{group: 32, mins: true, steps: 8}, {group: 32, mins: true, steps: 4}, {group: 16, mins: true, steps: 4},
		{group: 16, steps: 4}, {group: 16, steps: 2}, {group: 16}, {group: 32}, {group: 32, steps: 8}, {group: 32, steps: 4}} {
		v.superTile(s, 2)
	}
	for _, s := range []runShape{{}, {steps: 8}, {steps: 4}, {mins: true, steps: 8}, {mins: true, steps: 4}, {halves: true, steps: 4}} {
		v.runTile(s, 2)
	}
}
