package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// grid is a type whose weights are rows of a code book, 4 or 8 at a time, with signs apart.
//
// In 512 bits the book lies as codes of 2 or 3 bits, those of one entry in two bytes, the first bytes of all entries
// before the second ones: VPERMI2B looks up 64 entries in 128. In 256 bits it lies as bytes and is loaded entry by entry.
type grid struct {
	name    string
	dim     int
	entries int
	levels  []byte // what the codes mean
	scale   float32
	// at is the byte of the vector of indices where index k of the 64 weights j stands.
	at     func(j, k int) int
	wide   func(k *kq, r int, g *gridWide)
	narrow func(k *kq, r int, g *gridNarrow)
}

var (
	levels2 = []byte{8, 25, 43, 0}
	levels3 = []byte{4, 12, 20, 28, 36, 44, 52, 62}
	odds    = []byte{1, 3, 5, 7, 9, 11, 13, 15}
)

var grids = []grid{
	{"iq2xxs", 8, 256, levels2, 0.125, func(j, k int) int { return 16*j + k%4 + 8*(k/4) }, iq2xxsWide, iq2xxsNarrow},
	{"iq2xs", 8, 512, levels2, 0.125, func(j, k int) int { return 16*j + 2*k }, iq2xsWide, iq2xsNarrow},
	{"iq2s", 8, 1024, levels2, 0.125, func(j, k int) int { return 8*j + k }, iq2sWide, iq2sNarrow},
	{"iq3xxs", 4, 256, levels3, 0.25, func(j, k int) int { return 16*j + k }, iq3xxsWide, iq3xxsNarrow},
	{"iq3s", 4, 512, odds, 1, func(j, k int) int { return 16*j + k }, iq3sWide, iq3sNarrow},
}

func gridTypes(v isa) (ts []superType) {
	size := map[string]int{"iq2xxs": 66, "iq2xs": 74, "iq2s": 82, "iq3xxs": 98, "iq3s": 110}
	for _, g := range grids {
		body := g.narrowBody
		if v.wide {
			body = g.wideBody
		}
		ts = append(ts, superType{g.name, size[g.name], body})
	}
	return ts
}

// scaled is d, the half at the start of the block, in the parts that codes count.
func (g grid) scaled(k *kq) func() (d, dmin reg.VecVirtual) {
	return func() (reg.VecVirtual, reg.VecVirtual) {
		d := k.four(0)
		if g.scale != 1 {
			VMULPS(floatConst(fmt.Sprintf("parts_%d", int(1/g.scale)), g.scale), d, d)
		}
		return d, nil
	}
}

// gridWide is what a row of a super-block gives: the vector of indices with their bits from 7 on, eight masks of signs
// in memory, and the 16 scales in every lane.
type gridWide struct {
	idx    reg.VecVirtual
	masks  []reg.OpmaskVirtual // bit 7 of the indices, and what further bits they have
	signs  [4]Mem
	scales reg.VecVirtual
}

// periodic is a VPERMB table of 64 bytes that repeats t, so that only the low bits of an index count.
func periodic(name string, t []byte) Mem {
	return fill(name, 64, func(i int) byte { return t[i%len(t)] })
}

func (g grid) wideBody(k *kq) superBody {
	book := GP64()
	MOVQ(global("book"+g.name), book)
	var shifts []byte
	if g.dim == 8 {
		shifts = []byte{0, 2, 4, 6, 8, 10, 12, 14}
	} else {
		shifts = []byte{0, 3, 8, 11, 32, 35, 40, 43}
	}
	cut := k.constant(periodic(fmt.Sprintf("cut_%d", g.dim), shifts))
	level := k.constant(periodic("levels_"+g.name, g.levels))
	zero := k.clean(ZMM())
	return superBody{scales: g.scaled(k), row: func(r int) (isum, msum reg.VecVirtual) {
		var x gridWide
		g.wide(k, r, &x)
		var half [2]reg.VecVirtual
		for b := range half {
			var found []reg.VecVirtual
			for t := 0; t < g.entries; t += 128 {
				first, res := ZMM(), move(x.idx)
				m := Mem{Base: book, Disp: b*g.entries + t}
				VMOVDQU64(m, first)
				VPERMI2B(m.Offset(64), first, res)
				found = append(found, res)
			}
			for _, bit := range x.masks {
				var next []reg.VecVirtual
				for i := 0; i < len(found); i += 2 {
					VMOVDQU8(found[i+1], bit, found[i])
					next = append(next, found[i])
				}
				found = next
			}
			half[b] = found[0]
		}
		var p [4]reg.VecVirtual
		for j := range p {
			c, a, mask := ZMM(), ZMM(), K()
			VMOVDQU64(fill(fmt.Sprintf("entries_%s_%d", g.name, j), 64, func(i int) byte {
				if i%g.dim >= 2 && g.dim == 8 || i%4 >= 2 {
					return 0
				}
				return byte(g.at(j, i/g.dim) + 64*(i%g.dim))
			}), c)
			VPERMI2B(half[1], half[0], c)
			VPMULTISHIFTQB(c, cut, c)
			VPERMB(level, c, c)
			VMOVDQU64(k.q.at(0, 64*j), a)
			KMOVQ(x.signs[j], mask)
			VPSUBB(a, zero, mask, a)
			p[j] = move(zero)
			VPDPBUSD(a, c, p[j])
		}
		return byLanes(p, x.scales, false), nil
	}}
}

