package fmath

import (
	"math"
	"math/big"
	"math/rand"
	"testing"
)

func ulps(got float32, want float64) float64 {
	w := float32(want)
	if got == w {
		return 0
	}
	u := math.Abs(float64(math.Nextafter32(w, math.MaxFloat32)) - float64(w))
	return math.Abs(float64(got)-want) / u
}

func TestExp(t *testing.T) {
	worst := 0.0
	for x := float32(-87.3); x < 88.3; x += 0.00137 {
		worst = max(worst, ulps(Exp(x), math.Exp(float64(x))))
	}
	if worst > 2 {
		t.Errorf("Exp is off by %.2f units in the last place", worst)
	}
	if Exp(-100) != 0 || Exp(0) != 1 || math.IsInf(float64(Exp(1000)), 0) || Exp(float32(math.NaN())) == 0 {
		t.Errorf("limits: %v %v %v", Exp(-100), Exp(0), Exp(1000))
	}
	if Exp(float32(math.Inf(-1))) != 0 {
		t.Errorf("Exp(-Inf) = %v", Exp(float32(math.Inf(-1))))
	}
}

func TestSigmoid(t *testing.T) {
	worst := 0.0
	for x := float32(-86); x < 86; x += 0.00713 {
		worst = max(worst, ulps(Sigmoid(x), 1/(1+math.Exp(-float64(x)))))
	}
	if worst > 5 {
		t.Errorf("Sigmoid is off by %.2f units in the last place", worst)
	}
	if s := Sigmoid(float32(math.Inf(-1))); s < 0 || s > 1e-37 {
		t.Errorf("Sigmoid(-Inf) = %v", s)
	}
	if Sigmoid(200) != 1 {
		t.Errorf("Sigmoid(200) = %v", Sigmoid(200))
	}
}

// TestFma compares with exact rational arithmetic, on operands chosen so that double rounding would show.
func TestFma(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	f := func() float32 {
		return math.Float32frombits(uint32(r.Intn(2))<<31 | uint32(r.Intn(60)+97)<<23 | uint32(r.Intn(1<<23))&^(1<<uint(r.Intn(20))-1))
	}
	bad := 0
	for i := 0; i < 300000; i++ {
		a, b, c := f(), f(), f()
		switch i % 4 {
		case 1: // products near half a unit of c
			c = math.Float32frombits(math.Float32bits(a*b)&0xff800000 + uint32(r.Intn(25))<<23 + uint32(r.Intn(1<<23)))
		case 2: // subnormal results
			a = math.Float32frombits(uint32(r.Intn(40)+1)<<23 | uint32(r.Intn(1<<23)))
			b = math.Float32frombits(uint32(r.Intn(60)+70)<<23 | uint32(r.Intn(1<<23)))
			c = math.Float32frombits(uint32(r.Intn(2))<<31 | uint32(r.Intn(1<<24)))
		}
		x := new(big.Float).SetPrec(600).SetFloat64(float64(a))
		x.Mul(x, new(big.Float).SetPrec(600).SetFloat64(float64(b)))
		x.Add(x, new(big.Float).SetPrec(600).SetFloat64(float64(c)))
		want, _ := x.Float32()
		if got := Fma(a, b, c); got != want && bad < 5 {
			bad++
			t.Errorf("Fma(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
	}
}
