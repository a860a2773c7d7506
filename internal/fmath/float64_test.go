package fmath

import (
	"hash/fnv"
	"math"
	"testing"
)

func off(got, want float64) float64 {
	u := math.Nextafter(math.Abs(want), math.Inf(1)) - math.Abs(want)
	return math.Abs(got-want) / u
}

func TestSincos(t *testing.T) {
	worst := 0.0
	for i := range 400000 {
		x := float64(float32(math.Exp2(float64(i)/400000*30-5))) * float64(1-i&1*2)
		s, c := Sincos(x)
		ws, wc := math.Sincos(x)
		// The reference itself is good to a unit, and loses more beside the zeros of each.
		if math.Abs(ws) > 1e-4 {
			worst = max(worst, off(s, ws))
		}
		if math.Abs(wc) > 1e-4 {
			worst = max(worst, off(c, wc))
		}
	}
	if worst > 3 {
		t.Errorf("Sincos is off by %.2f units in the last place", worst)
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if s, c := Sincos(x); s == s || c == c {
			t.Errorf("Sincos(%g) = %g, %g", x, s, c)
		}
	}
	if s, c := Sincos(1e300); !(s*s+c*c > 0.999) {
		t.Errorf("Sincos(1e300) = %g, %g", s, c)
	}
	if s, c := Sincos(0); s != 0 || c != 1 {
		t.Errorf("Sincos(0) = %g, %g", s, c)
	}
}

func TestLog(t *testing.T) {
	for i := range 100000 {
		x := math.Exp2(float64(i)/500 - 100)
		want := math.Log(x)
		if d := math.Abs(Log(x) - want); d > 0x1p-53+2*math.Abs(want)*0x1p-53 {
			t.Fatalf("Log(%g) = %g, want %g", x, Log(x), want)
		}
	}
	for _, x := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if got, want := Log(x), math.Log(x); got != want && (got == got || want == want) {
			t.Errorf("Log(%g) = %g, want %g", x, got, want)
		}
	}
}

func TestPow(t *testing.T) {
	for _, base := range []float64{1e4, 5e5, 1e6, 1e7, 150000, 1.5, 0.3} {
		for i := range 4000 {
			y := float64(i-2000) / 501
			if want := math.Pow(base, y); !(math.Abs(Pow(base, y)-want) <= want*0x1p-45) {
				t.Fatalf("Pow(%g, %g) = %g, want %g", base, y, Pow(base, y), want)
			}
		}
	}
	for _, p := range [][2]float64{{-1, 2}, {0, 2}, {0, -1}, {math.NaN(), 1}, {2, math.NaN()}, {2, 5000}, {1, 7}} {
		if got, want := Pow(p[0], p[1]), math.Pow(p[0], p[1]); got != want && (got == got || want == want) {
			t.Errorf("Pow(%g, %g) = %g, want %g", p[0], p[1], got, want)
		}
	}
}

// TestBits pins the bits of the float64 functions: a compiler that fuses, or another architecture, must not change them.
func TestBits(t *testing.T) {
	h := fnv.New64a()
	add := func(f float64) {
		u := math.Float64bits(f)
		var b [8]byte
		for i := range b {
			b[i] = byte(u >> (8 * i))
		}
		h.Write(b[:])
	}
	for i := range 100000 {
		x := float64(float32(i) * 1.37)
		s, c := Sincos(x)
		add(s)
		add(c)
		add(Log(1 + x))
		add(Pow(1+x, -0.015625))
	}
	if got, want := h.Sum64(), uint64(0xd2e4f4bd1ca0b5b2); got != want {
		t.Errorf("hash of the bits is %#x, not %#x", got, want)
	}
}
