//go:build amd64 && !noasm

package kernels

import "terrace/compute"

var attendAVX2 = attendKernels{
	scores:   [2]floatKernel{compute.KVF16: f16RowsAVX2, compute.KVF32: f32RowsAVX2},
	values:   [2]valueKernel{compute.KVF16: valuesF16AVX2, compute.KVF32: valuesF32AVX2},
	scaleMax: scaleMaxAVX2,
	expSub:   expSubAVX2,
	scale:    scaleAVX2,
	decode:   [compute.KVTypes]func(dst *float32, w *byte, blocks int){compute.KVQ8_0: decodeQ80AVX2, compute.KVQ4_0: decodeQ40AVX2},
	four: &fourHeads{
		scores:   [2]func(p *float32, k *byte, stride int, q *float32, n, groups int){compute.KVF16: scores4F16AVX2, compute.KVF32: scores4F32AVX2},
		values:   [2]func(out, p *float32, v *byte, stride, n, dims int, sums *float32){compute.KVF16: values4F16AVX2, compute.KVF32: values4F32AVX2},
		scaleMax: scaleMax4AVX2,
		expSub:   expSub4AVX2,
	},
}

var attendAVX512 = attendKernels{
	scores:   [2]floatKernel{compute.KVF16: f16RowsAVX512, compute.KVF32: f32RowsAVX512},
	values:   [2]valueKernel{compute.KVF16: valuesF16AVX512, compute.KVF32: valuesF32AVX512},
	scaleMax: scaleMaxAVX2,
	expSub:   expSubAVX2,
	scale:    scaleAVX2,
	decode:   [compute.KVTypes]func(dst *float32, w *byte, blocks int){compute.KVQ8_0: decodeQ80AVX512, compute.KVQ4_0: decodeQ40AVX512},
	four: &fourHeads{
		scores:   [2]func(p *float32, k *byte, stride int, q *float32, n, groups int){compute.KVF16: scores4F16AVX512, compute.KVF32: scores4F32AVX512},
		values:   [2]func(out, p *float32, v *byte, stride, n, dims int, sums *float32){compute.KVF16: values4F16AVX512, compute.KVF32: values4F32AVX512},
		scaleMax: scaleMax4AVX512,
		expSub:   expSub4AVX512,
	},
}

func kvQ8Vector(dst []byte, x []float32) {
	for len(x) > 0 {
		n := min(len(x), callElems)
		encodeQ80AVX2(&dst[0], &x[0], n/32)
		dst, x = dst[n/32*blockQ8:], x[n:]
	}
}

func kvQ4Vector(dst []byte, x []float32) {
	for len(x) > 0 {
		n := min(len(x), callElems)
		encodeQ40AVX2(&dst[0], &x[0], n/32)
		dst, x = dst[n/32*blockQ4:], x[n:]
	}
}
