package main

import (
	"bytes"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gridWide is a code book type in 512 bits.
//
// The book lies as codes, those of one entry in two bytes, the first bytes of all entries before the second ones, see
// codeBook: VPERMI2B looks up 64 entries in 128. Two rows are taken at a time, 32 times 8 weights each. The signs are put
// beside the codes, so that a nibble names a level, and one VPERMB makes 64 unsigned bytes of nibbles: the weight plus
// gridBias.
//
// Byte p of such a vector is weight k of the eight of number p, in both rows. The activations come in that order, see
// orders: all eight vectors add up in one accumulator, whose dword t has the 32 weights of run t. Types with a scale for
// 16 weights put both bytes of an entry side by side, which makes a vector for each row.
type gridWide struct {
	name    string
	size    int
	entries int
	keep    int // vectors of the book that stay in registers
	pins    int // how many constants do
	scale   float32
	levels  []byte
	quads   bool // a scale for 16 weights
	signs   gridSigns
	both    bool                       // the two pairs of rows are looked up together: the book's vectors are loaded once
	half    func(k *kq) reg.VecVirtual // d of the four rows
	pair    func(k *kq, g *gridWide, a, b int) gridPair

	pinned []pinnedConst
}

// pinnedConst is a constant that stays in a register.
type pinnedConst struct {
	from Mem
	to   reg.VecVirtual
}

// pin is a constant, in its register if there still is one. Constants in memory may cross cache lines.
func (g *gridWide) pin(m Mem) reg.VecVirtual {
	for _, c := range g.pinned {
		if c.from.Symbol.Name == m.Symbol.Name {
			return c.to
		}
	}
	x := ZMM()
	if len(g.pinned) == g.pins {
		if b := constBytes[m.Symbol.Name]; bytes.Equal(b[8:], b[:len(b)-8]) {
			VPBROADCASTQ(m, x)
		} else {
			VMOVDQU64(m, x)
		}
		return x
	}
	g.pinned = append(g.pinned, pinnedConst{m, x})
	return x
}

// pinCopy is one that is going to be overwritten.
func (g *gridWide) pinCopy(m Mem) reg.VecVirtual { return move(g.pin(m)) }

// gridPair is what two rows give before anything is looked up.
type gridPair struct {
	idx    []reg.VecVirtual // one, or for entries of four weights the even ones and the odd ones
	masks  [][]gridMask     // of each: bit 7, then what further bits they have
	signs  reg.VecVirtual   // a byte an entry
	more   []reg.VecVirtual // what else masks and scales are made from
	scales func(i int) Op   // octets: one vector, of both rows; quads: one a row
}

// vectors are all of them.
func (p gridPair) vectors() []reg.VecVirtual {
	return append(append(p.more[:len(p.more):len(p.more)], p.idx...), p.signs)
}

// gridMask gives a mask, the same or the same anew each time.
type gridMask func() reg.OpmaskVirtual

// gridSigns is what the byte of signs of eight weights is.
type gridSigns int

const (
	signsWhole  gridSigns = iota // eight bits
	signsSevens                  // seven, and one that does not count
	signsShared                  // one, in bits 2 and 6
)

// evenSigns is the matrix that takes seven bits from bit from on and completes them so that an even number is set.
func evenSigns(from int) Mem {
	var m [8]byte
	for i := range 7 {
		m[i] = 1 << (from + i)
		m[7] |= m[i]
	}
	q := bitMatrix(m)
	return qwords(fmt.Sprintf("even_signs_%d", from), q, q, q, q, q, q, q, q)
}

// matrix moves the signs of weights w and w+1 to bits 3 and 7.
func (s gridSigns) matrix(w int) Mem {
	bit := func(w int) byte {
		if w == 7 && s == signsSevens {
			return 0x7f
		}
		return 1 << w
	}
	q := bitMatrix([8]byte{3: bit(w), 7: bit(w + 1)})
	return qwords(fmt.Sprintf("signs_%d_%d", s, w), q, q, q, q, q, q, q, q)
}

const gridBias = 64

var gridsWide = []*gridWide{
	{name: "iq2xxs", size: 66, entries: 256, keep: 4, pins: 16, both: true, scale: 0.125, levels: signed(4, 8, 25, 43), pair: iq2xxsPair},
	{name: "iq2xs", size: 74, entries: 512, keep: 0, pins: 6, both: true, scale: 0.125, levels: signed(4, 8, 25, 43), quads: true, pair: iq2xsPair},
	{name: "iq2s", size: 82, entries: 1024, keep: 0, pins: 5, both: true, scale: 0.125, levels: signed(4, 8, 25, 43), quads: true, pair: iq2sPair},
	{name: "iq3xxs", size: 98, entries: 256, keep: 4, pins: 3, scale: 0.25, levels: signed(8, 4, 12, 20, 28, 36, 44, 52, 62), signs: signsSevens, pair: iq3xxsPair},
	{name: "iq3s", size: 110, entries: 512, keep: 0, pins: 6, scale: 1, levels: signed(8, 1, 3, 5, 7, 9, 11, 13, 15), pair: iq3sPair},
	{name: "iq1s", size: 50, entries: 2048, keep: 0, pins: 1, scale: 0.125, levels: ternaryLevels, signs: signsShared, pair: iq1sPair},
	{name: "iq1m", size: 56, entries: 2048, keep: 0, pins: 1, scale: 0.125, levels: ternaryLevels, quads: true, signs: signsShared, half: iq1mHalf, pair: iq1mPair},
}

// ternaryLevels are 8x plus 1 and 8x minus 1.
var ternaryLevels = []byte{gridBias - 7, gridBias + 1, gridBias + 9, 0, gridBias - 9, gridBias - 1, gridBias + 7, 0}

// signed are the bytes of n codes with the plus, then with the minus.
func signed(n int, levels ...byte) []byte {
	t := make([]byte, 2*n)
	for i, l := range levels {
		t[i], t[n+i] = gridBias+l, gridBias-l
	}
	return t
}

// periodic is a table of 64 bytes that repeats t, so that only the low bits of an index count.
func periodic(name string, t []byte) Mem {
	return fill(name, 64, func(i int) byte { return t[i%len(t)] })
}

// each is a table of 64 bytes.
func each(name string, f func(i int) int) Mem {
	return fill(name, 64, func(i int) byte { return byte(f(i)) })
}

// gridRows writes the product of 4 rows with one column of Act256 whose q are in the order of octets or quads.
func (v isa) gridRows(g *gridWide) {
	TEXT(g.name+"Rows"+v.suffix(), 0, signature)
	Pragma("noescape")
	order := "orderOctets"
	if g.quads {
		order = "orderQuads"
	}
	Doc(g.name + "Rows" + v.suffix() + " multiplies " + g.name + " weights with activations laid out by " + order + "; see matrixKernel.")
	k := &kq{isa: v, shape: shape{4, 1}}
	dist := AllocLocal(8)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	k.w = newLanes(stride)
	k.q, k.d, k.s = lanes{base: GP64()}, lanes{base: GP64()}, lanes{base: GP64()}
	first, block := g.block(k)
	for i := range k.acc {
		k.acc[i] = XMM()
	}
	// The sums of a super-block are added up while the next one's are made: in its own step all that would wait for them.
	last, scale := []reg.VecVirtual{ZMM(), ZMM()}, XMM()
	if g.quads {
		last = append(last, ZMM(), ZMM())
	}
	tail := func() {
		var total reg.VecVirtual
		if g.quads {
			total = totals([4]reg.VecVirtual(last))
		} else {
			total = pairTotals(last[0], last[1])
		}
		k.foldScaled(total, scale)
	}
	aheadOf(stride, dist)
	JMP(LabelRef("constants"))
	Label("next")
	MOVQ(wrow, k.w.base)
	Load(Param("q"), k.q.base)
	Load(Param("d"), k.d.base)
	Load(Param("sums"), k.s.base)
	n := Load(Param("nb"), GP64()).(reg.GPVirtual)
	for _, a := range k.acc {
		v.clean(a)
	}
	for _, a := range last {
		v.clean(a)
	}
	v.clean(scale)
	first()
	loop("block", n, func() {
		ahead := lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
		MOVQ(dist, ahead.base)
		ADDQ(k.w.base, ahead.base)
		fetch(ahead, g.size)
		next := lanes{base: ahead.base, s1: k.w.s1, s3: k.w.s3, mul: 1}
		LEAQ(k.w.at(0, g.size), next.base)
		CMPQ(n, Imm(1))
		CMOVQEQ(k.w.base, next.base) // there is none
		sums := block(next)
		tail()
		var d reg.VecVirtual
		if g.half != nil {
			d = g.half(k)
		} else {
			d = k.firstHalves()
		}
		if g.scale != 1 {
			VMULPS(floatConst(fmt.Sprintf("parts_%d", int(1/g.scale)), g.scale), d, d)
		}
		VMULPS(k.actScale(), d, scale)
		for i, x := range sums {
			VMOVDQA64(x, last[i])
		}
		ADDQ(Imm(uint64(g.size)), k.w.base)
		if g.quads {
			ADDQ(U32(256), k.q.base)
		} else {
			ADDQ(U32(512), k.q.base)
		}
		ADDQ(Imm(4), k.d.base)
		ADDQ(Imm(sums256), k.s.base)
	})
	tail()
	// As in kquant: the accumulators have turned once a block, and the nothing that was added first made no difference.
	Load(Param("nb"), n)
	TESTQ(U32(1), n)
	JZ(LabelRef("even"))
	VADDPS(k.acc[0], k.acc[3], k.acc[3])
	VADDPS(k.acc[2], k.acc[1], k.acc[1])
	VADDPS(k.acc[1], k.acc[3], k.acc[0])
	JMP(LabelRef("store"))
	Label("even")
	VADDPS(k.acc[1], k.acc[0], k.acc[0])
	VADDPS(k.acc[3], k.acc[2], k.acc[2])
	VADDPS(k.acc[2], k.acc[0], k.acc[0])
	Label("store")
	VMOVUPS(k.acc[0].AsX(), Mem{Base: dst})
	ADDQ(Imm(16), dst)
	LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, wrow)
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
	// At the end, because only now it is known which they are.
	Label("constants")
	for _, c := range g.pinned {
		VMOVDQU64(c.from, c.to)
	}
	JMP(LabelRef("next"))
}

