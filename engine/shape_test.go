package engine

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/internal/tinymodel"
	"terrace/plan"
)

// shapeOf is the shape of the model that options open.
func shapeOf(t *testing.T, o Options) plan.Shape {
	t.Helper()
	f, err := gguf.Open(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ShapeOf(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestShapeAgrees opens a model of each architecture under budgets: every byte is where the plan has it, and a byte less
// than the plan's least is refused.
func TestShapeAgrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	for name, path := range families(t) {
		o := Options{Path: path, Context: 64 + rng.IntN(193), Batch: 16 + rng.IntN(64), Lookahead: rng.IntN(3), Threads: 1}
		if rng.IntN(2) == 0 {
			o.Slots, o.CacheRAM = 2+rng.IntN(3), CacheAuto
		}
		if rng.IntN(2) == 0 {
			o.KeyType, o.ValType = compute.KVF32, compute.KVF32
		}
		s := shapeOf(t, o)
		least := s.Least()
		for i := range 3 {
			o.RAM = least + int64(i)*(s.Fixed.ArenaMost-s.Fixed.ArenaMin)/2
			want, fits := s.Budget(o.RAM)
			e := mustOpen(t, o)
			got := e.Budget()
			e.Close()
			if !fits || got != want {
				t.Errorf("%s with %d bytes: engine %+v, plan %+v (fits %v)", name, o.RAM, got, want, fits)
			}
		}
		o.RAM = least - 1
		if e, err := Open(o); !errors.Is(err, ErrDoesNotFit) {
			t.Errorf("%s with a byte less than the least, %d: %v", name, o.RAM, err)
			e.Close()
		}
		if _, fits := s.Budget(least - 1); fits {
			t.Errorf("%s: the plan says that %d bytes fit, and that %d are the least", name, least-1, least)
		}
	}
}

// TestPlanKept runs models under thirty random budgets that a plan calls possible: they start, with the slots planned, and
// no process ever held more than its budget.
func TestPlanKept(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector keeps shadows of all memory")
	}
	if r, err := host.RSS(); err != nil || r.Peak == 0 {
		t.Skip("this system does not tell the peak: ", err)
	}
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 3, Hidden: 512, Heads: 8, KVHeads: 4, HeadDim: 64, Experts: 32, TopK: 4, ExpertFFN: 256, Context: 2048,
		Embd: gguf.Q8_0, Output: gguf.Q8_0, Attn: gguf.Q8_0, Gate: gguf.Q8_0, Up: gguf.Q8_0, Down: gguf.Q8_0})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(8, 4))
	for i := range 30 {
		o := Options{Path: tinyMoE, Context: 64 << rng.IntN(5), Lookahead: rng.IntN(3), Batch: 64 + rng.IntN(449)}
		if i%2 == 1 {
			o.Path = path
		}
		s := shapeOf(t, o)
		least := s.Least()
		o.RAM = least + rng.Int64N(plan.Mapped(s.Fixed.ArenaMost)*5/4-plan.Mapped(s.Fixed.ArenaMin))
		want, _ := s.Budget(o.RAM)
		r := inChild(t, childRun{Options: o, Prompt: min(96, o.Context/2), Answer: 4})
		if r.Err != "" {
			t.Fatalf("%s with %d bytes, the plan's least is %d: %s", filepath.Base(o.Path), o.RAM, least, r.Err)
		}
		if r.RSS.Peak > o.RAM || r.Budget.Slots != want.Slots {
			t.Errorf("%s: %d bytes held of %d, %d slots, planned %d", filepath.Base(o.Path), r.RSS.Peak, o.RAM, r.Budget.Slots, want.Slots)
		}
	}
}
