package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/engine"
)

// TestRopeFlags: the flags reach the model, lift its context, and what cannot be meant is refused.
func TestRopeFlags(t *testing.T) {
	file := golden(t, "qwen3")
	hash := func(flags ...string) string {
		stats := filepath.Join(t.TempDir(), "stats.json")
		args := append([]string{"run", "-m", file, "--temp", "0", "--raw", "-n", "3", "--ignore-eos", "-p", "one two three four", "--hash-logits", "--stats", "json", "--stats-file", stats}, flags...)
		code, _, errs := terrace("", args...)
		if code != exitOK {
			t.Fatalf("%q: exit %d: %s", flags, code, errs)
		}
		b, err := os.ReadFile(stats)
		if err != nil {
			t.Fatal(err)
		}
		var s engine.Stats
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		return s.LogitsSHA256
	}
	plain := hash()
	seen := map[string]string{plain: "nothing"}
	for _, flags := range []string{
		"--rope-scaling linear --rope-scale 4", "--rope-scaling yarn --rope-scale 4", "--rope-scaling yarn --rope-scale 4 --yarn-ext-factor 0.5",
		"--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 64", "--rope-scaling yarn --rope-scale 4 --yarn-attn-factor 1.2", "--rope-freq-base 5000",
		"--rope-scaling yarn --rope-scale 4 --yarn-beta-fast 4000 --yarn-beta-slow 3000",
	} {
		h := hash(strings.Fields(flags)...)
		if by, ok := seen[h]; ok {
			t.Errorf("%s gives the logits of %s", flags, by)
		}
		seen[h] = flags
	}
	for _, flags := range []string{"--rope-scaling none", "--rope-freq-scale 1", "--yarn-ext-factor -1 --yarn-attn-factor -1 --yarn-beta-slow -1 --yarn-beta-fast -1"} {
		if hash(strings.Fields(flags)...) != plain {
			t.Errorf("%s changes the logits", flags)
		}
	}
	if hash("--rope-freq-scale", "0.25") != hash("--rope-scale", "4") {
		t.Error("--rope-freq-scale 0.25 is not --rope-scale 4")
	}
	for _, c := range []struct{ flags, want string }{
		{"-c 9000", "was made for 4096 positions"},
		{"-c 9000 --rope-scale 2", "was made for 8192 positions"},
		{"--rope-scale 0", "--rope-scale is 0, want a number above 0"},
		{"--rope-scale 2 --rope-freq-scale 0.5", "want one of the two"},
		{"--rope-scaling longrope", `scaling is "longrope", want none, linear or yarn`},
		{"--yarn-orig-ctx -4", "--yarn-orig-ctx is -4"},
		{"--yarn-ext-factor -2", "--yarn-ext-factor is -2"},
	} {
		code, _, errs := terrace("", append([]string{"run", "-m", file, "-p", "x", "-n", "1"}, strings.Fields(c.flags)...)...)
		if code != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %q, want %q", c.flags, code, errs, c.want)
		}
	}
	for _, flags := range []string{"-c 8192 --rope-scale 2", "-c 9000 --rope-freq-base 1000000"} {
		if code, _, errs := terrace("", append([]string{"run", "-m", file, "-p", "x", "-n", "1"}, strings.Fields(flags)...)...); code != exitOK {
			t.Errorf("%s: exit %d, %s", flags, code, errs)
		}
	}
}
