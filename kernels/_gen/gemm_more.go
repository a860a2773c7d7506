package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// biasPairs stores minus bias, a power of two, times the signed bytes of v, scales of groups g to g+3, as two pairs.
func (p *panelRegs) biasPairs(v reg.VecVirtual, bias int, s superShape, g int, dst reg.GPVirtual) {
	up := uint64(8)
	for ; bias > 1; bias /= 2 {
		up--
	}
	z := p.vec()
	p.zero(z)
	for h := range 2 { // bytes to the top of words, then down
		t := p.vec()
		b := byte(2 * h)
		VPSHUFB(p.lanesShuffle([]string{"top01", "top23"}[h], true, 0x80, b, 0x80, b+1), v, t)
		VPSRAW(Imm(up), t, t)
		VPSUBW(t, z, t)
		p.store(t, Mem{Base: dst, Disp: s.pairsAt() + 64*(g/2+h)})
	}
}

// oneScales stores scales of one and pairs of minus bias.
func (p *panelRegs) oneScales(bias int, s superShape, dst reg.GPVirtual) {
	one := p.dwordConst("int1", 1)
	if !p.wide {
		one = p.dwordConst("word_ones", 0x00010001)
	}
	t := p.load(one)
	for g := range s.groups() {
		p.store(t, Mem{Base: dst, Disp: s.scaleAt(g)})
	}
	w := uint32(uint16(-bias))
	t = p.load(p.dwordConst("minus1", w<<16|w))
	for i := range s.groups() / 2 {
		p.store(t, Mem{Base: dst, Disp: s.pairsAt() + 64*i})
	}
}

// twoBits stores the four runs of 32 codes of two bits in 32 bytes at disp, as elements from first on; fix completes a
// step.
func (p *panelRegs) twoBits(disp, first int, s superShape, dst reg.GPVirtual, fix func(i, j, c int, x reg.VecVirtual)) {
	low := p.load(p.dwordConst("twos", 0x03030303))
	for i := range 2 {
		for j, x := range p.dwords4(disp + 16*i) {
			for c := range 4 {
				t := p.vec()
				p.and(low, p.shifted(x, 2*c), t)
				if fix != nil {
					fix(i, j, c, t)
				}
				e := first + 32*c + 16*i + 4*j
				p.store(t, Mem{Base: dst, Disp: s.step(e/s.group, e%s.group/4)})
			}
		}
	}
}

