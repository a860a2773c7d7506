package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"terrace/compute"
)

// matrixRun is one configuration of the exactness matrix.
type matrixRun struct {
	ram       ExpertBudget
	threads   int
	lookahead int
	store     string
	beside    int    // other sequences in the same passes
	prefix    string // where the first half of the prompt comes from: "" it is evaluated
}

const (
	prefixSlot    = "slot"    // what a slot still holds
	prefixCache   = "cache"   // the prompt cache
	prefixRestart = "restart" // the prompt cache's files, after the engine was opened anew
)

func (r matrixRun) String() string {
	ram := fmt.Sprintf("%.0f %%", r.ram.Percent)
	if r.ram.Min {
		ram = "least"
	}
	from := r.prefix
	if from == "" {
		from = "none"
	}
	return fmt.Sprintf("experts %s, threads %d, lookahead %d, store %s, %d beside, prefix from %s", ram, r.threads, r.lookahead, r.store, r.beside, from)
}

// matrix spreads the settings over n configurations, so that every value of each meets several of the others.
func matrix(n int, stores []string) (out []matrixRun) {
	rams := []ExpertBudget{{Percent: 100}, {Percent: 50}, {Min: true}}
	froms := []string{"", prefixSlot, prefixCache, prefixRestart}
	for i := range n {
		out = append(out, matrixRun{ram: rams[i%3], threads: 1 + i/3%2, lookahead: (i + i/3) % 3, store: stores[(i+i/4)%len(stores)], beside: (i + i/6) % 2 * 2, prefix: froms[i%4]})
	}
	return out
}

// hashing is a Chooser that takes given tokens and hashes the logits it is shown.
type hashing struct {
	tokens []int32
	sum    []byte
	n      int
}

func (h *hashing) Next(logits []float32) (int32, error) {
	d := sha256.New()
	d.Write(h.sum)
	for _, v := range logits {
		binary.Write(d, binary.LittleEndian, math.Float32bits(v))
	}
	h.sum = d.Sum(h.sum[:0])
	h.n++
	return h.tokens[(h.n-1)%len(h.tokens)], nil
}

func (h *hashing) Accept(int32) {}

// matrixHash answers a prompt in one configuration; the hash is that of all logits an answer was chosen by.
func matrixHash(t *testing.T, o Options, r matrixRun) string {
	t.Helper()
	o.Context, o.Batch, o.Slots = 256, 32, 1+r.beside
	o.CacheRAM = 64 << 20
	o.ExpertRAM, o.Threads, o.Lookahead, o.Store = r.ram, r.threads, r.lookahead, r.store
	if r.ram.Percent > 0 && r.ram.Percent < 100 && !fits(t, o) {
		o.ExpertRAM = ExpertBudget{Min: true} // top-k is more than that
	}
	prompt, answer := wave(90, 1), []int32{40, 49, 58, 67}
	dir := t.TempDir()
	ctx := context.Background()
	ask := func(before []int32) (hash string, held int) {
		e, end := opened(t, o)
		defer end()
		so := SchedulerOptions{}
		if r.prefix == prefixCache || r.prefix == prefixRestart {
			pc, err := e.NewPromptCache(PromptCacheOptions{Dir: dir, Interval: 32})
			if err != nil {
				t.Fatal(err)
			}
			defer pc.Close(ctx)
			so.Cache = pc
		}
		s, err := e.NewScheduler(so)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(ctx)
		do := func(p []int32, most int) (JobResult, *hashing) {
			h := &hashing{tokens: answer}
			res, err := s.Do(ctx, Job{Prompt: p, Max: most, Slot: -1, Chooser: h, IgnoreEOS: true})
			if err != nil {
				t.Error(err)
			}
			return res, h
		}
		if before != nil {
			do(before, 0)
			if r.prefix == prefixCache { // its slot goes to another prompt
				do(wave(60, 9), 0)
			}
		}
		if r.prefix == prefixRestart && before != nil {
			so.Cache.Flush()
			return "", 0
		}
		done := make(chan struct{})
		for i := range r.beside {
			go func() { do(wave(50+10*i, 3+i), 12); done <- struct{}{} }()
		}
		res, h := do(prompt, len(answer))
		for range r.beside {
			<-done
		}
		return fmt.Sprintf("%x", h.sum[:8]), res.Timings.CacheN
	}
	var before []int32
	if r.prefix != "" {
		before = prompt[:64]
	}
	if r.prefix == prefixRestart {
		ask(before)
		before = nil
	}
	hash, held := ask(before)
	if (r.prefix != "") != (held > 0) && r.prefix != prefixSlot {
		t.Errorf("%v: %d tokens of the prompt were there", r, held)
	}
	return hash
}

// TestMatrixOneHash is the exactness matrix: for every architecture one hash over arenas, threads, lookahead, stores, neighbours in
// a batch, and where the prompt's beginning comes from. TERRACE_EXACT=whole takes 24 configurations of each; otherwise each
// architecture has the first and one more, in turn.
func TestMatrixOneHash(t *testing.T) {
	var only []string
	if raceEnabled {
		only = []string{"gpt-oss"}
	}
	stores := []string{"uring", "pread", "mmap"}
	if !uringWorks(t) {
		stores = stores[1:]
	}
	runs := matrix(24, stores)
	all := families(t, only...)
	hashes := map[string]string{}
	for turn, name := range slices.Sorted(maps.Keys(all)) {
		want, n := "", 0
		for i, r := range runs {
			if !exactWhole && i != 0 && i != 1+turn%(len(runs)-1) {
				continue
			}
			got := matrixHash(t, Options{Path: all[name]}, r)
			if n++; n == 1 {
				want = got
			} else if got != want {
				t.Errorf("%s: %v: hash %s, want %s", name, r, got, want)
			}
		}
		t.Logf("%s: %d configurations, hash %s", name, n, want)
		hashes[want] = name
	}
	if len(hashes) != len(all) {
		t.Errorf("%d hashes of %d models: some are equal", len(hashes), len(all))
	}
	if len(only) > 0 {
		return
	}
	name := slices.Sorted(maps.Keys(all))[0] // the hash must be able to differ
	if got := matrixHash(t, Options{Path: all[name], KeyType: compute.KVF32, ValType: compute.KVF32}, runs[0]); hashes[got] == name {
		t.Errorf("%s: a float32 KV cache has the hash of the float16 one", name)
	}
}
