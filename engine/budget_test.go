package engine

import (
	"errors"
	"strings"
	"testing"

	"terrace/internal/tinymodel"
	"terrace/plan"
)

func TestBudgetDecide(t *testing.T) {
	base := Budget{Runtime: 100, Dense: 1000, KV: 200, Work: 50, ArenaMin: 160, ArenaMost: 640, Experts: 64}
	slots := func(n int) int64 { return int64(n) * 10 }
	for _, c := range []struct {
		name  string
		ram   int64
		want  ExpertBudget
		arena int64
		err   string
	}{
		{"all fit", 5000, ExpertBudget{}, 640, ""},
		{"what is left", 1350 + 300, ExpertBudget{}, 299, ""}, // and a byte for page tables
		{"exactly the smallest", 1350 + 161, ExpertBudget{}, 160, ""},
		{"one byte less", 1350 + 160, ExpertBudget{}, 0, "make 1511 bytes"},
		{"dense alone too large", 900, ExpertBudget{}, 0, "does not fit"},
		{"min", 0, ExpertBudget{Min: true}, 160, ""},
		{"percent", 0, ExpertBudget{Percent: 50}, 320, ""},
		{"percent too small", 0, ExpertBudget{Percent: 20}, 0, "12 slots of 64 in 120 bytes, the smallest working set takes about 16 slots, 160 bytes"},
		{"bytes", 0, ExpertBudget{Bytes: 255}, 255, ""},
		{"bytes too small", 0, ExpertBudget{Bytes: 159}, 0, "159 bytes does not fit: the smallest working set is 160 bytes"},
		{"more bytes than experts", 0, ExpertBudget{Bytes: 1 << 30}, 640, ""},
		{"arena and budget disagree", 1500, ExpertBudget{Percent: 100}, 0, "1500 bytes"},
	} {
		b := base
		b.RAM = c.ram
		err := decide(&b, c.want, slots)
		if c.err != "" {
			if err == nil || !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want one with %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil || b.Arena != c.arena {
			t.Errorf("%s: arena of %d bytes, error %v; want %d", c.name, b.Arena, err, c.arena)
		}
		if c.ram > 0 && b.Fixed()+plan.Mapped(b.Arena) > c.ram {
			t.Errorf("%s: %d bytes planned of %d", c.name, b.Fixed()+plan.Mapped(b.Arena), c.ram)
		}
	}
}

// TestArenaBeyondTheMachine: who fixes the arena alone has not promised away the machine. Here the context asks for 824 GB.
func TestArenaBeyondTheMachine(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Context: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, arena := range []ExpertBudget{{Min: true}, {Percent: 100}, {Bytes: 1 << 40}} {
		e, err := Open(Options{Path: path, Context: 1<<31 - 1, ExpertRAM: arena})
		if !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), "context 824633720448") {
			t.Errorf("%+v: %v", arena, err)
		}
		if err == nil {
			e.Close()
		}
	}
}