func (v isa) superUnpackers() {
	v.unpacker("Q2K", "lays out blocks of Q2_K; see gemmUnpack.", 84, shapeQ2K.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeQ2K
		dm := p.dwords4(68)[3]
		p.floats(p.lowHalves(dm), dst, s.dAt())
		p.floats(p.highHalves(dm), dst, s.dAt()+64)
		low := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		for i, x := range p.dwords4(0) {
			t := p.shifted(x, 4)
			p.and(low, x, x)
			p.byteScales(x, s, 4*i, dst)
			p.and(low, t, t)
			p.byteMins(t, s, 4*i, dst)
		}
		for h := range 2 {
			p.twoBits(16+32*h, 128*h, s, dst, nil)
		}
	})
	v.unpacker("Q3K", "lays out blocks of Q3_K; see gemmUnpack.", 110, shapeQ6K.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeQ6K
		x := p.dwords4(94) // two bytes before the scales, to the end of the block
		p.floats(p.highHalves(x[3]), dst, s.dAt())
		for i := range 3 { // the three dwords of scales
			VPSRLD(Imm(16), x[i], x[i])
			t := p.vec()
			VPSLLD(Imm(16), x[i+1], t)
			p.or(t, x[i], x[i])
		}
		low := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		top := p.load(p.dwordConst("top2", 0x30303030))
		off := p.load(p.dwordConst("off32", 0x20202020))
		for g := range 4 {
			t, u := p.vec(), p.vec()
			p.and(low, p.shifted(x[g%2], g/2*4), t)
			p.and(top, p.shifted(x[2], 2*g-4), u)
			p.or(u, t, t)
			VPSUBB(off, t, t)
			p.signedScales(t, s, 4*g, dst)
			p.biasPairs(t, 4, s, 4*g, dst)
		}
		bit := p.load(p.dwordConst("bit2", 0x04040404))
		for i := range 2 {
			mask := p.dwords4(16 * i)
			low := p.load(p.dwordConst("twos", 0x03030303))
			for h := range 2 {
				for j, x := range p.dwords4(32 + 32*h + 16*i) {
					for c := range 4 {
						t, u := p.vec(), p.vec()
						p.and(low, p.shifted(x, 2*c), t)
						p.and(bit, p.shifted(mask[j], 4*h+c-2), u)
						p.or(u, t, t)
						p.store(t, Mem{Base: dst, Disp: s.step(8*h+2*c+i, j)})
					}
				}
			}
		}
	})
	v.unpacker("IQ4XS", "lays out blocks of IQ4_XS; see gemmUnpack.", 136, shapeIQ32.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeIQ32
		x := p.dwords4(0)
		p.floats(p.lowHalves(x[0]), dst, s.dAt())
		// Bytes of scales: the low nibbles of groups 0, 2, 4, 6, the high ones of 1, 3, 5, 7.
		low := p.load(p.dwordConst("nibble0", 15))
		top := p.load(p.dwordConst("bits45", 0x30))
		off := p.load(p.dwordConst("int32", 32))
		for g := 0; g < 8; g += 2 {
			var sc [2]reg.VecVirtual
			for i := range sc {
				sc[i] = p.down(x[1], 4*(g+i))
				p.and(low, sc[i], sc[i])
				t := p.down(x[0], 12+2*(g+i))
				p.and(top, t, t)
				p.or(t, sc[i], sc[i])
				VPSUBD(off, sc[i], sc[i])
			}
			p.intScales(sc[0], sc[1], 128, s, g, dst)
		}
		kv := p.table("kv4", kv4, p.signedBias())
		for g := range 8 {
			p.nibbles(p.dwords4(8+16*g), func(k int, x reg.VecVirtual) {
				VPSHUFB(x, kv, x)
				p.store(x, Mem{Base: dst, Disp: s.step(g, k)})
			})
		}
	})
	v.unpacker("TQ2", "lays out blocks of TQ2_0; see gemmUnpack.", 66, shapeIQ32.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeIQ32
		p.floats(p.halfAt(64), dst, s.dAt())
		p.oneScales(1, s, dst)
		for j := range 2 {
			p.twoBits(32*j, 128*j, s, dst, nil)
		}
	})
	v.unpacker("TQ1", "lays out blocks of TQ1_0; see gemmUnpack.", 54, shapeIQ32.record(), func(p *panelRegs, dst reg.GPVirtual) {
		s := shapeIQ32
		p.oneScales(1, s, dst)
		trits := func(x reg.VecVirtual, n int, at func(n int) int) {
			low := p.load(p.dwordConst("low_bytes", 0x00ff00ff))
			three := p.load(p.dwordConst("word3", 0x00030003))
			a, b := p.vec(), p.shifted(x, 8) // even and odd bytes as words
			p.and(low, x, a)
			for i := range n {
				t, u := p.vec(), p.vec()
				VPMULLW(three, a, t)
				VPMULLW(three, b, u)
				VPSRLW(Imm(8), t, t)
				if i < n-1 { // times three modulo 256 for the next digit
					VPMULLW(three, a, a)
					VPMULLW(three, b, b)
					p.and(low, a, a)
					p.and(low, b, b)
				}
				p.and(p.load(p.dwordConst("high_bytes", 0xff00ff00)), u, u)
				p.or(u, t, t)
				e := at(i)
				p.store(t, Mem{Base: dst, Disp: s.step(e/32, e%32/4)})
			}
		}
		for i := range 2 {
			for j, x := range p.dwords4(16 * i) {
				trits(x, 5, func(n int) int { return 32*n + 16*i + 4*j })
			}
		}
		for j, x := range p.dwords4(32) {
			trits(x, 5, func(n int) int { return 160 + 16*n + 4*j })
		}
		x := p.dwords4(38) // the end of the block: two bytes, four, four, then four of digits and d
		t := p.vec()
		p.floats(p.highHalves(x[3]), dst, s.dAt())
		VPSRLD(Imm(16), x[2], t)
		VPSLLD(Imm(16), x[3], x[3])
		p.or(x[3], t, t)
		trits(t, 4, func(n int) int { return 240 + 4*n })
	})
}

// intScales stores the int32 scales of groups g and g+1, and the pair of both times minus bias, a power of two.
func (p *panelRegs) intScales(a, b reg.VecVirtual, bias int, s superShape, g int, dst reg.GPVirtual) {
	pair, t := p.vec(), p.vec()
	p.and(p.load(p.dwordConst("low_word", 0xffff)), a, pair)
	VPSLLD(Imm(16), b, t)
	p.or(t, pair, pair)
	for i, x := range []reg.VecVirtual{a, b} {
		if !p.wide {
			VPSHUFB(p.lanesShuffle("words00", true, 0, 1, 0, 1), x, x)
		}
		p.store(x, Mem{Base: dst, Disp: s.scaleAt(g + i)})
	}
	n := uint64(0)
	for ; bias > 1; bias /= 2 {
		n++
	}
	VPSLLW(Imm(n), pair, pair)
	z := p.vec()
	p.zero(z)
	VPSUBW(pair, z, pair)
	p.store(pair, Mem{Base: dst, Disp: s.pairsAt() + 64*(g/2)})
}