// foldScaled is fold where both scales have been multiplied.
func (k *kq) foldScaled(isum, scale reg.VecVirtual) {
	t, a := XMM(), k.acc
	VCVTDQ2PS(isum.AsX(), t)
	VMULPS(t, scale.AsX(), t)
	VADDPS(t, a[0].AsX(), t)
	VMOVAPS(a[1].AsX(), a[0].AsX())
	VMOVAPS(a[2].AsX(), a[1].AsX())
	VMOVAPS(a[3].AsX(), a[2].AsX())
	VMOVAPS(t, a[3].AsX())
}

// firstHalves widens the halves at the start of the four rows' blocks, which have 16 bytes and more.
func (k *kq) firstHalves() reg.VecVirtual {
	x, y := XMM(), XMM()
	k.mov(k.w.at(0, 0), x)
	VPUNPCKLWD(k.w.at(1, 0), x, x)
	k.mov(k.w.at(2, 0), y)
	VPUNPCKLWD(k.w.at(3, 0), y, y)
	VPUNPCKLDQ(y, x, x)
	VCVTPH2PS(x, x)
	return x
}

// block returns the code of a super-block, which gives vectors of sums, one for two rows or for each.
func (g *gridWide) block(k *kq) (first func(), step func(next lanes) []reg.VecVirtual) {
	book := GP64()
	MOVQ(global("book"+g.name), book)
	var kept []reg.VecVirtual
	vector := func(half, t int) Mem { return Mem{Base: book, Disp: half*g.entries + 64*t} }
	// The first of two vectors has to be in a register, so those come before all second ones.
	firsts := g.entries / 64
	for i := range min(g.keep, 2*firsts) {
		x := ZMM()
		VMOVDQU64(vector(i%2, i%firsts/2*2+i/firsts), x)
		kept = append(kept, x)
	}
	table := func(half, t int) (first reg.VecVirtual, second Op) {
		second = vector(half, t+1)
		if i := firsts + half + t; i < len(kept) {
			second = kept[i]
		}
		if i := half + t; i < len(kept) {
			return kept[i], second
		}
		first = ZMM()
		VMOVDQU64(vector(half, t), first)
		return first, second
	}
	level := k.constant(periodic("levels_"+g.name, g.levels))
	start := ZMM()
	rows, dots := [2][2]int{{0, 2}, {1, 3}}, g.octets
	if g.quads {
		rows, dots = [2][2]int{{0, 1}, {2, 3}}, g.quadsOf
	}
	var pairs [2]gridPair
	first = func() {
		for i, r := range rows {
			pairs[i] = g.pair(k, g, r[0], r[1])
		}
	}
	return first, func(next lanes) []reg.VecVirtual {
		minus := g.pin(dwords("minus_64", repeat(16, uint32(1<<32-gridBias))...))
		if g.quads {
			VPMOVSXWD(k.s.at(0, 0), start)
		} else {
			y := YMM()
			VBROADCASTI32X4(k.s.at(0, 32), y)
			VPMOVSXWD(y, start)
		}
		VPMULLD(minus, start, start)
		var codes [][2]reg.VecVirtual
		if g.both {
			codes = g.lookUp(append(pairs[0].idx, pairs[1].idx...), append(pairs[0].masks, pairs[1].masks...), table)
		}
		var sums []reg.VecVirtual
		for i, r := range rows {
			p := pairs[i]
			mine := codes
			if g.both {
				n := len(p.idx)
				mine = codes[n*i : n*(i+1)]
			} else {
				mine = g.lookUp(p.idx, p.masks, table)
			}
			sums = append(sums, dots(k, p, mine, level, start)...)
			// The same pair of the next super-block: its first steps are done before they are waited for.
			now := k.w
			k.w = next
			q := g.pair(k, g, r[0], r[1]).vectors()
			k.w = now
			for j, x := range p.vectors() {
				VMOVDQA64(q[j], x)
			}
		}
		return sums
	}
}

