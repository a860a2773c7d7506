package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// runType is a type with a float scale every 16 or 32 weights. Eight runs of 32 go by at a time.
type runType struct {
	name   string
	size   int // bytes of eight runs
	offset int // what unsigned codes are too large by
	mins   bool
	wide   func(k *runs) runBody
	narrow func(k *runs) runBody
}

// runBody makes the parts of a step of eight runs.
type runBody struct {
	prepare func()                       // what the four rows share
	row     func(r int) (p [2]runResult) // one row; the second result for NVFP4 only
}

// runResult is eight int32 sums and eight float scales; min is eight float minimums for types that have them.
type runResult struct{ isum, d, m reg.VecVirtual }

// runs is the state of a kernel of such a type.
type runs struct {
	isa
	t        runType
	w, ahead lanes
	q, d, s  reg.GPVirtual
	act      [8]reg.VecVirtual // what prepare keeps
	stack    Mem
	asums    Mem // sums of activations: times the offset, or floats for types with minimums
}

var runTypes = []runType{
	{name: "q40", size: 8 * 18, offset: 8, narrow: nibblesNarrow(18, 2, "", false)},
	{name: "q41", size: 8 * 20, mins: true, wide: nibblesWide(20, 4, false), narrow: nibblesNarrow(20, 4, "", false)},
	{name: "q50", size: 8 * 22, offset: 16, wide: nibblesWide(22, 6, true), narrow: nibblesNarrow(22, 6, "", true)},
	{name: "q51", size: 8 * 24, mins: true, wide: nibblesWide(24, 8, true), narrow: nibblesNarrow(24, 8, "", true)},
	{name: "iq4nl", size: 8 * 18, offset: 128, narrow: nibblesNarrow(18, 2, "kv4", false)},
	{name: "mxfp4", size: 8 * 17, offset: 12, narrow: nibblesNarrow(17, 1, "fp4", false)},
}

