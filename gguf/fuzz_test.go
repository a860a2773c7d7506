package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// seeds are small files of each kind: whole, metadata only, a part of a split, version 2, and a few broken ones.
func seeds(t testing.TB) [][]byte {
	meta := sample()
	meta.Tensors = nil
	v2 := WriteFile{Version: 2, Metadata: []Field{{keyAlignment, uint32(8)}}, Tensors: sample().Tensors[2:]}
	part := WriteFile{Metadata: []Field{{keySplitNo, uint16(1)}, {keySplitCount, uint16(3)}, {keySplitTensors, int32(5)}}, Tensors: sample().Tensors[:1]}
	return [][]byte{
		write(t, sample()), write(t, meta), write(t, v2), write(t, part), write(t, WriteFile{}),
		head(1<<60, 1<<60), head(0, 1).str("k").u32(9).u32(8).u64(3).str("a").str("").str("bc"),
		head(2, 0).info("a", uint32(F32), 0, 1<<32, 1<<31).info("b", uint32(Q4_K), 1<<62, 256).data(64),
	}
}

// FuzzOpen: any bytes give an error of one line or a directory that keeps its promises, within memory of the order of the input.
func FuzzOpen(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// A tensor info takes at least 25 bytes of input and about 250 of memory with its share of the name maps, a pair 14
		// and about 300; the rest is for the buffer and whatever else the process does meanwhile.
		limit := uint64(64*len(b) + 64<<10)
		var file *File
		var err error
		var grown uint64
		for range 5 { // other goroutines of the process count too: believe the least
			before := allocated()
			file, err = openBytes(b)
			if grown = allocated() - before; grown <= limit {
				break
			}
		}
		if grown > limit {
			t.Fatalf("%d bytes allocated for %d bytes of input", grown, len(b))
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) || strings.Contains(err.Error(), "\n") || file != nil {
				t.Fatalf("error %q, file %v", err, file)
			}
			return
		}
		checkPromises(t, file, int64(len(b)))
		// What was read can be written, and reads the same again.
		w := WriteFile{Version: file.Version, Metadata: file.Metadata.Fields()}
		for _, x := range file.Tensors {
			w.Tensors = append(w.Tensors, WriteTensor{Name: x.Name, Type: x.Type, Dims: x.Dims[:x.NDims], Data: b[x.Offset:x.End()]})
		}
		var out bytes.Buffer
		if err := Write(&out, w); err != nil {
			t.Fatal(err)
		}
		again := mustOpen(t, out.Bytes())
		for i, x := range file.Tensors {
			y := again.Tensors[i]
			if x.Name != y.Name || x.Dims != y.Dims || x.Type != y.Type || !bytes.Equal(b[x.Offset:x.End()], out.Bytes()[y.Offset:y.End()]) {
				t.Fatalf("tensor %+v was read again as %+v", x, y)
			}
		}
		if again.Metadata.Len() != file.Metadata.Len() {
			t.Fatalf("%d pairs, read again %d", file.Metadata.Len(), again.Metadata.Len())
		}
	})
}

// checkPromises asks everything of f once.
func checkPromises(t *testing.T, f *File, size int64) {
	m := f.Metadata
	for e := range m.Entries() {
		if e.Key == "" || strings.Contains(e.Value, "\n") {
			t.Fatalf("entry %+v", e)
		}
		// One of the getters must take it, none may panic.
		_, err1 := m.String(e.Key)
		_, err2 := m.Ints(e.Key)
		_, err3 := m.Floats(e.Key)
		s, err4 := m.Strings(e.Key)
		if err1 != nil && err2 != nil && err3 != nil && err4 != nil {
			t.Fatalf("key %q of type %s has no getter", e.Key, e.Type)
		}
		if err4 == nil {
			for i := range s.Len() {
				_ = s.At(i)
			}
		}
	}
	for i := range f.Tensors {
		x := &f.Tensors[i]
		if got, ok := f.Tensor(x.Name); !ok || got != x {
			t.Fatalf("tensor %q is not found", x.Name)
		}
		if x.Offset < f.Shards[0].DataStart || x.End() > size || uint64(x.Length) != uint64(x.RowBytes())*x.Dims[1]*x.Dims[2]*x.Dims[3] {
			t.Fatalf("tensor %+v in a file of %d bytes", x, size)
		}
		if x.Dims[3] != 1 {
			continue
		}
		for _, e := range []uint64{0, x.Dims[2] - 1} {
			if s, err := x.Slab(int(e)); err == nil && (s.Offset < x.Offset || s.End() > x.End()) {
				t.Fatalf("tensor %+v: slab %d is %+v", x, e, s)
			}
		}
	}
}

// memory is a file in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// FuzzSplit: whatever becomes of one part of a split model, or whichever stands in the place of which, any part gives an error of
// one line or a directory whose tensors lie within their parts.
func FuzzSplit(f *testing.F) {
	paths, err := WriteSplit(filepath.Join(f.TempDir(), "toy"), sample(), 3, nil)
	if err != nil {
		f.Fatal(err)
	}
	var parts [][]byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		parts = append(parts, b)
	}
	f.Add(byte(0), byte(0), byte(0), uint16(0), []byte{})
	f.Add(byte(1), byte(2), byte(3), uint16(24), []byte{9})
	f.Add(byte(2), byte(1), byte(0o21), uint16(60), []byte{255, 255, 255, 255})
	f.Add(byte(0), byte(3), byte(0o12), uint16(300), []byte("split.count"))
	f.Fuzz(func(t *testing.T, at, missing, order byte, where uint16, put []byte) {
		files := map[string][]byte{}
		for i := range parts {
			b := parts[(i+int(order)%3*(i+1))%3]
			if i == int(at)%3 && len(put) > 0 {
				k := int(where) % len(b)
				if order&8 != 0 {
					b = b[:k]
				} else {
					b = bytes.Clone(b)
					copy(b[k:], put)
				}
			}
			if i+1 != int(missing)%5 {
				files[PartPath("toy", i, 3)] = b
			}
		}
		open := func(path string) (Reader, error) {
			b, ok := files[path]
			if !ok {
				return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
			}
			return memory{bytes.NewReader(b)}, nil
		}
		for i := range parts {
			file, err := OpenFrom(PartPath("toy", i, 3), open)
			if err != nil {
				if file != nil || strings.Contains(err.Error(), "\n") || !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("part %d: error %q, file %v", i, err, file)
				}
				continue
			}
			for _, x := range file.Tensors {
				if got, ok := file.Tensor(x.Name); !ok || got.Shard != x.Shard || x.Shard >= len(file.Shards) || x.Offset < file.Shards[x.Shard].DataStart || x.End() > file.Shards[x.Shard].Size {
					t.Fatalf("part %d: tensor %+v in %+v", i, x, file.Shards)
				}
			}
		}
	})
}
