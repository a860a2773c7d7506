package tiers

import "fmt"

// check compares residency's tables with one another.
func (v *residency) check() error {
	empty, idle, idleGuesses, guesses, pins, leases := 0, 0, 0, 0, 0, 0
	for i := range v.slots {
		s := &v.slots[i]
		if s.guess {
			guesses++
		}
		if s.pinned {
			pins++
		}
		leases += int(s.refs)
		if s.state == slotEmpty {
			empty++
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
		}
		if s.idleGuess {
			idleGuesses++
		}
	}
	if empty != len(v.free) || idle != v.idle || idleGuesses != v.idleGuesses || guesses != v.guesses || pins != v.pins || leases != v.leases {
		return fmt.Errorf("counted %d empty, %d idle, %d idle guesses, %d guesses, %d pins, %d leases; kept %d, %d, %d, %d, %d, %d",
			empty, idle, idleGuesses, guesses, pins, leases, len(v.free), v.idle, v.idleGuesses, v.guesses, v.pins, v.leases)
	}
	in := 0
	for layer := range v.where {
		for e, i := range v.where[layer] {
			if i < 0 {
				continue
			}
			in++
			if s := &v.slots[i]; s.state == slotEmpty || int(s.layer) != layer || int(s.expert) != e {
				return fmt.Errorf("expert %d of layer %d is said to be in slot %d: %+v", e, layer, i, s)
			}
		}
	}
	if in+empty != len(v.slots) {
		return fmt.Errorf("%d experts and %d empty slots in %d", in, empty, len(v.slots))
	}
	return nil
}
