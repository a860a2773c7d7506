package tiers

import (
	"sync"
	"time"

	"terrace/internal/fault"
)

// queue decides which piece is read next; each store has one. Order: what is left of begun demands, new demands, then,
// within their own bound, guesses. The three pieces of an expert are issued together, as far as the depth allows.
// Methods need mu unless they say otherwise.
type queue struct {
	mu   sync.Mutex
	cond sync.Cond // for stores with workers: something may be read, or closed

	demand, guess readList
	flying        int // pieces being read
	flyingGuess   int // of these, issued as guesses
	guessBytes    int // of those
	depth         int
	guessDepth    int
	closed        bool

	busySince time.Time
	stats     StoreStats
}

func (q *queue) init(o *StoreOptions) {
	q.depth, q.guessDepth = o.Depth, o.GuessDepth
	q.cond.L = &q.mu
}

// Queue implements Store.
func (q *queue) Queue(r *Read) {
	if r.list != nil || r.left != 0 {
		panic("tiers: a read was queued that is already under way")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	r.piece, r.left, r.err = 0, 0, nil
	r.began.Store(false)
	r.since.Store(0)
	for i := range r.layout.spans {
		if r.layout.spans[i].length > 0 {
			r.left++
		}
	}
	q.listOf(r.Priority).push(r)
	for range r.left {
		q.cond.Signal()
	}
}

func (q *queue) listOf(p Priority) *readList {
	if p == Demand {
		return &q.demand
	}
	return &q.guess
}

// Promote implements Store.
func (q *queue) Promote(r *Read) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.list != &q.guess {
		return
	}
	q.guess.remove(r)
	r.Priority = Demand
	q.demand.push(r)
	for range r.left {
		q.cond.Signal()
	}
}

// Cancel implements Store.
func (q *queue) Cancel(r *Read) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.list == nil || r.began.Load() {
		return false
	}
	r.list.remove(r)
	r.left = 0
	return true
}

// Stats implements Store.
func (q *queue) Stats() StoreStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	if q.flying > 0 {
		s.Busy += fault.Since(q.busySince)
	}
	return s
}

// guessAhead is how many bytes of guesses are enough to keep a disk busy until the next are issued, and guessBeside how
// many may be under way while demands keep it busy.
const (
	guessAhead  = 2 << 20
	guessBeside = 512 << 10
)

// roomForGuess says whether one more guess may be read. A demand that comes next waits until the disk is through with the
// guesses before it, so there are no more of them than keep the disk busy; large pieces count by their bytes.
func (q *queue) roomForGuess() bool {
	switch {
	case q.flyingGuess >= q.guessDepth:
		return false
	case q.flying > q.flyingGuess:
		return q.guessBytes < guessBeside
	}
	return q.flyingGuess < 2 || q.guessBytes < guessAhead
}

// take gives the next piece to read and counts it as flying.
func (q *queue) take() (r *Read, piece int, ok bool) {
	if q.flying >= q.depth {
		return nil, 0, false
	}
	r = q.demand.head
	if r == nil {
		if q.guess.head == nil || !q.roomForGuess() {
			return nil, 0, false
		}
		r = q.guess.head
	}
	for r.layout.spans[r.piece].length == 0 {
		r.piece++
	}
	piece = r.piece
	if !r.began.Load() {
		r.since.Store(int64(time.Since(epoch)))
		r.began.Store(true)
	}
	r.as[piece] = r.Priority
	for r.piece++; r.piece < 3 && r.layout.spans[r.piece].length == 0; r.piece++ {
	}
	if r.piece == 3 {
		r.list.remove(r)
	}
	if q.flying == 0 {
		q.busySince = fault.Now()
	}
	q.flying++
	if r.as[piece] == Guess {
		q.flyingGuess++
		q.guessBytes += r.layout.spans[piece].size
	}
	return r, piece, true
}

// finish counts a piece that take gave as done; n is the number of bytes read. It answers true when the whole read is
// over: the caller then tells the sink r.err, without the lock. After an error the pieces not yet issued are dropped.
func (q *queue) finish(r *Read, piece, n int, err error) bool {
	q.flying--
	if r.as[piece] == Guess {
		q.flyingGuess--
		q.guessBytes -= r.layout.spans[piece].size
		q.stats.GuessBytes += int64(n)
	} else {
		q.stats.DemandBytes += int64(n)
	}
	if q.flying == 0 {
		q.stats.Busy += fault.Since(q.busySince)
	}
	q.stats.Reads++
	r.left--
	if err != nil {
		q.stats.Errors++
		if r.err == nil {
			r.err = err
		}
		if r.list != nil {
			r.list.remove(r)
			for ; r.piece < 3; r.piece++ {
				if r.layout.spans[r.piece].length > 0 {
					r.left--
				}
			}
		}
	}
	return r.left == 0
}

// shut refuses new pieces and gives the reads that had not begun, to be failed by the caller without the lock. Begun
// ones lose the pieces not yet issued.
func (q *queue) shut() (unbegun *Read) {
	q.closed = true
	q.cond.Broadcast()
	for _, l := range []*readList{&q.demand, &q.guess} {
		for l.head != nil {
			r := l.head
			l.remove(r)
			if r.err == nil {
				r.err = ErrClosed
			}
			for ; r.piece < 3; r.piece++ {
				if r.layout.spans[r.piece].length > 0 {
					r.left--
				}
			}
			if r.left == 0 {
				r.next, unbegun = unbegun, r
			}
		}
	}
	return unbegun
}

// failAll tells the sinks of a chain from shut. Without the lock.
func failAll(chain *Read) {
	for chain != nil {
		r := chain
		chain, r.next = r.next, nil
		r.Sink.ReadDone(r, r.err)
	}
}

// readList is a queue of reads, first in first out, from which any can be taken.
type readList struct{ head, tail *Read }

func (l *readList) push(r *Read) {
	r.list, r.prev, r.next = l, l.tail, nil
	if l.tail != nil {
		l.tail.next = r
	} else {
		l.head = r
	}
	l.tail = r
}

func (l *readList) remove(r *Read) {
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
	r.list, r.prev, r.next = nil, nil, nil
}
