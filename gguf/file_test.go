package gguf

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestSample(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		w := sample()
		w.Version = version
		b := write(t, w)
		f := mustOpen(t, b)
		if f.Version != version || f.Path != "mem.gguf" || len(f.Shards) != 1 || f.Shards[0].Size != int64(len(b)) || f.Shards[0].Alignment != 32 {
			t.Errorf("version %d: %+v", version, f)
		}
		checkTensors(t, f, w.Tensors, func(int) []byte { return b })
	}
}

// checkTensors compares the directory with what was written, and the bytes at its extents.
func checkTensors(t testing.TB, f *File, want []WriteTensor, file func(shard int) []byte) {
	t.Helper()
	if len(f.Tensors) != len(want) {
		t.Fatalf("%d tensors, want %d", len(f.Tensors), len(want))
	}
	for _, w := range want {
		x, ok := f.Tensor(w.Name)
		if !ok {
			t.Fatalf("no tensor %q", w.Name)
		}
		dims, elements := [4]uint64{1, 1, 1, 1}, uint64(1)
		for i, d := range w.Dims {
			dims[i] = d
			elements *= d
		}
		if x.Name != w.Name || x.Type != w.Type || x.NDims != len(w.Dims) || x.Dims != dims || x.Elements() != elements {
			t.Errorf("tensor %+v, want %s %s %v", x, w.Name, w.Type, w.Dims)
		}
		if x.Length != int64(len(w.Data)) || x.Offset%f.Shards[x.Shard].Alignment != 0 {
			t.Errorf("tensor %q: extent %+v, want %d bytes", x.Name, x.Extent, len(w.Data))
		}
		if got := file(x.Shard)[x.Offset:x.End()]; !bytes.Equal(got, w.Data) {
			t.Errorf("tensor %q: other bytes at %+v", x.Name, x.Extent)
		}
	}
}

func TestTensor(t *testing.T) {
	f := mustOpen(t, write(t, sample()))
	if _, ok := f.Tensor("nothing"); ok {
		t.Error("found a tensor that is not there")
	}
	x, _ := f.Tensor("blk.0.ffn_up_exps.weight")
	if x.RowBytes() != 210 {
		t.Errorf("RowBytes %d, want 210", x.RowBytes())
	}
	for e := range 3 {
		got, err := x.Slab(e)
		want := Extent{Offset: x.Offset + int64(e)*420, Length: 420}
		if err != nil || got != want {
			t.Errorf("slab %d: %+v %v, want %+v", e, got, err, want)
		}
	}
	for _, e := range []int{-1, 3} {
		if _, err := x.Slab(e); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("slab %d is outside dimension 2 of size 3", e)) {
			t.Errorf("slab %d: %v", e, err)
		}
	}
	y := Tensor{Name: "four", Type: F32, NDims: 4, Dims: [4]uint64{1, 1, 1, 2}, Extent: Extent{Length: 8}}
	if _, err := y.Slab(0); err == nil {
		t.Error("a slab of a 4-D tensor")
	}
	defer func() {
		if s, _ := recover().(string); !strings.Contains(s, "RowBytes of 33 elements of Q8_0, whose blocks have 32") {
			t.Errorf("panic %q", s)
		}
	}()
	Q8_0.RowBytes(33)
}

// TestTypes checks what must hold over the whole table, and that retired ids stay out of it.
func TestTypes(t *testing.T) {
	n := 0
	for id := Type(0); id <= lastType+10; id++ {
		if !id.Known() {
			if id.BlockSize() != 0 || id.BlockBytes() != 0 || id.String() != fmt.Sprintf("type %d", id) {
				t.Errorf("unknown type %d has a block", id)
			}
			continue
		}
		n++
		if bits := id.RowBytes(id.BlockSize()*8) / id.BlockSize(); bits < 1 || id.BlockSize() > 256 {
			t.Errorf("%s: %d bits an element", id, bits)
		}
	}
	for _, id := range retired {
		if id.Known() {
			t.Errorf("type %d is retired but known", id)
		}
	}
	if want := int(lastType) + 1 - len(retired); n != want {
		t.Errorf("%d types known, want %d", n, want)
	}
}

