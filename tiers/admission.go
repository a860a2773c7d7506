package tiers

import "slices"

// How requests get slots, so that any number of them always get on:
//
//   - A request of at most topK experts (decode) is admitted when all of them can have slots at once; until then it holds
//     nothing. So two such requests never wait for one another's slots.
//   - A longer one (prefill) streams: it is admitted at once, holds what is here, and gets slots for the rest as leases
//     come back. Only one request streams at a time; it leaves a few slots to others while it has topK itself, and
//     pushes others out for a part of the arena only. Its caller must give leases back before it waits.
//   - Requests are admitted in the order in which they came, except that decode may pass a request that waits to stream.
//   - A streaming request that holds no slot stops all further admissions until it has one.
//
// Guesses yield to all of this.

// itemState is how far one expert of a request is.
type itemState uint8

const (
	itemMissing itemState = iota // has no slot yet
	itemWaiting                  // its slot is loading
	itemReady                    // can be handed out
	itemLeased
	itemOver // given back, or failed
)

// item is one expert of a request.
type item struct {
	req    *request
	expert int32
	slot   int32
	state  itemState
	loaded bool // the request had it read

	nextWait  *item // in slot.waiters
	nextReady *item // in request.ready
}

// request is the deciding half of a Request.
type request struct {
	layer    int
	items    []item
	cursor   int // items before it are not missing
	missing  int
	held     int   // items that have a slot: waiting, ready or leased
	own      int64 // bytes of the slots among these that the request had read
	left     int   // items neither handed out nor failed
	admitted bool
	err      error // of the first expert that failed

	readyHead, readyTail *item
	prev, next           *request // in residency.waiting
	queued               bool

	wake chan struct{} // the cache's: a token when something changed
}

// requestList is a queue from which any request can be taken.
type requestList struct{ head, tail *request }

func (l *requestList) push(r *request) {
	r.prev, r.next, r.queued = l.tail, nil, true
	if l.tail != nil {
		l.tail.next = r
	} else {
		l.head = r
	}
	l.tail = r
}

func (l *requestList) remove(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.head = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.tail = r.prev
	}
	r.prev, r.next, r.queued = nil, nil, false
}

// begin opens a request for distinct experts of a layer, counts their use and admits it as soon as the rules allow.
func (v *residency) begin(r *request, layer int, experts []int32) {
	v.marked++
	for _, e := range experts {
		if v.mark[e] == v.marked {
			panic("tiers: a request names an expert twice")
		}
		v.mark[e] = v.marked
	}
	v.clock++
	v.visited[layer] = v.clock
	v.current = layer
	sweeps := v.sweeps(layer, experts)
	if !sweeps {
		v.visit(layer, experts)
	}
	if cap(r.items) < len(experts) {
		r.items = make([]item, len(experts))
	}
	r.items = r.items[:len(experts)]
	r.layer, r.cursor, r.missing, r.held, r.left = layer, 0, len(experts), 0, len(experts)
	r.own = 0
	r.admitted, r.err, r.readyHead, r.readyTail = false, nil, nil, nil
	own := &v.byLayer[layer]
	for i, e := range experts {
		r.items[i] = item{req: r, expert: e, slot: -1}
		v.n.touches++
		i := v.where[layer][e]
		if i < 0 {
			v.n.misses++
			own.misses++
			v.n.missBytes += v.size[layer][e]
			if v.leavers.has(layer, int(e)) {
				v.n.near++
			}
			continue
		}
		s := &v.slots[i]
		v.used(s)
		if s.state == slotReady {
			v.n.hits++
			own.hits++
		} else {
			v.n.inflight++
			own.inflight++
		}
	}
	if len(r.items) > v.topK {
		v.fileOrder(r)
	}
	v.waiting.push(r)
	v.advance()
}

// advance gives slots that have become free to those who wait for them.
func (v *residency) advance() {
	v.trim(trimStep)
	if v.streamer != nil {
		v.feed(v.streamer)
	}
	blocked := false
	for r := v.waiting.head; r != nil; {
		next := r.next
		streams := len(r.items) > v.topK
		switch {
		case v.streamer != nil && v.streamer.held == 0:
			return
		case streams && v.streamer == nil:
			v.admit(r)
			v.streamer = r
			v.feed(r)
		case !streams && !blocked:
			blocked = !v.tryAdmit(r)
		}
		r = next
	}
}

// tryAdmit admits a request whose experts must all have slots at once.
func (v *residency) tryAdmit(r *request) bool {
	missing := 0
	for i := range r.items { // those here must not be taken to make room for the others
		if s := v.where[r.layer][r.items[i].expert]; s >= 0 {
			v.slots[s].wants++
			v.refresh(s)
		} else {
			missing++
		}
	}
	enough := v.makeRoom(int64(missing) * v.layer(r.layer))
	for i := range r.items {
		if s := v.where[r.layer][r.items[i].expert]; s >= 0 {
			v.slots[s].wants--
			if !enough {
				v.refresh(s)
			}
		}
	}
	if !enough {
		return false
	}
	v.admit(r)
	for r.missing > 0 {
		v.assign(r)
	}
	return true
}

// admit takes a request out of the queue; it holds from now on those of its experts that have slots.
func (v *residency) admit(r *request) {
	v.waiting.remove(r)
	r.admitted = true
	for i := range r.items {
		it := &r.items[i]
		if s := v.where[r.layer][it.expert]; s >= 0 {
			v.hold(it, s)
		}
	}
}

