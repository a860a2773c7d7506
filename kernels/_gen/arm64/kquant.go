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

// superType describes a 256-block type.
type superType struct {
	size int
	d    int  // offset of the scale, a half
	mins bool // a second scale, of the minimums, stands behind it
	mask byte // k.mask
}

var superTypes = map[string]superType{
	"q2k":   {size: 84, d: 80, mins: true, mask: 3},
	"q3k":   {size: 110, d: 108, mask: 3},
	"q4k":   {size: 144, mins: true, mask: 0x3f},
	"q5k":   {size: 176, mins: true, mask: 0x3f},
	"q6k":   {size: 210, d: 208, mask: 0x30},
	"iq4xs": {size: 136, mask: 3},
}

// kq is the state of one kernel of a 256-block type. Four streams run side by side, weight rows or activation columns; lane i of a
// float register belongs to stream i.
type kq struct {
	*asm
	shape
	w, q, s    [4]R // weights, activations and their sums of each stream
	isum, msum []V  // int32 sums of each stream, over all lanes
	scale      []V  // the block's scales as int32
	low        V    // 15 in each byte
	mask       V    // superType.mask in each byte
	extra      []V  // constants of some types
	superType
	typ string
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
	k := &kq{asm: a, shape: s, typ: typ, superType: superTypes[typ],
		w: [4]R{6, 7, 8, 9}, q: [4]R{10, 11, 12, 13}, s: [4]R{14, 15, 16, 17}, isum: a.vs(4), low: a.v(), mask: a.v()}
	acc := a.vs(4)
	a.arg("dst", dst)
	a.arg("stride", stride)
	a.arg("w", wrow)
	a.bytes(k.low, 15)
	a.bytes(k.mask, k.superType.mask)
	k.constants()
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
			for o := 0; o < k.size; o += 64 {
				for _, r := range k.w {
					a.prefetch(r, line)
				}
				if o+64 < k.size {
					a.op("ADD $64, R%d, R%d", line, line)
				}
			}
		}
		if k.mins {
			k.msum = a.vs(4)
		}
		k.block()
		// Lane i of isum[0] and msum[0] becomes the total of stream i.
		join := func(x []V) {
			a.addp(x[0], x[0], x[1])
			a.addp(x[2], x[2], x[3])
			a.addp(x[0], x[0], x[2])
			a.scvtf(x[0], x[0])
		}
		join(k.isum)
		dw, dm, dy := a.v(), a.v(), a.v()
		k.blockScales(dw, dm)
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
		if k.mins {
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
			a.op("ADD $%d, R%d, R%d", k.size, k.w[i], k.w[i])
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
	a.free(k.extra...)
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

// blockScales loads d, and dmin where there is one, of each stream.
func (k *kq) blockScales(d, dmin V) {
	width := "h"
	if k.mins {
		width = "s"
	}
	if k.rows == 1 {
		k.op("ADD $%d, R%d, R19", k.d, k.w[0])
		k.loadAll(width, d, 19)
	} else {
		h := []V{d, k.v(), k.v(), k.v()}
		for i, r := range k.w {
			k.load(width, h[i], r, k.d)
		}
		if k.mins {
			k.zip1("4s", h[0], h[0], h[1])
			k.zip1("4s", h[2], h[2], h[3])
			k.zip1("2d", d, h[0], h[2])
		} else {
			k.zip1("4h", h[0], h[0], h[1])
			k.zip1("4h", h[2], h[2], h[3])
			k.zip1("2s", d, h[0], h[2])
		}
		k.free(h[1:]...)
	}
	if k.mins {
		k.uzp2("8h", dmin, d, d)
		k.uzp1("8h", d, d, d)
		k.fcvtl(dmin, dmin)
	}
	k.fcvtl(d, d)
}
