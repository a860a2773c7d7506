package engine

import (
	"context"
	"math"
	"slices"
	"testing"

	"terrace/plan"
)

// TestHybridSync: of a model with recurrent layers, a prompt that goes on evaluates what is new, one that parts from the last
// one goes back to a checkpoint, and every answer has the bits of a fresh start.
func TestHybridSync(t *testing.T) {
	ctx := context.Background()
	names := []string{"qwen3next", "lfm2moe", "nemotron_h_moe", "qwen4exp"}
	paths := families(t, names...)
	text := make([]int32, 400)
	for i := range text {
		text[i] = int32(i*i*7+3*i+11) % 256
	}
	other := func(n int, more ...int32) []int32 { return append(slices.Clone(text[:n]), more...) }
	for _, name := range names {
		e := mustOpen(t, Options{Path: paths[name], Context: 512, Batch: 100, Threads: 2, ExpertRAM: ExpertBudget{Percent: 100}})
		if b := e.Budget(); b.Checkpoints < 1 || b.KV < e.model.StateBytes(512, e.opt.KeyType, e.opt.ValType)+int64(b.Checkpoints)*e.model.CheckpointBytes() {
			t.Errorf("%s: a budget of %d bytes for the state with %d checkpoints", name, b.KV, b.Checkpoints)
		}
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			prompt []int32
			most   int // tokens evaluated
		}{
			{text[:250], 250}, {text[:300], 50}, {other(248, 1, 2, 3), 20}, {text[:380], 150}, {other(376, 9), 20}, {other(5, 9, 9, 9), 8}, {text[:120], 120},
		} {
			n, err := s.Sync(ctx, c.prompt)
			if err != nil {
				t.Fatal(err)
			}
			if n > c.most || s.Pos() != len(c.prompt) {
				t.Errorf("%s: %d tokens evaluated for a prompt of %d, want at most %d; position %d", name, n, len(c.prompt), c.most, s.Pos())
			}
			fresh.Reset()
			if _, err := fresh.Sync(ctx, c.prompt); err != nil {
				t.Fatal(err)
			}
			for i, v := range s.Logits() {
				if math.Float32bits(v) != math.Float32bits(fresh.Logits()[i]) {
					t.Fatalf("%s, prompt of %d: logit %d is %v, afresh %v", name, len(c.prompt), i, v, fresh.Logits()[i])
				}
			}
		}
		s.Close()
		fresh.Close()
	}
}

func TestCheckpoints(t *testing.T) {
	for _, c := range []struct {
		bytes, budget int64
		want          int
	}{{0, 1 << 40, 0}, {75 << 20, 8 << 30, 3}, {75 << 20, 1 << 30, 1}, {75 << 20, 1 << 40, 8}, {1, 0, 1}} {
		if got := plan.Checkpoints(c.bytes, c.budget); got != c.want {
			t.Errorf("checkpoints of %d bytes in %d: %d, want %d", c.bytes, c.budget, got, c.want)
		}
	}
}
