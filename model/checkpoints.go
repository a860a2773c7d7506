package model

// checkpoints remembers at which positions of a timeline its recurrent state was saved. A slot whose position is 0 is free:
// the start of a sequence needs none.
type checkpoints []int

// best is the slot of the last checkpoint at or before n; ok is false where there is none but the start.
func (c checkpoints) best(n int) (slot, pos int, ok bool) {
	for i, p := range c {
		if p > pos && p <= n {
			slot, pos, ok = i, p, true
		}
	}
	return slot, pos, ok
}

// cut forgets what lies behind n: other tokens will follow.
func (c checkpoints) cut(n int) {
	for i, p := range c {
		if p > n {
			c[i] = 0
		}
	}
}

// take chooses a slot for position pos, which lies behind all others: a free one, or that whose neighbours are closest to
// each other, so that those that stay are spread over the timeline. ok is false where pos has its checkpoint already.
func (c checkpoints) take(pos int) (slot int, ok bool) {
	least := -1
	for i, p := range c {
		if p == pos {
			return i, false
		}
		if p == 0 {
			c[i] = pos
			return i, true
		}
		before, after := 0, pos
		for _, q := range c {
			if q < p && q > before {
				before = q
			}
			if q > p && q < after {
				after = q
			}
		}
		if least < 0 || after-before < least {
			least, slot = after-before, i
		}
	}
	if least < 0 {
		return 0, false
	}
	c[slot] = pos
	return slot, true
}
