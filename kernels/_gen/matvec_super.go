package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// superType is a type of 256-blocks.
type superType struct {
	name string
	size int
	body func(k *kq) superBody
}

// superBody makes the parts of a step of one super-block.
type superBody struct {
	prepare func()
	// row returns the vector of int32 whose total is isum, and for types with minimums that of msum.
	row func(r int) (isum, msum reg.VecVirtual)
	// scales returns d, and dmin or nil, of the four rows.
	scales func() (d, dmin reg.VecVirtual)
	// minSum, if set, gives msum of the four rows instead of row.
	minSum func() reg.VecVirtual
}

func superTypes(v isa) []superType {
	if v.wide {
		return []superType{
			{"q5k", 176, q5kWide},
			{"iq4xs", 136, iq4xsWide},
			{"tq20", 66, tq20Wide},
		}
	}
	return append(gridTypes(), []superType{
		{"q5k", 176, q5kNarrow},
		{"iq4xs", 136, iq4xsNarrow},
		{"q3k", 110, q3kNarrow},
		{"q2k", 84, q2kNarrow},
		{"tq20", 66, tq20Narrow},
	}...)
}

// superRows writes the product of 4 rows with one column of Act256.
func (v isa) superRows(t superType) {
	TEXT(t.name+"Rows"+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(t.name + "Rows" + v.suffix() + " multiplies " + t.name + " weights; see matrixKernel.")
	k := &kq{isa: v, shape: shape{4, 1}, stack: AllocLocal(200)}
	dist := k.stack.Offset(192)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	k.w = newLanes(stride)
	k.ahead = lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
	k.q, k.d, k.s = lanes{base: GP64()}, lanes{base: GP64()}, lanes{base: GP64()}
	body := t.body(k)
	for i := range k.acc {
		k.acc[i] = XMM()
	}
	aheadOf(stride, dist)
	Label("next")
	MOVQ(wrow, k.w.base)
	MOVQ(wrow, k.ahead.base)
	ADDQ(dist, k.ahead.base)
	Load(Param("q"), k.q.base)
	Load(Param("d"), k.d.base)
	Load(Param("sums"), k.s.base)
	n := Load(Param("nb"), GP64()).(reg.GPVirtual)
	for _, a := range k.acc {
		v.clean(a)
	}
	loop("block", n, func() {
		fetch(k.ahead, t.size)
		if body.prepare != nil {
			body.prepare()
		}
		var isum, msum [4]reg.VecVirtual
		for r := range isum {
			isum[r], msum[r] = body.row(r)
			if r%2 == 1 && !v.wide { // joined early: registers are few
				VPHADDD(isum[r], isum[r-1], isum[r-1])
			}
			if r%2 == 1 && !v.wide && msum[r] != nil {
				VPHADDD(msum[r], msum[r-1], msum[r-1])
			}
		}
		total := XMM()
		if v.wide {
			total = totals(isum)
		} else {
			VPHADDD(isum[2], isum[0], isum[0])
			VEXTRACTI128(Imm(1), isum[0], total)
			VPADDD(total, isum[0].AsX(), total)
		}
		d, dmin := body.scales()
		var mins func() (reg.VecVirtual, reg.VecVirtual)
		if dmin != nil {
			m := XMM()
			switch {
			case body.minSum != nil:
				m = body.minSum()
			case v.wide:
				m = totals(msum)
			case msum[0].Size() == 32:
				VPHADDD(msum[2], msum[0], msum[0])
				VEXTRACTI128(Imm(1), msum[0], m)
				VPADDD(m, msum[0].AsX(), m)
			default:
				VPHADDD(msum[2], msum[0], msum[0])
				m = msum[0]
			}
			mins = func() (reg.VecVirtual, reg.VecVirtual) { return m, dmin }
		}
		k.fold(total, d, k.actScale(), mins)
		ADDQ(Imm(uint64(t.size)), k.w.base)
		ADDQ(Imm(uint64(t.size)), k.ahead.base)
		ADDQ(U32(256), k.q.base)
		ADDQ(Imm(4), k.d.base)
		ADDQ(Imm(sums256), k.s.base)
	})
	// As in kquant: the accumulators have turned once a block.
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
}

// one and two give the scales of a block: the half at byte at, or d and dmin side by side there.
func (k *kq) one(at int) func() (d, dmin reg.VecVirtual) {
	return func() (reg.VecVirtual, reg.VecVirtual) { return k.four(at), nil }
}

// four gathers the halves at byte at of the four rows.
func (k *kq) four(at int) reg.VecVirtual {
	x := k.clean(XMM())
	for i := range 4 {
		VPINSRW(Imm(uint64(i)), k.w.at(i, at), x, x)
	}
	VCVTPH2PS(x, x)
	return x
}

func (k *kq) two(at int) func() (d, dmin reg.VecVirtual) {
	part := fill("halves_apart", 16, func(i int) byte { return byte(4*(i/2%4) + 2*(i/8) + i%2) })
	return func() (reg.VecVirtual, reg.VecVirtual) {
		dm := YMM()
		VMOVD(k.w.at(0, at), dm.AsX())
		for i := 1; i < 4; i++ {
			VPINSRD(Imm(uint64(i)), k.w.at(i, at), dm.AsX(), dm.AsX())
		}
		VPSHUFB(part, dm.AsX(), dm.AsX())
		VCVTPH2PS(dm.AsX(), dm)
		return dm, k.upper(dm)
	}
}

// inOrder keeps a super-block's activations in four registers for the four rows.
func (k *kq) inOrder() (act *[4]reg.VecVirtual, prepare func()) {
	act = new([4]reg.VecVirtual)
	return act, func() {
		for j := range act {
			act[j] = ZMM()
			VMOVDQU64(k.q.at(0, 64*j), act[j])
		}
	}
}

// dots returns the total over four vectors of code times activation times scale word.
func (k *kq) dots(code func(j int) reg.VecVirtual, act *[4]reg.VecVirtual, scale func(j int) reg.VecVirtual) reg.VecVirtual {
	sum := ZMM()
	for j := range act {
		c := code(j)
		VPMADDUBSW(act[j], c, c)
		s := scale(j)
		if j == 0 {
			VPMADDWD(s, c, sum)
		} else {
			VPDPWSSD(s, c, sum)
		}
	}
	return sum
}

// offset takes 1<<shift times the sum of activations off sum, scaled by the 16 words sc.
func (k *kq) offset(sum, sc reg.VecVirtual, shift uint64) {
	t := k.clean(k.vec())
	VPSLLW(Imm(shift), sc.AsY(), t.AsY())
	VPMADDWD(k.s.at(0, 0), t.AsY(), t.AsY())
	VPSUBD(t, sum, sum)
}

// planes gives the codes of 64-weight vectors of types with 2-bit planes at byte at. Bit matrices stay in registers:
// constants in memory may straddle cache lines.
func (k *kq) planes(at int) func(r, j int) reg.VecVirtual {
	var m [2]reg.VecVirtual
	for i := range m {
		c := 2 * i
		m[i] = k.constant(halfMatrix(fmt.Sprintf("two_bits_%d", c), bitField(2*c, 2, 0), bitField(2*c+2, 2, 0)))
	}
	var q reg.VecVirtual
	return func(r, j int) reg.VecVirtual {
		if j%2 == 0 {
			q = ZMM()
			VBROADCASTI64X4(k.w.at(r, at+32*(j/2)), q)
		}
		c := ZMM()
		VGF2P8AFFINEQB(Imm(0), m[j%2], q, c)
		return c
	}
}

// byLanes is for types with a scale for 16 weights, which are a 128-bit lane: vector j of the four sums is of 64 weights
// in order, four int32 a lane that fit 16 bits. It packs them, multiplies by the scales and adds up. bytes holds the 16
// scales in every lane; they end up in the upper bytes of words, so in the result 256 times too large, if signed.
func byLanes(p [4]reg.VecVirtual, bytes reg.VecVirtual, signed bool) reg.VecVirtual {
	high := 0
	if signed {
		high = 1
	}
	for i := range 2 {
		s := ZMM()
		VPSHUFB(fill(fmt.Sprintf("packed_scales_%d%d", high, i), 64, func(at int) byte {
			if at%2 != high {
				return 0x80
			}
			return byte(8*i + at%16/8*4 + at/16)
		}), bytes, s)
		c := p[2*i]
		VPACKSSDW(p[2*i+1], c, c)
		if i == 0 {
			VPMADDWD(s, c, c)
		} else {
			VPDPWSSD(s, c, p[0])
		}
	}
	return p[0]
}

// rowLanes loads 16 bytes of each of the four rows.
func (k *kq) rowLanes(at int) reg.VecVirtual {
	h := ZMM()
	VBROADCASTI32X4(k.w.at(0, at), h)
	VINSERTI32X4(Imm(1), k.w.at(1, at), h.AsY(), h.AsY())
	VINSERTI32X4(Imm(2), k.w.at(2, at), h, h)
	VINSERTI32X4(Imm(3), k.w.at(3, at), h, h)
	return h
}

// laneTotals adds up the four int32 of each lane.
func (k *kq) laneTotals(ms reg.VecVirtual) {
	t, p := ZMM(), ZMM()
	VPSHUFD(Imm(0x4e), ms, t)
	VPADDD(t, ms, ms)
	VPSHUFD(Imm(0xb1), ms, t)
	VPADDD(t, ms, ms)
	k.mov(dwords("first_of_lanes", 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), p)
	VPERMD(ms, p, ms)
}

func tq20Wide(k *kq) superBody {
	act, prepare := k.inOrder()
	code := k.planes(0)
	neg := k.clean(ZMM())
	minus := k.constant(dwords("word_minus_1", repeat(16, 0xffffffff)...))
	return superBody{
		prepare: func() {
			prepare()
			VPMADDWD(k.s.at(0, 0), minus.AsY(), neg.AsY())
		},
		scales: k.one(64),
		row: func(r int) (isum, msum reg.VecVirtual) {
			sum := move(neg)
			for j := range act {
				VPDPBUSD(act[j], code(r, j), sum)
			}
			return sum, nil
		},
	}
}

// scalesQ3K leaves the 16 scales of Q3_K, as signed bytes, of the rows whose last 16 bytes stand in the lanes of x.
func (k *kq) scalesQ3K(x reg.VecVirtual) {
	n := k.size() / 16
	v := k.isa
	high := v.vec()
	VPSHUFB(v.table16("q3k_high"+v.suffix(), []byte{10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13}), x, high)
	VPSHUFB(v.table16("q3k_low"+v.suffix(), []byte{2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9}), x, x)
	VPSRLVD(dwords("q3k_high_shift"+v.suffix(), repeat(n, 0, 2, 4, 6)...), high, high)
	VPSLLD(Imm(4), high, high)
	VPSRLVQ(dwords("q3k_low_shift"+v.suffix(), repeat(n, 0, 0, 4, 0)...), x, x)
	v.and(v.bytesOf(0x30), high, high)
	v.and(v.bytesOf(0x0f), x, x)
	VPADDB(high, x, x)
	VPSUBB(v.load(v.bytesOf(32)), x, x)
}

func q5kWide(k *kq) superBody {
	nib := k.constant(k.bytesOf(15))
	zero := k.clean(ZMM())
	var spread [4]reg.VecVirtual
	for j := range spread {
		base := 4*(j/2) + j%2
		spread[j] = k.constant(wordSpread([]string{"q4k_r0", "q4k_r1", "q4k_r2", "q4k_r3"}[j], 64, func(l int) int { return base + 2*(l/2) }))
	}
	var fifth [4]reg.VecVirtual
	for j := range fifth {
		g := 4*(j/2) + j%2
		fifth[j] = k.constant(halfMatrix(fmt.Sprintf("q5k_bit_%d", g), bitField(g, 1, 4), bitField(g+2, 1, 4)))
	}
	var act [4]reg.VecVirtual
	var sc, ms reg.VecVirtual
	return superBody{
		// As for Q4_K: nibbles stay as they lie, and activations are shuffled.
		prepare: func() {
			h := k.rowLanes(0)
			k.scalesQ4K(h)
			sc, ms = ZMM(), ZMM()
			VPUNPCKLBW(zero, h, sc)
			VPUNPCKHBW(zero, h, ms)
			t := ZMM()
			VBROADCASTI32X4(k.s.at(0, 32), t)
			VPMADDWD(t, ms, ms)
			k.laneTotals(ms)
			for i := range 2 {
				y := ZMM()
				VMOVDQU64(k.q.at(0, 128*i), y)
				act[2*i], act[2*i+1] = ZMM(), ZMM()
				VSHUFI64X2(Imm(0x44), k.q.at(0, 128*i+64), y, act[2*i])
				VSHUFI64X2(Imm(0xee), k.q.at(0, 128*i+64), y, act[2*i+1])
			}
		},
		row: func(r int) (isum, msum reg.VecVirtual) {
			mine, bits := ZMM(), ZMM()
			VSHUFI32X4(Imm(uint64(0x55*r)), sc, sc, mine)
			VBROADCASTI64X4(k.w.at(r, 16), bits)
			var hi reg.VecVirtual
			return k.dots(func(j int) reg.VecVirtual {
				c, b := hi, ZMM()
				if j%2 == 0 {
					c, hi = ZMM(), ZMM()
					VMOVDQU64(k.w.at(r, 48+32*j), c)
					VPSRLW(Imm(4), c, hi)
				}
				VGF2P8AFFINEQB(Imm(0), fifth[j], bits, b)
				VPTERNLOGD(Imm(0xea), b, nib, c)
				return c
			}, &act, func(j int) reg.VecVirtual {
				s := ZMM()
				VPSHUFB(spread[j], mine, s)
				return s
			}), nil
		},
		scales: k.two(0),
		minSum: func() reg.VecVirtual { return ms },
	}
}

// iq4xsWide raises the code book by 128 and starts each sum below zero by as much.
func iq4xsWide(k *kq) superBody {
	nib := k.constant(k.bytesOf(15))
	book := k.constant(k.book("kv4", 128))
	var act, start [4]reg.VecVirtual
	lanes := [2]reg.VecVirtual{
		k.constant(dwords("spread_dwords_0", 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)),
		k.constant(dwords("spread_dwords_1", 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)),
	}
	first := K()
	x := GP64()
	MOVQ(U32(0x1111), x)
	KMOVW(x.As32(), first)
	return superBody{
		prepare: func() {
			neg, zero := k.clean(ZMM()), k.clean(YMM())
			VPMOVSXWD(k.s.at(0, 32), neg.AsY())
			VPSLLD(Imm(7), neg.AsY(), neg.AsY())
			VPSUBD(neg.AsY(), zero, neg.AsY())
			for i := range 2 {
				a, b := ZMM(), k.q.at(0, 128*i+64)
				VMOVDQU64(k.q.at(0, 128*i), a)
				act[2*i], act[2*i+1], start[i] = ZMM(), ZMM(), ZMM()
				VSHUFI32X4(Imm(0x88), b, a, act[2*i])
				VSHUFI32X4(Imm(0xdd), b, a, act[2*i+1])
				VPERMD_Z(neg, lanes[i], first, start[i])
			}
			// Headers: bits 16..31 the high parts of the scales, from bit 32 on the low ones.
			h, t, low := k.clean(YMM()), YMM(), XMM()
			VMOVQ(k.w.at(0, 0), h.AsX())
			VPINSRQ(Imm(1), k.w.at(1, 0), h.AsX(), h.AsX())
			VMOVQ(k.w.at(2, 0), low)
			VPINSRQ(Imm(1), k.w.at(3, 0), low, low)
			VINSERTI32X4(Imm(1), low, h, h)
			c := YMM()
			k.mov(fill("iq4xs_high", 32, func(i int) byte { return byte(12 + 2*(i%8)) }), c)
			VPMULTISHIFTQB(h, c, t)
			k.mov(fill("iq4xs_low", 32, func(i int) byte { return byte(32 + 4*(i%8)) }), c)
			VPMULTISHIFTQB(h, c, h)
			VPANDD(isa{}.bytesOf(0x30), t, t)
			VPANDD(isa{}.bytesOf(0x0f), h, h)
			VPADDB(t, h, h)
			k.mov(isa{}.bytesOf(32), c)
			VPSUBB(c, h, h)
			k.mov(h, k.stack)
		},
		scales: k.one(0),
		row: func(r int) (isum, msum reg.VecVirtual) {
			sc := k.clean(ZMM())
			VPMOVSXBD(k.stack.Offset(8*r), sc.AsY())
			var sum reg.VecVirtual
			for i := range 2 {
				lo, hi, p, s := ZMM(), ZMM(), ZMM(), ZMM()
				VMOVDQU64(k.w.at(r, 8+64*i), lo)
				VPSRLW(Imm(4), lo, hi)
				VPANDD(nib, lo, lo)
				VPANDD(nib, hi, hi)
				VPSHUFB(lo, book, lo)
				VPSHUFB(hi, book, hi)
				VMOVDQA64(start[i], p)
				VPDPBUSD(act[2*i], lo, p)
				VPDPBUSD(act[2*i+1], hi, p)
				VPERMD(sc, lanes[i], s)
				VPMULLD(s, p, p)
				if i == 0 {
					sum = p
				} else {
					VPADDD(p, sum, sum)
				}
			}
			return sum, nil
		},
	}
}

// narrowDots adds up eight vectors of 32 codes times activations times scale words. words holds the 16 scales of 16
// weights; code returns codes and activations.
func (k *kq) narrowDots(sum, words reg.VecVirtual, code func(g int) (c reg.VecVirtual, act Op)) reg.VecVirtual {
	lo, hi := YMM(), YMM()
	VPERMQ(Imm(0x44), words, lo)
	VPERMQ(Imm(0xee), words, hi)
	for g := range 8 {
		c, act := code(g)
		VPMADDUBSW(act, c, c)
		s := YMM()
		VPSHUFB(wordSpread([]string{"pair0", "pair1", "pair2", "pair3"}[g%4], 32, func(l int) int { return 2*(g%4) + l }), []reg.VecVirtual{lo, hi}[g/4], s)
		VPMADDWD(s, c, c)
		if sum == nil {
			sum = c
		} else {
			VPADDD(c, sum, sum)
		}
	}
	return sum
}

// narrowPlanes gives the 2-bit codes of run g of row r.
func (k *kq) narrowPlanes(r, at int) func(g int) reg.VecVirtual {
	var q reg.VecVirtual
	return func(g int) reg.VecVirtual {
		if g%4 == 0 {
			q = YMM()
			k.mov(k.w.at(r, at+8*g), q)
		}
		c := YMM()
		VPSRLW(Imm(uint64(2*(g%4))), q, c)
		VPAND(k.bytesOf(3), c, c)
		return c
	}
}

func q2kNarrow(k *kq) superBody {
	return superBody{scales: k.two(80), row: func(r int) (isum, msum reg.VecVirtual) {
		sc, mn := YMM(), YMM()
		VPMOVZXBW(k.w.at(r, 0), sc)
		VPSRLW(Imm(4), sc, mn)
		VPAND(dwords("word_15_narrow", repeat(8, 0x000f000f)...), sc, sc)
		VPMADDWD(k.s.at(0, 0), mn, mn)
		code := k.narrowPlanes(r, 16)
		return k.narrowDots(nil, sc, func(g int) (reg.VecVirtual, Op) { return code(g), k.q.at(0, 32*g) }), mn
	}}
}

func tq20Narrow(k *kq) superBody {
	ones := k.constant(dwords("word_ones", repeat(8, 0x00010001)...))
	neg := YMM()
	return superBody{
		prepare: func() {
			k.mov(dwords("word_minus_1_narrow", repeat(8, 0xffffffff)...), neg)
			VPMADDWD(k.s.at(0, 0), neg, neg)
		},
		scales: k.one(64),
		row: func(r int) (isum, msum reg.VecVirtual) {
			code := k.narrowPlanes(r, 0)
			var sum reg.VecVirtual
			for g := range 8 { // words hold 16 products of at most 3*127
				c := code(g)
				VPMADDUBSW(k.q.at(0, 32*g), c, c)
				if g == 0 {
					sum = c
				} else {
					VPADDW(c, sum, sum)
				}
			}
			VPMADDWD(ones, sum, sum)
			VPADDD(neg, sum, sum)
			return sum, nil
		},
	}
}

func q3kNarrow(k *kq) superBody {
	return superBody{scales: k.one(108), row: func(r int) (isum, msum reg.VecVirtual) {
		sc, mask, bit := YMM(), YMM(), YMM()
		VBROADCASTI128(k.w.at(r, 94), sc)
		k.scalesQ3K(sc)
		VPMOVSXBW(sc.AsX(), sc)
		sum := YMM()
		VPXOR(sum, sum, sum)
		k.offset(sum, sc, 2)
		k.mov(k.w.at(r, 0), mask)
		code := k.narrowPlanes(r, 32)
		return k.narrowDots(sum, sc, func(g int) (reg.VecVirtual, Op) {
			c := code(g)
			bit = YMM()
			if g < 2 {
				VPSLLW(Imm(uint64(2-g)), mask, bit)
			} else {
				VPSRLW(Imm(uint64(g-2)), mask, bit)
			}
			VPAND(k.bytesOf(4), bit, bit)
			VPOR(bit, c, c)
			return c, k.q.at(0, 32*g)
		}), nil
	}}
}

func q5kNarrow(k *kq) superBody {
	return superBody{scales: k.two(0), row: func(r int) (isum, msum reg.VecVirtual) {
		h, mn := YMM(), XMM()
		k.mov(k.w.at(r, 0), h.AsX())
		k.scalesQ4K(h)
		VPMOVZXBW(h.AsX(), h)
		VEXTRACTI128(Imm(1), h, mn)
		VPMADDWD(k.s.at(0, 32), mn, mn)
		// Each scale serves two runs of 16.
		VPERMQ(Imm(0x10), h, h)
		VPUNPCKLWD(h, h, h)
		bits, q := YMM(), YMM()
		k.mov(k.w.at(r, 16), bits)
		return k.narrowDots(nil, h, func(g int) (reg.VecVirtual, Op) {
			c, b := YMM(), YMM()
			if g%2 == 0 {
				k.mov(k.w.at(r, 48+16*g), q)
				VPAND(k.bytesOf(15), q, c)
			} else {
				VPSRLW(Imm(4), q, c)
				VPAND(k.bytesOf(15), c, c)
			}
			if g < 4 {
				VPSLLW(Imm(uint64(4-g)), bits, b)
			} else {
				VPSRLW(Imm(uint64(g-4)), bits, b)
			}
			VPAND(k.bytesOf(16), b, b)
			VPOR(b, c, c)
			return c, k.q.at(0, 32*g)
		}), mn
	}}
}

func iq4xsNarrow(k *kq) superBody {
	nib := k.constant(k.bytesOf(15))
	return superBody{scales: k.one(0), row: func(r int) (isum, msum reg.VecVirtual) {
		h, t := k.clean(YMM()), YMM()
		VMOVQ(k.w.at(r, 0), h.AsX())
		x := h.AsX()
		VPSHUFB(fill("iq4xs_high_narrow", 16, func(i int) byte { return byte(2 + i%2) }), x, t.AsX())
		VPMULLW(words("iq4xs_high_up", 8, func(i int) int { return 1 << (14 - 2*i) }), t.AsX(), t.AsX())
		VPSRLW(Imm(14), t.AsX(), t.AsX())
		VPSLLW(Imm(4), t.AsX(), t.AsX())
		VPSHUFB(fill("iq4xs_low_narrow", 16, func(i int) byte {
			if i%2 == 1 {
				return 0x80
			}
			return byte(4 + i/4)
		}), x, x)
		VPMULLW(words("iq4xs_low_up", 8, func(i int) int { return 16 >> (4 * (i % 2)) }), x, x)
		VPSRLW(Imm(4), x, x)
		VPAND(words("word_15_xmm", 8, func(int) int { return 15 }), x, x)
		VPADDW(t.AsX(), x, x)
		VPSUBW(words("word_32_xmm", 8, func(int) int { return 32 }), x, x)
		VPERMQ(Imm(0x10), h, h)
		VPUNPCKLWD(h, h, h)
		return k.narrowDots(nil, h, func(g int) (reg.VecVirtual, Op) {
			c, b, a := YMM(), YMM(), YMM()
			VBROADCASTI128(k.w.at(r, 8+16*g), c)
			VPSRLVQ(qwords("shift_upper_lane", 0, 0, 4, 4), c, c)
			VPAND(nib, c, c)
			k.mov(k.book("kv4", 0), b)
			VPSHUFB(c, b, c)
			k.mov(k.q.at(0, 32*g), a)
			VPSIGNB(c, a, a)
			VPABSB(c, c)
			return c, a
		}), nil
	}}
}
