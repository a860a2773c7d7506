package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Panels. A panel holds 16 weight rows with rows in lanes: a step is four consecutive codes of each row, one dword a row,
// 64 bytes. A 512-bit register takes all rows, a 256-bit one rows 0..7 or 8..15, so half code runs twice on AVX2.

// panelRows is the number of rows of a panel.
const panelRows = 16

// panelRegs addresses the rows of a panel half in their native layout and turns dwords of rows into dwords in lanes.
type panelRegs struct {
	isa
	base   [4]reg.GPVirtual // rows 0, 4, 8, 12 (AVX2: 0 and 4 of the half)
	s1, s3 reg.GPVirtual
	mask   [4]reg.OpmaskVirtual

	ahead reg.GPVirtual // what to fetch
	lines int           // lines of this block still to fetch
	total int
}

// newPanelRegs takes the stride of rows.
func (v isa) newPanelRegs(stride reg.GPVirtual) *panelRegs {
	p := &panelRegs{isa: v, s1: stride, s3: GP64()}
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, p.s3)
	for i := range v.size() / 16 {
		p.base[i] = GP64()
		if v.wide && i > 0 {
			t := GP32()
			MOVL(U32(15<<(4*i)), t)
			p.mask[i] = K()
			KMOVW(t, p.mask[i])
		}
	}
	return p
}

// start points at the rows that begin at w.
func (p *panelRegs) start(w reg.GPVirtual) {
	MOVQ(w, p.base[0])
	for i := 1; i < p.size()/16; i++ {
		LEAQ(Mem{Base: p.base[i-1], Index: p.s1, Scale: 4}, p.base[i])
	}
}

// advance moves on by n bytes in each row.
func (p *panelRegs) advance(n int) {
	for i := range p.size() / 16 {
		ADDQ(U32(uint32(n)), p.base[i])
	}
}

// row addresses byte disp of row 4*i+j.
func (p *panelRegs) row(i, j, disp int) Mem {
	m := Mem{Base: p.base[i], Disp: disp}
	switch j {
	case 1, 2:
		m.Index, m.Scale = p.s1, uint8(j)
	case 3:
		m.Index, m.Scale = p.s3, 1
	}
	return m
}

// dwords4 loads 16 bytes at disp of every row and returns dwords 0..3 with rows in lanes.
func (p *panelRegs) dwords4(disp int) (out [4]reg.VecVirtual) {
	p.fetch(4)
	var x [4]reg.VecVirtual
	for j := range x {
		x[j] = p.vec()
		if !p.wide {
			VBROADCASTI128(p.row(0, j, disp), x[j])
			VINSERTI128(Imm(1), p.row(1, j, disp), x[j], x[j])
			continue
		}
		VBROADCASTI32X4(p.row(0, j, disp), x[j])
		for i := 1; i < 4; i++ {
			VBROADCASTI32X4(p.row(i, j, disp), p.mask[i], x[j])
		}
	}
	a, b, c, d := p.vec(), p.vec(), p.vec(), p.vec()
	VPUNPCKLDQ(x[1], x[0], a)
	VPUNPCKHDQ(x[1], x[0], b)
	VPUNPCKLDQ(x[3], x[2], c)
	VPUNPCKHDQ(x[3], x[2], d)
	for i := range out {
		out[i] = p.vec()
	}
	VPUNPCKLQDQ(c, a, out[0])
	VPUNPCKHQDQ(c, a, out[1])
	VPUNPCKLQDQ(d, b, out[2])
	VPUNPCKHQDQ(d, b, out[3])
	return out
}

// fetch asks for up to n more lines of the rows to come.
func (p *panelRegs) fetch(n int) {
	for ; n > 0 && p.lines > 0; n-- {
		PREFETCHT0(Mem{Base: p.ahead, Disp: 64 * (p.total - p.lines)})
		p.lines--
	}
}

// dword returns the dword at disp of every row; 16 bytes from disp on are read.
func (p *panelRegs) dword(disp int) reg.VecVirtual { return p.dwords4(disp)[0] }

func (v isa) and(a Op, b, dst reg.VecVirtual) {
	if v.wide {
		VPANDD(a, b, dst)
	} else {
		VPAND(a, b, dst)
	}
}

func (v isa) or(a Op, b, dst reg.VecVirtual) {
	if v.wide {
		VPORD(a, b, dst)
	} else {
		VPOR(a, b, dst)
	}
}

func (v isa) xor(a Op, b, dst reg.VecVirtual) {
	if v.wide {
		VPXORD(a, b, dst)
	} else {
		VPXOR(a, b, dst)
	}
}

