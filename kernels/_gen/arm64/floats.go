package main

import "strings"

var elemBytes = map[string]int{"f32": 4, "f16": 2, "bf16": 2}

// widen loads 16 elements to four registers of float32.
func (a *asm) widen(typ string, to []V, r R, off int) {
	switch typ {
	case "f32":
		for i, v := range to {
			a.load("q", v, r, off+16*i)
		}
	default:
		for i := 0; i < 4; i += 2 {
			a.load("q", to[i+1], r, off+8*i)
			if typ == "f16" {
				a.fcvtl(to[i], to[i+1])
				a.fcvtl2(to[i+1], to[i+1])
				continue
			}
			// The high half of a float32; zeros below.
			a.long(false, false, "4h", to[i], to[i+1])
			a.long(false, true, "4h", to[i+1], to[i+1])
			a.shl("4s", to[i], to[i], 16)
			a.shl("4s", to[i+1], to[i+1], 16)
		}
	}
}

// widenOne loads one element.
func (a *asm) widenOne(typ string, v V, r R) {
	switch typ {
	case "f32":
		a.load("s", v, r, 0)
	case "f16":
		a.load("h", v, r, 0)
		a.fcvtSH(v, v)
	case "bf16":
		a.load("h", v, r, 0)
		a.shl1(v, v, 16)
	}
}

// floats writes the product of float weights with float32 activations: 16 accumulators by element index modulo 16, fused.
// Rows: groups of 4 rows at distance stride, the next group asked for ahead. Columns: one row by 4 columns. Elements after the last 16 are added to
// their lanes in memory.
func (a *asm) floats(typ string, s shape) {
	name := typ + s.name() + "NEON"
	a.begin(name, name+" multiplies "+typ+" weights; see floatKernel.", 256,
		"dst *float32", "ld int", "w *byte", "stride int", "x *float32", "n int", "count int")
	const dst, stride, wrow, n, local = R(0), R(1), R(2), R(3), R(4)
	elem := elemBytes[typ]
	w, x := []R{6, 7, 8, 9}[:s.rows], []R{10, 11, 12, 13}[:s.cols]
	a.arg("dst", dst)
	a.arg("stride", stride)
	a.arg("w", wrow)
	a.spill(local, 256)
	acc := make([][]V, 4)
	for i := range acc {
		acc[i] = a.vs(4)
	}
	a.label("next")
	a.op("MOVD R%d, R%d", wrow, w[0])
	for i := 1; i < s.rows; i++ {
		a.op("ADD R%d, R%d, R%d", stride, w[i-1], w[i])
	}
	a.arg("x", x[0])
	a.arg("n", n)
	for i := 1; i < s.cols; i++ {
		a.op("ADD R%d<<2, R%d, R%d", n, x[i-1], x[i])
	}
	for _, s := range acc {
		for _, v := range s {
			a.zero(v)
		}
	}
	a.op("LSR $4, R%d, R%d", n, n)
	a.op("CBZ R%d, rest", n)
	a.loop("sixteen", n, func() {
		one, other := a.vs(4), a.vs(4)
		if s.rows > 1 {
			a.widen("f32", one, x[0], 0)
			a.op("LSL $2, R%d, R16", stride)
			for _, r := range w {
				a.prefetch(r, 16)
			}
		} else {
			a.widen(typ, one, w[0], 0)
		}
		for k := range acc {
			if s.rows > 1 {
				a.widen(typ, other, w[k], 0)
			} else {
				a.widen("f32", other, x[k], 0)
			}
			for i, v := range acc[k] {
				a.fmla(v, other[i], one[i])
			}
		}
		for _, r := range w {
			a.op("ADD $%d, R%d, R%d", 16*elem, r, r)
		}
		for _, r := range x {
			a.op("ADD $64, R%d, R%d", r, r)
		}
		a.free(one...)
		a.free(other...)
	})
	a.label("rest")
	a.arg("n", n)
	a.op("ANDS $15, R%d, R%d", n, n)
	a.op("BEQ join")
	for k := range acc {
		for i, v := range acc[k] {
			a.store("q", v, local, 64*k+16*i)
		}
	}
	a.op("MOVD R%d, R14", local)
	a.loop("one", n, func() {
		f, y, sum := a.v(), a.v(), a.v()
		for k := range acc {
			a.widenOne(typ, f, w[min(k, s.rows-1)])
			a.load("s", y, x[min(k, s.cols-1)], 0)
			a.load("s", sum, 14, 64*k)
			a.fmadd1(sum, f, y, sum)
			a.store("s", sum, 14, 64*k)
		}
		for _, r := range w {
			a.op("ADD $%d, R%d, R%d", elem, r, r)
		}
		for _, r := range x {
			a.op("ADD $4, R%d, R%d", r, r)
		}
		a.op("ADD $4, R14, R14")
		a.free(f, y, sum)
	})
	for k := range acc {
		for i, v := range acc[k] {
			a.load("q", v, local, 64*k+16*i)
		}
	}
	a.label("join")
	t := a.v()
	for _, k := range acc { // lanes i and i+8, then i and i+4, then i and i+2 to lanes 0 and 1
		a.fadd(k[0], k[0], k[2])
		a.fadd(k[1], k[1], k[3])
		a.fadd(k[0], k[0], k[1])
		a.ext(t, k[0], k[0], 8)
		a.fadd(k[0], k[0], t)
	}
	a.free(t)
	// Lanes 0 and 1 of each stream side by side, then their sums.
	a.zip1("2d", acc[0][0], acc[0][0], acc[1][0])
	a.zip1("2d", acc[2][0], acc[2][0], acc[3][0])
	a.faddp(acc[0][0], acc[0][0], acc[2][0])
	a.storeFour(s, acc[0][0], dst, 14, 15)
	if s.rows > 1 {
		a.op("ADD R%d<<2, R%d, R%d", stride, wrow, wrow)
	} else {
		a.op("ADD R%d, R%d, R%d", stride, wrow, wrow)
	}
	a.countDown()
	for _, k := range acc {
		a.free(k...)
	}
	a.end()
}

