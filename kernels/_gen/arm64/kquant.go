package main

import "fmt"

// shape is a tile: weight rows by activation columns. One of them is 1.
type shape struct{ rows, cols int }

func (s shape) name() string {
	if s.rows > 1 {
		return "Rows"
	}
	return "Cols"
}

var signature = []string{"dst *float32", "ld int", "w *byte", "stride int", "q *int8", "d *float32", "sums *int16", "nb int", "count int"}

// sums256 is the number of bytes of sums of a super-block: 16 of 16 elements, then 8 of 32.
const sums256 = 48

// kq is the state of one K-quant kernel. Four streams run side by side, weight rows or activation columns; lane i of a
// float register belongs to stream i.
type kq struct {
	*asm
	shape
	w, q, s    [4]R // weights, activations and their sums of each stream
	isum, msum []V  // int32 sums of each stream, over all lanes
	scale      []V  // the block's scales as int32
	low        V    // 15 in each byte
	mask       V    // bits of the scales (Q4_K) or of the codes' top (Q6_K)
}

// weight, act and sum are those of stream i: the first one's where all share it.
func (k *kq) weight(i int) R { return k.w[min(i, k.rows-1)] }
func (k *kq) act(i int) R    { return k.q[min(i, k.cols-1)] }
func (k *kq) sum(i int) R    { return k.s[min(i, k.cols-1)] }

// kquant writes the product of a 256-block type with Act256: 4 rows by one column, or one row by 4 columns; see
// matrixKernel. Rows ask for the same place of the next four rows ahead of time.
func (a *asm) kquant(typ string, s shape) {
	a.begin(typ+s.name()+"NEON", fmt.Sprintf("%s%sNEON multiplies %s weights; see matrixKernel.", typ, s.name(), typ), 0, signature...)
	const dst, stride, wrow, d, dstep, n, line = R(0), R(1), R(2), R(3), R(4), R(5), R(24)
	size := map[string]int{"q4k": 144, "q6k": 210}[typ]
	k := &kq{asm: a, shape: s,
		w: [4]R{6, 7, 8, 9}, q: [4]R{10, 11, 12, 13}, s: [4]R{14, 15, 16, 17}, isum: a.vs(4), low: a.v(), mask: a.v()}
	acc := a.vs(4)
	a.arg("dst", dst)
	a.arg("stride", stride)
	a.arg("w", wrow)
	a.bytes(k.low, 15)
	a.bytes(k.mask, map[string]byte{"q4k": 0x3f, "q6k": 0x30}[typ])
	a.label("next")
	a.op("MOVD R%d, R%d", wrow, k.w[0])
	for i := 1; i < s.rows; i++ {
		a.op("ADD R%d, R%d, R%d", stride, k.w[i-1], k.w[i])
	}
	a.arg("q", k.q[0])
	a.arg("sums", k.s[0])
	a.arg("d", d)
	a.arg("nb", n)
	if s.cols > 1 {
		a.op("LSL $8, R%d, R19", n)
		a.op("ADD R%d<<1, R%d, R20", n, n)
		a.op("LSL $4, R20, R20") // sums256 a block
		for i := 1; i < 4; i++ {
			a.op("ADD R19, R%d, R%d", k.q[i-1], k.q[i])
			a.op("ADD R20, R%d, R%d", k.s[i-1], k.s[i])
		}
		a.op("LSL $2, R%d, R%d", n, dstep)
	}
	for _, v := range acc {
		a.zero(v)
	}
	a.loop("block", n, func() {
		if s.rows > 1 {
			a.op("LSL $2, R%d, R%d", stride, line)
			for o := 0; o < size; o += 64 {
				for _, r := range k.w {
					a.prefetch(r, line)
				}
				if o+64 < size {
					a.op("ADD $64, R%d, R%d", line, line)
				}
			}
		}
		if typ == "q4k" {
			k.msum = a.vs(4)
			k.q4k()
		} else {
			k.q6k()
		}
		// Lane i of isum[0] and msum[0] becomes the total of stream i.
		join := func(x []V) {
			a.addp(x[0], x[0], x[1])
			a.addp(x[2], x[2], x[3])
			a.addp(x[0], x[0], x[2])
			a.scvtf(x[0], x[0])
		}
		join(k.isum)
		dw, dm, dy := a.v(), a.v(), a.v()
		k.blockScales(typ, dw, dm)
		if s.cols == 1 {
			a.loadAll("s", dy, d)
		} else {
			a.op("MOVD R%d, R19", d)
			for i := range 4 {
				a.loadLane(dy, i, 19)
				if i < 3 {
					a.op("ADD R%d, R19, R19", dstep)
				}
			}
		}
		a.fmul(dw, dw, dy)
		a.fmul(dw, dw, k.isum[0])
		a.fadd(dw, acc[0], dw)
		if typ == "q4k" {
			join(k.msum)
			a.fmul(dm, dm, dy)
			a.fmul(dm, dm, k.msum[0])
			a.fsub(dw, dw, dm)
			a.free(k.msum...)
		}
		// acc[0] is always the next block's.
		for i := range 3 {
			a.move(acc[i], acc[i+1])
		}
		a.move(acc[3], dw)
		a.free(dw, dm, dy)
		for i := range s.rows {
			a.op("ADD $%d, R%d, R%d", size, k.w[i], k.w[i])
		}
		for i := range s.cols {
			a.op("ADD $256, R%d, R%d", k.q[i], k.q[i])
			a.op("ADD $%d, R%d, R%d", sums256, k.s[i], k.s[i])
		}
		a.op("ADD $4, R%d, R%d", d, d)
	})
	a.arg("nb", n)
	a.label("turn") // until acc[i] belongs to the blocks with index i modulo 4
	a.op("TST $3, R%d", n)
	a.op("BEQ join")
	t := a.v()
	a.move(t, acc[0])
	for i := range 3 {
		a.move(acc[i], acc[i+1])
	}
	a.move(acc[3], t)
	a.free(t)
	a.op("ADD $1, R%d, R%d", n, n)
	a.op("B turn")
	a.label("join")
	a.fadd(acc[0], acc[0], acc[1])
	a.fadd(acc[2], acc[2], acc[3])
	a.fadd(acc[0], acc[0], acc[2])
	a.storeFour(s, acc[0], dst, 19, 20)
	if s.rows > 1 {
		a.op("ADD R%d<<2, R%d, R%d", stride, wrow, wrow)
	} else {
		a.op("ADD R%d, R%d, R%d", stride, wrow, wrow)
	}
	a.countDown()
	a.free(acc...)
	a.free(k.isum...)
	a.free(k.low, k.mask)
	a.end()
}

