package gguf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/internal/testfile"
)

// TestFingerprint: a copy elsewhere has the same one; another header, another size or another part has not; the weights
// do not count.
func TestFingerprint(t *testing.T) {
	data := testfile.Gunzip(t, "../testdata/golden/qwen3moe/model.drawn.gz")
	dir := t.TempDir()
	of := func(name string, b []byte) (*File, string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := Open(p)
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		if len(s) != 32 {
			t.Fatalf("fingerprint %q, want 32 digits", s)
		}
		return f, s
	}
	f, want := of("a.gguf", data)
	if _, got := of("b.gguf", data); got != want {
		t.Errorf("a copy is %s, the original %s", got, want)
	}
	weights := append([]byte(nil), data...)
	weights[len(weights)-1] ^= 1
	if _, got := of("c.gguf", weights); got != want {
		t.Errorf("other weights are %s, the original %s", got, want)
	}
	if _, got := of("d.gguf", append(append([]byte(nil), data...), 0)); got == want {
		t.Error("a longer file has the same fingerprint")
	}
	name := append([]byte(nil), data...)
	at := strings.Index(string(name[:f.Shards[0].DataStart]), "tiny-random")
	if at < 0 {
		t.Fatal("no name in the header")
	}
	name[at] = 'T'
	if _, got := of("e.gguf", name); got == want {
		t.Error("another name has the same fingerprint")
	}
	if err := os.Truncate(filepath.Join(dir, "a.gguf"), 100000); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fingerprint(); err == nil || !strings.Contains(err.Error(), "100000") || !strings.Contains(err.Error(), "a.gguf") {
		t.Errorf("cut file: %v", err)
	}
}