// TestTruncated cuts a file at every byte: what is cut off is either padding or missed.
func TestTruncated(t *testing.T) {
	w := sample()
	b := write(t, w)
	whole := mustOpen(t, b)
	need := 0
	for _, x := range whole.Tensors {
		need = max(need, int(x.End()))
	}
	for n := range b {
		f, err := openBytes(b[:n])
		if n >= need {
			if err != nil || !cmp.Equal(f.Tensors, whole.Tensors) {
				t.Errorf("cut to %d of %d bytes, %d needed: %v", n, len(b), need, err)
			}
			continue
		}
		if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "mem.gguf: ") {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
		// The size at the time of asking may be stale: the file ends while it is read.
		if f, err := OpenReader(bytes.NewReader(b[:n]), int64(len(b)), "mem.gguf"); n < int(whole.Shards[0].DataStart)-31 && err == nil {
			t.Fatalf("cut to %d bytes behind our back: no error, %d tensors", n, len(f.Tensors))
		}
	}
}

// TestDamaged sets every byte of a header to a few other values: no panic, and an error is one line.
func TestDamaged(t *testing.T) {
	b := write(t, sample())
	end := mustOpen(t, b).Shards[0].DataStart
	for i := range end {
		old := b[i]
		for _, v := range []byte{0, 1, old ^ 1, old ^ 0x80, 0xff} {
			b[i] = v
			if _, err := openBytes(b); err != nil {
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("byte %d = %d: %v", i, v, err)
				}
			}
		}
		b[i] = old
	}
}