// pairTotals adds up rows 0 and 2 in the halves of a, 1 and 3 in those of b.
func pairTotals(a, b reg.VecVirtual) reg.VecVirtual {
	t, y, z, x := ZMM(), YMM(), YMM(), XMM()
	VSHUFPS(Imm(0x88), b, a, t)
	VSHUFPS(Imm(0xdd), b, a, a)
	VPADDD(t, a, a)
	VEXTRACTI64X4(Imm(1), a, y)
	VSHUFPS(Imm(0x88), y, a.AsY(), z)
	VSHUFPS(Imm(0xdd), y, a.AsY(), y)
	VPADDD(z, y, y)
	VEXTRACTI32X4(Imm(1), y, x)
	VPADDD(x, y.AsX(), x)
	return x
}

type gridTable func(half, t int) (first reg.VecVirtual, second Op)

// lookUp returns both bytes of 64 entries for each vector of indices.
func (g *gridWide) lookUp(idx []reg.VecVirtual, masks [][]gridMask, table gridTable) [][2]reg.VecVirtual {
	codes := make([][2]reg.VecVirtual, len(idx))
	for b := range 2 {
		var tree func(depth, t int) []reg.VecVirtual
		tree = func(depth, t int) (found []reg.VecVirtual) {
			if depth == 0 {
				first, second := table(b, 2*t)
				if _, ok := second.(Mem); ok && len(idx) > 1 {
					x := ZMM()
					VMOVDQU64(second, x)
					second = x
				}
				for _, i := range idx {
					x := move(i)
					VPERMI2B(second, first, x)
					found = append(found, x)
				}
				return found
			}
			found = tree(depth-1, 2*t)
			for i, high := range tree(depth-1, 2*t+1) {
				VMOVDQU8(high, masks[i][depth-1](), found[i])
			}
			return found
		}
		for i, x := range tree(len(masks[0]), 0) {
			codes[i][b] = x
		}
	}
	return codes
}

