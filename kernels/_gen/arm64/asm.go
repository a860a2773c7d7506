package main

import (
	"fmt"
	"math"
	"strings"
)

// asm collects Go assembly. Go's assembler lacks most of NEON's arithmetic, so every vector instruction is encoded here
// and written as a WORD beside its name; integer instructions and branches are Go's own.
type asm struct {
	text  strings.Builder
	stubs strings.Builder

	fn   string // the function being written
	args map[string]arg
	used [32]bool // vector registers taken
}

// R is a general register, V a vector register.
type R int
type V int

// tmp is the general register that constants pass through.
const tmp R = 26

type arg struct {
	off   int
	float bool
}

// begin opens a function; params are "name type" as in Go, with an optional last "ret type".
func (a *asm) begin(name, doc string, frame int, params ...string) {
	a.fn, a.args, a.used = name, map[string]arg{}, [32]bool{}
	off, results := 0, ""
	var list []string
	for _, p := range params {
		n, t, _ := strings.Cut(p, " ")
		size := 8
		if t == "float32" {
			size = 4
		}
		if n == "ret" {
			off, results = (off+7)&^7, " (ret "+t+")"
		} else {
			list = append(list, p)
		}
		off = (off + size - 1) &^ (size - 1)
		a.args[n] = arg{off, t == "float32"}
		off += size
	}
	flags := "0"
	if frame == 0 {
		flags = "NOSPLIT"
	}
	sig := "func " + name + "(" + strings.Join(list, ", ") + ")" + results
	fmt.Fprintf(&a.stubs, "\n// %s\n//\n//go:noescape\n%s\n", doc, sig)
	fmt.Fprintf(&a.text, "\n// %s\nTEXT ·%s(SB), %s, $%d-%d\n", sig, name, flags, frame, off)
}

func (a *asm) end() {
	a.op("RET")
	for i, u := range a.used {
		if u {
			panic(fmt.Sprintf("%s: V%d is not given back", a.fn, i))
		}
	}
}

// op writes an instruction of Go's assembler.
func (a *asm) op(format string, x ...any) { fmt.Fprintf(&a.text, "\t"+format+"\n", x...) }

func (a *asm) label(l string) { fmt.Fprintf(&a.text, "\n%s:\n", l) }

// arg loads an argument.
func (a *asm) arg(name string, r R) {
	p, ok := a.args[name]
	if !ok {
		panic(a.fn + " has no argument " + name)
	}
	a.op("MOVD %s+%d(FP), R%d", name, p.off, r)
}

// argF loads a float argument to all lanes.
func (a *asm) argF(name string, v V) {
	a.op("MOVWU %s+%d(FP), R%d", name, a.args[name].off, tmp)
	a.dup(v, tmp)
}

// loop runs body until the count in n, which is not zero, is used up.
func (a *asm) loop(label string, n R, body func()) {
	a.label(label)
	body()
	a.op("SUBS $1, R%d, R%d", n, n)
	a.op("BNE %s", label)
}

// v takes a free vector register.
func (a *asm) v() V {
	for i, u := range a.used {
		if !u {
			a.used[i] = true
			return V(i)
		}
	}
	panic(a.fn + ": no vector register is left")
}

func (a *asm) vs(n int) []V {
	r := make([]V, n)
	for i := range r {
		r[i] = a.v()
	}
	return r
}

func (a *asm) free(v ...V) {
	for _, x := range v {
		if !a.used[x] {
			panic(fmt.Sprintf("%s: V%d is free already", a.fn, x))
		}
		a.used[x] = false
	}
}

// word writes an encoded instruction beside its name.
func (a *asm) word(w uint32, format string, x ...any) {
	fmt.Fprintf(&a.text, "\tWORD $0x%08x // %s\n", w, fmt.Sprintf(format, x...))
}

// three is an instruction of three vectors; t names the arrangement.
func (a *asm) three(base uint32, name, t string, d, n, m V) {
	a.word(base|uint32(m)<<16|uint32(n)<<5|uint32(d), "%s v%d.%s, v%d.%s, v%d.%s", name, d, t, n, t, m, t)
}

