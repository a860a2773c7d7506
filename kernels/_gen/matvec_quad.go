package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quadType is a type of 256-blocks whose AVX-512 kernel takes four super-blocks of four rows before any float work: then
// one vector holds all 16 sums, lane i being super-block i modulo 4 and element r of it row r, and so do the four
// accumulators of the four rows.
type quadType struct {
	name  string
	size  int
	codes int // where the 64 bytes of codes start: displacements from there are short
	body  func(k *quad) quadBody
}

// quadBody makes the parts of a step of one super-block.
type quadBody struct {
	prepare func()                          // what the four rows share; fills quadMins if there are minimums
	row     func(r int) reg.VecVirtual      // the vector of int32 whose total is isum, times 1<<shift
	mins    bool                            // the type has minimums
	scales  func() (d, dmin reg.VecVirtual) // of 16 super-blocks, in the order of sums
	shift   uint64
}

// quad is the state of such a kernel. Slots of four super-blocks lie in the stack frame, on a cache line boundary.
type quad struct {
	kq
	frame reg.GPVirtual
	i     int // the super-block at work: four copies of the step follow each other
}

// Where things lie in the frame.
const (
	quadSums  = 0   // four vectors of 4x4 partial sums: lanes add up
	quadMins  = 256 // four vectors whose lanes are rows
	quadHalf  = 512 // four times four dwords of scales
	quadAct   = 576 // four times the activations' scale
	quadKept  = 640 // two vectors of the type's own
	quadFrame = quadKept + 2*64 + 64
)

func (k *quad) slot(off int) Mem { return Mem{Base: k.frame, Disp: off} }

// keep copies a constant into the frame: in the program it may straddle cache lines.
func (k *quad) keep(i int, m Mem) Mem {
	t, to := ZMM(), k.slot(quadKept+64*i)
	VMOVDQU64(m, t)
	VMOVDQA64(t, to)
	return to
}

var quadTypes = []quadType{
	{"q2k", 84, 16, q2kQuad},
	{"q3k", 110, 32, q3kQuad},
}