// parity is the bit matrix that keeps seven bits from bit from on and sets the eighth so that an even number is set.
func parity(from int) Mem {
	var m [8]byte
	for i := range 7 {
		m[i] = 1 << (from + i)
		m[7] |= 1 << (from + i)
	}
	q := bitMatrix(m)
	return qwords(fmt.Sprintf("parity_%d", from), q, q, q, q, q, q, q, q)
}

// oddScales turns nibbles in the low bits of bytes into 2s+1.
func oddScales(x reg.VecVirtual) {
	t := ZMM()
	VMOVDQU64(periodic("odd_scales", []byte{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31}), t)
	VPERMB(t, x, x)
}

// signsOnStack keeps 32 bytes of signs where masks are loaded from.
func (k *kq) signsOnStack(y reg.Register, x *gridWide) {
	VMOVDQU32(y, k.stack)
	for j := range x.signs {
		x.signs[j] = k.stack.Offset(8 * j)
	}
}

// nibbleScales spreads eight bytes of nibbles, low ones first, over the bytes of every lane.
func (k *kq) nibbleScales(r, at int) reg.VecVirtual {
	x, c := ZMM(), ZMM()
	VPBROADCASTQ(k.w.at(r, at), x)
	VMOVDQU64(fill("nibbles_of_8", 64, func(i int) byte { return byte(4 * (i % 16)) }), c)
	VPMULTISHIFTQB(x, c, x)
	oddScales(x)
	return x
}

// topNibbles takes the upper nibbles of the bytes at step*g+first of x, g < 8, each twice, for every lane.
func topNibbles(x reg.VecVirtual, step, first int) reg.VecVirtual {
	c := ZMM()
	VMOVDQU64(fill(fmt.Sprintf("top_nibbles_%d", step), 64, func(i int) byte { return byte(step*(i%16/2) + first) }), c)
	VPERMB(x, c, c)
	VPSRLW(Imm(4), c, c)
	oddScales(c)
	return c
}

func iq2xxsWide(k *kq, r int, x *gridWide) {
	x.idx = ZMM()
	VMOVDQU64(k.w.at(r, 2), x.idx)
	s, c := ZMM(), ZMM()
	VMOVDQU64(periodic("iq2xxs_signs", []byte{32, 39, 46, 53, 0, 0, 0, 0}), c)
	VPMULTISHIFTQB(x.idx, c, s)
	VMOVDQU64(parity(0), c)
	VGF2P8AFFINEQB(Imm(0), c, s, s)
	VPMOVQD(s, s.AsY())
	k.signsOnStack(s.AsY(), x)
	x.scales = topNibbles(x.idx, 8, 7)
	b := K()
	VPMOVB2M(x.idx, b)
	x.masks = []reg.OpmaskVirtual{b}
}

func iq2xsWide(k *kq, r int, x *gridWide) {
	x.idx = ZMM()
	VMOVDQU64(k.w.at(r, 2), x.idx)
	t, c, b, b8 := ZMM(), ZMM(), K(), K()
	VPSRLW(Imm(8), x.idx, t)
	VMOVDQU64(k.bytesOf(1), c)
	VPTESTMB(c, t, b8)
	VPMOVB2M(x.idx, b)
	VMOVDQU64(parity(1), c)
	VGF2P8AFFINEQB(Imm(0), c, t, t)
	VPMOVWB(t, t.AsY())
	k.signsOnStack(t.AsY(), x)
	x.scales = k.nibbleScales(r, 66)
	x.masks = []reg.OpmaskVirtual{b, b8}
}

