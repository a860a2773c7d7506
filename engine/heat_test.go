package engine

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/tiers"
)

// learn opens the demo model with a heat folder, evaluates tokens and closes it.
func learn(t *testing.T, dir string, tokens []int32, o Options) {
	t.Helper()
	o.Path, o.Context, o.Threads, o.HeatDir = tinyMoE, 256, 2, dir
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Sync(context.Background(), tokens); err != nil {
		t.Fatal(err)
	}
}

// TestHeatLearns: a run leaves a profile of exactly the uses it made, the next run adds to it, starts with the hottest
// experts in RAM, demands less, and gives the same logits.
func TestHeatLearns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	cold := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 2, ExpertRAM: ExpertBudget{Percent: 75}})
	prompt := longPrompt(t, cold)
	learn(t, dir, prompt[:100], Options{ExpertRAM: ExpertBudget{Percent: 50}, Batch: 7})
	p, err := OpenHeat(tinyMoE, dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := p.Load()
	if err != nil {
		t.Fatal(err)
	}
	if h.Tokens != 100 || h.Model.Arch != "qwen3moe" || h.Model.Name != "Tiny-MoE" || h.Model.TopK != 4 {
		t.Fatalf("learned %d tokens of %+v", h.Tokens, h.Model)
	}
	for l, x := range h.Long[:7] { // of the last layer a prompt needs the last token only
		var sum float64
		for _, u := range x {
			sum += u
		}
		if sum < 397 || sum > 400 { // 100 tokens x 4 experts, hardly decayed
			t.Errorf("layer %d: %g uses, want nearly 400", l, sum)
		}
	}
	learn(t, dir, prompt[100:160], Options{ExpertRAM: ExpertBudget{Min: true}, Lookahead: 2})
	if h, err = p.Load(); err != nil || h.Tokens != 160 {
		t.Fatalf("%v: %d tokens after two runs, want 160", err, h.Tokens)
	}

	ask := func(e *Engine) (Stats, []float32) {
		t.Helper()
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		m := s.Measure()
		for _, id := range prompt[160:200] {
			if err := s.Eval(context.Background(), id); err != nil {
				t.Fatal(err)
			}
		}
		return m.End(), slices.Clone(s.Logits())
	}
	was, want := ask(cold)
	warm := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 2, ExpertRAM: ExpertBudget{Percent: 75}, HeatDir: dir})
	for until := time.Now().Add(10 * time.Second); warm.cache.Stats().Resident < 180; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d experts preloaded after ten seconds", warm.cache.Stats().Resident)
		}
	}
	now, got := ask(warm)
	if !slices.Equal(got, want) {
		t.Error("other logits after a preload")
	}
	if was.PreloadBytes != 0 || was.PreloadExperts != 0 || now.PreloadExperts < 180 || now.PreloadBytes < now.PreloadExperts*90000 {
		t.Errorf("preloads: cold %d, warm %d experts, %d bytes", was.PreloadBytes, now.PreloadExperts, now.PreloadBytes)
	}
	if was.DemandBytes < was.Misses*90000 || now.Misses*10 > was.Misses*8 || now.DemandBytes*10 > was.DemandBytes*8 {
		t.Errorf("demanded: cold %d experts, %d bytes; warm %d, %d", was.Misses, was.DemandBytes, now.Misses, now.DemandBytes)
	}
	if again, _ := ask(warm); again.PreloadBytes != 0 || again.PreloadExperts != 0 {
		t.Errorf("preloads told twice: %+v", again)
	}
	if h, err = p.Load(); err != nil || h.Tokens != 240 {
		t.Errorf("%v: %d tokens after the sessions closed, want 240", err, h.Tokens)
	}
}

