package tiers

// Who leaves: each layer has a heap of its idle slots.

// victim is the idle, unprotected slot with the lowest score; among equals the layer visited latest goes first, since its
// next turn is farthest away; then the lower expert number. own is that among the slots of class c, any among all; -1
// where there is none.
func (v *residency) victim(c int32) (own, any int32) {
	own, any = -1, -1
	var ownScore, anyScore float64
	var ownVisit, anyVisit uint64
	for layer, h := range v.victims {
		if len(h) == 0 {
			continue
		}
		score, visit := v.scoreOf(h[0]), v.visited[layer]
		if any < 0 || score < anyScore || score == anyScore && visit > anyVisit {
			any, anyScore, anyVisit = h[0], score, visit
		}
		if v.classOf[layer] == c && (own < 0 || score < ownScore || score == ownScore && visit > ownVisit) {
			own, ownScore, ownVisit = h[0], score, visit
		}
	}
	return own, any
}

// farthest is the slot among those ok accepts whose layer's turn comes last, counted from the layer visited latest; among
// equals the lowest score, then the higher expert number (guesses come best first). It looks at every slot: only demands
// that find no unprotected slot get here.
func (v *residency) farthest(ok func(*slot) bool) int32 {
	best, bestAway, bestScore, bestExpert := int32(-1), -1, 0.0, int32(0)
	for i := range v.slots {
		s := &v.slots[i]
		if s.state <= slotEmpty || !ok(s) {
			continue
		}
		away := int(s.layer) - v.current
		if away < 0 {
			away += len(v.where)
		}
		score := v.scoreOf(int32(i))
		if away > bestAway || away == bestAway && (score < bestScore || score == bestScore && s.expert > bestExpert) {
			best, bestAway, bestScore, bestExpert = int32(i), away, score, s.expert
		}
	}
	return best
}

func (v *residency) scoreOf(i int32) float64 {
	s := &v.slots[i]
	return v.policy.score(int(s.layer), int(s.expert))
}

// before orders a layer's heap: lower score, then lower expert number.
func (v *residency) before(a, b int32) bool {
	x, y := v.scoreOf(a), v.scoreOf(b)
	if x != y {
		return x < y
	}
	return v.slots[a].expert < v.slots[b].expert
}

func (v *residency) heapPush(i int32) {
	layer := v.slots[i].layer
	h := append(v.victims[layer], i)
	v.victims[layer] = h
	v.slots[i].heapAt = int32(len(h) - 1)
	v.heapUp(h, len(h)-1)
	v.idle++
	v.room.idle += v.bytesOf(&v.slots[i])
}

func (v *residency) heapRemove(i int32) {
	s := &v.slots[i]
	h := v.victims[s.layer]
	at, last := int(s.heapAt), len(h)-1
	h[at] = h[last]
	v.slots[h[at]].heapAt = int32(at)
	h = h[:last]
	v.victims[s.layer] = h
	s.heapAt = -1
	if at < last {
		v.heapFix(h, at)
	}
	v.idle--
	v.room.idle -= v.bytesOf(s)
}

func (v *residency) heapFix(h []int32, at int) {
	if !v.heapUp(h, at) {
		v.heapDown(h, at)
	}
}

func (v *residency) heapUp(h []int32, at int) (moved bool) {
	for at > 0 {
		up := (at - 1) / 2
		if !v.before(h[at], h[up]) {
			break
		}
		v.heapSwap(h, at, up)
		at, moved = up, true
	}
	return moved
}

func (v *residency) heapDown(h []int32, at int) {
	for {
		least := at
		for c := 2*at + 1; c <= 2*at+2 && c < len(h); c++ {
			if v.before(h[c], h[least]) {
				least = c
			}
		}
		if least == at {
			return
		}
		v.heapSwap(h, at, least)
		at = least
	}
}

func (v *residency) heapSwap(h []int32, a, b int) {
	h[a], h[b] = h[b], h[a]
	v.slots[h[a]].heapAt, v.slots[h[b]].heapAt = int32(a), int32(b)
}

// reheap restores every heap after the policy rescaled: distinct scores may have become equal.
func (v *residency) reheap() {
	for _, h := range v.victims {
		for at := len(h)/2 - 1; at >= 0; at-- {
			v.heapDown(h, at)
		}
	}
}
