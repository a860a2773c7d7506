package synth

import (
	"bytes"
	"math"
	"testing"

	"terrace/gguf"
	"terrace/quant"
)

// TestPatterns decodes random blocks of every type: their weights have the deviation asked for, next to no mean, and no
// block is another's copy.
func TestPatterns(t *testing.T) {
	n := 0
	for typ := gguf.Type(0); typ < 64; typ++ {
		if !quant.Encodable(typ) {
			continue
		}
		n++
		const sigma = 0.02
		size, count := typ.BlockBytes(), int64(1000)
		if typ.BlockSize() == 1 {
			count = 100000
		}
		b, err := pattern(typ, count, 0, sigma, newRandom(7, "test"))
		if err != nil {
			t.Fatalf("%s: %v", typ, err)
		}
		if len(b) != int(count)*size {
			t.Fatalf("%s: %d bytes, want %d", typ, len(b), int(count)*size)
		}
		v := make([]float32, int(count)*typ.BlockSize())
		if err := quant.Decode(typ, v, b); err != nil {
			t.Fatal(err)
		}
		mean, rms := 0.0, 0.0
		for _, x := range v {
			mean += float64(x)
			rms += float64(x) * float64(x)
		}
		mean, rms = mean/float64(len(v)), math.Sqrt(rms/float64(len(v)))
		tol := 0.03
		if typ == gguf.NVFP4 {
			tol = 0.2 // its scales have three bits
		}
		if !(math.Abs(rms-sigma) < tol*sigma) || !(math.Abs(mean) < 0.2*sigma) {
			t.Errorf("%s: deviation %.5f and mean %.5f, want %.5f and about 0", typ, rms, mean, sigma)
		}
		if typ.BlockSize() == 1 {
			continue
		}
		seen := map[string]bool{}
		for i := 0; i < len(b); i += size {
			if seen[string(b[i:i+size])] {
				t.Fatalf("%s: block %d stands twice", typ, i/size)
			}
			seen[string(b[i:i+size])] = true
		}
	}
	if n < 25 {
		t.Errorf("%d types, want all that quant writes", n)
	}
}

// TestPatternRepeats writes a stack much larger than a pattern: no two of its matrices are equal.
func TestPatternRepeats(t *testing.T) {
	const experts, rows, width = 64, 640, 2560
	m := testWriter(t)
	x := tensor{WriteTensor: gguf.WriteTensor{Name: "x", Type: gguf.Q2_0, Dims: []uint64{width, rows, experts}}, sigma: 0.1}
	if err := m.pattern(&x, 0, newRandom(1, "x")); err != nil {
		t.Fatal(err)
	}
	size := gguf.Q2_0.RowBytes(width) * rows
	all := readAll(t, m.out)
	if len(all) != experts*size {
		t.Fatalf("%d bytes, want %d", len(all), experts*size)
	}
	for i := range experts {
		for j := range i {
			if bytes.Equal(all[i*size:(i+1)*size], all[j*size:(j+1)*size]) {
				t.Fatalf("experts %d and %d are equal", j, i)
			}
		}
	}
}
