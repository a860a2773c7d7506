package engine

import (
	"context"
	"errors"
	"testing"
)

// TestSetExpertRAM: a fixed arena shrinks and grows again within what it was opened with, and what is resident can be put
// back.
func TestSetExpertRAM(t *testing.T) {
	ctx := context.Background()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Percent: 60}, Lookahead: 2})
	if err := e.Fill(ctx); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, l := range e.Residents() {
			n += len(l)
		}
		return n
	}
	if n := count(); n < 140 || n > 153 {
		t.Errorf("%d experts after filling 153 slots", n)
	}
	full := e.Residents()
	if err := e.SetExpertRAM(ExpertBudget{Percent: 30}); err != nil {
		t.Fatal(err)
	}
	if n := count(); n > 76 {
		t.Errorf("%d experts in 76 slots", n)
	}
	if err := e.Restore(ctx, full); err == nil {
		t.Error("152 experts were put into 76 slots")
	}
	if err := e.SetExpertRAM(ExpertBudget{Percent: 60}); err != nil {
		t.Fatal(err)
	}
	if err := e.Restore(ctx, full); err != nil {
		t.Fatal(err)
	}
	if err := e.SetExpertRAM(ExpertBudget{Percent: 61}); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("more than at the start: %v", err)
	}
	if err := e.SetExpertRAM(ExpertBudget{Percent: 1}); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("less than the least: %v", err)
	}
	free := mustOpen(t, Options{Path: tinyMoE, Context: 64, RAM: 200 << 20})
	if err := free.SetExpertRAM(ExpertBudget{Percent: 60}); !errors.Is(err, ErrUsage) {
		t.Errorf("of an arena that follows the budget: %v", err)
	}
}

// TestSetLookahead: a session goes from one setting to another, and its results stay.
func TestSetLookahead(t *testing.T) {
	ctx := context.Background()
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Min: true}, Lookahead: LookaheadAuto})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var want []float32
	ids := longPrompt(t, e)[:12]
	for _, n := range []int{0, 1, LookaheadAuto, 2, 1, 0} {
		if err := s.SetLookahead(n); err != nil {
			t.Fatal(err)
		}
		s.Truncate(0)
		m := s.Measure()
		for _, id := range ids {
			if err := s.Eval(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		st := m.End()
		if n >= 0 && st.Prefetch.Depth != n || (n > 0) != (st.Prefetch.Recall1 > 0) && n >= 0 || (n == 2) != (st.Prefetch.Recall2 > 0) && n >= 0 {
			t.Errorf("lookahead %d: %+v", n, st.Prefetch)
		}
		if want == nil {
			want = append(want, s.Logits()...)
		}
		for i, v := range s.Logits() {
			if v != want[i] {
				t.Fatalf("lookahead %d: logit %d is %v, want %v", n, i, v, want[i])
			}
		}
	}
	for _, n := range []int{-2, 3} {
		if err := s.SetLookahead(n); !errors.Is(err, ErrUsage) {
			t.Errorf("lookahead %d: %v", n, err)
		}
	}
	one := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Min: true}, Lookahead: 1})
	s1, err := one.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s1.Close()
	if err := s1.SetLookahead(2); !errors.Is(err, ErrUsage) {
		t.Errorf("2 layers where there are slots for 1: %v", err)
	}
}
