package quant

import (
	"bytes"
	"math"
	"testing"

	"terrace/gguf"
)

// TestEncodeError bounds the error of the encoders on the golden source by that of ggml's quantisers, which search for
// good scales: plain rounding may be worse by a tenth.
func TestEncodeError(t *testing.T) {
	src := floats(t, "source.f32.bin")
	for _, g := range manifest(t) {
		if !Encodable(g.ID) {
			continue
		}
		enc, dec := make([]byte, g.ID.RowBytes(len(src))), make([]float32, len(src))
		if err := Encode(g.ID, enc, src); err != nil {
			t.Fatal(err)
		}
		if err := Decode(g.ID, dec, enc); err != nil {
			t.Fatal(err)
		}
		err2, sum2 := 0.0, 0.0
		for i, v := range src {
			e := float64(v - dec[i])
			err2, sum2 = err2+e*e, sum2+float64(v)*float64(v)
		}
		rmse := math.Sqrt(err2 / sum2)
		t.Logf("%-7s relative error %.5f, ggml %.5f", g.Type, rmse, g.RMSE)
		if rmse > 1.1*g.RMSE {
			t.Errorf("%s: relative error %.5f, ggml has %.5f", g.Type, rmse, g.RMSE)
		}
	}
}

// TestEncodeSame checks that equal weights give equal bytes, whatever dst held before, and finite values.
func TestEncodeSame(t *testing.T) {
	for _, ty := range allTypes() {
		if !Encodable(ty) {
			continue
		}
		src := floats(t, "source.f32.bin")
		enc, dec := make([]byte, ty.RowBytes(len(src))), make([]float32, len(src))
		again := bytes.Repeat([]byte{0xa5}, len(enc))
		for _, step := range []error{Encode(ty, enc, src), Decode(ty, dec, enc), Encode(ty, again, src)} {
			if step != nil {
				t.Fatal(step)
			}
		}
		if !bytes.Equal(enc, again) {
			t.Errorf("%v: the same weights give other bytes", ty)
		}
		for i, v := range dec {
			if v != v || math.IsInf(float64(v), 0) {
				t.Fatalf("%v: element %d decodes to %g", ty, i, v)
			}
		}
	}
}

func TestEncodeEdges(t *testing.T) {
	tiny, flat, zero := make([]float32, 256), make([]float32, 256), make([]float32, 256)
	for i := range tiny {
		tiny[i], flat[i] = float32(i-128)*1e-43, 3
	}
	for _, ty := range allTypes() {
		if !Encodable(ty) {
			continue
		}
		enc, dec := make([]byte, ty.RowBytes(256)), make([]float32, 256)
		for name, src := range map[string][]float32{"tiny": tiny, "flat": flat, "zero": zero} {
			if err := Encode(ty, enc, src); err != nil {
				t.Fatalf("%v, %s: %v", ty, name, err)
			}
			if err := Decode(ty, dec, enc); err != nil {
				t.Fatal(err)
			}
			sum := 0.0
			for i := range dec {
				if name == "zero" && dec[i] != 0 {
					t.Errorf("%v: zero %d decodes to %g", ty, i, dec[i])
				}
				sum += float64(dec[i]-src[i]) * float64(dec[i]-src[i])
			}
			// One value everywhere is the worst case of the grids, which lack the rows of eight extremes.
			if rms := math.Sqrt(sum / float64(len(dec))); !(rms <= 0.5*3) {
				t.Errorf("%v, %s: error %g", ty, name, rms)
			}
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	bad := func(v float32) []float32 { s := make([]float32, 32); s[5] = v; return s }
	for _, c := range []struct {
		t    gguf.Type
		src  []float32
		dst  int
		want string
	}{
		{gguf.Q8_K, make([]float32, 256), 292, "quant: no encoder for Q8_K"},
		{gguf.Q8_0, make([]float32, 33), 34, "quant: Q8_0: 33 elements are not whole blocks of 32"},
		{gguf.Q8_0, make([]float32, 32), 33, "quant: Q8_0: 32 elements take 34 bytes, have 33"},
		{gguf.Q4_0, bad(nan), 18, "quant: Q4_0: element 5 is NaN, not a finite number"},
		{gguf.Q4_0, bad(inf), 18, "quant: Q4_0: element 5 is +Inf, not a finite number"},
		{gguf.Q4_1, bad(-70000), 20, "quant: Q4_1: element 5 is -70000, more than 65504"},
	} {
		if err := Encode(c.t, make([]byte, c.dst), c.src); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.t, err, c.want)
		}
	}
	enc := make([]byte, 8)
	if err := Encode(gguf.F32, enc, []float32{nan, inf}); err != nil {
		t.Errorf("F32 carries what is not finite: %v", err)
	}
}
