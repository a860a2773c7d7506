package tiers

// Residency decides which expert is in which slot: who gets a free slot, who must leave, who waits. It moves no bytes and
// takes no locks; what it decides goes through the mover. So every rule here is tested by scripts (testdata/*.txt) and
// against a simple model.
//
// The rules:
//   - An expert is absent, on its way (loading) or ready. Only one read of it is under way, however many ask.
//   - A slot is held while a lease is out, while an admitted request wants it, while it is pinned. A held slot is never
//     given away. A slot that a guess protects is given to demands only, after all that nobody protects.
//   - Requests and their admission: admission.go.

// slotState is what is in a slot.
type slotState uint8

const (
	slotEmpty slotState = iota
	slotLoading
	slotReady
)

// slot is one place for an expert.
type slot struct {
	layer, expert int32
	state         slotState
	refs          int32 // leases out
	wants         int32 // items of admitted requests that wait for it or have not been handed out
	guess         bool  // guessed for its layer, which has not settled yet
	issued        bool  // the guess caused the read
	pinned        bool
	idleGuess     bool  // counted in residency.idleGuesses
	heapAt        int32 // place in its layer's heap of victims, or -1
	waiters       *item // items that wait for the read
}

// State is where an expert is.
type State uint8

// The states of an expert in the cache.
const (
	Absent   State = iota // on disk only
	Queued                // its read waits for its turn
	InFlight              // its read has begun
	Resident              // whole in RAM
)

func (s State) String() string {
	return [...]string{"absent", "queued", "in flight", "resident"}[s]
}

// mover carries out what residency decides.
type mover interface {
	start(slot int32, p Priority) // begin to read the slot's expert into it
	promote(slot int32)           // a waiting read became a demand
	cancel(slot int32) bool       // take back a read that has not begun
	begun(slot int32) bool        // whether the slot's read has begun
	wake(r *request)              // something changed for a request: ready, failed
}

// counts are what residency counts; Stats explains them.
type counts struct {
	touches, hits, inflight, misses, evictions               int64
	guessed, kept, used, late, wasted, cancelled             int64
	guessedBytes, usedBytes, lateBytes, wastedBytes, cancelB int64
}

type residency struct {
	mv     mover
	policy policy
	size   [][]int64 // bytes of each expert
	where  [][]int32 // slot of each expert, or -1

	slots       []slot
	free        []int32   // empty slots, the last is used next
	victims     [][]int32 // for each layer a heap of idle, unprotected slots, lowest score first
	idle        int       // slots in victims
	idleGuesses int       // ready slots that only a guess protects
	guesses     int       // slots with guess set
	pins        int
	leases      int

	visited []uint64 // when each layer was visited last
	clock   uint64
	current int // the layer visited last

	mark   []uint64 // by expert: scratch to find doubles and members of a list
	marked uint64

	topK     int
	reserve  int // slots a streaming request leaves to others
	minSlots int
	waiting  requestList // not admitted, oldest first
	streamer *request    // the one admitted request whose experts do not all have slots yet
	n        counts
}

func newResidency(size [][]int64, slots, topK, minSlots int, p policy, mv mover) *residency {
	v := &residency{mv: mv, policy: p, size: size, topK: topK, minSlots: minSlots, reserve: min(topK, slots/4)}
	widest := 0
	for _, s := range size {
		w := make([]int32, len(s))
		for i := range w {
			w[i] = -1
		}
		v.where = append(v.where, w)
		widest = max(widest, len(s))
	}
	v.mark = make([]uint64, widest)
	p.capacity(slots)
	v.visited = make([]uint64, len(size))
	v.victims = make([][]int32, len(size))
	for i, s := range size {
		v.victims[i] = make([]int32, 0, min(len(s), slots))
	}
	v.slots = make([]slot, slots)
	v.free = make([]int32, slots)
	for i := range v.slots {
		v.slots[i].heapAt = -1
		v.free[i] = int32(slots - 1 - i)
	}
	return v
}

// state says where an expert is, without counting it as a use.
func (v *residency) state(layer, expert int) State {
	s := v.where[layer][expert]
	switch {
	case s < 0:
		return Absent
	case v.slots[s].state == slotReady:
		return Resident
	case v.mv.begun(s):
		return InFlight
	}
	return Queued
}

// room is the number of slots that a demand could have now.
func (v *residency) room() int { return len(v.free) + v.idle + v.idleGuesses }

// makeRoom reaches n slots for demands, if need be by taking back guesses that have not begun.
func (v *residency) makeRoom(n int) bool {
	for v.room() < n {
		s := v.farthest(func(s *slot) bool {
			return s.state == slotLoading && s.guess && s.wants == 0 && !s.pinned && !v.mv.begun(v.where[s.layer][s.expert])
		})
		if s < 0 || !v.cancelGuess(s) {
			return false
		}
	}
	return true
}

// takeForDemand gives a slot and forgets who was in it: a free one, else the lowest-scored idle one, else a ready guess.
// The caller knows that there is room.
func (v *residency) takeForDemand() int32 {
	if s := v.takeUnprotected(); s >= 0 {
		return s
	}
	s := v.farthest(func(s *slot) bool { return s.idleGuess })
	if s < 0 {
		panic("tiers: no slot for a demand although there was room")
	}
	v.evict(s)
	return s
}

