package engine

import (
	"context"
	"errors"
	"testing"
)

func TestPreload(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 2, ExpertRAM: ExpertBudget{Percent: 100}})
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
	small := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 2, ExpertRAM: ExpertBudget{Percent: 50}})
	if err := small.Preload(ctx); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("error %v from half an arena, want ErrDoesNotFit", err)
	}
}
