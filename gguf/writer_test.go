package gguf

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteRefuses(t *testing.T) {
	meta := func(f ...Field) WriteFile { return WriteFile{Metadata: f} }
	tensors := func(w ...WriteTensor) WriteFile { return WriteFile{Tensors: w} }
	a := WriteTensor{Name: "a", Type: F32, Dims: []uint64{1}, Data: fill(0, 4)}
	nothing := func(io.Writer) error { return nil }
	for name, c := range map[string]struct {
		f    WriteFile
		want string
	}{
		"version":      {WriteFile{Version: 1}, "cannot write version 1, only 2 and 3"},
		"key empty":    {meta(Field{"", true}), `metadata pair 0: key "" is empty`},
		"key twice":    {meta(Field{"k", true}, Field{"k", false}), `metadata pair 1: key "k" stands twice`},
		"key long":     {meta(Field{strings.Repeat("k", 65536), true}), "has 65536 bytes, over the limit of 65535"},
		"key line":     {meta(Field{"a\nb", true}), "is not printable ASCII"},
		"value":        {meta(Field{"k", 1}), `metadata key "k": a value of type int has no place in the format`},
		"value nil":    {meta(Field{"k", nil}), "a value of type <nil> has no place"},
		"string":       {meta(Field{"k", strings.Repeat("x", maxValueBytes+1)}), "a string has 67108865 bytes, over the limit of 67108864"},
		"array":        {meta(Field{"k", make([]bool, maxArray+1)}), "16777217 elements, over the limit of 16777216"},
		"alignment":    {meta(Field{keyAlignment, uint32(12)}), `metadata key "general.alignment" is 12 (uint32)`},
		"alignment t":  {meta(Field{keyAlignment, uint64(32)}), `metadata key "general.alignment" is 32 (uint64)`},
		"name":         {tensors(WriteTensor{Name: "", Type: F32, Data: fill(0, 4)}), `tensor 0 "": name is empty`},
		"name long":    {tensors(WriteTensor{Name: strings.Repeat("n", 256), Type: F32, Data: fill(0, 4)}), "name has 256 bytes"},
		"name twice":   {tensors(a, a), `tensor 1 "a": the name stands twice`},
		"dimensions":   {tensors(WriteTensor{Name: "a", Type: F32, Dims: make([]uint64, 5)}), "5 dimensions, want at most 4"},
		"type":         {tensors(WriteTensor{Name: "a", Type: 4}), "type 4 is not written"},
		"block":        {tensors(WriteTensor{Name: "a", Type: Q8_0, Dims: []uint64{31}, Fill: nothing}), "not a multiple of the block size 32"},
		"data":         {tensors(WriteTensor{Name: "a", Type: F32, Dims: []uint64{2}, Data: fill(0, 4)}), "4 bytes of data, want 8 for dimensions [2] of type F32"},
		"no data":      {tensors(WriteTensor{Name: "a", Type: F32}), "0 bytes of data, want 4"},
		"total":        {tensors(WriteTensor{Name: "a", Type: I8, Dims: []uint64{math.MaxInt64 - 64}, Fill: nothing}, WriteTensor{Name: "b", Type: I8, Dims: []uint64{64}, Fill: nothing}), "pass 9223372036854775807"},
		"too many key": {WriteFile{Metadata: make([]Field, maxPairs+1)}, "65537 metadata pairs"},
	} {
		var b bytes.Buffer
		err := Write(&b, c.f)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if b.Len() > 0 {
			t.Errorf("%s: %d bytes written", name, b.Len())
		}
	}
}

func TestFill(t *testing.T) {
	data := fill(9, 40)
	f := WriteFile{Tensors: []WriteTensor{
		{Name: "a", Type: F32, Dims: []uint64{10}, Fill: func(w io.Writer) error {
			for i := range data { // in as many pieces as it likes
				if _, err := w.Write(data[i : i+1]); err != nil {
					return err
				}
			}
			return nil
		}},
		{Name: "b", Type: F32, Dims: []uint64{10}, Data: data},
	}}
	b := write(t, f)
	for _, x := range mustOpen(t, b).Tensors {
		if !bytes.Equal(b[x.Offset:x.End()], data) {
			t.Errorf("tensor %q: other bytes", x.Name)
		}
	}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		fill func(io.Writer) error
		want string
	}{
		"short": {func(w io.Writer) error { _, err := w.Write(data[:39]); return err }, `tensor "a": wrote 39 bytes, want 40`},
		"long":  {func(w io.Writer) error { _, err := w.Write(fill(0, 41)); return err }, `tensor "a": 1 bytes more than the tensor's size`},
		"error": {func(io.Writer) error { return boom }, `tensor "a": boom`},
	} {
		f.Tensors[0].Fill = c.fill
		dir := t.TempDir()
		err := Create(filepath.Join(dir, "x.gguf"), f)
		if err == nil || !strings.Contains(err.Error(), c.want) || name == "error" && !errors.Is(err, boom) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

// limited fails after n bytes, as a full disk does.
type limited struct{ n int }

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.n {
		return 0, io.ErrShortWrite
	}
	l.n -= len(b)
	return len(b), nil
}

func TestWriteError(t *testing.T) {
	whole := len(write(t, sample()))
	for n := range whole {
		if err := Write(&limited{n}, sample()); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("%d of %d bytes: %v", n, whole, err)
		}
	}
	if err := Create(filepath.Join(t.TempDir(), "no", "x.gguf"), sample()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	for range 2 { // a second time over the first
		if err := Create(path, sample()); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := read(t, path)
	checkTensors(t, f, sample().Tensors, func(int) []byte { return b })
}
