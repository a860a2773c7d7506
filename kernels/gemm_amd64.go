//go:build amd64 && !noasm

package kernels

import "terrace/gguf"

// Bytes of a panel for one block: gemm_super.go and gemm_runs.go in _gen.
const (
	recordSuper32Min = 4992
	recordSuper16    = 5696
)

func bindGemm() {
	super := func(unpack gemmUnpack, record, min int, x2, x4, x8 gemmTile) *gemmKernel {
		return &gemmKernel{unpack: unpack, tiles: [panelCols + 1]gemmTile{2: x2, 4: x4, 8: x8}, join: gemmJoin4AVX512,
			accs: 4, block: 256, record: record, min: min}
	}
	avx512.gemm = gemmTable{
		gguf.Q4_K: super(gemmUnpackQ4KAVX512, recordSuper32Min, 2, gemmSuper32Minx2AVX512, gemmSuper32Minx4AVX512, gemmSuper32Minx8AVX512),
		gguf.Q5_K: super(gemmUnpackQ5KAVX512, recordSuper32Min, 2, gemmSuper32Minx2AVX512, gemmSuper32Minx4AVX512, gemmSuper32Minx8AVX512),
		gguf.Q6_K: super(gemmUnpackQ6KAVX512, recordSuper16, 2, gemmSuper16x2AVX512, gemmSuper16x4AVX512, gemmSuper16x8AVX512),
	}
}
