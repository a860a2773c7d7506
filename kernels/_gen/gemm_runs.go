package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// runShape is the layout of a run of 32 codes in a panel: eight steps, then d, then, for some types, what is added to
// every weight (min) or the d of the second half (halves).
//
// Codes are unsigned, too large by a bias that the tile takes off through the sums of activations.
type runShape struct {
	mins, halves bool
	// How AVX2 adds up: the number of steps whose pairs of products fit int16 together, 0 for signed codes.
	steps int
}

func (s runShape) record() int {
	if s.mins || s.halves {
		return 512 + 128
	}
	return 512 + 64
}

func (s runShape) name() string {
	switch {
	case s.mins:
		return "Min"
	case s.halves:
		return "Halves"
	}
	return ""
}

// steps32 stores eight step vectors; code gives step k.
func (p *panelRegs) steps32(dst reg.GPVirtual, at int, code func(k int) reg.VecVirtual) {
	for k := range 8 {
		p.store(code(k), Mem{Base: dst, Disp: at + 64*k})
	}
}

// spreadBits makes bytes, each 0 or 1, of the low four bits of x: byte i is bit i. x is destroyed.
func (p *panelRegs) spreadBits(x reg.VecVirtual) reg.VecVirtual {
	p.and(p.load(p.dwordConst("nibble0", 15)), x, x)
	p.spread(x, 14, 7)
	p.and(p.load(p.dwordConst("bits0", 0x01010101)), x, x)
	return x
}

// spread or-s x with itself moved up by a bits and the result by b bits.
func (p *panelRegs) spread(x reg.VecVirtual, a, b uint64) {
	t := p.vec()
	VPSLLD(Imm(a), x, t)
	p.or(t, x, x)
	VPSLLD(Imm(b), x, t)
	p.or(t, x, x)
}

// down is x moved right by n bits in each dword, in a new register.
func (p *panelRegs) down(x reg.VecVirtual, n int) reg.VecVirtual {
	t := p.vec()
	if n > 0 {
		VPSRLD(Imm(uint64(n)), x, t)
	} else if p.wide {
		VMOVDQA32(x, t)
	} else {
		VMOVDQA(x, t)
	}
	return t
}

// floats stores a vector of floats at a place of the record.
func (p *panelRegs) floats(x reg.VecVirtual, dst reg.GPVirtual, at int) {
	VMOVUPS(x, Mem{Base: dst, Disp: at})
}

// nibbles calls f for the eight steps of a run of 32 nibbles in four dwords: low ones first.
func (p *panelRegs) nibbles(q [4]reg.VecVirtual, f func(k int, nib reg.VecVirtual)) {
	low := p.load(p.dwordConst("low4", 0x0f0f0f0f))
	for j, x := range q {
		t := p.vec()
		p.and(low, x, t)
		f(j, t)
		VPSRLW(Imm(4), x, x)
		p.and(low, x, x)
		f(4+j, x)
	}
}

// table looks codes up in 16 bytes.
func (p *panelRegs) table(name string, values [16]int8, bias int) reg.VecVirtual {
	return p.load(fill(name+p.suffix(), p.size(), func(i int) byte { return byte(int(values[i%16]) + bias) }))
}

