package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"terrace/sample"
)

func greedy(t testing.TB, e *Engine) *sample.Sampler {
	t.Helper()
	s, err := sample.New(sample.Params{Vocab: e.Model().Config().Vocab, Samplers: []string{"temperature"}, TypicalP: 1, TopP: 1, RepeatPenalty: 1})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scheduler(t testing.TB, e *Engine, o SchedulerOptions) *Scheduler {
	t.Helper()
	s, err := e.NewScheduler(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithCancel(context.Background())
		stop()
		s.Close(ctx)
	})
	return s
}

// streamHash collects the logits of a job.
type streamHash struct{ h hash.Hash }

func newStreamHash() *streamHash { return &streamHash{sha256.New()} }

func (l *streamHash) add(t Token) bool {
	for _, v := range t.Logits {
		binary.Write(l.h, binary.LittleEndian, math.Float32bits(v))
	}
	return true
}

func (l *streamHash) sum() string { return fmt.Sprintf("%x", l.h.Sum(nil)) }

// alone is the answer of a job that runs by itself in a session, and the hash of its logits.
func alone(t testing.TB, e *Engine, prompt []int32, most int) ([]int32, string) {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Generate(context.Background(), Request{Prompt: prompt, Max: most, Sampler: greedy(t, e), IgnoreEOS: true, HashLogits: true})
	if err != nil {
		t.Fatal(err)
	}
	return r.Tokens, r.Stats.LogitsSHA256
}

// TestSchedulerSameAnswers: jobs that run beside others get the logits that they get alone.
func TestSchedulerSameAnswers(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Lookahead: 2, ExpertRAM: ExpertBudget{Percent: 15}, Threads: 2, Batch: 64, Slots: 3})
	long := longPrompt(t, e)
	type want struct {
		prompt []int32
		most   int
		tokens []int32
		hash   string
	}
	var wants []want
	for i := range 6 {
		w := want{prompt: long[i*3 : 20+i*30], most: 4 + 2*i}
		w.tokens, w.hash = alone(t, e, w.prompt, w.most)
		wants = append(wants, w)
	}
	s := scheduler(t, e, SchedulerOptions{Slots: 3})
	var g sync.WaitGroup
	for round := range 2 {
		for i, w := range wants {
			g.Go(func() {
				h := newStreamHash()
				r, err := s.Do(context.Background(), Job{Prompt: w.prompt, Max: w.most, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: h.add})
				if err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(r.Tokens, w.tokens) || h.sum() != w.hash {
					t.Errorf("round %d, job %d: %v with logits %s beside others, %v with %s alone", round, i, r.Tokens, h.sum(), w.tokens, w.hash)
				}
				if m := r.Timings; m.CacheN+m.PromptN != len(w.prompt) || m.PredictedN != w.most || r.Finish != FinishLength || r.End != -1 {
					t.Errorf("job %d: %+v, %s, end %d", i, m, r.Finish, r.End)
				}
			})
		}
		g.Wait()
	}
	c := s.Counters()
	if c.PredictedTokens == 0 || c.Processing != 0 || c.Deferred != 0 || c.Longest < len(wants[5].prompt) {
		t.Errorf("counters %+v", c)
	}
}