func TestMalformed(t *testing.T) {
	const f32, q8 = uint32(F32), uint32(Q8_0)
	kv := func(key string) raw { return head(0, 1).str(key) }
	for _, c := range []struct {
		name string
		b    raw
		kind error
		want string // after the file's name
	}{
		{"empty", nil, ErrCorrupt, "the file is empty (0 bytes, a GGUF header has at least 24)"},
		{"three bytes", raw("GGU"), ErrCorrupt, "header at byte 0: magic needs 4 bytes, but only 3 of the file's 3 remain"},
		{"magic", raw("PK\x03\x04").pad(40), ErrCorrupt, `header at byte 0: the first bytes are "PK\x03\x04", want "GGUF": not a GGUF file`},
		{"version 0", raw("GGUF").u32(0).pad(16), ErrUnsupported, "version 0, and only versions 2 and 3"},
		{"version 1", raw("GGUF").u32(1).u32(0).u32(0), ErrUnsupported, "version 1, and only versions 2 and 3"},
		{"version 4", raw("GGUF").u32(4).pad(16), ErrUnsupported, "version 4, and only versions 2 and 3"},
		{"big-endian", raw("GGUF").u32(3 << 24).pad(16), ErrUnsupported, "the version reads as 0x03000000, byte-swapped 3: a big-endian file"},
		{"counts cut off", raw("GGUF").u32(3).u64(0), ErrCorrupt, "metadata count needs 8 bytes, but only 0 of the file's 16 remain"},
		{"tensor count", head(1<<60, 0), ErrCorrupt, "tensor count is 1152921504606846976, over the limit of 1048576"},
		{"tensor count for the size", head(3, 0).pad(63), ErrCorrupt, "tensor count is 3, which needs 72 bytes, but only 71 of the file's 87 remain"},
		{"metadata count", head(0, 1<<63), ErrCorrupt, "metadata count is 9223372036854775808, over the limit of 65536"},
		{"metadata count for the size", head(0, 2).pad(20), ErrCorrupt, "metadata count is 2, which needs 26 bytes, but only 20"},

		{"empty key", kv("").u32(0).b(1), ErrCorrupt, `metadata pair 0 at byte 32: key "" is empty`},
		{"key length", head(0, 1).u64(1 << 40).pad(20), ErrCorrupt, "key has 1099511627776 bytes, over the limit of 65535"},
		{"key past the end", head(0, 1).u64(30).pad(20), ErrCorrupt, "key needs 30 bytes, but only 20 of the file's 52 remain"},
		{"key not ASCII", kv("ä").u32(0).b(1), ErrCorrupt, `key "ä" is not printable ASCII`},
		{"key with a zero", kv("a\x00").u32(0).b(1), ErrCorrupt, `key "a\x00" is not printable ASCII`},
		{"key twice", head(0, 2).str("k").u32(0).b(1).str("k").u32(0).b(1), ErrCorrupt, `metadata pair 1 "k" at byte 47: the key stands twice, as pairs 0 and 1`},
		{"value type", kv("k").u32(13).pad(8), ErrCorrupt, `metadata pair 0 "k" at byte 37: value type 13 is unknown, the last known is 12`},
		{"value cut off", kv("k").u32(10).pad(7), ErrCorrupt, `"k" at byte 37: value needs 8 bytes, but only 7`},
		{"bool", kv("k").u32(7).b(2), ErrCorrupt, "a bool is 2, want 0 or 1"},
		{"string length", kv("k").u32(8).u64(100).pad(99), ErrCorrupt, "string needs 100 bytes, but only 99 of the file's 144 remain"},
		{"string cap", kv("k").u32(8).u64(1 << 62), ErrCorrupt, "string has 4611686018427387904 bytes, over the limit of 67108864"},
		{"nested array", kv("k").u32(9).u32(9).u64(1).pad(20), ErrUnsupported, "nested arrays are not read"},
		{"array type", kv("k").u32(9).u32(77).u64(1).pad(20), ErrCorrupt, "array element type 77 is unknown, the last known is 12"},
		{"array cap", kv("k").u32(9).u32(0).u64(1<<24 + 1), ErrCorrupt, "array length is 16777217, over the limit of 16777216"},
		{"array for the size", kv("k").u32(9).u32(4).u64(6).pad(23), ErrCorrupt, "array length is 6, which needs 24 bytes, but only 23"},
		{"strings for the size", kv("k").u32(9).u32(8).u64(3).pad(23), ErrCorrupt, "array length is 3, which needs 24 bytes, but only 23"},
		{"string of an array", kv("k").u32(9).u32(8).u64(2).str("ok").u64(5).pad(4), ErrCorrupt, "array string needs 5 bytes, but only 4"},
		{"bool of an array", kv("k").u32(9).u32(7).u64(3).b(1, 0, 3), ErrCorrupt, "bool 2 of the array is 3, want 0 or 1"},
		{"alignment type", kv(keyAlignment).u32(10).u64(32), ErrCorrupt, `metadata key "general.alignment" is uint64, want uint32`},
		{"alignment 0", kv(keyAlignment).u32(4).u32(0), ErrCorrupt, `metadata key "general.alignment" is 0, want a power of two from 8 to 1048576`},
		{"alignment 4", kv(keyAlignment).u32(4).u32(4), ErrCorrupt, "is 4, want a power of two"},
		{"alignment 48", kv(keyAlignment).u32(4).u32(48), ErrCorrupt, "is 48, want a power of two"},
		{"alignment 2 MiB", kv(keyAlignment).u32(4).u32(2 << 20), ErrCorrupt, "is 2097152, want a power of two"},

		{"name empty", head(1, 0).info("", f32, 0, 1).data(4), ErrCorrupt, `tensor 0 at byte 32: name "" is empty`},
		{"name long", head(1, 0).info(strings.Repeat("n", 256), f32, 0, 1).data(4), ErrCorrupt, "name has 256 bytes, over the limit of 255"},
		{"name with a zero", head(1, 0).info("a\x00", f32, 0, 1).data(4), ErrCorrupt, `name "a\x00" holds a zero byte`},
		{"name not UTF-8", head(1, 0).info("\xff", f32, 0, 1).data(4), ErrCorrupt, `name "\xff" is not UTF-8`},
		{"name twice", head(2, 0).info("a", f32, 0, 1).info("a", f32, 32, 1).data(36), ErrCorrupt, "the name stands twice, as tensors 0 and 1"},
		{"dimensions", head(1, 0).info("a", f32, 0, 1, 1, 1, 1, 1).data(4), ErrCorrupt, `tensor 0 "a" at byte 37: has 5 dimensions, want at most 4`},
		{"dimension", head(1, 0).info("a", f32, 0, 1, 1<<63).data(4), ErrCorrupt, "dimension 1 is 9223372036854775808, over the limit of 9223372036854775807"},
		{"elements", head(1, 0).info("a", f32, 0, 1<<32, 1<<32).data(4), ErrCorrupt, "dimensions [4294967296 4294967296] of type F32: the number of elements passes 9223372036854775807"},
		{"elements of nothing", head(1, 0).info("a", f32, 0, 1<<32, 1<<32, 0).data(4), ErrCorrupt, "the number of elements passes"},
		{"bytes", head(1, 0).info("a", f32, 0, 1<<61).data(4), ErrCorrupt, "dimensions [2305843009213693952] of type F32: the number of bytes passes 9223372036854775807"},
		{"block", head(1, 0).info("a", q8, 0, 48).data(68), ErrCorrupt, "dimensions [48] of type Q8_0: the first is not a multiple of the block size 32"},
		{"scalar block", head(1, 0).info("a", q8, 0).data(68), ErrCorrupt, "is not a multiple of the block size 32"},
		{"type retired", head(1, 0).info("a", 4, 0, 32).data(68), ErrUnsupported, `tensor 0 "a" at byte 49: type 4 was retired`},
		{"type unknown", head(1, 0).info("a", 43, 0, 32).data(68), ErrUnsupported, "type 43 is unknown, the last known is 42 (Q2_0)"},
		{"offset", head(1, 0).info("a", f32, 16, 1).data(32), ErrCorrupt, "offset 16 is not a multiple of the alignment 32"},
		{"offset absurd", head(1, 0).info("a", f32, 1<<63, 1).data(32), ErrCorrupt, "offset 9223372036854775808, over the limit of 9223372036854775807"},
		{"offset overflows", head(1, 0).info("a", f32, 1<<63-32, 1).data(32), ErrCorrupt, `tensor "a": 4 bytes at data offset 9223372036854775776 end past 9223372036854775807`},
		{"no data section", head(1, 0).info("a", f32, 0, 1), ErrCorrupt, "the data of 1 tensors starts at byte 64, but the file has 57 bytes"},
		{"outside", head(1, 0).info("a", f32, 32, 3).data(43), ErrCorrupt, `tensor "a" of 12 bytes ends at byte 108, but the file has 107 bytes`},
		{"empty outside", head(1, 0).info("a", f32, 64, 0).data(32), ErrCorrupt, `tensor "a" of 0 bytes ends at byte 128, but the file has 96 bytes`},
		{"overlap", head(2, 0).info("a", f32, 32, 8).info("b", f32, 0, 9).data(64), ErrCorrupt, `tensor "a" begins at byte 128, but tensor "b" before it ends at 132: they overlap`},
		{"same place", head(2, 0).info("a", f32, 0, 8).info("b", f32, 0, 8).data(64), ErrCorrupt, "they overlap"},

		{"split.count type", kv(keySplitCount).u32(8).str("2"), ErrCorrupt, `metadata key "split.count" is string, want an integer`},
		{"split.count negative", kv(keySplitCount).u32(5).u32(1<<32 - 2), ErrCorrupt, `metadata key "split.count" is -2, want at least 0`},
		{"split.count absurd", kv(keySplitCount).u32(4).u32(1 << 20), ErrCorrupt, "split.count is 1048576, over the limit of 65535"},
		{"split.no missing", kv(keySplitCount).u32(4).u32(2), ErrCorrupt, `metadata key "split.no" is missing`},
		{"split.no", head(0, 2).str(keySplitCount).u32(4).u32(2).str(keySplitNo).u32(4).u32(2), ErrCorrupt, "split.no is 2, but split.count is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := openBytes(c.b)
			if err == nil {
				t.Fatalf("no error, %+v", f)
			}
			msg, named := strings.CutPrefix(err.Error(), "mem.gguf: ")
			if !named || !strings.Contains(msg, c.want) || strings.Contains(msg, "\n") {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if !errors.Is(err, c.kind) {
				t.Errorf("%v is not %v", err, c.kind)
			}
		})
	}
}

