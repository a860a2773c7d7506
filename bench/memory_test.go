package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"terrace/engine"
)

func TestMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limit")
	c := MemoryConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", Lookahead: 2, Threads: 2, RAM: 200 << 20}, Prompt: 16, Decode: 16, Changes: 25, Seed: 1, LimitFile: file}
	r, err := Memory(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Same || r.Hash == "" || r.Changes != 25 || r.Runs < 1 || r.Least >= r.Most || r.Most > 200<<20 || r.Machine.System == "" || r.Rate <= 0 || r.RateFixed <= 0 {
		t.Errorf("report %+v", r)
	}
	if r.LimitsSet < 20 || r.LimitsBusy != 0 || r.LowestLimit != r.Least { // the smallest is drawn in a tenth of the changes
		t.Errorf("limits: %d set, %d refused, lowest %d", r.LimitsSet, r.LimitsBusy, r.LowestLimit)
	}
	text, err := os.ReadFile(file)
	if n, perr := strconv.ParseInt(string(text), 10, 64); err != nil || perr != nil || n < r.Least || n > r.Most {
		t.Errorf("%q in the limit file: %v", text, err)
	}
	if r.Stats.Shrinks+r.Stats.Grows < 15 || r.Stats.RAMBudget < r.Least {
		t.Errorf("stats %+v", r.Stats.Governor)
	}
}

func TestMemoryRefusals(t *testing.T) {
	good := MemoryConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", RAM: 200 << 20}, Prompt: 4, Decode: 4, Changes: 2}
	for _, c := range []struct {
		name, want string
		spoil      func(*MemoryConfig)
	}{
		{"nothing to do", "0 changes", func(c *MemoryConfig) { c.Changes = 0 }},
		{"fixed arena", "fixed expert arena", func(c *MemoryConfig) { c.Engine.ExpertRAM.Min = true }},
		{"short context", "the runs need 8", func(c *MemoryConfig) { c.Engine.Context = 7 }},
		{"no such limit", "nowhere", func(c *MemoryConfig) { c.LimitFile = filepath.Join(t.TempDir(), "nowhere", "limit") }},
	} {
		x := good
		c.spoil(&x)
		if _, err := Memory(context.Background(), x); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Memory(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
