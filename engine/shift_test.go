package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
)

// TestShift: an answer that goes on beyond a full context has the tokens that a client gets who gives up the same part of the text
// by himself; alone, beside others, and where there is memory for one sequence only, so that slots are given up on the way.
func TestShift(t *testing.T) {
	const ctx, more = 520, 640
	for _, name := range []string{"qwen3moe", "gpt-oss", "qwen3next"} {
		e := mustOpen(t, Options{Path: families(t, name)[name], Context: ctx, Batch: 64, Slots: 3, Pool: ctx})
		s := scheduler(t, e, SchedulerOptions{Slots: 3})
		prompts := [][]int32{wave(100, 1), wave(60, 2), wave(30, 3)}
		keeps := []int{10, -1, 0}
		drops := []int{0, 40, 300}
		var want [3][]int32
		for i, prompt := range prompts {
			text := slices.Clone(prompt)
			keep := keeps[i]
			if keep < 0 {
				keep = len(prompt)
			}
			for len(want[i]) < more {
				r, err := s.Do(context.Background(), Job{Prompt: text, Max: more - len(want[i]), Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, NoCache: true})
				if err != nil {
					t.Fatal(err)
				}
				want[i] = append(want[i], r.Tokens...)
				if len(want[i]) == more {
					break
				}
				if text = append(text, r.Tokens...); !r.Truncated || len(text) != ctx+1 {
					t.Fatalf("%s: %d tokens, %+v", name, len(text), r)
				}
				drop := drops[i]
				if drop == 0 {
					drop = (ctx - keep) / 2
				}
				text = slices.Delete(text, keep, keep+drop)
			}
		}
		ask := func(i int) {
			r, err := s.Do(context.Background(), Job{Prompt: prompts[i], Max: more, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, Shift: true, Keep: keeps[i], Discard: drops[i]})
			switch {
			case err != nil:
				t.Error(err)
			case !r.Truncated || r.Finish != FinishLength || r.Timings.PredictedN != more || r.Timings.PromptN+r.Timings.CacheN != len(prompts[i]):
				t.Errorf("%s, %d: %+v", name, i, r)
			case !slices.Equal(r.Tokens, want[i]):
				n := 0
				for n < len(r.Tokens) && r.Tokens[n] == want[i][n] {
					n++
				}
				t.Errorf("%s, %d: other tokens from number %d on", name, i, n)
			}
		}
		ask(0)
		ask(1)
		// Whether somebody has to give up a slot hangs on how far the others are when they shift.
		for round := 0; s.Counters().Postponed == 0; round++ {
			if round == 12 {
				t.Fatalf("%s: nobody had to give up a slot", name)
			}
			var g sync.WaitGroup
			for i := range prompts {
				g.Go(func() { ask((i + round) % len(prompts)) })
			}
			g.Wait()
		}
	}
}
