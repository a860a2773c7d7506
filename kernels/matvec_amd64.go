//go:build amd64 && !noasm

package kernels

import "terrace/gguf"

// bindMatvec adds the mat-vec kernels of the types that have nothing but one.
func bindMatvec() {
	bindBooks()
	avx2.readLoop = func(b []byte) uint64 { return readLoopVector(readLoopAVX2, 8*32, b) }
	avx512.readLoop = func(b []byte) uint64 { return readLoopVector(readLoopAVX512, 8*64, b) }
	for t, k := range map[gguf.Type][2]matrixKernel{
		gguf.Q4_0:   {q40RowsAVX2, q40RowsAVX512},
		gguf.Q4_1:   {q41RowsAVX2, q41RowsAVX512},
		gguf.Q5_0:   {q50RowsAVX2, q50RowsAVX512},
		gguf.Q5_1:   {q51RowsAVX2, q51RowsAVX512},
		gguf.IQ4NL:  {iq4nlRowsAVX2, iq4nlRowsAVX512},
		gguf.MXFP4:  {mxfp4RowsAVX2, mxfp4RowsAVX512},
		gguf.NVFP4:  {nvfp4RowsAVX2, nvfp4RowsAVX512},
		gguf.Q2_0:   {q20RowsAVX2, q20RowsAVX512},
		gguf.Q1_0:   {q10RowsAVX2, q10RowsAVX512},
		gguf.TQ1_0:  {tq10RowsAVX2, tq10RowsAVX2},
		gguf.IQ1S:   {iq1sRowsAVX2, iq1sRowsAVX512},
		gguf.IQ1M:   {iq1mRowsAVX2, iq1mRowsAVX512},
		gguf.Q5_K:   {q5kRowsAVX2, q5kRowsAVX512},
		gguf.Q2_K:   {q2kRowsAVX2, q2kRowsAVX512},
		gguf.Q3_K:   {q3kRowsAVX2, q3kRowsAVX512},
		gguf.IQ4XS:  {iq4xsRowsAVX2, iq4xsRowsAVX512},
		gguf.TQ2_0:  {tq20RowsAVX2, tq20RowsAVX512},
		gguf.IQ2XXS: {iq2xxsRowsAVX2, iq2xxsRowsAVX512},
		gguf.IQ2XS:  {iq2xsRowsAVX2, iq2xsRowsAVX512},
		gguf.IQ2S:   {iq2sRowsAVX2, iq2sRowsAVX512},
		gguf.IQ3XXS: {iq3xxsRowsAVX2, iq3xxsRowsAVX512},
		gguf.IQ3S:   {iq3sRowsAVX2, iq3sRowsAVX512},
	} {
		least := 0
		if weightTable[t].act == Act32 {
			least = 8
		}
		avx2.tiles[t] = &tiles{rows: k[0], least: least}
		avx512.tiles[t] = &tiles{rows: k[1], least: least}
	}
	for _, t := range []gguf.Type{gguf.IQ1S, gguf.IQ2XXS, gguf.IQ3XXS, gguf.IQ3S} {
		avx512.tiles[t].order = orderOctetsAVX512
	}
	for _, t := range []gguf.Type{gguf.IQ1M, gguf.IQ2XS, gguf.IQ2S} {
		avx512.tiles[t].order = orderQuadsAVX512
	}
}

// readLoopVector reads b by f, which takes step bytes a step.
func readLoopVector(f func(p *byte, steps int) uint64, step int, b []byte) (sum uint64) {
	for len(b) >= step {
		n := min(len(b), readBytes) / step
		sum += f(&b[0], n)
		b = b[n*step:]
	}
	return sum + readLoopGeneric(b)
}
