//go:build amd64 && !noasm

package kernels

import (
	"unsafe"

	"terrace/gguf"
	"terrace/quant"
)

// Bytes of a panel for one block; _gen/gemm_super.go and _gen/gemm_runs.go have the layouts.
const (
	recordSuper32Min = 4992
	recordSuper16Min = 5760
	recordSuper32    = 4928
	recordSuper16    = 5696
	recordRun        = 576
	recordRunTwo     = 640 // with a minimum, or two scales
)

// from sets the number of columns below which other tiles are faster, where there are any (BenchmarkCrossover).
func (k *gemmKernel) from(cols int) *gemmKernel {
	k.min = cols
	return k
}

func bindGemm() {
	super := func(unpack gemmUnpack, record int, x2, x4, x8 gemmTile) *gemmKernel {
		return &gemmKernel{unpack: unpack, tiles: [panelCols + 1]gemmTile{2: x2, 4: x4, 8: x8}, join: gemmJoin4AVX512,
			accs: 4, block: 256, record: record}
	}
	lookup16 := func(f gemmLookup, grid func() *byte) *gemmKernel {
		k := super(nil, recordSuper16, gemmSuper16x2AVX512, gemmSuper16x4AVX512, gemmSuper16x8AVX512)
		k.lookup, k.grid = f, grid
		return k
	}
	lookup32 := func(f gemmLookup, grid func() *byte) *gemmKernel {
		k := super(nil, recordSuper32, gemmSuper32x2AVX512, gemmSuper32x4AVX512, gemmSuper32x8AVX512)
		k.lookup, k.grid = f, grid
		return k
	}
	runs := func(unpack gemmUnpack, record, bias int, x2, x4, x8 gemmTile) *gemmKernel {
		return &gemmKernel{unpack: unpack, tiles: [panelCols + 1]gemmTile{2: x2, 4: x4, 8: x8}, join: gemmJoin8AVX512,
			accs: 8, block: 32, record: record, bias: bias}
	}
	plain := func(unpack gemmUnpack, bias int) *gemmKernel {
		return runs(unpack, recordRun, bias, gemmRunx2AVX512, gemmRunx4AVX512, gemmRunx8AVX512)
	}
	avx512.gemm = gemmTable{
		gguf.Q4_K:   super(gemmUnpackQ4KAVX512, recordSuper32Min, gemmSuper32Minx2AVX512, gemmSuper32Minx4AVX512, gemmSuper32Minx8AVX512),
		gguf.Q5_K:   super(gemmUnpackQ5KAVX512, recordSuper32Min, gemmSuper32Minx2AVX512, gemmSuper32Minx4AVX512, gemmSuper32Minx8AVX512),
		gguf.Q2_K:   super(gemmUnpackQ2KAVX512, recordSuper16Min, gemmSuper16Minx2AVX512, gemmSuper16Minx4AVX512, gemmSuper16Minx8AVX512),
		gguf.Q6_K:   super(gemmUnpackQ6KAVX512, recordSuper16, gemmSuper16x2AVX512, gemmSuper16x4AVX512, gemmSuper16x8AVX512).from(9),
		gguf.Q3_K:   super(gemmUnpackQ3KAVX512, recordSuper16, gemmSuper16x2AVX512, gemmSuper16x4AVX512, gemmSuper16x8AVX512),
		gguf.IQ4XS:  super(gemmUnpackIQ4XSAVX512, recordSuper32, gemmSuper32x2AVX512, gemmSuper32x4AVX512, gemmSuper32x8AVX512),
		gguf.TQ1_0:  super(gemmUnpackTQ1AVX512, recordSuper32, gemmSuper32x2AVX512, gemmSuper32x4AVX512, gemmSuper32x8AVX512),
		gguf.TQ2_0:  super(gemmUnpackTQ2AVX512, recordSuper32, gemmSuper32x2AVX512, gemmSuper32x4AVX512, gemmSuper32x8AVX512),
		gguf.IQ1S:   lookup32(gemmUnpackIQ1SAVX512, grid1),
		gguf.IQ1M:   lookup16(gemmUnpackIQ1MAVX512, grid1),
		gguf.IQ2XXS: lookup32(gemmUnpackIQ2XXSAVX512, grid256).from(7),
		gguf.IQ2XS:  lookup16(gemmUnpackIQ2XSAVX512, grid512).from(5),
		gguf.IQ2S:   lookup16(gemmUnpackIQ2SAVX512, grid1024).from(3),
		gguf.IQ3XXS: lookup32(gemmUnpackIQ3XXSAVX512, grid3x256).from(7),
		gguf.IQ3S:   lookup32(gemmUnpackIQ3SAVX512, grid3x512).from(5),
		gguf.Q8_0:   plain(gemmUnpackQ80AVX512, 128).from(6),
		gguf.Q4_0:   plain(gemmUnpackQ40AVX512, 8),
		gguf.Q5_0:   plain(gemmUnpackQ50AVX512, 16),
		gguf.IQ4NL:  plain(gemmUnpackIQ4NLAVX512, 128),
		gguf.MXFP4:  plain(gemmUnpackMXFP4AVX512, 12),
		gguf.Q1_0:   plain(gemmUnpackQ10AVX512, 1),
		gguf.Q2_0:   plain(gemmUnpackQ20AVX512, 1),
		gguf.Q4_1:   runs(gemmUnpackQ41AVX512, recordRunTwo, 0, gemmRunMinx2AVX512, gemmRunMinx4AVX512, gemmRunMinx8AVX512),
		gguf.Q5_1:   runs(gemmUnpackQ51AVX512, recordRunTwo, 0, gemmRunMinx2AVX512, gemmRunMinx4AVX512, gemmRunMinx8AVX512),
		gguf.NVFP4:  runs(gemmUnpackNVFP4AVX512, recordRunTwo, 12, gemmRunHalvesx2AVX512, gemmRunHalvesx4AVX512, gemmRunHalvesx8AVX512),
	}
	avx512.gemmFloat = gemmFloat{tile: gemmFloatx4AVX512, cols: 4, join: gemmFloatJoinAVX512, f16: gemmWidenF16AVX512, bf16: gemmWidenBF16AVX512, ready: true}
	avx2.gemmFloat = gemmFloat{tile: gemmFloatx2AVX2, cols: 2, join: gemmFloatJoinAVX2, f16: gemmWidenF16AVX2, bf16: gemmWidenBF16AVX2, ready: true}
	bindGemmAVX2()
}

