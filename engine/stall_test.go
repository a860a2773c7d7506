package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// logged is a log that tests read while others write it.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// until waits for what another goroutine is about to do.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it does not come to that", what)
		}
	}
}

// stillEngine is an engine whose watch is asked by the test, on a clock of the test's.
func stillEngine(t *testing.T, o Options) (*Engine, *logged) {
	t.Helper()
	l := &logged{}
	o.Path, o.Context, o.Threads, o.Log = tinyMoE, 128, 2, slog.New(slog.NewTextHandler(l, nil))
	e := mustOpen(t, o)
	e.stall.after = 30 * time.Second
	return e, l
}

// TestStall has a session hang at a lock that the test holds.
func TestStall(t *testing.T) {
	e, log := stillEngine(t, Options{ExpertRAM: ExpertBudget{Percent: 15}})
	w, at := &e.stall, time.Unix(1000, 0)
	look := func(after time.Duration) Stalls {
		at = at.Add(after)
		w.look(at)
		return e.Stalls()
	}
	if z := look(time.Hour); z.Now != nil || z.Total != 0 {
		t.Fatalf("nobody works, and %+v", z)
	}
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prompt := longPrompt(t, e)[:8]
	e.mon.mu.Lock()
	done := make(chan error, 1)
	go func() {
		_, err := s.Sync(context.Background(), prompt)
		done <- err
	}()
	until(t, "the session is in a layer", func() bool { return w.sessions.Load() == 1 && uint16(w.at.Load()) > 0 })
	look(time.Second) // it has moved since
	if z := look(29 * time.Second); z.Now != nil {
		t.Errorf("after 29 s: %+v", z.Now)
	}
	w.pass(time.Minute) // the process was stopped
	if z := look(time.Minute + 500*time.Millisecond); z.Now != nil {
		t.Errorf("after 29.5 s and a stop: %+v", z.Now)
	}
	z := look(1500 * time.Millisecond)
	if z.Total != 1 || z.Now == nil || z.Now.Requests != 1 || at.Sub(z.Now.Since) != 31*time.Second {
		t.Fatalf("after 31 s: %+v", z)
	}
	for _, want := range []string{"a session computes", "in layer 0 of", "no expert is waited for", "held locks: the monitor's"} {
		if !strings.Contains(z.Now.Report, want) {
			t.Errorf("%q is not in %s", want, z.Now.Report)
		}
	}
	if look(time.Hour); log.count("no progress") != 1 || log.count("level=WARN") != 2 || log.count("engine.(*monitor).routed") == 0 {
		t.Errorf("one report, and one of the goroutines, with the one that waits at the lock: %s", log.b.String())
	}
	e.mon.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if z := look(time.Second); z.Now != nil || z.Total != 1 || log.count("requests move again") != 1 {
		t.Errorf("it has ended, and %+v %s", z, log.b.String())
	}
	for _, id := range prompt[:4] { // slow, but it moves
		if err := s.Eval(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		w.sessions.Add(1)
		z = look(29 * time.Second)
		w.sessions.Add(-1)
	}
	if z.Now != nil || z.Total != 1 {
		t.Errorf("a slow one: %+v", z)
	}
}

// TestStallSlots has a scheduler hang with one slot in a pass and one task behind it, then with one at a file.
func TestStallSlots(t *testing.T) {
	e, _ := stillEngine(t, Options{ExpertRAM: ExpertBudget{Percent: 15}, Slots: 2})
	s := scheduler(t, e, SchedulerOptions{})
	w, at := &e.stall, time.Unix(1000, 0)
	look := func(after time.Duration) Stalls {
		at = at.Add(after)
		w.look(at)
		return e.Stalls()
	}
	prompt := longPrompt(t, e)[:20]
	e.mon.mu.Lock()
	done := make(chan error, 3)
	job := func(slot int) {
		_, err := s.Do(context.Background(), Job{Prompt: prompt, Max: 2, Slot: slot, Chooser: greedy(t, e), IgnoreEOS: true})
		done <- err
	}
	go job(0)
	until(t, "slot 0 is in a pass", func() bool { return uint16(w.at.Load()) > 0 })
	go job(0)
	until(t, "another waits for it", func() bool { return s.Counters().Deferred == 1 })
	look(0)
	z := look(31 * time.Second)
	if z.Now == nil || z.Now.Requests != 2 || z.Total != 1 {
		t.Fatalf("%+v", z)
	}
	for _, want := range []string{"slot 0, request 1 (prompt 0 of 20, 0 tokens) computes", "1 wait for a slot", "in layer 0", "the monitor's"} {
		if !strings.Contains(z.Now.Report, want) {
			t.Errorf("%q is not in %s", want, z.Now.Report)
		}
	}
	e.mon.mu.Unlock()
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all is idle", func() bool { return s.Counters().Processing == 0 })
	if z := look(time.Second); z.Now != nil {
		t.Errorf("all is done, and %+v", z.Now)
	}

	file, fails := make(chan struct{}), errors.New("the disk is gone")
	go func() {
		done <- s.do(context.Background(), 1, 0, func(*slot) error {
			<-file
			return fails
		})
	}()
	until(t, "slot 1 is at a file", func() bool { return s.Counters().Processing == 1 })
	look(0)
	go job(0) // others go on
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, "slot 0 is idle", func() bool { return s.Counters().Processing == 1 })
	z = look(31 * time.Second)
	if z.Now == nil || z.Now.Requests != 1 || z.Total != 2 || !strings.Contains(z.Now.Report, "slot 1, request 3 waits for a file") || strings.Contains(z.Now.Report, "locks") {
		t.Errorf("at a file: %+v", z)
	}
	close(file)
	if err := <-done; err != fails {
		t.Fatal(err)
	}
	until(t, "slot 1 is idle", func() bool { return s.Counters().Processing == 0 })
	if z := look(time.Second); z.Now != nil || z.Total != 2 {
		t.Errorf("it came back, and %+v", z)
	}

	s.mu.Lock() // whoever keeps the scheduler's own lock is found, too
	look(0)
	z = look(31 * time.Second)
	s.mu.Unlock()
	if z.Now == nil || !strings.Contains(z.Now.Report, "held locks: the scheduler's") {
		t.Errorf("the scheduler's lock: %+v", z)
	}
	if z := look(time.Second); z.Now != nil {
		t.Errorf("the lock is free, and %+v", z.Now)
	}
}

// TestStallWatchEnds: the watch by itself finds and forgets, and ends with its engine.
func TestStallWatchEnds(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 128, Threads: 2, StallReport: 8 * time.Millisecond, ExpertRAM: ExpertBudget{Percent: 15}})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e.mon.mu.Lock()
	done := make(chan error, 1)
	go func() { done <- s.Eval(context.Background(), 1) }()
	until(t, "it is reported", func() bool { return e.Stalls().Now != nil })
	e.mon.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, "it is over", func() bool { return e.Stalls().Now == nil })
}
