package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"terrace/engine"
)

// failing is a full disk.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func quiet(string) string { return "" }

// TestInterruptWhileReading: a prompt that never comes must not make the program deaf.
func TestInterruptWhileReading(t *testing.T) {
	for _, args := range [][]string{{"run", "-m", tinyMoE}, {"eval", "tokens", "-m", tinyMoE}} {
		in, hold := io.Pipe()
		ctx, cancel := context.WithCancel(context.Background())
		var errs strings.Builder
		code := make(chan int)
		go func() {
			code <- run(ctx, append([]string{"terrace"}, args...), env{in: in, out: io.Discard, err: &errs, getenv: quiet})
		}()
		time.Sleep(20 * time.Millisecond)
		cancel()
		select {
		case c := <-code:
			if c != exitFailure || errs.String() != "terrace: interrupted\n" {
				t.Errorf("%q: exit %d, %q", args, c, errs.String())
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%q: still reading", args)
		}
		hold.Close()
	}
}

func TestNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var errs strings.Builder
	code := run(context.Background(), []string{"terrace", "run", "-m", tinyMoE}, env{in: null, out: io.Discard, err: &errs, getenv: quiet})
	if code != exitUsage || !strings.Contains(errs.String(), "prompt is empty") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func TestFullDisk(t *testing.T) {
	for _, args := range [][]string{
		{"run", "--help"}, {"inspect", tinyMoE}, {"inspect", "--json", tinyMoE},
		{"eval", "logits", "-m", tinyMoE, "--tokens", "1"}, {"run", "-m", tinyMoE, "--temp", "0", "hi"},
	} {
		var errs strings.Builder
		code := run(context.Background(), append([]string{"terrace"}, args...), env{in: strings.NewReader(""), out: failing{}, err: &errs, getenv: quiet})
		if code != exitFailure || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit %d: %s", args, code, errs.String())
		}
	}
}

// TestInternalErrorIsOneLine stands for a broken contract anywhere below.
func TestInternalErrorIsOneLine(t *testing.T) {
	var errs strings.Builder
	code := run(context.Background(), []string{"terrace", "run"}, env{in: strings.NewReader(""), out: io.Discard, err: &errs,
		getenv: func(string) string { panic("first line\nsecond") }})
	if code != exitFailure || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "first line second") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

// TestStatsFile: a place that cannot be written is found before the answer is made, and a failed run leaves no new file.
func TestStatsFile(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := terrace("", "run", "-m", tinyMoE, "--stats-file", filepath.Join(dir, "none", "x"), "hi")
	if code != exitFailure || out != "" || !strings.Contains(errs, "--stats-file") {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
	left, kept := filepath.Join(dir, "left"), filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{left, kept} {
		if code, _, errs := terrace("", "run", "-m", tinyMoE, "--stats-file", f, "-c", "999999", "hi"); code != exitUsage {
			t.Errorf("exit %d: %s", code, errs)
		}
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a failed run left a file")
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error("a failed run removed a file that was there before")
	}
}

// TestLongInput reads past the first piece of standard input: what fits is read whole, what cannot is refused unread.
func TestLongInput(t *testing.T) {
	spaces := strings.Repeat("\n", firstRead+100)
	for _, c := range []struct {
		in   string
		code int
		says string
	}{
		{strings.Repeat("word ", firstRead), exitFailure, "more than 49152 bytes"},
		{spaces, exitFailure, "more than 49152 bytes"},
		{strings.Repeat("word ", firstRead/5), exitFailure, "1024"},
	} {
		if code, out, errs := terrace(c.in, "run", "-m", tinyMoE); code != c.code || out != "" || !strings.Contains(errs, c.says) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%d bytes: exit %d, %q %.200q", len(c.in), code, out, errs)
		}
	}
	eng, err := engine.Open(engine.Options{Path: tinyMoE, Context: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	e := env{in: strings.NewReader("b\n\n")}
	if got, err := readRest("a\n", e, eng); got != "a\nb" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHashAlone(t *testing.T) {
	code, out, errs := terrace("", "run", "-m", tinyMoE, "--temp", "0", "-n", "2", "--hash-logits", "hi")
	if code != exitOK || strings.Contains(out, "sha256") || !strings.Contains(errs, "sha256 ") {
		t.Errorf("exit %d: %q %q", code, out, errs)
	}
}

func TestReorder(t *testing.T) {
	app := newApp(env{getenv: quiet})
	for in, want := range map[string]string{
		"terrace run hi -n 2":               "terrace run -n 2 -- hi",
		"terrace run hi --exact there":      "terrace run --exact -- hi there",
		"terrace run --temp=0 -- -5 + 3":    "terrace run --temp=0 -- -5 + 3",
		"terrace run hi -h -m":              "terrace run -h",
		"terrace run hi -m":                 "terrace run -m", // no value: not the "--" that would follow
		"terrace run -p":                    "terrace run -p",
		"terrace run -":                     "terrace run -- -",
		"terrace eval ppl x -f y":           "terrace eval ppl -f y -- x",
		"terrace --bogus run":               "terrace --bogus run",
		"terrace":                           "terrace",
		"terrace bench predictor --trace a": "terrace bench predictor --trace a --",
	} {
		if got := strings.Join(reorder(app, strings.Fields(in)), " "); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// TestDemoNotice: without -m the demo model answers and says so; an error is a line alone all the same.
func TestDemoNotice(t *testing.T) {
	t.Chdir("../..")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run", "--temp", "0", "-n", "2", "hi"}, exitOK, "the demo model is used"},
		{[]string{"inspect"}, exitOK, "the demo model is used"},
		{[]string{"run", "--top-p", "7", "hi"}, exitUsage, "top_p"},
		{[]string{"run", "--ram", "1M", "hi"}, exitNoFit, "does not fit"},
	} {
		code, _, errs := terrace("", c.args...)
		if code != c.code || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.says) {
			t.Errorf("%q: exit %d: %s", c.args, code, errs)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine("a\r\nb\x1b[31m\u0085c ü"); got != "a  b [31m c ü" {
		t.Errorf("%q", got)
	}
}
