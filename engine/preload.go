package engine

import (
	"context"
	"fmt"
)

// Preload reads every expert, so that nothing is read later. It refuses an arena that cannot hold them all.
func (e *Engine) Preload(ctx context.Context) error {
	if b := e.Budget(); b.Slots < b.Experts {
		return fmt.Errorf("%d experts cannot all stay in %d slots: %w", b.Experts, b.Slots, ErrDoesNotFit)
	}
	var ids []int32
	for layer, experts := range e.model.Experts() {
		ids = ids[:0]
		for i := range experts {
			ids = append(ids, int32(i))
		}
		if len(ids) == 0 {
			continue
		}
		if err := e.preloadLayer(ctx, layer, ids); err != nil {
			return fmt.Errorf("layer %d: %w", layer, err)
		}
	}
	return nil
}

func (e *Engine) preloadLayer(ctx context.Context, layer int, ids []int32) error {
	q, err := e.cache.Begin(layer, ids)
	if err != nil {
		return err
	}
	defer q.Close()
	for q.Left() > 0 {
		l, _, err := q.Next(ctx, true)
		if err != nil {
			return err
		}
		l.Release()
	}
	return nil
}
