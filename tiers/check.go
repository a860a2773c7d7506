package tiers

import "fmt"

// check compares residency's tables with one another.
func (v *residency) check() error {
	empty, dead, ready, idle, idleGuesses, guesses, pins, leases := 0, 0, 0, 0, 0, 0, 0, 0
	var room rooms
	for i := range v.slots {
		s := &v.slots[i]
		if s.state == slotDead {
			dead++
			if s.touched {
				return fmt.Errorf("dead slot %d has memory", i)
			}
		} else {
			room.live += v.bytesOf(s)
		}
		if s.state == slotReady {
			ready++
		}
		if s.guess {
			room.guessed += v.bytesOf(s)
		}
		if s.pinned {
			room.pinned += v.bytesOf(s)
		}
		if s.guess {
			guesses++
		}
		if s.pinned {
			pins++
		}
		leases += int(s.refs)
		if s.state <= slotEmpty {
			if s.state == slotEmpty {
				empty++
				room.free += v.bytesOf(s)
			}
			if s.refs != 0 || s.wants != 0 || s.guess || s.issued || s.pinned || s.heapAt >= 0 || s.waiters != nil {
				return fmt.Errorf("empty slot %d: %+v", i, s)
			}
			continue
		}
		if v.where[s.layer][s.expert] != int32(i) {
			return fmt.Errorf("slot %d holds expert %d of layer %d, which is said to be in %d", i, s.expert, s.layer, v.where[s.layer][s.expert])
		}
		free := s.state == slotReady && s.refs == 0 && s.wants == 0 && !s.pinned
		if s.refs < 0 || s.wants < 0 || s.state == slotReady && s.waiters != nil || s.state == slotLoading && s.refs != 0 {
			return fmt.Errorf("slot %d: %+v", i, s)
		}
		if (s.heapAt >= 0) != (free && !s.guess) || s.idleGuess != (free && s.guess) {
			return fmt.Errorf("slot %d is listed wrongly: %+v", i, s)
		}
		if s.heapAt >= 0 {
			idle++
			if h := v.victims[s.layer]; h[s.heapAt] != int32(i) || s.heapAt > 0 && v.before(int32(i), h[(s.heapAt-1)/2]) {
				return fmt.Errorf("slot %d is out of order in its heap", i)
			}
			room.idle += v.bytesOf(s)
		}
		if s.idleGuess {
			idleGuesses++
			room.idleGuess += v.bytesOf(s)
		}
	}
	free, live := 0, 0
	for c := range v.room.lists {
		l, k := &v.room.lists[c], &v.classes[c]
		free += len(l.free)
		live += int(l.live)
		for _, list := range [...][]int32{l.free, l.dead} {
			for _, i := range list {
				if i < k.first || i >= k.first+k.count || v.slots[i].class != int32(c) || v.slots[i].state > slotEmpty {
					return fmt.Errorf("slot %d is listed as one of class %d: %+v", i, c, v.slots[i])
				}
				dead--
			}
		}
		dead += len(l.free)
	}
	if dead != 0 || live != v.liveSlots() || ready != v.ready {
		return fmt.Errorf("%d dead slots more than listed; %d live, %d ready; kept %d, %d", dead, live, ready, v.liveSlots(), v.ready)
	}
	room.target = v.room.target
	sums := func(r *rooms) [7]int64 {
		return [7]int64{r.target, r.live, r.free, r.idle, r.idleGuess, r.guessed, r.pinned}
	}
	if sums(&room) != sums(&v.room) {
		return fmt.Errorf("counted %+v, kept %+v", room, v.room)
	}
	if room.target < v.least || room.target > v.bytes || v.room.pinned > room.target-v.least {
		return fmt.Errorf("target %d, least %d, most %d, pinned %d", room.target, v.least, v.bytes, v.room.pinned)
	}
	if empty != free || idle != v.idle || idleGuesses != v.idleGuesses || guesses != v.guesses || pins != v.pins || leases != v.leases {
		return fmt.Errorf("counted %d empty, %d idle, %d idle guesses, %d guesses, %d pins, %d leases; kept %d, %d, %d, %d, %d, %d",
			empty, idle, idleGuesses, guesses, pins, leases, free, v.idle, v.idleGuesses, v.guesses, v.pins, v.leases)
	}
	in, pending := 0, int64(0)
	for layer := range v.where {
		for e, i := range v.where[layer] {
			if i < 0 {
				continue
			}
			in++
			if v.slots[i].state == slotLoading {
				pending += v.size[layer][e]
			}
			if s := &v.slots[i]; s.state == slotEmpty || int(s.layer) != layer || int(s.expert) != e {
				return fmt.Errorf("expert %d of layer %d is said to be in slot %d: %+v", e, layer, i, s)
			}
		}
	}
	if pending != v.pending {
		return fmt.Errorf("%d bytes on their way, kept %d", pending, v.pending)
	}
	if in+empty != live {
		return fmt.Errorf("%d experts and %d empty slots in %d", in, empty, live)
	}
	return nil
}