// countDown goes to "next" until the argument count is used up; the argument itself counts.
func (a *asm) countDown() {
	off := a.args["count"].off
	a.op("MOVD count+%d(FP), R%d", off, tmp)
	a.op("SUBS $1, R%d, R%d", tmp, tmp)
	a.op("MOVD R%d, count+%d(FP)", tmp, off)
	a.op("BNE next")
}

// storeFour stores the results of four streams and moves dst on.
func (a *asm) storeFour(s shape, v V, dst, p, ld R) {
	if s.rows > 1 {
		a.store("q", v, dst, 0)
		a.op("ADD $16, R%d, R%d", dst, dst)
		return
	}
	a.arg("ld", ld)
	a.op("MOVD R%d, R%d", dst, p)
	for i := range 4 {
		a.storeLane(v, i, p)
		if i < 3 {
			a.op("ADD R%d<<2, R%d, R%d", ld, p, p)
		}
	}
	a.op("ADD $4, R%d, R%d", dst, dst)
}

// blockScales loads d, and for Q4_K dmin, of each stream.
func (k *kq) blockScales(typ string, d, dmin V) {
	if typ == "q4k" {
		if k.rows == 1 {
			k.loadAll("s", d, k.w[0])
		} else {
			for i, r := range k.w {
				k.loadLane(d, i, r)
			}
		}
		k.uzp2("8h", dmin, d, d)
		k.uzp1("8h", d, d, d)
		k.fcvtl(dmin, dmin)
		k.fcvtl(d, d)
		return
	}
	if k.rows == 1 {
		k.op("ADD $208, R%d, R19", k.w[0])
		k.loadAll("h", d, 19)
		k.fcvtl(d, d)
		return
	}
	h := []V{d, k.v(), k.v(), k.v()}
	for i, r := range k.w {
		k.load("h", h[i], r, 208)
	}
	k.zip1("4h", h[0], h[0], h[1])
	k.zip1("4h", h[2], h[2], h[3])
	k.zip1("2s", d, h[0], h[2])
	k.fcvtl(d, d)
	k.free(h[1:]...)
}

// q4k adds up a block: weights are taken apart once for all columns.
func (k *kq) q4k() {
	for i := range 4 {
		k.zero(k.isum[i])
	}
	k.scale = k.vs(2)
	if k.rows > 1 {
		for i := range 4 {
			m := k.scalesQ4K(i)
			k.minsQ4K(i, m)
			k.free(m)
			for g := range 4 {
				k.groupQ4K(i, g, i)
			}
		}
	} else {
		m := k.scalesQ4K(0)
		for i := range 4 {
			k.minsQ4K(i, m)
		}
		k.free(m)
		for g := range 4 {
			k.groupQ4K(0, g, 0, 1, 2, 3)
		}
	}
	k.free(k.scale...)
}

