package gguf

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeSplit writes sample in n parts into a fresh folder and answers the paths.
func writeSplit(t *testing.T, n int, place func(int) int) []string {
	t.Helper()
	paths, err := WriteSplit(filepath.Join(t.TempDir(), "toy"), sample(), n, place)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSplit(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		place func(int) int
	}{
		"even":                 {3, nil},
		"first without":        {2, func(int) int { return 1 }},
		"last without":         {4, func(i int) int { return i % 3 }},
		"interleaved":          {2, func(i int) int { return i % 2 }},
		"more parts than data": {9, nil},
	} {
		t.Run(name, func(t *testing.T) {
			paths := writeSplit(t, c.n, c.place)
			w := sample()
			files := make([][]byte, len(paths))
			for i, p := range paths {
				files[i] = read(t, p)
			}
			var first *File
			for _, p := range paths { // any part will do
				f, err := Open(p)
				if err != nil {
					t.Fatal(err)
				}
				if f.Path != p || len(f.Shards) != c.n {
					t.Errorf("path %s, %d parts", f.Path, len(f.Shards))
				}
				for i, s := range f.Shards {
					if s.Path != paths[i] || s.Size != int64(len(files[i])) || s.Alignment != 32 {
						t.Errorf("part %d: %+v", i, s)
					}
				}
				checkTensors(t, f, w.Tensors, func(i int) []byte { return files[i] })
				if arch, err := f.Metadata.String("general.architecture"); err != nil || arch != "toy" {
					t.Errorf("architecture %q %v", arch, err)
				}
				if first == nil {
					first = f
				} else if !cmp.Equal(f.Tensors, first.Tensors) {
					t.Error("another directory than from part 1")
				}
			}
			left, err := os.ReadDir(filepath.Dir(paths[0]))
			if err != nil || len(left) != c.n {
				t.Errorf("%d files in the folder, want %d: %v", len(left), c.n, err)
			}
		})
	}
}

// TestSplitRelative opens a part by a path without a folder, and through links whose targets have other names.
func TestSplitRelative(t *testing.T) {
	paths := writeSplit(t, 2, nil)
	t.Chdir(filepath.Dir(paths[0]))
	if _, err := Open("toy-00002-of-00002.gguf"); err != nil {
		t.Error(err)
	}
	links := t.TempDir()
	for i, p := range paths {
		blob := filepath.Join(links, string(rune('x'+i)))
		if err := os.Rename(p, blob); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(blob, filepath.Join(links, filepath.Base(p))); err != nil {
			t.Skip("no links here:", err)
		}
	}
	if f, err := Open(filepath.Join(links, "toy-00001-of-00002.gguf")); err != nil || len(f.Shards) != 2 {
		t.Error(err)
	}
}

