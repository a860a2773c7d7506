package main

// q8 is the product of Q8_0 rows with 1 or 4 columns of Act32; nb counts blocks of 32. Eight blocks go by at a time, one
// in each lane of two registers, so that the lane is the block's index modulo 8. Single blocks at the end are added to
// their lanes in memory.
func (a *asm) q8(name string, cols int) {
	a.begin(name+"NEON", name+"NEON multiplies Q8_0 weights; see matrixKernel.", 32*cols, signature...)
	const size = 34
	const dst, stride, wrow, w, n, local = R(0), R(1), R(2), R(3), R(5), R(14)
	q, d := []R{6, 7, 8, 9}[:cols], []R{10, 11, 12, 13}[:cols]
	a.arg("dst", dst)
	a.arg("stride", stride)
	a.arg("w", wrow)
	a.spill(local, 32*cols)
	acc := a.vs(2 * cols)
	a.label("next")
	a.op("MOVD R%d, R%d", wrow, w)
	a.arg("q", q[0])
	a.arg("d", d[0])
	a.arg("nb", n)
	for c := 1; c < cols; c++ {
		a.op("ADD R%d<<5, R%d, R%d", n, q[c-1], q[c])
		a.op("ADD R%d<<2, R%d, R%d", n, d[c-1], d[c])
	}
	for _, v := range acc {
		a.zero(v)
	}
	a.op("LSR $3, R%d, R%d", n, n)
	a.op("CBZ R%d, rest", n)
	a.loop("eight", n, func() {
		if cols == 1 {
			for o := 0; o < 8*size; o += 64 {
				a.op("PRFM %d(R%d), PLDL1KEEP", (prefetchAhead+o)&^7, w)
			}
		}
		for h := range 2 {
			scale := a.vs(4)
			code := a.vs(8)
			for b := range 4 {
				at := (4*h + b) * size
				a.load("h", scale[b], w, at)
				a.load("q", code[2*b], w, at+2)
				a.load("q", code[2*b+1], w, at+18)
			}
			a.zip1("4h", scale[0], scale[0], scale[1])
			a.zip1("4h", scale[2], scale[2], scale[3])
			a.zip1("2s", scale[0], scale[0], scale[2])
			a.fcvtl(scale[0], scale[0])
			a.free(scale[1:]...)
			for c := range cols {
				p := a.vs(4)
				for b := range p {
					x := a.v()
					a.zero(p[b])
					for i := range 2 {
						a.load("q", x, q[c], 128*h+32*b+16*i)
						a.sdot(p[b], code[2*b+i], x)
					}
					a.free(x)
				}
				a.addp(p[0], p[0], p[1])
				a.addp(p[2], p[2], p[3])
				a.addp(p[0], p[0], p[2])
				a.scvtf(p[0], p[0])
				a.load("q", p[1], d[c], 16*h)
				a.fmul(p[1], scale[0], p[1])
				a.fmul(p[1], p[1], p[0])
				a.fadd(acc[2*c+h], acc[2*c+h], p[1])
				a.free(p...)
			}
			a.free(code...)
			a.free(scale[0])
		}
		a.op("ADD $%d, R%d, R%d", 8*size, w, w)
		for c := range cols {
			a.op("ADD $256, R%d, R%d", q[c], q[c])
			a.op("ADD $32, R%d, R%d", d[c], d[c])
		}
	})
	a.label("rest")
	a.arg("nb", n)
	a.op("ANDS $7, R%d, R%d", n, n)
	a.op("BEQ join")
	for i, v := range acc {
		a.store("q", v, local, 16*i)
	}
	a.op("MOVD R%d, R15", local)
	a.loop("one", n, func() {
		code := a.vs(2)
		scale, p, x := a.v(), a.v(), a.v()
		a.load("h", scale, w, 0)
		a.fcvtSH(scale, scale)
		a.load("q", code[0], w, 2)
		a.load("q", code[1], w, 18)
		for c := range cols {
			a.zero(p)
			for i := range 2 {
				a.load("q", x, q[c], 16*i)
				a.sdot(p, code[i], x)
			}
			a.addv(p, p)
			a.scvtf1(p, p)
			a.load("s", x, d[c], 0)
			a.fmul1(x, scale, x)
			a.fmul1(p, x, p)
			a.load("s", x, 15, 32*c)
			a.fadd1(x, x, p)
			a.store("s", x, 15, 32*c)
			a.op("ADD $32, R%d, R%d", q[c], q[c])
			a.op("ADD $4, R%d, R%d", d[c], d[c])
		}
		a.op("ADD $%d, R%d, R%d", size, w, w)
		a.op("ADD $4, R15, R15")
		a.free(code...)
		a.free(scale, p, x)
	})
	for i, v := range acc {
		a.load("q", v, local, 16*i)
	}
	a.label("join")
	a.arg("ld", 16)
	a.op("MOVD R%d, R15", dst)
	t := a.v()
	for c := range cols {
		x := acc[2*c]
		a.fadd(x, x, acc[2*c+1])
		a.ext(t, x, x, 8)
		a.fadd(x, x, t)
		a.faddp1(x, x)
		a.store("s", x, 15, 0)
		if c < cols-1 {
			a.op("ADD R16<<2, R15, R15")
		}
	}
	a.free(t)
	a.op("ADD $4, R%d, R%d", dst, dst)
	a.op("ADD R%d, R%d, R%d", stride, wrow, wrow)
	a.countDown()
	a.free(acc...)
	a.end()
}

// prefetchAhead is how far before its use a line of a single row is asked for, in bytes.
const prefetchAhead = 2048
