package main

// elementwise writes the functions of vectors of float32. Lengths are multiples of 8 (32 for quantisation) and not zero.
func (a *asm) elementwise() {
	a.sumSquares()
	a.scaleMul()
	a.siluMul()
	a.expSub()
	a.scaleMax()
	a.scale()
	a.addScaled()
	a.toHalf()
	a.largest()
	a.quantScales()
	a.quantize()
	a.rope()
	a.readLoop()
}

// stream is a pointer argument and how many bytes it moves on in one turn of a loop.
type stream struct {
	name string
	step int
}

// elemLoop loads the pointers to R0.., and runs body n/per times.
func (a *asm) elemLoop(n string, shift int, s []stream, body func()) {
	const count = R(16)
	for i, p := range s {
		a.arg(p.name, R(i))
	}
	a.arg(n, count)
	if shift > 0 {
		a.op("LSR $%d, R%d, R%d", shift, count, count)
	}
	a.loop("loop", count, func() {
		body()
		for i, p := range s {
			if p.step != 0 {
				a.op("ADD $%d, R%d, R%d", p.step, i, i)
			}
		}
	})
}

func (a *asm) sumSquares() {
	a.begin("sumSquaresNEON", "sumSquaresNEON sets acc[i] to the sum of the squares of the elements with index i modulo 8, in float64.", 0,
		"x *float32", "n int", "acc *float64")
	acc := a.vs(4)
	for _, v := range acc {
		a.zero(v)
	}
	a.elemLoop("n", 3, []stream{{"x", 32}}, func() {
		for i := range 2 {
			x, y := a.v(), a.v()
			a.load("q", x, 0, 16*i)
			a.fcvtl2D(y, x)
			a.fcvtlD(x, x)
			a.fmlaD(acc[2*i], x, x) // a square is exact in float64: fused or not is the same
			a.fmlaD(acc[2*i+1], y, y)
			a.free(x, y)
		}
	})
	a.arg("acc", 1)
	for i, v := range acc {
		a.store("q", v, 1, 16*i)
	}
	a.free(acc...)
	a.end()
}

func (a *asm) scaleMul() {
	a.begin("scaleMulNEON", "scaleMulNEON sets dst to (x*scale)*w.", 0, "dst *float32", "x *float32", "w *float32", "n int", "scale float32")
	s := a.v()
	a.argF("scale", s)
	a.elemLoop("n", 3, []stream{{"dst", 32}, {"x", 32}, {"w", 32}}, func() {
		for i := range 2 {
			x, w := a.v(), a.v()
			a.load("q", x, 1, 16*i)
			a.load("q", w, 2, 16*i)
			a.fmul(x, x, s)
			a.fmul(x, x, w)
			a.store("q", x, 0, 16*i)
			a.free(x, w)
		}
	})
	a.free(s)
	a.end()
}

// expConsts are the registers of exp's constants.
type expConsts struct {
	min, max, log2e, magic, hi, lo, one V
	c                                   []V
}

func (a *asm) expConsts() *expConsts {
	k := &expConsts{min: a.v(), max: a.v(), log2e: a.v(), magic: a.v(), hi: a.v(), lo: a.v(), one: a.v(), c: a.vs(6)}
	a.allF(k.min, -87.33654)
	a.allF(k.max, 88.37626)
	a.allF(k.log2e, 1.44269504)
	a.allF(k.magic, 12582912)
	a.allF(k.hi, 0.693359375)
	a.allF(k.lo, -2.12194440e-4)
	a.allF(k.one, 1)
	for i, f := range []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		a.allF(k.c[i], f)
	}
	return k
}

func (k *expConsts) release(a *asm) {
	a.free(k.min, k.max, k.log2e, k.magic, k.hi, k.lo, k.one)
	a.free(k.c...)
}

// exp replaces x by fmath.Exp of it in four lanes.
func (k *expConsts) exp(a *asm, x V) {
	y, n, t, p := a.v(), a.v(), a.v(), a.v()
	a.fmin(y, x, k.max)
	a.fmul(n, y, k.log2e)
	a.fadd(n, n, k.magic)
	a.fsub(n, n, k.magic)
	a.fmul(t, n, k.hi)
	a.fsub(y, y, t)
	a.fmul(t, n, k.lo)
	a.fsub(y, y, t)
	a.fmul(p, k.c[0], y)
	a.fadd(p, p, k.c[1])
	for _, c := range k.c[2:] {
		a.fmul(p, p, y)
		a.fadd(p, p, c)
	}
	a.fmul(t, y, y)
	a.fmul(p, p, t)
	a.fadd(p, p, y)
	a.fadd(p, p, k.one)
	a.fcvtzs(n, n)
	a.shl("4s", n, n, 23)
	a.add(p, p, n)
	a.fcmgt(t, k.min, x) // below the limit: zero
	a.bic(p, p, t)
	a.fcmeq(t, x, x) // NaN stays
	a.bit(x, p, t)
	a.free(y, n, t, p)
}

