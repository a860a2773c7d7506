package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestSchedulerCache: a scheduler keeps prompts beyond its slots, and one that is started anew goes on from what the one before it
// left on disk, with the logits that a session alone has.
func TestSchedulerCache(t *testing.T) {
	for _, name := range []string{"qwen3moe", "gpt-oss", "qwen3next"} {
		dir := t.TempDir()
		o := Options{Path: families(t, name)[name], Batch: 64, Slots: 2}
		e, pc := cached(t, o, PromptCacheOptions{Dir: dir, Interval: 64})
		s := scheduler(t, e, SchedulerOptions{Slots: 1, Cache: pc})
		ask := func(s *Scheduler, e *Engine, prompt []int32, evaluated int) []int32 {
			t.Helper()
			tokens, hash := alone(t, e, prompt, 5)
			h := newStreamHash()
			r, err := s.Do(context.Background(), Job{Prompt: prompt, Max: 5, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: h.add})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Tokens, tokens) || h.sum() != hash {
				t.Errorf("%s: prompt of %d, %d of it cached: other logits than alone", name, len(prompt), r.Timings.CacheN)
			}
			if r.Timings.PromptN > evaluated || r.Timings.PromptN+r.Timings.CacheN != len(prompt) {
				t.Errorf("%s: %d tokens of a prompt of %d were evaluated and %d cached, at most %d wanted", name, r.Timings.PromptN, len(prompt), r.Timings.CacheN, evaluated)
			}
			return append(slices.Clone(prompt), r.Tokens...)
		}
		a, b := wave(200, 1), wave(150, 2)
		a2 := ask(s, e, a, len(a))
		b2 := ask(s, e, b, len(b))          // takes the only slot
		ask(s, e, append(a2, 5, 6, 7), 3+1) // which gets the other conversation back
		done, cancel := context.WithCancel(context.Background())
		if err := s.Close(done); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := pc.Close(context.Background()); err != nil {
			t.Fatal(err)
		}

		e, pc = cached(t, o, PromptCacheOptions{Dir: dir, Interval: 64})
		s = scheduler(t, e, SchedulerOptions{Slots: 2, Cache: pc})
		ask(s, e, append(slices.Clone(a2), 9, 8), 2+1)
		ask(s, e, append(slices.Clone(b2), 9), 1+1)
		if st := pc.Stats(); st.Loaded == 0 || st.Damaged > 0 {
			t.Errorf("%s: %+v", name, st)
		}
		ctx, stop := context.WithCancel(context.Background())
		s.Close(ctx)
		stop()
	}
}

// TestSchedulerFiles saves a slot, erases it and brings it back.
func TestSchedulerFiles(t *testing.T) {
	dir := t.TempDir()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, ExpertRAM: ExpertBudget{Percent: 100}, Threads: 2, Slots: 2})
	s := scheduler(t, e, SchedulerOptions{Slots: 2, SaveDir: dir})
	ctx := context.Background()
	prompt := longPrompt(t, e)[:60]
	do := func(prompt []int32, slot int) JobResult {
		t.Helper()
		r, err := s.Do(ctx, Job{Prompt: prompt, Max: 4, Slot: slot, Chooser: greedy(t, e), IgnoreEOS: true})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := do(prompt, 0)
	saved, err := s.SaveSlot(ctx, 0, "a.bin")
	if err != nil || saved.Tokens != first.Held {
		t.Fatalf("%+v, %v", saved, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "a.bin")); err != nil || st.Size() != saved.Bytes {
		t.Errorf("%d bytes are said to be written, %v", saved.Bytes, st)
	}
	if _, err := s.EraseSlot(ctx, 0); err != nil {
		t.Fatal(err)
	}
	restored, err := s.RestoreSlot(ctx, 1, "a.bin")
	if err != nil || restored.Tokens != saved.Tokens || restored.Bytes != saved.Bytes {
		t.Fatalf("saved %+v, restored %+v, %v", saved, restored, err)
	}
	if r := do(append(slices.Clone(prompt), first.Tokens...), 1); r.Timings.PromptN != 1 {
		t.Errorf("%d tokens evaluated after a slot was restored, want 1", r.Timings.PromptN)
	}
	for _, name := range []string{"", "..", "a/b", `a\b`, "a:b", " a", "a.", "none.bin", "a\x00b", strings.Repeat("n", 256), ".slot-1"} {
		if _, err := s.RestoreSlot(ctx, 1, name); !errors.Is(err, ErrState) || strings.Contains(err.Error(), "\n") {
			t.Errorf("file name %q: %v", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.bin"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RestoreSlot(ctx, 1, "bad.bin"); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "bad.bin") {
		t.Errorf("a damaged file: %v", err)
	}
	if _, err := s.SaveSlot(ctx, 0, "empty.bin"); !errors.Is(err, ErrState) {
		t.Errorf("an empty slot: %v", err)
	}
	if _, err := s.SaveSlot(ctx, 7, "a.bin"); !errors.Is(err, ErrNoSlot) {
		t.Errorf("slot 7 of 2: %v", err)
	}
}

// TestSchedulerCacheTogether: jobs that run at the same time, that share beginnings and whose prompts come and go through a cache
// that is too small for them, get the logits that they get alone.
func TestSchedulerCacheTogether(t *testing.T) {
	names := []string{"gpt-oss", "qwen3next", "qwen4exp"}
	if raceEnabled {
		names = names[1:2]
	}
	for name, path := range families(t, names...) {
		e, pc := cached(t, Options{Path: path, Batch: 48, CacheRAM: 600 << 10, Lookahead: 1, Slots: 3}, PromptCacheOptions{Dir: t.TempDir(), Disk: 1 << 20, Interval: 32})
		type want struct {
			prompt []int32
			tokens []int32
			hash   string
		}
		var wants []want
		for i := range 6 {
			w := want{prompt: append(slices.Clone(wave(120, i%2)[:60+15*i/2]), wave(40, 60+i)...)}
			w.tokens, w.hash = alone(t, e, w.prompt, 6)
			wants = append(wants, w)
		}
		s := scheduler(t, e, SchedulerOptions{Slots: 3, Cache: pc})
		for round := range 3 {
			var g sync.WaitGroup
			for i := range wants {
				w := wants[(i+round)%len(wants)]
				g.Go(func() {
					h := newStreamHash()
					r, err := s.Do(context.Background(), Job{Prompt: w.prompt, Max: 6, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: h.add})
					if err != nil {
						t.Error(err)
					} else if !slices.Equal(r.Tokens, w.tokens) || h.sum() != w.hash {
						t.Errorf("%s, round %d: a prompt of %d, %d of it cached, got other logits beside others than alone", name, round, len(w.prompt), r.Timings.CacheN)
					}
				})
			}
			g.Wait()
		}
		ctx, stop := context.WithCancel(context.Background())
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		stop()
		if st := pc.Stats(); st.Damaged > 0 || st.Evicted+st.Refused == 0 {
			t.Errorf("%s: %+v", name, st)
		}
	}
}