// bindGemmAVX2 does the same for 256-bit vectors: two columns at a time, and tiles that differ by how large codes are.
func bindGemmAVX2() {
	super := func(unpack gemmUnpack, record int, x2 gemmTile) *gemmKernel {
		return &gemmKernel{unpack: unpack, tiles: [panelCols + 1]gemmTile{2: x2}, join: gemmJoin4AVX2, accs: 4, block: 256, record: record}
	}
	lookup := func(f gemmLookup, grid func() *byte, record int, x2 gemmTile) *gemmKernel {
		k := super(nil, record, x2)
		k.lookup, k.grid = f, grid
		return k
	}
	runs := func(unpack gemmUnpack, record, bias int, x2 gemmTile) *gemmKernel {
		return &gemmKernel{unpack: unpack, tiles: [panelCols + 1]gemmTile{2: x2}, join: gemmJoin8AVX2, accs: 8, block: 32, record: record, bias: bias}
	}
	avx2.gemm = gemmTable{
		gguf.Q4_K:   super(gemmUnpackQ4KAVX2, recordSuper32Min, gemmSuper32MinSteps8x2AVX2),
		gguf.Q5_K:   super(gemmUnpackQ5KAVX2, recordSuper32Min, gemmSuper32MinSteps4x2AVX2),
		gguf.Q2_K:   super(gemmUnpackQ2KAVX2, recordSuper16Min, gemmSuper16MinSteps4x2AVX2),
		gguf.Q6_K:   super(gemmUnpackQ6KAVX2, recordSuper16, gemmSuper16Steps2x2AVX2).from(6),
		gguf.Q3_K:   super(gemmUnpackQ3KAVX2, recordSuper16, gemmSuper16Steps4x2AVX2),
		gguf.IQ4XS:  super(gemmUnpackIQ4XSAVX2, recordSuper32, gemmSuper32Signedx2AVX2),
		gguf.TQ1_0:  super(gemmUnpackTQ1AVX2, recordSuper32, gemmSuper32Steps8x2AVX2),
		gguf.TQ2_0:  super(gemmUnpackTQ2AVX2, recordSuper32, gemmSuper32Steps8x2AVX2),
		gguf.IQ1S:   lookup(gemmUnpackIQ1SAVX2, grid1, recordSuper32, gemmSuper32Steps4x2AVX2),
		gguf.IQ1M:   lookup(gemmUnpackIQ1MAVX2, grid1, recordSuper16, gemmSuper16Steps4x2AVX2),
		gguf.IQ2XXS: lookup(gemmUnpackIQ2XXSAVX2, grid256, recordSuper32, gemmSuper32Signedx2AVX2),
		gguf.IQ2XS:  lookup(gemmUnpackIQ2XSAVX2, grid512, recordSuper16, gemmSuper16Signedx2AVX2),
		gguf.IQ2S:   lookup(gemmUnpackIQ2SAVX2, grid1024, recordSuper16, gemmSuper16Signedx2AVX2),
		gguf.IQ3XXS: lookup(gemmUnpackIQ3XXSAVX2, grid3x256, recordSuper32, gemmSuper32Signedx2AVX2),
		gguf.IQ3S:   lookup(gemmUnpackIQ3SAVX2, grid3x512, recordSuper32, gemmSuper32Steps4x2AVX2),
		gguf.Q8_0:   runs(gemmUnpackQ80AVX2, recordRun, 0, gemmRunSignedx2AVX2).from(6),
		gguf.Q4_0:   runs(gemmUnpackQ40AVX2, recordRun, 8, gemmRunSteps8x2AVX2),
		gguf.Q5_0:   runs(gemmUnpackQ50AVX2, recordRun, 16, gemmRunSteps4x2AVX2),
		gguf.IQ4NL:  runs(gemmUnpackIQ4NLAVX2, recordRun, 0, gemmRunSignedx2AVX2),
		gguf.MXFP4:  runs(gemmUnpackMXFP4AVX2, recordRun, 12, gemmRunSteps4x2AVX2),
		gguf.Q1_0:   runs(gemmUnpackQ10AVX2, recordRun, 1, gemmRunSteps8x2AVX2),
		gguf.Q2_0:   runs(gemmUnpackQ20AVX2, recordRun, 1, gemmRunSteps8x2AVX2),
		gguf.Q4_1:   runs(gemmUnpackQ41AVX2, recordRunTwo, 0, gemmRunMinSteps8x2AVX2),
		gguf.Q5_1:   runs(gemmUnpackQ51AVX2, recordRunTwo, 0, gemmRunMinSteps4x2AVX2),
		gguf.NVFP4:  runs(gemmUnpackNVFP4AVX2, recordRunTwo, 12, gemmRunHalvesSteps4x2AVX2),
	}
}

// The codebooks as bytes.
func grid1() *byte     { return (*byte)(unsafe.Pointer(quant.Grid1x2048())) }
func grid256() *byte   { return &quant.Grid256()[0][0] }
func grid512() *byte   { return &quant.Grid512()[0][0] }
func grid1024() *byte  { return &quant.Grid1024()[0][0] }
func grid3x256() *byte { return &quant.Grid3x256()[0][0] }
func grid3x512() *byte { return &quant.Grid3x512()[0][0] }
