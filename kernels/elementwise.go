package kernels

import (
	"math"

	"terrace/internal/fmath"
)

func sameLen(name string, n int, lens ...int) {
	for _, l := range lens {
		if l != n {
			panicf("kernels: %s of slices of %d and %d elements", name, n, l)
		}
	}
}

// RMSNorm sets dst to x/sqrt(mean(x^2)+eps)*w; all three have the same length and dst may be x. Squares are exact in
// float64 and summed in 8 accumulators by index modulo 8, joined by halves; the scale is rounded to float32 once, then
// dst = (x*scale)*w.
func RMSNorm(dst, x, w []float32, eps float32) {
	sameLen("RMSNorm", len(x), len(dst), len(w))
	if len(x) > 0 {
		current().rmsNorm(dst, x, w, eps)
	}
}

// normScale turns the sum of squares of n elements into the factor of RMSNorm.
func normScale(sum float64, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(sum/float64(n)+float64(eps)))
}

func join8f64(a *[8]float64) float64 {
	return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

func rmsNormGeneric(dst, x, w []float32, eps float32) {
	var acc [8]float64
	for i, v := range x {
		acc[i&7] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), len(x), eps)
	for i, v := range x {
		dst[i] = float32(float32(v*scale) * w[i])
	}
}

// SiluMul sets dst to silu(gate)*up; all three have the same length and dst may be either.
func SiluMul(dst, gate, up []float32) {
	sameLen("SiluMul", len(dst), len(gate), len(up))
	if len(dst) > 0 {
		current().siluMul(dst, gate, up)
	}
}

func siluMulGeneric(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = float32(fmath.Silu(g) * up[i])
	}
}

// SigmoidMul sets dst to sigmoid(gate)*x; all three have the same length and dst may be either.
func SigmoidMul(dst, gate, x []float32) {
	sameLen("SigmoidMul", len(dst), len(gate), len(x))
	if len(dst) > 0 {
		current().sigMul(dst, gate, x)
	}
}

func sigmoidMulGeneric(dst, gate, x []float32) {
	for i, g := range gate {
		dst[i] = float32(fmath.Sigmoid(g) * x[i])
	}
}

// Add adds x to dst, which has the same length.
func Add(dst, x []float32) { AddScaled(dst, x, 1) } // times one is exact

// AddScaled adds w*x to dst, which has the same length; the product is rounded before the sum.
func AddScaled(dst, x []float32, w float32) {
	sameLen("AddScaled", len(dst), len(x))
	if len(dst) > 0 {
		current().addScaled(dst, x, w)
	}
}

func addScaledGeneric(dst, x []float32, w float32) {
	for i, v := range x {
		dst[i] += float32(w * v)
	}
}
