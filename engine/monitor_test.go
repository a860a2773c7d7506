package engine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/gguf"
	"terrace/tiers"
)

// TestWatch follows a decode and puts its changes together: they are the choices that were made and the places at the end.
func TestWatch(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Lookahead: 2, ExpertRAM: ExpertBudget{Percent: 25}, Threads: 2})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := make([]uint32, e.cache.Count())
	s.OnRoute(func(layer int, choices []int32) {
		for _, c := range choices {
			want[e.mon.first[layer]+c]++
		}
	})
	prompt := longPrompt(t, e)
	if _, err := s.Sync(context.Background(), prompt[:20]); err != nil {
		t.Fatal(err)
	}
	clear(want) // what was before the watch
	w, places, err := e.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got := make([]uint32, len(want))
	var passes, rows int64
	changes := 0
	follow := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer cancel()
		for {
			start := time.Now()
			c, err := w.Next(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if d := time.Since(start); changes > 0 && c.Missed == 0 && d < watchEvery/2 {
				t.Errorf("a change %s after the one before", d)
			}
			changes++
			passes, rows = passes+c.Passes, rows+c.Rows
			for _, x := range c.Routed {
				if got[x>>8] += x & 0xff; x&0xff == 255 {
					t.Error("a count that is full")
				}
			}
			for _, x := range c.Moved {
				places[x>>8] = byte(x)
			}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow()
	}()
	for _, id := range prompt[20:60] {
		if err := s.Eval(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.pipe.Reset()
	<-done
	follow() // what was left: one pass ends with the next one, or when nothing runs
	if !slices.Equal(got, want) {
		t.Errorf("choices\n%v, want\n%v", got, want)
	}
	if now, _ := e.Experts(); !bytes.Equal(places, now) {
		t.Errorf("places\n%v, want\n%v", places, now)
	}
	if passes != 40 || rows != 40 || changes < 2 {
		t.Errorf("%d passes of %d rows in %d changes", passes, rows, changes)
	}
	time.Sleep(3 * watchEvery)
	if err := s.Eval(context.Background(), prompt[60]); err != nil {
		t.Fatal(err)
	}
	if c, err := w.Next(context.Background()); err != nil || c.Missed < 2 || c.Rows != 1 {
		t.Errorf("a slow watcher got %+v, %v", c, err)
	}
}

func TestWatchersAreBounded(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 1})
	var all []*Watcher
	for range maxWatchers {
		w, _, err := e.Watch()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	if _, _, err := e.Watch(); !errors.Is(err, ErrWatchers) {
		t.Errorf("one more: %v", err)
	}
	all[3].Close()
	w, _, err := e.Watch()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing runs: %v", err)
	}
}

// TestWatchedDecodeAllocatesNothing copies the state at every pass, which is ten times a second in use.
func TestWatchedDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Lookahead: 2, ExpertRAM: ExpertBudget{Percent: 15}, Threads: 2})
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, _, err := e.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	prompt := longPrompt(t, e)
	if _, err := s.Sync(context.Background(), prompt[:30]); err != nil {
		t.Fatal(err)
	}
	at := 30
	step := func() {
		e.mon.mu.Lock()
		e.mon.due, e.mon.view.at = true, time.Time{}
		e.mon.mu.Unlock()
		if err := s.Eval(context.Background(), prompt[at]); err != nil {
			t.Fatal(err)
		}
		at++
	}
	for range 15 {
		step()
	}
	if n := stepAllocs(t, step); n != 0 {
		t.Errorf("a watched decode step allocates %v times", n)
	}
	if !w.compare() {
		t.Error("the watcher saw nothing")
	}
}

func TestTiers(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 512, Lookahead: 1, ExpertRAM: ExpertBudget{Percent: 25}, Threads: 2})
	if x := e.Tiers(); x.Limit.Code != LimitIdle || x.Recent.Rows != 0 || len(x.Layers) != 8 {
		t.Fatalf("before anything ran: %+v", x)
	}
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prompt := longPrompt(t, e)
	if _, err := s.Sync(context.Background(), prompt[:40]); err != nil {
		t.Fatal(err)
	}
	for _, id := range prompt[40:60] {
		if err := s.Eval(context.Background(), id); err != nil {
			t.Fatal(err)
		}
	}
	x := e.Tiers()
	var touches, resident int64
	for l, y := range x.Layers {
		touches, resident = touches+y.Touches, resident+int64(y.Resident)
		if y.Experts != 32 || y.Touches == 0 || y.Touches != y.Hits+y.InFlight+y.Misses || y.ResidentBytes > y.Bytes {
			t.Errorf("layer %d: %+v", l, y)
		}
	}
	if touches != x.Cache.Touches || resident != int64(x.Cache.Resident) {
		t.Errorf("layers have %d touches and %d experts, the cache %d and %d", touches, resident, x.Cache.Touches, x.Cache.Resident)
	}
	if r := x.Recent; r.Rows != 60 || r.Passes != 21 || r.Busy <= 0 || r.Cache.Touches != x.Cache.Touches {
		t.Errorf("recent work: %+v", r)
	}
	if x.Limit.Code == LimitIdle || x.Limit.Waiting < 0 || x.Limit.Waiting > 1 || x.Limit.Terms.MemoryMS != 0 {
		t.Errorf("limit %+v", x.Limit)
	}
	e.MeasureRates()
	if y := e.Tiers().Limit; y.Terms.MemoryMS <= 0 || y.Terms.ComputeMS <= 0 || y.Code == LimitProcessor {
		t.Errorf("limit with rates: %+v", y)
	}
	if x.Start != x.Budget.RAM || x.Predictor != "gate-ahead" || x.Lookahead != 1 {
		t.Errorf("%+v", x)
	}
}

func TestLimitWords(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, Threads: 1})
	r := Recent{Busy: time.Second, Passes: 10, Rows: 10, Cache: tiers.Stats{Blocked: 600 * time.Millisecond, DiskBusy: 500 * time.Millisecond, DemandBytes: 5e8, MissBytes: 4e8, Misses: 100}}
	want := func(code LimitCode, words string) {
		t.Helper()
		l := e.limit(&r)
		if l.Code != code || !strings.Contains(l.Words, words) {
			t.Errorf("%+v, want %s and %q", l, code, words)
		}
	}
	want(LimitDisk, "60 %")
	if ms := e.limit(&r).Terms.DiskMS; ms != 40 {
		t.Errorf("4e8 bytes at 1e9 a second for 10 tokens: %g ms", ms)
	}
	r.Cache.Blocked = 100 * time.Millisecond
	want(LimitProcessor, "10 %")
	e.measured.Store(&rates{memory: 1, kernel: map[gguf.Type]float64{}})
	want(LimitMemory, "bandwidth")
	fast := &rates{memory: 1e15, kernel: map[gguf.Type]float64{}}
	for _, x := range e.tokenTraffic() {
		fast.kernel[x.typ] = 1
	}
	e.measured.Store(fast)
	want(LimitCompute, "arithmetic")
	r.Ended = 5 * time.Second
	want(LimitIdle, "5 seconds")
	r.Rows = 0
	want(LimitIdle, "yet")
}
