package engine

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"terrace/internal/tinymodel"
)

// do runs a greedy job and answers its tokens and the hash of its logits.
func do(t testing.TB, s *Scheduler, prompt []int32, most int) (JobResult, string) {
	t.Helper()
	h := newStreamHash()
	r, err := s.Do(context.Background(), Job{Prompt: prompt, Max: most, Slot: -1, Chooser: greedy(t, s.e), IgnoreEOS: true, OnToken: h.add})
	if err != nil {
		t.Error(err)
	}
	return r, h.sum()
}

// TestSharedPrefix: eight jobs that come together and begin alike evaluate the common beginning once, and each has the logits
// that it has alone; so has one that comes later and finds it in a slot that works. For plain, recurrent and windowed layers,
// a compressed cache and picked blocks.
func TestSharedPrefix(t *testing.T) {
	names := []string{"qwen3", "qwen3next", "lfm2moe", "nemotron_h_moe", "gpt-oss", "deepseek2-lite", "qwen4exp"}
	if raceEnabled || testing.Short() {
		names = []string{"qwen3next", "gpt-oss"}
	}
	const jobs, same = 8, 100
	for name, path := range families(t, names...) {
		e := mustOpen(t, Options{Path: path, Context: 192, Batch: 32, Threads: 2, Slots: jobs, ExpertRAM: ExpertBudget{Percent: 100}})
		var prompts [][]int32
		for j := range jobs {
			p := make([]int32, same+5+3*j)
			for i := range p {
				p[i] = int32(i*i*7+3*i+11) % 256
				if i >= same {
					p[i] = int32(i*(j+3)+j) % 256
				}
			}
			prompts = append(prompts, p)
		}
		want := make([]string, jobs)
		for j, p := range prompts {
			_, want[j] = alone(t, e, p, 5)
		}
		s := scheduler(t, e, SchedulerOptions{})
		// All slots are held while the others come.
		together := make(chan struct{})
		for i := range jobs {
			go s.do(context.Background(), i, 0, func(*slot) error { <-together; return nil })
		}
		for s.Counters().Processing < jobs {
			time.Sleep(time.Millisecond)
		}
		results, hashes := make([]JobResult, jobs), make([]string, jobs)
		var g sync.WaitGroup
		for j := range jobs - 1 {
			g.Go(func() { results[j], hashes[j] = do(t, s, prompts[j], 5) })
		}
		for s.Counters().Deferred < jobs-1 {
			time.Sleep(time.Millisecond)
		}
		close(together)
		g.Wait()
		results[jobs-1], hashes[jobs-1] = do(t, s, prompts[jobs-1], 5)
		evaluated, total := 0, 0
		for j := range jobs {
			if hashes[j] != want[j] {
				t.Errorf("%s: job %d has other logits beside others than alone", name, j)
			}
			m := results[j].Timings
			evaluated += m.PromptN
			total += len(prompts[j])
			if m.PromptN+m.CacheN != len(prompts[j]) {
				t.Errorf("%s: job %d: %d tokens cached and %d evaluated of %d", name, j, m.CacheN, m.PromptN, len(prompts[j]))
			}
		}
		// The last one comes when others have gone on: windows and recurrent layers may have no way back to the common beginning.
		once := total - (jobs-1)*same
		if extra := evaluated - once; extra < 0 || extra > same || extra > 0 && name == "qwen3" {
			t.Errorf("%s: %d tokens of prompts evaluated, want %d", name, evaluated, once)
		}
		if c := s.Counters(); c.PromptTokens != int64(evaluated) || c.CachedTokens != int64(total-evaluated) {
			t.Errorf("%s: counters of %d and %d tokens, want %d and %d", name, c.PromptTokens, c.CachedTokens, evaluated, total-evaluated)
		}
	}
}

