package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSoakLeft: minutes of good sessions of the same code count, whatever else is in the file.
func TestSoakLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.jsonl")
	left := func(want int) {
		t.Helper()
		if n, err := SoakLeft(file, "abc", 60); err != nil || n != want {
			t.Errorf("%d minutes are left (%v), want %d", n, err, want)
		}
	}
	left(60)
	lines := []string{
		`{"commit":"abc","session":1,"minute":1,"same_answers":5}`, `{"commit":"abc","session":1,"minute":2}`,
		`{"commit":"old","session":2,"minute":30}`,
		`{"commit":"abc","session":3,"minute":1}`, `{"commit":"abc","session":3,"failed":true}`,
		`{"commit":"abc","session":4,"minute":9,"errors":1}`,
		`{"commit":"abc","session":5,"minute":7}`, `{"commit":"abc","sess`,
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	left(60 - 2 - 7)
}

// TestDrifts: a slope beyond its noise is found, noise is not.
func TestDrifts(t *testing.T) {
	session := func(perMinute, noise int64) (out []SoakMinute) {
		for i := range 60 {
			out = append(out, SoakMinute{Minute: i + 1, Held: 100<<20 + int64(i)*perMinute + int64(i*7919%13-6)*noise})
		}
		return out
	}
	for _, c := range []struct {
		perMinute, noise int64
		grows            bool
	}{{0, 1 << 20, false}, {1 << 20, 1 << 20, true}, {-1 << 20, 1 << 20, false}, {100 << 10, 0, false}, {256 << 10, 64 << 10, true}} {
		if p := drifts(session(c.perMinute, c.noise)); (p != "") != c.grows {
			t.Errorf("%d bytes a minute, noise of %d: %q", c.perMinute, c.noise, p)
		}
	}
	if p := drifts(session(64<<20, 0)[:3]); p != "" {
		t.Errorf("three minutes: %q", p)
	}
}
