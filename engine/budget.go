package engine

import (
	"fmt"

	"terrace/internal/host"
	"terrace/plan"
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

// Budget is where the memory of an engine goes.
type Budget = plan.Budget

// decide sets Arena from what was asked; ArenaMin, ArenaMost and Experts are known. slots is the bytes of an arena with so
// many slots.
func decide(b *Budget, want ExpertBudget, slots func(n int) int64) error {
	if b.Experts == 0 {
		if b.RAM > 0 && b.Fixed() > b.RAM {
			return fmt.Errorf("RAM budget of %d bytes %w: weights, context and runtime take %d bytes", b.RAM, ErrDoesNotFit, b.Fixed())
		}
		return nil
	}
	if err := arenaOf(b, want, slots); err != nil {
		return err
	}
	arena := max(b.Arena, b.ArenaMin)
	if need := b.Fixed() + plan.Mapped(arena); b.RAM > 0 && (need > b.RAM || b.Arena < b.ArenaMin) {
		return fmt.Errorf("RAM budget of %d bytes %w: dense weights %d, context %d, work space %d, runtime %d, prompt cache %d, predictor %d and the expert arena %d bytes make %d bytes",
			b.RAM, ErrDoesNotFit, b.Dense, b.KV, b.Work, b.Runtime, b.Cache, b.Predictor, plan.Mapped(arena), need)
	}
	return nil
}

// arenaOf sets Arena to what was asked for.
func arenaOf(b *Budget, want ExpertBudget, slots func(n int) int64) error {
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
		b.Arena = b.ArenaIn(b.RAM)
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
func fit(b *Budget, s *host.MemorySample, want ExpertBudget) error {
	b.Now = b.RAM
	least, what := b.Least(), "smallest expert arena"
	if want.isSet() { // an arena that was asked for is neither cut nor enlarged
		b.ArenaMost = b.Arena
		least, what = b.Fixed()+plan.Mapped(b.Arena), "expert arena"
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

// AutoRAM is the budget that Options.RAM of 0 would take now: what the machine and this process's control groups leave, less
// a margin.
func AutoRAM() (int64, error) {
	w := host.NewWatch(nil)
	defer w.Close()
	var s host.MemorySample
	if err := w.Read(&s); err != nil {
		return 0, err
	}
	return autoRAM(&s)
}