// values writes the weighted sum of value rows: out[j] = fma(p[i], v[i][j], out[j]) for i in order, for dims elements, a
// multiple of 16.
func (a *asm) values(typ string) {
	name := "values" + strings.ToUpper(typ) + "NEON"
	a.begin(name, name+" adds n rows of values, weighted by p, to out; see valueKernel.", 0,
		"out *float32", "p *float32", "v *byte", "stride int", "n int", "dims int")
	const out, vals, stride, dims, p, row, n = R(0), R(1), R(2), R(3), R(4), R(5), R(6)
	elem := elemBytes[typ]
	a.arg("out", out)
	a.arg("v", vals)
	a.arg("stride", stride)
	a.arg("dims", dims)
	chunk := func(name string, sets int) {
		acc := make([][]V, sets)
		for s := range acc {
			acc[s] = a.vs(4)
			a.widen("f32", acc[s], out, 64*s)
		}
		a.arg("p", p)
		a.arg("n", n)
		a.op("MOVD R%d, R%d", vals, row)
		a.loop(name, n, func() {
			w, x := a.v(), a.vs(4)
			a.loadAll("s", w, p)
			for s := range acc {
				a.widen(typ, x, row, 16*elem*s)
				for i, v := range acc[s] {
					a.fmla(v, x[i], w)
				}
			}
			a.op("ADD $4, R%d, R%d", p, p)
			a.op("ADD R%d, R%d, R%d", stride, row, row)
			a.free(w)
			a.free(x...)
		})
		for s := range acc {
			for i, v := range acc[s] {
				a.store("q", v, out, 64*s+16*i)
			}
			a.free(acc[s]...)
		}
		a.op("ADD $%d, R%d, R%d", 64*sets, out, out)
		a.op("ADD $%d, R%d, R%d", 16*elem*sets, vals, vals)
		a.op("SUB $%d, R%d, R%d", 16*sets, dims, dims)
	}
	a.label("many")
	a.op("CMP $64, R%d", dims)
	a.op("BLT few")
	chunk("rows_many", 4)
	a.op("B many")
	a.label("few")
	a.op("CBZ R%d, done", dims)
	chunk("rows_few", 1)
	a.op("B few")
	a.label("done")
	a.end()
}

