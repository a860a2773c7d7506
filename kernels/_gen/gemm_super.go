package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// superShape is the layout of a 256-block in a panel: for each group of codes under one scale the steps and the scales,
// then pairs of mins, then d, then dmin.
//
// Codes are unsigned. Scales are int32; on AVX2 int16 twice. Types with a minimum have mins in pairs of int16, two
// consecutive groups a dword; types without have there what makes codes unsigned: minus bias times the scale.
type superShape struct {
	group int // codes under a scale: 16 or 32
	mins  bool
	steps int // as in runShape
}

func (s superShape) groupBytes() int { return 16*s.group + 64 }
func (s superShape) groups() int     { return 256 / s.group }
func (s superShape) pairsAt() int    { return s.groups() * s.groupBytes() }
func (s superShape) dAt() int        { return s.pairsAt() + 32*s.groups() }
func (s superShape) record() int {
	if s.mins {
		return s.dAt() + 128
	}
	return s.dAt() + 64
}

// step is the offset of a step of a group.
func (s superShape) step(group, step int) int { return group*s.groupBytes() + 64*step }

// scaleAt is the offset of a group's scales.
func (s superShape) scaleAt(group int) int { return (group+1)*s.groupBytes() - 64 }

func (s superShape) name() string {
	n := "16"
	if s.group == 32 {
		n = "32"
	}
	if s.mins {
		n += "Min"
	}
	return n
}

var (
	shapeQ4K  = superShape{group: 32, mins: true}
	shapeQ2K  = superShape{group: 16, mins: true}
	shapeQ6K  = superShape{group: 16}
	shapeIQ32 = superShape{group: 32}
)

// byteScales stores the four scales in the bytes of v, unsigned, as groups g to g+3.
func (p *panelRegs) byteScales(v reg.VecVirtual, s superShape, g int, dst reg.GPVirtual) {
	for i := range 4 {
		t := p.vec()
		i := byte(i)
		VPSHUFB(p.lanesShuffle([]string{"byte0", "byte1", "byte2", "byte3"}[i], p.wide, i, 0x80, 0x80, 0x80, i, 0x80, i, 0x80), v, t)
		p.store(t, Mem{Base: dst, Disp: s.scaleAt(g + int(i))})
	}
}

// byteMins stores the four mins in the bytes of v as two pairs of groups from g on.
func (p *panelRegs) byteMins(v reg.VecVirtual, s superShape, g int, dst reg.GPVirtual) {
	for i := range 2 {
		t := p.vec()
		b := byte(2 * i)
		VPSHUFB(p.lanesShuffle([]string{"bytes01", "bytes23"}[i], true, b, 0x80, b+1, 0x80), v, t)
		p.store(t, Mem{Base: dst, Disp: s.pairsAt() + 64*(g/2+i)})
	}
}

// lanesShuffle is a VPSHUFB control within each dword: the first four bytes of ctl, or, unless first, the next four.
func (v isa) lanesShuffle(name string, first bool, ctl ...byte) Mem {
	if !first {
		ctl = ctl[4:]
	}
	return fill("lane_"+name+v.suffix(), v.size(), func(i int) byte {
		if c := ctl[i%4]; c != 0x80 {
			return byte(i%16&^3) + c
		}
		return 0x80
	})
}

// scales6 takes the header of Q4_K and Q5_K apart: d, dmin, eight 6-bit scales and mins.
func (p *panelRegs) scales6(s superShape, dst reg.GPVirtual) {
	h := p.dwords4(0)
	VMOVUPS(p.lowHalves(h[0]), Mem{Base: dst, Disp: s.dAt()})
	VMOVUPS(p.highHalves(h[0]), Mem{Base: dst, Disp: s.dAt() + 64})
	low6 := p.load(p.dwordConst("low6", 0x3f3f3f3f))
	low4 := p.load(p.dwordConst("low4", 0x0f0f0f0f))
	top2 := p.load(p.dwordConst("top2", 0x30303030))
	t, u := p.vec(), p.vec()
	p.and(low6, h[1], t)
	p.byteScales(t, s, 0, dst)
	p.and(low6, h[2], t)
	p.byteMins(t, s, 0, dst)
	p.and(low4, h[3], t)
	VPSRLD(Imm(2), h[1], u)
	p.and(top2, u, u)
	p.or(u, t, t)
	p.byteScales(t, s, 4, dst)
	VPSRLD(Imm(4), h[3], t)
	p.and(low4, t, t)
	VPSRLD(Imm(2), h[2], u)
	p.and(top2, u, u)
	p.or(u, t, t)
	p.byteMins(t, s, 4, dst)
}

