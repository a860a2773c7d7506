package tiers

import "slices"

// Room: slots of several sizes within one target of bytes.
//
// Every expert has addresses for a slot in the arena, so a slot of any size can be had anywhere; what is scarce is memory.
// A slot is live when it may hold memory, dead when its memory is with the system. The live ones of all sizes together
// take no more than the target, and memory is given back before other memory is taken for it.
//
// A slot changes its size by dying: one of another size is retired and one of the size needed revived. That costs the
// page faults of a whole slot, so it is done with a free slot, where there is no slot of the own size to be had, and
// else only at every tradeEvery-th eviction if the lowest score of all is in a slot of another size. The sizes' shares
// follow the scores all the same, only later.
//
// A lowered target is reached as fast as slots become idle: first free ones, then by score, then those that a guess
// protects, then guesses whose reads have not begun. What is leased, wanted, pinned or being read is waited for. Since
// the target is never below the smallest working set, nobody waits for ever.

// tradeEvery is how many evictions stay within a size for one that may cross. A crossing costs about a millisecond for an
// expert of 2.6 MB, as much as reading it.
const tradeEvery = 8

// trimStep is how many slots are retired under one hold of the cache's lock: a fraction of a millisecond each.
const trimStep = 8

// rooms counts the bytes of slots by what they do.
type rooms struct {
	target int64 // live may not grow beyond
	live   int64
	free   int64 // live and empty

	idle      int64 // evictable
	idleGuess int64 // of ready slots that only a guess protects
	guessed   int64 // of all slots that a guess protects
	pinned    int64

	lists []slotLists // by class
	since int         // evictions since the last that crossed sizes
}

// slotLists are the slots of one class that hold nothing.
type slotLists struct {
	live int32
	free []int32 // live; the last is used next
	dead []int32 // the last is revived next
}

func (v *residency) bytesOf(s *slot) int64 { return v.classes[s.class].bytes }

// openRoom makes the lists and the first live slots.
func (v *residency) openRoom(target int64) {
	v.room.lists = make([]slotLists, len(v.classes))
	for c := range v.classes {
		k, l := &v.classes[c], &v.room.lists[c]
		l.free, l.dead = make([]int32, 0, k.count), make([]int32, k.count)
		for i := range l.dead {
			l.dead[i] = k.first + k.count - 1 - int32(i)
			v.slots[l.dead[i]].class = int32(c)
		}
	}
	v.room.target = target
	v.fill()
}

// fill revives slots while the target allows, of the class that has the smallest part of its slots.
func (v *residency) fill() {
	for {
		best := -1
		for c := range v.classes {
			k, l := &v.classes[c], &v.room.lists[c]
			if len(l.dead) == 0 || v.room.live+k.bytes > v.room.target {
				continue
			}
			if best < 0 || int64(l.live)*int64(v.classes[best].count) < int64(v.room.lists[best].live)*int64(k.count) {
				best = c
			}
		}
		if best < 0 {
			break
		}
		v.putFree(v.revive(int32(best)))
	}
	for c := range v.room.lists { // lowest numbers first: they are neighbours
		slices.Sort(v.room.lists[c].free)
		slices.Reverse(v.room.lists[c].free)
	}
}

// revive makes a dead slot of a class live; the caller knows that the target allows it.
func (v *residency) revive(c int32) int32 {
	l := &v.room.lists[c]
	i := l.dead[len(l.dead)-1]
	l.dead = l.dead[:len(l.dead)-1]
	l.live++
	v.room.live += v.classes[c].bytes
	v.slots[i].state = slotEmpty
	return i
}

// retire gives the memory of an empty slot, which is in no list, back to the system.
func (v *residency) retire(i int32) {
	s := &v.slots[i]
	if s.state != slotEmpty {
		panic("tiers: a slot was to be retired that is not empty")
	}
	if s.touched {
		s.touched = false
		if v.mem != nil {
			v.mem.detach(i)
		}
	}
	s.state = slotDead
	l := &v.room.lists[s.class]
	l.dead = append(l.dead, i)
	l.live--
	v.room.live -= v.bytesOf(s)
}

func (v *residency) putFree(i int32) {
	c := v.slots[i].class
	v.room.lists[c].free = append(v.room.lists[c].free, i)
	v.room.free += v.classes[c].bytes
}

// popFree takes a free slot of a class, or -1.
func (v *residency) popFree(c int32) int32 {
	l := &v.room.lists[c]
	n := len(l.free)
	if n == 0 {
		return -1
	}
	i := l.free[n-1]
	l.free = l.free[:n-1]
	v.room.free -= v.classes[c].bytes
	return i
}