// recipConsts are the registers of recip's constants.
type recipConsts struct{ guess, two, one V }

// recip sets r to fmath.Recip of y in four lanes.
func (k *recipConsts) recip(a *asm, r, y V) {
	t := a.v()
	a.sub(r, k.guess, y)
	for range 3 {
		a.fmul(t, y, r)
		a.fsub(t, k.two, t)
		a.fmul(r, r, t)
	}
	a.fmul(t, y, r)
	a.fsub(t, k.one, t)
	a.fmul(t, r, t)
	a.fadd(r, r, t)
	a.free(t)
}

func (a *asm) recipConsts(one V) *recipConsts {
	k := &recipConsts{a.v(), a.v(), one}
	a.all(k.guess, 0x7EF311C3)
	a.allF(k.two, 2)
	return k
}

func (a *asm) siluMul() {
	a.begin("siluMulNEON", "siluMulNEON sets dst to silu(gate)*up.", 0, "dst *float32", "gate *float32", "up *float32", "n int")
	e := a.expConsts()
	r := a.recipConsts(e.one)
	low := a.v()
	a.allF(low, -87)
	a.elemLoop("n", 3, []stream{{"dst", 32}, {"gate", 32}, {"up", 32}}, func() {
		for i := range 2 {
			g, x, u := a.v(), a.v(), a.v()
			a.load("q", g, 1, 16*i)
			a.load("q", u, 2, 16*i)
			a.fmax(x, g, low) // NaN goes through all of this
			a.fneg(x, x)
			e.exp(a, x)
			a.fadd(x, x, e.one)
			s := a.v()
			r.recip(a, s, x)
			a.fmul(s, g, s)
			a.fmul(s, s, u)
			a.store("q", s, 0, 16*i)
			a.free(g, x, u, s)
		}
	})
	e.release(a)
	a.free(r.guess, r.two, low)
	a.end()
}

func (a *asm) expSub() {
	a.begin("expSubNEON", "expSubNEON sets p to exp(p-top).", 0, "p *float32", "n int", "top float32")
	e := a.expConsts()
	top := a.v()
	a.argF("top", top)
	a.elemLoop("n", 3, []stream{{"p", 32}}, func() {
		for i := range 2 {
			x := a.v()
			a.load("q", x, 0, 16*i)
			a.fsub(x, x, top)
			e.exp(a, x)
			a.store("q", x, 0, 16*i)
			a.free(x)
		}
	})
	e.release(a)
	a.free(top)
	a.end()
}

func (a *asm) scaleMax() {
	a.begin("scaleMaxNEON", "scaleMaxNEON multiplies p by scale and returns the largest product, at least -Inf, NaN left out.", 0,
		"p *float32", "n int", "scale float32", "ret float32")
	s, top := a.v(), a.v()
	a.argF("scale", s)
	a.all(top, 0xff800000)
	a.elemLoop("n", 3, []stream{{"p", 32}}, func() {
		for i := range 2 {
			x := a.v()
			a.load("q", x, 0, 16*i)
			a.fmul(x, x, s)
			a.store("q", x, 0, 16*i)
			a.fmaxnm(top, top, x)
			a.free(x)
		}
	})
	a.fmaxnmv(top, top)
	a.op("FMOVS F%d, ret+%d(FP)", top, a.args["ret"].off)
	a.free(s, top)
	a.end()
}

func (a *asm) scale() {
	a.begin("scaleNEON", "scaleNEON multiplies x by f.", 0, "x *float32", "n int", "f float32")
	f := a.v()
	a.argF("f", f)
	a.elemLoop("n", 3, []stream{{"x", 32}}, func() {
		for i := range 2 {
			x := a.v()
			a.load("q", x, 0, 16*i)
			a.fmul(x, x, f)
			a.store("q", x, 0, 16*i)
			a.free(x)
		}
	})
	a.free(f)
	a.end()
}

