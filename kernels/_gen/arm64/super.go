package main

// constants loads what a type needs beside low and mask.
func (k *kq) constants() {
	take := func(b []int8) {
		v := k.v()
		k.table16(v, b)
		k.extra = append(k.extra, v)
	}
	each := func(f func(i int) int8) []int8 {
		b := make([]int8, 16)
		for i := range b {
			b[i] = f(i)
		}
		return b
	}
	switch k.typ {
	case "q3k":
		take(each(func(i int) int8 { return int8(-2 * (i / 4)) }))
	case "q5k":
		take(each(func(int) int8 { return 0x10 }))
	case "iq4xs":
		take(kv4)
		take(each(func(i int) int8 { return int8(-i) * int8(1-i&1) })) // words 0, -2, -4 ...: the low byte of each counts
	}
}

// block leaves the sums of a block in isum and msum. Weights are taken apart once for all columns.
func (k *kq) block() {
	streams := [][]int{{0}, {1}, {2}, {3}}
	if k.rows == 1 {
		streams = [][]int{{0, 1, 2, 3}}
	}
	k.scale = k.vs(map[bool]int{true: 2, false: 4}[k.byThirtyTwo()])
	for i, s := range streams {
		switch k.typ {
		case "q2k":
			k.scalesQ2K(i, s)
		case "q3k":
			k.scalesQ3K(i, s)
		case "q4k", "q5k":
			k.scalesQ4K(i, s)
		case "q6k":
			k.scalesQ6K(i, s)
		case "iq4xs":
			k.scalesIQ4XS(i, s)
		}
		switch k.typ {
		case "q4k", "q5k", "iq4xs":
			for g := range 4 {
				k.nibbles(i, g, s)
			}
		default:
			for c := range 8 {
				k.run(i, c/4, c%4, s)
			}
		}
	}
	k.free(k.scale...)
}

// byThirtyTwo tells whether 32 codes share a scale; otherwise 16 do.
func (k *kq) byThirtyTwo() bool { return k.typ == "q4k" || k.typ == "q5k" || k.typ == "iq4xs" }

// clearSums sets the sums of streams to zero.
func (k *kq) clearSums(streams []int) {
	for _, j := range streams {
		k.zero(k.isum[j])
	}
}

// addMins sets the sums of minimums, int16 in m, of streams: of 32 when there is one register, else of 16.
func (k *kq) addMins(streams []int, m ...V) {
	for _, j := range streams {
		k.sumProducts(k.msum[j], j, map[int]int{1: 32, 2: 0}[len(m)], m)
	}
}

// sumProducts sets d to the products of the activation sums of stream j, from byte off on, with the int16 lanes of m.
func (k *kq) sumProducts(d V, j, off int, m []V) {
	s := k.v()
	for i, v := range m {
		k.load("q", s, k.sum(j), off+16*i)
		if i == 0 {
			k.smull(false, d, s, v)
		} else {
			k.smlal(false, d, s, v)
		}
		k.smlal(true, d, s, v)
	}
	k.free(s)
}

// spreadScales turns 16 bytes into int32 scales and returns them as int16 too; the caller frees those.
func (k *kq) spreadScales(signed bool, b V) (lo, hi V) {
	lo, hi = k.v(), k.v()
	k.long(signed, true, "8b", hi, b)
	k.long(signed, false, "8b", lo, b)
	for i, v := range []V{lo, hi} {
		k.long(signed, false, "4h", k.scale[2*i], v)
		k.long(signed, true, "4h", k.scale[2*i+1], v)
	}
	return lo, hi
}

// scalesQ4K decodes scales and mins of 6 bits.
func (k *kq) scalesQ4K(i int, streams []int) {
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
	k.clearSums(streams)
	k.addMins(streams, c)
	k.free(c)
}

// scalesIQ4XS decodes scales of 6 bits with 32 taken off.
func (k *kq) scalesIQ4XS(i int, streams []int) {
	w := k.weight(i)
	a, b, c := k.v(), k.v(), k.v()
	k.load("s", a, w, 4)
	k.ushr("16b", b, a, 4)
	k.and(a, a, k.low)
	k.zip1("8b", a, a, b) // low four bits in order
	k.op("ADD $2, R%d, R19", w)
	k.loadAll("h", b, 19)
	k.ushl("8h", b, b, k.extra[1])
	k.uzp1("16b", b, b, b)
	k.and(b, b, k.mask)
	k.shl("16b", b, b, 4)
	k.orr(a, a, b)
	k.bytes(c, 32)
	k.subB(a, a, c)
	k.long(true, false, "8b", a, a)
	k.long(true, false, "4h", k.scale[0], a)
	k.long(true, true, "4h", k.scale[1], a)
	k.free(a, b, c)
	k.clearSums(streams)
}