// takeUnprotected gives a free or idle slot, or -1.
func (v *residency) takeUnprotected() int32 {
	if n := len(v.free); n > 0 {
		s := v.free[n-1]
		v.free = v.free[:n-1]
		return s
	}
	s := v.victim()
	if s >= 0 {
		v.evict(s)
	}
	return s
}

// victim is the idle, unprotected slot with the lowest rank; among equals the layer visited latest goes first, since its
// next turn is farthest away; then the lower expert number.
func (v *residency) victim() int32 {
	best, bestRank, bestVisit := int32(-1), 0.0, uint64(0)
	for layer, h := range v.victims {
		if len(h) == 0 {
			continue
		}
		rank, visit := v.policy.rank(v.scoreOf(h[0]), v.away(layer)), v.visited[layer]
		if best < 0 || rank < bestRank || rank == bestRank && visit > bestVisit {
			best, bestRank, bestVisit = h[0], rank, visit
		}
	}
	return best
}

// away is the time until a layer's next turn in passes, if the layers follow one another from the one visited latest.
func (v *residency) away(layer int) float64 {
	n := layer - v.current
	if n <= 0 {
		n += len(v.where)
	}
	return float64(n) / float64(len(v.where))
}

// farthest is the slot among those ok accepts whose layer's turn comes last, counted from the layer visited latest; among
// equals the lowest score, then the higher expert number (guesses come best first). It looks at every slot: only demands
// that find no unprotected slot get here.
func (v *residency) farthest(ok func(*slot) bool) int32 {
	best, bestAway, bestScore, bestExpert := int32(-1), -1, 0.0, int32(0)
	for i := range v.slots {
		s := &v.slots[i]
		if s.state == slotEmpty || !ok(s) {
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

// evict takes a ready slot that nobody holds out of the tables; the caller gets it.
func (v *residency) evict(i int32) {
	s := &v.slots[i]
	if s.state != slotReady || s.refs != 0 || s.wants != 0 || s.pinned {
		panic("tiers: a held slot was to be evicted")
	}
	if s.issued && s.guess {
		v.n.wasted++
		v.n.wastedBytes += v.size[s.layer][s.expert]
	}
	v.n.evictions++
	v.vacate(i)
}

// vacate makes a slot empty without putting it among the free ones.
func (v *residency) vacate(i int32) {
	s := &v.slots[i]
	v.unlist(i)
	v.setGuess(s, false)
	if s.pinned {
		s.pinned = false
		v.pins--
	}
	v.where[s.layer][s.expert] = -1
	s.state, s.issued = slotEmpty, false
}

// load puts an expert into an empty slot and starts its read.
func (v *residency) load(i int32, layer, expert int, p Priority) {
	s := &v.slots[i]
	s.layer, s.expert, s.state = int32(layer), int32(expert), slotLoading
	v.where[layer][expert] = i
	v.mv.start(i, p)
}

func (v *residency) setGuess(s *slot, on bool) {
	if s.guess == on {
		return
	}
	s.guess = on
	if on {
		v.guesses++
	} else {
		v.guesses--
	}
}

// refresh puts a slot into, or takes it out of, the structures that list what may leave.
func (v *residency) refresh(i int32) {
	s := &v.slots[i]
	idle := s.state == slotReady && s.refs == 0 && s.wants == 0 && !s.pinned
	if !idle {
		v.unlist(i)
		return
	}
	if s.guess {
		if s.heapAt >= 0 {
			v.heapRemove(i)
		}
		if !s.idleGuess {
			s.idleGuess = true
			v.idleGuesses++
		}
		return
	}
	if s.idleGuess {
		s.idleGuess = false
		v.idleGuesses--
	}
	if s.heapAt < 0 {
		v.heapPush(i)
	}
}

// unlist takes a slot out of both structures.
func (v *residency) unlist(i int32) {
	s := &v.slots[i]
	if s.heapAt >= 0 {
		v.heapRemove(i)
	}
	if s.idleGuess {
		s.idleGuess = false
		v.idleGuesses--
	}
}

// done ends a slot's read. A failed one leaves the slot free and each waiter with err.
func (v *residency) done(i int32, err error) {
	s := &v.slots[i]
	if s.state != slotLoading {
		panic("tiers: a read ended in a slot that was not loading")
	}
	waiters := s.waiters
	s.waiters = nil
	if err != nil {
		if s.issued && s.guess {
			v.n.wasted++
			v.n.wastedBytes += v.size[s.layer][s.expert]
		}
		s.wants = 0
		v.vacate(i)
		v.free = append(v.free, i)
		for it := waiters; it != nil; {
			next := it.nextWait
			it.nextWait = nil
			it.fail(err)
			v.mv.wake(it.req)
			it = next
		}
		v.advance()
		return
	}
	s.state = slotReady
	for it := waiters; it != nil; {
		next := it.nextWait
		it.nextWait = nil
		it.ready()
		v.mv.wake(it.req)
		it = next
	}
	v.refresh(i)
	v.advance()
}

// prefetch reads experts ahead that a layer will probably use, best guess first, and protects those already here until
// the layer settles. It takes free and unprotected slots only, and none while a demand waits for slots. Returns the
// number of reads it started.
func (v *residency) prefetch(layer int, experts []int32) int {
	started := 0
	for _, e := range experts {
		if v.guesses >= v.guessCap() {
			break
		}
		if i := v.where[layer][e]; i >= 0 {
			if s := &v.slots[i]; !s.guess {
				v.setGuess(s, true)
				v.n.kept++
				v.refresh(i)
			}
			continue
		}
		if v.streamer != nil || v.waiting.head != nil {
			continue
		}
		i := v.takeUnprotected()
		if i < 0 {
			break
		}
		s := &v.slots[i]
		v.setGuess(s, true)
		s.issued = true
		v.n.guessed++
		v.n.guessedBytes += v.size[layer][e]
		v.load(i, layer, int(e), Guess)
		started++
	}
	return started
}

// guessCap bounds the slots that guesses protect: two layers' demands fit beside them.
func (v *residency) guessCap() int { return max(0, len(v.slots)-2*v.topK-v.pins) }

// Settlement tells what became of the guesses for one layer when its true experts became known.
type Settlement struct {
	// The true experts by where they were: resident, in flight, queued, absent.
	Resident, InFlight, Queued, Absent int
	// The guesses that had caused a read: ready in time, right but not ready yet, wrong and read for nothing, wrong and
	// taken back before it began.
	Used, Late, Wasted, Cancelled int
	// Guesses for experts that were in the cache anyway, right and wrong.
	KeptRight, KeptWrong int
}

// settle ends the guesses for a layer: experts are the true ones. Wrong ones lose their protection, and their reads are
// taken back if they have not begun.
func (v *residency) settle(layer int, experts []int32) Settlement {
	var t Settlement
	v.marked++
	for _, e := range experts {
		v.mark[e] = v.marked
		switch v.state(layer, int(e)) {
		case Resident:
			t.Resident++
		case InFlight:
			t.InFlight++
		case Queued:
			t.Queued++
		default:
			t.Absent++
		}
	}
	for e, i := range v.where[layer] {
		if i < 0 || !v.slots[i].guess {
			continue
		}
		s, right, bytes := &v.slots[i], v.mark[e] == v.marked, v.size[layer][e]
		switch {
		case !s.issued && right:
			t.KeptRight++
		case !s.issued:
			t.KeptWrong++
		case right && s.state == slotReady:
			t.Used++
			v.n.used++
			v.n.usedBytes += bytes
		case right:
			t.Late++
			v.n.late++
			v.n.lateBytes += bytes
		case s.state == slotLoading && s.wants == 0 && !s.pinned && v.cancelGuess(i):
			t.Cancelled++
			continue
		default:
			t.Wasted++
			v.n.wasted++
			v.n.wastedBytes += bytes
		}
		v.setGuess(s, false)
		s.issued = false
		v.refresh(i)
	}
	v.advance()
	return t
}

// cancelGuess takes back a guess whose read has not begun; its slot is free then.
func (v *residency) cancelGuess(i int32) bool {
	if !v.mv.cancel(i) {
		return false
	}
	s := &v.slots[i]
	v.n.cancelled++
	v.n.cancelB += v.size[s.layer][s.expert]
	v.vacate(i)
	v.free = append(v.free, i)
	return true
}

// pin makes exactly the given experts stay, as many of them as leave the smallest working set free, and starts to read
// those that are absent. It returns how many are pinned now.
func (v *residency) pin(ids []ExpertID) int {
	limit := len(v.slots) - v.minSlots
	for i := range v.slots {
		v.slots[i].pinned = false
	}
	v.pins = 0
	named := 0
	for _, id := range ids { // those here first, so that none of them is read again
		if named >= limit {
			break
		}
		i := v.where[id.Layer][id.Expert]
		if i < 0 {
			named++
		} else if s := &v.slots[i]; !s.pinned {
			s.pinned = true
			v.pins++
			named++
		}
	}
	for i := range v.slots {
		v.refresh(int32(i))
	}
	for _, id := range ids {
		if v.pins >= limit {
			break
		}
		if v.where[id.Layer][id.Expert] >= 0 {
			continue
		}
		i := v.takeUnprotected()
		if i < 0 {
			break
		}
		v.load(i, int(id.Layer), int(id.Expert), Guess)
		v.slots[i].pinned = true
		v.pins++
	}
	v.advance()
	return v.pins
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

// reheap restores every heap after scores of any layer changed.
func (v *residency) reheap() {
	for layer := range v.victims {
		v.reheapLayer(layer)
	}
}

// reheapLayer restores one layer's heap after a visit changed its scores.
func (v *residency) reheapLayer(layer int) {
	h := v.victims[layer]
	for at := len(h)/2 - 1; at >= 0; at-- {
		v.heapDown(h, at)
	}
}
