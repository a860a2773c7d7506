package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"terrace/internal/testfile"
)

// fixture unpacks a golden model and answers its file and the long prompt.
func fixture(t *testing.T, name string) (path string, long []int32) {
	t.Helper()
	dir := filepath.Join("..", "testdata", "golden", name)
	path = filepath.Join(t.TempDir(), name+".gguf")
	if err := os.WriteFile(path, testfile.Gunzip(t, filepath.Join(dir, "model.drawn.gz")), 0o600); err != nil {
		t.Fatal(err)
	}
	var g struct {
		Long struct{ Tokens []int32 }
	}
	if err := json.Unmarshal(testfile.Gunzip(t, filepath.Join(dir, "golden.json.gz")), &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Long.Tokens) != 300 {
		t.Fatalf("%d tokens in the long prompt of %s, want 300", len(g.Long.Tokens), name)
	}
	return path, g.Long.Tokens
}

// logitsHash evaluates all but the last eight tokens in batches and those one by one, and hashes the logits of the last nine.
func logitsHash(t *testing.T, o Options, tokens []int32) (hash string, e *Engine) {
	t.Helper()
	e = mustOpen(t, o)
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := sha256.New()
	add := func() {
		b := make([]byte, 4*len(s.Logits()))
		for i, v := range s.Logits() {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		}
		h.Write(b)
	}
	n := len(tokens) - 8
	if _, err := s.Sync(context.Background(), tokens[:n]); err != nil {
		t.Fatal(err)
	}
	add()
	for _, id := range tokens[n:] {
		if err := s.Eval(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		add()
	}
	return fmt.Sprintf("%x", h.Sum(nil)), e
}

// TestStreamsOneHash is the promise of one hash for a model with residual streams, recurrent layers, picked blocks and a table
// that stays on disk: whatever the batches, the arena, the lookahead, the threads and the cache of the table.
func TestStreamsOneHash(t *testing.T) {
	for _, name := range []string{"qwen4exp", "qwen4exp-q4k"} {
		path, long := fixture(t, name)
		for _, exact := range []bool{false, true} {
			want := ""
			for _, o := range []Options{
				{Batch: 300, ExpertRAM: ExpertBudget{Percent: 100}, Threads: 1},
				{Batch: 7, ExpertRAM: ExpertBudget{Percent: 100}, Threads: 2},
				{Batch: 64, ExpertRAM: ExpertBudget{Percent: 50}, Threads: 2},
				{Batch: 300, ExpertRAM: ExpertBudget{Min: true}, Threads: 2, Lookahead: 2}, // at most a quarter, but for two layers' top-k
				{Batch: 1, ExpertRAM: ExpertBudget{Min: true}, Threads: 2},
			} {
				if raceEnabled && o.Batch < 64 || !exactWhole && exact && o.Batch < 300 {
					continue
				}
				o.Path, o.Context, o.Exact = path, 320, exact
				hash, e := logitsHash(t, o, long)
				if want == "" {
					want = hash
				}
				if hash != want {
					t.Errorf("%s, exact %t, batch %d, arena %+v, lookahead %d: hash %s, the first run's is %s", name, exact, o.Batch, o.ExpertRAM, o.Lookahead, hash, want)
				}
				if st := e.rows.Stats(); st.Rows != 300*8 || st.Reads == 0 {
					t.Errorf("%s: the table was asked for %d rows in %d reads, want 2400 rows", name, st.Rows, st.Reads)
				}
			}
			t.Logf("%s, exact %t: %s", name, exact, want)
		}
	}
}

// TestStreamsDecodeAllocatesNothing decodes past the point where blocks are picked, through a starving cache.
func TestStreamsDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	path, long := fixture(t, "qwen4exp-q4k")
	for _, ahead := range []int{0, 2} {
		e := mustOpen(t, Options{Path: path, Context: 320, Store: "pread", Lookahead: ahead, ExpertRAM: ExpertBudget{Min: true}, Threads: 2})
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		if _, err := s.Sync(ctx, long[:200]); err != nil {
			t.Fatal(err)
		}
		at := 200
		step := func() {
			if err := s.Eval(ctx, long[at]); err != nil {
				t.Fatal(err)
			}
			at++
		}
		for range 20 {
			step()
		}
		if n := stepAllocs(t, step); n != 0 {
			t.Errorf("lookahead %d: a decode step allocates %v times", ahead, n)
		}
		s.Close()
	}
}
