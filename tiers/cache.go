package tiers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"time"
)

// ErrTooSmall is wrapped when a cache has fewer slots than the smallest working set.
var ErrTooSmall = errors.New("too few slots")

// Policy names the rule by which experts leave the cache.
type Policy uint8

// The policies.
const (
	Reuse Policy = iota // learned: when an expert will be wanted again
	EWMA                // decayed frequency
	LRU                 // time of the last use
)

func (p Policy) String() string { return [...]string{"reuse", "EWMA", "LRU"}[p] }

// Options configure a cache.
type Options struct {
	Store   Store
	Experts [][]Desc // [layer][expert]; a layer without experts is empty
	Slots   int      // experts that fit into RAM
	TopK    int      // experts a token uses in a layer

	Lookahead int // layers guessed ahead
	Guesses   int // experts guessed for a layer

	Policy   Policy
	HalfLife int // of EWMA, in visits of a layer; 64 when 0
	Log      *slog.Logger
}

// MinSlots is the smallest working set in slots: two layers' experts, because a backend may still compute one while the
// next is fetched, and the guesses, which are held until their layer settles.
func MinSlots(topK, lookahead, guesses int) int { return 2*topK + lookahead*guesses }

// Cache holds experts in the slots of one arena, lends them out and reads those that are missing. Several sequences may
// use it at the same time. Only one read of an expert is under way, however many ask; a slot that is lent is never
// written; an expert is whole or absent.
type Cache struct {
	store   Store
	arena   *Arena
	experts [][]Desc
	layouts [][]layout
	log     *slog.Logger
	total   int // experts

	mu       sync.Mutex
	v        *residency
	reads    []Read // of each slot
	requests []*Request
	dirty    bool
	closed   bool
	complete bool // every expert is resident: sticky, for with a slot for each nothing is ever evicted

	blocked      int       // requests that are waiting in Next
	blockedSince time.Time // when blocked rose from 0
	blockedTime  time.Duration
	waited       time.Duration // summed over requests
}

// NewCache makes a cache of o.Slots slots and takes over o.Store: Close closes it. After an error the store remains the
// caller's. Fewer slots than MinSlots are refused with ErrTooSmall.
func NewCache(o Options) (*Cache, error) {
	total := 0
	for _, experts := range o.Experts {
		total += len(experts)
	}
	least := min(MinSlots(o.TopK, o.Lookahead, o.Guesses), total) // with a slot for every expert nothing waits
	switch {
	case o.Store == nil:
		panic("tiers: a cache without a store")
	case o.TopK < 1 || o.Lookahead < 0 || o.Guesses < 0 || o.HalfLife < 0:
		panic(fmt.Sprintf("tiers: a cache for %d experts a token, lookahead %d, %d guesses, half-life %d", o.TopK, o.Lookahead, o.Guesses, o.HalfLife))
	case o.Slots < least:
		return nil, fmt.Errorf("expert cache: %w: %d, the smallest working set is %d (2 x %d experts a token + %d layers ahead x %d guesses)",
			ErrTooSmall, o.Slots, least, o.TopK, o.Lookahead, o.Guesses)
	case o.Slots > math.MaxInt32 || len(o.Experts) > math.MaxUint16+1:
		return nil, fmt.Errorf("expert cache: %d slots, %d layers; at most %d and %d are possible", o.Slots, len(o.Experts), math.MaxInt32, math.MaxUint16+1)
	}
	c := &Cache{store: o.Store, experts: o.Experts, log: o.Log, total: total}
	var counts []int
	var bytes [][]int64
	for layer, experts := range o.Experts {
		if len(experts) > math.MaxUint16+1 {
			return nil, fmt.Errorf("expert cache: layer %d has %d experts; at most %d are possible", layer, len(experts), math.MaxUint16+1)
		}
		ls, bs := make([]layout, len(experts)), make([]int64, len(experts))
		for e := range experts {
			d := &experts[e]
			if d.ID != (ExpertID{uint16(layer), uint16(e)}) {
				panic(fmt.Sprintf("tiers: %v is listed as expert %d of layer %d", d.ID, e, layer))
			}
			if err := d.check(); err != nil {
				return nil, err
			}
			if err := o.Store.Check(d); err != nil {
				return nil, err
			}
			ls[e] = layoutOf(d)
			bs[e] = d.Bytes()
		}
		counts = append(counts, len(experts))
		c.layouts = append(c.layouts, ls)
		bytes = append(bytes, bs)
	}
	if total == 0 {
		return nil, errors.New("expert cache: the model has no experts")
	}
	arena, err := NewArena(o.Slots, SlotBytes(o.Experts))
	if err != nil {
		return nil, err
	}
	c.arena = arena
	if b, ok := o.Store.(interface{ bind(*Arena) }); ok {
		b.bind(arena)
	}
	c.v = newResidency(bytes, o.Slots, o.TopK, least, newPolicy(o.Policy, counts, o.TopK, o.HalfLife), cacheMover{c})
	c.reads = make([]Read, o.Slots)
	if c.log != nil {
		c.log.Info("expert cache", "store", o.Store.Name(), "slots", o.Slots, "slot_bytes", arena.slot, "experts", total)
	}
	return c, nil
}