// hold gives an item the slot its expert is in or coming to.
func (v *residency) hold(it *item, i int32) {
	s := &v.slots[i]
	r := it.req
	it.slot = i
	s.wants++
	r.held++
	r.missing--
	if s.state == slotReady {
		it.ready()
		v.refresh(i)
		v.mv.wake(r)
		return
	}
	it.state = itemWaiting
	it.nextWait = s.waiters
	s.waiters = it
	v.mv.promote(i)
}

// assign gives the next missing item a slot; there is room.
func (v *residency) assign(r *request) {
	for r.items[r.cursor].state != itemMissing {
		r.cursor++
	}
	it := &r.items[r.cursor]
	if s := v.where[r.layer][it.expert]; s >= 0 { // someone else brought it meanwhile
		v.hold(it, s)
		return
	}
	i := v.takeForDemand(v.classOf[r.layer])
	v.load(i, r.layer, int(it.expert), Demand)
	s := &v.slots[i]
	it.slot, it.state, it.loaded = i, itemWaiting, true
	s.wants++
	r.held++
	r.own += v.bytesOf(s)
	r.missing--
	it.nextWait = s.waiters
	s.waiters = it
}

// feed gives the streaming request slots: all that can be had while it has fewer than topK, after that it leaves a few
// slots to others and pushes experts out only while what it has read is within the window: a sweep through all experts of
// a layer makes room for the rest of itself.
func (v *residency) feed(r *request) {
	bytes := v.layer(r.layer)
	reserve := v.reserve()
	window := v.window(bytes)
	for r.missing > 0 {
		need := bytes
		if r.held >= v.topK {
			need += reserve
			if r.own+bytes > window && v.slack()+v.room.free < need {
				return
			}
		}
		if !v.makeRoom(need) {
			return
		}
		v.assign(r)
	}
	v.streamer = nil
}

// reserve is the bytes that a streaming request leaves to others.
func (v *residency) reserve() int64 {
	largest := v.classes[0].bytes
	return largest * min(int64(v.topK), v.room.target/largest/4)
}

// fileOrder puts the items of a long request in the order of the file, so that neighbours are read together.
func (v *residency) fileOrder(r *request) {
	if v.order == nil {
		return
	}
	rank := v.order[r.layer]
	slices.SortFunc(r.items, func(a, b item) int { return int(rank[a.expert]) - int(rank[b.expert]) })
}

// ready puts an item at the end of those to be handed out.
func (it *item) ready() {
	r := it.req
	it.state, it.nextReady = itemReady, nil
	if r.readyTail != nil {
		r.readyTail.nextReady = it
	} else {
		r.readyHead = it
	}
	r.readyTail = it
}

// fail ends an item whose read failed.
func (it *item) fail(err error, bytes int64) {
	r := it.req
	it.state, it.slot = itemOver, -1
	r.held--
	r.left--
	if it.loaded {
		r.own -= bytes
	}
	if r.err == nil {
		r.err = err
	}
}

// lease hands out the item that became ready first, or nil.
func (v *residency) lease(r *request) *item {
	it := r.readyHead
	if it == nil {
		return nil
	}
	r.readyHead = it.nextReady
	if r.readyHead == nil {
		r.readyTail = nil
	}
	it.nextReady = nil
	it.state = itemLeased
	s := &v.slots[it.slot]
	s.wants--
	s.refs++
	v.leases++
	r.left--
	return it
}

// release takes a lease back.
func (v *residency) release(it *item) {
	v.drop(it)
	v.advance()
}

func (v *residency) drop(it *item) {
	if it.state != itemLeased {
		panic("tiers: a lease was released twice")
	}
	s := &v.slots[it.slot]
	s.refs--
	v.leases--
	it.state = itemOver
	it.req.held--
	if it.loaded {
		it.req.own -= v.bytesOf(s)
	}
	v.refresh(it.slot)
}

// close ends a request: leases still out are given back, reads that only it waits for and that have not begun are taken
// back.
func (v *residency) close(r *request) {
	if r.queued {
		v.waiting.remove(r)
	}
	if v.streamer == r {
		v.streamer = nil
	}
	for i := range r.items {
		it := &r.items[i]
		switch it.state {
		case itemLeased:
			v.drop(it)
		case itemReady:
			v.slots[it.slot].wants--
			v.refresh(it.slot)
		case itemWaiting:
			s := &v.slots[it.slot]
			for p := &s.waiters; ; p = &(*p).nextWait {
				if *p == it {
					*p = it.nextWait
					break
				}
			}
			s.wants--
			if s.wants == 0 && !s.guess && !s.pinned && v.mv.cancel(it.slot) {
				v.dropRead(it.slot)
			}
		}
		it.state, it.nextWait, it.nextReady = itemOver, nil, nil
	}
	r.readyHead, r.readyTail = nil, nil
	v.advance()
}

// abandon fails every request that still needs slots, so that nothing is started any more, nor given back one by one.
func (v *residency) abandon(err error) {
	v.room.target = v.bytes
	fail := func(r *request) {
		if r.err == nil {
			r.err = err
		}
		v.mv.wake(r)
	}
	for v.waiting.head != nil {
		r := v.waiting.head
		v.waiting.remove(r)
		fail(r)
	}
	if v.streamer != nil {
		fail(v.streamer)
		v.streamer = nil
	}
}