// TestHeatBesideOthers: engines that ran at the same time all add to one profile, and readers see whole files only.
func TestHeatBesideOthers(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 1, ExpertRAM: ExpertBudget{Percent: 30}})
	prompt := longPrompt(t, e)
	p, err := OpenHeat(tinyMoE, dir)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := p.Load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
				return
			}
		}
	})
	for i := range 4 {
		writers.Go(func() {
			learn(t, dir, prompt[i*30:i*30+30], Options{ExpertRAM: ExpertBudget{Percent: 30}})
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if h, err := p.Load(); err != nil || h.Tokens != 120 {
		t.Errorf("%v: profile %+v, want 120 tokens", err, h)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestHeatUseless: whatever lies where the profile should be, a run answers, says so once, and leaves a good one.
func TestHeatUseless(t *testing.T) {
	good := t.TempDir()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 1, ExpertRAM: ExpertBudget{Percent: 30}})
	prompt := longPrompt(t, e)[:10]
	learn(t, good, prompt, Options{ExpertRAM: ExpertBudget{Percent: 30}})
	p, err := OpenHeat(tinyMoE, good)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(whole, []byte(p.Model.Fingerprint), []byte(strings.Repeat("0", 32)), 1)
	for name, content := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)/2], "zeros": make([]byte, 1000), "damaged": bytes.Replace(whole, []byte(`"tokens":10`), []byte(`"tokens":19`), 1), "foreign": other,
		"old": bytes.Replace(whole, []byte(`"version":1`), []byte(`"version":0`), 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			q, err := OpenHeat(tinyMoE, dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(q.Path, content, 0o644); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			learn(t, dir, prompt, Options{ExpertRAM: ExpertBudget{Percent: 30}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
			if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), filepath.Base(q.Path)) {
				t.Errorf("%d lines in the log:\n%s", n, log.String())
			}
			if h, err := q.Load(); err != nil || h.Tokens != 10 {
				t.Errorf("afterwards: %v, %+v", err, h)
			}
		})
	}
	t.Run("folder", func(t *testing.T) { // cannot be made, cannot be written
		dir := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(dir, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		learn(t, dir, prompt, Options{ExpertRAM: ExpertBudget{Percent: 30}, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if !strings.Contains(log.String(), "not saved") {
			t.Errorf("log %q, want that it is not saved", log.String())
		}
	})
}

// TestHeatImport: uses of elsewhere add up, replace, or are refused.
func TestHeatImport(t *testing.T) {
	here, there := t.TempDir(), t.TempDir()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 1, ExpertRAM: ExpertBudget{Percent: 30}})
	prompt := longPrompt(t, e)
	learn(t, here, prompt[:20], Options{ExpertRAM: ExpertBudget{Percent: 30}})
	learn(t, there, prompt[20:50], Options{ExpertRAM: ExpertBudget{Percent: 30}})
	p, err := OpenHeat(tinyMoE, here)
	if err != nil {
		t.Fatal(err)
	}
	q, err := OpenHeat(tinyMoE, there)
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Load()
	if err != nil {
		t.Fatal(err)
	}
	b, err := q.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Import(q.Path, false); err != nil {
		t.Fatal(err)
	}
	sum, err := p.Load()
	if err != nil || sum.Tokens != 50 {
		t.Fatalf("%v: %d tokens, want 50", err, sum.Tokens)
	}
	for l := range sum.Long {
		for x := range sum.Long[l] {
			if d := sum.Long[l][x] - a.Long[l][x] - b.Long[l][x]; d > 0.002 || d < -0.002 {
				t.Fatalf("expert %d of layer %d: %g uses of %g and %g", x, l, sum.Long[l][x], a.Long[l][x], b.Long[l][x])
			}
		}
	}
	if err := p.Import(q.Path, true); err != nil {
		t.Fatal(err)
	}
	mine, err := os.ReadFile(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(q.Path)
	if err != nil || !bytes.Equal(mine, theirs) {
		t.Error("replaced, and not the same profile")
	}
	// Another quantisation of the model has another fingerprint: its profile is taken and becomes this model's.
	b.Model.Fingerprint = strings.Repeat("1", 32)
	write := func(h *tiers.Heat) string {
		t.Helper()
		enc, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		f := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(f, enc, 0o644); err != nil {
			t.Fatal(err)
		}
		return f
	}
	if err := p.Import(write(b), true); err != nil {
		t.Fatal(err)
	}
	if h, err := p.Load(); err != nil || h.Model != p.Model || h.Tokens != 30 {
		t.Errorf("%v: %+v", err, h)
	}
	b.Model.Name = "Another"
	f := write(b)
	if err := p.Import(f, true); !errors.Is(err, tiers.ErrOtherModel) || !strings.Contains(err.Error(), f) || !strings.Contains(err.Error(), "Another") || !strings.Contains(err.Error(), "Tiny-MoE") {
		t.Errorf("another model: %v", err)
	}
	if h, err := p.Load(); err != nil || h.Tokens != 30 {
		t.Errorf("a refused import changed the profile: %v", err)
	}
	if err := p.Import(filepath.Join(here, "missing"), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := OpenHeat("../testdata/golden/qwen3", here); err == nil {
		t.Error("a folder has a profile")
	}
}

// TestHeatAllocates: counting uses adds nothing to a warm decode step.
func TestHeatAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Threads: 2, ExpertRAM: ExpertBudget{Percent: 50}, HeatDir: t.TempDir()})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	if _, err := s.Sync(ctx, longPrompt(t, e)[:50]); err != nil {
		t.Fatal(err)
	}
	id := int32(5)
	step := func() {
		if err := s.Eval(ctx, id); err != nil {
			t.Fatal(err)
		}
		id = id%50 + 5
	}
	for range 30 {
		step()
	}
	if n := stepAllocs(t, step); n != 0 {
		t.Errorf("%g allocations a token", n)
	}
}