// TestSplitAlignment: each part has its own padding, and the key goes into each.
func TestSplitAlignment(t *testing.T) {
	w := sample()
	w.Metadata = append(w.Metadata, Field{keyAlignment, uint32(256)})
	paths, err := WriteSplit(filepath.Join(t.TempDir(), "toy"), w, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range f.Shards {
		if s.Alignment != 256 || s.DataStart%256 != 0 {
			t.Errorf("part %d: %+v", i, s)
		}
	}
	checkTensors(t, f, w.Tensors, func(i int) []byte { return read(t, paths[i]) })
}

func TestSplitBroken(t *testing.T) {
	// part rewrites part i (from 0) with other split keys and the tensors ts of sample.
	part := func(t *testing.T, path string, no, count, total int, ts ...int) {
		t.Helper()
		w := sample()
		p := WriteFile{Metadata: []Field{{"general.architecture", "toy"}, {keySplitNo, uint16(no)}, {keySplitCount, uint32(count)}}}
		if total >= 0 {
			p.Metadata = append(p.Metadata, Field{keySplitTensors, int32(total)})
		}
		for _, i := range ts {
			p.Tensors = append(p.Tensors, w.Tensors[i])
		}
		if err := Create(path, p); err != nil {
			t.Fatal(err)
		}
	}
	// sample has 5 tensors, evenly in 3 parts: 0 1 | 2 3 | 4.
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, paths []string)
		open   int // which part
		want   string
		kind   error
	}{
		{"part missing", func(t *testing.T, p []string) { _ = os.Remove(p[1]) }, 0, "part 2 of 3 of ", os.ErrNotExist},
		{"part 1 missing", func(t *testing.T, p []string) { _ = os.Remove(p[0]) }, 2, "part 1 of 3 of ", os.ErrNotExist},
		{"part cut short", func(t *testing.T, p []string) {
			if err := os.Truncate(p[2], 100); err != nil {
				t.Fatal(err)
			}
		}, 0, "part 3 of 3 of ", ErrCorrupt},
		{"split.no", func(t *testing.T, p []string) { part(t, p[1], 2, 3, 5, 2, 3) }, 0,
			"split.no is 2, but the name says part 2 of 3, which is number 1 counted from 0", ErrCorrupt},
		{"split.no of the part given", func(t *testing.T, p []string) { part(t, p[0], 1, 3, 5, 0, 1) }, 0,
			"split.no is 1, but the name says part 1 of 3, which is number 0", ErrCorrupt},
		{"split.count differs from the name", func(t *testing.T, p []string) { part(t, p[0], 0, 4, 5, 0, 1) }, 0,
			"split.count is 4, but the name says 3 parts", ErrCorrupt},
		{"split.count differs between parts", func(t *testing.T, p []string) { part(t, p[2], 2, 4, 5, 4) }, 0, "split.count is 4, but ", ErrCorrupt},
		{"a single file among the parts", func(t *testing.T, p []string) {
			if err := Create(p[1], sample()); err != nil {
				t.Fatal(err)
			}
		}, 0, "split.count is 1, but ", ErrCorrupt},
		{"tensor missing", func(t *testing.T, p []string) { part(t, p[1], 1, 3, 5, 2) }, 0,
			"split.tensors.count is 5, but the 3 parts hold 4 tensors", ErrCorrupt},
		{"totals differ", func(t *testing.T, p []string) { part(t, p[2], 2, 3, 6, 4) }, 0,
			"split.tensors.count is 6, but the 3 parts hold 5 tensors", ErrCorrupt},
		{"no total", func(t *testing.T, p []string) { part(t, p[0], 0, 3, -1, 0, 1) }, 1,
			`metadata key "split.tensors.count" is missing`, ErrCorrupt},
		{"tensor twice", func(t *testing.T, p []string) { part(t, p[2], 2, 3, 5, 0) }, 0,
			`tensor "token_embd.weight" stands twice: in part 1 of 3 and in part 3 of 3`, ErrCorrupt},
		{"split key of another type", func(t *testing.T, p []string) {
			if err := Create(p[1], WriteFile{Metadata: []Field{{keySplitCount, "3"}}}); err != nil {
				t.Fatal(err)
			}
		}, 0, `metadata key "split.count" is string, want an integer`, ErrCorrupt},
		{"name of no part", func(t *testing.T, p []string) {
			if err := os.Rename(p[0], filepath.Join(filepath.Dir(p[0]), "x.gguf")); err != nil {
				t.Fatal(err)
			}
			p[0] = filepath.Join(filepath.Dir(p[0]), "x.gguf")
		}, 0, "split.count is 3, but the name does not end in -00001-of-00003.gguf", ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			paths := writeSplit(t, 3, nil)
			dir := filepath.Dir(paths[0])
			c.damage(t, paths)
			_, err := Open(paths[c.open])
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
			if !errors.Is(err, c.kind) {
				t.Errorf("%v is not %v", err, c.kind)
			}
		})
	}
	// Later parts need not repeat the total.
	paths := writeSplit(t, 3, nil)
	part(t, paths[1], 1, 3, -1, 2, 3)
	if _, err := Open(paths[0]); err != nil {
		t.Error(err)
	}
}