// TestSchedulerSlots: the slot with the longest common prefix is taken, then the one used longest ago; a job that asks for a
// slot waits for it and holds nobody up.
func TestSchedulerSlots(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, ExpertRAM: ExpertBudget{Percent: 30}, Threads: 2, Slots: 2})
	long := longPrompt(t, e)
	s := scheduler(t, e, SchedulerOptions{Slots: 2})
	do := func(j Job) JobResult {
		t.Helper()
		if j.Max != 0 {
			j.Chooser, j.IgnoreEOS = greedy(t, e), true
		}
		r, err := s.Do(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := long[:60], long[60:120]
	first := do(Job{Prompt: a, Slot: -1})
	second := do(Job{Prompt: b, Slot: -1})
	if first.Slot == second.Slot || first.Timings.CacheN != 0 || first.Held != 60 {
		t.Errorf("slots %d and %d, %+v", first.Slot, second.Slot, first)
	}
	more := do(Job{Prompt: append(slices.Clone(a), 5, 6), Slot: -1, Max: 3})
	if more.Slot != first.Slot || more.Timings.CacheN != 60 || more.Timings.PromptN != 2 || more.Held != 64 {
		t.Errorf("a longer prompt: slot %d, %+v, holds %d", more.Slot, more.Timings, more.Held)
	}
	again := do(Job{Prompt: b, Slot: -1})
	if again.Slot != second.Slot || again.Timings.CacheN != 59 || again.Timings.PromptN != 1 {
		t.Errorf("the same prompt: slot %d, %+v", again.Slot, again.Timings)
	}
	anew := do(Job{Prompt: b, Slot: -1, NoCache: true})
	if anew.Timings.CacheN != 0 || anew.Timings.PromptN != 60 {
		t.Errorf("without cache: %+v", anew.Timings)
	}
	other := do(Job{Prompt: long[120:180], Slot: -1})
	if other.Slot != first.Slot { // used longer ago than the one for b
		t.Errorf("another prompt got slot %d, want %d", other.Slot, first.Slot)
	}

	// A job holds slot 0; one that wants it waits, one that does not passes.
	hold, held, release := make(chan struct{}), make(chan struct{}), make(chan JobResult, 1)
	go func() {
		n := 0
		r, err := s.Do(context.Background(), Job{Prompt: long[:30], Max: -1, Slot: 0, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: func(Token) bool {
			if n++; n == 1 {
				close(held)
			}
			select {
			case <-hold:
				return false
			default:
				return true
			}
		}})
		if err != nil {
			t.Error(err)
		}
		release <- r
	}()
	<-held
	waits := make(chan JobResult, 1)
	go func() {
		r, err := s.Do(context.Background(), Job{Prompt: long[:40], Slot: 0})
		if err != nil {
			t.Error(err)
		}
		waits <- r
	}()
	if r := do(Job{Prompt: long[:50], Slot: -1}); r.Slot != 1 {
		t.Errorf("slot %d while slot 0 is held", r.Slot)
	}
	select {
	case r := <-waits:
		if r := <-release; !r.Truncated {
			t.Errorf("slot 0 was given twice: %+v", r)
		}
		_ = r
	default:
		close(hold)
		if r := <-release; r.Finish != FinishStop && !r.Truncated {
			t.Errorf("the held job: %+v", r)
		}
		if r := <-waits; r.Slot != 0 || r.Timings.CacheN < 30 {
			t.Errorf("the job that waited: %+v", r)
		}
	}
	if got := s.Slots(); len(got) != 2 || got[0].Processing || got[0].TaskID == 0 || got[0].Context != 256 {
		t.Errorf("slots %+v", got)
	}
}

// TestSchedulerCancel: a job ends with its context, in the queue, in its prompt and in its answer, and its slot serves on.
func TestSchedulerCancel(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, ExpertRAM: ExpertBudget{Percent: 15}, Threads: 2, Batch: 16})
	long := longPrompt(t, e)
	s := scheduler(t, e, SchedulerOptions{Slots: 1})

	ctx, cancel := context.WithCancel(context.Background())
	r, err := s.Do(ctx, Job{Prompt: long[:40], Max: -1, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: func(Token) bool { cancel(); return true }})
	if !errors.Is(err, context.Canceled) || len(r.Tokens) != 1 || r.Finish != FinishAborted {
		t.Errorf("cancelled at the first token: %v, %+v", err, r)
	}
	ctx, cancel = context.WithCancel(context.Background())
	r, err = s.Do(ctx, Job{Prompt: long, Slot: -1, NoCache: true, OnPrompt: func(p PromptProgress) {
		if p.Processed >= 32 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || r.Timings.PromptN < 32 || r.Timings.PromptN > 48 {
		t.Errorf("cancelled in the prompt: %v, %+v", err, r)
	}
	// In the queue, behind one that runs.
	inside, hold := make(chan struct{}), make(chan struct{})
	var once sync.Once
	end := make(chan error, 1)
	go func() {
		_, err := s.Do(context.Background(), Job{Prompt: long[:9], Max: 2, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: func(Token) bool {
			once.Do(func() { close(inside); <-hold })
			return true
		}})
		end <- err
	}()
	<-inside
	ctx, cancel = context.WithCancel(context.Background())
	queued := make(chan error, 1)
	go func() {
		_, err := s.Do(ctx, Job{Prompt: long[:9], Slot: -1})
		queued <- err
	}()
	for s.Counters().Deferred == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	close(hold)
	if err := <-queued; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in the queue: %v", err)
	}
	if err := <-end; err != nil {
		t.Error(err)
	}
	tokens, _ := alone(t, e, long[:50], 4)
	r, err = s.Do(context.Background(), Job{Prompt: long[:50], Max: 4, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
	if err != nil || !slices.Equal(r.Tokens, tokens) {
		t.Errorf("after cancellations %v (%v), want %v", r.Tokens, err, tokens)
	}
}

// TestSchedulerRefuses: what cannot work is refused with its numbers, and a closed scheduler takes nothing.
func TestSchedulerRefuses(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Percent: 15}, Threads: 2})
	long := longPrompt(t, e)
	s := scheduler(t, e, SchedulerOptions{Slots: 1})
	ctx := context.Background()
	_, err := s.Do(ctx, Job{Prompt: long[:65], Slot: -1})
	var p *PromptTooLong
	if !errors.As(err, &p) || !errors.Is(err, ErrPrompt) || p.Tokens != 65 || p.Context != 64 {
		t.Errorf("65 tokens in a context of 64: %v", err)
	}
	if _, err := s.Do(ctx, Job{Slot: -1}); !errors.Is(err, ErrPrompt) {
		t.Errorf("an empty prompt: %v", err)
	}
	if _, err := s.Do(ctx, Job{Prompt: []int32{1 << 30}, Slot: -1}); !errors.Is(err, ErrPrompt) {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
	if _, err := s.Do(ctx, Job{Prompt: long[:3], Slot: 1}); !errors.Is(err, ErrNoSlot) {
		t.Errorf("slot 1 of 1: %v", err)
	}
	if _, err := s.SaveSlot(ctx, 0, "a"); !errors.Is(err, ErrNotOn) {
		t.Errorf("a slot saved without a folder: %v", err)
	}
	if _, err := e.NewScheduler(SchedulerOptions{Slots: -1}); !errors.Is(err, ErrUsage) {
		t.Errorf("-1 slots: %v", err)
	}
	r, err := s.Do(ctx, Job{Prompt: long[:60], Max: -1, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
	if err != nil || !r.Truncated || r.Finish != FinishLength || len(r.Tokens) != 5 || r.Held != 64 {
		t.Errorf("an answer up to the full context: %v, %+v", err, r)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := s.Do(ctx, Job{Prompt: long[:3], Slot: -1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a job after Close: %v", err)
	}
}
