package engine

import (
	"context"
	"errors"
	"testing"
)

func TestPreload(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 2, ExpertRAM: ExpertBudget{Percent: 100}, Lookahead: 2})
	ctx := context.Background()
	if err := e.Preload(ctx); err != nil {
		t.Fatal(err)
	}
	if got := e.cache.Stats().Misses; got != 256 {
		t.Errorf("%d experts read, want 256", got)
	}
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := s.Measure()
	if _, err := s.Sync(ctx, longPrompt(t, e)[:60]); err != nil {
		t.Fatal(err)
	}
	if st := m.End(); st.BytesRead != 0 || st.Misses != 0 {
		t.Errorf("%d bytes read and %d misses after a preload, want 0", st.BytesRead, st.Misses)
	}
	if st := m.End(); st.Prefetch.Depth != 0 || st.Prefetch.DisabledReason != "all experts resident" || st.Prefetch.Recall1 != 0 {
		t.Errorf("prefetch says %+v, want depth 0 and the reason", st.Prefetch)
	}
	always := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 2, ExpertRAM: ExpertBudget{Percent: 100}, Lookahead: 2, GuessAlways: true})
	if err := always.Preload(ctx); err != nil {
		t.Fatal(err)
	}
	s2, err := always.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s2.Close()
	m = s2.Measure()
	if _, err := s2.Sync(ctx, longPrompt(t, e)[:60]); err != nil {
		t.Fatal(err)
	}
	if st := m.End(); st.Prefetch.Depth != 2 || st.Prefetch.DisabledReason != "" || st.Prefetch.Recall1 == 0 {
		t.Errorf("prefetch says %+v, want scored guesses", st.Prefetch)
	}
	small := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 2, ExpertRAM: ExpertBudget{Percent: 50}})
	if err := small.Preload(ctx); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("error %v from half an arena, want ErrDoesNotFit", err)
	}
}