// Begin asks for distinct experts of a layer and starts to read those that are absent. There may be more than fit: then
// leases must be released for the others to come. The request is returned to the cache by Close.
func (c *Cache) Begin(layer int, experts []int32) (*Request, error) {
	c.mu.Lock()
	defer c.unlock()
	if err := c.valid(layer, experts); err != nil {
		return nil, err
	}
	var r *Request
	if n := len(c.requests); n > 0 {
		r = c.requests[n-1]
		c.requests = c.requests[:n-1]
	} else {
		r = &Request{c: c}
		r.r.wake = make(chan struct{}, 1)
	}
	r.closed = false
	c.v.begin(&r.r, layer, experts)
	return r, nil
}

// Prefetch queues reads of experts that a layer ahead will probably use, best guess first, and protects those already
// here until that layer settles. It never blocks, never takes the place of what is lent, pinned, guessed or waited for,
// and does nothing when guesses hold all slots they may. Returns the number of reads queued.
func (c *Cache) Prefetch(layer int, experts []int32) int {
	c.mu.Lock()
	defer c.unlock()
	if c.valid(layer, experts) != nil {
		return 0
	}
	return c.v.prefetch(layer, experts)
}

// Settle says which experts a layer truly uses; call it before the layer's Begin. Guesses for the layer end: the wrong
// ones lose their protection, and what of them has not begun to be read is taken back. With several sequences in turn,
// the first to settle a layer settles the guesses of all.
func (c *Cache) Settle(layer int, experts []int32) Settlement {
	c.mu.Lock()
	defer c.unlock()
	if c.valid(layer, experts) != nil {
		return Settlement{}
	}
	return c.v.settle(layer, experts)
}

// Contains says where an expert is. It does not count as a use.
func (c *Cache) Contains(layer, expert int) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if layer < 0 || layer >= len(c.v.where) || expert < 0 || expert >= len(c.v.where[layer]) {
		return Absent
	}
	return c.v.state(layer, expert)
}

// Complete reports whether every expert is in RAM, where they stay: from then on there is nothing to prefetch.
func (c *Cache) Complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.complete || len(c.v.slots) < c.total {
		return c.complete
	}
	ready := 0
	for i := range c.v.slots {
		if c.v.slots[i].state == slotReady {
			ready++
		}
	}
	c.complete = ready == c.total
	return c.complete
}

// Pin makes exactly these experts stay in the cache, as many as leave MinSlots slots to the others, in the given order,
// and queues reads of those that are absent. It returns how many are pinned; nil unpins all.
func (c *Cache) Pin(ids []ExpertID) (int, error) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return 0, fmt.Errorf("expert cache: %w", ErrClosed)
	}
	for _, id := range ids {
		if int(id.Layer) >= len(c.experts) || int(id.Expert) >= len(c.experts[id.Layer]) {
			return c.v.pins, fmt.Errorf("expert cache: pin %v: there is none", id)
		}
	}
	return c.v.pin(ids), nil
}

// valid refuses numbers that do not exist and a closed cache.
func (c *Cache) valid(layer int, experts []int32) error {
	if c.closed {
		return fmt.Errorf("expert cache: %w", ErrClosed)
	}
	if layer < 0 || layer >= len(c.experts) {
		return fmt.Errorf("expert cache: layer %d of %d", layer, len(c.experts))
	}
	for _, e := range experts {
		if e < 0 || int(e) >= len(c.experts[layer]) {
			return fmt.Errorf("expert cache: expert %d of layer %d, which has %d", e, layer, len(c.experts[layer]))
		}
	}
	return nil
}

// unlock leaves the lock and, if reads were queued under it, lets the store start them.
func (c *Cache) unlock() {
	kick := c.dirty
	c.dirty = false
	c.mu.Unlock()
	if kick {
		c.store.Kick()
	}
}

// ReadDone implements Sink.
func (c *Cache) ReadDone(r *Read, err error) {
	c.mu.Lock()
	c.v.done(int32(r.Slot), err)
	c.unlock()
}

// Close ends everything: requests that wait get ErrClosed, reads under way are waited for, the store is closed and the
// memory returned. No lease may be out.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if n := c.v.leases; n > 0 {
		c.mu.Unlock()
		panic(fmt.Sprintf("tiers: cache closed with %d leases out", n))
	}
	c.closed = true
	c.v.abandon(fmt.Errorf("expert cache: %w", ErrClosed))
	c.mu.Unlock()
	err := c.store.Close()
	return errors.Join(err, c.arena.Free())
}

// cacheMover lets residency act. All of it runs under the cache's lock.
type cacheMover struct{ c *Cache }