func (v isa) zero(r reg.VecVirtual) { v.xor(r, r, r) }

// store writes a whole register.
func (v isa) store(r reg.VecVirtual, m Mem) {
	if v.wide {
		VMOVDQU32(r, m)
	} else {
		VMOVDQU(r, m)
	}
}

// load reads a whole register.
func (v isa) load(m Mem) reg.VecVirtual { return v.constant(m) }

// shifted is x with its words moved right by n bits, left where n is negative; x itself for 0.
func (v isa) shifted(x reg.VecVirtual, n int) reg.VecVirtual {
	if n == 0 {
		return x
	}
	t := v.vec()
	if n > 0 {
		VPSRLW(Imm(uint64(n)), x, t)
	} else {
		VPSLLW(Imm(uint64(-n)), x, t)
	}
	return t
}

// dwordConst is a constant of the full width, the same in each dword, as a memory operand.
func (v isa) dwordConst(name string, w uint32) Mem {
	return dwords(name+v.suffix(), repeat(v.size()/4, w)...)
}

// lowHalves packs the low 16 bits of each dword of x and widens them as halves.
func (v isa) lowHalves(x reg.VecVirtual) reg.VecVirtual {
	out := v.vec()
	if v.wide {
		t := YMM()
		VPMOVDW(x, t)
		VCVTPH2PS(t, out)
		return out
	}
	t := YMM()
	VPSHUFB(fill("low_words", 32, func(i int) byte { return []byte{0, 1, 4, 5, 8, 9, 12, 13, 0, 1, 4, 5, 8, 9, 12, 13}[i%16] }), x, t)
	VPERMQ(Imm(0x08), t, t)
	VCVTPH2PS(t.AsX(), out)
	return out
}

// highHalves does the same with the high 16 bits.
func (v isa) highHalves(x reg.VecVirtual) reg.VecVirtual {
	t := v.vec()
	VPSRLD(Imm(16), x, t)
	return v.lowHalves(t)
}

// halfAt widens the binary16 at disp of every row; bytes disp-14..disp+1 are read.
func (p *panelRegs) halfAt(disp int) reg.VecVirtual { return p.highHalves(p.dwords4(disp - 14)[3]) }

// unpacker writes a function that takes apart count blocks of 16 rows. body handles the block that the panel registers
// stand at, writing to dst, which it must leave at the next record (AVX2: of the same half).
//
// The next 16 rows are fetched on the way. They lie in one piece, which the blocks of a row share out in order: done is the
// number of bytes of the row before this call's blocks.
func (v isa) unpacker(name, doc string, blockBytes, record int, body func(p *panelRegs, dst reg.GPVirtual)) {
	v.unpackerOf(name, doc, "", blockBytes, record, func(p *panelRegs) func(dst reg.GPVirtual) {
		return func(dst reg.GPVirtual) { body(p, dst) }
	})
}

// unpackerOf is unpacker with more parameters, which begin with a comma; begin is called once and gives body.
func (v isa) unpackerOf(name, doc, params string, blockBytes, record int, begin func(p *panelRegs) func(dst reg.GPVirtual)) {
	TEXT("gemmUnpack"+name+v.suffix(), 0, "func(panel *byte, w *byte, stride int, done int, count int"+params+")")
	Pragma("noescape")
	Doc("gemmUnpack" + name + v.suffix() + " " + doc)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	w := Load(Param("w"), GP64()).(reg.GPVirtual)
	p := v.newPanelRegs(stride)
	p.ahead = GP64()
	dst, n := GP64(), GP64()
	rows := v.size() / 4 // of a pass
	body := begin(p)
	half := func(i int) {
		Load(Param("panel"), dst)
		if i > 0 {
			ADDQ(Imm(32), dst)
			LEAQ(Mem{Base: w, Index: stride, Scale: 8}, w)
		}
		p.start(w)
		Load(Param("done"), p.ahead)
		IMUL3Q(Imm(uint64(rows-1)), p.ahead, p.ahead)
		ADDQ(w, p.ahead)
		Load(Param("stride"), n)
		SHLQ(Imm(4), n)
		ADDQ(n, p.ahead)
		Load(Param("count"), n)
		loop([]string{"block", "block_high"}[i], n, func() {
			p.total = (rows*blockBytes + 63) / 64
			p.lines = p.total
			body(dst)
			p.fetch(p.lines)
			p.advance(blockBytes)
			ADDQ(U32(uint32(rows*blockBytes)), p.ahead)
			ADDQ(U32(uint32(record)), dst)
		})
	}
	half(0)
	if !v.wide {
		half(1)
	}
	VZEROUPPER()
	RET()
}
