package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/internal/testfile"
	"terrace/internal/tinymodel"
	"terrace/plan"
	"terrace/promptstore"
	"terrace/sample"
)

// childEnv holds what a child of the test binary shall run; see TestMain.
const childEnv = "TERRACE_TEST_CHILD"

// childRun is one life of a process: a model opened under a budget, a prompt that fills a batch, some answered tokens.
type childRun struct {
	Options        Options
	Prompt, Answer int
}

// childReport is what the child prints.
type childReport struct {
	Budget Budget
	RSS    host.Resident
	Go     uint64 // bytes that the Go runtime holds
	Hash   string
	Err    string
	Cache  promptstore.Stats
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		var c childRun
		r := childReport{}
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			r.Err = err.Error()
		} else if err := c.run(&r); err != nil {
			r.Err = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func (c *childRun) run(r *childReport) error {
	e, err := Open(c.Options)
	if err != nil {
		return err
	}
	defer e.Close()
	if c.Options.Slots > 1 {
		return c.together(e, r)
	}
	s, err := e.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	p := sample.Defaults(e.Model().Config().Vocab)
	p.Temp = 0
	sm, err := sample.New(p)
	if err != nil {
		return err
	}
	prompt := make([]int32, c.Prompt)
	for i := range prompt {
		prompt[i] = int32(i * 7919 % e.Model().Config().Vocab)
	}
	if c.Options.CacheRAM > 0 {
		dir, err := os.MkdirTemp("", "cache")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		pc, err := e.NewPromptCache(PromptCacheOptions{Dir: dir})
		if err != nil {
			return err
		}
		defer pc.Close(context.Background())
		s.UseCache(pc)
		for round := range 2 { // more prompts than it holds, the second time from disk
			for i := range 12 {
				other := append([]int32{int32(i)}, prompt...)
				n, err := s.Sync(context.Background(), other)
				if err == nil && round > 0 && n > 1 {
					err = fmt.Errorf("%d tokens of a prompt that was kept were evaluated", n)
				}
				if err != nil {
					return err
				}
				pc.Flush()
			}
		}
		r.Cache = pc.Stats()
	}
	res, err := s.Generate(context.Background(), Request{Prompt: prompt, Max: c.Answer, Sampler: sm, IgnoreEOS: true, HashLogits: true})
	if err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Budget, r.Go, r.Hash = e.Budget(), m.Sys-m.HeapReleased, res.Stats.LogitsSHA256
	r.RSS, err = host.RSS()
	return err
}

// together runs a job a slot at the same time, twice, with more prompt the second time.
func (c *childRun) together(e *Engine, r *childReport) error {
	s, err := e.NewScheduler(SchedulerOptions{})
	if err != nil {
		return err
	}
	hashes, errs := make([]*streamHash, c.Options.Slots), make([]error, c.Options.Slots)
	for turn := range 2 {
		var g sync.WaitGroup
		for i := range hashes {
			hashes[i] = newStreamHash()
			g.Go(func() {
				p := sample.Defaults(e.Model().Config().Vocab)
				p.Temp = 0
				sm, err := sample.New(p)
				if err != nil {
					errs[i] = err
					return
				}
				prompt := make([]int32, c.Prompt*(turn+1)/2)
				for j := range prompt {
					prompt[j] = int32((j*7919 + j*i) % e.Model().Config().Vocab)
				}
				_, errs[i] = s.Do(context.Background(), Job{Prompt: prompt, Max: c.Answer, Slot: -1, Chooser: sm, IgnoreEOS: true, OnToken: hashes[i].add})
			})
		}
		g.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	for _, h := range hashes {
		r.Hash += h.sum()[:8]
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Budget, r.Go = e.Budget(), m.Sys-m.HeapReleased
	if r.RSS, err = host.RSS(); err != nil {
		return err
	}
	return s.Close(context.Background())
}

// inChild runs c in a process of its own.
func inChild(t *testing.T, c childRun) childReport {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var r childReport
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return r
}

// bigVocabulary writes a model with the tokenizer of a real one: 151,936 tokens.
func bigVocabulary(t *testing.T, dir string) string {
	t.Helper()
	head := filepath.Join(dir, "vocab.gguf")
	if err := os.WriteFile(head, testfile.Gunzip(t, "../testdata/tokenizers/qwen3.gguf.gz"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(head)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := f.Metadata.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	w, err := tinymodel.File(tinymodel.Options{Hidden: 128, Vocab: tokens.Len(), Context: 2048, Tied: true, Embd: gguf.Q8_0, Gate: gguf.Q8_0, Up: gguf.Q8_0, Down: gguf.Q8_0})
	if err != nil {
		t.Fatal(err)
	}
	kept := w.Metadata[:0]
	for _, x := range w.Metadata {
		if !strings.HasPrefix(x.Key, "tokenizer.") {
			kept = append(kept, x)
		}
	}
	for _, x := range f.Metadata.Fields() {
		if strings.HasPrefix(x.Key, "tokenizer.") {
			kept = append(kept, x)
		}
	}
	w.Metadata = kept
	path := filepath.Join(dir, "bigvocab.gguf")
	if err := gguf.Create(path, w); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBudgetHolds compares the promise with what the system saw: no process may ever have held more than its budget,
// whatever the model, the context and the arena; and what was set aside without use must not be most of it.
func TestBudgetHolds(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector keeps shadows of all memory")
	}
	if r, err := host.RSS(); err != nil || r.Peak == 0 {
		t.Skip("this system does not tell the peak: ", err)
	}
	dir := t.TempDir()
	write := func(name string, o tinymodel.Options) string {
		t.Helper()
		d := filepath.Join(dir, name)
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		p, err := tinymodel.Write(d, o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	type runs struct {
		name string
		o    Options
		at   []float64 // shares of what lies between the smallest arena and one for all experts
	}
	steps, ends, least := []float64{0, 0.25, 1}, []float64{0, 1}, []float64{0}
	wide := write("wide", tinymodel.Options{Layers: 2, Hidden: 1024, Heads: 16, KVHeads: 4, HeadDim: 64, Experts: 32, TopK: 4, ExpertFFN: 256, Context: 4096,
		Embd: gguf.Q8_0, Output: gguf.Q8_0, Attn: gguf.Q8_0, Gate: gguf.Q8_0, Up: gguf.Q8_0, Down: gguf.Q8_0})
	for _, c := range []runs{
		{"tiny-moe", Options{Path: tinyMoE, Context: 512, Lookahead: 2}, steps},
		{"short", Options{Path: tinyMoE, Context: 64, Lookahead: 0}, least},
		{"exact", Options{Path: tinyMoE, Context: 512, Exact: true}, least},
		{"one thread, small batch", Options{Path: tinyMoE, Context: 512, Batch: 16, Threads: 1}, least},
		{"wide", Options{Path: wide, Context: 1024, Lookahead: 1}, ends},
		{"wide, long", Options{Path: wide, Context: 4096, Lookahead: 2, Store: "mmap"}, least},
		{"wide, exact", Options{Path: wide, Context: 1024, Exact: true, Store: "pread"}, least},
		{"wide, with a prompt cache", Options{Path: wide, Context: 1024, Lookahead: 1, CacheRAM: 6 << 20}, least},
		{"slots", Options{Path: wide, Context: 4096, Lookahead: 1, Slots: 4}, steps},
		{"slots, vocabulary", Options{Path: bigVocabulary(t, dir), Context: 2048, Slots: 6, Batch: 64}, least},
		{"vocabulary", Options{Path: bigVocabulary(t, dir), Context: 1024, Lookahead: 2}, least},
		{"dense", Options{Path: write("dense", tinymodel.Options{Arch: tinymodel.Qwen3, Hidden: 256, FFN: 1024, Context: 1024}), Context: 1024}, least},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			probe := c.o
			probe.ExpertRAM.Min = true
			e, err := Open(probe)
			if err != nil {
				t.Fatal(err)
			}
			b := e.budget
			b.ArenaMost = b.Arena / int64(max(b.Slots, 1)) * int64(b.Experts)
			e.Close()
			var hash string
			for _, at := range c.at {
				o := c.o
				o.RAM = b.RAM + int64(at*float64(plan.Mapped(b.ArenaMost)-plan.Mapped(b.ArenaMin)))
				r := inChild(t, childRun{Options: o, Prompt: min(600, 3*o.Context/4), Answer: 8})
				if r.Err != "" {
					t.Fatal(r.Err)
				}
				if hash == "" {
					hash = r.Hash
				}
				t.Logf("%3.0f %%: budget %.1f MB, peak %.1f MB (anonymous now %.1f), Go %.1f of %.1f MB, slots %d of %d", 100*at, mb(r.Budget.RAM), mb(r.RSS.Peak),
					mb(r.RSS.Anon), mb(int64(r.Go)), mb(r.Budget.Runtime+r.Budget.Work), r.Budget.Slots, r.Budget.Experts)
				if r.RSS.Peak > o.RAM {
					t.Errorf("%d bytes were held, the budget is %d", r.RSS.Peak, o.RAM)
				}
				if c.o.CacheRAM > 0 && (r.Cache.Evicted == 0 || r.Cache.Loaded == 0 || r.Cache.Discarded > 0) {
					t.Errorf("%+v", r.Cache)
				}
				if r.Hash != hash {
					t.Errorf("hash %s, at the smallest budget %s", r.Hash, hash)
				}
			}
		})
	}
}

func mb(n int64) float64 { return float64(n) / 1e6 }