var (
	kv4   = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	fp4x2 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// signedBias is what signed codes are raised by: on AVX2 they stay signed.
func (v isa) signedBias() int {
	if v.wide {
		return 128
	}
	return 0
}

func (v isa) runUnpackers() {
	plain, min := runShape{}.record(), runShape{mins: true}.record()
	store := func(p *panelRegs, dst reg.GPVirtual) func(k int, x reg.VecVirtual) {
		return func(k int, x reg.VecVirtual) { p.store(x, Mem{Base: dst, Disp: 64 * k}) }
	}
	v.unpacker("Q80", "lays out runs of Q8_0; see gemmUnpack.", 34, plain, func(p *panelRegs, dst reg.GPVirtual) {
		p.floats(p.lowHalves(p.dword(0)), dst, 512)
		for i := range 2 {
			for j, x := range p.dwords4(2 + 16*i) {
				if p.wide {
					VPXORD(p.load(fill("sign_bits", 64, func(int) byte { return 0x80 })), x, x)
				}
				store(p, dst)(4*i+j, x)
			}
		}
	})
	v.unpacker("Q40", "lays out runs of Q4_0; see gemmUnpack.", 18, plain, func(p *panelRegs, dst reg.GPVirtual) {
		p.floats(p.lowHalves(p.dword(0)), dst, 512)
		p.nibbles(p.dwords4(2), store(p, dst))
	})
	v.unpacker("Q41", "lays out runs of Q4_1; see gemmUnpack.", 20, min, func(p *panelRegs, dst reg.GPVirtual) {
		h := p.dword(0)
		p.floats(p.lowHalves(h), dst, 512)
		p.floats(p.highHalves(h), dst, 576)
		p.nibbles(p.dwords4(4), store(p, dst))
	})
	fifth := func(p *panelRegs, high reg.VecVirtual, dst reg.GPVirtual) func(k int, x reg.VecVirtual) {
		return func(k int, x reg.VecVirtual) {
			b := p.spreadBits(p.down(high, 4*k))
			VPSLLD(Imm(4), b, b)
			p.or(b, x, x)
			store(p, dst)(k, x)
		}
	}
	v.unpacker("Q50", "lays out runs of Q5_0; see gemmUnpack.", 22, plain, func(p *panelRegs, dst reg.GPVirtual) {
		p.floats(p.lowHalves(p.dword(0)), dst, 512)
		high := p.dword(2)
		p.nibbles(p.dwords4(6), fifth(p, high, dst))
	})
	v.unpacker("Q51", "lays out runs of Q5_1; see gemmUnpack.", 24, min, func(p *panelRegs, dst reg.GPVirtual) {
		h := p.dword(0)
		p.floats(p.lowHalves(h), dst, 512)
		p.floats(p.highHalves(h), dst, 576)
		high := p.dword(4)
		p.nibbles(p.dwords4(8), fifth(p, high, dst))
	})
	v.unpacker("IQ4NL", "lays out runs of IQ4_NL; see gemmUnpack.", 18, plain, func(p *panelRegs, dst reg.GPVirtual) {
		p.floats(p.lowHalves(p.dword(0)), dst, 512)
		kv := p.table("kv4", kv4, p.signedBias())
		p.nibbles(p.dwords4(2), func(k int, x reg.VecVirtual) {
			VPSHUFB(x, kv, x)
			store(p, dst)(k, x)
		})
	})
	v.unpacker("MXFP4", "lays out runs of MXFP4; see gemmUnpack.", 17, plain, func(p *panelRegs, dst reg.GPVirtual) {
		e := p.dword(0)
		p.and(p.load(p.dwordConst("byte0", 255)), e, e)
		// 2^(e-128) has the exponent field e-1; for e of 0 and 1 it is a subnormal, a single bit moved up by e.
		d, one, low := p.vec(), p.load(p.dwordConst("int1", 1)), p.vec()
		VPSUBD(one, e, d)
		VPSLLD(Imm(23), d, d)
		VPSLLVD(e, p.load(p.dwordConst("sub128", 0x00200000)), low)
		if p.wide {
			k := K()
			VPCMPUD(Imm(2), one, e, k)
			VMOVDQA32(low, k, d)
		} else {
			m := p.vec()
			VPCMPGTD(one, e, m)
			VPBLENDVB(m, d, low, d)
		}
		p.floats(d, dst, 512)
		fp := p.table("fp4", fp4x2, 12)
		p.nibbles(p.dwords4(1), func(k int, x reg.VecVirtual) {
			VPSHUFB(x, fp, x)
			store(p, dst)(k, x)
		})
	})
	v.unpacker("Q10", "lays out blocks of Q1_0, four runs each; see gemmUnpack.", 18, 4*plain, func(p *panelRegs, dst reg.GPVirtual) {
		d := p.lowHalves(p.dword(0))
		for i, x := range p.dwords4(2) {
			p.floats(d, dst, i*plain+512)
			p.steps32(dst, i*plain, func(k int) reg.VecVirtual {
				b := p.spreadBits(p.down(x, 4*k))
				VPADDB(b, b, b)
				return b
			})
		}
	})
	v.unpacker("Q20", "lays out blocks of Q2_0, two runs each; see gemmUnpack.", 18, 2*plain, func(p *panelRegs, dst reg.GPVirtual) {
		d := p.lowHalves(p.dword(0))
		q := p.dwords4(2)
		for i := range 2 {
			p.floats(d, dst, i*plain+512)
			p.steps32(dst, i*plain, func(k int) reg.VecVirtual {
				b := p.down(q[2*i+k/4], 8*(k%4))
				p.and(p.load(p.dwordConst("byte0", 255)), b, b)
				p.spread(b, 12, 6)
				p.and(p.load(p.dwordConst("twos", 0x03030303)), b, b)
				return b
			})
		}
	})
	two := runShape{halves: true}.record()
	v.unpacker("NVFP4", "lays out blocks of NVFP4, two runs each; see gemmUnpack.", 36, 2*two, func(p *panelRegs, dst reg.GPVirtual) {
		sc := p.dword(0)
		for i := range 4 {
			e := p.down(sc, 8*i)
			// A float with these seven bits below the sign, times 2^119; 0x7f stands for 0.
			p.and(p.load(p.dwordConst("byte0", 255)), e, e)
			nan := p.load(p.dwordConst("ue4m3_nan", 0x7f))
			if p.wide {
				k := K()
				VPCMPD(Imm(4), nan, e, k)
				VPANDD_Z(p.load(p.dwordConst("seven", 0x7f)), e, k, e)
			} else {
				m := p.vec()
				VPCMPEQD(nan, e, m)
				VPANDN(e, m, e)
				p.and(nan, e, e)
			}
			VPSLLD(Imm(20), e, e)
			f := p.vec()
			VMULPS(p.load(p.dwordConst("exp119", (119+127)<<23)), e, f)
			p.floats(f, dst, i/2*two+512+64*(i%2))
		}
		fp := p.table("fp4", fp4x2, 12)
		low := p.load(p.dwordConst("low4", 0x0f0f0f0f))
		for i := range 2 {
			for j, x := range p.dwords4(4 + 16*i) { // half j/2, bytes 4*(j%2)
				for n := range 2 {
					t := p.vec()
					p.and(low, p.shifted(x, 4*n), t)
					VPSHUFB(t, fp, t)
					p.store(t, Mem{Base: dst, Disp: i*two + 64*(4*(j/2)+2*n+j%2)})
				}
			}
		}
	})
}

// runTile multiplies count runs of a panel with cols columns of Act32. Runs go by residue modulo 8, so that one
// accumulator of an element is live. Accumulators lie as [residue][column][16 rows]; out = in + what the runs add.
func (v isa) runTile(s runShape, cols int) {
	name := "gemmRun" + s.name() + v.stepsName(s.steps) + "x" + string(rune('0'+cols)) + v.suffix()
	TEXT(name, 0, tileSignature)
	Pragma("noescape")
	Doc(name + " multiplies a panel of runs of 32; see gemmTile.")
	stride := Load(Param("n"), GP64()).(reg.GPVirtual)
	ds, ss := GP64(), GP64()
	MOVQ(stride, ds)
	SHRQ(Imm(3), ds)
	MOVQ(stride, ss)
	SHRQ(Imm(4), ss)
	q := newColumns(stride, cols)
	panel, d, sums, n := GP64(), GP64(), GP64(), GP64()
	residue := AllocLocal(8)
	MOVQ(U32(8), residue)
	parts := 64 / v.size()
	t := &runRegs{isa: v, runShape: s, q: q, panel: panel, cols: cols, parts: parts}
	for range cols * parts {
		t.acc = append(t.acc, v.vec())
		if v.wide {
			t.sum = append(t.sum, v.vec())
		}
	}
	signed := !v.wide && s.steps == 0
	var bias reg.VecVirtual
	if !s.mins && !signed {
		bias = v.vec()
		x := XMM()
		VMOVQ(param("bias"), x)
		if s.halves {
			VPBROADCASTB(x, bias)
		} else {
			VPBROADCASTD(x, bias) // words: bias and 0
		}
	}
	Label("residue")
	{
		io := GP64()
		Load(Param("in"), io)
		if !v.wide {
			o := GP64()
			Load(Param("out"), o)
			for i := range t.acc {
				x := v.load(Mem{Base: io, Disp: 32 * i})
				v.store(x, Mem{Base: o, Disp: 32 * i})
			}
		} else {
			for i, a := range t.sum {
				VMOVUPS(Mem{Base: io, Disp: 64 * i}, a)
			}
		}
	}
	Load(Param("q"), q.base)
	Load(Param("d"), d)
	Load(Param("sums"), sums)
	Load(Param("panel"), panel)
	Load(Param("count"), n)
	Label("run")
	t.run(s, d, sums, ds, ss, bias)
	ADDQ(U32(256), q.base)
	ADDQ(Imm(32), d)
	ADDQ(Imm(16), sums)
	ADDQ(U32(uint32(8*s.record())), panel)
	SUBQ(Imm(8), n)
	JG(LabelRef("run"))
	if v.wide {
		o := GP64()
		Load(Param("out"), o)
		for i, a := range t.sum {
			VMOVUPS(a, Mem{Base: o, Disp: 64 * i})
		}
	}
	ADDQ(Imm(32), param("q"))
	ADDQ(Imm(4), param("d"))
	ADDQ(Imm(2), param("sums"))
	ADDQ(U32(uint32(s.record())), param("panel"))
	ADDQ(U32(uint32(64*cols)), param("in"))
	ADDQ(U32(uint32(64*cols)), param("out"))
	DECQ(count())
	JZ(LabelRef("done"))
	DECQ(residue)
	JNZ(LabelRef("residue"))
	Label("done")
	VZEROUPPER()
	RET()
}

// stepsName tells kernels of AVX2 apart.
func (v isa) stepsName(steps int) string {
	if v.wide {
		return ""
	}
	if steps == 0 {
		return "Signed"
	}
	return "Steps" + string(rune('0'+steps))
}

// runRegs is the state of a runTile.
type runRegs struct {
	isa
	runShape
	q     columns
	panel reg.GPVirtual
	cols  int
	parts int
	acc   []reg.VecVirtual // integers of a run: [column][part]
	sum   []reg.VecVirtual // floats, on AVX-512
}

// run adds one run.
func (t *runRegs) run(s runShape, d, sums, ds, ss reg.GPVirtual, bias reg.VecVirtual) {
	dc, sc := GP64(), GP64()
	halves := 1
	if s.halves {
		halves = 2
	}
	per := 8 / halves
	for h := range halves {
		for i := range t.acc {
			t.zero(t.acc[i])
		}
		t.dots(h*per, per)
		if bias != nil && !s.halves {
			MOVQ(sums, sc)
		}
		if bias != nil && s.halves {
			t.halfBias(bias, h)
		}
		MOVQ(d, dc)
		scale := make([]reg.VecVirtual, t.parts)
		for p := range scale {
			scale[p] = t.load(Mem{Base: t.panel, Disp: 512 + 64*h + t.size()*p})
		}
		for c := range t.cols {
			dy := t.vec()
			if !t.wide {
				VBROADCASTSS(Mem{Base: dc}, dy)
			}
			var b reg.VecVirtual
			if bias != nil && !s.halves {
				b = t.vec()
				VPBROADCASTW(Mem{Base: sc}, b)
				VPMADDWD(bias, b, b)
			}
			for p := range t.parts {
				a := t.acc[c*t.parts+p]
				if b != nil {
					VPSUBD(b, a, a)
				}
				VCVTDQ2PS(a, a)
				x := t.vec()
				if t.wide {
					VMULPS_BCST(Mem{Base: dc}, scale[p], x)
				} else {
					VMULPS(dy, scale[p], x)
				}
				VMULPS(x, a, a)
				t.add(c, p, a)
			}
			if c < t.cols-1 {
				ADDQ(ds, dc)
				if b != nil {
					ADDQ(ss, sc)
				}
			}
		}
	}
	if !s.mins {
		return
	}
	MOVQ(d, dc)
	MOVQ(sums, sc)
	for c := range t.cols {
		a := t.vec()
		VPBROADCASTW(Mem{Base: sc}, a)
		VPMADDWD(t.load(t.dwordConst("int1", 1)), a, a)
		VCVTDQ2PS(a, a)
		dy := t.vec()
		VBROADCASTSS(Mem{Base: dc}, dy)
		for p := range t.parts {
			x := t.vec()
			VMULPS(Mem{Base: t.panel, Disp: 576 + t.size()*p}, dy, x)
			VMULPS(x, a, x)
			t.add(c, p, x)
		}
		if c < t.cols-1 {
			ADDQ(ds, dc)
			ADDQ(ss, sc)
		}
	}
}

// add adds x to an element's accumulator.
func (t *runRegs) add(c, p int, x reg.VecVirtual) {
	if t.wide {
		VADDPS(x, t.sum[c], t.sum[c])
		return
	}
	o := GP64()
	Load(Param("out"), o)
	m := Mem{Base: o, Disp: 64*c + 32*p}
	VADDPS(m, x, x)
	VMOVUPS(x, m)
}

// dots sums n steps from first on into acc as int32.
func (t *runRegs) dots(first, n int) {
	if t.wide {
		for k := first; k < first+n; k++ {
			w := t.load(Mem{Base: t.panel, Disp: 64 * k})
			for c, a := range t.acc {
				VPDPBUSD_BCST(t.q.at(c, 4*k), w, a)
			}
		}
		return
	}
	ones := t.dwordConst("word_ones", 0x00010001)
	narrowDots(t.isa, t.q, Mem{Base: t.panel, Disp: 64 * first}, 4*first, n, t.steps, t.cols, t.acc, func(p int) Op { return ones })
}

// halfBias, for types whose halves have scales of their own, takes bias times the sum of the activations of half a run from acc, by the same instructions as the product.
func (t *runRegs) halfBias(bias reg.VecVirtual, h int) {
	b := t.vec()
	for c := range t.cols {
		if t.wide {
			t.zero(b)
			for k := 4 * h; k < 4*h+4; k++ {
				VPDPBUSD_BCST(t.q.at(c, 4*k), bias, b)
			}
		} else {
			x := t.vec()
			for k := 4 * h; k < 4*h+4; k++ {
				y := b
				if k > 4*h {
					y = x
				}
				VPBROADCASTD(t.q.at(c, 4*k), y)
				VPMADDUBSW(y, bias, y)
				if k > 4*h {
					VPADDW(x, b, b)
				}
			}
			VPMADDWD(t.dwordConst("word_ones", 0x00010001), b, b)
		}
		for p := range t.parts {
			a := t.acc[c*t.parts+p]
			VPSUBD(b, a, a)
		}
	}
}

// narrowDots adds n steps of 16 rows to acc ([column][half of the rows], int32), on AVX2. steps is the number of steps
// that are summed in int16, 0 for signed codes; scale gives the words that int16 sums are multiplied with.
func narrowDots(v isa, q columns, panel Mem, act, n, steps, cols int, acc []reg.VecVirtual, scale func(p int) Op) {
	at := func(k, p int) Mem {
		m := panel
		m.Disp += 64*k + 32*p
		return m
	}
	if steps == 0 {
		for k := range n {
			for p := range 2 {
				w, aw := v.load(at(k, p)), YMM()
				VPABSB(w, aw)
				for c := range cols {
					y := YMM()
					VPBROADCASTD(q.at(c, act+4*k), y)
					VPSIGNB(w, y, y)
					VPMADDUBSW(y, aw, y)
					VPMADDWD(scale(p), y, y)
					VPADDD(y, acc[2*c+p], acc[2*c+p])
				}
			}
		}
		return
	}
	for k0 := 0; k0 < n; k0 += steps {
		w16 := make([]reg.VecVirtual, len(acc))
		for k := k0; k < min(n, k0+steps); k++ {
			w := [2]reg.VecVirtual{v.load(at(k, 0)), v.load(at(k, 1))}
			for c := range cols {
				y := YMM()
				VPBROADCASTD(q.at(c, act+4*k), y)
				for p := range 2 {
					i := 2*c + p
					if k == k0 {
						w16[i] = YMM()
						VPMADDUBSW(y, w[p], w16[i])
						continue
					}
					t := YMM()
					VPMADDUBSW(y, w[p], t)
					VPADDW(t, w16[i], w16[i])
				}
			}
		}
		for i, a := range acc {
			VPMADDWD(scale(i%2), w16[i], w16[i])
			VPADDD(w16[i], a, a)
		}
	}
}
