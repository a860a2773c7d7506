package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Types whose blocks hold more than one run of 32: NVFP4 and Q2_0 two, Q1_0 four.

var smallTypes = []runType{
	{name: "nvfp4", size: 4 * 36, wide: nvfp4Wide, narrow: nvfp4Narrow},
	{name: "q20", size: 4 * 18, offset: 1, narrow: q20Narrow}, // 512 bits: pairTypes
	{name: "q10", size: 2 * 18, offset: 1, wide: q10Wide, narrow: q10Narrow},
}

// q20Pair splits the activations of four blocks into planes: plane c holds every fourth one from c on, a block a lane, so
// that it meets the 2-bit codes as they lie.
func q20Pair(k *runs) pairBody {
	from := func(at int) byte {
		if at < 64 {
			return byte(at)
		}
		return byte(64 + at - 8)
	}
	pick := k.constant(fill("codes_q20", 64, func(i int) byte { return from(18*(i/16) + 2 + i%16) }))
	heads := k.constant(words("heads_q20", 32, func(i int) int { return 9*(i%8/2) + i%16/8*32 })) // all lie in the first 64 bytes
	natural := k.constant(dwords("pairs_in_turn", 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15))
	var plane [4]reg.VecVirtual
	for c := range plane {
		m := bitField(2*c, 2, 0)
		plane[c] = k.constant(qwords("plane_"+string(rune('0'+c)), m, m, m, m, m, m, m, m))
	}
	return pairBody{
		prepare: func() {
			order := ZMM()
			k.mov(fill("planes_q20", 64, func(i int) byte { return byte(4*(i%16) + i/16) }), order)
			var z [4]reg.VecVirtual
			for b := range z {
				z[b] = ZMM()
				VPERMB(Mem{Base: k.q, Disp: 64 * b}, order, z[b])
			}
			// Lane c of z[b] becomes lane b of act[c].
			var t [4]reg.VecVirtual
			for i := range t {
				t[i] = ZMM()
			}
			VSHUFI32X4(Imm(0x44), z[1], z[0], t[0])
			VSHUFI32X4(Imm(0xee), z[1], z[0], t[1])
			VSHUFI32X4(Imm(0x44), z[3], z[2], t[2])
			VSHUFI32X4(Imm(0xee), z[3], z[2], t[3])
			for c := range 4 {
				k.act[c] = ZMM()
				VSHUFI32X4(Imm([]uint64{0x88, 0xdd}[c%2]), t[2+c/2], t[c/2], k.act[c])
			}
		},
		pair: func(r int) (isum, d reg.VecVirtual) {
			var first, p [2]reg.VecVirtual
			for i := range first {
				first[i] = ZMM()
				raw := move(pick)
				VMOVDQU64(k.w.at(r+i, 0), first[i])
				VPERMI2B(k.w.at(r+i, 8), first[i], raw)
				p[i] = k.clean(ZMM())
				for c := range plane {
					x := ZMM()
					VGF2P8AFFINEQB(Imm(0), plane[c], raw, x)
					VPDPBUSD(k.act[c], x, p[i])
				}
			}
			h, odd := move(heads), ZMM()
			VPERMI2W(first[1], first[0], h)
			d, isum = ZMM(), ZMM()
			VCVTPH2PS(h.AsY(), d)
			VSHUFPS(Imm(0x88), p[1], p[0], isum)
			VSHUFPS(Imm(0xdd), p[1], p[0], odd)
			VPADDD(odd, isum, isum)
			VPERMD(isum, natural, isum)
			return isum, d
		},
	}
}

func q20Narrow(k *runs) runBody {
	ones := dwords("word_ones", repeat(8, 0x00010001)...)
	return runBody{
		prepare: func() {
			for i := range 2 {
				var y, t [4]reg.VecVirtual
				for j := range y {
					y[j], t[j] = YMM(), YMM()
					VBROADCASTI128(Mem{Base: k.q, Disp: 128*i + 16*j}, y[j])
					VINSERTI128(Imm(1), Mem{Base: k.q, Disp: 128*i + 64 + 16*j}, y[j], y[j])
					VPSHUFB(fill("every_fourth", 32, func(i int) byte { return byte(4*(i%4) + i%16/4) }), y[j], y[j])
				}
				VPUNPCKLDQ(y[1], y[0], t[0])
				VPUNPCKHDQ(y[1], y[0], t[1])
				VPUNPCKLDQ(y[3], y[2], t[2])
				VPUNPCKHDQ(y[3], y[2], t[3])
				for c := range 4 {
					if c%2 == 0 {
						VPUNPCKLQDQ(t[2+c/2], t[c/2], y[c])
					} else {
						VPUNPCKHQDQ(t[2+c/2], t[c/2], y[c])
					}
					VMOVDQU(y[c], k.stack.Offset(128*i+32*c))
				}
			}
		},
		row: func(r int) [2]runResult {
			var p [2]reg.VecVirtual
			for i := range p {
				raw := YMM()
				VBROADCASTI128(k.w.at(r, 36*i+2), raw)
				VINSERTI128(Imm(1), k.w.at(r, 36*i+20), raw, raw)
				for c := range 4 {
					x := YMM()
					VPSRLW(Imm(uint64(2*c)), raw, x)
					VPAND(k.bytesOf(3), x, x)
					VPMADDUBSW(k.stack.Offset(128*i+32*c), x, x)
					if c == 0 {
						p[i] = x
					} else {
						VPADDW(x, p[i], p[i])
					}
				}
				VPMADDWD(ones, p[i], p[i])
			}
			res := runResult{isum: YMM(), d: YMM()}
			VPHADDD(p[1], p[0], p[0])
			VPERMQ(Imm(0xd8), p[0], res.isum)
			k.correct(res.isum)
			x := k.clean(XMM())
			for b := range 4 {
				VPINSRW(Imm(uint64(b)), k.w.at(r, 18*b), x, x)
			}
			VPUNPCKLWD(x, x, x)
			VCVTPH2PS(x, res.d)
			return [2]runResult{res}
		},
	}
}