// two is an instruction of two vectors.
func (a *asm) two(base uint32, name, td, tn string, d, n V) {
	a.word(base|uint32(n)<<5|uint32(d), "%s v%d.%s, v%d.%s", name, d, td, n, tn)
}

// Bits.

func (a *asm) and(d, n, m V) { a.three(0x4e201c00, "and", "16b", d, n, m) }
func (a *asm) bic(d, n, m V) { a.three(0x4e601c00, "bic", "16b", d, n, m) }
func (a *asm) orr(d, n, m V) { a.three(0x4ea01c00, "orr", "16b", d, n, m) }
func (a *asm) bit(d, n, m V) { a.three(0x6ea01c00, "bit", "16b", d, n, m) } // bits of n where m is set
func (a *asm) move(d, n V) {
	a.word(0x4ea01c00|uint32(n)<<16|uint32(n)<<5|uint32(d), "mov v%d.16b, v%d.16b", d, n)
}
func (a *asm) zero(d V)     { a.word(0x4f000400|uint32(d), "movi v%d.4s, #0x0", d) }
func (a *asm) dup(d V, r R) { a.word(0x4e040c00|uint32(r)<<5|uint32(d), "dup v%d.4s, w%d", d, r) }
func (a *asm) bytes(d V, b byte) {
	a.word(0x4f00e400|uint32(b>>5)<<16|uint32(b&31)<<5|uint32(d), "movi v%d.16b, #0x%x", d, b)
}

// all sets all four lanes to u.
func (a *asm) all(d V, u uint32) {
	a.op("MOVD $0x%08x, R%d", u, tmp)
	a.dup(d, tmp)
}

// table16 sets the 16 bytes of d.
func (a *asm) table16(d V, b []int8) {
	for h := range 2 {
		u := uint64(0)
		for i, x := range b[8*h : 8*h+8] {
			u |= uint64(uint8(x)) << (8 * i)
		}
		a.op("MOVD $0x%016x, R%d", u, tmp)
		a.word(0x4e081c00|uint32(h)<<20|uint32(tmp)<<5|uint32(d), "mov v%d.d[%d], x%d", d, h, tmp)
	}
}

// tbl takes bytes of n by the indices in m.
func (a *asm) tbl(d, n, m V) {
	a.word(0x4e000000|uint32(m)<<16|uint32(n)<<5|uint32(d), "tbl v%d.16b, {v%d.16b}, v%d.16b", d, n, m)
}

func (a *asm) allF(d V, f float32) { a.all(d, math.Float32bits(f)) }

// Shifts of the 8-, 16- and 32-bit lanes of a whole register; t is 16b, 8h or 4s.

var laneBits = map[string]int{"16b": 8, "8h": 16, "4s": 32, "8b": 8, "4h": 16}

func (a *asm) ushr(t string, d, n V, s int) {
	a.word(0x6f000400|uint32(2*laneBits[t]-s)<<16|uint32(n)<<5|uint32(d), "ushr v%d.%s, v%d.%s, #%d", d, t, n, t, s)
}

func (a *asm) shl(t string, d, n V, s int) {
	a.word(0x4f005400|uint32(laneBits[t]+s)<<16|uint32(n)<<5|uint32(d), "shl v%d.%s, v%d.%s, #%d", d, t, n, t, s)
}

// long widens the low (or high) half of n's lanes of type t, signed or not, to twice the width.
func (a *asm) long(signed, high bool, t string, d, n V) {
	w, name, from := uint32(0x2f00a400), "uxtl", t
	if signed {
		w, name = 0x0f00a400, "sxtl"
	}
	if high {
		w |= 1 << 30
		name += "2"
		from = map[string]string{"8b": "16b", "4h": "8h"}[t]
	}
	to := map[string]string{"8b": "8h", "4h": "4s"}[t]
	a.word(w|uint32(laneBits[t])<<16|uint32(n)<<5|uint32(d), "%s v%d.%s, v%d.%s", name, d, to, n, from)
}

