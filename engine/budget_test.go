package engine

import (
	"errors"
	"strings"
	"testing"

	"terrace/internal/tinymodel"
)

func TestBudgetDecide(t *testing.T) {
	base := Budget{Runtime: 100, Dense: 1000, KV: 200, Work: 50, Slot: 10, Experts: 64, Min: 16}
	for _, c := range []struct {
		name  string
		ram   int64
		want  ExpertBudget
		slots int
		err   string
	}{
		{"all fit", 5000, ExpertBudget{}, 64, ""},
		{"what is left", 1350 + 300, ExpertBudget{}, 30, ""},
		{"exactly the smallest", 1350 + 160, ExpertBudget{}, 16, ""},
		{"one byte less", 1350 + 159, ExpertBudget{}, 0, "make 1510 bytes"},
		{"dense alone too large", 900, ExpertBudget{}, 0, "does not fit"},
		{"min", 0, ExpertBudget{Min: true}, 16, ""},
		{"percent", 0, ExpertBudget{Percent: 50}, 32, ""},
		{"percent too small", 0, ExpertBudget{Percent: 20}, 0, "12 slots of 64, the smallest working set is 16"},
		{"bytes", 0, ExpertBudget{Bytes: 255}, 25, ""},
		{"bytes too small", 0, ExpertBudget{Bytes: 159}, 0, "159 bytes does not fit: the smallest working set is 16 slots of 10 bytes, 160 bytes"},
		{"more bytes than experts", 0, ExpertBudget{Bytes: 1 << 30}, 64, ""},
		{"arena and budget disagree", 1500, ExpertBudget{Percent: 100}, 0, "1500 bytes"},
	} {
		b := base
		b.RAM = c.ram
		err := b.decide(c.want)
		if c.err != "" {
			if err == nil || !errors.Is(err, ErrDoesNotFit) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want one with %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil || b.Slots != c.slots || b.Arena != int64(c.slots)*10 {
			t.Errorf("%s: %d slots, %d bytes, error %v; want %d slots", c.name, b.Slots, b.Arena, err, c.slots)
		}
		if c.ram > 0 && b.fixed()+b.Arena > c.ram {
			t.Errorf("%s: %d bytes planned of %d", c.name, b.fixed()+b.Arena, c.ram)
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