// q10Wide adds up the activations whose bit is set; twice that less all of them is the sum.
func q10Wide(k *runs) runBody {
	ones, order := k.constant(k.bytesOf(1)), k.constant(dwords("halves_in_turn", 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15))
	return runBody{
		prepare: func() {},
		row: func(r int) [2]runResult {
			var p [4]reg.VecVirtual
			for j := range p {
				mask, a := K(), k.clean(ZMM())
				KMOVQ(k.w.at(r, 18*(j/2)+2+8*(j%2)), mask)
				VMOVDQU8_Z(Mem{Base: k.q, Disp: 64 * j}, mask, a)
				p[j] = k.clean(ZMM())
				VPDPBUSD(a, ones, p[j])
			}
			k.transpose4(p)
			res := runResult{isum: YMM(), d: YMM()}
			VPERMD(p[0], order, p[0])
			VEXTRACTI64X4(Imm(1), p[0], res.isum)
			VPADDD(p[0].AsY(), res.isum, res.isum)
			VPADDD(res.isum, res.isum, res.isum)
			k.correct(res.isum)
			res.d = k.twoHalves(r)
			return [2]runResult{res}
		},
	}
}

// twoHalves widens the scales of two blocks of four runs.
func (k *runs) twoHalves(r int) reg.VecVirtual {
	d, x := YMM(), XMM()
	VPBROADCASTW(k.w.at(r, 0), d.AsX())
	VPBROADCASTW(k.w.at(r, 18), x)
	VPUNPCKLQDQ(x, d.AsX(), x)
	VCVTPH2PS(x, d)
	return d
}

func q10Narrow(k *runs) runBody {
	ones := dwords("word_ones", repeat(8, 0x00010001)...)
	return runBody{
		prepare: func() {},
		row: func(r int) [2]runResult {
			var p [8]reg.VecVirtual
			for b := range p {
				s, one, a := YMM(), YMM(), YMM()
				VPBROADCASTD(k.w.at(r, 18*(b/4)+2+4*(b%4)), s)
				VPSHUFB(fill("four_bytes", 32, func(i int) byte { return byte(i / 8) }), s, s)
				VMOVDQU(fill("bit_of_byte", 32, func(i int) byte { return 1 << (i % 8) }), one)
				VPAND(one, s, s)
				VPCMPEQB(one, s, s) // -1 where the bit is set
				VMOVDQU(Mem{Base: k.q, Disp: 32 * b}, a)
				VPAND(s, a, a)
				VMOVDQU(k.bytesOf(1), one)
				VPMADDUBSW(a, one, a)
				VPMADDWD(ones, a, a)
				p[b] = a
				for h := 1; h < 4 && b&h == h; h = 2*h + 1 {
					o := b &^ h
					VPHADDD(p[o+(h+1)/2], p[o], p[o])
				}
			}
			res := runResult{isum: YMM()}
			t := YMM()
			VPERM2I128(Imm(0x31), p[4], p[0], t)
			VPERM2I128(Imm(0x20), p[4], p[0], p[0])
			VPADDD(t, p[0], res.isum)
			VPADDD(res.isum, res.isum, res.isum)
			k.correct(res.isum)
			res.d = k.twoHalves(r)
			return [2]runResult{res}
		},
	}
}

