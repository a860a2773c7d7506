package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRunTrace: a recorded answer is replayed, with the same choices; what cannot be written fails with one line.
func TestRunTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl.gz")
	code, _, errs := terrace("", "run", "-m", tinyMoE, "--temp", "0", "-n", "12", "--ignore-eos", "--trace", file, "What is the capital of France?")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	code, out, errs := terrace("", "bench", "predictor", "-m", tinyMoE, "--trace", file, "--expert-ram", "50%", "--lookahead", "2")
	if code != exitOK || errs != "" || !strings.Contains(out, "were chosen here too: 100.00 %") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, out, errs = terrace("", "bench", "cache", "--trace", file, "--residency", "30"); code != exitOK || errs != "" || !strings.Contains(out, "trace.jsonl.gz") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	bad := []string{filepath.Join(t.TempDir(), "nowhere", "t.jsonl")}
	if runtime.GOOS == "linux" {
		bad = append(bad, "/dev/full")
	}
	for _, bad := range bad {
		code, _, errs := terrace("", "run", "-m", tinyMoE, "--temp", "0", "-n", "12", "--trace", bad, "What is the capital of France?")
		if code != exitFailure || !strings.Contains(errs, "--trace") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit %d, %q", bad, code, errs)
		}
	}
}
