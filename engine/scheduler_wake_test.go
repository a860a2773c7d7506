package engine

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestSchedulerFreed: who waits for a slot gets it when the file that it was busy with is done, well or not, though nothing else
// happens.
func TestSchedulerFreed(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 128, Threads: 2, ExpertRAM: ExpertBudget{Percent: 30}})
	s := scheduler(t, e, SchedulerOptions{})
	prompt := longPrompt(t, e)[:8]
	for _, fails := range []error{nil, errors.New("the disk is gone")} {
		file, saved, done := make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() {
			saved <- s.do(context.Background(), 0, 0, func(*slot) error {
				<-file
				return fails
			})
		}()
		until(t, "the slot is at a file", func() bool { return s.Counters().Processing == 1 })
		go func() {
			_, err := s.Do(context.Background(), Job{Prompt: prompt, Max: 1, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
			done <- err
		}()
		until(t, "a job waits for it", func() bool { return s.Counters().Deferred == 1 })
		until(t, "the scheduler sleeps", func() bool { return len(s.wake) == 0 })
		close(file)
		if err := <-saved; err != fails {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the job waits for an idle slot")
		}
	}
}
