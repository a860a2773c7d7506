package tiers

import (
	"context"
	"fmt"
	"time"
)

// Residents lists for each layer the experts that are whole in RAM, rising.
func (c *Cache) Residents() [][]int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([][]int32, len(c.v.where))
	for l, slots := range c.v.where {
		for e, i := range slots {
			if i >= 0 && c.v.slots[i].state == slotReady {
				out[l] = append(out[l], int32(e))
			}
		}
	}
	return out
}

// restoreLook is the time between two looks at reads under way.
const restoreLook = 100 * time.Microsecond

// Restore makes the cache hold exactly the given experts of each layer, as Residents lists them, so that measurements can
// begin alike: others leave, absent ones are read, and it waits for them. No use is counted; guesses that nobody used yet
// end as wasted. It is for moments in which nobody else uses the cache: it refuses while leases are out or requests wait,
// and lists that do not fit.
func (c *Cache) Restore(ctx context.Context, experts [][]int32) error {
	if err := c.drained(ctx); err != nil {
		return err
	}
	if err := c.restore(experts); err != nil {
		return err
	}
	if err := c.drained(ctx); err != nil {
		return err
	}
	for l, list := range experts {
		for _, e := range list {
			if c.Contains(l, int(e)) != Resident {
				return fmt.Errorf("expert cache: expert %d of layer %d could not be read back", e, l)
			}
		}
	}
	return nil
}

// drained waits until no read is under way.
func (c *Cache) drained(ctx context.Context) error {
	for c.Pending() > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.store.Poll()
		time.Sleep(restoreLook)
	}
	return nil
}

func (c *Cache) restore(experts [][]int32) error {
	c.mu.Lock()
	defer c.unlock()
	v := c.v
	if c.closed {
		return fmt.Errorf("expert cache: %w", ErrClosed)
	}
	if v.leases > 0 || v.waiting.head != nil || v.streamer != nil || v.pending > 0 {
		return fmt.Errorf("expert cache: in use, with %d leases out and %d bytes being read: it cannot be restored", v.leases, v.pending)
	}
	if len(experts) > len(v.where) {
		return fmt.Errorf("expert cache: experts of %d layers to be restored, there are %d", len(experts), len(v.where))
	}
	want := int64(0)
	for l, list := range experts {
		if err := c.valid(l, list); err != nil {
			return err
		}
		want += int64(len(list)) * v.layer(l)
	}
	if want > v.room.target {
		return fmt.Errorf("expert cache: experts of %d bytes to be restored in an arena of %d", want, v.room.target)
	}
	for l := range v.where {
		v.marked++
		if l < len(experts) {
			for _, e := range experts[l] {
				v.mark[e] = v.marked
			}
		}
		for e, i := range v.where[l] {
			if i < 0 {
				continue
			}
			s := &v.slots[i]
			if v.mark[e] == v.marked {
				if s.issued {
					s.issued = false
					v.n.wasted++
					v.n.wastedBytes += v.size[l][e]
				}
				v.setGuess(s, false)
				v.refresh(i)
				continue
			}
			if s.pinned {
				continue
			}
			v.evict(i)
			v.putFree(i)
		}
	}
	for l, list := range experts {
		for _, e := range list {
			if v.where[l][e] >= 0 {
				continue
			}
			i := v.takeFree(v.classOf[l])
			if i < 0 {
				return fmt.Errorf("expert cache: no slot left for expert %d of layer %d", e, l)
			}
			v.load(i, l, int(e), Demand)
		}
	}
	return nil
}