// unpacked writes the integer sums of weights that portable code has taken apart into signed codes, for any number of
// columns.
func (a *asm) unpacked() {
	a.begin("superDotsNEON", "superDotsNEON is superDotsGeneric: isum and msum of one super-block for cols columns, at distances of n bytes of\n// activations and step bytes of sums.", 0,
		"isum *int32", "msum *int32", "codes *int8", "scale *int16", "min *int16", "q *int8", "n int", "sums *int16", "step int", "cols int")
	const isum, msum, q, n, sums, step, cols, r = R(0), R(1), R(2), R(3), R(4), R(5), R(6), R(7)
	for i, name := range []string{"isum", "msum", "q", "n", "sums", "step", "cols"} {
		a.arg(name, R(i))
	}
	code, scale, low := a.vs(16), a.vs(4), a.vs(2)
	a.arg("codes", r)
	for g, v := range code {
		a.load("q", v, r, 16*g)
	}
	a.arg("scale", r)
	for i := range 2 {
		a.load("q", low[i], r, 16*i)
		a.long(true, false, "4h", scale[2*i], low[i])
		a.long(true, true, "4h", scale[2*i+1], low[i])
	}
	a.arg("min", r)
	for i := range 2 {
		a.load("q", low[i], r, 16*i)
	}
	a.loop("column", cols, func() {
		acc := a.vs(2)
		a.zero(acc[0])
		a.zero(acc[1])
		for g, c := range code {
			x, p := a.v(), a.v()
			a.load("q", x, q, 16*g)
			a.zero(p)
			a.sdot(p, c, x)
			a.mla(acc[g%2], p, scale[g/4], g%4)
			a.free(x, p)
		}
		a.add(acc[0], acc[0], acc[1])
		a.addv(acc[0], acc[0])
		a.store("s", acc[0], isum, 0)
		for i := range 2 {
			x := a.v()
			a.load("q", x, sums, 16*i)
			if i == 0 {
				a.smull(false, acc[1], x, low[0])
			} else {
				a.smlal(false, acc[1], x, low[1])
			}
			a.smlal(true, acc[1], x, low[i])
			a.free(x)
		}
		a.addv(acc[1], acc[1])
		a.store("s", acc[1], msum, 0)
		a.op("ADD $4, R%d, R%d", isum, isum)
		a.op("ADD $4, R%d, R%d", msum, msum)
		a.op("ADD R%d, R%d, R%d", n, q, q)
		a.op("ADD R%d, R%d, R%d", step, sums, sums)
		a.free(acc...)
	})
	a.free(code...)
	a.free(scale...)
	a.free(low...)
	a.end()

	a.begin("runDotsNEON", "runDotsNEON is runDotsGeneric: the sums of both halves of a run of 32 for cols columns at a distance of n bytes.", 0,
		"low *int32", "high *int32", "codes *int8", "q *int8", "n int", "cols int")
	for i, name := range []string{"low", "high", "q", "n", "cols", "codes"} {
		a.arg(name, R(i))
	}
	code = a.vs(2)
	for i, v := range code {
		a.load("q", v, 5, 16*i)
	}
	a.loop("column", 4, func() {
		x, p := a.vs(2), a.vs(2)
		for i := range 2 {
			a.load("q", x[i], 2, 16*i)
			a.zero(p[i])
			a.sdot(p[i], code[i], x[i])
			a.addv(p[i], p[i])
			a.store("s", p[i], R(i), 0)
			a.op("ADD $4, R%d, R%d", i, i)
		}
		a.op("ADD R3, R2, R2")
		a.free(x...)
		a.free(p...)
	})
	a.free(code...)
	a.end()
}