func TestSplitReader(t *testing.T) {
	paths := writeSplit(t, 3, nil)
	f := mustOpen(t, read(t, paths[1]))
	if len(f.Shards) != 1 || len(f.Tensors) != 2 || f.Tensors[0].Name != "norm" {
		t.Errorf("a part alone: %+v", f)
	}
}

func TestSplitName(t *testing.T) {
	for _, c := range []struct {
		path      string
		prefix    string
		no, count uint64
	}{
		{"a/m-00001-of-00003.gguf", "a/m", 1, 3},
		{"m-x-00012-of-00012.gguf", "m-x", 12, 12},
		{"-00001-of-00002.gguf", "", 1, 2},
		{path: "m-00004-of-00003.gguf"},
		{path: "m-00000-of-00003.gguf"},
		{path: "m-0001-of-00003.gguf"},
		{path: "m-000001-of-00003.gguf"},
		{path: "m-00001-of-00003.gguf.gz"},
		{path: "m-00001-of-0000x.gguf"},
		{path: "m00001-of-00003.gguf"},
		{path: "00001-of-00003.gguf"},
		{path: ".gguf"},
		{path: ""},
	} {
		prefix, no, count, ok := SplitName(c.path)
		if prefix != c.prefix || no != c.no || count != c.count || ok != (c.no > 0) {
			// The number of an unacceptable name is of no interest.
			if ok || c.no > 0 {
				t.Errorf("%s: %q %d %d %v", c.path, prefix, no, count, ok)
			}
		}
		if ok && PartPath(prefix, int(no)-1, int(count)) != c.path {
			t.Errorf("%s: PartPath answers %s", c.path, PartPath(prefix, int(no)-1, int(count)))
		}
	}
}

func TestWriteSplitRefuses(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "toy")
	withKey := sample()
	withKey.Metadata = append(withKey.Metadata, Field{keySplitNo, uint16(0)})
	bad := sample()
	bad.Tensors = slices.Clone(bad.Tensors)
	bad.Tensors[4].Data = fill(0, 1)
	for name, c := range map[string]struct {
		f     WriteFile
		n     int
		place func(int) int
		want  string
	}{
		"one part":    {sample(), 1, nil, "1 parts, want 2 to 65535"},
		"place":       {sample(), 2, func(i int) int { return i }, `tensor "norm" placed in part 2 of 2`},
		"split key":   {withKey, 2, nil, `metadata key "split.no" is set by the split itself`},
		"last tensor": {bad, 3, nil, `tensor 0 "scalar": 1 bytes of data, want 2`},
	} {
		_, err := WriteSplit(prefix, c.f, c.n, c.place)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// remote is a Reader that counts how often files are opened and closed.
type remote struct {
	*bytes.Reader
	open *int
}

func (r remote) Close() error { *r.open--; return nil }

// TestOpenFrom: parts come from wherever the caller says, each is closed, and the fingerprint is that of local files.
func TestOpenFrom(t *testing.T) {
	paths := writeSplit(t, 2, nil)
	dir, first := filepath.Dir(paths[0]), paths[0]
	local, err := Open(first)
	if err != nil {
		t.Fatal(err)
	}
	open, opened := 0, []string{}
	f, err := OpenFrom("https://h/toy-00001-of-00002.gguf", func(path string) (Reader, error) {
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(path)))
		if err != nil {
			return nil, err
		}
		open++
		opened = append(opened, path)
		return remote{bytes.NewReader(b), &open}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tensors) != len(local.Tensors) || open != 0 || f.Shards[1].Path != "https://h/toy-00002-of-00002.gguf" || !slices.Equal(opened, []string{f.Shards[0].Path, f.Shards[1].Path}) {
		t.Fatalf("%d tensors, %d left open, opened %v", len(f.Tensors), open, opened)
	}
	a, err := local.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := f.Fingerprint(); err != nil || a != b || open != 0 {
		t.Errorf("fingerprints %s and %s (%v), %d left open", a, b, err, open)
	}
}
