package tiers

import (
	"cmp"
	"slices"
	"time"
)

// Waiting is who waits for what in a cache at one moment: for reports about work that does not move.
type Waiting struct {
	Reads   []PendingRead // on their way; those that are waited for first, of these the longest under way
	Blocked int           // requests that wait in Next
	Without []LayerWant   // requests that wait for slots, in the order in which they get them
	Held    []LayerWant   // experts that are lent, by layer
	Backlog Backlog
	Store   bool // the store's queue could be looked at; false: its lock is held
}

// PendingRead is an expert on its way.
type PendingRead struct {
	Desc    *Desc
	Began   bool          // the store has begun to read it
	For     time.Duration // since then
	Waiters int           // requests that wait for it; 0: a guess, or nobody any more
}

// LayerWant is a number of experts of a layer.
type LayerWant struct{ Layer, Experts int }

// Backlog is how many reads a store has, where Flying counts pieces of experts that the system was asked for.
type Backlog struct{ Demands, Guesses, Flying int }

// backlogged is a store that tells its backlog; false where its lock is not to be had.
type backlogged interface{ backlog() (Backlog, bool) }

// lockTries and lockPause are how often and after which pause a report tries a lock that somebody else has: a fiftieth of
// a second is many times what anybody holds one.
const (
	lockTries = 20
	lockPause = time.Millisecond
)

// TryLock takes a lock that others hold for short times only. false: somebody keeps it.
func TryLock(l interface{ TryLock() bool }) bool {
	for range lockTries {
		if l.TryLock() {
			return true
		}
		time.Sleep(lockPause)
	}
	return false
}

// Waiting is a snapshot of who waits for what. It never waits for a lock that somebody keeps: false says that the cache's
// own is such a one, and nothing is known.
func (c *Cache) Waiting() (w Waiting, ok bool) {
	if !TryLock(&c.mu) {
		return w, false
	}
	w.Blocked = c.blocked + c.polling // who looks for reads that are done can be kept by that too
	for i := range c.v.slots {
		s := &c.v.slots[i]
		if s.state == slotReady && s.refs > 0 {
			w.Held = append(w.Held, LayerWant{int(s.layer), 1})
		}
		if s.state != slotLoading {
			continue
		}
		r := &c.reads[i]
		p := PendingRead{Desc: r.Desc, Began: r.began.Load()}
		if at := r.since.Load(); p.Began && at > 0 {
			p.For = time.Since(epoch) - time.Duration(at)
		}
		for it := s.waiters; it != nil; it = it.nextWait {
			p.Waiters++
		}
		w.Reads = append(w.Reads, p)
	}
	if r := c.v.streamer; r != nil && r.missing > 0 {
		w.Without = append(w.Without, LayerWant{r.layer, r.missing})
	}
	for r := c.v.waiting.head; r != nil; r = r.next {
		w.Without = append(w.Without, LayerWant{r.layer, r.missing})
	}
	c.mu.Unlock()
	slices.SortFunc(w.Held, func(a, b LayerWant) int { return cmp.Compare(a.Layer, b.Layer) })
	n := 0
	for _, h := range w.Held {
		if n > 0 && w.Held[n-1].Layer == h.Layer {
			w.Held[n-1].Experts++
		} else {
			w.Held[n], n = h, n+1
		}
	}
	w.Held = w.Held[:n]
	slices.SortStableFunc(w.Reads, func(a, b PendingRead) int {
		return cmp.Or(cmp.Compare(min(b.Waiters, 1), min(a.Waiters, 1)), cmp.Compare(b.For, a.For))
	})
	if s, is := c.store.(backlogged); is {
		w.Backlog, w.Store = s.backlog()
	}
	return w, true
}

// epoch is where the times at which reads began are counted from.
var epoch = time.Now()

// backlog implements backlogged.
func (q *queue) backlog() (Backlog, bool) {
	if !TryLock(&q.mu) {
		return Backlog{}, false
	}
	defer q.mu.Unlock()
	b := Backlog{Flying: q.flying}
	for r := q.demand.head; r != nil; r = r.next {
		b.Demands++
	}
	for r := q.guess.head; r != nil; r = r.next {
		b.Guesses++
	}
	return b, true
}

// backlog implements backlogged for a store that does.
func (v *verifier) backlog() (Backlog, bool) {
	s, ok := v.Store.(backlogged)
	if !ok {
		return Backlog{}, false
	}
	return s.backlog()
}

// backlog implements backlogged: that of both sides.
func (m *mirrored) backlog() (sum Backlog, ok bool) {
	for i := range m.sides {
		s, ok := m.sides[i].store.(backlogged)
		if !ok {
			return sum, false
		}
		b, ok := s.backlog()
		if !ok {
			return sum, false
		}
		sum.Demands, sum.Guesses, sum.Flying = sum.Demands+b.Demands, sum.Guesses+b.Guesses, sum.Flying+b.Flying
	}
	return sum, true
}
