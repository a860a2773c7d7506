package tiers

// Loan is an expert in RAM that stays as it is until Return, taken beside the requests of layers: it counts as no use, and the
// policy learns nothing from it.
type Loan struct {
	c    *Cache
	slot int32
	id   ExpertID
}

// Lend lends an expert that is whole in RAM; false: it is not there. A loan holds its slot, of which layers at work need theirs:
// there should be one at a time, and for a moment.
func (c *Cache) Lend(id ExpertID) (Loan, bool) {
	c.mu.Lock()
	defer c.unlock()
	one := [1]int32{int32(id.Expert)}
	if c.valid(int(id.Layer), one[:]) != nil {
		return Loan{}, false
	}
	i := c.v.where[id.Layer][id.Expert]
	if i < 0 || c.v.slots[i].state != slotReady || c.v.streamer != nil || c.v.waiting.head != nil {
		return Loan{}, false // who waits for slots needs them all
	}
	c.v.slots[i].refs++
	c.v.leases++
	c.v.refresh(i)
	return Loan{c, i, id}, true
}

// Views are the exact bytes of gate, up and down, as Lease.Views has them.
func (l Loan) Views() [3][]byte { return l.c.views(l.slot, int32(l.id.Layer), int32(l.id.Expert)) }

// Return gives the expert back. With leave it leaves RAM, unless somebody else holds or wants it: it is kept elsewhere.
func (l Loan) Return(leave bool) {
	c := l.c
	c.mu.Lock()
	defer c.unlock()
	v := c.v
	s := &v.slots[l.slot]
	s.refs--
	v.leases--
	v.refresh(l.slot)
	if leave && s.heapAt >= 0 && !s.issued && v.room.target < v.bytes {
		v.vacate(l.slot) // no eviction: nobody will miss it here
		v.putFree(l.slot)
	}
	v.advance()
}
