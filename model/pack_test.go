package model_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"terrace/gguf"
	"terrace/internal/testfile"
)

var (
	packFile = flag.String("pack", "", "a model of ../shared/tools/mkgguf.py to make a fixture of")
	packSeed = flag.Uint("pack-seed", 0, "its seed")
	packTo   = flag.String("pack-to", "", "the folder of the fixture")
)

// TestPack makes a fixture's model: go test ./model -run TestPack -args -pack FILE -pack-seed N -pack-to testdata/golden/NAME.
// Without the flags it packs and unpacks one that is there.
func TestPack(t *testing.T) {
	data, seed := unzip(t, "golden", "olmoe", "model.drawn.gz"), uint32(15)
	if *packFile != "" {
		b, err := os.ReadFile(*packFile)
		if err != nil {
			t.Fatal(err)
		}
		data, seed = b, uint32(*packSeed)
	}
	d := testfile.Drawn{Seed: seed}
	f := openBytes(t, "fixture", data)
	whole := 0
	for i := range f.Tensors {
		x := &f.Tensors[i]
		if x.Type != gguf.F16 {
			continue
		}
		stream := crc32.ChecksumIEEE([]byte(x.Name))
		n := int(x.Length / 2)
		if factor, ok := drawn(data[x.Offset:x.End()], seed, stream); ok {
			d.Matrices = append(d.Matrices, testfile.Draws{Offset: int(x.Offset), Count: n, Stream: stream, Factor: factor})
			whole += 2 * n
		}
	}
	packed := d.Pack(data)
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	to := *packTo
	if to == "" {
		to = t.TempDir()
		if whole < len(data)*8/10 {
			t.Errorf("%d of %d bytes were drawn, want nearly all", whole, len(data))
		}
	}
	path := filepath.Join(to, "model.drawn.gz")
	if err := os.WriteFile(path, z.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(testfile.Gunzip(t, path), data) {
		t.Error("what was packed is not what is unpacked")
	}
	t.Logf("%d bytes, of which %d are drawn, packed in %d", len(data), whole, z.Len())
}

// drawn is a factor with which the draws of a stream give the half-precision numbers b, where there is one.
func drawn(b []byte, seed, stream uint32) (factor float64, ok bool) {
	low, high := 0.0, math.Inf(1)
	r := testfile.NewNormal(seed, stream)
	for i := 0; i < len(b); i += 2 {
		h, n := binary.LittleEndian.Uint16(b[i:]), math.Abs(r.Next())
		m := h & 0x7fff
		if m == 0 || n == 0 {
			continue
		}
		value := func(m float64) float64 { // of the number m places from zero
			e := max(math.Floor(m/1024), 1)
			return math.Ldexp(m-(e-1)*1024, int(e)-25)
		}
		low, high = max(low, value(float64(m)-0.5)/n), min(high, value(float64(m)+0.5)/n)
	}
	if !(low < high) || math.IsInf(high, 1) {
		return 0, false
	}
	factor = low + (high-low)/2
	r = testfile.NewNormal(seed, stream)
	for i := 0; i < len(b); i += 2 {
		if binary.LittleEndian.Uint16(b[i:]) != testfile.Half(factor*r.Next()) {
			return 0, false
		}
	}
	return factor, true
}