func (a *asm) addScaled() {
	a.begin("addScaledNEON", "addScaledNEON adds w*x to dst, the product rounded first.", 0, "dst *float32", "x *float32", "n int", "w float32")
	w := a.v()
	a.argF("w", w)
	a.elemLoop("n", 3, []stream{{"dst", 32}, {"x", 32}}, func() {
		for i := range 2 {
			x, y := a.v(), a.v()
			a.load("q", x, 1, 16*i)
			a.load("q", y, 0, 16*i)
			a.fmul(x, x, w)
			a.fadd(x, y, x)
			a.store("q", x, 0, 16*i)
			a.free(x, y)
		}
	})
	a.free(w)
	a.end()
}

func (a *asm) toHalf() {
	a.begin("toHalfNEON", "toHalfNEON narrows src to binary16, ties to even.", 0, "dst *byte", "src *float32", "n int")
	a.elemLoop("n", 3, []stream{{"dst", 16}, {"src", 32}}, func() {
		x, y := a.v(), a.v()
		a.load("q", x, 1, 0)
		a.load("q", y, 1, 16)
		a.fcvtn(x, x)
		a.fcvtn2(x, y)
		a.store("q", x, 0, 0)
		a.free(x, y)
	})
	a.end()
}

func (a *asm) largest() {
	a.begin("largestNEON", "largestNEON sets d[b] to the largest magnitude in block b of x, as unsigned bits; per, the block length, is a\n// multiple of 32.", 0,
		"d *float32", "x *float32", "blocks int", "per int")
	mask := a.v()
	a.all(mask, 0x7fffffff)
	a.elemLoop("blocks", 0, []stream{{"d", 4}, {"x", 0}}, func() {
		top := a.vs(4)
		for _, v := range top {
			a.zero(v)
		}
		a.arg("per", 2)
		a.op("LSR $5, R2, R2")
		a.loop("within", 2, func() {
			for i := range 8 {
				x := a.v()
				a.load("q", x, 1, 16*i)
				a.and(x, x, mask)
				a.umax(top[i%4], top[i%4], x)
				a.free(x)
			}
			a.op("ADD $128, R1, R1")
		})
		a.umax(top[0], top[0], top[1])
		a.umax(top[2], top[2], top[3])
		a.umax(top[0], top[0], top[2])
		a.umaxv(top[0], top[0])
		a.store("s", top[0], 0, 0)
		a.free(top...)
	})
	a.free(mask)
	a.end()
}

// quantScales is quantScale in four lanes.
func (a *asm) quantScales() {
	a.begin("quantScalesNEON", "quantScalesNEON turns the magnitudes d into scales, and sets inv to the factors, as quantScale does.", 0,
		"d *float32", "inv *float32", "n int")
	one := a.v()
	a.allF(one, 1)
	k := a.recipConsts(one)
	mantissa, exponent, c127, inv127, small, big, nan := a.v(), a.v(), a.v(), a.v(), a.v(), a.v(), a.v()
	a.all(mantissa, 0x7fffff)
	a.all(exponent, 0x7f800000)
	a.allF(c127, 127)
	a.allF(inv127, float32(1.0/127))
	a.all(small, (127-100)<<23)
	a.all(big, 0x7f7fffff)
	a.all(nan, 0x7fc00000)
	a.elemLoop("n", 3, []stream{{"d", 32}, {"inv", 32}}, func() {
		for i := range 2 {
			u, m, r, t := a.v(), a.v(), a.v(), a.v()
			a.load("q", u, 0, 16*i)
			a.and(m, u, mantissa)
			a.orr(m, m, one)
			k.recip(a, r, m)
			a.fmul(r, r, c127)
			a.add(r, r, one)
			a.and(m, u, exponent)
			a.sub(r, r, m)
			a.fmul(t, u, inv127)
			// Magnitudes are not negative as int32: signed comparisons serve.
			a.cmgt(m, small, u)
			a.bic(r, r, m)
			a.bic(t, t, m)
			a.cmgt(m, u, big)
			a.bic(r, r, m)
			a.bit(t, nan, m)
			a.store("q", t, 0, 16*i)
			a.store("q", r, 1, 16*i)
			a.free(u, m, r, t)
		}
	})
	a.free(one, k.guess, k.two, mantissa, exponent, c127, inv127, small, big, nan)
	a.end()
}

