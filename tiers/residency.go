package tiers

import "terrace/internal/invariant"

// Residency decides which expert is in which slot: who gets a free slot, who must leave, who waits. It moves no bytes and
// takes no locks; what it decides goes through the mover. So every rule here is tested by scripts (testdata/*.txt) and
// against a simple model.
//
// The rules:
//   - An expert is absent, on its way (loading) or ready. Only one read of it is under way, however many ask.
//   - A slot is held while a lease is out, while an admitted request wants it, while it is pinned. A held slot is never
//     given away. A slot that a guess protects is given to demands only, after all that nobody protects.
//   - Slots differ in size; those that have memory ("live") stay within a target of bytes, which may change: room.go.
//   - Requests and their admission: admission.go.

// slotState is what is in a slot.
type slotState uint8

const (
	slotDead slotState = iota // has no memory
	slotEmpty
	slotLoading
	slotReady
)

// slot is one place for an expert.
type slot struct {
	layer, expert int32
	class         int32 // its size
	state         slotState
	touched       bool  // its memory was used, so that it must be given back
	refs          int32 // leases out
	wants         int32 // items of admitted requests that wait for it or have not been handed out
	guess         bool  // guessed for its layer, which has not settled yet
	read          bool  // that guess caused the read
	issued        bool  // a guess caused the read, and nobody used the expert since
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

// memory is told when a slot's memory comes into use and when it is given back; a mover may implement it.
type memory interface {
	attach(slot int32) // before the first read into it
	detach(slot int32) // nothing reads into it any more
}

// counts are what residency counts; Stats explains them.
type counts struct {
	touches, hits, inflight, misses, missBytes, evictions    int64
	near, nearReads, nearBytes                               int64
	guessed, kept, used, late, wasted, cancelled             int64
	guessedBytes, usedBytes, lateBytes, wastedBytes, cancelB int64
}

type residency struct {
	mv     mover
	mem    memory // mv, or nil
	policy policy
	size   [][]int64 // bytes of each expert
	where  [][]int32 // slot of each expert, or -1

	slotSizes
	room  rooms
	slots []slot

	victims     [][]int32 // for each layer a heap of idle, unprotected slots, lowest score first
	idle        int       // slots in victims
	idleGuesses int       // ready slots that only a guess protects
	guesses     int       // slots with guess set
	pins        int
	leases      int
	ready       int   // slots that hold a whole expert
	pending     int64 // bytes of the experts on their way

	visited []uint64 // when each layer was visited last
	clock   uint64
	current int // the layer visited last

	mark   []uint64 // by expert: scratch to find doubles and members of a list
	marked uint64

	order    [][]int32 // place of each expert among its layer's in the file; nil: by number
	topK     int
	pair     int64       // bytes of two layers' demands
	least    int64       // bytes of the smallest working set
	waiting  requestList // not admitted, oldest first
	streamer *request    // the one admitted request whose experts do not all have slots yet
	sweep    sweep
	n        counts
	byLayer  []layerCounts
	leavers  leavers
}

// newResidency decides about slots slots of one size.
func newResidency(size [][]int64, slots, topK, minSlots int, p policy, mv mover) *residency {
	bytes, counts, largest := make([]int64, len(size)), make([]int, len(size)), int64(1)
	for l := range size {
		counts[l] = len(size[l])
		for _, b := range size[l] {
			largest = max(largest, b)
		}
	}
	for l := range bytes {
		bytes[l] = largest
	}
	z := sizesOf(bytes, counts)
	one := z.classes[0].bytes
	return newSized(size, z, int64(slots)*one, int64(minSlots)*one, topK, p, mv)
}

// newSized decides about slots of the sizes z in an arena of target bytes, of which the smallest working set takes least.
// size is the bytes of each expert without alignment.
func newSized(size [][]int64, z slotSizes, target, least int64, topK int, p policy, mv mover) *residency {
	v := &residency{mv: mv, policy: p, size: size, slotSizes: z, topK: topK, least: min(least, z.bytes)}
	v.mem, _ = mv.(memory)
	widest := 0
	for _, s := range size {
		w := make([]int32, len(s))
		for i := range w {
			w[i] = -1
		}
		v.where = append(v.where, w)
		widest = max(widest, len(s))
	}
	v.pair = z.walk(func(l int) int { return len(size[l]) }, topK, 0, 0)
	v.mark = make([]uint64, widest)
	v.visited = make([]uint64, len(size))
	v.byLayer = make([]layerCounts, len(size))
	v.leavers.init(size, nearRoom)
	v.victims = make([][]int32, len(size))
	for i, s := range size {
		v.victims[i] = make([]int32, 0, len(s))
	}
	v.sweep.init(len(size))
	v.slots = make([]slot, z.slots)
	for i := range v.slots {
		v.slots[i].heapAt = -1
	}
	v.openRoom(min(target, z.bytes))
	v.tellCapacity()
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

// evict takes a ready slot that nobody holds out of the tables; the caller gets it.
func (v *residency) evict(i int32) {
	s := &v.slots[i]
	if s.state != slotReady || s.refs != 0 || s.wants != 0 || s.pinned {
		panic("tiers: a held slot was to be evicted")
	}
	if s.issued {
		v.n.wasted++
		v.n.wastedBytes += v.size[s.layer][s.expert]
	}
	v.n.evictions++
	layer, expert := int(s.layer), int(s.expert)
	v.vacate(i)
	v.left(layer, expert)
}

// vacate makes a slot empty without putting it among the free ones.
func (v *residency) vacate(i int32) {
	s := &v.slots[i]
	v.unlist(i)
	v.setGuess(s, false)
	v.setPin(s, false)
	switch s.state {
	case slotReady:
		v.ready--
	case slotLoading:
		v.pending -= v.size[s.layer][s.expert]
	}
	v.where[s.layer][s.expert] = -1
	s.state, s.issued = slotEmpty, false
	if invariant.On {
		v.spoiled(i)
	}
}

// load puts an expert into an empty slot and starts its read.
func (v *residency) load(i int32, layer, expert int, p Priority) {
	s := &v.slots[i]
	s.layer, s.expert, s.state = int32(layer), int32(expert), slotLoading
	v.where[layer][expert] = i
	v.pending += v.size[layer][expert]
	if v.leavers.has(layer, expert) {
		v.n.nearReads++
		v.n.nearBytes += v.size[layer][expert]
		v.unleave(layer, expert)
	}
	if !s.touched {
		s.touched = true
		if v.mem != nil {
			v.mem.attach(i)
		}
	}
	v.mv.start(i, p)
}

func (v *residency) setGuess(s *slot, on bool) {
	if s.guess == on {
		return
	}
	s.guess = on
	s.read = false
	if on {
		v.guesses++
		v.room.guessed += v.bytesOf(s)
	} else {
		v.guesses--
		v.room.guessed -= v.bytesOf(s)
	}
}

func (v *residency) setPin(s *slot, on bool) {
	if s.pinned == on {
		return
	}
	s.pinned = on
	if on {
		v.pins++
		v.room.pinned += v.bytesOf(s)
	} else {
		v.pins--
		v.room.pinned -= v.bytesOf(s)
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
		v.setIdleGuess(s, true)
		return
	}
	v.setIdleGuess(s, false)
	if s.heapAt < 0 {
		v.heapPush(i)
	}
}

func (v *residency) setIdleGuess(s *slot, on bool) {
	if s.idleGuess == on {
		return
	}
	s.idleGuess = on
	if on {
		v.idleGuesses++
		v.room.idleGuess += v.bytesOf(s)
	} else {
		v.idleGuesses--
		v.room.idleGuess -= v.bytesOf(s)
	}
}

// unlist takes a slot out of both structures.
func (v *residency) unlist(i int32) {
	s := &v.slots[i]
	if s.heapAt >= 0 {
		v.heapRemove(i)
	}
	v.setIdleGuess(s, false)
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
		if s.issued {
			v.n.wasted++
			v.n.wastedBytes += v.size[s.layer][s.expert]
		}
		s.wants = 0
		v.vacate(i)
		v.putFree(i)
		for it := waiters; it != nil; {
			next := it.nextWait
			it.nextWait = nil
			it.fail(err, v.bytesOf(s))
			v.mv.wake(it.req)
			it = next
		}
		v.advance()
		return
	}
	s.state = slotReady
	v.ready++
	v.pending -= v.size[s.layer][s.expert]
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
	return v.prefetchOver(layer, experts, 1)
}

// prefetchOver is prefetch for guesses that come true with a known chance: an expert that its own layer wants at least as
// often keeps its slot.
func (v *residency) prefetchOver(layer int, experts []int32, chance float64) int {
	started := 0
	for _, e := range experts {
		if !v.mayGuess(layer) {
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
		if chance < 1 && v.likelier(v.classOf[layer], chance) {
			break
		}
		i := v.takeUnprotected(v.classOf[layer])
		if i < 0 {
			break
		}
		s := &v.slots[i]
		v.setGuess(s, true)
		s.read, s.issued = true, true
		v.n.guessed++
		v.n.guessedBytes += v.size[layer][e]
		v.load(i, layer, int(e), Guess)
		started++
	}
	return started
}

// likelier says that the expert that would have to go for one of class c is wanted by the next turn of its layer with at
// least this chance, as far as the policy can tell.
func (v *residency) likelier(c int32, chance float64) bool {
	p, ok := v.policy.(interface{ chance(score float64) float64 })
	if !ok || v.slack()+v.room.free >= v.classes[c].bytes {
		return false
	}
	own, any := v.victim(c)
	if own < 0 {
		own = any
	}
	return own >= 0 && p.chance(v.scoreOf(own)) >= chance
}

// mayGuess bounds the slots that guesses protect: two layers' demands fit beside one more of the given layer. In a sweep,
// whose every layer needs nearly all its experts, what is read ahead is taken from what the next sweep would have found
// here, so a part of the arena must do. With a slot for every expert no bound is needed.
func (v *residency) mayGuess(layer int) bool {
	bytes := v.layer(layer)
	if v.room.target == v.bytes {
		return true
	}
	limit := v.room.target - v.pair - v.room.pinned
	if v.sweep.on() {
		limit = min(limit, v.window(bytes))
	}
	return v.room.guessed+bytes <= limit
}

// window is how much of the arena a streaming request may push out, and guesses in a sweep may hold.
func (v *residency) window(bytes int64) int64 {
	return max(2*int64(v.topK)*bytes, v.room.target/8)
}

// Settlement tells what became of the guesses for one layer when its true experts became known.
type Settlement struct {
	// The true experts by where they were: resident, in flight, queued, absent.
	Resident, InFlight, Queued, Absent int
	// The guesses that had caused a read: ready in time, right but not ready yet, wrong and read for nothing as far as this
	// visit goes, wrong and taken back before it began.
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
		s, right := &v.slots[i], v.mark[e] == v.marked
		switch {
		case !s.read && right:
			t.KeptRight++
		case !s.read:
			t.KeptWrong++
		case right && s.state == slotReady:
			t.Used++
		case right:
			t.Late++
		case s.state == slotLoading && s.wants == 0 && !s.pinned && v.cancelGuess(i):
			t.Cancelled++
			continue
		default:
			t.Wasted++
		}
		v.setGuess(s, false)
		v.refresh(i)
	}
	v.advance()
	return t
}

// withdraw takes the guess of an expert back and answers true if its read had not begun and is cancelled.
func (v *residency) withdraw(layer int, expert int32) bool {
	i := v.where[layer][expert]
	if i < 0 || !v.slots[i].guess {
		return false
	}
	s := &v.slots[i]
	cancelled := s.state == slotLoading && s.wants == 0 && !s.pinned && v.cancelGuess(i)
	if !cancelled {
		v.setGuess(s, false)
		v.refresh(i)
	}
	v.advance()
	return cancelled
}

// cancelGuess takes back a guess whose read has not begun; its slot is free then.
func (v *residency) cancelGuess(i int32) bool {
	if !v.mv.cancel(i) {
		return false
	}
	v.dropRead(i)
	return true
}

// dropRead frees the slot of a read that was taken back.
func (v *residency) dropRead(i int32) {
	if s := &v.slots[i]; s.issued {
		v.n.cancelled++
		v.n.cancelB += v.size[s.layer][s.expert]
	}
	v.vacate(i)
	v.putFree(i)
}

// used counts the first use of an expert that a guess has read or is reading.
func (v *residency) used(s *slot) {
	if !s.issued {
		return
	}
	s.issued = false
	if bytes := v.size[s.layer][s.expert]; s.state == slotReady {
		v.n.used++
		v.n.usedBytes += bytes
	} else {
		v.n.late++
		v.n.lateBytes += bytes
	}
}

// pin makes exactly the given experts stay, as many of them as leave the smallest working set free, and starts to read
// those that are absent. It returns how many are pinned now.
func (v *residency) pin(ids []ExpertID) int {
	limit := v.room.target - v.least
	for i := range v.slots {
		v.setPin(&v.slots[i], false)
	}
	named := int64(0)
	for _, id := range ids { // those here first, so that none of them is read again
		bytes := v.layer(int(id.Layer))
		if named+bytes > limit {
			break
		}
		i := v.where[id.Layer][id.Expert]
		if i < 0 {
			named += bytes
		} else if s := &v.slots[i]; !s.pinned {
			v.setPin(s, true)
			named += bytes
		}
	}
	for i := range v.slots {
		v.refresh(int32(i))
	}
	for _, id := range ids {
		if v.room.pinned+v.layer(int(id.Layer)) > limit {
			break
		}
		if v.where[id.Layer][id.Expert] >= 0 {
			continue
		}
		i := v.takeUnprotected(v.classOf[id.Layer])
		if i < 0 {
			break
		}
		v.load(i, int(id.Layer), int(id.Expert), Guess)
		v.setPin(&v.slots[i], true)
	}
	v.advance()
	return v.pins
}
