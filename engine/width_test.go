package engine

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/tiers"
)

// TestWidthDecides: the number of sequences goes down where fewer read less for each token, up again where that has changed,
// and stays where nothing is read, where fewer are slower, or where they read the same.
func TestWidthDecides(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	run := func(w *width, ready, passes int, bytes func(n int) float64, took func(n int) float64) {
		for range passes {
			n := min(w.limit(), ready)
			noise := 0.9 + 0.2*rng.Float64()
			w.passed(ready, n, int64(noise*bytes(n)*float64(n)), time.Duration(noise*took(n)*float64(n)*1e6))
		}
	}
	token := 1e6
	more := func(n int) float64 { return 1e5 * float64(n) } // bytes a token
	shared := func(n int) float64 { return 1e6 / float64(n) }
	none := func(int) float64 { return 0 }
	disk := func(f func(int) float64) func(int) float64 { return func(n int) float64 { return 1 + f(n)/1e5 } }
	for name, c := range map[string]struct {
		bytes, took func(int) float64
		want        int
	}{
		"fewer read less":            {more, disk(more), 1},
		"more share":                 {shared, disk(shared), 8},
		"all resident":               {none, func(n int) float64 { return 1 / float64(n) }, 8},
		"fewer read less, slower":    {more, func(n int) float64 { return 10 / float64(n) }, 8},
		"best of all are four":       {func(n int) float64 { return 1e5 * float64((n-4)*(n-4)+3) }, disk(func(n int) float64 { return 1e5 * float64((n-4)*(n-4)+3) }), 4},
		"nearly the same everywhere": {func(n int) float64 { return 1e5 + 100*float64(n) }, disk(none), 8},
	} {
		w := newWidth(8, int64(token), nil)
		run(w, 8, 6000, c.bytes, c.took)
		if w.best != c.want {
			t.Errorf("%s: %d sequences, want %d", name, w.best, c.want)
		}
		if (w.reason == "") != (w.best == 8) {
			t.Errorf("%s: %d sequences because of %q", name, w.best, w.reason)
		}
	}
	w := newWidth(8, int64(token), nil)
	run(w, 8, 6000, more, disk(more))
	run(w, 8, 60000, shared, disk(shared))
	if w.best != 8 {
		t.Errorf("%d sequences after sharing began to pay", w.best)
	}
	run(w, 1, 100, more, disk(more))
	if w.rival != 0 {
		t.Error("one sequence is compared with others")
	}
}

// TestWidthOnPolicy: sequences whose experts fit the arena one by one and not together are served in turn, on the policy that
// ships; where they use the same experts they stay together.
func TestWidthOnPolicy(t *testing.T) {
	const layers, experts, topK, streams = 6, 64, 4, 8
	for _, c := range []struct {
		name      string
		own, want int
	}{{"own experts", 8, 1}, {"the same experts", 0, streams}} {
		bytes := make([][]int64, layers)
		for l := range bytes {
			bytes[l] = slices.Repeat([]int64{1}, experts)
		}
		sim := tiers.NewSim(tiers.SimConfig{Bytes: bytes, Slots: layers * 12, TopK: topK})
		rng := rand.New(rand.NewPCG(5, 5))
		w := newWidth(streams, layers*topK, nil)
		left, at := make([]int, streams), 0
		for range 8000 {
			limit := w.limit()
			var who []int
			if limit == streams {
				for i := range streams {
					who = append(who, i)
				}
			} else {
				for len(who) < limit { // turns, as the scheduler has them
					if left[at] == 0 {
						left[at] = turnTokens
					}
					who = append(who, at)
					left[at]--
					if left[at] == 0 || limit > 1 {
						at = (at + 1) % streams
					}
				}
			}
			pass := make([][]int32, layers)
			for _, i := range who {
				for l := range pass {
					for range topK { // of 10 experts of its own, or of 24 for all
						e := int32((i*c.own + rng.IntN(10)) % experts)
						if c.own == 0 {
							e = int32(rng.IntN(24))
						}
						if !slices.Contains(pass[l], e) {
							pass[l] = append(pass[l], e)
						}
					}
				}
			}
			before := sim.Result()
			sim.Pass(pass)
			after := sim.Result()
			read := after.Reads + after.PromptReads - before.Reads - before.PromptReads
			w.passed(streams, len(who), read, time.Duration(1000*read+100))
		}
		if w.best != c.want {
			t.Errorf("%s: %d sequences in a pass, want %d (%s)", c.name, w.best, c.want, w.reason)
		}
	}
}

// TestTurns: where not all may decode at once they take turns, nobody is left out, and all answer as alone.
func TestTurns(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Threads: 2, Slots: 4, ExpertRAM: ExpertBudget{Percent: 12}})
	long := longPrompt(t, e)
	const answer = 2*turnTokens + 5
	want := make([]string, 4)
	for i := range want {
		_, want[i] = alone(t, e, long[20*i:20*i+30], answer)
	}
	s := scheduler(t, e, SchedulerOptions{width: 1})
	var g sync.WaitGroup
	var mu sync.Mutex
	var order []int
	for i := range want {
		g.Go(func() {
			h := newStreamHash()
			_, err := s.Do(t.Context(), Job{Prompt: long[20*i : 20*i+30], Max: answer, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: func(x Token) bool {
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				return h.add(x)
			}})
			if err != nil || h.sum() != want[i] {
				t.Errorf("job %d: %v, or other logits than alone", i, err)
			}
		})
	}
	g.Wait()
	c := s.Counters()
	if c.Width != 1 || !strings.Contains(c.WidthReason, "asked") || c.BusySlots != c.Decodes {
		t.Errorf("%+v", c)
	}
	// After its first token nobody waits for longer than the others' turns.
	last := map[int]int{}
	for n, i := range order {
		if at, ok := last[i]; ok && n-at > 3*turnTokens+8 {
			t.Errorf("job %d waited for %d tokens of others", i, n-at)
		}
		last[i] = n
	}
}
