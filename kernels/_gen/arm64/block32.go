package main

// block32 describes a type with one float scale for 32 weights.
type block32 struct {
	size  int
	codes int  // offset of the codes
	mins  bool // a minimum stands behind the scale
	e8    bool // the scale is a power of two in a byte
	high  int  // offset of the fifth bits; 0 when there are none
	low   byte // taken off the codes
	table []int8
}

var block32s = map[string]block32{
	"q80":   {size: 34, codes: 2},
	"q40":   {size: 18, codes: 2, low: 8},
	"q41":   {size: 20, codes: 4, mins: true},
	"q50":   {size: 22, codes: 6, high: 2, low: 16},
	"q51":   {size: 24, codes: 8, high: 4, mins: true},
	"iq4nl": {size: 18, codes: 2, table: kv4},
	"mxfp4": {size: 17, codes: 1, e8: true, table: fp4},
}

// The codebooks of IQ4_NL and of MXFP4.
var (
	kv4 = []int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	fp4 = []int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// b32 is the state of one kernel of such a type.
type b32 struct {
	*asm
	block32
	low4, off, lut  V    // 15, what is taken off or added, the codebook
	spread          [2]V // which byte of the fifth bits a lane takes
	bits            V    // and which bit of it
	expBase, expTwo V    // for e8: 2^-128, the integer 2,
	expOne          V    // and one in the exponent
	consts          []V
}

func (k *b32) constant(f func(v V)) V {
	v := k.v()
	f(v)
	k.consts = append(k.consts, v)
	return v
}

func (k *b32) newConsts(name string) {
	if name == "q80" {
		return
	}
	k.low4 = k.constant(func(v V) { k.bytes(v, 15) })
	if k.table != nil {
		k.lut = k.constant(func(v V) { k.table16(v, k.table) })
	}
	if k.low == 8 {
		k.off = k.constant(func(v V) { k.bytes(v, 8) })
	}
	if k.high != 0 {
		for h := range k.spread {
			k.spread[h] = k.constant(func(v V) {
				t := make([]int8, 16)
				for i := range t {
					t[i] = int8(2*h + i/8)
				}
				k.table16(v, t)
			})
		}
		k.bits = k.constant(func(v V) {
			t := make([]int8, 16)
			for i := range t {
				t[i] = int8(uint8(1) << (i % 8))
			}
			k.table16(v, t)
		})
		k.off = k.constant(func(v V) { k.bytes(v, map[bool]byte{true: 0xf0, false: 0x10}[k.low == 16]) })
	}
	if k.e8 {
		k.expBase = k.constant(func(v V) { k.all(v, 0x00200000) })
		k.expTwo = k.constant(func(v V) { k.all(v, 2) })
		k.expOne = k.constant(func(v V) { k.all(v, 1<<23) })
	}
}

// unpack loads the 32 codes of the block at byte at.
func (k *b32) unpack(c [2]V, w R, at int) {
	k.load("q", c[0], w, at+k.codes)
	if k.size == 34 {
		k.load("q", c[1], w, at+18)
		return
	}
	k.ushr("16b", c[1], c[0], 4)
	k.and(c[0], c[0], k.low4)
	if k.table != nil {
		k.tbl(c[0], k.lut, c[0])
		k.tbl(c[1], k.lut, c[1])
	}
	if k.high != 0 {
		h, t := k.v(), k.v()
		k.load("s", h, w, at+k.high)
		for i := range c {
			k.tbl(t, h, k.spread[i])
			k.cmtst(t, t, k.bits)
			if k.low == 16 {
				k.bic(t, k.off, t) // a clear bit is -16, which is the bits 0xf0
			} else {
				k.and(t, k.off, t)
			}
			k.orr(c[i], c[i], t)
		}
		k.free(h, t)
	} else if k.low != 0 {
		k.subB(c[0], c[0], k.off)
		k.subB(c[1], c[1], k.off)
	}
}

// scales loads the scales of n (1 or 4) blocks to d, their minimums to m.
func (k *b32) scales(d, m V, w R, at, n int) {
	width := "h"
	switch {
	case k.mins:
		width = "s"
	case k.e8:
		width = "b"
	}
	k.load(width, d, w, at)
	if n == 4 {
		t := []V{d, k.v(), k.v(), k.v()}
		for i := 1; i < 4; i++ {
			k.load(width, t[i], w, at+i*k.size)
		}
		switch width {
		case "s":
			k.zip1("4s", t[0], t[0], t[1])
			k.zip1("4s", t[2], t[2], t[3])
			k.zip1("2d", d, t[0], t[2])
		case "h":
			k.zip1("4h", t[0], t[0], t[1])
			k.zip1("4h", t[2], t[2], t[3])
			k.zip1("2s", d, t[0], t[2])
		case "b":
			k.zip1("8b", t[0], t[0], t[1])
			k.zip1("8b", t[2], t[2], t[3])
			k.zip1("4h", d, t[0], t[2])
		}
		k.free(t[1:]...)
	}
	switch {
	case k.mins:
		k.uzp2("8h", m, d, d)
		k.uzp1("8h", d, d, d)
		k.fcvtl(m, m)
		k.fcvtl(d, d)
	case k.e8:
		t, s := k.v(), k.v()
		k.long(false, false, "8b", d, d)
		k.long(false, false, "4h", d, d)
		k.cmgt(t, k.expTwo, d)
		k.ushl("4s", s, k.expBase, d) // 2^-128 and 2^-127, which are subnormal
		k.shl("4s", d, d, 23)
		k.sub(d, d, k.expOne)
		k.bit(d, s, t)
		k.free(t, s)
	default:
		k.fcvtl(d, d)
	}
}

// block32 writes the product of rows of a 32-block type with 1 or 4 columns of Act32; nb counts blocks of 32. Eight blocks
// go by at a time, one in each lane of two registers, so that the lane is the block's index modulo 8. Single blocks at
// the end are added to their lanes in memory.
func (a *asm) block32(typ string, cols int) {
	name := typ + map[int]string{1: "Rows", 4: "Cols"}[cols] + "NEON"
	a.begin(name, name+" multiplies "+typ+" weights; see matrixKernel.", 32*cols, signature...)
	const dst, stride, wrow, w, n, local = R(0), R(1), R(2), R(3), R(5), R(14)
	q, d, sums := []R{6, 7, 8, 9}[:cols], []R{10, 11, 12, 13}[:cols], []R{17, 19, 20, 21}[:cols]
	k := &b32{asm: a, block32: block32s[typ]}
	a.arg("dst", dst)
	a.arg("stride", stride)
	a.arg("w", wrow)
	a.spill(local, 32*cols)
	acc := a.vs(2 * cols)
	k.newConsts(typ)
	a.label("next")
	a.op("MOVD R%d, R%d", wrow, w)
	a.arg("q", q[0])
	a.arg("d", d[0])
	a.arg("nb", n)
	if k.mins {
		a.arg("sums", sums[0])
	}
	for c := 1; c < cols; c++ {
		a.op("ADD R%d<<5, R%d, R%d", n, q[c-1], q[c])
		a.op("ADD R%d<<2, R%d, R%d", n, d[c-1], d[c])
		if k.mins {
			a.op("ADD R%d<<1, R%d, R%d", n, sums[c-1], sums[c])
		}
	}
	forward := func(blocks int) {
		a.op("ADD $%d, R%d, R%d", blocks*k.size, w, w)
		for c := range cols {
			a.op("ADD $%d, R%d, R%d", 32*blocks, q[c], q[c])
			a.op("ADD $%d, R%d, R%d", 4*blocks, d[c], d[c])
			if k.mins {
				a.op("ADD $%d, R%d, R%d", 2*blocks, sums[c], sums[c])
			}
		}
	}
	for _, v := range acc {
		a.zero(v)
	}
	a.op("LSR $3, R%d, R%d", n, n)
	a.op("CBZ R%d, rest", n)
	a.loop("eight", n, func() {
		if cols == 1 {
			for o := 0; o < 8*k.size; o += 64 {
				a.op("PRFM %d(R%d), PLDL1KEEP", (prefetchAhead+o)&^7, w)
			}
		}
		for h := range 2 {
			scale, min := a.v(), a.v()
			k.scales(scale, min, w, 4*h*k.size, 4)
			if !k.mins {
				a.free(min)
			}
			code := a.vs(8)
			for b := range 4 {
				k.unpack([2]V(code[2*b:]), w, (4*h+b)*k.size)
			}
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
				sum := acc[2*c+h]
				a.load("q", p[1], d[c], 16*h)
				a.fmul(p[2], scale, p[1])
				a.fmul(p[2], p[2], p[0])
				a.fadd(sum, sum, p[2])
				if k.mins {
					a.load("d", p[0], sums[c], 8*h)
					a.long(true, false, "4h", p[0], p[0])
					a.scvtf(p[0], p[0])
					a.fmul(p[1], min, p[1])
					a.fmul(p[1], p[1], p[0])
					a.fadd(sum, sum, p[1])
				}
				a.free(p...)
			}
			a.free(code...)
			a.free(scale)
			if k.mins {
				a.free(min)
			}
		}
		forward(8)
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
		scale, min, p, x, y := a.v(), a.v(), a.v(), a.v(), a.v()
		k.scales(scale, min, w, 0, 1)
		k.unpack([2]V(code), w, 0)
		for c := range cols {
			a.zero(p)
			for i := range 2 {
				a.load("q", x, q[c], 16*i)
				a.sdot(p, code[i], x)
			}
			a.addv(p, p)
			a.scvtf(p, p)
			a.load("s", x, d[c], 0)
			a.fmul(y, scale, x)
			a.fmul(p, y, p)
			a.load("s", y, 15, 32*c)
			a.fadd(y, y, p)
			if k.mins {
				a.load("h", p, sums[c], 0)
				a.long(true, false, "4h", p, p)
				a.scvtf(p, p)
				a.fmul(x, min, x)
				a.fmul(p, x, p)
				a.fadd(y, y, p)
			}
			a.store("s", y, 15, 32*c)
		}
		forward(1)
		a.op("ADD $4, R15, R15")
		a.free(code...)
		a.free(scale, min, p, x, y)
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
	a.free(k.consts...)
	a.end()
}

// prefetchAhead is how far before its use a line of a single row is asked for, in bytes.
const prefetchAhead = 2048