func iq2sWide(k *kq, r int, x *gridWide) {
	x.idx = ZMM()
	VMOVDQU64(k.w.at(r, 2), x.idx)
	b, b8, b9 := K(), K(), K()
	VPMOVB2M(x.idx, b)
	h, m, t := GP64(), GP64(), GP64()
	MOVQ(k.w.at(r, 66), h)
	MOVQ(U64(0x5555555555555555), m)
	PEXTQ(m, h, t)
	KMOVQ(t, b8)
	SHRQ(Imm(1), h)
	PEXTQ(m, h, t)
	KMOVQ(t, b9)
	for j := range x.signs {
		x.signs[j] = k.w.at(r, 34+8*j)
	}
	x.scales = k.nibbleScales(r, 74)
	x.masks = []reg.OpmaskVirtual{b, b8, b9}
}

func iq3xxsWide(k *kq, r int, x *gridWide) {
	x.idx = ZMM()
	VMOVDQU64(k.w.at(r, 2), x.idx)
	s, c, w := ZMM(), ZMM(), ZMM()
	VBROADCASTI64X4(k.w.at(r, 66), w)
	VMOVDQU64(periodic("iq3xxs_signs", []byte{0, 7, 14, 21, 32, 39, 46, 53}), c)
	VPMULTISHIFTQB(w, c, s)
	VMOVDQU64(parity(0), c)
	VGF2P8AFFINEQB(Imm(0), c, s, s)
	k.signsOnStack(s.AsY(), x)
	x.scales = topNibbles(w, 4, 3)
	b := K()
	VPMOVB2M(x.idx, b)
	x.masks = []reg.OpmaskVirtual{b}
}

func iq3sWide(k *kq, r int, x *gridWide) {
	x.idx = ZMM()
	VMOVDQU64(k.w.at(r, 2), x.idx)
	b, b8 := K(), K()
	VPMOVB2M(x.idx, b)
	KMOVQ(k.w.at(r, 66), b8)
	for j := range x.signs {
		x.signs[j] = k.w.at(r, 74+8*j)
	}
	c := ZMM()
	x.scales = ZMM()
	VPBROADCASTD(k.w.at(r, 106), x.scales)
	VMOVDQU64(fill("nibbles_of_4", 64, func(i int) byte { return byte(4 * (i % 16 / 2)) }), c)
	VPMULTISHIFTQB(x.scales, c, x.scales)
	oddScales(x.scales)
	x.masks = []reg.OpmaskVirtual{b, b8}
}

// gridNarrow is what a row gives in 256 bits: its scales as 16 words, and for run g the codes' and the signs' places.
type gridNarrow struct {
	scales reg.VecVirtual
	// index puts the index of entry e of run g into a register; sign that of octet l's row of the table of signs.
	index func(g, e int, to reg.GPVirtual)
	sign  func(g, l int, to reg.GPVirtual)
}

func (g grid) narrowBody(k *kq) superBody {
	book, signs, i := GP64(), GP64(), GP64()
	MOVQ(global("bytes"+g.name), book)
	table := "sign7"
	if g.name == "iq2s" || g.name == "iq3s" {
		table = "sign8"
	}
	MOVQ(global(table), signs)
	// gather fills a vector from four rows of eight bytes.
	gather := func(row func(l int, x reg.VecVirtual)) reg.VecVirtual {
		lo, hi := k.clean(YMM()), XMM()
		row(0, lo)
		row(1, lo)
		row(2, hi)
		row(3, hi)
		VINSERTI128(Imm(1), hi, lo, lo)
		return lo
	}
	return superBody{scales: g.scaled(k), row: func(r int) (isum, msum reg.VecVirtual) {
		var x gridNarrow
		g.narrow(k, r, &x)
		words := x.scales
		VPADDW(words, words, words)
		VPOR(dwords("word_ones", repeat(8, 0x00010001)...), words, words)
		return k.narrowDots(nil, words, func(run int) (reg.VecVirtual, Op) {
			c := gather(func(l int, v reg.VecVirtual) {
				if g.dim == 8 {
					x.index(run, l, i)
					from := Mem{Base: book, Index: i, Scale: 8}
					if l%2 == 0 {
						VMOVQ(from, v.AsX())
					} else {
						VPINSRQ(Imm(1), from, v.AsX(), v.AsX())
					}
					return
				}
				for h := range 2 {
					x.index(run, 2*l+h, i)
					from := Mem{Base: book, Index: i, Scale: 4}
					if l%2+h == 0 {
						VMOVD(from, v.AsX())
					} else {
						VPINSRD(Imm(uint64(l%2*2+h)), from, v.AsX(), v.AsX())
					}
				}
			})
			s := gather(func(l int, v reg.VecVirtual) {
				x.sign(run, l, i)
				from := Mem{Base: signs, Index: i, Scale: 8}
				if l%2 == 0 {
					VMOVQ(from, v.AsX())
				} else {
					VPINSRQ(Imm(1), from, v.AsX(), v.AsX())
				}
			})
			a := YMM()
			VMOVDQU(k.q.at(0, 32*run), a)
			VPSIGNB(s, a, a)
			return c, a
		}), nil
	}}
}