// TestLenient holds what other writers do and the format allows.
func TestLenient(t *testing.T) {
	const f32 = uint32(F32)
	for _, c := range []struct {
		name string
		b    raw
		want []Extent
	}{
		{"nothing at all", head(0, 0), nil},
		{"order and gaps", head(2, 0).info("a", f32, 96, 8).info("b", f32, 0, 8).data(128), []Extent{{0, 192, 32}, {0, 96, 32}}},
		{"no padding at the end", head(1, 0).info("a", f32, 0, 1).data(4), []Extent{{0, 64, 4}}},
		{"empty tensors share a place", head(3, 0).info("a", f32, 0, 0).info("b", f32, 0, 8).info("c", f32, 32, 0).data(32), []Extent{{0, 128, 0}, {0, 128, 32}, {0, 160, 0}}},
		{"alignment 8", head(1, 1).str(keyAlignment).u32(4).u32(8).info("ab", f32, 8, 1).pad(5).pad(12), []Extent{{0, 104, 4}}},
		{"split.count 0", head(0, 1).str(keySplitCount).u32(2).b(0, 0), nil},
		{"split.count 1", head(0, 1).str(keySplitCount).u32(10).u64(1), nil},
		{"file after the tensors", head(1, 0).info("a", f32, 0, 1).data(400), []Extent{{0, 64, 4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := openBytes(c.b)
			if err != nil {
				t.Fatal(err)
			}
			var got []Extent
			for _, x := range f.Tensors {
				got = append(got, x.Extent)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestOpenPaths(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.gguf")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.gguf")
	for _, c := range []struct{ path, want string }{
		{dir, "is a directory"}, {empty, "the file is empty (0 bytes"}, {missing, "missing.gguf"},
	} {
		_, err := Open(c.path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
	if _, err := Open(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is not os.ErrNotExist", err)
	}
	secret := filepath.Join(dir, "secret.gguf")
	if err := os.WriteFile(secret, write(t, sample()), 0); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		if _, err := Open(secret); os.Geteuid() != 0 && (!errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), secret)) {
			t.Errorf("a file without permission: %v", err)
		}
		if _, err := Open(os.DevNull); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", os.DevNull, err)
		}
	}
}

type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, io.ErrClosedPipe }

func TestReadError(t *testing.T) {
	_, err := OpenReader(failing{}, 100, "x.gguf")
	if !errors.Is(err, io.ErrClosedPipe) || errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), "x.gguf: header at byte 0: ") {
		t.Errorf("got %v", err)
	}
}