// codes16 rounds 16 elements to int8. A factor of zero makes zeros, of infinities and NaN too: NaN rounds to zero.
func (a *asm) codes16(q V, x R, off int, inv V) {
	f := []V{q, a.v(), a.v(), a.v()}
	for i, v := range f {
		a.load("q", v, x, off+16*i)
		a.fmul(v, v, inv)
		a.fcvtns(v, v)
	}
	// Codes fit a byte, so the low bytes are the codes.
	a.uzp1("8h", f[0], f[0], f[1])
	a.uzp1("8h", f[2], f[2], f[3])
	a.uzp1("16b", q, f[0], f[2])
	a.free(f[1:]...)
}

// quantize writes quant32NEON and quant256NEON.
func (a *asm) quantize() {
	params := []string{"q *int8", "sums *int16", "inv *float32", "x *float32", "blocks int"}
	a.begin("quant32NEON", "quant32NEON sets q to x*inv rounded, one factor for each 32, and sums to the blocks' sums.", 0, params...)
	a.elemLoop("blocks", 0, []stream{{"q", 32}, {"sums", 2}, {"inv", 4}, {"x", 128}}, func() {
		inv, s, t := a.v(), a.v(), a.v()
		a.loadAll("s", inv, 2)
		a.codes16(s, 3, 0, inv)
		a.codes16(t, 3, 64, inv)
		a.store("q", s, 0, 0)
		a.store("q", t, 0, 16)
		a.saddlp(s, s)
		a.saddlp(t, t)
		a.addpH(s, s, t)
		a.addvH(s, s)
		a.store("h", s, 1, 0)
		a.free(inv, s, t)
	})
	a.end()

	a.begin("quant256NEON", "quant256NEON does the same for blocks of 256 with their 24 sums.", 0, params...)
	a.elemLoop("blocks", 0, []stream{{"q", 256}, {"sums", sums256}, {"inv", 4}, {"x", 1024}}, func() {
		inv := a.v()
		a.loadAll("s", inv, 2)
		half := a.vs(2)
		for h := range half {
			s := a.vs(8)
			for g, v := range s {
				a.codes16(v, 3, 512*h+64*g, inv)
				a.store("q", v, 0, 128*h+16*g)
				a.saddlp(v, v)
			}
			for n := 4; n > 0; n /= 2 { // neighbours within and between registers
				for i := range n {
					a.addpH(s[i], s[2*i], s[2*i+1])
				}
			}
			a.store("q", s[0], 1, 16*h)
			a.move(half[h], s[0])
			a.free(s...)
		}
		a.addpH(half[0], half[0], half[1])
		a.store("q", half[0], 1, 32)
		a.free(half...)
		a.free(inv)
	})
	a.end()
}

func (a *asm) rope() {
	a.begin("ropeNEON", "ropeNEON turns n pairs by the angles with the cosines cos and sines sin, each product and sum rounded.", 0,
		"lo *float32", "hi *float32", "cos *float32", "sin *float32", "n int")
	a.elemLoop("n", 3, []stream{{"lo", 32}, {"hi", 32}, {"cos", 32}, {"sin", 32}}, func() {
		for i := range 2 {
			x, y, c, s, t := a.v(), a.v(), a.v(), a.v(), a.v()
			for r, v := range []V{x, y, c, s} {
				a.load("q", v, R(r), 16*i)
			}
			a.fmul(t, x, s)
			a.fmul(x, x, c)
			a.fmul(s, y, s)
			a.fmul(y, y, c)
			a.fsub(x, x, s)
			a.fadd(y, t, y)
			a.store("q", x, 0, 16*i)
			a.store("q", y, 1, 16*i)
			a.free(x, y, c, s, t)
		}
	})
	a.end()
}

func (a *asm) readLoop() {
	a.begin("readLoopNEON", "readLoopNEON sets the two sums to those of the even and the odd 64-bit words of b; n is a multiple of 128.", 0,
		"b *byte", "n int", "sums *uint64")
	acc := a.vs(8)
	for _, v := range acc {
		a.zero(v)
	}
	a.elemLoop("n", 7, []stream{{"b", 128}}, func() {
		for i, v := range acc {
			x := a.v()
			a.load("q", x, 0, 16*i)
			a.addD(v, v, x)
			a.free(x)
		}
	})
	for n := 4; n > 0; n /= 2 {
		for i := range n {
			a.addD(acc[i], acc[i], acc[i+n])
		}
	}
	a.arg("sums", 1)
	a.store("q", acc[0], 1, 0)
	a.free(acc...)
	a.end()
}
