// Package fmath holds the few functions whose bits are part of Terrace's numeric contract: one implementation
// for every path, portable Go, assembly or shader.
//
// It is no general mathematics library: everything here is written as a fixed sequence of IEEE operations, so that
// vector code can repeat it lane by lane, and another architecture instruction by instruction, and get the same bits.
package fmath

import "math"

// Fma returns a*b+c rounded once, for machines and paths without a fused instruction. The product of two float32 is
// exact in float64; the sum is rounded to odd there, so that the second rounding, to float32, is the only one that counts
// (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
func Fma(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	z := float64(c)
	s := p + z
	u := math.Float64bits(s)
	// Only a sum whose low 29 bits are exactly a half, or a float32 subnormal, can be rounded twice to another value.
	if u&0x1fffffff != 0x10000000 && u>>52&0x7ff > 1023-127 {
		return float32(s)
	}
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return float32(s)
	}
	// TwoSum: e is the exact error of s.
	t := float64(s - p)
	e := float64(p-float64(s-t)) + float64(z-t)
	if e != 0 && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
		s = math.Float64frombits(u)
	}
	return float32(s)
}

// Exp limits: below ExpMin the result is 0; above ExpMax it is that of ExpMax (2.4e38), never an infinity.
const (
	ExpMin = -87.33654
	ExpMax = 88.37626
)

// Exp returns e**x within 2 units in the last place. Products and sums are rounded separately (no fused multiply-add), so
// that any device with IEEE single precision can give these bits. The reduction and the coefficients are those of the
// Cephes library's expf. NaN stays NaN.
func Exp(x float32) float32 {
	if x != x {
		return x
	}
	if x < ExpMin {
		return 0
	}
	if x > ExpMax {
		x = ExpMax
	}
	const magic = 12582912 // 1.5 * 2^23: adding it rounds to an integer
	n := float32(float32(x*1.44269504)+magic) - magic
	r := x - float32(n*0.693359375)
	r = r - float32(n*-2.12194440e-4)
	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	y := float32(p*float32(r*r)) + r
	y = y + 1
	return math.Float32frombits(math.Float32bits(y) + uint32(int32(n))<<23)
}

// Recip returns 1/y for y in [1, 2^126] by four Newton steps from an integer guess: division is not correctly rounded on
// every device, products and differences are.
func Recip(y float32) float32 {
	r := math.Float32frombits(0x7EF311C3 - math.Float32bits(y))
	r = float32(r * (2 - float32(y*r)))
	r = float32(r * (2 - float32(y*r)))
	r = float32(r * (2 - float32(y*r)))
	return r + float32(r*(1-float32(y*r))) // this form rounds best: Recip(1) is 1
}

// Sigmoid returns 1/(1+e**-x); x is held to at least -87. NaN stays NaN.
func Sigmoid(x float32) float32 {
	if x != x {
		return x
	}
	if x < -87 {
		x = -87
	}
	return Recip(1 + Exp(-x))
}

// Silu returns x*Sigmoid(x).
func Silu(x float32) float32 { return float32(x * Sigmoid(x)) }
