package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/engine"
)

// terraceIn runs a command line whose environment has a cache folder.
func terraceIn(cache string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"terrace"}, args...), env{in: strings.NewReader(""), out: &o, err: &e, getenv: func(k string) string {
		if k == "XDG_CACHE_HOME" {
			return cache
		}
		return ""
	}})
	return code, o.String(), e.String()
}

// TestHeatCommands: a run learns, what it learned can be shown, carried to another machine and read early at the next start.
func TestHeatCommands(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	ask := func(cache string, more ...string) engine.Stats {
		t.Helper()
		file := filepath.Join(t.TempDir(), "stats.json")
		code, out, errs := terraceIn(cache, append([]string{"run", "-m", tinyMoE, "--temp", "0", "--expert-ram", "90%", "-n", "24", "--ignore-eos", "--stats-file", file, "--hash-logits", "Who are you?"}, more...)...)
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d: %s%s", code, out, errs)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var st engine.Stats
		if err := json.Unmarshal(b, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	if code, _, errs := terraceIn(here, "heat", "show", tinyMoE); code != exitFailure || !strings.Contains(errs, "nothing was learned") || strings.Count(errs, "\n") != 1 {
		t.Errorf("nothing learned: exit %d, %q", code, errs)
	}
	off := ask(here, "--heat", "off")
	if es, err := os.ReadDir(here); err != nil || len(es) != 0 {
		t.Errorf("--heat off left %v, %v", es, err)
	}
	cold := ask(here)
	warm := ask(here)
	if off.PreloadBytes != 0 || cold.PreloadBytes != 0 || warm.PreloadBytes == 0 || warm.PreloadExperts == 0 {
		t.Errorf("preloads %d, %d, %d", off.PreloadBytes, cold.PreloadBytes, warm.PreloadBytes)
	}
	if off.LogitsSHA256 != cold.LogitsSHA256 || cold.LogitsSHA256 != warm.LogitsSHA256 {
		t.Error("heat changes the logits")
	}
	code, out, errs := terraceIn(here, "heat", "show", "-m", tinyMoE)
	if code != exitOK || errs != "" || !strings.Contains(out, "Tiny-MoE") || strings.Count(out, "\n") < 12 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	show := func(cache string) (r heatReport) {
		t.Helper()
		code, out, errs := terraceIn(cache, "heat", "show", tinyMoE, "--json")
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d: %s", code, errs)
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return r
	}
	r := show(here)
	if r.Tokens != int64(2*(cold.PromptTokens+23)) || len(r.Layers) != 8 || len(r.Layers[0].Rates) != 32 || r.Total != 256 || r.Half < 8 || r.Most <= r.Half || len(r.Layers[3].Hottest) != 8 {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(t.TempDir(), "tiny.heat")
	if code, out, errs := terraceIn(here, "heat", "export", tinyMoE, "-o", file); code != exitOK || out != "" || errs != "" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, out, _ := terraceIn(here, "heat", "export", tinyMoE); out != string(b) {
		t.Error("standard output gets another profile than the file")
	}
	for i, args := range [][]string{{tinyMoE, file}, {"-m", tinyMoE, file}, {tinyMoE, file, "--replace"}} {
		code, out, errs := terraceIn(there, append([]string{"heat", "import"}, args...)...)
		if code != exitOK || errs != "" || !strings.Contains(out, "tokens") {
			t.Errorf("exit %d: %s%s", code, out, errs)
		}
		if got, want := show(there).Tokens, r.Tokens*[]int64{1, 2, 1}[i]; got != want {
			t.Errorf("%q: %d tokens, want %d", args, got, want)
		}
	}
	if st := ask(there); st.PreloadBytes == 0 {
		t.Error("an imported profile is not used")
	}
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"heat", "import", golden(t, "qwen3moe"), file}, exitFailure, "another model"},
		{[]string{"heat", "import", tinyMoE, tinyMoE}, exitFailure, "no heat profile"},
		{[]string{"heat", "import"}, exitUsage, "heat file"},
		{[]string{"heat", "show", "a", "b"}, exitUsage, "2 arguments"},
		{[]string{"heat", "show", "-m", tinyMoE, tinyMoE}, exitUsage, "twice"},
		{[]string{"heat", "show", golden(t, "qwen3")}, exitFailure, "no routed experts"},
		{[]string{"heat", "melt"}, exitUsage, "unknown heat"},
		{[]string{"run", "-m", tinyMoE, "--heat", "warm", "hi"}, exitUsage, "--heat"},
	} {
		if code, out, errs := terraceIn(here, x.args...); code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%q: exit %d, %q %q; want %d and %q", x.args, code, out, errs, x.code, x.want)
		}
	}
	if code, _, errs := terrace("", "heat", "show", tinyMoE); code != exitFailure || !strings.Contains(errs, "XDG_CACHE_HOME") {
		t.Errorf("no folder: exit %d, %q", code, errs)
	}
}

func TestCacheDir(t *testing.T) {
	for _, x := range []struct{ xdg, home, want string }{
		{"/x", "/h", "/x/terrace"}, {"", "/h", "/h/.cache/terrace"}, {"rel", "/h", "/h/.cache/terrace"}, {"", "", ""}, {"rel", "", ""},
	} {
		e := env{getenv: func(k string) string { return map[string]string{"XDG_CACHE_HOME": x.xdg, "HOME": x.home}[k] }}
		if got := cacheDir(e); filepath.ToSlash(got) != x.want {
			t.Errorf("%+v: %q", x, got)
		}
	}
}

// TestChecksumCommands: checksums are made and compared; without them --verify says how to make them.
func TestChecksumCommands(t *testing.T) {
	cache := t.TempDir()
	model := golden(t, "qwen3moe")
	args := []string{"run", "--verify", "-m", model, "--temp", "0", "-n", "8", "--raw", "--heat", "off", "hi"}
	if code, _, errs := terraceIn(cache, args...); code != exitFailure || !strings.Contains(errs, "terrace inspect --checksum") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit %d, %q", code, errs)
	}
	code, out, errs := terraceIn(cache, "inspect", "--checksum", "--json", model)
	var r checksumReport
	if code != exitOK || json.Unmarshal([]byte(out), &r) != nil || r.Bytes == 0 || filepath.Dir(r.Path) != filepath.Join(cache, "terrace") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	if code, out, errs := terraceIn(cache, "inspect", model, "--checksum"); code != exitOK || !strings.Contains(out, r.Path) || errs != "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, out, errs := terraceIn(cache, args...); code != exitOK {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := terraceIn(cache, "inspect", "--checksum", "--tensors", model); code != exitUsage || !strings.Contains(errs, "--tensors") {
		t.Errorf("exit %d, %q", code, errs)
	}
	if code, _, errs := terrace("", "inspect", "--checksum", model); code != exitFailure || !strings.Contains(errs, "cache folder") {
		t.Errorf("exit %d, %q", code, errs)
	}
}