// TestSparse claims much in a file of few bytes but great size: the claims fail before memory is taken.
func TestSparse(t *testing.T) {
	huge := int64(1) << 45
	for name, b := range map[string]raw{
		"tensors": head(maxTensors, 0),
		"pairs":   head(0, maxPairs),
		"string":  head(0, 40).str("k").u32(8).u64(maxValueBytes),
	} {
		before := allocated()
		_, err := OpenReader(sparse(b), huge, "mem.gguf")
		if grown := allocated() - before; err == nil || grown > 80<<20 {
			t.Errorf("%s: %d bytes allocated, %v", name, grown, err)
		}
	}
	// An array whose strings never end meets the bound on headers in the pass over the lengths, before the block is made.
	b := head(0, 1).str("k").u32(9).u32(8).u64(100)
	before := allocated()
	_, err := OpenReader(stride{b, maxValueBytes}, huge, "mem.gguf")
	if grown := allocated() - before; err == nil || !strings.Contains(err.Error(), "but a header may have at most 536870912 bytes") || grown > 1<<20 {
		t.Errorf("endless strings: %d bytes allocated, %v", grown, err)
	}
}

// sparse reads as its bytes followed by zeros.
type sparse []byte

func (s sparse) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if off < int64(len(s)) {
		copy(b, s[off:])
	}
	return len(b), nil
}