// multiply adds the products of the levels that the lower and the upper nibbles of x name.
func multiply(x, level reg.VecVirtual, sums [2]reg.VecVirtual, low, high Op) {
	c := ZMM()
	VPERMB(level, x, c)
	VPDPBUSD(low, c, sums[0])
	VPSRLW(Imm(4), x, x)
	VPERMB(level, x, x)
	VPDPBUSD(high, x, sums[1])
}

// beside makes nibbles of codes in bits 0, 1, 4 and 5 of x and signs in bits 2 and 6 of s.
func (g *gridWide) beside(x, s reg.VecVirtual) {
	VPTERNLOGD(Imm(0xe4), g.pin(isa{true}.bytesOf(0x33)), s, x)
}

// shifted shifts words to the left, or to the right if n is negative.
func shifted(x reg.VecVirtual, n int) reg.VecVirtual {
	y := ZMM()
	switch {
	case n > 0:
		VPSLLW(Imm(uint64(n)), x, y)
	case n < 0:
		VPSRLW(Imm(uint64(-n)), x, y)
	default:
		return x
	}
	return y
}

// octets returns one vector of both rows' sums.
func (g *gridWide) octets(k *kq, p gridPair, codes [][2]reg.VecVirtual, level, start reg.VecVirtual) []reg.VecVirtual {
	sums := [2]reg.VecVirtual{move(start), k.clean(ZMM())} // two, because one is a long chain
	act := func(w int) Op { return k.q.at(0, 64*w) }
	for i, c := range codes {
		for h, x := range c {
			if len(codes) == 2 { // entries of four weights, two to a byte of signs
				w, s := 4*i+2*h, ZMM()
				VGF2P8AFFINEQB(Imm(0), g.pin(g.signs.matrix(w)), p.signs, s)
				VPORD(s, x, x)
				multiply(x, level, sums, act(w), act(w+1))
				continue
			}
			y := shifted(x, -2)
			for j, x := range []reg.VecVirtual{x, y} {
				w, s := 2*h+j, p.signs
				if g.signs != signsShared {
					s = shifted(s, 2-w)
				}
				g.beside(x, s)
				multiply(x, level, sums, act(w), act(w+4))
			}
		}
	}
	VPADDD(sums[1], sums[0], sums[0])
	VPMULLD(p.scales(0), sums[0], sums[0])
	return sums[:1]
}