func (v isa) gemmUnpackers() {
	v.unpacker("Q4K", "lays out blocks of Q4_K; see gemmUnpack.", 144, shapeQ4K.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeQ4K
		p.scales6(s, dst)
		nib := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		for c := range 8 {
			for j, x := range p.dwords4(16 + 16*c) {
				t := p.shifted(x, 4)
				p.and(nib, x, x)
				p.and(nib, t, t)
				p.store(x, Mem{Base: dst, Disp: s.step(c&^1, c%2*4+j)})
				p.store(t, Mem{Base: dst, Disp: s.step(c|1, c%2*4+j)})
			}
		}
	})
	v.unpacker("Q5K", "lays out blocks of Q5_K; see gemmUnpack.", 176, shapeQ4K.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeQ4K
		p.scales6(s, dst)
		nib := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		bit := p.load(p.dwordConst("bit4", 0x10101010))
		for i := range 2 {
			high := p.dwords4(16 + 16*i)
			for c := range 4 {
				for j, x := range p.dwords4(48 + 32*c + 16*i) {
					for n := range 2 {
						b := p.vec()
						p.and(bit, p.shifted(high[j], 2*c+n-4), b)
						t := p.vec()
						p.and(nib, p.shifted(x, 4*n), t)
						p.or(b, t, t)
						p.store(t, Mem{Base: dst, Disp: s.step(2*c+n, 4*i+j)})
					}
				}
			}
		}
	})
	v.unpacker("Q6K", "lays out blocks of Q6_K; see gemmUnpack.", 210, shapeQ6K.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeQ6K
		VMOVUPS(p.halfAt(208), Mem{Base: dst, Disp: s.dAt()})
		for i, x := range p.dwords4(192) {
			p.signedScales(x, s, 4*i, dst)
			p.biasPairs(x, 32, s, 4*i, dst)
		}
		nib := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		top := p.load(p.dwordConst("top2", 0x30303030))
		for h := range 2 {
			for i := range 2 {
				high := p.dwords4(128 + 32*h + 16*i)
				for c := range 2 {
					for j, x := range p.dwords4(64*h + 32*c + 16*i) {
						for n := range 2 {
							b := p.vec()
							p.and(top, p.shifted(high[j], 2*c+4*n-4), b)
							t := p.vec()
							p.and(nib, p.shifted(x, 4*n), t)
							p.or(b, t, t)
							// Element 128h + 64n + 32c + 16i + 4j.
							p.store(t, Mem{Base: dst, Disp: s.step(8*h+4*n+2*c+i, j)})
						}
					}
				}
			}
		}
	})
}

// signedScales stores the four signed bytes of v as scales of groups g to g+3.
func (p *panelRegs) signedScales(v reg.VecVirtual, s superShape, g int, dst reg.GPVirtual) {
	for i := range 4 {
		t := p.vec()
		b := byte(i)
		VPSHUFB(p.lanesShuffle([]string{"top0", "top1", "top2", "top3"}[i], p.wide, 0x80, 0x80, 0x80, b, 0x80, b, 0x80, b), v, t)
		if p.wide {
			VPSRAD(Imm(24), t, t)
		} else {
			VPSRAW(Imm(8), t, t)
		}
		p.store(t, Mem{Base: dst, Disp: s.scaleAt(g + i)})
	}
}
