package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/bench"
	"terrace/engine"
	"terrace/internal/testfile"
	"terrace/plan"
)

const tinyMoE = "../../testdata/tiny-moe-Q4_K.gguf"

// terrace runs a command line in this process.
func terrace(stdin string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"terrace"}, args...), env{in: strings.NewReader(stdin), out: &o, err: &e, getenv: func(string) string { return "" }})
	return code, o.String(), e.String()
}

// golden unpacks a fixture's model.
func golden(t *testing.T, name string) string {
	t.Helper()
	b := testfile.Gunzip(t, filepath.Join("../../testdata/golden", name, "model.drawn.gz"))
	p := filepath.Join(t.TempDir(), name+".gguf")
	if err := os.WriteFile(p, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRunAnswers(t *testing.T) {
	for _, c := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "25%", "What is the capital of France?"}},
		{"", []string{"run", "What is the capital of France?", "-m", tinyMoE, "--temp", "0", "--expert-ram=25%", "--store", "pread"}},
		{"What is the capital of France?\n", []string{"run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "min"}},
		{"", []string{"run", "-m", tinyMoE, "--temp", "0", "-p", "What is the capital of France?", "--ram", "120M", "-c", "256"}},
	} {
		code, out, errs := terrace(c.stdin, c.args...)
		if code != exitOK || !strings.Contains(out, "Paris") || errs != "" {
			t.Errorf("%q: exit %d, answer %q, errors %q", c.args, code, out, errs)
		}
	}
}

func TestRunStats(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stats.json")
	code, out, errs := terrace("", "run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "25%", "--stats", "json", "--stats-file", file, "--hash-logits",
		"-n", "20", "--ignore-eos", "Who are you?")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var st engine.Stats
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if st.PredictedTokens != 20 || st.PromptTokens == 0 || st.Arch != "qwen3moe" || st.Quant != "Q4_K" || st.ExpertsTotal != 256 || st.ExpertSlots != 64 {
		t.Errorf("stats %s", b)
	}
	if st.Touches == 0 || st.HitsRAM+st.HitsInflight+st.Misses != st.Touches || st.BytesRead == 0 || st.Prefetch.Issued == 0 || st.Prefetch.Recall1 < 0.5 {
		t.Errorf("tier counts do not add up: %s", b)
	}
	if st.Bottleneck == "" || st.BoundPerSecond <= 0 || len(st.LogitsSHA256) != 64 || st.PeakRSS == 0 {
		t.Errorf("no bound in %s", b)
	}
	code, _, errs = terrace("", "run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "25%", "--stats", "text", "Who are you?")
	for _, want := range []string{"tiers ", "disk ", "prefetch ", "limit "} {
		if code != exitOK || !strings.Contains(errs, want) {
			t.Errorf("exit %d, no %q in the statistics:\n%s", code, want, errs)
		}
	}
}

func TestCacheTypes(t *testing.T) {
	for flag, want := range map[string]string{"q8_0": "q8_0/f32", "Q4_0": "q4_0/f32", "f16": "f16/f32"} {
		code, out, errs := terrace("", "run", "-m", tinyMoE, "--temp", "0", "-ctk", flag, "-ctv", "f32", "--stats", "text", "What is the capital of France?")
		if code != exitOK || !strings.Contains(out, "Paris") || !strings.Contains(errs, "KV "+want+"\n") {
			t.Errorf("-ctk %s: exit %d, answer %q, statistics %q", flag, code, out, errs)
		}
	}
	code, _, errs := terrace("", "run", "-m", golden(t, "qwen3moe-f32"), "-ctk", "q8_0", "--raw", "hi")
	if code != exitUsage || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "24") || !strings.Contains(errs, "32") {
		t.Errorf("heads of 24 elements in blocks of 32: exit %d, %q", code, errs)
	}
}

// TestBadInput holds a command line for each way to go wrong, its exit code and what the one line must say.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	model, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	cut := write("cut.gguf", model[:len(model)-5000])
	header := write("header.gguf", model[:3000])
	magic := write("magic.gguf", append([]byte("GGML"), model[4:100000]...))
	empty := write("empty.gguf", nil)
	count := append([]byte{}, model[:100000]...)
	for i := 8; i < 16; i++ {
		count[i] = 0x7f
	}
	counts := write("count.gguf", count)
	arch := write("arch.gguf", bytes.Replace(model, []byte("qwen3moe"), []byte("qwen9moe"), 1))
	shard := write("m-00001-of-00003.gguf", model)
	llama := tinyMoE
	for _, c := range []struct {
		name  string
		stdin string
		args  []string
		code  int
		says  []string
	}{
		{"no such file", "", []string{"run", "-m", filepath.Join(dir, "none.gguf"), "hi"}, 1, []string{"none.gguf"}},
		{"a directory", "", []string{"run", "-m", dir, "hi"}, 1, []string{dir, "directory"}},
		{"empty file", "", []string{"run", "-m", empty, "hi"}, 1, []string{"empty.gguf", "0"}},
		{"truncated data", "", []string{"run", "-m", cut, "hi"}, 1, []string{"cut.gguf"}},
		{"truncated header", "", []string{"run", "-m", header, "hi"}, 1, []string{"header.gguf"}},
		{"wrong magic", "", []string{"run", "-m", magic, "hi"}, 1, []string{"magic.gguf", "GGML"}},
		{"absurd count", "", []string{"run", "-m", counts, "hi"}, 1, []string{"count.gguf", "tensor"}},
		{"unknown architecture", "", []string{"run", "-m", arch, "hi"}, 1, []string{"qwen9moe"}},
		{"unknown architecture, inspect goes on", "", []string{"inspect", arch}, 0, nil},
		{"missing shard name", "", []string{"inspect", shard + "x"}, 1, nil},
		{"empty prompt", "", []string{"run", "-m", llama, ""}, 2, []string{"prompt is empty"}},
		{"empty standard input", "\n", []string{"run", "-m", llama}, 2, []string{"prompt is empty"}},
		{"prompt too long", strings.Repeat("word ", 2000), []string{"run", "-m", llama, "-c", "64"}, 1, []string{"prompt", "64"}},
		{"context too large", "", []string{"run", "-m", llama, "-c", "5000", "hi"}, 2, []string{"5000", "1024"}},
		{"budget too small", "", []string{"run", "-m", llama, "--ram", "10M", "hi"}, 3, []string{"10485760"}},
		{"arena too small", "", []string{"run", "-m", llama, "--expert-ram", "1M", "hi"}, 3, []string{"1048576", "smallest working set"}},
		{"share too small", "", []string{"run", "-m", llama, "--expert-ram", "2%", "hi"}, 3, []string{"5 slots", "16"}},
		{"bad size", "", []string{"run", "-m", llama, "--ram", "lots", "hi"}, 2, []string{"lots"}},
		{"bad share", "", []string{"run", "-m", llama, "--expert-ram", "150%", "hi"}, 2, []string{"150%"}},
		{"bad lookahead", "", []string{"run", "-m", llama, "--lookahead", "3", "hi"}, 2, []string{"3"}},
		{"bad store", "", []string{"run", "-m", llama, "--store", "tape", "hi"}, 2, []string{"tape"}},
		{"bad cache type", "", []string{"run", "-m", llama, "-ctk", "q9", "hi"}, 2, []string{"q9"}},
		{"bad top-p", "", []string{"run", "-m", llama, "--top-p", "1.5", "hi"}, 2, []string{"1.5"}},
		{"no vulkan", "", []string{"run", "-m", llama, "--backend", "vulkan", "--device", "99", "hi"}, 1, []string{"vulkan"}},
		{"unknown flag", "", []string{"run", "-m", llama, "--frobnicate", "hi"}, 2, []string{"frobnicate"}},
		{"unknown command", "", []string{"frobnicate"}, 2, []string{"frobnicate"}},
		{"unknown kind", "", []string{"eval", "frobnicate"}, 2, []string{"frobnicate"}},
		{"two prompts", "", []string{"run", "-m", llama, "a", "b"}, 2, []string{"2 arguments"}},
		{"token outside", "", []string{"eval", "logits", "-m", llama, "--tokens", "1,99999"}, 1, []string{"99999", "5632"}},
		{"position outside", "", []string{"eval", "logits", "-m", llama, "--tokens", "1,2", "--positions", "2"}, 2, []string{"2"}},
		{"no tokens", "", []string{"eval", "logits", "-m", llama}, 2, []string{"tokens"}},
		{"no positive answer length", "", []string{"eval", "qa", "-m", llama, "-f", "x.jsonl", "-n", "0"}, 2, []string{"0", "1"}},
		{"no questions", "", []string{"eval", "qa", "-m", llama, "-f", empty}, 1, []string{"empty.gguf", "0 questions"}},
		{"decode past everything", "", []string{"eval", "logits", "-m", llama, "--tokens", "1", "--decode", "9223372036854775807"}, 1, []string{"9223372036854775807", "1024"}},
		{"empty model", "", []string{"run", "-m", "", "hi"}, 2, []string{"--model"}},
		{"value missing", "", []string{"run", "hi", "-m"}, 2, []string{"-m"}},
		{"system prompt without template", "", []string{"run", "-m", llama, "--raw", "-sys", "x", "hi"}, 2, []string{"--raw"}},
		{"negative limit", "", []string{"bench", "predictor", "-m", llama, "--trace", empty, "--limit", "-1"}, 2, []string{"-1"}},
		{"empty trace", "", []string{"bench", "predictor", "-m", llama, "--trace", empty}, 1, []string{"empty.gguf"}},
		{"not json", "plain\n", []string{"eval", "tokens", "-m", llama}, 1, []string{"line 1"}},
		{"cache, nothing resident", "", []string{"bench", "cache", "--residency", "0"}, 2, []string{"--residency", "0"}},
		{"cache, no such share", "", []string{"bench", "cache", "--residency", "10,most"}, 2, []string{"most"}},
		{"cache, limit without trace", "", []string{"bench", "cache", "--limit", "9"}, 2, []string{"--trace"}},
		{"cache, empty trace", "", []string{"bench", "cache", "--trace", empty}, 1, []string{"empty.gguf"}},
		{"cache, too small", "", []string{"bench", "cache", "--trace", "../../testdata/tiny-moe/routing.jsonl.gz", "--limit", "9", "--residency", "1"}, 1, []string{"256 experts is 2", "4"}},
		{"cache, curve of a short trace", "", []string{"bench", "cache", "--trace", "../../testdata/tiny-moe/routing.jsonl.gz", "--limit", "9", "--curve", filepath.Join(t.TempDir(), "c")}, 1, []string{"9 tokens", "256"}},
		{"no trace", "", []string{"bench", "predictor", "-m", llama}, 2, []string{"trace"}},
		{"no changes", "", []string{"bench", "memory", "-m", llama, "--changes", "0"}, 2, []string{"--changes is 0"}},
		{"budget changes of a fixed arena", "", []string{"bench", "memory", "-m", tinyMoE, "--expert-ram", "min"}, 2, []string{"fixed expert arena"}},
		{"budget below the smallest", "", []string{"run", "-m", tinyMoE, "--ram", "40M", "Hi"}, 3, []string{"41943040"}},
	} {
		code, out, errs := terrace(c.stdin, c.args...)
		if code != c.code {
			t.Errorf("%s: exit %d, want %d (%s)", c.name, code, c.code, errs)
		}
		if c.code != 0 {
			if n := strings.Count(errs, "\n"); n != 1 || out != "" {
				t.Errorf("%s: %d lines on standard error, %d bytes on standard output:\n%s%s", c.name, n, len(out), errs, out)
			}
		}
		for _, s := range c.says {
			if !strings.Contains(errs, s) {
				t.Errorf("%s: no %q in %q", c.name, s, errs)
			}
		}
	}
}