// scalesQ4K decodes the scales and returns the mins, as int16.
func (k *kq) scalesQ4K(i int) (mins V) {
	w := k.weight(i)
	a, b, c := k.v(), k.v(), k.v()
	k.load("d", a, w, 4)
	k.load("s", b, w, 12)
	k.ushr("16b", c, b, 4)
	k.and(b, b, k.low)
	k.zip1("2s", b, b, c) // low four bits of scales 4..7, of mins 4..7
	k.ushr("16b", c, a, 6)
	k.shl("16b", c, c, 4)
	k.orr(b, b, c)
	k.and(a, a, k.mask)
	k.zip2("2s", c, a, b) // mins
	k.zip1("2s", a, a, b) // scales
	k.long(false, false, "8b", c, c)
	k.long(false, false, "8b", a, a)
	k.long(false, false, "4h", k.scale[0], a)
	k.long(false, true, "4h", k.scale[1], a)
	k.free(a, b)
	return c
}

func (k *kq) minsQ4K(i int, mins V) {
	s := k.v()
	k.load("q", s, k.sum(i), 32)
	k.smull(false, k.msum[i], s, mins)
	k.smlal(true, k.msum[i], s, mins)
	k.free(s)
}

// groupQ4K takes the g-th 64 codes of weight stream i apart and multiplies them for the given streams.
func (k *kq) groupQ4K(i, g int, streams ...int) {
	c := k.vs(4)
	k.load("q", c[0], k.weight(i), 16+32*g)
	k.load("q", c[1], k.weight(i), 32+32*g)
	k.ushr("16b", c[2], c[0], 4)
	k.ushr("16b", c[3], c[1], 4)
	k.and(c[0], c[0], k.low)
	k.and(c[1], c[1], k.low)
	for _, j := range streams {
		x, p := k.vs(4), k.vs(2)
		for b := range x {
			k.load("q", x[b], k.act(j), 64*g+16*b)
		}
		k.zero(p[0])
		k.zero(p[1])
		for b := range x {
			k.sdot(p[b/2], c[b], x[b])
		}
		for b := range p {
			k.mla(k.isum[j], p[b], k.scale[g/2], 2*(g%2)+b)
		}
		k.free(x...)
		k.free(p...)
	}
	k.free(c...)
}

// q6k leaves 32 in the codes and takes it off by the sums of 16.
func (k *kq) q6k() {
	k.scale = k.vs(4)
	if k.rows > 1 {
		for i := range 4 {
			k.scalesQ6K(i, i)
			for h := range 2 {
				k.halfQ6K(i, h, i)
			}
		}
	} else {
		k.scalesQ6K(0, 0, 1, 2, 3)
		for h := range 2 {
			k.halfQ6K(0, h, 0, 1, 2, 3)
		}
	}
	k.free(k.scale...)
}

// scalesQ6K decodes the scales and begins the sums of the given streams.
func (k *kq) scalesQ6K(i int, streams ...int) {
	lo, hi := k.v(), k.v()
	k.load("q", lo, k.weight(i), 192)
	k.long(true, true, "8b", hi, lo)
	k.long(true, false, "8b", lo, lo)
	for _, j := range streams {
		s, t := k.v(), k.v()
		k.load("q", s, k.sum(j), 0)
		k.load("q", t, k.sum(j), 16)
		k.smull(false, k.isum[j], s, lo)
		k.smlal(true, k.isum[j], s, lo)
		k.smlal(false, k.isum[j], t, hi)
		k.smlal(true, k.isum[j], t, hi)
		k.shl("4s", k.isum[j], k.isum[j], 5)
		k.zero(s)
		k.sub(k.isum[j], s, k.isum[j])
		k.free(s, t)
	}
	k.long(true, false, "4h", k.scale[0], lo)
	k.long(true, true, "4h", k.scale[1], lo)
	k.long(true, false, "4h", k.scale[2], hi)
	k.long(true, true, "4h", k.scale[3], hi)
	k.free(lo, hi)
}

// halfQ6K takes the h-th 128 codes of weight stream i apart and multiplies them for the given streams.
func (k *kq) halfQ6K(i, h int, streams ...int) {
	w := k.weight(i)
	for c := range 4 { // runs of 32
		code, top := k.vs(2), k.v()
		for b := range 2 {
			k.load("q", code[b], w, 64*h+32*(c%2)+16*b)
			k.load("q", top, w, 128+32*h+16*b)
			if c < 2 {
				k.and(code[b], code[b], k.low)
			} else {
				k.ushr("16b", code[b], code[b], 4)
			}
			switch c {
			case 0:
				k.shl("16b", top, top, 4)
			case 1:
				k.shl("16b", top, top, 2)
			case 3:
				k.ushr("16b", top, top, 2)
			}
			k.bit(code[b], top, k.mask)
		}
		k.free(top)
		for _, j := range streams {
			x, p := k.vs(2), k.vs(2)
			for b := range 2 {
				k.load("q", x[b], k.act(j), 128*h+32*c+16*b)
				k.zero(p[b])
				k.sdot(p[b], code[b], x[b])
				g := 8*h + 2*c + b
				k.mla(k.isum[j], p[b], k.scale[g/4], g%4)
			}
			k.free(x...)
			k.free(p...)
		}
		k.free(code...)
	}
}