// quadsOf has the first row's entries in the low halves of 128-bit lanes, the second one's in the high halves. It returns
// a vector of sums for each.
func (g *gridWide) quadsOf(k *kq, p gridPair, codes [][2]reg.VecVirtual, level, start reg.VecVirtual) (out []reg.VecVirtual) {
	first, second := codes[0][0], codes[0][1]
	even := p.signs
	if g.signs != signsShared {
		even = shifted(p.signs, 2)
	}
	for r := range 2 {
		x, s := ZMM(), ZMM()
		if r == 0 {
			VPUNPCKLBW(second, first, x)
			VPUNPCKLBW(p.signs, even, s)
		} else {
			VPUNPCKHBW(second, first, x)
			VPUNPCKHBW(p.signs, even, s)
		}
		y := shifted(x, -2)
		sums := [2]reg.VecVirtual{move(start), k.clean(ZMM())}
		for j, x := range []reg.VecVirtual{x, y} {
			if j == 1 && g.signs != signsShared {
				s = shifted(s, -1)
			}
			g.beside(x, s)
			multiply(x, level, sums, k.q.at(0, 64*j), k.q.at(0, 64*(j+2)))
		}
		VPADDD(sums[1], sums[0], sums[0])
		VPMULLD(p.scales(r), sums[0], sums[0])
		out = append(out, sums[0])
	}
	return out
}

// bit7 is the mask of indices whose bit 7 is set.
func bit7(idx reg.VecVirtual) gridMask {
	return once(func() reg.OpmaskVirtual {
		b := K()
		VPMOVB2M(idx, b)
		return b
	})
}