// Order of lanes. t: 16b, 8h, 4s, 4h.

func (a *asm) permute(op uint32, name, t string, d, n, m V) {
	size := map[string]uint32{"16b": 1 << 30, "8h": 1<<30 | 1<<22, "4s": 1<<30 | 2<<22, "2d": 1<<30 | 3<<22, "4h": 1 << 22, "2s": 2 << 22, "8b": 0}[t]
	a.three(0x0e000800|size|op<<12, name, t, d, n, m)
}

func (a *asm) uzp1(t string, d, n, m V) { a.permute(1, "uzp1", t, d, n, m) }
func (a *asm) uzp2(t string, d, n, m V) { a.permute(5, "uzp2", t, d, n, m) }
func (a *asm) zip1(t string, d, n, m V) { a.permute(3, "zip1", t, d, n, m) }
func (a *asm) zip2(t string, d, n, m V) { a.permute(7, "zip2", t, d, n, m) }

// ext is bytes i.. of n followed by m.
func (a *asm) ext(d, n, m V, i int) {
	a.word(0x6e000000|uint32(m)<<16|uint32(i)<<11|uint32(n)<<5|uint32(d), "ext v%d.16b, v%d.16b, v%d.16b, #%d", d, n, m, i)
}

// Integers.

func (a *asm) add(d, n, m V)  { a.three(0x4ea08400, "add", "4s", d, n, m) }
func (a *asm) addD(d, n, m V) { a.three(0x4ee08400, "add", "2d", d, n, m) }
func (a *asm) sub(d, n, m V)  { a.three(0x6ea08400, "sub", "4s", d, n, m) }
func (a *asm) addp(d, n, m V) { a.three(0x4ea0bc00, "addp", "4s", d, n, m) }
func (a *asm) addpH(d, n, m V) {
	a.three(0x4e60bc00, "addp", "8h", d, n, m)
}
func (a *asm) subB(d, n, m V) { a.three(0x6e208400, "sub", "16b", d, n, m) }

// cmtst sets bytes where n and m have a bit in common.
func (a *asm) cmtst(d, n, m V) { a.three(0x4e208c00, "cmtst", "16b", d, n, m) }

// ushl shifts lanes of n by the signed low bytes of m's, left when positive.
func (a *asm) ushl(t string, d, n, m V) {
	a.three(0x6e204400|map[string]uint32{"16b": 0, "8h": 1, "4s": 2}[t]<<22, "ushl", t, d, n, m)
}
func (a *asm) umax(d, n, m V) { a.three(0x6ea06400, "umax", "4s", d, n, m) }
func (a *asm) cmgt(d, n, m V) { a.three(0x4ea03400, "cmgt", "4s", d, n, m) }
func (a *asm) saddlp(d, n V)  { a.two(0x4e202800, "saddlp", "8h", "16b", d, n) }
func (a *asm) umaxv(d, n V)   { a.word(0x6eb0a800|uint32(n)<<5|uint32(d), "umaxv s%d, v%d.4s", d, n) }
func (a *asm) addv(d, n V)    { a.word(0x4eb1b800|uint32(n)<<5|uint32(d), "addv s%d, v%d.4s", d, n) }
func (a *asm) addvH(d, n V)   { a.word(0x4e71b800|uint32(n)<<5|uint32(d), "addv h%d, v%d.8h", d, n) }

// sdot adds to each lane of d the four products of signed bytes of n and m there.
func (a *asm) sdot(d, n, m V) {
	a.word(0x4e809400|uint32(m)<<16|uint32(n)<<5|uint32(d), "sdot v%d.4s, v%d.16b, v%d.16b", d, n, m)
}

