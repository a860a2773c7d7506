package fmath

// Tanh returns the hyperbolic tangent of x within 2 units in the last place: a polynomial near zero, 1-2/(exp(2x)+1)
// beyond 0.625, products and sums rounded one by one. Coefficients are those of the Cephes library's tanhf. NaN stays NaN.
func Tanh(x float32) float32 {
	a := x
	if a < 0 {
		a = -a
	}
	if a < 0.625 {
		z := float32(x * x)
		p := float32(-5.70498872745e-3)
		p = float32(p*z) + 2.06390887954e-2
		p = float32(p*z) - 5.37397155531e-2
		p = float32(p*z) + 1.33314422036e-1
		p = float32(p*z) - 3.33332819422e-1
		return x + float32(float32(p*z)*x)
	}
	if a > 9.1 { // the next float32 below 1 is too far away
		a = 9.1
	}
	t := 1 - float32(2*Recip(Exp(float32(2*a))+1))
	if x < 0 {
		return -t
	}
	if x != x {
		return x
	}
	return t
}
