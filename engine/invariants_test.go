//go:build invariants

package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestInvariantsFail: what a scheduler checks between two steps fails where it does not hold. All happens on its goroutine.
func TestInvariantsFail(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Threads: 1, Slots: 2, RAM: 120 << 20})
	s := scheduler(t, e, SchedulerOptions{})
	fails := func(name, want string, f func()) {
		t.Helper()
		defer func() {
			if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
				t.Errorf("%s: %s", name, got)
			}
		}()
		f()
	}
	seen := false
	_, err := s.Do(context.Background(), Job{Prompt: []int32{40, 41, 42}, Slot: 0, OnPrompt: func(PromptProgress) {
		seen = true
		x, y := s.slots[0], s.slots[1]
		s.consistent()
		had := x.tokens
		x.tokens = append(slices.Clone(had), 43)
		fails("tokens without an evaluation", "slot 0 holds 4 tokens, its sequence 3", s.consistent)
		x.tokens = make([]int32, 300)
		x.life--
		fails("tokens without memory", "slot 0 holds 300 tokens in 1 pages", s.consistent)
		x.life++
		x.tokens = had
		y.steps = s.pool.steps
		fails("more pages than there are", "slots have 6 pages of context, of ", func() {
			s.pool.steps, y.steps = 5, 5
			e.opt.Context *= 4
			s.consistent()
		})
		s.pool.steps, e.opt.Context = stepsOf(512)+1, 512
		y.steps = 1
		fails("memory that nobody asked for", "sequences take", s.consistent)
		y.steps = 0
		e.gov.spare++
		fails("a wrong budget", "the budget counts", s.consistent)
		e.gov.spare--
		y.task = x.task
		fails("a task in two slots", "is at work in the slots 0 and 1", s.consistent)
		y.task = nil
		r, err := e.cache.Begin(0, []int32{0})
		if err != nil {
			t.Error(err)
			return
		}
		if _, ok, err := r.Next(context.Background(), true); !ok || err != nil {
			t.Error(ok, err)
		}
		fails("an expert that is kept", "1 experts are lent after a pass", s.returnedAll)
		r.Close()
		s.consistent()
		s.returnedAll()
	}})
	if err != nil || !seen {
		t.Error(seen, err)
	}
}