// once makes a mask at its first use.
func once(f gridMask) gridMask {
	var b reg.OpmaskVirtual
	return func() reg.OpmaskVirtual {
		if b == nil {
			b = f()
		}
		return b
	}
}

// bit is the mask of bytes that have a bit.
func (g *gridWide) bit(x reg.VecVirtual, n int) gridMask {
	return once(g.bitAnew(x, n))
}

// bitAnew is the same for where there are too few mask registers.
func (g *gridWide) bitAnew(x reg.VecVirtual, n int) gridMask {
	return func() reg.OpmaskVirtual {
		b := K()
		VPTESTMB(g.pin(isa{true}.bytesOf(1<<n)), x, b)
		return b
	}
}

// picked is a VPERMI2B.
func (g *gridWide) picked(first, second reg.VecVirtual, name string, f func(i int) int) reg.VecVirtual {
	x := g.pinCopy(each(name, f))
	VPERMI2B(second, first, x)
	return x
}

// oddOf turns dwords with a scale in bits 1 and up, as many as mask tells, into 2s+1.
func (g *gridWide) oddOf(x reg.VecVirtual, mask uint32) Op {
	VPTERNLOGD(Imm(0xea), g.pin(dwords("ones", repeat(16, 1)...)), g.pin(dwords(fmt.Sprintf("scale_%x", mask), repeat(16, mask)...)), x)
	return x
}

// both loads 64 bytes of two rows.
func (k *kq) both(a, b, at int) (first, second reg.VecVirtual) {
	first, second = ZMM(), ZMM()
	VMOVDQU64(k.w.at(a, at), first)
	VMOVDQU64(k.w.at(b, at), second)
	return first, second
}

// halvesOf joins 32 bytes of two rows.
func (k *kq) halvesOf(a, b, at int) reg.VecVirtual {
	x := ZMM()
	k.mov(k.w.at(a, at), x.AsY())
	VINSERTI64X4(Imm(1), k.w.at(b, at), x, x)
	return x
}

// signWords turns 16 dwords with four signs of seven bits each into bytes, of which seven bits count.
func (g *gridWide) signWords(w reg.VecVirtual) reg.VecVirtual {
	s := ZMM()
	VPMULTISHIFTQB(w, g.pin(periodic("sign_words", []byte{0, 7, 14, 21, 32, 39, 46, 53})), s)
	return s
}

// completed makes eight signs of seven bits from bit from on.
func (g *gridWide) completed(x reg.VecVirtual, from int) reg.VecVirtual {
	s := ZMM()
	VGF2P8AFFINEQB(Imm(0), g.pin(evenSigns(from)), x, s)
	return s
}

// topScale makes 2s+1 of the upper four bits of dwords.
func (g *gridWide) topScale(w reg.VecVirtual) func(int) Op {
	return func(int) Op {
		VPSRLD(Imm(27), w, w)
		VPORD(g.pin(dwords("ones", repeat(16, 1)...)), w, w)
		return w
	}
}

// laneRows spreads 64 bytes over the rows of quads: byte i of a pair's vectors is entry e of row r.
func laneRows(i int) (r, e int) { return i % 16 / 8, i/16*8 + i%8 }

// nibbleScales makes 2s+1 of the eight bytes of nibbles of row a or b.
func (g *gridWide) nibbleScales(k *kq, a, b, at int) func(i int) Op {
	return func(i int) Op {
		x := ZMM()
		VPBROADCASTQ(k.w.at([]int{a, b}[i], at), x)
		VPMULTISHIFTQB(x, g.pin(each("nibble_each_dword", func(i int) int { return (4*(i/4) + 63) % 64 })), x)
		return g.oddOf(x, 0x1e)
	}
}

