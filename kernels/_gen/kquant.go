package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const signature = "func(dst *float32, ld int, w *byte, stride int, q *int8, d *float32, sums *int16, nb int, count int)"

// sums256 is the number of bytes of sums of a super-block: 16 of 16 elements, then 8 of 32.
const sums256 = 48

// kq is the state of one K-quant kernel. Four streams run side by side, weight rows or activation columns; lane i of the
// 128-bit registers belongs to stream i.
type kq struct {
	isa
	shape
	w       lanes // weights; rows only use at(1..3)
	ahead   lanes // the same place in the next group of rows
	q, d, s lanes // activations, their scales, their sums
	acc     [4]reg.VecVirtual
	stack   Mem // room of its own, where a kernel wants it
}

// kquant writes the product of a 256-block type with Act256: 4 rows by one column, or one row by 4 columns.
//
// Rows: count groups of 4 rows at distance stride, results side by side. Columns: count rows at distance stride, 4
// columns, results at distance 4*ld bytes.
func (v isa) kquant(typ string, s shape) {
	TEXT(typ+s.name()+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(typ + s.name() + v.suffix() + " multiplies " + typ + " weights; see matrixKernel.")
	blockBytes := map[string]int{"q4k": 144, "q6k": 210}[typ]
	k := &kq{isa: v, shape: s}
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	var dl lanes
	if s.rows > 1 {
		k.w = newLanes(stride)
		k.ahead = lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
		k.q, k.d, k.s = lanes{base: GP64()}, lanes{base: GP64()}, lanes{base: GP64()}
	} else {
		k.w = lanes{base: GP64()}
		nb := Load(Param("nb"), GP64()).(reg.GPVirtual)
		x := GP64()
		MOVQ(nb, x)
		SHLQ(Imm(8), x)
		k.q = newLanes(x)
		x = GP64()
		MOVQ(nb, x)
		SHLQ(Imm(2), x)
		k.d = newLanes(x)
		x = GP64()
		LEAQ(Mem{Base: nb, Index: nb, Scale: 2}, x)
		SHLQ(Imm(4), x)
		k.s = newLanes(x)
	}
	var dist Mem
	if s.rows > 1 {
		dist = AllocLocal(8)
		aheadOf(stride, dist)
	}
	var body func() // one super-block
	switch {
	case typ == "q4k" && v.wide:
		body = k.q4kWide()
	case typ == "q4k":
		body = k.q4kNarrow()
	case v.wide:
		body = k.q6kWide()
	default:
		body = k.q6kNarrow()
	}
	for i := range k.acc {
		k.acc[i] = XMM()
	}
	Label("next")
	{
		MOVQ(wrow, k.w.base)
		if s.rows > 1 {
			MOVQ(wrow, k.ahead.base)
			ADDQ(dist, k.ahead.base)
		}
		Load(Param("q"), k.q.base)
		Load(Param("d"), k.d.base)
		Load(Param("sums"), k.s.base)
		n := Load(Param("nb"), GP64()).(reg.GPVirtual)
		for _, a := range k.acc {
			VXORPS(a, a, a)
		}
		loop("block", n, func() {
			body()
			ADDQ(Imm(uint64(blockBytes)), k.w.base)
			if s.rows > 1 {
				ADDQ(Imm(uint64(blockBytes)), k.ahead.base)
			}
			ADDQ(U32(256), k.q.base)
			ADDQ(Imm(4), k.d.base)
			ADDQ(Imm(sums256), k.s.base)
		})
	}
	// The accumulators have turned once a block. By commutativity only the parity shows: (0+1)+(2+3), or (3+0)+(1+2).
	Load(Param("nb"), k.q.base)
	TESTQ(U32(1), k.q.base)
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
	if s.rows > 1 {
		VMOVUPS(k.acc[0].AsX(), Mem{Base: dst})
		ADDQ(Imm(16), dst)
		LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, wrow)
	} else {
		ld := Load(Param("ld"), GP64()).(reg.GPVirtual)
		SHLQ(Imm(2), ld)
		dl = newLanes(ld)
		MOVQ(dst, dl.base)
		scatter(k.acc[0], dl)
		ADDQ(Imm(4), dst)
		ADDQ(stride, wrow)
	}
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// param is a parameter as a memory operand.
func param(name string) Op {
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return m.Addr
}

// count is the last parameter, counted down in place.
func count() Op { return param("count") }

// scatter stores the four lanes of x at the four streams.
func scatter(x reg.VecVirtual, l lanes) {
	VMOVSS(x.AsX(), l.at(0, 0))
	for i := 1; i < 4; i++ {
		VEXTRACTPS(Imm(uint64(i)), x.AsX(), l.at(i, 0))
	}
}

// fold takes the exact sums of a block into the accumulators and turns them: the one added to becomes the last.
func (k *kq) fold(isum, d, dy reg.VecVirtual, mins func() (msum, dmin reg.VecVirtual)) {
	x := isum.AsX()
	VCVTDQ2PS(x, x)
	t := XMM()
	VMULPS(dy.AsX(), d.AsX(), t)
	VMULPS(x, t, t)
	a := k.acc
	VADDPS(t, a[0].AsX(), t)
	if mins != nil {
		msum, dmin := mins()
		VCVTDQ2PS(msum.AsX(), msum.AsX())
		VMULPS(dy.AsX(), dmin.AsX(), dmin.AsX())
		VMULPS(msum.AsX(), dmin.AsX(), dmin.AsX())
		VSUBPS(dmin.AsX(), t, t)
	}
	VMOVAPS(a[1].AsX(), a[0].AsX())
	VMOVAPS(a[2].AsX(), a[1].AsX())
	VMOVAPS(a[3].AsX(), a[2].AsX())
	VMOVAPS(t, a[3].AsX())
}

// actScale is dy in the four lanes: one column's in all, or four columns'.
func (k *kq) actScale() reg.VecVirtual {
	x := XMM()
	if k.rows > 1 {
		VBROADCASTSS(k.d.at(0, 0), x)
		return x
	}
	VMOVSS(k.d.at(0, 0), x)
	for i := 1; i < 4; i++ {
		VINSERTPS(Imm(uint64(i<<4)), k.d.at(i, 0), x, x)
	}
	return x
}

func (k *kq) fetchAhead(bytes int) {
	for i := range k.rows {
		for o := 0; o < bytes; o += 64 {
			if k.rows > 1 {
				PREFETCHT0(k.ahead.at(i, o))
			} else {
				PREFETCHT0(k.w.at(i, prefetchAhead+o))
			}
		}
	}
}

// Header of a Q4_K block as dwords: d and dmin, then u0, u1, u2 with the packed 6-bit scales and mins. scalesQ4K turns
// it, in each 128-bit lane, into eight bytes of scales and eight of mins.
func (k *kq) scalesQ4K(h reg.VecVirtual) {
	n := k.size() / 16
	low := dwords("q4k_low"+k.isa.suffix(), repeat(n, 0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)...)
	top := dwords("q4k_top"+k.isa.suffix(), repeat(n, 0, 0x30303030, 0, 0x30303030)...)
	shift := dwords("q4k_shift"+k.isa.suffix(), repeat(n, 0, 0, 0, 4)...)
	if !k.wide {
		x, t := h.AsX(), XMM()
		VPSHUFD(Imm(0x84), x, t)
		VPSHUFD(Imm(0xed), x, x)
		VPSRLVD(shift, x, x)
		VPAND(low, x, x)
		VPSRLD(Imm(2), t, t)
		VPAND(top, t, t)
		VPOR(t, x, x)
		return
	}
	t := ZMM()
	VPSHUFD(Imm(0x84), h, t)
	VPSHUFD(Imm(0xed), h, h)
	VPSRLVD(shift, h, h)
	VPSRLD(Imm(2), t, t)
	VPANDD(top, t, t)
	VPTERNLOGD(Imm(0xea), t, k.constMem(low), h)
}

// constMem loads a constant that an instruction cannot take from memory.
func (k *kq) constMem(m Mem) reg.VecVirtual { return k.constant(m) }

func repeat(n int, w ...uint32) (out []uint32) {
	for range n {
		out = append(out, w...)
	}
	return out
}

// wordSpread is the VPSHUFB control that copies word f(lane) of a lane into all words of each 128-bit lane.
func wordSpread(name string, size int, f func(lane int) int) Mem {
	return fill(name, size, func(i int) byte { return byte(2*f(i/16) + i%2) })
}

func (k *kq) q4kWide() func() {
	nib := k.constant(fill("nibble", 64, func(int) byte { return 15 }))
	zero := ZMM()
	VPXORD(zero, zero, zero)
	// Nibbles as they lie: the low ones of bytes 0..63 belong to groups 0 and 2, the high ones to 1 and 3, and so on.
	// Rows keep that order and shuffle the activations, which four rows share; columns put the codes in order.
	var spread [4]reg.VecVirtual
	for j := range spread {
		if k.rows > 1 {
			base := 4*(j/2) + j%2
			spread[j] = k.constant(wordSpread([]string{"q4k_r0", "q4k_r1", "q4k_r2", "q4k_r3"}[j], 64, func(l int) int { return base + 2*(l/2) }))
		} else {
			spread[j] = k.constant(wordSpread([]string{"q4k_c0", "q4k_c1", "q4k_c2", "q4k_c3"}[j], 64, func(l int) int { return 2*j + l/2 }))
		}
	}
	if k.rows > 1 {
		pick := k.constant(dwords("first_of_lanes", 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12))
		part := fill("halves_apart", 16, func(i int) byte { return byte(4*(i/2%4) + 2*(i/8) + i%2) })
		return func() {
			k.fetchAhead(144)
			h := ZMM()
			VMOVDQU(k.w.at(0, 0), h.AsX())
			for i := 1; i < 4; i++ {
				if i == 1 {
					VINSERTI128(Imm(1), k.w.at(1, 0), h.AsY(), h.AsY())
				} else {
					VINSERTI32X4(Imm(uint64(i)), k.w.at(i, 0), h, h)
				}
			}
			dm := ZMM()
			VPERMD(h, pick, dm)
			VPSHUFB(part, dm.AsX(), dm.AsX())
			VCVTPH2PS(dm.AsX(), dm.AsY())
			k.scalesQ4K(h)
			sc, ms := ZMM(), ZMM()
			VPUNPCKLBW(zero, h, sc)
			VPUNPCKHBW(zero, h, ms)
			t := ZMM()
			VBROADCASTI32X4(k.s.at(0, 32), t)
			VPMADDWD(t, ms, ms)
			VPSHUFD(Imm(0x4e), ms, t)
			VPADDD(t, ms, ms)
			VPSHUFD(Imm(0xb1), ms, t)
			VPADDD(t, ms, ms)
			VPERMD(ms, pick, ms)
			var act [4]reg.VecVirtual
			for i := range 2 {
				y := ZMM()
				VMOVDQU64(k.q.at(0, 128*i), y)
				act[2*i], act[2*i+1] = ZMM(), ZMM()
				VSHUFI64X2(Imm(0x44), k.q.at(0, 128*i+64), y, act[2*i])
				VSHUFI64X2(Imm(0xee), k.q.at(0, 128*i+64), y, act[2*i+1])
			}
			var sum [4]reg.VecVirtual
			for r := range sum {
				sum[r] = ZMM()
				mine := ZMM()
				VSHUFI32X4(Imm(uint64(0x55*r)), sc, sc, mine)
				for i := range 2 {
					lo, hi := ZMM(), ZMM()
					VMOVDQU64(k.w.at(r, 16+64*i), lo)
					VPSRLW(Imm(4), lo, hi)
					VPANDD(nib, lo, lo)
					VPANDD(nib, hi, hi)
					for j, c := range []reg.VecVirtual{lo, hi} {
						VPMADDUBSW(act[2*i+j], c, c)
						s := ZMM()
						VPSHUFB(spread[2*i+j], mine, s)
						if i+j == 0 {
							VPMADDWD(s, c, sum[r])
						} else {
							VPDPWSSD(s, c, sum[r])
						}
					}
				}
			}
			isum := XMM()
			k.sum4(sum, isum)
			k.fold(isum, dm, k.actScale(), func() (reg.VecVirtual, reg.VecVirtual) {
				x := XMM()
				VEXTRACTF128(Imm(1), dm.AsY(), x)
				return ms, x
			})
		}
	}
	return func() {
		k.fetchAhead(144)
		h := ZMM()
		VBROADCASTI32X4(k.w.at(0, 0), h)
		d, dmin := k.halfPair(h)
		k.scalesQ4K(h)
		sc, mn := ZMM(), ZMM()
		VPUNPCKLBW(zero, h, sc)
		VPUNPCKHBW(zero, h, mn)
		var code, scale [4]reg.VecVirtual
		for i := range 2 {
			lo, hi := ZMM(), ZMM()
			VMOVDQU64(k.w.at(0, 16+64*i), lo)
			VPSRLW(Imm(4), lo, hi)
			VPANDD(nib, lo, lo)
			VPANDD(nib, hi, hi)
			code[2*i], code[2*i+1] = ZMM(), ZMM()
			VSHUFI64X2(Imm(0x44), hi, lo, code[2*i])
			VSHUFI64X2(Imm(0xee), hi, lo, code[2*i+1])
		}
		for j := range scale {
			scale[j] = ZMM()
			VPSHUFB(spread[j], sc, scale[j])
		}
		isum := k.colsWide(code, scale, nil)
		k.fold(isum, d, k.actScale(), func() (reg.VecVirtual, reg.VecVirtual) { return k.minSums(mn), dmin })
	}
}

// halfPair widens the two halves at the start of h and spreads each to four lanes.
func (k *kq) halfPair(h reg.VecVirtual) (d, m reg.VecVirtual) {
	d, m = XMM(), XMM()
	VCVTPH2PS(h.AsX(), m.AsX())
	VBROADCASTSS(m.AsX(), d.AsX())
	VSHUFPS(Imm(0x55), m.AsX(), m.AsX(), m.AsX())
	return d, m
}

// minSums multiplies eight mins with the sums of 32 of four columns.
func (k *kq) minSums(mn reg.VecVirtual) reg.VecVirtual {
	var m [4]reg.VecVirtual
	for c := range m {
		m[c] = XMM()
		VPMADDWD(k.s.at(c, 32), mn.AsX(), m[c].AsX())
	}
	VPHADDD(m[1], m[0], m[0])
	VPHADDD(m[3], m[2], m[2])
	VPHADDD(m[2], m[0], m[0])
	return m[0]
}

// colsWide multiplies 256 codes in order with four columns. start, if set, gives column c's first value.
func (k *kq) colsWide(code, scale [4]reg.VecVirtual, start func(c int, dst reg.VecVirtual)) reg.VecVirtual {
	var sum [4]reg.VecVirtual
	for c := range sum {
		sum[c] = ZMM()
		if start != nil {
			start(c, sum[c])
		}
		for j := range code {
			p := ZMM()
			VPMADDUBSW(k.q.at(c, 64*j), code[j], p)
			if j == 0 && start == nil {
				VPMADDWD(scale[j], p, sum[c])
			} else {
				VPDPWSSD(scale[j], p, sum[c])
			}
		}
	}
	isum := XMM()
	k.sum4(sum, isum)
	return isum
}

func (k *kq) q4kNarrow() func() {
	nib := k.constant(fill("nibble", 32, func(int) byte { return 15 }))
	spread := func(g int) Mem {
		return wordSpread([]string{"word0", "word1", "word2", "word3", "word4", "word5", "word6", "word7"}[g], 32, func(int) int { return g })
	}
	// scales gives the scale words twice, and the mins.
	scales := func(r int) (sc, mn reg.VecVirtual) {
		h := YMM()
		VMOVDQU(k.w.at(r, 0), h.AsX())
		k.scalesQ4K(h)
		sc, mn = YMM(), YMM()
		VPMOVZXBW(h.AsX(), h)
		VEXTRACTI128(Imm(1), h, mn.AsX())
		VPERMQ(Imm(0x44), h, sc)
		return sc, mn
	}
	madd := func(c, s, sum reg.VecVirtual, act Mem, first bool) {
		p := YMM()
		VPMADDUBSW(act, c, p)
		if first {
			VPMADDWD(s, p, sum)
			return
		}
		VPMADDWD(s, p, p)
		VPADDD(p, sum, sum)
	}
	if k.rows > 1 {
		part := fill("halves_apart", 16, func(i int) byte { return byte(4*(i/2%4) + 2*(i/8) + i%2) })
		return func() {
			k.fetchAhead(144)
			var sum, min [4]reg.VecVirtual
			for r := range sum {
				sc, mn := scales(r)
				min[r], sum[r] = XMM(), YMM()
				VPMADDWD(k.s.at(0, 32), mn.AsX(), min[r])
				if r%2 == 1 {
					VPHADDD(min[r], min[r-1], min[r-1])
				}
				for p := range 4 {
					lo, hi := YMM(), YMM()
					VMOVDQU(k.w.at(r, 16+32*p), lo)
					VPSRLW(Imm(4), lo, hi)
					VPAND(nib, lo, lo)
					VPAND(nib, hi, hi)
					for j, c := range []reg.VecVirtual{lo, hi} {
						g := 2*p + j
						s := YMM()
						VPSHUFB(spread(g), sc, s)
						madd(c, s, sum[r], k.q.at(0, 32*g), g == 0)
					}
				}
				if r%2 == 1 {
					VPHADDD(sum[r], sum[r-1], sum[r-1])
				}
			}
			VPHADDD(min[2], min[0], min[0])
			VPHADDD(sum[2], sum[0], sum[0])
			x := XMM()
			VEXTRACTI128(Imm(1), sum[0], x)
			VPADDD(x, sum[0].AsX(), x)
			dm := YMM()
			VMOVD(k.w.at(0, 0), dm.AsX())
			for i := 1; i < 4; i++ {
				VPINSRD(Imm(uint64(i)), k.w.at(i, 0), dm.AsX(), dm.AsX())
			}
			VPSHUFB(part, dm.AsX(), dm.AsX())
			VCVTPH2PS(dm.AsX(), dm)
			k.fold(x, dm, k.actScale(), func() (reg.VecVirtual, reg.VecVirtual) {
				x := XMM()
				VEXTRACTF128(Imm(1), dm, x)
				return min[0], x
			})
		}
	}
	return func() {
		k.fetchAhead(144)
		sc, mn := scales(0)
		var sum [4]reg.VecVirtual
		for c := range sum {
			sum[c] = YMM()
		}
		for p := range 4 {
			lo, hi := YMM(), YMM()
			VMOVDQU(k.w.at(0, 16+32*p), lo)
			VPSRLW(Imm(4), lo, hi)
			VPAND(nib, lo, lo)
			VPAND(nib, hi, hi)
			for j, code := range []reg.VecVirtual{lo, hi} {
				g := 2*p + j
				s := YMM()
				VPSHUFB(spread(g), sc, s)
				for c := range sum {
					madd(code, s, sum[c], k.q.at(c, 32*g), g == 0)
				}
			}
		}
		isum := XMM()
		k.sum4(sum, isum)
		h := XMM()
		VMOVD(k.w.at(0, 0), h)
		d, dmin := k.halfPair(h)
		k.fold(isum, d, k.actScale(), func() (reg.VecVirtual, reg.VecVirtual) { return k.minSums(mn), dmin })
	}
}

// Q6_K: codes stay unsigned, 0..63; the 32 that each is too large comes off through the sums of 16.

// halves gathers the scale d of the four rows, or spreads one row's.
func (k *kq) halves(disp int) reg.VecVirtual {
	x := XMM()
	if k.rows == 1 {
		VPBROADCASTW(k.w.at(0, disp), x)
	} else {
		VPXOR(x, x, x)
		for i := range 4 {
			VPINSRW(Imm(uint64(i)), k.w.at(i, disp), x, x)
		}
	}
	VCVTPH2PS(x, x)
	return x
}

func (k *kq) q6kWide() func() {
	nib := k.constant(fill("nibble", 64, func(int) byte { return 15 }))
	top := k.constant(fill("top_bits", 64, func(int) byte { return 0x30 }))
	left := k.constant(fill("q6k_left", 64, func(i int) byte { return []byte{4, 0, 2, 0}[i/32*2+i%2] }))
	right := k.constant(fill("q6k_right", 64, func(i int) byte { return []byte{0, 0, 2, 0}[i/32*2+i%2] }))
	var spread [4]reg.VecVirtual
	for j := range spread {
		spread[j] = k.constant(fill([]string{"q6k_s0", "q6k_s1", "q6k_s2", "q6k_s3"}[j], 64, func(i int) byte {
			if i%2 == 1 {
				return 0
			}
			return byte(4*j + i/16)
		}))
	}
	// codes puts half h of a block of row r in order.
	codes := func(r, h int) (a, b reg.VecVirtual) {
		l, hi := ZMM(), ZMM()
		VMOVDQU64(k.w.at(r, 64*h), l)
		VBROADCASTI64X4(k.w.at(r, 128+32*h), hi)
		a, b = ZMM(), ZMM()
		VPSLLVW(left, hi, a)
		VPANDD(top, a, a)
		VPSRLVW(right, hi, hi)
		VPANDD(top, hi, hi)
		VPSRLW(Imm(4), l, b)
		VPTERNLOGD(Imm(0xea), a, nib, l)
		VPTERNLOGD(Imm(0xea), hi, nib, b)
		return l, b
	}
	// scales gives the 16 scale words and the same times 32.
	scales := func(r int) (sc, sc32 reg.VecVirtual) {
		sc, sc32 = ZMM(), YMM()
		VPMOVSXBW(k.w.at(r, 192), sc.AsY())
		VPSLLW(Imm(5), sc.AsY(), sc32)
		return sc, sc32
	}
	if k.rows > 1 {
		return func() {
			k.fetchAhead(210)
			var act [4]reg.VecVirtual
			for j := range act {
				act[j] = ZMM()
				VMOVDQU64(k.q.at(0, 64*j), act[j])
			}
			var sum [4]reg.VecVirtual
			for r := range sum {
				sum[r] = ZMM()
				sc, sc32 := scales(r)
				for h := range 2 {
					a, b := codes(r, h)
					for j, c := range []reg.VecVirtual{a, b} {
						VPMADDUBSW(act[2*h+j], c, c)
						s := ZMM()
						VPERMW(sc, spread[2*h+j], s)
						if h+j == 0 {
							VPMADDWD(s, c, sum[r])
						} else {
							VPDPWSSD(s, c, sum[r])
						}
					}
				}
				VPMADDWD(k.s.at(0, 0), sc32, sc32)
				VPSUBD(sc32.AsZ(), sum[r], sum[r])
			}
			isum := XMM()
			k.sum4(sum, isum)
			k.fold(isum, k.halves(208), k.actScale(), nil)
		}
	}
	return func() {
		k.fetchAhead(210)
		var code, scale [4]reg.VecVirtual
		sc, sc32 := scales(0)
		code[0], code[1] = codes(0, 0)
		code[2], code[3] = codes(0, 1)
		for j := range scale {
			scale[j] = ZMM()
			VPERMW(sc, spread[j], scale[j])
		}
		zero := YMM()
		VPXOR(zero, zero, zero)
		VPSUBW(sc32, zero, sc32)
		isum := k.colsWide(code, scale, func(c int, dst reg.VecVirtual) { VPMADDWD(k.s.at(c, 0), sc32, dst.AsY()) })
		k.fold(isum, k.halves(208), k.actScale(), nil)
	}
}

func (k *kq) q6kNarrow() func() {
	nib := k.constant(fill("nibble", 32, func(int) byte { return 15 }))
	top := k.constant(fill("top_bits", 32, func(int) byte { return 0x30 }))
	spread := func(g int) Mem {
		return wordSpread([]string{"pair0", "pair1", "pair2", "pair3"}[g%4], 32, func(l int) int { return 2*(g%4) + l })
	}
	// scales gives words 0..7 twice, words 8..15 twice, and minus 32 times all of them.
	scales := func(r int) (s [2]reg.VecVirtual, neg reg.VecVirtual) {
		s[0], s[1], neg = YMM(), YMM(), YMM()
		w := YMM()
		VPMOVSXBW(k.w.at(r, 192), w)
		VPERMQ(Imm(0x44), w, s[0])
		VPERMQ(Imm(0xee), w, s[1])
		VPXOR(neg, neg, neg)
		VPSUBW(w, neg, neg)
		VPSLLW(Imm(5), neg, neg)
		return s, neg
	}
	// each calls f with the codes of the 32-run g of row r, for all eight.
	each := func(r int, f func(g int, code reg.VecVirtual)) {
		for h := range 2 {
			hi := YMM()
			VMOVDQU(k.w.at(r, 128+32*h), hi)
			for c := range 4 {
				code, t := YMM(), YMM()
				VMOVDQU(k.w.at(r, 64*h+32*(c%2)), code)
				if c >= 2 {
					VPSRLW(Imm(4), code, code)
				}
				VPAND(nib, code, code)
				switch c {
				case 0:
					VPSLLW(Imm(4), hi, t)
					VPAND(top, t, t)
				case 1:
					VPSLLW(Imm(2), hi, t)
					VPAND(top, t, t)
				case 2:
					VPAND(top, hi, t)
				case 3:
					VPSRLW(Imm(2), hi, t)
					VPAND(top, t, t)
				}
				VPOR(t, code, code)
				f(4*h+c, code)
			}
		}
	}
	if k.rows > 1 {
		return func() {
			k.fetchAhead(210)
			var sum [4]reg.VecVirtual
			for r := range sum {
				s, acc := scales(r)
				VPMADDWD(k.s.at(0, 0), acc, acc)
				sum[r] = acc
				each(r, func(g int, code reg.VecVirtual) {
					VPMADDUBSW(k.q.at(0, 32*g), code, code)
					t := YMM()
					VPSHUFB(spread(g), s[g/4], t)
					VPMADDWD(t, code, code)
					VPADDD(code, acc, acc)
				})
				if r%2 == 1 {
					VPHADDD(sum[r], sum[r-1], sum[r-1])
				}
			}
			VPHADDD(sum[2], sum[0], sum[0])
			x := XMM()
			VEXTRACTI128(Imm(1), sum[0], x)
			VPADDD(x, sum[0].AsX(), x)
			k.fold(x, k.halves(208), k.actScale(), nil)
		}
	}
	return func() {
		k.fetchAhead(210)
		var sum [4]reg.VecVirtual
		s, neg := scales(0)
		for c := range sum {
			sum[c] = YMM()
			VPMADDWD(k.s.at(c, 0), neg, sum[c])
		}
		each(0, func(g int, code reg.VecVirtual) {
			scale := YMM()
			VPSHUFB(spread(g), s[g/4], scale)
			for c := range sum {
				p := YMM()
				VPMADDUBSW(k.q.at(c, 32*g), code, p)
				VPMADDWD(scale, p, p)
				VPADDD(p, sum[c], sum[c])
			}
		})
		isum := XMM()
		k.sum4(sum, isum)
		k.fold(isum, k.halves(208), k.actScale(), nil)
	}
}
