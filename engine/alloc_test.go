package engine

import (
	"context"
	"runtime/pprof"
	"testing"

	"terrace/internal/invariant"
)

// stepAllocs is how often one of 20 warm steps allocates. A read that blocks can make the runtime start a thread, once, and a
// thread is seven objects on the heap: 20 steps that saw one start say nothing and are done again.
func stepAllocs(t *testing.T, step func()) float64 {
	t.Helper()
	threads := pprof.Lookup("threadcreate")
	for range 4 {
		before := threads.Count()
		n := testing.AllocsPerRun(20, step)
		if n == 0 || threads.Count() == before {
			return n
		}
	}
	t.Fatal("the runtime started threads in each of 4 runs")
	return 0
}

// TestDecodeAllocatesNothing decodes through a starving cache, with reads and guesses on their way.
func TestDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled || invariant.On {
		t.Skip("the race detector and a build that checks itself allocate")
	}
	stores := []string{"pread", "mmap"}
	if uringWorks(t) {
		stores = append(stores, "uring")
	}
	for _, store := range stores {
		for _, ahead := range []int{0, 2} {
			if ahead == 0 && store != "pread" { // what guesses leave out, no store adds
				continue
			}
			e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Store: store, Lookahead: ahead, ExpertRAM: ExpertBudget{Percent: 15}, Threads: 2})
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			prompt := longPrompt(t, e)
			if _, err := s.Sync(ctx, prompt[:30]); err != nil {
				t.Fatal(err)
			}
			at := 30
			step := func() {
				if err := s.Eval(ctx, prompt[at]); err != nil {
					t.Fatal(err)
				}
				at++
			}
			for range 15 {
				step()
			}
			before := e.cache.Stats()
			if n := stepAllocs(t, step); n != 0 {
				t.Errorf("store %s, lookahead %d: a decode step allocates %v times", store, ahead, n)
			}
			if after := e.cache.Stats(); after.Misses == before.Misses {
				t.Errorf("store %s, lookahead %d: no expert was missed, so the reads were not tested", store, ahead)
			}
			s.Close()
		}
	}
}

// TestGuessersAllocateNothing does the same with every way of guessing.
func TestGuessersAllocateNothing(t *testing.T) {
	if raceEnabled || invariant.On {
		t.Skip("the race detector and a build that checks itself allocate")
	}
	dir := t.TempDir()
	fitTiny(t, dir)
	for name, o := range map[string]Options{
		"fitted":        {Lookahead: 2, PredictorDir: dir},
		"refined":       {Lookahead: 2, Refine: true},
		"fitted, auto":  {Lookahead: LookaheadAuto, PredictorDir: dir},
		"refined, auto": {Lookahead: LookaheadAuto, Refine: true},
	} {
		o.Path, o.Context, o.Store, o.ExpertRAM, o.Threads = tinyMoE, 256, "pread", ExpertBudget{Percent: 15}, 2
		e := mustOpen(t, o)
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		prompt := longPrompt(t, e)
		at := 0
		step := func() {
			if err := s.Eval(ctx, prompt[at]); err != nil {
				t.Fatal(err)
			}
			at++
		}
		for range 25 {
			step()
		}
		if n := stepAllocs(t, step); n != 0 {
			t.Errorf("%s: a decode step allocates %v times", name, n)
		}
		s.Close()
	}
}