func iq2xxsPair(k *kq, g *gridWide, a, b int) gridPair {
	first, second := k.both(a, b, 2)
	dword := func(odd uint32) (w []uint32) {
		for i := range uint32(16) {
			w = append(w, 2*i+odd)
		}
		return w
	}
	idx := g.pinCopy(dwords("even_of_32", dword(0)...))
	VPERMI2D(second, first, idx)
	w := g.pinCopy(dwords("odd_of_32", dword(1)...))
	VPERMI2D(second, first, w)
	return gridPair{[]reg.VecVirtual{idx}, [][]gridMask{{bit7(idx)}}, g.completed(g.signWords(w), 0), []reg.VecVirtual{w}, g.topScale(w)}
}

func iq2xsPair(k *kq, g *gridWide, a, b int) gridPair {
	first, second := k.both(a, b, 2)
	part := func(odd int) func(i int) int {
		return func(i int) int {
			r, e := laneRows(i)
			return 64*r + 2*e + odd
		}
	}
	idx := g.picked(first, second, "low_bytes_by_lane", part(0))
	high := g.picked(first, second, "high_bytes_by_lane", part(1))
	return gridPair{[]reg.VecVirtual{idx}, [][]gridMask{{bit7(idx), g.bit(high, 0)}}, g.completed(high, 1), []reg.VecVirtual{high}, g.nibbleScales(k, a, b, 66)}
}

func iq2sPair(k *kq, g *gridWide, a, b int) gridPair {
	h, odd, m := ZMM(), K(), GP64()
	first, second := k.both(a, b, 2)
	idx := g.pinCopy(qwords("low_qwords_by_row", 0, 8, 1, 9, 2, 10, 3, 11))
	VPERMI2Q(second, first, idx)
	signs := g.pinCopy(qwords("high_qwords_by_row", 4, 12, 5, 13, 6, 14, 7, 15))
	VPERMI2Q(second, first, signs)
	MOVL(U32(0xaa), m.As32())
	KMOVW(m.As32(), odd)
	VPBROADCASTQ(k.w.at(a, 66), h)
	VPBROADCASTQ(k.w.at(b, 66), odd, h)
	VPMULTISHIFTQB(h, g.pin(each("pairs_by_lane", func(i int) int {
		_, e := laneRows(i)
		return 2 * e
	})), h)
	return gridPair{[]reg.VecVirtual{idx}, [][]gridMask{{bit7(idx), g.bit(h, 0), g.bit(h, 1)}}, signs, []reg.VecVirtual{h}, g.nibbleScales(k, a, b, 74)}
}

// evenOdd is the even and the odd indices of two rows.
func (g *gridWide) evenOdd(k *kq, a, b int) []reg.VecVirtual {
	first, second := k.both(a, b, 2)
	return []reg.VecVirtual{
		g.picked(first, second, "even_bytes", func(i int) int { return 2 * i }),
		g.picked(first, second, "odd_bytes", func(i int) int { return 2*i + 1 }),
	}
}

func iq3xxsPair(k *kq, g *gridWide, a, b int) gridPair {
	idx := g.evenOdd(k, a, b)
	w := k.halvesOf(a, b, 66)
	return gridPair{idx, [][]gridMask{{bit7(idx[0])}, {bit7(idx[1])}}, g.signWords(w), []reg.VecVirtual{w}, g.topScale(w)}
}

func iq3sPair(k *kq, g *gridWide, a, b int) gridPair {
	idx := g.evenOdd(k, a, b)
	masks := make([][]gridMask, 2)
	for i := range idx {
		masks[i] = []gridMask{bit7(idx[i]), once(func() reg.OpmaskVirtual {
			m, x, y, bit := GP64(), GP64(), GP64(), K()
			MOVQ(U64(0x5555555555555555<<i), m)
			MOVQ(k.w.at(b, 66), x)
			PEXTQ(m, x, x)
			SHLQ(Imm(32), x)
			MOVQ(k.w.at(a, 66), y)
			PEXTQ(m, y, y)
			ORQ(y, x)
			KMOVQ(x, bit)
			return bit
		})}
	}
	scales := func(int) Op {
		x, upper, m := ZMM(), K(), GP64()
		MOVL(U32(0xff00), m.As32())
		KMOVW(m.As32(), upper)
		VPBROADCASTD(k.w.at(a, 106), x)
		VPBROADCASTD(k.w.at(b, 106), upper, x)
		VPRORVD(g.pin(dwords("nibble_right", 31, 3, 7, 11, 15, 19, 23, 27, 31, 3, 7, 11, 15, 19, 23, 27)), x, x)
		return g.oddOf(x, 0x1e)
	}
	return gridPair{idx, masks, k.halvesOf(a, b, 74), nil, scales}
}

