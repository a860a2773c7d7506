package fmath

import "math"

// The float64 functions below exist because package math promises no bits: some architectures have assembly of their own
// there, and on others the compiler fuses products and sums. Each product here is rounded by an explicit conversion.

// Pi/2 in three parts: the first two have 28 bits, so that their products with integers below 2^25 are exact.
const (
	halfPi1 = 0x1.921fb54p+0
	halfPi2 = 0x1.10b461p-30
	halfPi3 = 0x1.a62633145c06ep-58
)

// Sincos returns the sine and the cosine of x within 2 units in the last place, for |x| below 2^25 and x a float32;
// larger angles are taken modulo the float64 nearest to 2*pi. Infinities and NaN give NaN.
func Sincos(x float64) (sin, cos float64) {
	if !(math.Abs(x) < 1<<25) {
		x = math.Mod(x, 2*math.Pi)
		if x != x {
			return x, x
		}
	}
	n := math.RoundToEven(float64(x * (2 / math.Pi)))
	r := x - float64(n*halfPi1)
	r = r - float64(n*halfPi2)
	r = r - float64(n*halfPi3)
	z := float64(r * r)
	// Taylor series: on [-pi/4, pi/4] the first term left out is below 2^-57.
	s := series(z, -1.0/6, 1.0/120, -1.0/5040, 1.0/362880, -1.0/39916800, 1.0/6227020800, -1.0/1307674368000)
	c := series(z, 1.0/24, -1.0/720, 1.0/40320, -1.0/3628800, 1.0/479001600, -1.0/87178291200, 1.0/20922789888000)
	sin = r + float64(float64(r*z)*s)
	half := float64(0.5 * z)
	top := 1 - half
	low := (1 - top) - half // what top lost
	cos = top + (low + float64(float64(z*z)*c))
	switch int64(n) & 3 {
	case 1:
		return cos, -sin
	case 2:
		return -sin, -cos
	case 3:
		return -cos, sin
	}
	return sin, cos
}

// series returns c[0] + c[1]*z + c[2]*z^2 and so on.
func series(z float64, c ...float64) float64 {
	s := c[len(c)-1]
	for i := len(c) - 2; i >= 0; i-- {
		s = c[i] + float64(s*z)
	}
	return s
}

// Ln 2 in two parts, the first of 33 bits.
const (
	ln2Hi = 0x1.62e42fefp-1
	ln2Lo = 0x1.473de6af278edp-34
)

// Log returns the natural logarithm of x within 2 units in the last place or 2^-53; for what is not positive and finite
// it returns what math.Log does.
func Log(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return math.Log(x)
	}
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	// With s = (m-1)/(m+1), |s| < 0.172, ln m is 2*(s + s^3/3 + s^5/5 ...).
	s := (m - 1) / (m + 1)
	z := float64(s * s)
	p := series(z, 1.0/3, 1.0/5, 1.0/7, 1.0/9, 1.0/11, 1.0/13, 1.0/15, 1.0/17, 1.0/19, 1.0/21)
	n := float64(e)
	low := float64(2*float64(float64(s*z)*p)) + float64(n*ln2Lo)
	return float64(n*ln2Hi) + (float64(2*s) + low)
}

// Pow returns x**y for x > 0 within 2^-45 of its value while that is between 2^-100 and 2^100.
func Pow(x, y float64) float64 {
	t := float64(y * Log(x))
	if !(math.Abs(t) < 700) {
		return math.Pow(x, y) // no finite result, or hardly: no bits to promise
	}
	n := math.RoundToEven(float64(t * math.Log2E))
	r := t - float64(n*ln2Hi)
	r = r - float64(n*ln2Lo)
	p := series(r, 1.0/2, 1.0/6, 1.0/24, 1.0/120, 1.0/720, 1.0/5040, 1.0/40320, 1.0/362880, 1.0/3628800,
		1.0/39916800, 1.0/479001600, 1.0/6227020800)
	return math.Ldexp(1+(r+float64(float64(r*r)*p)), int(n))
}