// TestLeaderGoes: when the job whose beginning others wait for is cancelled, they go on with what it has left.
func TestLeaderGoes(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Batch: 16, Threads: 2, Slots: 3, ExpertRAM: ExpertBudget{Percent: 20}})
	long := longPrompt(t, e)
	a, b := slices.Clone(long[:180]), slices.Clone(long[:180])
	b[150]++
	_, want := alone(t, e, b, 4)
	s := scheduler(t, e, SchedulerOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	started := make(chan struct{})
	var once sync.Once
	g.Go(func() {
		_, err := s.Do(ctx, Job{Prompt: a, Slot: -1, OnPrompt: func(p PromptProgress) {
			once.Do(func() { close(started) })
			if p.Processed >= 96 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	<-started
	r, hash := do(t, s, b, 4)
	g.Wait()
	if hash != want {
		t.Error("other logits after the leader went")
	}
	if m := r.Timings; m.CacheN < 64 || m.CacheN > 150 {
		t.Errorf("%d tokens came from a leader that went at about 96", m.CacheN)
	}
}

// TestErrorIsOfOne: a pass that fails for one job's sake leaves the others theirs.
func TestErrorIsOfOne(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 128, Threads: 2, Slots: 2, ExpertRAM: ExpertBudget{Percent: 20}})
	long := longPrompt(t, e)
	_, want := alone(t, e, long[:20], 12)
	s := scheduler(t, e, SchedulerOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	g.Go(func() {
		n := 0
		_, err := s.Do(ctx, Job{Prompt: long[50:80], Max: -1, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true, OnToken: func(Token) bool {
			if n++; n == 3 {
				cancel()
			}
			return true
		}})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	_, hash := do(t, s, long[:20], 12)
	g.Wait()
	if hash != want {
		t.Error("a job has other logits because another was cancelled")
	}
}

// TestBrokenFile: when experts cannot be read any more, each job ends with an error that names what failed, and the scheduler
// stays.
func TestBrokenFile(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	e := mustOpen(t, Options{Path: path, Store: "pread", Threads: 2, Slots: 2, ExpertRAM: ExpertBudget{Min: true}})
	s := scheduler(t, e, SchedulerOptions{})
	prompt := []int32{3, 4, 5}
	if r, _ := do(t, s, prompt, 3); len(r.Tokens) != 3 {
		t.Fatalf("%+v", r)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for i := range 2 {
		g.Go(func() {
			p := []int32{int32(9 + i), 10, 11, 12, 13, 14, 15, 16}
			r, err := s.Do(context.Background(), Job{Prompt: p, Max: 40, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
			if err == nil || r.Finish != FinishAborted {
				t.Errorf("a job whose experts are gone: %v, %+v", err, r)
			}
		})
	}
	g.Wait()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	for _, x := range s.Slots() {
		if x.Processing {
			t.Errorf("slot %d is still taken", x.ID)
		}
	}
}

// TestSharedStats: what jobs are told of reads adds up to what was read, though they shared passes.
func TestSharedStats(t *testing.T) {
	e := mustOpen(t, Options{Path: tinyMoE, Context: 256, Lookahead: 2, Threads: 2, Slots: 4, ExpertRAM: ExpertBudget{Percent: 15}})
	long := longPrompt(t, e)
	s := scheduler(t, e, SchedulerOptions{})
	before := e.cache.Stats()
	var g sync.WaitGroup
	var results [4]JobResult
	for i := range results {
		g.Go(func() { results[i], _ = do(t, s, long[30*i:30*i+20+10*i], 10+i) })
	}
	g.Wait()
	after := e.cache.Stats()
	var sum Stats
	for _, r := range results {
		st := r.Stats
		if st.Parallel != 4 || st.PromptTokens == 0 || st.PredictedTokens == 0 || st.Touches == 0 {
			t.Errorf("stats %+v", st)
		}
		sum.Touches += st.Touches
		sum.HitsRAM += st.HitsRAM
		sum.HitsInflight += st.HitsInflight
		sum.Misses += st.Misses
		sum.DemandBytes += st.DemandBytes
		sum.BytesRead += st.BytesRead
		sum.Prefetch.Issued += st.Prefetch.Issued
	}
	if sum.Touches != after.Touches-before.Touches || sum.HitsRAM != after.Hits-before.Hits || sum.Misses != after.Misses-before.Misses ||
		sum.DemandBytes != after.MissBytes-before.MissBytes || sum.HitsInflight != after.InFlight-before.InFlight {
		t.Errorf("jobs were told of %d touches, %d hits, %d misses of %d bytes; there were %d, %d, %d of %d", sum.Touches, sum.HitsRAM, sum.Misses, sum.DemandBytes,
			after.Touches-before.Touches, after.Hits-before.Hits, after.Misses-before.Misses, after.MissBytes-before.MissBytes)
	}
	// Reads may end after the pass that began them.
	if all := after.DemandBytes + after.GuessBytes - before.DemandBytes - before.GuessBytes; sum.BytesRead > all || float64(sum.BytesRead) < 0.9*float64(all) {
		t.Errorf("jobs were told of %d bytes read, of %d", sum.BytesRead, all)
	}
	if issued := s.pipe.Stats().Issued; sum.Prefetch.Issued != issued {
		t.Errorf("jobs were told of %d guesses, of %d", sum.Prefetch.Issued, issued)
	}
}

// TestCopyPrefix: a copied beginning goes on with the bits of the sequence it comes from, from everywhere that Reach allows.
func TestCopyPrefix(t *testing.T) {
	ctx := context.Background()
	for name, path := range families(t, "qwen3", "gpt-oss", "gemma4-small", "lfm2moe", "qwen4exp") {
		e := mustOpen(t, Options{Path: path, Context: 256, Batch: 32, Threads: 2, ExpertRAM: ExpertBudget{Percent: 100}})
		a, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		text := make([]int32, 220)
		for i := range text {
			text[i] = int32(i*i*7+3*i+11) % 256
		}
		vocab := e.Model().Config().Vocab
		want := make([]float32, vocab)
		at := 0
		for _, end := range []int{30, 62, 150, 199} {
			if _, err := a.Sync(ctx, text[:end]); err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{end, end - 1, end - 8, end / 2, 1} {
				r := a.state.Reach(n)
				if r > n || r == 0 && n == end {
					t.Errorf("%s: %d of %d tokens can be copied of %d", name, r, n, end)
				}
				if r == 0 {
					continue
				}
				at++
				b.state.CopyPrefix(a.state, r)
				if b.state.Pos() != r {
					t.Fatalf("%s: a copy of %d tokens has %d", name, r, b.state.Pos())
				}
				b.tokens = append(b.tokens[:0], text[:r]...)
				if _, err := b.Sync(ctx, text[:r+9]); err != nil {
					t.Fatal(err)
				}
				copy(want, b.Logits())
				b.Reset()
				if _, err := b.Sync(ctx, text[:r+9]); err != nil {
					t.Fatal(err)
				}
				for i, v := range b.Logits() {
					if math.Float32bits(v) != math.Float32bits(want[i]) {
						t.Fatalf("%s: after a copy of %d tokens of %d, logit %d is %v, want %v", name, r, end, i, want[i], v)
					}
				}
			}
		}
		if at < 5 {
			t.Errorf("%s: only %d copies", name, at)
		}
	}
}