// highBits are the masks of bit 7 of idx and bits 0 to 2 of h.
func (g *gridWide) highBits(idx, h reg.VecVirtual) []gridMask {
	return []gridMask{bit7(idx), g.bit(h, 0), g.bit(h, 1), g.bitAnew(h, 2)}
}

func iq1sPair(k *kq, g *gridWide, a, b int) gridPair {
	w, h, delta := ZMM(), ZMM(), ZMM()
	k.mov(k.w.at(a, 34), w.AsX())
	VINSERTI32X4(Imm(1), k.w.at(b, 34), w.AsY(), w.AsY())
	VPMOVZXWD(w.AsY(), w)
	VPMULTISHIFTQB(w, g.pin(periodic("threes_of_words", []byte{0, 3, 6, 9, 32, 35, 38, 41})), h)
	VPMULTISHIFTQB(w, g.pin(periodic("tops_of_words", []byte{15, 15, 15, 15, 47, 47, 47, 47})), delta)
	idx := k.halvesOf(a, b, 2)
	return gridPair{[]reg.VecVirtual{idx}, [][]gridMask{g.highBits(idx, h)}, g.shared(delta, 0), []reg.VecVirtual{w, h}, func(int) Op {
		VPSRLD(Imm(11), w, w)
		return g.oddOf(w, 0xe)
	}}
}

func iq1mPair(k *kq, g *gridWide, a, b int) gridPair {
	idx, h := k.halvesOf(a, b, 0), ZMM()
	VPERMQ(idx, g.pin(qwords("halves_by_row", 0, 4, 1, 5, 2, 6, 3, 7)), idx)
	x, low := XMM(), XMM()
	k.mov(k.w.at(a, 32), x)
	VPUNPCKLDQ(k.w.at(b, 32), x, low)
	VPUNPCKHDQ(k.w.at(b, 32), x, x)
	VINSERTI32X4(Imm(1), x, low.AsY(), low.AsY())
	VPMOVZXDQ(low.AsY(), h)
	VPMULTISHIFTQB(h, g.pin(periodic("nibbles_of_dword", []byte{0, 4, 8, 12, 16, 20, 24, 28})), h)
	return gridPair{[]reg.VecVirtual{idx}, [][]gridMask{g.highBits(idx, h)}, g.shared(h, 3), []reg.VecVirtual{h}, func(i int) Op {
		x := ZMM()
		VPBROADCASTQ(k.w.at([]int{a, b}[i], 48), x)
		VPMULTISHIFTQB(x, g.pin(each("threes_each_dword", func(i int) int { return (16*(i/16) + 3*(i/4%4) + 63) % 64 })), x)
		return g.oddOf(x, 0xe)
	}}
}

// shared puts bit n of each byte into bits 2 and 6.
func (g *gridWide) shared(x reg.VecVirtual, n int) reg.VecVirtual {
	q, s := bitMatrix([8]byte{2: 1 << n, 6: 1 << n}), ZMM()
	VGF2P8AFFINEQB(Imm(0), g.pin(qwords(fmt.Sprintf("shared_%d", n), q, q, q, q, q, q, q, q)), x, s)
	return s
}

// iq1mHalf gathers the upper nibbles of the scale words.
func iq1mHalf(k *kq) reg.VecVirtual {
	x := k.clean(XMM())
	q, m := GP64(), GP64()
	MOVQ(U64(0xf000f000f000f000), m)
	for r := range 4 {
		MOVQ(k.w.at(r, 48), q)
		PEXTQ(m, q, q)
		VPINSRW(Imm(uint64(r)), q.As32(), x, x)
	}
	VCVTPH2PS(x, x)
	return x
}
