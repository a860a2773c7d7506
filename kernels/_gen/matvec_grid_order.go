package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// orders write the layouts of activations that gridRows takes, of nb super-blocks.
func (v isa) orders() {
	for _, o := range []struct {
		name string
		doc  []string
		size int
		sort func(i int) int // in what order the lanes of all vectors, one after the other, take 64 activations
	}{
		{"orderOctets", []string{"lays out 256 activations as 8 vectors: byte p and byte 32+p of vector k are activation 8p+k."}, 512,
			func(i int) int { return 8*(i%8) + i/8 }},
		{"orderQuads", []string{"lays out 256 activations as 4 vectors: bytes 2p and 2p+1 of vector k are activations",
			"8p+k and 8p+k+2, from vector 2 on two more."}, 256,
			func(i int) int { return 8*(i%16/2) + i/32*4 + i%2*2 + i/16%2 }},
	} {
		TEXT(o.name+v.suffix(), NOSPLIT, "func(dst *int8, q *int8, nb int)")
		Pragma("noescape")
		Doc(append([]string{o.name + v.suffix() + " " + o.doc[0]}, o.doc[1:]...)...)
		dst, q := Load(Param("dst"), GP64()).(reg.GPVirtual), Load(Param("q"), GP64()).(reg.GPVirtual)
		n := Load(Param("nb"), GP64()).(reg.GPVirtual)
		sort := v.constant(each("sort_"+o.name, o.sort))
		loop("block", n, func() {
			var x [4]reg.VecVirtual
			for j := range x {
				x[j] = ZMM()
				VMOVDQU64(Mem{Base: q, Disp: 64 * j}, x[j])
				VPERMB(x[j], sort, x[j])
			}
			put := func(x reg.VecVirtual, lane, at int) { VEXTRACTI32X4(Imm(uint64(lane)), x, Mem{Base: dst, Disp: at}) }
			if o.size == 256 {
				for lane := range 4 {
					for j := range 4 {
						put(x[j], lane, 64*lane+16*j)
					}
				}
			} else {
				for j := 0; j < 4; j += 2 {
					t := ZMM()
					VPUNPCKHQDQ(x[j+1], x[j], t)
					VPUNPCKLQDQ(x[j+1], x[j], x[j])
					for lane := range 4 {
						for _, at := range []int{8 * j, 32 + 8*j} {
							put(x[j], lane, 128*lane+at)
							put(t, lane, 128*lane+64+at)
						}
					}
				}
			}
			ADDQ(U32(256), q)
			ADDQ(U32(uint32(o.size)), dst)
		})
		VZEROUPPER()
		RET()
	}
}
