package main

import (
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lookup is the state of an unpacker of codebook types. Indices are worked out in lanes. AVX-512 gathers rows of the grid;
// AVX2, whose gathers are slow on many processors, takes indices through memory and loads rows one by one.
type lookup struct {
	*panelRegs
	grid reg.GPVirtual
	idx  [3]reg.GPVirtual
	at   Mem // AVX2: room for one vector of indices
	tmp  [4]reg.VecVirtual
}

// codebook is unpacker for types that look codes up in a grid, which the function is given.
func (v isa) codebook(name string, blockBytes int, s superShape, body func(p *lookup, dst reg.GPVirtual)) {
	v.unpackerOf(name, "lays out blocks of "+name+"; see gemmLookup.", ", grid *byte", blockBytes, s.record(), func(p *panelRegs) func(dst reg.GPVirtual) {
		l := &lookup{panelRegs: p, grid: Load(Param("grid"), GP64()).(reg.GPVirtual)}
		if !v.wide {
			l.at = AllocLocal(32)
		}
		for i := range l.idx {
			l.idx[i] = GP64()
		}
		for i := range l.tmp {
			l.tmp[i] = v.vec()
		}
		return func(dst reg.GPVirtual) { body(l, dst) }
	})
}

// field is (x >> shift) & mask in each dword.
func (p *panelRegs) field(x reg.VecVirtual, shift int, mask uint32) reg.VecVirtual {
	t := p.down(x, shift)
	p.and(p.load(p.dwordConst("mask"+strconv.FormatUint(uint64(mask), 16), mask)), t, t)
	return t
}

// high is bits from shift on of x, moved to bit 8 and masked, or-ed to idx.
func (p *panelRegs) high(idx, x reg.VecVirtual, shift int, mask uint32) {
	var t reg.VecVirtual
	if shift >= 8 {
		t = p.field(x, shift-8, mask<<8)
	} else {
		t = p.vec()
		VPSLLD(Imm(uint64(8-shift)), x, t)
		p.and(p.load(p.dwordConst("mask"+strconv.FormatUint(uint64(mask<<8), 16), mask<<8)), t, t)
	}
	p.or(t, idx, idx)
}

// index brings the index of row r to a general register.
func (p *lookup) index(r int) reg.GPVirtual {
	g := p.idx[r%len(p.idx)]
	MOVL(p.at.Offset(4*r), g.As32())
	return g
}

// octets looks eight codes a row up and returns them as two steps.
func (p *lookup) octets(idx reg.VecVirtual) (out [2]reg.VecVirtual) {
	if p.wide {
		p.gather(VPGATHERDQ, idx.AsY(), 8, p.tmp[0])
		VEXTRACTI64X4(Imm(1), idx, p.tmp[2].AsY())
		p.gather(VPGATHERDQ, p.tmp[2].AsY(), 8, p.tmp[1])
		for i, name := range []string{"even_dwords", "odd_dwords"} {
			var w [16]uint32
			for j := range w {
				w[j] = uint32(2*j + i)
			}
			out[i] = p.load(dwords(name, w[:]...))
			VPERMI2D(p.tmp[1], p.tmp[0], out[i])
		}
		return out
	}
	VMOVDQU(idx, p.at)
	for i, x := range p.tmp { // rows 0 and 1, 4 and 5, 2 and 3, 6 and 7
		r := 4*(i%2) + 2*(i/2)
		VMOVQ(Mem{Base: p.grid, Index: p.index(r), Scale: 8}, x.AsX())
		VMOVHPS(Mem{Base: p.grid, Index: p.index(r + 1), Scale: 8}, x.AsX(), x.AsX())
	}
	VINSERTF128(Imm(1), p.tmp[1].AsX(), p.tmp[0], p.tmp[0])
	VINSERTF128(Imm(1), p.tmp[3].AsX(), p.tmp[2], p.tmp[2])
	for i := range out {
		out[i] = YMM()
		VSHUFPS(Imm([]uint64{0x88, 0xdd}[i]), p.tmp[2], p.tmp[0], out[i])
	}
	return out
}

// quartet looks four codes a row up.
func (p *lookup) quartet(idx reg.VecVirtual) reg.VecVirtual {
	out := p.vec()
	if p.wide {
		p.gather(VPGATHERDD, idx, 4, p.tmp[0])
		VMOVDQA32(p.tmp[0], out)
		return out
	}
	VMOVDQU(idx, p.at)
	for i, x := range p.tmp[:2] {
		VMOVD(Mem{Base: p.grid, Index: p.index(4 * i), Scale: 4}, x.AsX())
		for k := 1; k < 4; k++ {
			VPINSRD(Imm(uint64(k)), Mem{Base: p.grid, Index: p.index(4*i + k), Scale: 4}, x.AsX(), x.AsX())
		}
	}
	VINSERTI128(Imm(1), p.tmp[1].AsX(), p.tmp[0], out)
	return out
}

// gather loads rows of the grid, of size bytes.
func (p *lookup) gather(instr func(m, k, dst Op), idx reg.Register, size uint8, dst reg.VecVirtual) {
	k := K()
	MOVL(U32(0xffff), p.idx[0].As32())
	KMOVW(p.idx[0].As32(), k)
	VPXORD(dst, dst, dst)
	instr(Mem{Base: p.grid, Index: idx, Scale: size}, k, dst)
}

// signed negates bytes of x where a bit of byte b of signs is set, bits 0..3 for the low step and 4..7 for the high one,
// and raises them by bias on AVX-512.
func (p *lookup) signed(x, signs reg.VecVirtual, b, step, bias int) {
	rep := p.vec()
	c := byte(b)
	VPSHUFB(p.lanesShuffle("repeat"+strconv.Itoa(b), true, c, c, c, c), signs, rep)
	bits := p.load(p.dwordConst("step_bits"+strconv.Itoa(step), 0x08040201<<(4*step)))
	if p.wide {
		k := K()
		VPTESTMB(bits, rep, k)
		off := p.load(p.dwordConst("bias"+strconv.Itoa(bias), uint32(bias)*0x01010101))
		t := p.vec()
		VPADDB(off, x, t)
		VPSUBB(x, off, k, t)
		VMOVDQA32(t, x)
		return
	}
	VPAND(bits, rep, rep)
	VPCMPEQB(bits, rep, rep)
	VPXOR(rep, x, x)
	VPSUBB(rep, x, x)
}

// parity completes the seven bits in each byte to eight so that an even number is set.
func (p *panelRegs) parity(x reg.VecVirtual) {
	t, u := p.vec(), p.vec()
	VPSRLD(Imm(4), x, t)
	p.xor(x, t, t)
	VPSRLD(Imm(2), t, u)
	p.xor(u, t, t)
	VPSRLD(Imm(1), t, u)
	p.xor(u, t, t)
	p.and(p.load(p.dwordConst("bits0", 0x01010101)), t, t)
	VPSLLD(Imm(7), t, t)
	p.or(t, x, x)
}

// sevens spreads four runs of seven bits to bytes and completes them.
func (p *panelRegs) sevens(w reg.VecVirtual) reg.VecVirtual {
	out := p.field(w, 0, 0x7f)
	for l := 1; l < 4; l++ {
		t := p.vec()
		VPSLLD(Imm(uint64(l)), w, t)
		p.and(p.load(p.dwordConst("seven"+strconv.Itoa(l), 0x7f<<(8*l))), t, t)
		p.or(t, out, out)
	}
	p.parity(out)
	return out
}

// oddScale is 2x+1.
func (p *panelRegs) oddScale(x reg.VecVirtual) reg.VecVirtual {
	VPADDD(x, x, x)
	p.or(p.load(p.dwordConst("int1", 1)), x, x)
	return x
}

// scaledHalves stores d, the low halves of x, times a power of two.
func (p *panelRegs) scaledHalves(x reg.VecVirtual, name string, exp int, dst reg.GPVirtual, at int) {
	f := p.lowHalves(x)
	VMULPS(p.load(p.dwordConst(name, uint32(127+exp)<<23)), f, f)
	p.floats(f, dst, at)
}

// put stores two steps, of elements 8*l on of the run g of 32.
func (p *lookup) put(x [2]reg.VecVirtual, s superShape, g, l int, dst reg.GPVirtual) {
	for i, y := range x {
		e := 32*g + 8*l + 4*i
		p.store(y, Mem{Base: dst, Disp: s.step(e/s.group, e%s.group/4)})
	}
}

func (v isa) codebooks() {
	wide, s16 := shapeIQ32, shapeQ6K
	v.codebook("IQ2XXS", 66, wide, func(p *lookup, dst reg.GPVirtual) {
		p.scaledHalves(p.dword(0), "eighth", -3, dst, wide.dAt())
		for i := range 4 {
			x := p.dwords4(2 + 16*i)
			p.intScales(p.oddScale(p.field(x[1], 28, 15)), p.oddScale(p.field(x[3], 28, 15)), 64, wide, 2*i, dst)
			for h := range 2 {
				signs := p.sevens(x[2*h+1])
				for l := range 4 {
					o := p.octets(p.field(x[2*h], 8*l, 255))
					p.signed(o[0], signs, l, 0, 64)
					p.signed(o[1], signs, l, 1, 64)
					p.put(o, wide, 2*i+h, l, dst)
				}
			}
		}
	})
	// nibbleScales stores the scales of runs g to g+3, whose halves have a nibble each in a byte of x.
	nibbleScales := func(p *lookup, x reg.VecVirtual, bias, g int, dst reg.GPVirtual) {
		for j := range 4 {
			p.intScales(p.oddScale(p.field(x, 8*j, 15)), p.oddScale(p.field(x, 8*j+4, 15)), bias, s16, 2*(g+j), dst)
		}
	}
	v.codebook("IQ2XS", 74, s16, func(p *lookup, dst reg.GPVirtual) {
		p.scaledHalves(p.dword(0), "eighth", -3, dst, s16.dAt())
		sc := p.dwords4(58)
		nibbleScales(p, sc[2], 64, 0, dst)
		nibbleScales(p, sc[3], 64, 4, dst)
		for i := range 4 {
			x := p.dwords4(2 + 16*i)
			for h := range 2 {
				a, b := x[2*h], x[2*h+1]
				signs, t := p.shifted(a, 9), p.shifted(b, 9) // bytes 0 and 2 of each
				VPSLLD(Imm(8), t, t)
				p.or(t, signs, signs)
				p.parity(signs)
				for l := range 4 {
					o := p.octets(p.field([]reg.VecVirtual{a, b}[l/2], 16*(l%2), 511))
					p.signed(o[0], signs, []int{0, 2, 1, 3}[l], 0, 64)
					p.signed(o[1], signs, []int{0, 2, 1, 3}[l], 1, 64)
					p.put(o, s16, 2*i+h, l, dst)
				}
			}
		}
	})
	v.codebook("IQ2S", 82, s16, func(p *lookup, dst reg.GPVirtual) {
		p.scaledHalves(p.dword(0), "eighth", -3, dst, s16.dAt())
		h := p.dwords4(66)
		nibbleScales(p, h[2], 64, 0, dst)
		nibbleScales(p, h[3], 64, 4, dst)
		for i := range 2 {
			var xs, ss [4]reg.VecVirtual
			if p.wide {
				xs, ss = p.dwords4(2+16*i), p.dwords4(34+16*i)
			}
			for j := range 4 {
				g := 4*i + j
				x, signs := xs[j], ss[j]
				if !p.wide { // too few registers for all four
					x, signs = p.dword(2+4*g), p.dword(34+4*g)
				}
				for l := range 4 {
					idx := p.field(x, 8*l, 255)
					p.high(idx, h[i], 8*j+2*l, 3)
					o := p.octets(idx)
					p.signed(o[0], signs, l, 0, 64)
					p.signed(o[1], signs, l, 1, 64)
					p.put(o, s16, g, l, dst)
				}
			}
		}
	})
	v.codebook("IQ3XXS", 98, wide, func(p *lookup, dst reg.GPVirtual) {
		p.scaledHalves(p.dword(0), "quarter", -2, dst, wide.dAt())
		for i := range 2 {
			w := p.dwords4(66 + 16*i)
			for j := 0; j < 4; j += 2 {
				p.intScales(p.oddScale(p.field(w[j], 28, 15)), p.oddScale(p.field(w[j+1], 28, 15)), 64, wide, 4*i+j, dst)
				x := p.dwords4(2 + 8*(4*i+j))
				for h := range 2 {
					signs := p.sevens(w[j+h])
					for k := range 8 {
						q := p.quartet(p.field(x[2*h+k/4], 8*(k%4), 255))
						p.signed(q, signs, k/2, k%2, 64)
						p.store(q, Mem{Base: dst, Disp: wide.step(4*i+j+h, k)})
					}
				}
			}
		}
	})
	v.codebook("IQ3S", 110, wide, func(p *lookup, dst reg.GPVirtual) {
		p.floats(p.lowHalves(p.dword(0)), dst, wide.dAt())
		sc := p.dwords4(94)[3]
		for g := 0; g < 8; g += 2 {
			p.intScales(p.oddScale(p.field(sc, 4*g, 15)), p.oddScale(p.field(sc, 4*g+4, 15)), 16, wide, g, dst)
		}
		for i := range 2 {
			h := p.dword(66 + 4*i)
			for j := 0; j < 4; j += 2 {
				x := p.dwords4(2 + 8*(4*i+j))
				for n := range 2 {
					g := 4*i + j + n
					signs := p.dwords4(74 + 4*g - 4*(g/4*2))[g/4*2]
					for k := range 8 {
						idx := p.field(x[2*n+k/4], 8*(k%4), 255)
						p.high(idx, h, 8*(j+n)+k, 1)
						q := p.quartet(idx)
						p.signed(q, signs, k/2, k%2, 16)
						if !p.wide { // unsigned there too
							VPADDB(p.load(p.dwordConst("bias16", 0x10101010)), q, q)
						}
						p.store(q, Mem{Base: dst, Disp: wide.step(g, k)})
					}
				}
			}
		}
	})
	// ternary makes codes of eighths from a grid of -1, 0 and 1: 8x plus 17 or 15 as delta says.
	ternary := func(p *lookup, x [2]reg.VecVirtual, delta reg.VecVirtual) {
		for _, y := range x {
			VPSLLW(Imm(3), y, y)
			p.and(p.load(p.dwordConst("eights", 0xf8f8f8f8)), y, y)
			VPADDB(delta, y, y)
		}
	}
	// deltas is 17 in each byte, 15 where bit n of x is set.
	deltas := func(p *lookup, x reg.VecVirtual, n int) reg.VecVirtual {
		t, u := p.vec(), p.load(p.dwordConst("seventeens", 0x11111111))
		VPSLLD(Imm(uint64(31-n)), x, t)
		VPSRAD(Imm(31), t, t)
		p.and(p.load(p.dwordConst("twos2", 0x02020202)), t, t)
		VPSUBB(t, u, u)
		return u
	}
	v.codebook("IQ1S", 50, wide, func(p *lookup, dst reg.GPVirtual) {
		p.scaledHalves(p.dword(0), "eighth", -3, dst, wide.dAt())
		for i := range 2 {
			h := p.dwords4(34)
			a, b := h[2*i], h[2*i+1]
			for j := range 4 {
				if j%2 == 0 {
					w := []reg.VecVirtual{a, b}[j/2]
					p.intScales(p.oddScale(p.field(w, 12, 7)), p.oddScale(p.field(w, 28, 7)), 16, wide, 4*i+j, dst)
				}
				hw := p.field([]reg.VecVirtual{a, b}[j/2], 16*(j%2), 0xffff)
				delta := deltas(p, hw, 15)
				x := p.dword(2 + 4*(4*i+j))
				for l := range 4 {
					idx := p.field(x, 8*l, 255)
					p.high(idx, hw, 3*l, 7)
					o := p.octets(idx)
					ternary(p, o, delta)
					p.put(o, wide, 4*i+j, l, dst)
				}
			}
		}
	})
	v.codebook("IQ1M", 56, s16, func(p *lookup, dst reg.GPVirtual) {
		sc := p.dwords4(40)
		d := p.field(sc[2], 12, 0xf)
		p.or(p.field(sc[2], 24, 0xf0), d, d)
		p.or(p.field(sc[3], 4, 0xf00), d, d)
		p.or(p.field(sc[3], 16, 0xf000), d, d)
		p.scaledHalves(d, "eighth", -3, dst, s16.dAt())
		for g := range 8 {
			w, at := sc[2+g/4], 16*(g/2%2)+6*(g%2)
			p.intScales(p.oddScale(p.field(w, at, 7)), p.oddScale(p.field(w, at+3, 7)), 16, s16, 2*g, dst)
		}
		for i := range 4 { // two runs at a time
			h := p.dwords4(min(32+4*i, 40))[max(i-2, 0)] // 16 bytes from 44 on would leave the block
			for j := range 2 {
				g := 2*i + j
				x := p.dword(4 * g)
				for l := range 4 {
					at := 16*j + 4*l
					idx := p.field(x, 8*l, 255)
					p.high(idx, h, at, 7)
					o := p.octets(idx)
					ternary(p, o, deltas(p, h, at+3))
					p.put(o, s16, g, l, dst)
				}
			}
		}
	})
}
