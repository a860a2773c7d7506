package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fitTiny fits a predictor of the demo model on one text and keeps it in dir.
func fitTiny(t *testing.T, dir string) string {
	t.Helper()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	maps, err := s.FitPredictor(context.Background(), [][]int32{longPrompt(t, e)}, AfterAttention, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	path, size, err := e.SavePredictor(dir, maps)
	if err != nil || size < 10000 {
		t.Fatalf("%d bytes: %v", size, err)
	}
	return path
}

// TestFittedPredictor: what was fitted runs when it is there and fits, its bytes are counted, the result is the same; else
// the routers guess, and the reason is told.
func TestFittedPredictor(t *testing.T) {
	dir := t.TempDir()
	path := fitTiny(t, dir)
	arena := ExpertBudget{Percent: 25}
	plain := hashRun(t, Options{ExpertRAM: arena, Lookahead: 2, Threads: 2})
	if plain.Prefetch.Predictor != "gate-ahead" || plain.PredictorBytes == 0 || plain.Prefetch.Recall2 == 0 {
		t.Errorf("without a folder: %+v, %d bytes", plain.Prefetch, plain.PredictorBytes)
	}
	for _, n := range []int{1, 2, LookaheadAuto} {
		for _, threads := range []int{1, 2} {
			if (n == 2) != (threads == 2) {
				continue
			}
			st := hashRun(t, Options{ExpertRAM: arena, Lookahead: n, Threads: threads, PredictorDir: dir})
			if st.LogitsSHA256 != plain.LogitsSHA256 {
				t.Errorf("lookahead %d, %d threads: hash %s, want %s", n, threads, st.LogitsSHA256, plain.LogitsSHA256)
			}
			if st.Prefetch.Predictor != "fitted" || st.Prefetch.Ignored != "" || st.PredictorBytes <= plain.PredictorBytes || st.Prefetch.Recall1 < 0.5 {
				t.Errorf("lookahead %d: %+v, %d bytes", n, st.Prefetch, st.PredictorBytes)
			}
			if want := plain.RAMBudget + st.PredictorBytes - plain.PredictorBytes; n == 2 && threads == 2 && st.RAMBudget != want {
				t.Errorf("the budget is %d, want %d: the arena is fixed and the maps are counted", st.RAMBudget, want)
			}
		}
	}
	if st := hashRun(t, Options{ExpertRAM: arena, Lookahead: 2, PredictorDir: dir, Predictor: "gate-ahead"}); st.Prefetch.Predictor != "gate-ahead" || st.LogitsSHA256 != plain.LogitsSHA256 {
		t.Errorf("asked for gate-ahead: %+v", st.Prefetch)
	}
	if st := hashRun(t, Options{ExpertRAM: arena, Lookahead: 2, Refine: true}); st.Prefetch.Recall1 <= plain.Prefetch.Recall1 || st.LogitsSHA256 != plain.LogitsSHA256 {
		t.Errorf("refined: %+v, plain %+v", st.Prefetch, plain.Prefetch)
	}
	if st := hashRun(t, Options{ExpertRAM: arena, Lookahead: 0, PredictorDir: dir}); st.Prefetch.Predictor != "" || st.PredictorBytes != 0 {
		t.Errorf("lookahead 0: %+v, %d bytes", st.Prefetch, st.PredictorBytes)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		spoil      func(b []byte) []byte
	}{
		{"a bit", "checksum", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{"cut", "checksum", func(b []byte) []byte { return b[:len(b)-5] }},
		{"empty", "does not begin with", func(b []byte) []byte { return nil }},
		{"another version", "does not begin with", func(b []byte) []byte { b[len(predictorMagic)-2] = '9'; return b }},
		{"far too long", "want a regular file of at most", func(b []byte) []byte { return append(b, make([]byte, 1<<20)...) }},
	} {
		if err := os.WriteFile(path, c.spoil(append([]byte(nil), good...)), 0o644); err != nil {
			t.Fatal(err)
		}
		e, err := Open(Options{Path: tinyMoE, Context: 64, ExpertRAM: arena, Lookahead: 2, PredictorDir: dir})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if g := e.guesser; g.name != "gate-ahead" || !strings.Contains(g.ignored, c.want) || !strings.Contains(g.ignored, path) || g.fitted != nil {
			t.Errorf("%s: %s, %q, want %q", c.name, g.name, g.ignored, c.want)
		}
		e.Close()
		if _, err := Open(Options{Path: tinyMoE, Context: 64, ExpertRAM: arena, Lookahead: 2, PredictorDir: dir, Predictor: "fitted"}); !errors.Is(err, ErrProfile) {
			t.Errorf("%s, asked for fitted: %v", c.name, err)
		}
	}
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: arena, Lookahead: 2, Predictor: "gate-ahead"})
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	e.guesser.fitted = make([]fittedMap, 1)
	e.opt.Refine = true
	if _, err := e.NewSession(); !errors.Is(err, ErrUsage) {
		t.Errorf("a fitted predictor was to refine: %v", err)
	}
	for _, o := range []Options{{Predictor: "fitted"}, {Predictor: "best"}, {Reserve: -1}} {
		o.Path, o.Context, o.Lookahead = tinyMoE, 64, 2
		if _, err := Open(o); !errors.Is(err, ErrUsage) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestForeignPredictor: a profile that lies under another model's name is refused by its fingerprint.
func TestForeignPredictor(t *testing.T) {
	dir := t.TempDir()
	path := fitTiny(t, dir)
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Percent: 25}})
	if _, err := readPredictor(path, strings.Repeat("0", 32), e.Model().Config()); !errors.Is(err, ErrProfile) || !strings.Contains(err.Error(), "is of model") {
		t.Errorf("another model's fingerprint: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 { // the profile and its lock
		t.Errorf("files %v", left)
	}
}