// quadRows writes the product of 4 rows with one column of Act256.
func (v isa) quadRows(t quadType) {
	TEXT(t.name+"Rows"+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(t.name + "Rows" + v.suffix() + " multiplies " + t.name + " weights; see matrixKernel.")
	local := AllocLocal(quadFrame + 16)
	dist, left := local.Offset(quadFrame), local.Offset(quadFrame+8)
	k := &quad{kq: kq{isa: v, shape: shape{4, 1}}, frame: GP64()}
	LEAQ(local.Offset(63), k.frame)
	ANDQ(I8(-64), k.frame)
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	k.w = newLanes(stride)
	k.ahead = lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
	k.q, k.d, k.s = lanes{base: GP64()}, lanes{base: GP64()}, lanes{base: GP64()}
	body := t.body(k)
	acc := ZMM()
	aheadOf(stride, dist)
	k.w.off = -t.codes
	Label("next")
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	LEAQ(Mem{Base: wrow, Disp: t.codes}, k.w.base)
	ADDQ(dist, wrow)
	MOVQ(wrow, k.ahead.base)
	Load(Param("q"), k.q.base)
	Load(Param("d"), k.d.base)
	Load(Param("sums"), k.s.base)
	nb := Load(Param("nb"), GP64()).(reg.GPVirtual)
	MOVQ(nb, left)
	v.clean(acc)
	Label("quad")
	{
		n, bits := GP64(), GP64()
		MOVQ(left, n)
		for i := range 4 {
			k.turn(i)
			k.fetchQuad(t.size)
			body.prepare()
			var isum [4]reg.VecVirtual
			for r := range isum {
				isum[r] = body.row(r)
			}
			k.transpose4(isum)
			VMOVDQA64(isum[0], k.slot(quadSums+64*i))
			y := XMM()
			VBROADCASTSS(k.d.at(0, 0), y)
			VMOVUPS(y, k.slot(quadAct+16*i))
			ADDQ(Imm(uint64(t.size)), k.w.base)
			ADDQ(Imm(uint64(t.size)), k.ahead.base)
			MOVL(U32(0xffff>>(12-4*i)), bits.As32())
			if i < 3 {
				DECQ(n)
				JZ(LabelRef("joined"))
			}
		}
		k.turn(0)
		DECQ(n)
		Label("joined")
		MOVQ(n, left)
		valid := K()
		KMOVW(bits.As32(), valid)
		ADDQ(U32(4*256), k.q.base)
		ADDQ(Imm(4*4), k.d.base)
		ADDQ(U32(4*sums256), k.s.base)
		total := k.laneSums()
		if body.shift != 0 {
			VPSRAD(Imm(body.shift), total, total)
		}
		VCVTDQ2PS(total, total)
		d, dmin := body.scales()
		dy := k.slot(quadAct)
		VMULPS(dy, d, d)
		VMULPS(total, d, d)
		VADDPS(d, acc, valid, acc)
		if body.mins {
			m := k.rowSums()
			VCVTDQ2PS(m, m)
			VMULPS(dy, dmin, dmin)
			VMULPS(m, dmin, dmin)
			VSUBPS(dmin, acc, valid, acc)
		}
		CMPQ(left, Imm(0))
		JNE(LabelRef("quad"))
	}
	// Lane i is the accumulator of the super-blocks whose index is i modulo 4: (0+1)+(2+3).
	x, y, z := XMM(), XMM(), XMM()
	VEXTRACTF32X4(Imm(1), acc, x)
	VEXTRACTF32X4(Imm(2), acc, y)
	VEXTRACTF32X4(Imm(3), acc, z)
	VADDPS(x, acc.AsX(), x)
	VADDPS(z, y, y)
	VADDPS(y, x, x)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	VMOVUPS(x, Mem{Base: dst})
	ADDQ(Imm(16), dst)
	MOVQ(dst, param("dst"))
	w := Load(Param("w"), GP64()).(reg.GPVirtual)
	LEAQ(Mem{Base: w, Index: stride, Scale: 4}, w)
	MOVQ(w, param("w"))
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// turn makes operands those of super-block i of the four.
func (k *quad) turn(i int) {
	k.i = i
	k.q.off, k.d.off, k.s.off = 256*i, 4*i, sums256*i
}

// fetchQuad asks for the lines of the next rows that start in this super-block's part of four.
func (k *quad) fetchQuad(size int) {
	for o := (k.i*size + 63) &^ 63; o < (k.i+1)*size; o += 64 {
		for r := range 4 {
			PREFETCHT0(k.ahead.at(r, o-k.i*size))
		}
	}
}

// laneSums adds up the lanes of the four vectors of sums: lane i is the total of vector i.
func (k *quad) laneSums() reg.VecVirtual {
	var a [4]reg.VecVirtual
	at := func(i int) Mem { return k.slot(quadSums + 64*i) }
	for i := 0; i < 4; i += 2 {
		x := ZMM()
		a[i], a[i+1] = ZMM(), ZMM()
		VMOVDQA64(at(i), x)
		VSHUFI32X4(Imm(0x44), at(i+1), x, a[i])
		VSHUFI32X4(Imm(0xee), at(i+1), x, a[i+1])
		VPADDD(a[i+1], a[i], a[i])
	}
	VSHUFI32X4(Imm(0xdd), a[2], a[0], a[1])
	VSHUFI32X4(Imm(0x88), a[2], a[0], a[0])
	VPADDD(a[1], a[0], a[0])
	return a[0]
}

// rowSums adds up the elements of each lane of the four vectors of minimums: element r of lane i is the total of lane r
// of vector i.
func (k *quad) rowSums() reg.VecVirtual {
	var a [4]reg.VecVirtual
	for i := range a {
		a[i] = ZMM()
		VMOVDQA64(k.slot(quadMins+64*i), a[i])
	}
	k.transpose4(a)
	t := ZMM()
	VMOVDQU64(dwords("lanes_for_elements", 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), t)
	VPERMD(a[0], t, a[0])
	return a[0]
}

// planeActs loads a super-block's activations as the four planes of types with 2-bit codes lie: plane c is the 32 of each
// half from 32*c on.
func (k *quad) planeActs() (act [4]reg.VecVirtual) {
	for c := range act {
		act[c] = ZMM()
		VBROADCASTI64X4(k.q.at(0, 32*c), act[c])
		VINSERTI64X4(Imm(1), k.q.at(0, 128+32*c), act[c], act[c])
	}
	return act
}

// spreads are the indices that give the packed words of planes 2*i and 2*i+1 of row r their scales, out of the four rows'
// in one vector: word w of lane l stands for a run of 16 weights.
func (k *quad) spreads() (spread [4][2]reg.VecVirtual) {
	for r := range spread {
		for i := range 2 {
			spread[r][i] = k.constant(fill(fmt.Sprintf("quad_scales_%d%d", r, i), 64, func(at int) byte {
				lane, plane := at/16, 2*i+at%16/8
				return byte(16*r + 8*(lane/2) + 2*plane + lane%2)
			}))
		}
	}
	return spread
}

// bytesMask is a mask of the odd bytes, or of the even ones.
func bytesMask(odd bool) reg.OpmaskVirtual {
	x, m := GP64(), K()
	v := uint64(0x5555555555555555)
	if odd {
		v <<= 1
	}
	MOVQ(U64(v), x)
	KMOVQ(x, m)
	return m
}

// scaled packs the four planes' int32 of row r, which fit 16 bits, and multiplies them by its scales, in the bytes of
// words that which chooses. adjust, if set, acts on the packed words of planes 2 and 3.
func scaled(p [4]reg.VecVirtual, sc reg.VecVirtual, spread [2]reg.VecVirtual, which reg.OpmaskVirtual, adjust func(w reg.VecVirtual)) reg.VecVirtual {
	s, t := ZMM(), ZMM()
	VPERMB_Z(sc, spread[0], which, t)
	VPERMB_Z(sc, spread[1], which, s)
	VPACKSSDW(p[1], p[0], p[0])
	VPACKSSDW(p[3], p[2], p[2])
	if adjust != nil {
		adjust(p[2])
	}
	VPMADDWD(t, p[0], p[0])
	VPDPWSSD(s, p[2], p[0])
	return p[0]
}

// q2kQuad leaves codes where they lie: planes 0 to 2 come times 1, 4 and 16, plane 3 is moved to plane 2's place, and the
// scales make all of them times 16.
func q2kQuad(k *quad) quadBody {
	m0, m1, m2 := k.constant(k.bytesOf(3)), k.constant(k.bytesOf(12)), k.constant(k.bytesOf(48))
	spread := k.spreads()
	even := bytesMask(false)
	zero := k.clean(ZMM())
	nib := k.keep(0, k.bytesOf(15))
	up := k.keep(1, words("q2k_up", 32, func(i int) int { return []int{4, 2, 0, 0}[i%4] }))
	var act [4]reg.VecVirtual
	var sc reg.VecVirtual
	return quadBody{
		shift: 4,
		prepare: func() {
			h, hi, ms, t, u := k.rowLanes(0), ZMM(), ZMM(), ZMM(), ZMM()
			sc = ZMM()
			VPANDD(nib, h, sc)
			VPSLLVW(up, sc, sc)
			VPSRLW(Imm(4), h, h)
			VPANDD(nib, h, h)
			VPUNPCKLBW(zero, h, ms)
			VPUNPCKHBW(zero, h, hi)
			VBROADCASTI32X4(k.s.at(0, 0), t)
			VBROADCASTI32X4(k.s.at(0, 16), u)
			VPMADDWD(t, ms, ms)
			VPDPWSSD(u, hi, ms)
			VMOVDQA64(ms, k.slot(quadMins+64*k.i))
			x := XMM()
			VMOVD(k.w.at(0, 80), x)
			for i := 1; i < 4; i++ {
				VPINSRD(Imm(uint64(i)), k.w.at(i, 80), x, x)
			}
			VMOVDQU32(x, k.slot(quadHalf+16*k.i))
			act = k.planeActs()
		},
		mins: true,
		scales: func() (d, dmin reg.VecVirtual) {
			t := ZMM()
			d, dmin = ZMM(), ZMM()
			VMOVDQU64(words("halves_sorted", 32, func(i int) int { return 2*(i%16) + i/16 }), t)
			VPERMW(k.slot(quadHalf), t, t)
			VCVTPH2PS(t.AsY(), d)
			VEXTRACTI64X4(Imm(1), t, t.AsY())
			VCVTPH2PS(t.AsY(), dmin)
			return d, dmin
		},
		row: func(r int) reg.VecVirtual {
			q := ZMM()
			VMOVDQU64(k.w.at(r, 16), q)
			var p [4]reg.VecVirtual
			for c, m := range []reg.VecVirtual{m0, m1, m2, m2} {
				x := ZMM()
				if c == 3 {
					VPSRLW(Imm(2), q, q)
				}
				VPANDD(m, q, x)
				p[c] = move(zero)
				VPDPBUSD(act[c], x, p[c])
			}
			return scaled(p, sc, spread[r], even, nil)
		},
	}
}

// groupOf is the run of 16 weights that lane lane of plane c holds.
func groupOf(lane, c int) byte { return byte(lane/2*8 + 2*c + lane%2) }

// q3kQuad gives planes 0 and 2 their third bits in one vector, plane 2's code times 16, and planes 1 and 3 in another.
// Sums start four times the activations below zero, so that 16 times a sum of four fits 16 bits.
func q3kQuad(k *quad) quadBody {
	var third [2]reg.VecVirtual
	for i := range third {
		masks := func(h int) uint64 {
			var m [8]byte
			m[2], m[6] = 1<<(4*h+i), 1<<(4*h+i+2)
			return bitMatrix(m)
		}
		third[i] = k.constant(halfMatrix("q3k_third_"+string(rune('0'+i)), masks(0), masks(1)))
	}
	codes := k.constant(k.bytesOf(0x33))
	low, high := k.constant(k.bytesOf(7)), k.constant(k.bytesOf(0x70))
	plus := [2]reg.VecVirtual{k.constant(k.bytesOf(4)), k.constant(k.bytesOf(64))}
	zero := k.clean(ZMM())
	var spread [2]reg.VecVirtual
	for i := range spread {
		spread[i] = k.constant(fill("q3k_scales_"+string(rune('0'+i)), 64, func(at int) byte {
			if at%2 == 0 {
				return 0x80
			}
			return groupOf(at/16, 2*i+at%16/8)
		}))
	}
	var act, start [4]reg.VecVirtual
	return quadBody{
		shift: 8,
		prepare: func() {
			sc := k.rowLanes(94)
			VMOVDQA64(sc, k.slot(quadMins+64*k.i)) // with d in the last words
			hi, c := ZMM(), ZMM()
			VPSHUFD(Imm(0xee), sc, hi)
			VPSHUFB(k.table16("q3k_low", []byte{2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9}), sc, sc)
			VMOVDQU64(fill("q3k_low_bits", 64, func(i int) byte { return byte(8*(i%8) + i%16/8*4) }), c)
			VPMULTISHIFTQB(sc, c, sc)
			c = ZMM()
			VMOVDQU64(fill("q3k_high_bits", 64, func(i int) byte { g := i % 16; return byte(16+8*(g%4)+2*(g/4)-4) & 63 }), c)
			VPMULTISHIFTQB(hi, c, hi)
			VPANDD(k.bytesOf(0x30), hi, hi)
			VPTERNLOGD(Imm(0xec), k.bytesOf(0x0f), hi, sc) // sc&15 | hi
			VPSUBB(k.bytesOf(32), sc, sc)
			VMOVDQA64(sc, k.slot(quadKept))
			act = k.planeActs()
			for i := range start {
				t := move(zero)
				VPDPBUSD(act[i], plus[i/2], t)
				start[i] = ZMM()
				VPSUBD(t, zero, start[i])
			}
		},
		scales: func() (d, dmin reg.VecVirtual) {
			d = ZMM()
			var t [2]reg.VecVirtual
			for i := range t {
				t[i] = ZMM()
				VMOVDQU64(words("last_of_lanes", 32, func(i int) int { return 8*(i%4) + 7 + i/4%2*32 }), t[i])
				x := ZMM()
				VMOVDQA64(k.slot(quadMins+128*i), x)
				VPERMI2W(k.slot(quadMins+128*i+64), x, t[i])
			}
			VINSERTI32X4(Imm(1), t[1].AsX(), t[0].AsY(), t[0].AsY())
			VCVTPH2PS(t[0].AsY(), d)
			return d, nil
		},
		row: func(r int) reg.VecVirtual {
			q, mask := ZMM(), ZMM()
			VMOVDQU64(k.w.at(r, 32), q)
			VBROADCASTI64X4(k.w.at(r, 0), mask)
			var p [4]reg.VecVirtual
			for i := range 2 {
				x, y := ZMM(), ZMM()
				VGF2P8AFFINEQB(Imm(0), third[i], mask, x)
				if i == 1 {
					VPSRLW(Imm(2), q, q)
				}
				VPTERNLOGD(Imm(0xf8), codes, q, x) // x | q&codes
				VPANDD(high, x, y)
				VPANDD(low, x, x)
				p[i], p[i+2] = move(start[i]), move(start[i+2])
				VPDPBUSD(act[i], x, p[i])
				VPDPBUSD(act[i+2], y, p[i+2])
			}
			s, t := ZMM(), ZMM()
			VBROADCASTI32X4(k.slot(quadKept+16*r), s)
			VPSHUFB(spread[0], s, t)
			VPSHUFB(spread[1], s, s)
			VPACKSSDW(p[1], p[0], p[0])
			VPACKSSDW(p[3], p[2], p[2])
			VPSRAW(Imm(4), p[2], p[2])
			VPMADDWD(t, p[0], p[0])
			VPDPWSSD(s, p[2], p[0])
			return p[0]
		},
	}
}