// stride reads as head followed by strings of n zero bytes for ever.
type stride struct {
	head []byte
	n    int64
}

func (s stride) ReadAt(b []byte, off int64) (int, error) {
	for i := range b {
		at := off + int64(i)
		if at < int64(len(s.head)) {
			b[i] = s.head[at]
			continue
		}
		b[i] = 0
		if at = (at - int64(len(s.head))) % (s.n + 8); at < 8 {
			b[i] = byte(s.n >> (8 * at))
		}
	}
	return len(b), nil
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestVocabulary bounds what a large vocabulary keeps on the heap: its bytes and four more a string.
func TestVocabulary(t *testing.T) {
	tokens, merges := make([]string, 150_000), make([]string, 150_000)
	size := 0
	for i := range tokens {
		tokens[i], merges[i] = fmt.Sprintf("token%d", i), fmt.Sprintf("tok en%d", i)
		size += len(tokens[i]) + len(merges[i])
	}
	b := write(t, WriteFile{Metadata: []Field{{"tokenizer.ggml.tokens", tokens}, {"tokenizer.ggml.merges", merges}}})
	before := allocated()
	f := mustOpen(t, b)
	if grown, most := allocated()-before, uint64(size+4*300_000+256<<10); grown > most {
		t.Errorf("%d bytes allocated, want at most %d", grown, most)
	}
	s, err := f.Metadata.Strings("tokenizer.ggml.merges")
	if err != nil || s.Len() != len(merges) || s.At(149_999) != merges[149_999] {
		t.Errorf("%v", err)
	}
	if n := testing.AllocsPerRun(10, func() { _ = s.At(77) }); n != 0 {
		t.Errorf("At allocates %v times", n)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := genFile(t)
		var b bytes.Buffer
		if err := Write(&b, w); err != nil {
			t.Fatal(err)
		}
		f, err := openBytes(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		compareFields(t, w.Metadata, f.Metadata)
		for _, x := range w.Tensors {
			y, ok := f.Tensor(x.Name)
			if !ok || !bytes.Equal(b.Bytes()[y.Offset:y.End()], x.Data) || y.Type != x.Type || y.NDims != len(x.Dims) {
				t.Fatalf("tensor %+v, want %+v", y, x)
			}
		}
		// What Fields answers writes the same file again.
		w.Metadata = f.Metadata.Fields()
		var again bytes.Buffer
		if err := Write(&again, w); err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
			t.Fatalf("written from Fields: other bytes, %v", err)
		}
	})
}