// mla adds n times lane i of m to d.
func (a *asm) mla(d, n, m V, i int) {
	a.word(0x6f800000|uint32(i&1)<<21|uint32(i>>1)<<11|uint32(m)<<16|uint32(n)<<5|uint32(d), "mla v%d.4s, v%d.4s, v%d.s[%d]", d, n, m, i)
}

// smull and smlal multiply the low (or high) four int16 lanes to int32, smlal adding.
func (a *asm) smull(high bool, d, n, m V) { a.long16(0x0e60c000, "smull", high, d, n, m) }
func (a *asm) smlal(high bool, d, n, m V) { a.long16(0x0e608000, "smlal", high, d, n, m) }

func (a *asm) long16(w uint32, name string, high bool, d, n, m V) {
	t := "4h"
	if high {
		w, name, t = w|1<<30, name+"2", "8h"
	}
	a.word(w|uint32(m)<<16|uint32(n)<<5|uint32(d), "%s v%d.4s, v%d.%s, v%d.%s", name, d, n, t, m, t)
}

// Floats.

func (a *asm) fadd(d, n, m V)   { a.three(0x4e20d400, "fadd", "4s", d, n, m) }
func (a *asm) fsub(d, n, m V)   { a.three(0x4ea0d400, "fsub", "4s", d, n, m) }
func (a *asm) fmul(d, n, m V)   { a.three(0x6e20dc00, "fmul", "4s", d, n, m) }
func (a *asm) fmla(d, n, m V)   { a.three(0x4e20cc00, "fmla", "4s", d, n, m) }
func (a *asm) fmlaD(d, n, m V)  { a.three(0x4e60cc00, "fmla", "2d", d, n, m) }
func (a *asm) fmax(d, n, m V)   { a.three(0x4e20f400, "fmax", "4s", d, n, m) }
func (a *asm) fmin(d, n, m V)   { a.three(0x4ea0f400, "fmin", "4s", d, n, m) }
func (a *asm) fmaxnm(d, n, m V) { a.three(0x4e20c400, "fmaxnm", "4s", d, n, m) }
func (a *asm) fcmgt(d, n, m V)  { a.three(0x6ea0e400, "fcmgt", "4s", d, n, m) }
func (a *asm) fcmeq(d, n, m V)  { a.three(0x4e20e400, "fcmeq", "4s", d, n, m) }
func (a *asm) faddp(d, n, m V)  { a.three(0x6e20d400, "faddp", "4s", d, n, m) }
func (a *asm) scvtf(d, n V)     { a.two(0x4e21d800, "scvtf", "4s", "4s", d, n) }
func (a *asm) fcvtns(d, n V)    { a.two(0x4e21a800, "fcvtns", "4s", "4s", d, n) }
func (a *asm) fcvtzs(d, n V)    { a.two(0x4ea1b800, "fcvtzs", "4s", "4s", d, n) }
func (a *asm) fneg(d, n V)      { a.two(0x6ea0f800, "fneg", "4s", "4s", d, n) }
func (a *asm) fcvtl(d, n V)     { a.two(0x0e217800, "fcvtl", "4s", "4h", d, n) }
func (a *asm) fcvtl2(d, n V)    { a.two(0x4e217800, "fcvtl2", "4s", "8h", d, n) }
func (a *asm) fcvtlD(d, n V)    { a.two(0x0e617800, "fcvtl", "2d", "2s", d, n) }
func (a *asm) fcvtl2D(d, n V)   { a.two(0x4e617800, "fcvtl2", "2d", "4s", d, n) }
func (a *asm) fcvtn(d, n V)     { a.two(0x0e216800, "fcvtn", "4h", "4s", d, n) }
func (a *asm) fcvtn2(d, n V)    { a.two(0x4e216800, "fcvtn2", "8h", "4s", d, n) }
func (a *asm) fmaxnmv(d, n V) {
	a.word(0x6e30c800|uint32(n)<<5|uint32(d), "fmaxnmv s%d, v%d.4s", d, n)
}

// Single elements, in lane 0.