func TestBenchCache(t *testing.T) {
	curve := filepath.Join(t.TempDir(), "curve.json")
	args := []string{"bench", "cache", "--trace", "../../testdata/tiny-moe/routing.jsonl.gz", "--limit", "300", "--residency", "20,50%", "--rivals", "--curve", curve}
	code, out, errs := terrace("", append(args, "--json")...)
	var r bench.CacheReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	if len(r.Routings) != 1 || len(r.Routings[0].Rows) < 10 || !r.Routings[0].Rows[0].Ships || len(r.Routings[0].Rows[0].HitRate) != 2 || len(r.Routings[0].Gains) != 3 {
		t.Errorf("%+v", r)
	}
	b, err := os.ReadFile(curve)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := plan.ParseCurve(curve, b); err != nil || c.HitRate(0.5) < 0.5 || c.Tokens != 44 {
		t.Errorf("%+v, %v", c, err)
	}
	code, out, errs = terrace("", args...)
	if code != exitOK || errs != "" || !strings.Contains(out, "reuse (ships)") || !strings.Contains(out, "S3-FIFO") || !strings.Contains(out, "50 % (128)") {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
}

func TestEvalTokens(t *testing.T) {
	code, out, errs := terrace("\"Hello world\"\n\"<|im_end|>\"\n\"\"\n", "eval", "tokens", "-m", tinyMoE, "--special")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitOK || errs != "" || len(lines) != 3 || lines[1] != "[2]" || lines[2] != "[]" {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
	_, plain, _ := terrace("\"<|im_end|>\"\n", "eval", "tokens", "-m", tinyMoE)
	if plain == "[2]\n" {
		t.Error("without --special a control token was made from text")
	}
}

func TestEvalLogits(t *testing.T) {
	m := golden(t, "qwen3moe")
	code, out, errs := terrace("", "eval", "logits", "-m", m, "--tokens", "1,2,3", "--positions", "0,2", "--decode", "2", "--exact", "--json")
	var r struct {
		Positions []int
		Logits    [][]float64
		Decode    []struct {
			Token  int
			Logits []float64
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	if len(r.Positions) != 2 || len(r.Logits) != 2 || len(r.Logits[1]) != 320 || len(r.Decode) != 2 || len(r.Decode[1].Logits) != 320 {
		t.Errorf("%d positions, %d rows, %d decode steps", len(r.Positions), len(r.Logits), len(r.Decode))
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"inspect", "--help"}, {"eval", "--help"}, {"eval", "logits", "--help"}, {"bench", "--help"}, {"bench", "predictor", "--help"}, {"bench", "cache", "--help"}, {}} {
		code, out, errs := terrace("", args...)
		if code != exitOK || errs != "" || !strings.Contains(out, "terrace") {
			t.Errorf("%q: exit %d, %q %q", args, code, out, errs)
		}
	}
}

func TestInspect(t *testing.T) {
	code, out, errs := terrace("", "inspect", tinyMoE, "--json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit %d, %v: %s", code, err, errs)
	}
	if !r.Runs || r.Arch != "qwen3moe" || r.Experts == nil || r.Experts.Total != 256 || r.Experts.MaxBytes != 110592 || len(r.Tensors) == 0 || len(r.Metadata) == 0 {
		t.Errorf("%+v", r)
	}
	code, out, _ = terrace("", "inspect", "-m", tinyMoE, "--tensors", "--metadata")
	if code != exitOK || !strings.Contains(out, "blk.0.ffn_down_exps.weight") || !strings.Contains(out, "general.architecture") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1": 1, "2k": 2048, "2kB": 2000, "1.5M": 1572864, "12G": 12 << 30, "12GB": 12e9, "1GiB": 1 << 30, "3 MB": 3e6, "1T": 1 << 40} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "k", "-1", "1x", "1e9", "9999999999T", "1..2M"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestBenchMemory(t *testing.T) {
	for _, args := range [][]string{{}, {"--json"}} {
		code, out, errs := terrace("", append([]string{"bench", "memory", "-m", tinyMoE, "--ram", "200M", "--changes", "10", "--prompt", "8", "--decode", "8"}, args...)...)
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d: %s", code, errs)
		}
		if len(args) == 0 {
			if !strings.Contains(out, "changed 10 times") {
				t.Errorf("output %s", out)
			}
			continue
		}
		var r bench.MemoryReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Same || r.Changes != 10 {
			t.Errorf("%v in %s", err, out)
		}
	}
}