func (k *kq) scalesQ2K(i int, streams []int) {
	a, b := k.v(), k.v()
	k.load("q", a, k.weight(i), 0)
	k.ushr("16b", b, a, 4)
	k.and(a, a, k.low)
	lo, hi := k.spreadScales(false, a)
	k.long(false, false, "8b", lo, b)
	k.long(false, true, "8b", hi, b)
	k.free(a, b)
	k.clearSums(streams)
	k.addMins(streams, lo, hi)
	k.free(lo, hi)
}

func (k *kq) scalesQ3K(i int, streams []int) {
	w := k.weight(i)
	a, b := k.v(), k.v()
	k.load("d", a, w, 96)
	k.ushr("16b", b, a, 4)
	k.zip1("2d", a, a, b)
	k.and(a, a, k.low)
	k.op("ADD $104, R%d, R19", w)
	k.loadAll("s", b, 19)
	k.ushl("16b", b, b, k.extra[0])
	k.and(b, b, k.mask)
	k.shl("16b", b, b, 4)
	k.orr(a, a, b)
	k.bytes(b, 32)
	k.subB(a, a, b)
	lo, hi := k.spreadScales(true, a)
	k.free(a, b, lo, hi)
	k.clearSums(streams)
}

// scalesQ6K leaves 32 in the codes and begins with what takes it off, by the sums of 16.
func (k *kq) scalesQ6K(i int, streams []int) {
	a := k.v()
	k.load("q", a, k.weight(i), 192)
	lo, hi := k.spreadScales(true, a)
	for _, j := range streams {
		k.sumProducts(k.isum[j], j, 0, []V{lo, hi})
		k.shl("4s", k.isum[j], k.isum[j], 5)
		k.zero(a)
		k.sub(k.isum[j], a, k.isum[j])
	}
	k.free(a, lo, hi)
}

// nibbles takes the g-th 64 codes of weight stream i apart, of a type with a scale for 32, and multiplies them for the
// given streams.
func (k *kq) nibbles(i, g int, streams []int) {
	w := k.weight(i)
	c := k.vs(4) // in the order of the codes
	lows, highs := []V{c[0], c[1]}, []V{c[2], c[3]}
	at := map[string]int{"q4k": 16, "q5k": 48, "iq4xs": 8}[k.typ] + 32*g
	if k.typ == "iq4xs" {
		lows, highs = []V{c[0], c[2]}, []V{c[1], c[3]}
	}
	for b := range 2 {
		k.load("q", lows[b], w, at+16*b)
		k.ushr("16b", highs[b], lows[b], 4)
		k.and(lows[b], lows[b], k.low)
		switch k.typ {
		case "q5k":
			h, t := k.v(), k.v()
			k.load("q", h, w, 16+16*b)
			for j, v := range []V{lows[b], highs[b]} { // bit 2g+j to bit 4
				switch s := 4 - 2*g - j; {
				case s > 0:
					k.shl("16b", t, h, s)
				case s < 0:
					k.ushr("16b", t, h, -s)
				default:
					k.move(t, h)
				}
				k.bit(v, t, k.extra[0])
			}
			k.free(h, t)
		case "iq4xs":
			k.tbl(lows[b], k.extra[0], lows[b])
			k.tbl(highs[b], k.extra[0], highs[b])
		}
	}
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

// run takes 32 codes of weight stream i apart, the c-th of half h, of a type with a scale for 16, and multiplies them for
// the given streams.
func (k *kq) run(i, h, c int, streams []int) {
	w := k.weight(i)
	code, t := k.vs(2), k.v()
	for b := range 2 {
		q := code[b]
		switch k.typ {
		case "q2k":
			k.twoBits(q, w, 16+32*h+16*b, c)
		case "q3k":
			k.twoBits(q, w, 32+32*h+16*b, c)
			k.load("q", t, w, 16*b)
			bit := k.v()
			k.bytes(bit, 1<<(4*h+c))
			k.cmtst(t, t, bit)
			k.bytes(bit, 0xfc)
			k.bic(t, bit, t) // a clear bit is -4
			k.orr(q, q, t)
			k.free(bit)
		case "q6k":
			k.load("q", q, w, 64*h+32*(c%2)+16*b)
			k.load("q", t, w, 128+32*h+16*b)
			if c < 2 {
				k.and(q, q, k.low)
			} else {
				k.ushr("16b", q, q, 4)
			}
			switch c {
			case 0:
				k.shl("16b", t, t, 4)
			case 1:
				k.shl("16b", t, t, 2)
			case 3:
				k.ushr("16b", t, t, 2)
			}
			k.bit(q, t, k.mask)
		}
	}
	k.free(t)
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

// twoBits loads 16 codes of two bits, at bit 2c of each byte.
func (k *kq) twoBits(q V, w R, at, c int) {
	k.load("q", q, w, at)
	if c > 0 {
		k.ushr("16b", q, q, 2*c)
	}
	if c < 3 {
		k.and(q, q, k.mask)
	}
}