// retireFree retires a free slot, of the largest size that has one.
func (v *residency) retireFree() {
	for c := range v.classes {
		if i := v.popFree(int32(c)); i >= 0 {
			v.retire(i)
			return
		}
	}
	panic("tiers: no free slot although there are free bytes")
}

// liveSlots is the number of slots that are live.
func (v *residency) liveSlots() int {
	n := 0
	for c := range v.room.lists {
		n += int(v.room.lists[c].live)
	}
	return n
}

// slack is what may be revived, less than nothing while a lowered target is not reached.
func (v *residency) slack() int64 { return v.room.target - v.room.live }

// couldHave is the bytes that a demand could have now.
func (v *residency) couldHave() int64 {
	return v.slack() + v.room.free + v.room.idle + v.room.idleGuess
}

// makeRoom reaches so many bytes for demands, if need be by taking back guesses that have not begun.
func (v *residency) makeRoom(bytes int64) bool {
	for v.couldHave() < bytes {
		if !v.cancelFarthest() {
			return false
		}
	}
	return true
}

// cancelFarthest takes back the guess farthest ahead whose read has not begun.
func (v *residency) cancelFarthest() bool {
	if v.guesses == 0 {
		return false
	}
	i := v.farthest(func(s *slot) bool {
		return s.state == slotLoading && s.guess && s.wants == 0 && !s.pinned && !v.mv.begun(v.where[s.layer][s.expert])
	})
	return i >= 0 && v.cancelGuess(i)
}

// takeForDemand gives a slot of a class and forgets who was in it: a free one, else the lowest-scored idle one, else a
// ready guess. The caller knows that there is room.
func (v *residency) takeForDemand(c int32) int32 {
	for {
		if i := v.takeUnprotected(c); i >= 0 {
			return i
		}
		i := v.farthest(func(s *slot) bool { return s.idleGuess })
		if i < 0 {
			panic("tiers: no slot for a demand although there was room")
		}
		v.evict(i)
		if v.slots[i].class == c {
			return i
		}
		v.retire(i)
	}
}

// takeUnprotected gives a slot of a class that was free or idle, or -1.
func (v *residency) takeUnprotected(c int32) int32 {
	bytes := v.classes[c].bytes
	if v.slack()+v.room.free+v.room.idle < bytes {
		return -1
	}
	if i := v.popFree(c); i >= 0 {
		return i
	}
	for {
		if v.slack()+v.room.free >= bytes {
			for v.slack() < bytes {
				v.retireFree()
			}
			return v.revive(c)
		}
		own, any := v.victim(c)
		if own >= 0 && (own == any || v.room.since < tradeEvery) {
			v.room.since++
			v.evict(own)
			return own
		}
		v.room.since = 0
		v.evict(any)
		if v.slots[any].class == c {
			return any
		}
		v.retire(any)
	}
}

// setTarget changes the bytes that live slots may have, not below the smallest working set nor above a slot for every
// expert. Pins that would leave too little are undone, the lowest scores first.
func (v *residency) setTarget(bytes int64) {
	v.room.target = min(max(bytes, v.least), v.bytes)
	for v.room.pinned > v.room.target-v.least {
		low := int32(-1)
		for i := range v.slots {
			if v.slots[i].pinned && (low < 0 || v.scoreOf(int32(i)) < v.scoreOf(low)) {
				low = int32(i)
			}
		}
		s := &v.slots[low]
		v.setPin(s, false)
		v.refresh(low)
		if s.state == slotLoading && s.wants == 0 && !s.guess && v.mv.cancel(low) {
			v.dropRead(low)
		}
	}
	v.fill()
	v.advance()
}

// over says that live slots take more than the target and that some of them could be retired now.
func (v *residency) over() bool {
	return v.room.live > v.room.target && v.room.free+v.room.idle+v.room.idleGuess > 0
}

// trim retires up to limit slots if the live ones take more than the target.
func (v *residency) trim(limit int) {
	for ; limit > 0 && v.room.live > v.room.target; limit-- {
		switch {
		case v.room.free > 0:
			v.retireFree()
			continue
		case v.idle > 0:
			_, i := v.victim(0)
			v.evict(i)
			v.retire(i)
		case v.idleGuesses > 0:
			i := v.farthest(func(s *slot) bool { return s.idleGuess })
			v.evict(i)
			v.retire(i)
		default:
			if !v.cancelFarthest() {
				return
			}
		}
	}
}
