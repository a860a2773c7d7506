package main

// deltaUpdate writes the second walk of a DeltaNet step; the first is the weighted sum of value rows.
func (a *asm) deltaUpdate() {
	a.begin("deltaUpdateNEON", "deltaUpdateNEON sets s[i][j] to fma(k[i], d[j], decay*s[i][j]) for dk rows at a distance of stride bytes and then d[j] to the\n// sum of q[i]*s[i][j] by fma in order, for cols columns, a multiple of 16.", 0,
		"d *float32", "s *float32", "q *float32", "k *float32", "dk int", "stride int", "cols int", "decay float32")
	const d, state, stride, cols, row, q, k, n = R(0), R(1), R(2), R(3), R(4), R(5), R(6), R(7)
	a.arg("d", d)
	a.arg("s", state)
	a.arg("stride", stride)
	a.arg("cols", cols)
	decay := a.v()
	a.argF("decay", decay)
	a.op("LSR $4, R%d, R%d", cols, cols)
	a.loop("sixteen", cols, func() {
		delta, out := a.vs(4), a.vs(4)
		for i := range 4 {
			a.load("q", delta[i], d, 16*i)
			a.zero(out[i])
		}
		a.op("MOVD R%d, R%d", state, row)
		a.arg("q", q)
		a.arg("k", k)
		a.arg("dk", n)
		a.loop("rows", n, func() {
			x, y, s := a.v(), a.v(), a.vs(4)
			a.loadAll("s", x, k)
			a.loadAll("s", y, q)
			for i, v := range s {
				a.load("q", v, row, 16*i)
				a.fmul(v, v, decay)
				a.fmla(v, delta[i], x)
				a.store("q", v, row, 16*i)
				a.fmla(out[i], v, y)
			}
			a.op("ADD $4, R%d, R%d", k, k)
			a.op("ADD $4, R%d, R%d", q, q)
			a.op("ADD R%d, R%d, R%d", stride, row, row)
			a.free(x, y)
			a.free(s...)
		})
		for i, v := range out {
			a.store("q", v, d, 16*i)
		}
		a.op("ADD $64, R%d, R%d", d, d)
		a.op("ADD $64, R%d, R%d", state, state)
		a.free(delta...)
		a.free(out...)
	})
	a.free(decay)
	a.end()
}

// conv4 writes four taps of a convolution and silu.
func (a *asm) conv4() {
	a.begin("conv4NEON", "conv4NEON sets out to silu of the four products w[j*ld:]*xj, added by fma from the first on, for n channels, a multiple of 4.", 0,
		"out *float32", "x0 *float32", "x1 *float32", "x2 *float32", "x3 *float32", "w *float32", "ld int", "n int")
	const out, n = R(0), R(16)
	w := []R{6, 7, 8, 9}
	for i, name := range []string{"out", "x0", "x1", "x2", "x3"} {
		a.arg(name, R(i))
	}
	a.arg("w", w[0])
	a.arg("ld", n)
	for j := 1; j < 4; j++ {
		a.op("ADD R%d<<2, R%d, R%d", n, w[j-1], w[j])
	}
	a.arg("n", n)
	a.op("LSR $2, R%d, R%d", n, n)
	e := a.expConsts()
	r := a.recipConsts(e.one)
	low := a.v()
	a.allF(low, -87)
	a.loop("loop", n, func() {
		sum, x, y := a.v(), a.v(), a.v()
		a.zero(sum)
		for j := range 4 {
			a.load("q", x, R(1+j), 0)
			a.load("q", y, w[j], 0)
			a.fmla(sum, x, y)
			a.op("ADD $16, R%d, R%d", 1+j, 1+j)
			a.op("ADD $16, R%d, R%d", w[j], w[j])
		}
		a.fmax(x, sum, low) // NaN goes through all of this
		a.fneg(x, x)
		e.exp(a, x)
		a.fadd(x, x, e.one)
		r.recip(a, y, x)
		a.fmul(y, sum, y)
		a.store("q", y, out, 0)
		a.op("ADD $16, R%d, R%d", out, out)
		a.free(sum, x, y)
	})
	e.release(a)
	a.free(r.guess, r.two, low)
	a.end()
}

// decode writes the conversion of blocks of a quantised cache to float32.
func (a *asm) decode(four bool) {
	name, size := "decodeQ80NEON", 34
	if four {
		name, size = "decodeQ40NEON", 18
	}
	a.begin(name, name+" decodes blocks of "+map[bool]string{false: "Q8_0", true: "Q4_0"}[four]+".", 0, "dst *float32", "w *byte", "blocks int")
	const dst, w, n = R(0), R(1), R(2)
	a.arg("dst", dst)
	a.arg("w", w)
	a.arg("blocks", n)
	nib, eight := a.v(), a.v()
	a.bytes(nib, 15)
	a.bytes(eight, 8)
	a.loop("block", n, func() {
		d, code := a.v(), a.vs(2)
		a.loadAll("h", d, w)
		a.fcvtl(d, d)
		a.load("q", code[0], w, 2)
		if four {
			a.ushr("16b", code[1], code[0], 4)
			a.and(code[0], code[0], nib)
			a.subB(code[0], code[0], eight)
			a.subB(code[1], code[1], eight)
		} else {
			a.load("q", code[1], w, 18)
		}
		for h, c := range code {
			for i := range 2 {
				x, y := a.v(), a.v()
				a.long(true, i == 1, "8b", x, c)
				a.long(true, true, "4h", y, x)
				a.long(true, false, "4h", x, x)
				for j, v := range []V{x, y} {
					a.scvtf(v, v)
					a.fmul(v, v, d)
					a.store("q", v, dst, 64*h+32*i+16*j)
				}
				a.free(x, y)
			}
		}
		a.op("ADD $128, R%d, R%d", dst, dst)
		a.op("ADD $%d, R%d, R%d", size, w, w)
		a.free(d)
		a.free(code...)
	})
	a.free(nib, eight)
	a.end()
}
