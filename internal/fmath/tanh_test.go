package fmath

import (
	"math"
	"testing"
)

func TestTanh(t *testing.T) {
	worst := 0.0
	for x := float32(-12); x < 12; x += 0.000137 {
		worst = max(worst, ulps(Tanh(x), math.Tanh(float64(x))))
	}
	for x := float32(1e-30); x < 1; x *= 1.01 {
		worst = max(worst, ulps(Tanh(x), math.Tanh(float64(x))))
	}
	if worst > 2 {
		t.Errorf("Tanh is off by %.2f units in the last place", worst)
	}
	inf := float32(math.Inf(1))
	if Tanh(inf) != 1 || Tanh(-inf) != -1 || Tanh(0) != 0 || Tanh(100) != 1 {
		t.Errorf("limits: %v %v %v %v", Tanh(inf), Tanh(-inf), Tanh(0), Tanh(100))
	}
	if x := Tanh(float32(math.NaN())); x == x {
		t.Errorf("Tanh(NaN) = %v", x)
	}
	for x := float32(0.001); x < 20; x *= 1.003 {
		if Tanh(-x) != -Tanh(x) {
			t.Fatalf("Tanh(%v) = %v, Tanh(%v) = %v", x, Tanh(x), -x, Tanh(-x))
		}
	}
}
