package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/bench"
)

func TestBenchDecodeLists(t *testing.T) {
	dir := t.TempDir()
	svg := filepath.Join(dir, "plot.svg")
	code, out, errs := terrace("", "bench", "decode", "-m", tinyMoE, "--lookahead", "0,auto", "--expert-ram", "25%,50%", "--decode", "3", "--rounds", "1", "--warm", "2", "--json", "--label", "quick")
	if code != exitOK || strings.Count(errs, "tokens/s") != 4 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var r bench.LookaheadReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Arenas) != 2 || r.Label != "quick" {
		t.Fatalf("%v: %s", err, out)
	}
	file := filepath.Join(dir, "a.json")
	if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs = terrace("", "bench", "decode", "--merge", file+","+file, "--svg", svg)
	if code != exitOK || errs != "" || strings.Count(out, "the same with every setting") != 2 || strings.Count(out, "auto") != 4 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if b, err := os.ReadFile(svg); err != nil || strings.Count(string(b), ">quick<") != 2 {
		t.Errorf("%v: %s", err, b)
	}
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, `--lookahead is "3"`, []string{"--lookahead", "0,3"}},
		{exitUsage, `--expert-ram is "0%"`, []string{"--expert-ram", "50%,0%"}},
		{exitUsage, "--reps is for a single setting", []string{"--expert-ram", "50%,60%", "--reps", "2"}},
		{exitNoFit, "does not fit", []string{"--lookahead", "0,1", "--expert-ram", "1%"}},
		{exitFailure, "--merge", []string{"--merge", filepath.Join(dir, "nothing")}},
		{exitFailure, "--merge", []string{"--merge", svg}},
	} {
		if code, _, errs := terrace("", append([]string{"bench", "decode", "-m", tinyMoE, "--decode", "2"}, x.args...)...); code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %q", x.args, code, errs)
		}
	}
}
