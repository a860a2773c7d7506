//go:build (amd64 || arm64) && !noasm

package kernels

import (
	"unsafe"

	"terrace/compute"
	"terrace/internal/fmath"
)

// addRows is addRowsGeneric by the kernel that adds up values in attention; the elements after the last 16 in portable code.
func (k *attendKernels) addRows(out, p, v []float32) {
	n, dims := len(out), len(out)&^15
	if dims > 0 {
		k.values[compute.KVF32](&out[0], &p[0], (*byte)(unsafe.Pointer(&v[0])), 4*n, len(p), dims)
	}
	for i, w := range p {
		for j := dims; j < n; j++ {
			out[j] = fmath.Fma(w, v[i*n+j], out[j])
		}
	}
}
