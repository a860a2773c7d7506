//go:build cgo && !novulkan

package vulkan

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCacheFile: what was saved comes back; whatever else is in the file is ignored, with a line that says why.
func TestCacheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cache", "pipelines.bin")
	var log bytes.Buffer
	load := func() []byte {
		log.Reset()
		return loadCache(file, slog.New(slog.NewTextHandler(&log, nil)))
	}
	if b := load(); b != nil || log.Len() > 0 {
		t.Errorf("without a file: %d bytes, %s", len(b), log.String())
	}
	data := bytes.Repeat([]byte("compiled "), 1000)
	if err := saveCache(file, data); err != nil {
		t.Fatal(err)
	}
	if b := load(); !bytes.Equal(b, data) || log.Len() > 0 {
		t.Errorf("%d bytes come back, %s", len(b), log.String())
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	with := func(at int, v byte) []byte {
		b := bytes.Clone(whole)
		b[at] ^= v
		return b
	}
	for _, c := range []struct {
		what, why string
		b         []byte
	}{
		{"empty", "no pipeline cache", nil},
		{"the driver's data alone, as before", "no pipeline cache", data},
		{"cut in the head", "no pipeline cache", whole[:cacheHead-1]},
		{"cut", "8999 bytes behind its head, which says 9000", whole[:len(whole)-1]},
		{"longer", "9001 bytes", append(bytes.Clone(whole), 0)},
		{"another version", "version 3", with(8, 2)},
		{"a changed bit", "checksum", with(cacheHead+4000, 1)},
		{"another checksum", "checksum", with(12, 1)},
	} {
		if err := os.WriteFile(file, c.b, 0o644); err != nil {
			t.Fatal(err)
		}
		if b := load(); b != nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), c.why) {
			t.Errorf("%s: %d bytes, %q", c.what, len(b), log.String())
		}
	}
	if err := saveCache(file, nil); err != nil { // it takes the place of a damaged one
		t.Fatal(err)
	}
	if b := load(); b == nil || len(b) != 0 {
		t.Errorf("an empty one: %v", b)
	}
}
