package engine

import (
	"fmt"

	"terrace/internal/host"
)

// runtimeReserve is what the Go runtime, the program text and small heap structures take.
const runtimeReserve = 40 << 20

// outsideGo is the part of it that the Go runtime does not count as its own: program text and data, stacks of threads,
// rings and other memory of the kernel for us.
const outsideGo = 16 << 20

// autoMargin is left to the rest of the machine or container when the budget is taken from it: a twentieth, since kernels
// begin to reclaim and to swap at one to three per cent, and at least this much, which a shell, a browser tab and the
// kernel's own tables want now and then; never more than a quarter of a small container.
const autoMargin = 256 << 20

// Budget is where the memory of an engine goes; all figures but the counts at the end are bytes.
type Budget struct {
	RAM       int64 // the promise: what the process may hold
	Now       int64 // what of it may be used now; less than RAM while the machine or its container offers less
	Runtime   int64 // Go runtime, tokenizer, metadata, page tables of all but the arena
	Dense     int64 // dense weights
	KV        int64 // one sequence: caches and what else layers remember
	Table     int64 // pages of a table of rows that stays on disk
	Work      int64 // activations of one pass
	Predictor int64 // matrices that guess experts
	Arena     int64 // expert slots, alignment included
	ArenaMin  int64 // the smallest working set
	ArenaMost int64 // a slot for every expert, or what the user fixed
	Slots     int   // experts that the arena holds
	Experts   int   // experts in the model

	Checkpoints int // of a sequence's recurrent state
}

// fixed is everything but the arena.
func (b Budget) fixed() int64 { return b.Runtime + b.Dense + b.KV + b.Table + b.Work + b.Predictor }

// Least is the smallest budget that this model and context can have.
func (b Budget) Least() int64 { return b.fixed() + mapped(b.ArenaMin) }

// Full is the budget from which on more is of no use: every expert has a slot.
func (b Budget) Full() int64 { return b.fixed() + mapped(b.ArenaMost) }

// pageTables is what the kernel takes to map n bytes: eight for each 4 KiB page, which it sets aside for huge pages too.
func pageTables(n int64) int64 { return (n + 511) / 512 }

// mapped is n bytes with their page tables.
func mapped(n int64) int64 { return n + pageTables(n) }

// arenaIn is the largest arena that a budget leaves room for; it may be too small to work.
func (b Budget) arenaIn(budget int64) int64 {
	room := max(0, budget-b.fixed())
	return min(room/513*512+room%513*512/513, b.ArenaMost) // mapped(it) is room again
}

// decide sets Arena from what was asked; ArenaMin, ArenaMost and Experts are known. slots is the bytes of an arena with so
// many slots.
func (b *Budget) decide(want ExpertBudget, slots func(n int) int64) error {
	if b.Experts == 0 {
		if b.RAM > 0 && b.fixed() > b.RAM {
			return fmt.Errorf("RAM budget of %d bytes %w: weights, context and runtime take %d bytes", b.RAM, ErrDoesNotFit, b.fixed())
		}
		return nil
	}
	if err := b.arenaOf(want, slots); err != nil {
		return err
	}
	arena := max(b.Arena, b.ArenaMin)
	if need := b.fixed() + mapped(arena); b.RAM > 0 && (need > b.RAM || b.Arena < b.ArenaMin) {
		return fmt.Errorf("RAM budget of %d bytes %w: dense weights %d, context %d, work space %d, runtime %d, predictor %d and the expert arena %d bytes make %d bytes",
			b.RAM, ErrDoesNotFit, b.Dense, b.KV, b.Work, b.Runtime, b.Predictor, mapped(arena), need)
	}
	return nil
}

// arenaOf sets Arena to what was asked for.
func (b *Budget) arenaOf(want ExpertBudget, slots func(n int) int64) error {
	switch {
	case want.Min:
		b.Arena = b.ArenaMin
	case want.Bytes > 0:
		b.Arena = min(want.Bytes, b.ArenaMost)
		if b.Arena < b.ArenaMin {
			return fmt.Errorf("expert arena of %d bytes %w: the smallest working set is %d bytes", want.Bytes, ErrDoesNotFit, b.ArenaMin)
		}
	case want.Percent > 0:
		n := int(want.Percent / 100 * float64(b.Experts))
		b.Arena = slots(n)
		if b.Arena < b.ArenaMin {
			least := (b.ArenaMin*int64(b.Experts) + b.ArenaMost - 1) / b.ArenaMost
			return fmt.Errorf("expert arena of %g %% %w: that is %d slots of %d in %d bytes, the smallest working set takes about %d slots, %d bytes",
				want.Percent, ErrDoesNotFit, n, b.Experts, b.Arena, least, b.ArenaMin)
		}
	default:
		b.Arena = b.arenaIn(b.RAM)
	}
	return nil
}

// autoRAM is the budget when the user names none: what the process holds already and what is left to it, by the smallest
// limit of its control groups and by the machine, less a margin.
func autoRAM(s *host.MemorySample) (int64, error) {
	offer, _, ok := offered(s)
	if !ok {
		return 0, fmt.Errorf("the machine does not tell its memory, give --ram: %w", host.ErrUnknown)
	}
	return offer - min(max(offer/20, autoMargin), offer/4), nil
}

// fit sets Now from what the machine offers at the moment. A promise beyond it stands, but is not used up: a control
// group's limit would have the kernel kill the process. It refuses only where that limit cannot hold the smallest
// working set.
func (b *Budget) fit(s *host.MemorySample, want ExpertBudget) error {
	b.Now = b.RAM
	least, what := b.Least(), "smallest expert arena"
	if want.isSet() { // an arena that was asked for is neither cut nor enlarged
		b.ArenaMost = b.Arena
		least, what = b.fixed()+mapped(b.Arena), "expert arena"
	}
	offer, why, ok := offered(s)
	if !ok {
		return nil
	}
	if why == reasonLimit && least > offer {
		return fmt.Errorf("RAM budget of %d bytes %w: with the %s it takes %d bytes, the memory limit of %d bytes of the control group leaves %d",
			b.RAM, ErrDoesNotFit, what, least, s.Limit, offer)
	}
	b.Now = max(min(b.RAM, offer-guard(offer)), least)
	return nil
}

// guessCap is how many experts of one layer may be asked for ahead: top-k for a token, and for a batch half of what the
// slots leave beside two layers at work, shared by the layers that are guessed at once.
func guessCap(slots, topK, lookahead, experts int) int {
	return min(max(topK, (slots-2*topK)/(lookahead+1)/2), experts)
}
