package engine

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"terrace/gguf"
)

// TestCurveDamaged: a reuse curve that is cut, of another version or no curve is left out with one line; a good one is taken.
func TestCurveDamaged(t *testing.T) {
	f, err := gguf.Open(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	fp, err := f.Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var log bytes.Buffer
	l := slog.New(slog.NewTextHandler(&log, nil))
	if c := CurveOf(f, dir, l); c != nil || log.Len() > 0 {
		t.Errorf("of an empty folder: %v, %s", c, log.String())
	}
	good := `{"version":1,"source":"here","policy":"reuse","points":[{"resident":0.5,"hit_rate":0.7},{"resident":1,"hit_rate":1}]}`
	for _, c := range []struct{ text, why string }{
		{good, ""},
		{good[:60], "unexpected end"},
		{strings.Replace(good, `"version":1`, `"version":9`, 1), "version 9"},
		{strings.Replace(good, "0.7", "1.7", 1), "both must rise"},
		{"", "unexpected end"},
	} {
		log.Reset()
		if err := os.WriteFile(CurvePath(dir, fp), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got := CurveOf(f, dir, l)
		if c.why == "" {
			if got == nil || len(got.Points) != 2 || log.Len() > 0 {
				t.Errorf("a good one: %v, %s", got, log.String())
			}
		} else if got != nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), c.why) {
			t.Errorf("%q: %v, %s", c.text, got, log.String())
		}
	}
}
