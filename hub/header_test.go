package hub

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"terrace/gguf"
)

// header is a GGUF header with a vocabulary that makes it large, and room for one tensor behind it.
func header(t *testing.T, tokens int) []byte {
	t.Helper()
	words := make([]string, tokens)
	for i := range words {
		words[i] = strings.Repeat("w", 5+i%30)
	}
	var b strings.Builder
	err := gguf.Write(&b, gguf.WriteFile{
		Metadata: []gguf.Field{{Key: "general.architecture", Value: "x"}, {Key: "tokenizer.ggml.tokens", Value: words}, {Key: "tail", Value: uint32(7)}},
		Tensors:  []gguf.WriteTensor{{Name: "w", Type: gguf.F32, Dims: []uint64{8}, Data: make([]byte, 32)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(b.String())
}

// TestHeader: headers of all sizes are read as from the disk, with little more than their own bytes, from servers of all kinds.
func TestHeader(t *testing.T) {
	small, large := header(t, 100), header(t, 400_000) // 4 KB, 11 MB
	whole := func(int, string, int64, int64) trick { return trick{whole: true} }
	for name, x := range map[string]struct {
		head  []byte
		trick func(int, string, int64, int64) trick
		most  int
		asks  int
	}{
		"small": {small, nil, 1 << 20, 1},
		"large": {large, nil, len(large) + lastWindow, 6},
		"bad": {large, func(n int, _ string, _, _ int64) trick {
			return []trick{{}, {drop: 300_000}, {status: 503}, {shift: 9}, {short: 500_000}, {status: 429, after: "1"}}[n%6]
		}, len(large) + 2*lastWindow, 40},
		"no ranges": {large, whole, 4 * len(large), 6},
	} {
		t.Run(name, func(t *testing.T) {
			content := append(append([]byte{}, x.head...), make([]byte, 8<<20)...)
			f := newFake(t, map[string][]byte{"repo-Q8_0.gguf": content})
			f.trick, f.noStore = x.trick, true
			c, _ := f.client(t, "", nil)
			m := must(t, c, "org/repo")
			g, read, err := c.Header(context.Background(), m)
			if err != nil {
				t.Fatal(err)
			}
			p := filepath.Join(t.TempDir(), "m.gguf")
			if err := os.WriteFile(p, content, 0o644); err != nil {
				t.Fatal(err)
			}
			want, err := gguf.Open(p)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.Tensors, g.Tensors); d != "" {
				t.Error(d)
			}
			var a, b []gguf.Entry
			for e := range want.Metadata.Entries() {
				a = append(a, e)
			}
			for e := range g.Metadata.Entries() {
				b = append(b, e)
			}
			if d := cmp.Diff(a, b); d != "" {
				t.Error(d)
			}
			if g.Path != "org/repo/repo-Q8_0.gguf" || g.Shards[0].Size != int64(len(content)) {
				t.Errorf("%s of %d bytes", g.Path, g.Shards[0].Size)
			}
			if read > int64(x.most) || f.count() > x.asks {
				t.Errorf("%d bytes in %d requests for a header of %d, want at most %d in %d", read, f.count(), len(x.head), x.most, x.asks)
			}
			n := f.count()
			fa, err := want.Fingerprint()
			fb, err2 := g.Fingerprint()
			if err != nil || err2 != nil || fa != fb || f.count() != n {
				t.Errorf("fingerprints %s and %s (%v, %v), %d more requests", fa, fb, err, err2, f.count()-n)
			}
			if x.trick == nil { // the next file of the repository has a header like this one
				f.change(func() { f.n = 0 })
				if _, again, err := c.Header(context.Background(), m); err != nil || f.count() != 1 || again > int64(len(x.head))+1<<20 {
					t.Errorf("again: %d bytes in %d requests, %v", again, f.count(), err)
				}
			}
		})
	}
}

// TestHeaderParts: each part's header is read, the other parts are found, and what is there already is not asked for.
func TestHeaderParts(t *testing.T) {
	var ts []gguf.WriteTensor
	for _, n := range []string{"a", "b", "c"} {
		ts = append(ts, gguf.WriteTensor{Name: n, Type: gguf.F32, Dims: []uint64{1024}, Data: make([]byte, 4096)})
	}
	paths, err := gguf.WriteSplit(filepath.Join(t.TempDir(), "m-Q8_0"), gguf.WriteFile{Metadata: []gguf.Field{{Key: "general.architecture", Value: "x"}}, Tensors: ts}, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files["Q8/"+filepath.Base(p)] = b
		files[filepath.Base(p)] = b
	}
	f := newFake(t, files)
	dir := t.TempDir()
	c, _ := f.client(t, dir, nil)
	m := must(t, c, "org/repo/Q8/m-Q8_0-00002-of-00003.gguf")
	g, read, err := c.Header(context.Background(), m)
	if err != nil || len(g.Tensors) != 3 || len(g.Shards) != 3 || g.Shards[2].Path != "org/repo/Q8/m-Q8_0-00003-of-00003.gguf" {
		t.Fatalf("%+v, %v", g, err)
	}
	if f.count() != 3 || read == 0 {
		t.Errorf("%d requests, %d bytes", f.count(), read)
	}
	ref, err := ParseRef(f.store.URL+"/m-Q8_0-00002-of-00003.gguf?key=verysecret", c.o.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	u, err := c.Find(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if g, _, err = c.Header(context.Background(), u); err != nil || len(g.Tensors) != 3 || g.Shards[2].Path != f.store.URL+"/m-Q8_0-00003-of-00003.gguf" {
		t.Fatalf("%+v, %v", g, err)
	}
	if _, err := c.Pull(context.Background(), m, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	n := f.count()
	if g, read, err = c.Header(context.Background(), m); err != nil || read != 0 || f.count() != n || len(g.Tensors) != 3 {
		t.Errorf("from the cache: %d bytes, %d requests, %v", read, f.count()-n, err)
	}
}

// TestHeaderRefused: limits and errors are those of files on the disk, and one that claims a header without end is left.
func TestHeaderRefused(t *testing.T) {
	endless := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	endless = binary.LittleEndian.AppendUint64(endless, 0)
	endless = binary.LittleEndian.AppendUint64(endless, 1)
	endless = binary.LittleEndian.AppendUint64(endless, 1)
	endless = append(endless, 'k', 9, 0, 0, 0, 0, 0, 0, 0)
	endless = binary.LittleEndian.AppendUint64(endless, 1<<22) // an array of bytes, then of strings
	large := append(endless, make([]byte, 70<<20)...)
	copy(large[37:], []byte{8, 0, 0, 0})
	for i := 49; i+8 < len(large); i += 8 + 32 {
		large[i] = 32
	}
	for name, x := range map[string]struct {
		content []byte
		want    string
		is      error
	}{
		"no GGUF":   {[]byte(strings.Repeat("<html>", 100)), "not a GGUF file", gguf.ErrCorrupt},
		"empty":     {nil, "empty", gguf.ErrCorrupt},
		"cut short": {header(t, 100)[:1500], "remain", gguf.ErrCorrupt},
		"endless":   {large, "over the limit of 67108864", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, map[string][]byte{"repo-Q8_0.gguf": x.content})
			c, _ := f.client(t, "", nil)
			_, _, err := c.Header(context.Background(), must(t, c, "org/repo"))
			if err == nil || !strings.Contains(err.Error(), x.want) || x.is != nil && !errors.Is(err, x.is) || !strings.HasPrefix(err.Error(), "org/repo/repo-Q8_0.gguf: ") && !strings.Contains(err.Error(), "org/repo/repo-Q8_0.gguf") {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
	f := newFake(t, map[string][]byte{"repo-Q8_0.gguf": append(header(t, 400_000), make([]byte, 1<<20)...)})
	f.trick = func(n int, _ string, _, _ int64) trick { return trick{etag: "v" + strings.Repeat("x", n)} }
	c, _ := f.client(t, "", nil)
	if _, _, err := c.Header(context.Background(), must(t, c, "org/repo")); !errors.Is(err, errChanged) {
		t.Errorf("a file that changes: %v", err)
	}
}
