package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/bench"
	"terrace/engine"
)

func TestBenchDisk(t *testing.T) {
	dir := t.TempDir()
	args := []string{"bench", "disk", "--dir", dir, "--size", "2M", "--piece", "20kB", "--pairs", "1", "--window", "50ms", "--spend", "0s", "--fio", "none"}
	code, out, errs := terrace("", args...)
	if code != exitOK || !strings.Contains(out, "store ") || !strings.Contains(out, "demand ") || strings.Contains(out, "ratio") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	code, out, errs = terrace("", append(args, "--json", "--store", "pread")...)
	var r bench.DiskReport
	if err := json.Unmarshal([]byte(out), &r); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	if r.PieceBytes != 20_000 || !strings.HasPrefix(r.Store, "pread") || len(r.Pairs) != 1 || r.Machine.Cores < 1 {
		t.Errorf("%s", out)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, c := range []struct{ args, want string }{
		{"--store disk", `--store is "disk"`},
		{"--pairs 0", "--pairs is 0"},
		{"--window 1ms", "--window is 1ms"},
		{"--spend -1s", "--spend -1s"},
		{"--size x", "--size"},
		{"--piece 10X", "--piece"},
		{"--fio /nowhere/fio", "--fio"},
		{"-m " + tinyMoE + " --piece 2M", "experts of its own"},
		{"--model=", "--model is empty"},
		{"more", "unexpected argument"},
	} {
		code, out, errs := terrace("", append([]string{"bench", "disk"}, strings.Fields(c.args)...)...)
		if code != exitUsage || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d, %s%s, want %q", c.args, code, out, errs, c.want)
		}
	}
	if code, _, errs := terrace("", "bench", "disk", "--dir", filepath.Join(dir, "none"), "--fio", "none"); code != exitFailure || !strings.Contains(errs, "none") {
		t.Errorf("a missing folder: exit %d, %s", code, errs)
	}
}

func TestDenseAndMirror(t *testing.T) {
	b, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	mirror := filepath.Join(t.TempDir(), "copy.gguf")
	if err := os.WriteFile(mirror, b, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "25%", "--dense", "mmap", "--mirror", mirror, "What is the capital of France?"}
	file := filepath.Join(t.TempDir(), "stats.json")
	code, out, errs := terrace("", append(args, "--stats", "json", "--stats-file", file)...)
	if code != exitOK || !strings.Contains(out, "Paris") || !strings.Contains(errs, "same disk") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if b, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	var st engine.Stats
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	if st.Dense != "mmap" || st.MirrorBytes == 0 || !strings.Contains(st.Store, "mirror") {
		t.Errorf("%s", b)
	}
	code, _, errs = terrace("", append(args, "--stats", "text")...)
	if code != exitOK || !strings.Contains(errs, "in the page cache") || !strings.Contains(errs, "mirror ") {
		t.Errorf("exit %d: %s", code, errs)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--dense", "disk"}, exitUsage, `dense is "disk"`},
		{[]string{"--mirror="}, exitUsage, "--mirror is empty"},
		{[]string{"--mirror", mirror + "x"}, exitFailure, "copy.ggufx"},
	} {
		code, out, errs := terrace("", append([]string{"run", "-m", tinyMoE, "hi"}, c.args...)...)
		if code != c.code || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %s%s", c.args, code, out, errs)
		}
	}
}