// fp4 is the code book of the FP4 types, as signed bytes; kv4, IQ4_NL's, stands in gemm_runs.go.
var (
	fp4 = []int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// book is a code book, raised by offset.
func (v isa) book(name string, offset int) Mem {
	t := map[string][]int8{"kv4": kv4[:], "fp4": fp4}[name]
	b := make([]byte, 16)
	for i, x := range t {
		b[i] = byte(int(x) + offset)
	}
	return v.table16(fmt.Sprintf("%s_%d", name, offset), b)
}

// runRows writes the product of 4 rows with one column of Act32. nb counts runs and is at least 8. Lane i of an
// accumulator holds the runs whose index is i modulo 8. What is left after the last eight runs goes as the row's last
// eight: the lanes turn to their places, and those that were there before are blanked.
func (v isa) runRows(t runType) {
	TEXT(t.name+"Rows"+v.suffix(), 0, signature)
	Pragma("noescape")
	Doc(t.name + "Rows" + v.suffix() + " multiplies " + t.name + " weights, 8 runs of 32 a row or more; see matrixKernel.")
	stride := Load(Param("stride"), GP64()).(reg.GPVirtual)
	wrow := Load(Param("w"), GP64()).(reg.GPVirtual)
	dst := Load(Param("dst"), GP64()).(reg.GPVirtual)
	k := &runs{isa: v, t: t, q: GP64(), d: GP64(), s: GP64(), stack: AllocLocal(360)}
	dist := k.stack.Offset(352)
	k.asums = k.stack.Offset(256)
	turned, blank := k.stack.Offset(288), k.stack.Offset(320)
	k.w = newLanes(stride)
	k.ahead = lanes{base: GP64(), s1: k.w.s1, s3: k.w.s3, mul: 1}
	body := t.narrow(k)
	if v.wide {
		body = t.wide(k)
	}
	acc := [4]reg.VecVirtual{YMM(), YMM(), YMM(), YMM()}
	step := func(tail func(t reg.VecVirtual)) {
		fetch(k.ahead, t.size)
		k.sums()
		body.prepare()
		for r, a := range acc {
			add := func(x, d Op) {
				p := YMM()
				VMULPS(Mem{Base: k.d}, d, p)
				VMULPS(x, p, p)
				if tail != nil {
					tail(p)
				}
				VADDPS(p, a, a)
			}
			for _, res := range body.row(r) {
				if res.isum == nil {
					continue
				}
				VCVTDQ2PS(res.isum.AsY(), res.isum.AsY())
				add(res.isum.AsY(), res.d.AsY())
				if t.mins {
					add(k.asums, res.m.AsY())
				}
			}
		}
	}
	aheadOf(stride, dist)
	Label("next")
	MOVQ(wrow, k.w.base)
	MOVQ(wrow, k.ahead.base)
	ADDQ(dist, k.ahead.base)
	Load(Param("q"), k.q)
	Load(Param("d"), k.d)
	Load(Param("sums"), k.s)
	for _, a := range acc {
		v.clean(a)
	}
	n := Load(Param("nb"), GP64()).(reg.GPVirtual)
	SHRQ(Imm(3), n)
	loop("eight", n, func() {
		step(nil)
		ADDQ(U32(t.size), k.w.base)
		ADDQ(U32(t.size), k.ahead.base)
		ADDQ(U32(256), k.q)
		ADDQ(Imm(32), k.d)
		ADDQ(Imm(16), k.s)
	})
	Load(Param("nb"), n)
	ANDQ(Imm(7), n)
	JZ(LabelRef("join"))
	{
		turn, lane := YMM(), YMM()
		VMOVD(n.As32(), lane.AsX())
		VPBROADCASTD(lane.AsX(), turn)
		k.mov(dwords("iota8", 0, 1, 2, 3, 4, 5, 6, 7), lane)
		VPSUBD(turn, lane, turn)
		k.mov(turn, turned)
		VPSRAD(Imm(31), turn, turn)
		k.mov(turn, blank)
		// Back by 8-n runs.
		SUBQ(Imm(8), n)
		x := GP64()
		IMUL3Q(U32(t.size), n, x)
		SARQ(Imm(3), x) // nb is a number of whole blocks
		ADDQ(x, k.w.base)
		ADDQ(x, k.ahead.base)
		MOVQ(n, x)
		SHLQ(Imm(5), x)
		ADDQ(x, k.q)
		LEAQ(Mem{Base: k.d, Index: n, Scale: 4}, k.d)
		LEAQ(Mem{Base: k.s, Index: n, Scale: 2}, k.s)
		step(func(p reg.VecVirtual) {
			turn := YMM()
			k.mov(turned, turn)
			VPERMPS(p, turn, p)
			VANDPS(blank, p, p)
		})
	}
	Label("join")
	for r, a := range acc {
		x := v.upper(a)
		VADDPS(x, a.AsX(), a.AsX())
		VSHUFPS(Imm(0xee), a.AsX(), a.AsX(), x)
		VADDPS(x, a.AsX(), a.AsX())
		VSHUFPS(Imm(0x55), a.AsX(), a.AsX(), x)
		VADDSS(x, a.AsX(), a.AsX())
		VMOVSS(a.AsX(), Mem{Base: dst, Disp: 4 * r})
	}
	ADDQ(Imm(16), dst)
	LEAQ(Mem{Base: wrow, Index: stride, Scale: 4}, wrow)
	DECQ(count())
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// corrects says whether codes are too large by the offset. IQ4_NL in 256 bits keeps them signed.
func (k *runs) corrects() bool { return k.t.offset != 0 && k.t.name != "iq4nl" }

// sums keeps the sums of eight runs in asums.
func (k *runs) sums() {
	if !k.corrects() && !k.t.mins {
		return
	}
	x := YMM()
	VPMOVSXWD(Mem{Base: k.s}, x)
	if k.t.mins {
		VCVTDQ2PS(x, x)
	} else {
		o := uint32(k.t.offset)
		VPMULLD(dwords(fmt.Sprintf("offset_%d", o), o, o, o, o, o, o, o, o), x, x)
	}
	k.mov(x, k.asums)
}

// correct takes the offset off.
func (k *runs) correct(isum reg.VecVirtual) {
	if k.corrects() {
		VPSUBD(k.asums, isum.AsY(), isum.AsY())
	}
}

// splitAct loads eight runs of activations as lower and upper halves of four runs each: act[2h] and act[2h+1].
func (k *runs) splitAct() {
	for h := range 2 {
		a, b := ZMM(), Mem{Base: k.q, Disp: 128*h + 64}
		VMOVDQU64(Mem{Base: k.q, Disp: 128 * h}, a)
		k.act[2*h], k.act[2*h+1] = ZMM(), ZMM()
		VSHUFI32X4(Imm(0x88), b, a, k.act[2*h])
		VSHUFI32X4(Imm(0xdd), b, a, k.act[2*h+1])
	}
}

// lanePairs adds up the 128-bit lanes of two vectors of int32: lane i of a to element i, of b to element 4+i.
func lanePairs(a, b reg.VecVirtual) reg.VecVirtual {
	t := ZMM()
	VPUNPCKHDQ(b, a, t)
	VPUNPCKLDQ(b, a, a)
	VPADDD(t, a, a)
	VPSHUFD(Imm(0x4e), a, t)
	VPADDD(t, a, a)
	z := ZMM()
	VMOVDQU32(dwords("lane_pairs", 0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), z)
	VPERMD(a, z, a)
	return a
}

// nibblesWide is the body of types whose block of size bytes has its scale first and 16 bytes of nibbles at byte qs.
// Four blocks fill a vector: lane i is block i, its low nibbles the first 16 elements.
func nibblesWide(size, qs int, fifth bool) func(k *runs) runBody {
	return func(k *runs) runBody {
		second := 4*size - 64 // where the second load of four blocks starts
		from := func(at int) byte {
			if at < 64 {
				return byte(at)
			}
			return byte(64 + at - second)
		}
		pick := k.constant(fill(fmt.Sprintf("nibbles_%d_%d", size, qs), 64, func(i int) byte { return from(size*(i/16) + qs + i%16) }))
		// Headers: words of scales, then of minimums, and at 16 the fifth bits: low halves, high halves.
		head := fill(fmt.Sprintf("heads_%d", size), 64, func(i int) byte {
			field, block, b := i/8, i/2%4, i%2
			bits := qs - 4
			switch {
			case field == 2 && fifth:
				return from(size*block + bits + b)
			case field == 3 && fifth:
				return from(size*block + bits + 2 + b)
			case field == 1:
				return from(size*block + 2 + b)
			}
			return from(size*block + b)
		})
		heads := k.constant(head)
		nib := k.constant(k.bytesOf(15))
		var sixteen reg.VecVirtual
		if fifth {
			sixteen = k.constant(k.bytesOf(16))
		}
		return runBody{
			prepare: k.splitAct,
			row: func(r int) [2]runResult {
				var p, h [2]reg.VecVirtual
				for i := range 2 {
					first := ZMM()
					VMOVDQU64(k.w.at(r, 4*size*i), first)
					over := k.w.at(r, 4*size*i+second)
					lo, hi := move(pick), ZMM()
					h[i] = move(heads)
					VPERMI2B(over, first, lo)
					VPERMI2B(over, first, h[i])
					VPSRLW(Imm(4), lo, hi)
					VPANDD(nib, lo, lo)
					VPANDD(nib, hi, hi)
					if fifth {
						m := k.stack.Offset(32 * i)
						k.mov(h[i].AsY(), m)
						for j, c := range []reg.VecVirtual{lo, hi} {
							mask := K()
							KMOVQ(m.Offset(16+8*j), mask)
							VPADDB(sixteen, c, mask, c)
						}
					}
					p[i] = k.clean(ZMM())
					VPDPBUSD(k.act[2*i], lo, p[i])
					VPDPBUSD(k.act[2*i+1], hi, p[i])
				}
				res := runResult{isum: lanePairs(p[0], p[1])}
				k.correct(res.isum)
				res.d = YMM()
				if k.t.mins {
					res.m = YMM()
					VPUNPCKHQDQ(h[1].AsX(), h[0].AsX(), res.m.AsX())
					VCVTPH2PS(res.m.AsX(), res.m)
				}
				VPUNPCKLQDQ(h[1].AsX(), h[0].AsX(), h[0].AsX())
				VCVTPH2PS(h[0].AsX(), res.d)
				return [2]runResult{res}
			},
		}
	}
}

// e8m0 turns exponent bytes in int32 lanes into half their power of two: e-1 is the exponent field, and below 2 the value
// is subnormal.
func (k *runs) e8m0(e reg.VecVirtual) {
	one := dwords("dword_1", 1, 1, 1, 1, 1, 1, 1, 1)
	two := dwords("dword_2", 2, 2, 2, 2, 2, 2, 2, 2)
	sub, t := YMM(), YMM()
	k.mov(dwords("e8m0_sub", repeat(8, 0x00200000)...), sub)
	VPSUBD(one, e, t)
	VPSLLD(Imm(23), t, t)
	low := YMM()
	VPSLLVD(e, sub, sub)
	k.mov(two, low)
	VPCMPGTD(e, low, low)
	VPBLENDVB(low, sub, t, e)
}

// nibblesNarrow is nibblesWide in 256 bits: a vector is two blocks, its lanes their first or last 16 elements.
func nibblesNarrow(size, qs int, book string, fifth bool) func(k *runs) runBody {
	return func(k *runs) runBody {
		nib := k.constant(k.bytesOf(15))
		ones := dwords("word_ones", repeat(8, 0x00010001)...)
		signed := book == "kv4"
		return runBody{
			prepare: func() {
				for i := range 4 {
					for j := range 2 {
						t := YMM()
						VBROADCASTI128(Mem{Base: k.q, Disp: 64*i + 16*j}, t)
						VINSERTI128(Imm(1), Mem{Base: k.q, Disp: 64*i + 32 + 16*j}, t, t)
						k.mov(t, k.stack.Offset(64*i+32*j))
					}
				}
			},
			row: func(r int) [2]runResult {
				var p [4]reg.VecVirtual
				for i := range p {
					lo, hi := YMM(), YMM()
					VBROADCASTI128(k.w.at(r, 2*size*i+qs), lo)
					VINSERTI128(Imm(1), k.w.at(r, 2*size*i+size+qs), lo, lo)
					VPSRLW(Imm(4), lo, hi)
					VPAND(nib, lo, lo)
					VPAND(nib, hi, hi)
					if fifth {
						bits, t := YMM(), YMM()
						VPBROADCASTD(k.w.at(r, 2*size*i+qs-4), bits)
						VPBROADCASTD(k.w.at(r, 2*size*i+size+qs-4), t)
						VPBLENDD(Imm(0xf0), t, bits, bits)
						for j, c := range []reg.VecVirtual{lo, hi} {
							b := YMM()
							VPSHUFB(fill([]string{"fifth_low", "fifth_high"}[j], 32, func(i int) byte { return byte(2*j + i%16/8) }), bits, b)
							one := YMM()
							k.mov(fill("bit_of_byte", 32, func(i int) byte { return 1 << (i % 8) }), one)
							VPAND(one, b, b)
							VPCMPEQB(one, b, b)
							VPAND(k.bytesOf(16), b, b)
							VPOR(b, c, c)
						}
					}
					for j, c := range []reg.VecVirtual{lo, hi} {
						act := k.stack.Offset(64*i + 32*j)
						if book != "" {
							off := k.t.offset
							if signed {
								off = 0
							}
							b := YMM()
							k.mov(k.book(book, off), b)
							VPSHUFB(c, b, c)
						}
						if signed {
							a := YMM()
							k.mov(act, a)
							VPSIGNB(c, a, a)
							VPABSB(c, c)
							VPMADDUBSW(a, c, c)
							VPMADDWD(ones, c, c)
						} else {
							VPMADDUBSW(act, c, c)
						}
					}
					p[i] = lo
					if signed {
						VPADDD(hi, lo, lo)
					} else {
						VPADDW(hi, lo, lo) // four products of at most 31*127
						VPMADDWD(ones, lo, lo)
					}
					if i%2 == 1 {
						VPHADDD(p[i], p[i-1], p[i-1])
					}
				}
				res := runResult{isum: YMM(), d: YMM()}
				VPHADDD(p[2], p[0], p[0])
				t := YMM()
				k.mov(dwords("lanes_in_turn", 0, 4, 1, 5, 2, 6, 3, 7), t)
				VPERMD(p[0], t, res.isum)
				if !signed {
					k.correct(res.isum)
				}
				if size == 17 {
					x := XMM()
					VPXOR(x, x, x)
					for i := range 8 {
						VPINSRB(Imm(uint64(i)), k.w.at(r, size*i), x, x)
					}
					VPMOVZXBD(x, res.d)
					k.e8m0(res.d)
					return [2]runResult{res}
				}
				res.d = k.gatherHalves(r, size, 0)
				if k.t.mins {
					res.m = k.gatherHalves(r, size, 2)
				}
				return [2]runResult{res}
			},
		}
	}
}

// gatherHalves widens the half at byte at of each of eight blocks.
func (k *runs) gatherHalves(r, size, at int) reg.VecVirtual {
	d := YMM()
	VPXOR(d.AsX(), d.AsX(), d.AsX())
	for b := range 8 {
		VPINSRW(Imm(uint64(b)), k.w.at(r, b*size+at), d.AsX(), d.AsX())
	}
	VCVTPH2PS(d.AsX(), d)
	return d
}