// doubled copies the low word of each dword into the high one.
func doubled(x reg.VecVirtual) {
	t := YMM()
	VPSLLD(Imm(16), x, t)
	VPOR(t, x, x)
}

// field puts bits from on of the dword at m, n of them, into to.
func field(m Mem, from, n int, to reg.GPVirtual) {
	MOVL(m, to.As32())
	if from > 0 {
		SHRL(Imm(uint64(from)), to.As32())
	}
	ANDL(U32(1<<n-1), to.As32())
}

func byteAt(k *kq, r, base int) func(g, e int, to reg.GPVirtual) {
	return func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, base+4*g+e), to.As32()) }
}

func iq2xxsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, 2+8*g+e), to.As32()) }
	x.sign = func(g, l int, to reg.GPVirtual) { field(k.w.at(r, 6+8*g), 7*l, 7, to) }
	lo, hi := YMM(), YMM()
	VMOVDQU(k.w.at(r, 2), lo)
	VMOVDQU(k.w.at(r, 34), hi)
	VPSRLQ(Imm(60), lo, lo)
	VPSRLQ(Imm(60), hi, hi)
	VPACKUSDW(hi, lo, lo)
	VPERMQ(Imm(0xd8), lo, lo)
	doubled(lo)
	x.scales = lo
}

func iq3xxsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { MOVBLZX(k.w.at(r, 2+8*g+e), to.As32()) }
	x.sign = func(g, l int, to reg.GPVirtual) { field(k.w.at(r, 66+4*g), 7*l, 7, to) }
	x.scales = YMM()
	VMOVDQU(k.w.at(r, 66), x.scales)
	VPSRLD(Imm(28), x.scales, x.scales)
	doubled(x.scales)
}

// nibbleWords makes words of eight bytes of nibbles.
func (k *kq) nibbleWords(r, at int) reg.VecVirtual {
	x, t := YMM(), YMM()
	VPMOVZXBD(k.w.at(r, at), x)
	VPSLLD(Imm(12), x, t)
	VPOR(t, x, x)
	VPAND(dwords("word_15_narrow", repeat(8, 0x000f000f)...), x, x)
	return x
}

func iq2xsNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) {
		MOVWLZX(k.w.at(r, 2+8*g+2*e), to.As32())
		ANDL(U32(511), to.As32())
	}
	x.sign = func(g, l int, to reg.GPVirtual) {
		MOVWLZX(k.w.at(r, 2+8*g+2*l), to.As32())
		SHRL(Imm(9), to.As32())
	}
	x.scales = k.nibbleWords(r, 66)
}

// withHigh adds n bits from bit from on of the byte at m to the index of eight bits at low.
func withHigh(low, m Mem, from, n int, to reg.GPVirtual) {
	t := GP64()
	MOVBLZX(m, t.As32())
	if from < 8 {
		SHLL(Imm(uint64(8-from)), t.As32())
	}
	ANDL(U32((1<<n-1)<<8), t.As32())
	MOVBLZX(low, to.As32())
	ORL(t.As32(), to.As32())
}

func iq2sNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { withHigh(k.w.at(r, 2+4*g+e), k.w.at(r, 66+g), 2*e, 2, to) }
	x.sign = byteAt(k, r, 34)
	x.scales = k.nibbleWords(r, 74)
}

func iq3sNarrow(k *kq, r int, x *gridNarrow) {
	x.index = func(g, e int, to reg.GPVirtual) { withHigh(k.w.at(r, 2+8*g+e), k.w.at(r, 66+g), e, 1, to) }
	x.sign = byteAt(k, r, 74)
	x.scales = YMM()
	VPBROADCASTD(k.w.at(r, 106), x.scales)
	VPSRLVD(dwords("each_nibble", 0, 4, 8, 12, 16, 20, 24, 28), x.scales, x.scales)
	VPAND(dwords("dword_15", repeat(8, 15)...), x.scales, x.scales)
	doubled(x.scales)
}
