// Command gen writes the amd64 assembly of package kernels. Run it through go generate in ..; it is a module of its own,
// so that nobody who builds Terrace downloads it.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	set := flag.String("set", "", "what to write: avx2, avx512, matvec_avx2, matvec_avx512, gemm2, gemm512, attend, delta or common")
	flag.Parse()
	ConstraintExpr("amd64,!noasm")
	switch *set {
	case "avx2":
		matrixKernels(isa{})
	case "avx512":
		matrixKernels(isa{wide: true})
	case "matvec_avx2":
		matvecs(isa{})
	case "matvec_avx512":
		matvecs(isa{wide: true})
	case "gemm2":
		isa{}.gemm()
	case "gemm512":
		isa{wide: true}.gemm()
	case "common":
		elementwise()
		decoders()
		unpacked()
	case "attend":
		attendKernels()
	case "delta":
		deltaKernels()
	default:
		log.Fatalf("-set %q: want avx2, avx512, matvec_avx2, matvec_avx512, gemm2, gemm512, attend, delta or common", *set)
	}
	Generate()
}

func matrixKernels(v isa) {
	for _, s := range []shape{{4, 1}, {1, 4}} {
		v.kquant("q4k", s)
		v.kquant("q6k", s)
		for _, t := range []string{"f32", "f16", "bf16"} {
			v.floats(t, s)
		}
	}
	v.q8("q80Rows", 1)
	v.q8("q80Cols", 4)
	for _, t := range []string{"f32", "f16"} {
		v.values(t)
	}
}
