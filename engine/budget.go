package engine

import (
	"fmt"

	"terrace/internal/host"
	"terrace/model"
	"terrace/tiers"
)

// runtimeReserve is what the Go runtime, the program text and small heap structures take.
const runtimeReserve = 40 << 20

// autoMargin is left to the rest of the machine when the budget is taken from it: a tenth, at least this much.
const autoMargin = 512 << 20

// Budget is where the memory of an engine goes; all figures are bytes.
type Budget struct {
	RAM     int64 // the promise: what the process may hold
	Runtime int64 // Go runtime, tokenizer, metadata
	Dense   int64 // dense weights
	KV      int64 // one sequence's cache
	Work    int64 // activations of one pass
	Arena   int64 // expert slots
	Slot    int64 // one slot, alignment included
	Slots   int
	Experts int // experts in the model
	Min     int // smallest working set, in slots
}

// fixed is everything but the arena.
func (b Budget) fixed() int64 { return b.Runtime + b.Dense + b.KV + b.Work }

// decide sets Slots and Arena from what was asked. auto says that RAM came from the machine.
func (b *Budget) decide(want ExpertBudget) error {
	if b.Experts == 0 {
		if b.RAM > 0 && b.fixed() > b.RAM {
			return fmt.Errorf("RAM budget of %d bytes %w: weights, context and runtime take %d bytes", b.RAM, ErrDoesNotFit, b.fixed())
		}
		return nil
	}
	switch {
	case want.Min:
		b.Slots = b.Min
	case want.Bytes > 0:
		b.Slots = int(min(want.Bytes/b.Slot, int64(b.Experts)))
		if b.Slots < b.Min {
			return fmt.Errorf("expert arena of %d bytes %w: the smallest working set is %d slots of %d bytes, %d bytes",
				want.Bytes, ErrDoesNotFit, b.Min, b.Slot, int64(b.Min)*b.Slot)
		}
	case want.Percent > 0:
		b.Slots = int(want.Percent / 100 * float64(b.Experts))
		if b.Slots < b.Min {
			return fmt.Errorf("expert arena of %g %% %w: that is %d slots of %d, the smallest working set is %d",
				want.Percent, ErrDoesNotFit, b.Slots, b.Experts, b.Min)
		}
	default:
		b.Slots = int(min(max(0, b.RAM-b.fixed())/b.Slot, int64(b.Experts)))
	}
	b.Arena = int64(b.Slots) * b.Slot
	if need := b.fixed() + int64(max(b.Slots, b.Min))*b.Slot; b.RAM > 0 && (need > b.RAM || b.Slots < b.Min) {
		return fmt.Errorf("RAM budget of %d bytes %w: dense weights %d, context %d, work space %d, runtime %d and %d expert slots %d bytes make %d bytes",
			b.RAM, ErrDoesNotFit, b.Dense, b.KV, b.Work, b.Runtime, max(b.Slots, b.Min), int64(max(b.Slots, b.Min))*b.Slot, need)
	}
	return nil
}

// machineRAM is the budget when the user names none: the smaller of what the container allows and what the machine has
// free, less a margin.
func machineRAM() (int64, error) {
	m, err := host.RAM()
	if err != nil {
		return 0, fmt.Errorf("the machine does not tell its memory, give --ram: %w", err)
	}
	avail := m.Available
	if avail == 0 {
		avail = m.Total
	}
	limit, ok, err := host.HostMemoryLimit()
	if err != nil {
		return 0, fmt.Errorf("the memory limit of the control group, give --ram: %w", err)
	}
	if ok {
		avail = min(avail, limit)
	}
	return max(avail-max(avail/10, autoMargin), avail/2), nil
}

// minSlots is the smallest arena that cannot stall: tiers' rule, but never more than there are experts.
func minSlots(topK, lookahead, experts int) int {
	return min(tiers.MinSlots(topK, lookahead, topK), experts)
}

// workBytes is what activations of one pass of rows tokens take: the residual and its copies, queries, keys, values, router
// scores, and the expert outputs with their intermediate rows. Quantised copies add a third.
func workBytes(c model.Config, rows int) int64 {
	perRow := 6*c.Embd + 2*c.Heads*c.KeyDim + 2*c.KVHeads*c.KeyDim + 6*c.Experts + c.TopK*(c.Embd+3*c.ExpertFF) + 2*c.FF
	return int64(rows)*int64(perRow)*4*4/3 + 16<<20
}

// guessCap is how many experts of one layer may be asked for ahead: top-k for a token, and for a batch half of what the
// slots leave beside two layers at work, shared by the layers that are guessed at once.
func guessCap(slots, topK, lookahead, experts int) int {
	return min(max(topK, (slots-2*topK)/(lookahead+1)/2), experts)
}