func compareFields(t *rapid.T, want []Field, m *Metadata) {
	got := m.Fields()
	for i, x := range got {
		if s, ok := x.Value.(*StringArray); ok {
			list := make([]string, s.Len())
			for j := range list {
				list[j] = s.At(j)
				if string(s.Bytes(j)) != list[j] {
					t.Fatalf("At and Bytes differ at %d", j)
				}
			}
			got[i].Value = list
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func genFile(t *rapid.T) WriteFile {
	w := WriteFile{Version: rapid.Uint32Range(2, 3).Draw(t, "version"), Metadata: []Field{}}
	values := rapid.OneOf(
		asAny(rapid.Bool()), asAny(rapid.String()), asAny(rapid.Uint8()), asAny(rapid.Int8()), asAny(rapid.Uint16()), asAny(rapid.Int16()),
		asAny(rapid.Uint32()), asAny(rapid.Int32()), asAny(rapid.Uint64()), asAny(rapid.Int64()), asAny(rapid.Float32()), asAny(rapid.Float64()),
		asList(rapid.Bool()), asList(rapid.String()), asList(rapid.Byte()), asList(rapid.Int8()), asList(rapid.Uint16()), asList(rapid.Int16()),
		asList(rapid.Uint32()), asList(rapid.Int32()), asList(rapid.Uint64()), asList(rapid.Int64()), asList(rapid.Float32()), asList(rapid.Float64()))
	for _, k := range rapid.SliceOfDistinct(rapid.StringMatching(`[ -~]{1,20}`), rapid.ID[string]).Draw(t, "keys") {
		if k != keyAlignment && !strings.HasPrefix(k, "split.") {
			w.Metadata = append(w.Metadata, Field{k, values.Draw(t, "value")})
		}
	}
	if a := rapid.IntRange(2, 10).Draw(t, "alignment"); a > 2 {
		w.Metadata = append(w.Metadata, Field{keyAlignment, uint32(1) << a})
	}
	types := []Type{F32, F16, Q8_0, Q4_K, Q6_K, MXFP4, NVFP4, Q1_0, I64}
	for i := range rapid.IntRange(0, 6).Draw(t, "tensors") {
		typ := rapid.SampledFrom(types).Draw(t, "type")
		nd := rapid.IntRange(1, 4).Draw(t, "dimensions")
		x := WriteTensor{Name: fmt.Sprint("t", i), Type: typ}
		n := 1
		for d := range nd {
			size := rapid.IntRange(0, 3).Draw(t, "size")
			n *= size
			if d == 0 {
				size *= typ.BlockSize()
			}
			x.Dims = append(x.Dims, uint64(size))
		}
		x.Data = fill(i, n*typ.BlockBytes())
		w.Tensors = append(w.Tensors, x)
	}
	return w
}

func asAny[T any](g *rapid.Generator[T]) *rapid.Generator[any] {
	return rapid.Map(g, func(v T) any { return v })
}

func asList[T any](g *rapid.Generator[T]) *rapid.Generator[any] {
	return rapid.Map(rapid.SliceOfN(g, 0, 5), func(v []T) any { return v })
}

// TestModels reads the files of the repository. Their writers place tensors one after the other, each padded, from the
// start of the data section to the end of the file: any wrong block size or count would show.
func TestModels(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"*.gguf", "golden/*/*.gguf", "golden/*/*.gguf.gz"} {
		found, err := filepath.Glob(filepath.Join("..", "testdata", pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		t.Fatal("no models in ../testdata")
	}
	for _, path := range paths {
		t.Run(strings.TrimPrefix(filepath.ToSlash(path), "../testdata/"), func(t *testing.T) {
			f, err := openModel(path)
			if err != nil {
				t.Fatal(err)
			}
			m := f.Metadata
			arch, err := m.String("general.architecture")
			if err != nil {
				t.Fatal(err)
			}
			blocks, err := m.Uint(arch + ".block_count")
			if err != nil || blocks == 0 {
				t.Errorf("%d blocks, %v", blocks, err)
			}
			tokens, err := m.Strings("tokenizer.ggml.tokens")
			if err != nil {
				t.Fatal(err)
			}
			embd, ok := f.Tensor("token_embd.weight")
			if !ok || embd.Dims[1] != uint64(tokens.Len()) {
				t.Errorf("token_embd.weight %+v for %d tokens", embd, tokens.Len())
			}
			shard, want := -1, int64(0)
			for _, x := range f.Tensors {
				if x.Shard != shard {
					shard = x.Shard
					want = f.Shards[shard].DataStart
				}
				if x.Offset != want {
					t.Fatalf("tensor %q at %d, want %d", x.Name, x.Offset, want)
				}
				want += roundUp(x.Length, f.Shards[shard].Alignment)
			}
			if s := f.Shards[len(f.Shards)-1]; roundUp(s.Size, s.Alignment) != want {
				t.Errorf("the tensors end at %d, the file at %d", want, s.Size)
			}
		})
	}
}

func openModel(path string) (*File, error) {
	if !strings.HasSuffix(path, ".gz") {
		return Open(path)
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	return OpenReader(bytes.NewReader(b), int64(len(b)), path)
}
