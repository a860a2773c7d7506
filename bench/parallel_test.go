package bench

import (
	"context"
	"errors"
	"testing"

	"terrace/engine"
)

// TestParallel: streams that decode together answer as alone, evaluate a common beginning once, and need of the disk what the
// policy needs for the union of their routing: each expert once a pass.
func TestParallel(t *testing.T) {
	c := ParallelConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", Threads: 2, Batch: 64}, Streams: []int{1, 8},
		Arenas: []engine.ExpertBudget{{Percent: 12}, {Percent: 50}}, Prompt: 40, Same: 24, Decode: 24, Rounds: 1}
	r, err := Parallel(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 4 || !r.SameTokens || r.Conditions.DecodeTokens != 24 {
		t.Fatalf("%+v", r)
	}
	for i, x := range r.Cells {
		n := []int{1, 8, 1, 8}[i]
		if x.Streams != n || x.Rate.Median <= 0 || x.Misses == 0 || x.OverReads > 1.02 || x.OverReads < 0.98 || x.BytesRead == 0 {
			t.Errorf("%+v", x)
		}
		if want := int64(24 + 16*n); x.Prompts != want {
			t.Errorf("%d streams evaluated %d tokens of prompts, want %d", n, x.Prompts, want)
		}
	}
	for _, bad := range []ParallelConfig{{}, {Prompt: 1, Decode: 2, Rounds: 1}, {Prompt: 3, Same: 3, Decode: 2, Rounds: 1, Streams: []int{1}, Arenas: c.Arenas}} {
		if _, err := Parallel(context.Background(), bad); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