// scalesNVFP4 widens the scales of four blocks, those of the first and those of the second halves of runs: seven bits
// moved into a half are the scale divided by 128, and 127 stands for zero.
func (k *runs) scalesNVFP4(r int) (d [2]reg.VecVirtual) {
	x := XMM()
	VMOVD(k.w.at(r, 0), x)
	for b := 1; b < 4; b++ {
		VPINSRD(Imm(uint64(b)), k.w.at(r, 36*b), x, x)
	}
	// The byte 255 is no zero, though its seven bits are the same.
	byteMask, seven := words("word_ff", 8, func(int) int { return 0xff }), words("word_7f", 8, func(int) int { return 0x7f })
	for i := range d {
		e := XMM()
		if i == 0 {
			k.isa.and(byteMask, x, e)
		} else {
			VPSRLW(Imm(8), x, e)
		}
		if k.wide {
			m := K()
			VPCMPW(Imm(4), seven, e, m)
			VPANDD(seven, e, e)
			VPSLLW_Z(Imm(7), e, m, e)
		} else {
			none := XMM()
			VPCMPEQW(seven, e, none)
			VPAND(seven, e, e)
			VPANDN(e, none, e)
			VPSLLW(Imm(7), e, e)
		}
		d[i] = YMM()
		VCVTPH2PS(e, d[i])
		VMULPS(floatConst("float_128", 128), d[i], d[i])
	}
	return d
}

// nvfp4Wide has a run's half in each pair of int32: its first eight weights are low nibbles, the others high ones.
func nvfp4Wide(k *runs) runBody {
	nib, book := k.constant(k.bytesOf(15)), k.constant(k.book("fp4", 12))
	return runBody{
		prepare: func() {
			twelve, zero := ZMM(), k.clean(ZMM())
			k.mov(k.bytesOf(12), twelve)
			for i := range 2 {
				a := ZMM()
				VMOVDQU64(Mem{Base: k.q, Disp: 128 * i}, a)
				neg := k.clean(ZMM())
				for j := range 2 {
					o := ZMM()
					k.mov(qwords([]string{"even_qwords", "odd_qwords"}[j], uint64(j), uint64(j+2), uint64(j+4), uint64(j+6), uint64(j+8), uint64(j+10), uint64(j+12), uint64(j+14)), o)
					VPERMI2Q(Mem{Base: k.q, Disp: 128*i + 64}, a, o)
					k.act[2*i+j] = o
					VPDPBUSD(o, twelve, neg)
				}
				k.act[4+i] = ZMM()
				VPSUBD(neg, zero, k.act[4+i])
			}
		},
		row: func(r int) [2]runResult {
			var p [2]reg.VecVirtual
			for i := range p {
				lo, hi, t := ZMM(), ZMM(), ZMM()
				VBROADCASTI64X4(k.w.at(r, 72*i+4), lo)
				VINSERTI64X4(Imm(1), k.w.at(r, 72*i+40), lo, lo)
				VPSRLW(Imm(4), lo, hi)
				VPANDD(nib, lo, lo)
				VPANDD(nib, hi, hi)
				VPSHUFB(lo, book, lo)
				VPSHUFB(hi, book, hi)
				p[i] = move(k.act[4+i])
				VPDPBUSD(k.act[2*i], lo, p[i])
				VPDPBUSD(k.act[2*i+1], hi, p[i])
				VPSHUFD(Imm(0xb1), p[i], t)
				VPADDD(t, p[i], p[i])
			}
			d := k.scalesNVFP4(r)
			var res [2]runResult
			for i := range res {
				o := ZMM()
				k.mov(dwords([]string{"half_runs_0", "half_runs_1"}[i], repeatAt(2*i, 4, 8)...), o)
				VPERMI2D(p[1], p[0], o)
				res[i] = runResult{isum: o, d: d[i]}
			}
			return res
		},
	}
}

// repeatAt is n words from first on by step, twice.
func repeatAt(first, step, n int) (out []uint32) {
	for i := range 2 * n {
		out = append(out, uint32(first+step*(i%n)))
	}
	return out
}

func nvfp4Narrow(k *runs) runBody {
	ones := dwords("word_ones", repeat(8, 0x00010001)...)
	return runBody{
		prepare: func() {},
		row: func(r int) [2]runResult {
			var p [8]reg.VecVirtual
			for b := range p {
				c, t, a := YMM(), YMM(), YMM()
				VBROADCASTI128(k.w.at(r, 36*(b/2)+4+16*(b%2)), c)
				VPERMQ(Imm(0x50), c, c)
				VPSRLVQ(qwords("shift_odd_qwords", 0, 4, 0, 4), c, c)
				VPAND(k.bytesOf(15), c, c)
				VMOVDQU(k.book("fp4", 0), t)
				VPSHUFB(c, t, c)
				VMOVDQU(Mem{Base: k.q, Disp: 32 * b}, a)
				VPSIGNB(c, a, a)
				VPABSB(c, c)
				VPMADDUBSW(a, c, c)
				VPMADDWD(ones, c, c)
				p[b] = c
				for h := 1; h < 4 && b&h == h; h = 2*h + 1 {
					o := b &^ h
					VPHADDD(p[o+(h+1)/2], p[o], p[o])
				}
			}
			d := k.scalesNVFP4(r)
			var res [2]runResult
			for i := range res {
				res[i] = runResult{isum: YMM(), d: d[i]}
				VPERM2I128(Imm(uint64([]int{0x20, 0x31}[i])), p[4], p[0], res[i].isum)
			}
			return res
		},
	}
}
