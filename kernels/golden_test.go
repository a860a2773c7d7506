package kernels

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"terrace/gguf"
	"terrace/internal/testfile"
)

const goldenDir = "../testdata/golden/quants"

func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	return testfile.Gunzip(t, filepath.Join(goldenDir, name+".gz"))
}

// TestGoldenDots multiplies ggml's own blocks with its activation vector, on every level, in fast and in exact mode.
func TestGoldenDots(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(goldenDir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Rows, Columns int
		Types         []struct {
			Type     string
			ID       gguf.Type
			Dot      []float64
			CodesDot []float64 `json:"codes_dot"`
		}
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	n := manifest.Columns
	x := make([]float32, n)
	if err := binary.Read(bytes.NewReader(readGolden(t, "activation.f32.bin")), binary.LittleEndian, x); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for l := LevelGeneric; l <= best(); l++ {
		defer SetLevel(l)()
		for _, typ := range manifest.Types {
			for _, set := range []struct {
				file string
				dots []float64
			}{{typ.Type + ".bin", typ.Dot}, {typ.Type + ".codes.bin", typ.CodesDot}} {
				w := readGolden(t, set.file)
				rb := typ.ID.RowBytes(n)
				rows := len(w) / rb
				if rows != len(set.dots) || rows != manifest.Rows {
					t.Fatalf("%s: %d rows, %d dot products", set.file, rows, len(set.dots))
				}
				fast, ok := KindOf(typ.ID)
				if !ok {
					t.Fatalf("%s is not multiplied", typ.ID)
				}
				for _, kind := range []ActKind{fast, ActF32} {
					var a Act
					a.Reset(kind, 1, n)
					a.Set(0, x)
					for r, got := range matMulAll(typ.ID, w, &a, rows, 1) {
						b := rowBounds(t, typ.ID, w[r*rb:(r+1)*rb], &a, 0, x)
						if e := math.Abs(float64(got) - set.dots[r]); !(e <= b.round+b.step) {
							t.Errorf("%s, %s, %s, row %d: %g, ggml in float64 %g: error %g above %g", set.file, l, kind, r, got, set.dots[r], e, b.round+b.step)
						}
						checked++
					}
				}
			}
		}
	}
	if checked < 27*2*2*8 {
		t.Errorf("only %d dot products checked", checked)
	}
}
