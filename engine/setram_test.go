package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"terrace/plan"
	"terrace/sample"
)

// TestBudgetChanges changes the budget up to two hundred times at random while an answer is made: the logits are those of a
// budget that was left alone, the arena follows, and the refusal of too little changes nothing.
func TestBudgetChanges(t *testing.T) {
	for store, least := range map[string]int{"auto": 200, "pread": 50, "mmap": 50} {
		e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Store: store, Lookahead: 2, Threads: 2, RAM: 200 * mib})
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		prompt, most := longPrompt(t, e)[:60], 16
		answer := func() Stats {
			t.Helper()
			s.Reset()
			p := sample.Defaults(e.Model().Config().Vocab)
			p.Temp = 0
			sm, err := sample.New(p)
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Generate(context.Background(), Request{Prompt: prompt, Max: most, Sampler: sm, IgnoreEOS: true, HashLogits: true})
			if err != nil {
				t.Fatal(err)
			}
			return r.Stats
		}
		want := answer()
		b := e.Budget()
		if want.ExpertSlots != 256 || b.Arena != b.ArenaMost {
			t.Fatalf("%d slots in %d of %d bytes: 200 MiB hold all experts", want.ExpertSlots, b.Arena, b.ArenaMost)
		}
		stop, done := make(chan struct{}), make(chan int)
		go func() {
			rng := rand.New(rand.NewPCG(7, 7))
			n := 0
			defer func() { done <- n }()
			for ; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rng.IntN(2000)) * time.Microsecond):
				}
				to := b.Least() + rng.Int64N(b.Full()-b.Least()+1)
				if n%9 == 0 {
					to = b.Least()
				}
				if err := e.SetRAM(to); err != nil {
					t.Error(err)
					return
				}
				if got := e.Budget(); got.Fixed()+plan.Mapped(got.Arena) > to || got.RAM != to {
					t.Errorf("budget of %d: %+v", to, got)
				}
				if err := e.SetRAM(b.Least() - 1); !errors.Is(err, ErrDoesNotFit) || e.Budget().RAM != to {
					t.Errorf("less than the smallest: %v, budget %d", err, e.Budget().RAM)
				}
			}
		}()
		changes, runs := 0, 0
		for start := time.Now(); runs < 1 || e.gov.changes() < int64(least) && time.Since(start) < time.Minute; runs++ {
			if st := answer(); st.LogitsSHA256 != want.LogitsSHA256 {
				t.Errorf("store %s: hash %s, with a fixed budget %s", store, st.LogitsSHA256, want.LogitsSHA256)
			}
		}
		close(stop)
		changes = <-done
		if changes < least && !t.Failed() {
			t.Errorf("store %s: only %d changes", store, changes)
		}
		if err := e.SetRAM(b.Least()); err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); e.Over() > 0; time.Sleep(time.Millisecond) {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("store %s: %d bytes too much stay in the arena although nothing is lent", store, e.Over())
			}
		}
		st := answer()
		if st.LogitsSHA256 != want.LogitsSHA256 || st.Misses == 0 || st.ExpertBytes > b.ArenaMin || st.RAMBudget != b.Least() {
			t.Errorf("store %s at the smallest budget: %+v", store, st)
		}
		if st.Shrinks < int64(least/8) || st.Grows < int64(least/8) || st.Reason != reasonUser || st.BudgetNow != b.Least() {
			t.Errorf("store %s: %+v", store, st.Governor)
		}
		t.Logf("store %s: %d changes in %d answers", store, changes, runs)
		s.Close()
	}
}

// changes is how often the budget in force moved.
func (g *governor) changes() int64 {
	st, _ := g.snapshot()
	return st.Shrinks + st.Grows
}

// TestLimitAtOpen opens the demo model in control groups of many sizes. Held memory of the test comes on top of a group's
// room, so the limits are given as what is left.
func TestLimitAtOpen(t *testing.T) {
	least := func() Budget {
		e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Lookahead: 2, ExpertRAM: ExpertBudget{Min: true}})
		return e.budget
	}()
	group := newFakeGroup(t, 64*gib)
	open := func(limit, ram int64, arena ExpertBudget) (*Engine, string, error) {
		t.Helper()
		group.limit(limit)
		var text syncBuffer
		e, err := Open(Options{Path: tinyMoE, Context: 512, Lookahead: 2, RAM: ram, ExpertRAM: arena, machine: os.DirFS(group.dir), Log: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		if err == nil {
			t.Cleanup(func() { e.Close() })
		}
		return e, text.String(), err
	}
	// The fake machine does not tell what the process holds, so that the offer is the group's room.
	full := int64(120 << 20) // all experts fit well into it
	// auto: the limit less a margin
	for _, limit := range []int64{64 * gib, 8 * gib, gib, 200 * mib, 140 * mib} {
		e, log, err := open(limit, 0, ExpertBudget{})
		if err != nil {
			t.Fatalf("limit %d: %v", limit, err)
		}
		b := e.Budget()
		if b.RAM != limit-min(max(limit/20, 256*mib), limit/4) || b.Now != b.RAM || log != "" {
			t.Errorf("limit %d: %+v\n%s", limit, b, log)
		}
		if b.Fixed()+plan.Mapped(b.Arena) > b.RAM || b.RAM >= full && b.Arena != b.ArenaMost {
			t.Errorf("limit %d: arena %d of %d, budget %d", limit, b.Arena, b.ArenaMost, b.RAM)
		}
	}
	if _, _, err := open(90*mib, 0, ExpertBudget{}); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("auto in 90 MiB: %v", err)
	}
	// A promise above the limit is kept below it, with a warning, and stands for later.
	e, log, err := open(112*mib, gib, ExpertBudget{})
	if err != nil {
		t.Fatal(err)
	}
	b := e.Budget()
	if b.RAM != gib || b.Now != 112*mib-guard(112*mib) || b.Fixed()+plan.Mapped(b.Arena) > b.Now || strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "limit=117440512") {
		t.Errorf("%+v\n%s", b, log)
	}
	group.limit(gib)
	for start := time.Now(); e.Budget().Arena < b.ArenaMost; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("after the limit was lifted: %+v", e.Budget())
		}
	}
	// Less than the smallest working set is refused with both numbers.
	_, _, err = open(80*mib, gib, ExpertBudget{})
	if !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), fmt.Sprint(80*mib)) || !strings.Contains(err.Error(), fmt.Sprint(least.Least())) {
		t.Errorf("error %v", err)
	}
	// A fixed arena is neither cut nor enlarged.
	e, log, err = open(112*mib, gib, ExpertBudget{Percent: 50})
	if err != nil {
		t.Fatal(err)
	}
	if b := e.Budget(); b.Arena != b.ArenaMost || b.Arena < 15*mib || b.Arena > 16*mib || b.Now < b.Fixed()+plan.Mapped(b.Arena) {
		t.Errorf("%+v\n%s", b, log)
	}
	if _, _, err = open(90*mib, gib, ExpertBudget{Percent: 50}); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("half of the experts in 90 MiB: %v", err)
	}
}