func (m cacheMover) start(i int32, p Priority) {
	c := m.c
	s := &c.v.slots[i]
	r := &c.reads[i]
	r.Desc, r.layout = &c.experts[s.layer][s.expert], &c.layouts[s.layer][s.expert]
	r.Slot, r.Dst, r.Priority, r.Sink = int(i), c.arena.Slot(int(i)), p, c
	c.store.Queue(r)
	c.dirty = true
}

func (m cacheMover) promote(i int32) {
	m.c.store.Promote(&m.c.reads[i])
	m.c.dirty = true
}

func (m cacheMover) cancel(i int32) bool { return m.c.store.Cancel(&m.c.reads[i]) }

func (m cacheMover) begun(i int32) bool { return m.c.reads[i].began.Load() }

func (m cacheMover) wake(r *request) {
	select {
	case r.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Request hands out the experts of one Begin as leases. It belongs to one goroutine.
//
// A request of at most TopK experts may keep all its leases while it waits for the others. A longer one, or a goroutine
// with several requests, must release what it holds before it waits, when Next without waiting has nothing: the slots it
// waits for may be its own.
type Request struct {
	c      *Cache
	r      request
	serial uint32 // distinguishes uses of this struct
	closed bool
}

// Next hands out a lease in the order in which experts become ready, those that were resident first. false without error:
// with wait none is ready now, or ever: all were handed out (Left is 0); without wait none is ready now. An error is that
// of a failed read or of ctx; the request is of no further use then and must be closed.
func (r *Request) Next(ctx context.Context, wait bool) (Lease, bool, error) {
	c := r.c
	polled := false
	c.mu.Lock()
	for {
		if r.closed {
			c.mu.Unlock()
			panic("tiers: Next on a closed request")
		}
		err := r.r.err
		if err == nil && c.closed {
			err = fmt.Errorf("expert cache: %w", ErrClosed)
		}
		if err != nil {
			c.unlock()
			return Lease{}, false, err
		}
		if it := c.v.lease(&r.r); it != nil {
			l := Lease{r: r, it: it, expert: it.expert, slot: it.slot, serial: r.serial}
			c.unlock()
			return l, true, nil
		}
		if r.r.left == 0 || polled && !wait {
			c.unlock()
			return Lease{}, false, nil
		}
		if !polled { // perhaps the reads are done and nobody has looked
			polled = true
			c.unlock()
			c.store.Poll()
			c.mu.Lock()
			continue
		}
		if err := ctx.Err(); err != nil {
			c.unlock()
			return Lease{}, false, err
		}
		began := time.Now()
		if c.blocked == 0 {
			c.blockedSince = began
		}
		c.blocked++
		c.unlock()
		r.block(ctx)
		c.mu.Lock()
		now := time.Now()
		c.waited += now.Sub(began)
		c.blocked--
		if c.blocked == 0 {
			c.blockedTime += now.Sub(c.blockedSince)
		}
	}
}

// spins is how often a waiting request looks before it parks. A park and wake cost some 5 microseconds, a read some 500,
// so spinning pays only for reads that are nearly done; each turn yields, so that workers and the collector get on.
const spins = 20

// block returns when something changed for the request, or ctx is over.
func (r *Request) block(ctx context.Context) {
	for range spins {
		select {
		case <-r.r.wake:
			return
		default:
		}
		r.c.store.Poll()
		runtime.Gosched()
	}
	select {
	case <-r.r.wake:
	case <-ctx.Done():
	}
}

// Left is the number of experts that were neither handed out nor failed.
func (r *Request) Left() int {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.r.left
}

// Close gives back all leases, takes back reads that only this request wanted and that have not begun, and returns the
// request to the cache. The request and its leases must not be used afterwards.
func (r *Request) Close() {
	c := r.c
	c.mu.Lock()
	defer c.unlock()
	if r.closed {
		panic("tiers: a request was closed twice")
	}
	r.closed = true
	r.serial++
	c.v.close(&r.r)
	select {
	case <-r.r.wake: // a token for the past must not wake the next user
	default:
	}
	c.requests = append(c.requests, r)
}

// Done is Close, under the name that a compute backend calls when it has run what read the leases.
func (r *Request) Done() { r.Close() }

// Lease is an expert in RAM, unchanged until Release or the request's Close.
type Lease struct {
	r      *Request
	it     *item
	expert int32
	slot   int32
	serial uint32
}

// Expert is the expert's number in its layer.
func (l Lease) Expert() int { return int(l.expert) }

// Views are the exact bytes of gate, up and down; of length 0 where the expert has none.
func (l Lease) Views() [3][]byte {
	c := l.r.c
	mem := c.arena.Slot(int(l.slot))
	var out [3][]byte
	for i := range out {
		s := &c.layouts[l.r.r.layer][l.expert].spans[i]
		out[i] = mem[s.at+s.skip : s.at+s.want() : s.at+s.want()]
	}
	return out
}

// Release gives the expert back. The views must not be used afterwards.
func (l Lease) Release() {
	c := l.r.c
	c.mu.Lock()
	defer c.unlock()
	if l.serial != l.r.serial {
		panic("tiers: a lease was released after its request was closed")
	}
	c.v.release(l.it)
}
