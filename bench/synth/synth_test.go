package synth

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/quant"
)

func testWriter(t *testing.T) *writer {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &writer{ctx: context.Background(), out: f}
}

func readAll(t *testing.T, f *os.File) []byte {
	t.Helper()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// small is a family of the same architecture that a test can write.
func small(f Family) Family {
	s := f.shape
	cut := func(v *int, n int) { *v = min(*v, n) }
	s.hidden, s.vocab, s.heads = 256, 700, 4
	if s.plan == "" {
		cut(&s.layers, 4)
	} else {
		cut(&s.layers, 6)
	}
	cut(&s.kv, 2)
	cut(&s.kvFull, 1)
	cut(&s.keyDim, 64)
	cut(&s.keyDimSWA, 32)
	cut(&s.valDim, 32)
	cut(&s.rot, 32)
	cut(&s.qRank, 64)
	cut(&s.kvRank, 64)
	cut(&s.nope, 32)
	cut(&s.ff, 512)
	cut(&s.experts, 8)
	cut(&s.topK, 4)
	cut(&s.expertFF, 256)
	cut(&s.shared, 256)
	cut(&s.groups, 4)
	cut(&s.groupsUsed, 2)
	cut(&s.leading, 1)
	cut(&s.stateDim, 32)
	cut(&s.groupCount, 2)
	cut(&s.timeRank, 4)
	cut(&s.inner, 128)
	cut(&s.lowRank, 32)
	cut(&s.indexDim, 32)
	cut(&s.window, 32)
	if s.arch == "olmoe" {
		s.kv = s.heads
	}
	if s.fullEvery != 0 {
		s.fullEvery = 3
	}
	if s.sections != nil {
		s.sections = []int32{6, 5, 5, 0}
	}
	if s.attnAt != nil {
		s.attnAt = []int{1, 3}
	}
	if s.tableWidth != 0 {
		s.eos, s.image = 600, 610
		s.tableWidth, s.hidden = 32, 32*len(s.headSizes)
		sizes, total := []uint64{}, uint64(0)
		for i := range s.headSizes {
			n := 1009 + 2*uint64(i)
			sizes, total = append(sizes, n), total+n
		}
		s.headSizes, s.tableRows = sizes, (total+63)/64*64
	}
	f.shape = s
	return f
}

// smallFamilies has one for each architecture.
func smallFamilies() (list []Family) {
	seen := map[string]bool{}
	for _, f := range Families() {
		if !seen[f.Arch] {
			seen[f.Arch] = true
			list = append(list, small(f))
		}
	}
	return list
}

func write(t *testing.T, f Family, o Options) string {
	t.Helper()
	m, err := newModel(f, o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	last := int64(0)
	if err := m.Write(context.Background(), path, func(done int64) { last = done }); err != nil {
		t.Fatal(err)
	}
	if !o.HeaderOnly && (last > m.Data || last < m.Data-int64(len(m.tensors))*32-int64(len(m.rows))*8192) {
		t.Errorf("%s: %d bytes written, %d announced", f.Name, last, m.Data)
	}
	return path
}

// TestArchitectures writes a small file of each architecture: weights are finite, no tensor is all zeros, and the same
// options give the same bytes.
func TestArchitectures(t *testing.T) {
	for _, f := range smallFamilies() {
		o := Options{Quant: "q4_k", Layers: min(4, f.shape.layers), Skew: 0.5, Corr: 0.5}
		path := write(t, f, o)
		a, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.shape.tableWidth != 0 || f.shape.kvFull != 0 {
			if b, err := os.ReadFile(write(t, f, o)); err != nil || !bytes.Equal(a, b) {
				t.Errorf("%s: two files of the same options differ (%v)", f.Name, err)
			}
		}
		g, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range g.Tensors {
			x := &g.Tensors[i]
			v := make([]float32, min(x.Elements(), 1<<16)) // of a stack the first matrix
			if err := quant.Decode(x.Type, v, a[x.Extent.Offset:x.Extent.Offset+int64(x.Type.RowBytes(len(v)))]); err != nil {
				t.Fatalf("%s: tensor %s: %v", f.Name, x.Name, err)
			}
			sum := 0.0
			for _, y := range v {
				sum += math.Abs(float64(y))
			}
			if !(sum < 1e33) || sum == 0 && x.Name != tableTensor {
				t.Errorf("%s: tensor %s has a sum of %g", f.Name, x.Name, sum)
			}
		}
	}
}

// TestHole holds a file without data to take next to none of the disk.
func TestHole(t *testing.T) {
	path := write(t, small(Families()[0]), Options{HeaderOnly: true})
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Tensors[len(f.Tensors)-1].Extent
	if f.Shards[0].Size < last.Offset+last.Length {
		t.Errorf("%d bytes, the last tensor ends at %d", f.Shards[0].Size, last.Offset+last.Length)
	}
	b := make([]byte, 4096)
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.ReadAt(b, last.Offset+last.Length-4096); err != nil || !bytes.Equal(b, make([]byte, 4096)) {
		t.Errorf("data in a file without: %v", err)
	}
}

// TestRows writes the rows that a run of tokens reads, at once and afterwards.
func TestRows(t *testing.T) {
	var f Family
	for _, x := range smallFamilies() {
		if x.Arch == "qwen4exp" {
			f = x
		}
	}
	seqs := [][]int32{{5, 6, 600, 7}, {8}}
	path := write(t, f, Options{Rows: seqs})
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := g.Tensor(tableTensor)
	size := x.Type.RowBytes(int(x.Dims[0]))
	data := whole[x.Extent.Offset : x.Extent.Offset+x.Extent.Length]
	written := map[uint64]bool{}
	for i := range x.Dims[1] {
		if !bytes.Equal(data[int(i)*size:int(i+1)*size], make([]byte, size)) {
			written[i] = true
		}
	}
	// By hand, for each token and the two before it; 600 ends a text and hides what is older.
	want := map[uint64]bool{}
	s := &f.shape
	for _, w := range [][3]uint64{{5, 600, 600}, {6, 5, 600}, {600, 6, 5}, {7, 600, 600}, {8, 600, 600}} {
		two := w[0]*s.multipliers[0] ^ w[1]*s.multipliers[1]
		three := two ^ w[2]*s.multipliers[2]
		at := uint64(0)
		for h, n := range s.headSizes {
			if h < 8 {
				want[two%n+at] = true
			} else {
				want[three%n+at] = true
			}
			at += n
		}
	}
	if len(written) != len(want) {
		t.Errorf("%d rows written, want %d", len(written), len(want))
	}
	for r := range want {
		if !written[r] {
			t.Errorf("row %d is a hole", r)
		}
	}

	later := write(t, f, Options{})
	if n, err := AddRows(later, 0, seqs); err != nil || n != len(want) {
		t.Fatalf("%d rows, %v", n, err)
	}
	if b, err := os.ReadFile(later); err != nil || !bytes.Equal(b, whole) {
		t.Errorf("rows written afterwards differ from rows written at once (%v)", err)
	}
	if _, err := AddRows(later, 0, [][]int32{{700}}); err == nil || !strings.Contains(err.Error(), "700") {
		t.Errorf("a token beyond the vocabulary: %v", err)
	}
}

// TestForeign holds AddRows back from files that are not of this package.
func TestForeign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "real.gguf")
	if err := gguf.Create(path, gguf.WriteFile{Metadata: []gguf.Field{{Key: "general.architecture", Value: "qwen4exp"}},
		Tensors: []gguf.WriteTensor{{Name: tableTensor, Dims: []uint64{4}, Data: make([]byte, 16)}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := AddRows(path, 0, [][]int32{{1}}); err == nil || !strings.Contains(err.Error(), keySynthetic) {
		t.Errorf("a file that is not synthetic: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"no family":        {Family: "qwen9"},
		"99 layers":        {Family: "qwen3-30b-a3b", Layers: 99},
		"belongs to layer": {Family: "qwen3.8-flash-next", Layers: 1},
		"no weight type":   {Family: "qwen3-30b-a3b", Quant: "q9"},
		"4 types":          {Family: "qwen3-30b-a3b", Quant: "q8_0+q8_0+q8_0+q8_0"},
		"whole blocks":     {Family: "gemma-4-26b-a4b", Quant: "q1_0"},
		"one":              {Family: "gemma-4-26b-a4b", Quant: "q4_k+q2_k+q4_k"},
		"correlation":      {Family: "qwen3-30b-a3b", Corr: 2},
		"skew":             {Family: "qwen3-30b-a3b", Skew: math.NaN()},
		"drafting":         {Family: "qwen3-30b-a3b", MTP: true},
		"has none":         {Family: "qwen3-30b-a3b", Rows: [][]int32{{1}}},
		"248320":           {Family: "qwen3.8-flash-next", Layers: 2, Rows: [][]int32{{248320}}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// TestRoom refuses a file larger than the disk before anything is written.
func TestRoom(t *testing.T) {
	m, err := New(Options{Family: "deepseek-v3", Quant: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	free, err := host.DiskFree(dir)
	if err != nil {
		t.Skip(err)
	}
	if free > m.Data {
		t.Skipf("%d bytes free", free)
	}
	err = m.Write(context.Background(), filepath.Join(dir, "m.gguf"), nil)
	if !errors.Is(err, ErrNoRoom) {
		t.Errorf("%d bytes to write, %d free: %v", m.Data, free, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%s left behind", left[0].Name())
	}
}

// TestInterrupted leaves nothing behind.
func TestInterrupted(t *testing.T) {
	m, err := newModel(small(Families()[0]), Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, stop := context.WithCancel(context.Background())
	err = m.Write(ctx, filepath.Join(dir, "m.gguf"), func(done int64) {
		if done > m.Data/2 {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%s left behind", left[0].Name())
	}
}
