package quant

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"terrace/gguf"
	"terrace/internal/testfile"
)

const goldenDir = "../testdata/golden/quants/"

// unpack reads a gzipped golden file.
func unpack(tb testing.TB, name string) []byte {
	tb.Helper()
	return testfile.Gunzip(tb, goldenDir+name+".gz")
}

// floats reads a gzipped golden file of float32 numbers.
func floats(tb testing.TB, name string) []float32 {
	tb.Helper()
	b := unpack(tb, name)
	f := make([]float32, len(b)/4)
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, f); err != nil {
		tb.Fatal(err)
	}
	return f
}

// goldenType is one entry of manifest.json.
type goldenType struct {
	Type        string    `json:"type"`
	ID          gguf.Type `json:"id"`
	BlockValues int       `json:"block_values"`
	BlockBytes  int       `json:"block_bytes"`
	RowBytes    int       `json:"row_bytes"`
	Shape       [2]int    `json:"shape"`
	RMSE        float64   `json:"relative_rmse"`
	Dot         []float64 `json:"dot"`
	CodesDot    []float64 `json:"codes_dot"`
}

// manifest lists the golden types.
func manifest(tb testing.TB) []goldenType {
	tb.Helper()
	b, err := os.ReadFile(goldenDir + "manifest.json")
	if err != nil {
		tb.Fatal(err)
	}
	var m struct{ Types []goldenType }
	if err := json.Unmarshal(b, &m); err != nil {
		tb.Fatal(err)
	}
	if len(m.Types) != 27 {
		tb.Fatalf("manifest lists %d types, want 27", len(m.Types))
	}
	return m.Types
}

// sameBits compares NaN-aware: any NaN equals any other, all else by bits (so -0 is not 0).
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func TestDecodeGolden(t *testing.T) {
	act := floats(t, "activation.f32.bin")
	for _, g := range manifest(t) {
		t.Run(g.Type, func(t *testing.T) {
			if g.ID.BlockSize() != g.BlockValues || g.ID.BlockBytes() != g.BlockBytes || g.ID.RowBytes(g.Shape[1]) != g.RowBytes {
				t.Fatalf("%v: blocks of %d in %d bytes, rows of %d; want %d, %d, %d",
					g.ID, g.ID.BlockSize(), g.ID.BlockBytes(), g.ID.RowBytes(g.Shape[1]), g.BlockValues, g.BlockBytes, g.RowBytes)
			}
			if !Supported(g.ID) {
				t.Fatalf("%v is not supported", g.ID)
			}
			for _, kind := range []struct {
				name string
				dot  []float64
			}{{"", g.Dot}, {".codes", g.CodesDot}} {
				src, want := unpack(t, g.Type+kind.name+".bin"), floats(t, g.Type+kind.name+".f32.bin")
				got := make([]float32, len(want))
				if err := Decode(g.ID, got, src); err != nil {
					t.Fatal(err)
				}
				bad := 0
				for i := range want {
					if sameBits(got[i], want[i]) {
						continue
					}
					if bad++; bad <= 3 {
						t.Errorf("%s%s: element %d is %g (%08x), want %g (%08x)", g.Type, kind.name, i,
							got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
					}
				}
				if bad > 0 {
					t.Errorf("%s%s: %d of %d elements differ", g.Type, kind.name, bad, len(want))
				}
				for r, d := range kind.dot {
					sum, mag := 0.0, 0.0
					for i, a := range act {
						p := float64(a) * float64(got[r*len(act)+i])
						sum, mag = sum+p, mag+math.Abs(p)
					}
					if math.Abs(sum-d) > 1e-12*mag {
						t.Errorf("%s%s: row %d times the activation is %v, want %v", g.Type, kind.name, r, sum, d)
					}
				}
			}
		})
	}
}
