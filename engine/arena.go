package engine

import (
	"context"
	"fmt"
	"math"
)

// SetExpertRAM changes the size of an expert arena that was fixed when the engine was opened, to at most what it was then.
// It waits for nothing; no result depends on it.
func (e *Engine) SetExpertRAM(want ExpertBudget) error {
	if e.cache == nil || !e.opt.ExpertRAM.isSet() {
		return fmt.Errorf("%w: the engine was opened without a fixed expert arena", ErrUsage)
	}
	bytes, err := e.ArenaBytes(want)
	if err != nil {
		return err
	}
	if bytes > e.budget.ArenaMost {
		return fmt.Errorf("expert arena of %d bytes %w: the engine was opened with %d", bytes, ErrDoesNotFit, e.budget.ArenaMost)
	}
	e.cache.Resize(bytes)
	return nil
}

// ArenaBytes is the size of an arena that was asked for; it refuses one below the smallest working set.
func (e *Engine) ArenaBytes(want ExpertBudget) (int64, error) {
	b := e.budget
	b.ArenaMost = e.cache.MaxBytes()
	if err := arenaOf(&b, want, e.slotBytes); err != nil {
		return 0, err
	}
	return b.Arena, nil
}

// Residents lists for each layer the experts that are in RAM.
func (e *Engine) Residents() [][]int32 { return e.cache.Residents() }

// Restore makes the cache hold exactly these experts, so that measurements can begin alike. No session may be at work.
func (e *Engine) Restore(ctx context.Context, experts [][]int32) error {
	return e.cache.Restore(ctx, experts)
}

// Fill reads experts, as many of each layer as the arena can hold of all, those that are there already included.
func (e *Engine) Fill(ctx context.Context) error {
	target, _ := e.cache.Arena()
	share := float64(target) / float64(e.cache.MaxBytes())
	here := e.cache.Residents()
	for l, layer := range e.table {
		most := int(math.Floor(share * float64(len(layer))))
		held := make([]bool, len(layer))
		for _, x := range here[l] {
			held[x] = true
		}
		here[l] = here[l][:min(len(here[l]), most)]
		for x := 0; x < len(layer) && len(here[l]) < most; x++ {
			if !held[x] {
				here[l] = append(here[l], int32(x))
			}
		}
	}
	return e.cache.Restore(ctx, here)
}