// fmadd1 is d = n*m + c, rounded once.
func (a *asm) fmadd1(d, n, m, c V) {
	a.word(0x1f000000|uint32(m)<<16|uint32(c)<<10|uint32(n)<<5|uint32(d), "fmadd s%d, s%d, s%d, s%d", d, n, m, c)
}
func (a *asm) fcvtSH(d, n V) { a.word(0x1ee24000|uint32(n)<<5|uint32(d), "fcvt s%d, h%d", d, n) }
func (a *asm) faddp1(d, n V) { a.word(0x7e30d800|uint32(n)<<5|uint32(d), "faddp s%d, v%d.2s", d, n) }
func (a *asm) shl1(d, n V, s int) { // of 64 bits
	a.word(0x5f005400|uint32(64+s)<<16|uint32(n)<<5|uint32(d), "shl d%d, d%d, #%d", d, n, s)
}

// Memory.

var access = map[string]struct {
	size             int
	ld, ldu, st, stu uint32
}{
	"q": {16, 0x3dc00000, 0x3cc00000, 0x3d800000, 0x3c800000},
	"d": {8, 0xfd400000, 0xfc400000, 0xfd000000, 0xfc000000},
	"s": {4, 0xbd400000, 0xbc400000, 0xbd000000, 0xbc000000},
	"h": {2, 0x7d400000, 0x7c400000, 0x7d000000, 0x7c000000},
	"b": {1, 0x3d400000, 0x3c400000, 0x3d000000, 0x3c000000},
}

// load reads a register of width q, d, s, h or b from off bytes after r.
func (a *asm) load(width string, v V, r R, off int) {
	x := access[width]
	a.memory(x.size, x.ld, x.ldu, "ld", width, v, r, off)
}

func (a *asm) store(width string, v V, r R, off int) {
	x := access[width]
	a.memory(x.size, x.st, x.stu, "st", width, v, r, off)
}

func (a *asm) memory(size int, scaled, unscaled uint32, name, width string, v V, r R, off int) {
	at := ""
	if off != 0 {
		at = fmt.Sprintf(", #%d", off)
	}
	switch {
	case off >= 0 && off%size == 0 && off/size < 4096:
		a.word(scaled|uint32(off/size)<<10|uint32(r)<<5|uint32(v), "%sr %s%d, [x%d%s]", name, width, v, r, at)
	case off >= -256 && off < 256:
		a.word(unscaled|uint32(off&0x1ff)<<12|uint32(r)<<5|uint32(v), "%sur %s%d, [x%d%s]", name, width, v, r, at)
	default:
		panic(fmt.Sprintf("%s: no load at offset %d", a.fn, off))
	}
}

// loadAll reads one element, of width s or h, to all lanes (four or eight).
func (a *asm) loadAll(width string, v V, r R) {
	t, w := "4s", uint32(0x4d40c800)
	if width == "h" {
		t, w = "8h", 0x4d40c400
	}
	a.word(w|uint32(r)<<5|uint32(v), "ld1r {v%d.%s}, [x%d]", v, t, r)
}

// loadLane reads 32 bits to lane i.
func (a *asm) loadLane(v V, i int, r R) {
	a.word(0x0d408000|uint32(i>>1)<<30|uint32(i&1)<<12|uint32(r)<<5|uint32(v), "ld1 {v%d.s}[%d], [x%d]", v, i, r)
}

func (a *asm) storeLane(v V, i int, r R) {
	a.word(0x0d008000|uint32(i>>1)<<30|uint32(i&1)<<12|uint32(r)<<5|uint32(v), "st1 {v%d.s}[%d], [x%d]", v, i, r)
}

// prefetch asks for the line at r+o, o a register.
func (a *asm) prefetch(r, o R) {
	a.word(0xf8a06800|uint32(o)<<16|uint32(r)<<5, "prfm pldl1keep, [x%d, x%d]", r, o)
}

// spill is the address of the function's local memory, size bytes of it.
func (a *asm) spill(r R, size int) { a.op("MOVD $spill-%d(SP), R%d", size, r) }
