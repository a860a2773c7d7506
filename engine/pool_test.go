package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"terrace/gguf"
	"terrace/internal/tinymodel"
	"terrace/plan"
)

// TestPool: jobs that together need more memory than the context counts take it from idle slots, then from the youngest job, which
// goes on later; each answers as alone, and what is taken stays within what is counted.
func TestPool(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Threads: 2, Slots: 4, RAM: 120 << 20, Batch: 128})
	long := longPrompt(t, e)
	const jobs, answer = 4, 130
	want := make([]string, jobs)
	prompts := make([][]int32, jobs)
	for i := range jobs {
		prompts[i] = long[5*i : 170+5*i]
		_, want[i] = alone(t, e, prompts[i], answer)
	}
	full, arena := e.Budget().KV, e.Budget().Arena
	s := scheduler(t, e, SchedulerOptions{})
	if b := e.Budget(); s.pool.taken >= full/2 || b.Arena <= arena && b.Arena < b.ArenaMost {
		t.Errorf("idle slots have taken %d of %d bytes, the arena grew from %d to %d", s.pool.taken, full, arena, b.Arena)
	}
	if n := stepsOf(512) + 3; s.pool.steps != n {
		t.Errorf("%d steps, want %d", s.pool.steps, n)
	}
	for round := range 2 {
		var g sync.WaitGroup
		for i := range jobs {
			g.Go(func() {
				r, hash := do(t, s, prompts[i], answer)
				if hash != want[i] || len(r.Tokens) != answer {
					t.Errorf("round %d: job %d has other logits than alone (%d tokens)", round, i, len(r.Tokens))
				}
				if m := r.Timings; m.PromptN+m.CacheN != len(prompts[i]) || m.PredictedN != answer {
					t.Errorf("round %d: job %d: %+v", round, i, m)
				}
			})
		}
		g.Wait()
	}
	c := s.Counters()
	if c.Postponed == 0 {
		t.Error("5 steps of memory were enough for 8")
	}
	// With all idle, one sequence can have the whole context.
	r, err := s.Do(context.Background(), Job{Prompt: prompts[0], Max: -1, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
	if err != nil || !r.Truncated || r.Held != 512 {
		t.Errorf("a job up to the full context: %v, %+v", err, r.Timings)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if b := e.Budget(); b.Arena != arena {
		t.Errorf("after Close the arena has %d bytes, before it %d", b.Arena, arena)
	}
}

// TestContextMost: the largest context leaves experts a quarter of the room, or as much as they all need; one that cannot fit is
// refused with both numbers.
func TestContextMost(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Hidden: 256, Heads: 8, KVHeads: 4, HeadDim: 32, Experts: 64, TopK: 4, ExpertFFN: 256, Context: 32768,
		Embd: gguf.Q8_0, Output: gguf.Q8_0, Attn: gguf.Q8_0, Gate: gguf.Q8_0, Up: gguf.Q8_0, Down: gguf.Q8_0})
	if err != nil {
		t.Fatal(err)
	}
	least := mustOpen(t, Options{Path: path, Context: 512, ExpertRAM: ExpertBudget{Min: true}, Threads: 1}).Budget().Least()
	for _, slots := range []int{1, 4} {
		last := 0
		for _, ram := range []int64{least + 4<<20, least + 20<<20, least + 60<<20, least + 500<<20} {
			e, err := Open(Options{Path: path, Context: ContextMost, RAM: ram, Slots: slots, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			b, n := e.Budget(), e.Options().Context
			room := ram - b.Fixed() + plan.Mapped(b.KV)
			if n%poolStep != 0 || n < poolStep || plan.Mapped(b.Arena) < min(room/contextShare, plan.Mapped(b.ArenaMost))-4096 {
				t.Errorf("%d slots in %d bytes: a context of %d leaves experts %d of %d bytes", slots, ram, n, b.Arena, room)
			}
			if n < 32768 { // another step would not leave them their share
				if more := plan.Mapped(e.stateBytes(n + poolStep)); room-more >= max(room/contextShare*8/7+1, plan.Mapped(b.ArenaMin)) {
					t.Errorf("%d slots in %d bytes: a context of %d, though %d more tokens fit", slots, ram, n, poolStep)
				}
			}
			if n <= last || ram == least+500<<20 && n != 32768 {
				t.Errorf("%d slots in %d bytes: a context of %d, with less memory %d", slots, ram, n, last)
			}
			last = n
			e.Close()
		}
	}
	_, err = Open(Options{Path: path, Context: ContextMost, RAM: least - 1<<20, Threads: 1})
	if !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("too little: %v", err)
	}
	_, err = Open(Options{Path: path, Context: 32768, RAM: least + 20<<20, Threads: 1})
	if !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), fmt.Sprint(least+20<<20)) {
		t.Errorf("a context of 32768 in too little: %v", err)
	}
}
