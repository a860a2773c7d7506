package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"terrace/compute"
	"terrace/sample"
)

const tinyMoE = "../testdata/tiny-moe-Q4_K.gguf"

// heldOut is a text of tiny-moe's held-out set.
func heldOut(t testing.TB) string {
	t.Helper()
	f, err := os.Open("../testdata/tiny-moe/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var line struct{ Text string }
	if err := json.NewDecoder(f).Decode(&line); err != nil {
		t.Fatal(err)
	}
	return line.Text
}

// longPrompt is the text's first 200 tokens after the end-of-text token.
func longPrompt(t testing.TB, e *Engine) []int32 {
	t.Helper()
	ids := e.Tokenizer().Encode([]int32{0}, heldOut(t), false, false)
	if len(ids) < 200 {
		t.Fatalf("the text has %d tokens, want 200", len(ids))
	}
	return ids[:200]
}

// opened is an engine, and what closes it.
func opened(t testing.TB, o Options) (e *Engine, end func()) {
	t.Helper()
	e, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return e, func() {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// mustOpen is an engine until the test's end.
func mustOpen(t testing.TB, o Options) *Engine {
	t.Helper()
	e, end := opened(t, o)
	t.Cleanup(end)
	return e
}

// exactWhole asks for every combination of settings, which `make exact` does; else tests of equal bits take a spread of them.
var exactWhole = os.Getenv("TERRACE_EXACT") == "whole"

// hashLengths are the tokens of a prompt and of its answer that hashRun takes: three blocks of keys, or five.
func hashLengths() (prompt, answer int) {
	if exactWhole {
		return 200, 64
	}
	return 120, 24
}

// hashRun answers a prompt with greedy tokens, past end tokens, and returns the logits' hash.
func hashRun(t *testing.T, o Options) Stats {
	t.Helper()
	o.Path, o.Context = tinyMoE, 512
	e, end := opened(t, o)
	defer end()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prompt, answer := hashLengths()
	p := sample.Defaults(e.Model().Config().Vocab)
	p.Temp = 0
	sm, err := sample.New(p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Generate(context.Background(), Request{Prompt: longPrompt(t, e)[:prompt], Max: answer, Sampler: sm, IgnoreEOS: true, HashLogits: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Tokens) != answer || r.Stats.LogitsSHA256 == "" {
		t.Fatalf("%d tokens, hash %q", len(r.Tokens), r.Stats.LogitsSHA256)
	}
	return r.Stats
}

// TestOneHash is the promise: one logits hash for every arena, store, lookahead, thread count and prompt batch, in fast and
// in exact mode each. TERRACE_EXACT=whole runs all 72 and the batches; otherwise a run for each arena, which take turns at the
// rest, and in exact mode a run for the largest and the smallest.
func TestOneHash(t *testing.T) {
	arenas := []ExpertBudget{{Percent: 100}, {Percent: 50}, {Percent: 25}, {Min: true}}
	stores := []string{"uring", "pread", "mmap"}
	if !uringWorks(t) {
		t.Log("io_uring is not available here: its runs are left out")
		stores = stores[1:]
	}
	hashes := map[bool]string{}
	for _, exact := range []bool{false, true} {
		var want string
		runs := 0
		check := func(name string, st Stats) {
			t.Helper()
			runs++
			if want == "" {
				want = st.LogitsSHA256
			}
			if st.LogitsSHA256 != want {
				t.Errorf("exact=%v %s: hash %s, the first run's is %s", exact, name, st.LogitsSHA256, want)
			}
		}
		for ai, a := range arenas {
			for si, store := range stores {
				for ahead := 0; ahead <= 2; ahead++ {
					for threads := 1; threads <= 2; threads++ {
						if !exactWhole && (si != ai%len(stores) || ahead != (2+ai)%3 || threads != 1+ai%2 || exact && ai%3 != 0) {
							continue
						}
						st := hashRun(t, Options{ExpertRAM: a, Store: store, Lookahead: ahead, Threads: threads, Exact: exact})
						check(fmt.Sprintf("arena %+v store %s lookahead %d threads %d", a, store, ahead, threads), st)
						if !strings.HasPrefix(st.Store, store) {
							t.Errorf("store %s was taken, %s asked for", st.Store, store)
						}
						if ai > 0 && st.Misses == 0 && st.HitsInflight == 0 {
							t.Errorf("arena %+v: nothing was read, so nothing was tested", a)
						}
						if (ahead > 0) != (st.Prefetch.Issued > 0) && ai > 0 {
							t.Errorf("lookahead %d, arena %+v: %d guesses read", ahead, a, st.Prefetch.Issued)
						}
					}
				}
			}
		}
		for _, batch := range []int{1, 7, 64, 200} {
			if !exactWhole && exact && batch > 1 && batch != 64 {
				continue
			}
			check(fmt.Sprintf("batch %d", batch), hashRun(t, Options{ExpertRAM: ExpertBudget{Percent: 25}, Lookahead: 2, Threads: 2, Batch: batch, Exact: exact}))
		}
		t.Logf("exact=%v: %d runs, hash %s", exact, runs, want)
		hashes[exact] = want
	}
	if hashes[false] == hashes[true] {
		t.Error("fast and exact mode gave the same hash: one of them was not taken")
	}
	// The hash must be able to differ: another KV type is another result.
	if st := hashRun(t, Options{ExpertRAM: ExpertBudget{Percent: 25}, KeyType: compute.KVF32, ValType: compute.KVF32}); st.LogitsSHA256 == hashes[false] {
		t.Error("a float32 KV cache gave the hash of the float16 one")
	}
}

// uringWorks reports whether this system allows io_uring.
func uringWorks(t *testing.T) bool {
	t.Helper()
	e, err := Open(Options{Path: tinyMoE, Store: "uring", ExpertRAM: ExpertBudget{Percent: 25}})
	if err != nil {
		if !strings.Contains(err.Error(), "uring") {
			t.Fatal(err)
		}
		return false
	}
	e.Close()
	return true
}
