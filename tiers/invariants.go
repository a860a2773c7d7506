package tiers

import (
	"fmt"
	"hash/maphash"

	"terrace/internal/invariant"
)

// What a build with the tag "invariants" checks here, under the cache's lock; others do not have these branches.
//
//   - Whenever the lock is left, residency's tables say the same (residency.check).
//   - A slot that nobody may read is poisoned, and so when a read into it begins: nobody wrote into it meanwhile. A read that
//     ended well has overwritten that from one end of each piece to the other.
//   - What has arrived does not change until it leaves: it is looked at whenever it is lent and comes back.

// guards are the checks of a cache, in a build with them.
type guards struct {
	sums map[int32]uint64 // of what slots held when their reads had ended
	seed maphash.Seed
}

// poisoner is told of a slot whose content nobody may read any more; a mover may implement it.
type poisoner interface{ poison(slot int32) }

// broken ends the program: what follows would be built on it.
func broken(format string, a ...any) {
	panic("tiers: an invariant does not hold: " + fmt.Sprintf(format, a...))
}

// spoiled tells the mover of a slot that became empty.
func (v *residency) spoiled(i int32) {
	if p, ok := v.mv.(poisoner); ok && v.slots[i].touched {
		p.poison(i)
	}
}

func (m cacheMover) poison(i int32) {
	delete(m.c.guards.sums, i)
	invariant.Poison(m.c.arena.Slot(int(i)))
}

// untouched says that a slot into which a read is about to begin is as it was left.
func (c *Cache) untouched(i int32) {
	if !invariant.Poisoned(c.arena.Slot(int(i))) {
		broken("slot %d was written after it was freed", i)
	}
}

// arrived says that a read that ended well has filled its slot.
func (c *Cache) arrived(i int32) {
	const ends = 256 // no sense can be made of so much poison in any type
	s := &c.v.slots[i]
	for _, b := range c.views(i, s.layer, s.expert) {
		if n := min(len(b), ends); n == ends && (invariant.Poisoned(b[:n]) || invariant.Poisoned(b[len(b)-n:])) {
			broken("expert %d of layer %d was read into slot %d, but not all of it", s.expert, s.layer, i)
		}
	}
	if c.guards.sums == nil {
		c.guards.sums, c.guards.seed = map[int32]uint64{}, maphash.MakeSeed()
	}
	c.guards.sums[i] = c.sum(i)
}

// sum is one of the bytes of the expert in a slot.
func (c *Cache) sum(i int32) uint64 {
	var h maphash.Hash
	h.SetSeed(c.guards.seed)
	s := &c.v.slots[i]
	for _, b := range c.views(i, s.layer, s.expert) {
		h.Write(b)
	}
	return h.Sum64()
}

// unchanged says, when a lease of a slot goes out and before it comes back, that the slot holds what arrived there.
func (c *Cache) unchanged(it *item) {
	if it.state != itemLeased {
		return
	}
	s := &c.v.slots[it.slot]
	if s.state != slotReady || s.refs < 1 || int(s.layer) != it.req.layer || s.expert != it.expert {
		broken("expert %d of layer %d is lent from slot %d: %+v", it.expert, it.req.layer, it.slot, *s)
	}
	if c.sum(it.slot) != c.guards.sums[it.slot] {
		broken("expert %d of layer %d was changed in slot %d", it.expert, it.req.layer, it.slot)
	}
}

// consistent compares the tables with one another.
func (c *Cache) consistent() {
	if err := c.v.check(); err != nil {
		broken("%v", err)
	}
}
