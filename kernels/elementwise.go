package kernels

import (
	"math"

	"terrace/compute"
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

// chunk is how many elements an activation puts aside.
const chunk = 64

// Activate sets dst to act of a and b, which have the same length; dst may be either. compute.Act says what the functions
// are; products and sums are rounded one by one, from left to right as written there. With ReLU2 b is nil.
func Activate(act compute.Act, dst, a, b []float32, s *Scratch) {
	switch act {
	case compute.SiLU:
		SiluMul(dst, a, b)
		return
	case compute.Sigmoid:
		SigmoidMul(dst, a, b)
		return
	case compute.ReLU2:
		sameLen("Activate", len(dst), len(a))
		for i, x := range a {
			x = max(x, 0)
			dst[i] = float32(x * x)
		}
		return
	}
	sameLen("Activate", len(dst), len(a), len(b))
	for len(dst) > 0 {
		n := min(chunk, len(dst))
		x, t := s.aside[0][:n], s.aside[1][:n]
		if act == compute.GELU {
			for i, v := range a[:n] {
				const c = 2 * 0.7978845608028654 // of sqrt(2/pi)
				cube := float32(float32(v*v) * v)
				t[i] = float32(c * (v + float32(0.044715*cube)))
			}
			current().sigMul(x, t, a[:n])
			for i, v := range b[:n] {
				dst[i] = float32(x[i] * v)
			}
		} else {
			for i, v := range a[:n] {
				x[i] = min(v, 7)
				t[i] = float32(1.702 * x[i])
			}
			current().sigMul(x, t, x)
			for i, v := range b[:n] {
				dst[i] = float32(x[i] * (max(-7, min(v, 7)) + 1))
			}
		}
		dst, a, b = dst[n:], a[n:], b[n:]
	}
}

// Softcap sets each element of x to limit*tanh(x/limit): times 1/limit, fmath's Tanh, times limit.
func Softcap(x []float32, limit float32) {
	inv := 1 / limit
	for i, v := range x {
		x[i] = float32(limit * fmath.Tanh(float32(v*inv)))
	}
}

// Mul multiplies dst by x, which has the same length.
func Mul(dst, x []float32) {
	sameLen("Mul", len(dst), len(x))
	for i, v := range x {
		dst[i] = float32(dst[i] * v)
	}
}

// Scale multiplies x by s.
func Scale(x []float32, s float32) {
	for i, v := range x {
		x[i] = float32(v * s)
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
