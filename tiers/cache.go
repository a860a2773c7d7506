package tiers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/internal/invariant"
)

// ErrTooSmall is wrapped when a cache has less room than the smallest working set.
var ErrTooSmall = errors.New("too small")

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
	Bytes   int64    // of slots, alignment included: the arena
	Slots   int      // instead of Bytes: so many experts in the mix of their sizes, and no less than they can work in
	TopK    int      // experts a token uses in a layer

	Lookahead int // layers guessed ahead
	Guesses   int // experts guessed for a layer
	Sessions  int // sequences that use the cache at the same time; 1 when 0

	Policy   Policy
	HalfLife int // of EWMA, in visits of a layer; 64 when 0
	Log      *slog.Logger
}

// Cache holds experts in the slots of one arena, lends them out and reads those that are missing. Several sequences may
// use it at the same time. Only one read of an expert is under way, however many ask; a slot that is lent is never
// written; an expert is whole or absent.
type Cache struct {
	store   Store
	arena   *Arena
	experts [][]Desc
	layouts [][]layout
	log     *slog.Logger
	mean    int64 // bytes of a mean expert
	policy  Policy

	attacher Attacher               // the store, or nil
	commit   func(slot int32) error // the arena's, but for tests
	leaving  func(mem []byte)       // told before a slot's memory goes; nil: nobody

	mu       sync.Mutex
	v        *residency
	reads    []Read   // of each slot
	pre      *preload // nil before Preload
	requests []*Request
	one      [1]int32 // scratch
	dirty    bool
	closed   bool
	nomem    error  // why the slot just attached has no memory
	lacking  []lack // reads whose slots could get no memory
	guards   guards

	polling      int       // requests that look in Next whether reads are done
	blocked      int       // requests that are waiting in Next
	blockedSince time.Time // when blocked rose from 0
	blockedTime  time.Duration
	waited       time.Duration // summed over requests
}

// lack is a read that fails before it begins.
type lack struct {
	slot int32
	err  error
}

// NewCache makes a cache in an arena of o.Bytes, or of o.Slots experts, and takes over o.Store: Close closes it. After an
// error the store remains the caller's. Less than MinBytes is refused with ErrTooSmall.
func NewCache(o Options) (*Cache, error) {
	if o.Store == nil {
		panic("tiers: a cache without a store")
	}
	if o.TopK < 1 || o.Lookahead < 0 || o.Guesses < 0 || o.Sessions < 0 || o.HalfLife < 0 {
		panic(fmt.Sprintf("tiers: a cache for %d experts a token, lookahead %d, %d guesses, %d sessions, half-life %d", o.TopK, o.Lookahead, o.Guesses, o.Sessions, o.HalfLife))
	}
	if len(o.Experts) > math.MaxUint16+1 {
		return nil, fmt.Errorf("expert cache: %d layers; at most %d are possible", len(o.Experts), math.MaxUint16+1)
	}
	c := &Cache{store: o.Store, experts: o.Experts, log: o.Log, policy: o.Policy}
	c.attacher, _ = o.Store.(Attacher)
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
	z := sizesOfExperts(o.Experts)
	if z.slots == 0 {
		return nil, errors.New("expert cache: the model has no experts")
	}
	for _, layer := range bytes {
		for _, n := range layer {
			c.mean += n
		}
	}
	c.mean /= int64(z.slots)
	if z.slots > math.MaxInt32 {
		return nil, fmt.Errorf("expert cache: %d experts; at most %d are possible", z.slots, math.MaxInt32)
	}
	least := z.min(func(l int) int { return counts[l] }, Need{o.TopK, o.Lookahead, o.Guesses, o.Sessions})
	slots := min(MinSlots(o.TopK, o.Lookahead, o.Guesses)+2*o.TopK*(max(o.Sessions, 1)-1), z.slots) // with a slot for every expert nothing waits
	target := o.Bytes
	if target == 0 {
		if target = z.share(o.Slots); o.Slots >= slots {
			target = max(target, least)
		}
	}
	if target < least {
		return nil, fmt.Errorf("expert cache: %w: %d bytes, the smallest working set is %d bytes in %d slots (2 x %d experts a token + %d layers ahead x %d guesses, %d sequences)",
			ErrTooSmall, target, least, slots, o.TopK, o.Lookahead, o.Guesses, max(o.Sessions, 1))
	}
	c.v = newSized(bytes, z, target, least, o.TopK, newPolicy(o.Policy, counts, o.TopK, o.HalfLife), cacheMover{c})
	c.v.order = fileOrder(o.Experts)
	live := make([]int32, len(z.classes))
	for i := range live {
		live[i] = c.v.room.lists[i].live
	}
	arena, err := newArena(&z, live)
	if err != nil {
		return nil, err
	}
	arena.warm = newWarmer(arena.runs)
	c.arena, c.commit = arena, arena.commit
	c.reads = make([]Read, z.slots)
	if c.log != nil {
		c.log.Info("expert cache", "store", o.Store.Name(), "bytes", target, "slots", c.v.liveSlots(), "sizes", len(z.classes), "largest_slot", z.classes[0].bytes, "experts", z.slots)
	}
	return c, nil
}

// fileOrder is the place of each expert among those of its layer by shard and offset; nil when they lie by number.
func fileOrder(experts [][]Desc) [][]int32 {
	byNumber := true
	out := make([][]int32, len(experts))
	for l, layer := range experts {
		at := make([]int, len(layer))
		for e := range at {
			at[e] = e
		}
		slices.SortStableFunc(at, func(a, b int) int {
			x, y := layer[a].first(), layer[b].first()
			return cmp.Or(cmp.Compare(x.Shard, y.Shard), cmp.Compare(x.Offset, y.Offset))
		})
		out[l] = make([]int32, len(layer))
		for place, e := range at {
			out[l][e] = int32(place)
			byNumber = byNumber && place == e
		}
	}
	if byNumber {
		return nil
	}
	return out
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
	c.pump()
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

// PrefetchOver is Prefetch for one guess that comes true with a chance from 0 to 1: it takes no slot from an expert that its
// own layer wants at least as often.
func (c *Cache) PrefetchOver(layer int, expert int32, chance float32) int {
	c.mu.Lock()
	defer c.unlock()
	c.one[0] = expert
	if c.valid(layer, c.one[:]) != nil {
		return 0
	}
	return c.v.prefetchOver(layer, c.one[:], float64(chance))
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

// Withdraw takes back the guess of one expert: it is no longer protected, and its read is cancelled if that has not begun,
// which is answered with true. The expert may be read or kept on another's behalf all the same.
func (c *Cache) Withdraw(layer int, expert int32) bool {
	c.mu.Lock()
	defer c.unlock()
	if c.closed || layer < 0 || layer >= len(c.experts) || expert < 0 || int(expert) >= len(c.experts[layer]) {
		return false
	}
	return c.v.withdraw(layer, expert)
}

// Resize sets how many bytes of slots the arena may have, at least MinBytes and at most a slot for every expert, and
// returns how many are live now. A smaller arena lets idle experts go at once, the lowest scores first, and the others as
// leases and reads end; memory goes back to the system slot by slot. A slot that is lent stays as it is. May be called at
// any time.
func (c *Cache) Resize(bytes int64) int64 {
	c.mu.Lock()
	if !c.closed {
		c.v.setTarget(bytes)
	}
	c.unlock()
	_, live := c.Arena()
	return live
}

// Arena is the bytes of slots that there may be and that there are. There are more while a smaller target waits for
// leases and reads to end.
func (c *Cache) Arena() (target, live int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v.room.target, c.v.room.live
}

// MinBytes is the smallest working set in bytes of slots, below which Resize does not go.
func (c *Cache) MinBytes() int64 { return c.v.least }

// MaxBytes is a slot for every expert, above which Resize does not go.
func (c *Cache) MaxBytes() int64 { return c.v.bytes }

// Memory is the addresses of all slots. What of it holds none is with the system.
func (c *Cache) Memory() []byte { return c.arena.space.Mem }

// OnRelease has f called with the memory of a slot before it goes back to the system; f must not call the cache.
func (c *Cache) OnRelease(f func(mem []byte)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = f
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

// Disk is what the store counted.
func (c *Cache) Disk() StoreStats { return c.store.Stats() }

// MeanBytes is the size of a mean expert.
func (c *Cache) MeanBytes() int64 { return c.mean }

// Pending is the bytes of the experts whose reads wait or are under way.
func (c *Cache) Pending() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v.pending
}

// Complete reports whether every expert is in RAM, where all stay until Resize: there is nothing to prefetch.
func (c *Cache) Complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v.ready == len(c.v.slots) && c.v.room.target == c.v.bytes
}

// Pin makes exactly these experts stay in the cache, as many as leave MinBytes to the others, in the given order,
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

// unlock leaves the lock, lets the store start reads that were queued under it, and does what must not be done under one
// hold of the lock.
func (c *Cache) unlock() {
	for {
		if invariant.On {
			c.consistent()
		}
		kick, over := c.dirty, c.v.over()
		c.dirty = false
		var failed lack
		if n := len(c.lacking); n > 0 {
			failed, c.lacking = c.lacking[n-1], c.lacking[:n-1]
		}
		c.mu.Unlock()
		if kick {
			c.store.Kick()
		}
		if !over && failed.err == nil {
			return
		}
		runtime.Gosched()
		c.mu.Lock()
		if failed.err != nil {
			c.v.slots[failed.slot].touched = false
			c.withdrawn(int(failed.slot))
			c.v.done(failed.slot, failed.err)
		}
		c.v.trim(trimStep)
	}
}

// ReadDone implements Sink.
func (c *Cache) ReadDone(r *Read, err error) {
	c.mu.Lock()
	if invariant.On && err == nil {
		c.arrived(int32(r.Slot))
	}
	c.preloaded(r, err)
	c.v.done(int32(r.Slot), err)
	c.pump()
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
	if err := c.nomem; err != nil {
		c.nomem = nil
		r.began.Store(true) // too late to be taken back
		c.lacking = append(c.lacking, lack{i, fmt.Errorf("%v: no memory for its slot: %w", r.Desc.ID, err)})
		return
	}
	if invariant.On {
		c.untouched(i)
	}
	c.store.Queue(r)
	c.dirty = true
}

// attach comes just before the start of the first read into a slot.
func (m cacheMover) attach(i int32) {
	c := m.c
	if c.nomem = c.commit(i); c.nomem != nil {
		return
	}
	if invariant.On {
		m.poison(i)
	}
	if c.attacher != nil {
		c.attacher.Attach(int(i), c.arena.Slot(int(i)))
	}
}

func (m cacheMover) detach(i int32) {
	c := m.c
	if c.attacher != nil {
		c.attacher.Detach(int(i))
	}
	if c.leaving != nil {
		c.leaving(c.arena.Slot(int(i)))
	}
	if err := c.arena.release(i); err != nil && c.log != nil {
		c.log.Warn("expert cache: a slot's memory was not given back", "slot", i, "reason", err)
	}
}

func (m cacheMover) promote(i int32) {
	m.c.store.Promote(&m.c.reads[i])
	m.c.dirty = true
}

func (m cacheMover) cancel(i int32) bool {
	if !m.c.store.Cancel(&m.c.reads[i]) {
		return false
	}
	m.c.withdrawn(int(i))
	return true
}

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
			if invariant.On {
				c.unchanged(it)
			}
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
			c.polling++
			c.unlock()
			c.store.Poll()
			c.mu.Lock()
			c.polling--
			continue
		}
		if err := ctx.Err(); err != nil {
			c.unlock()
			return Lease{}, false, err
		}
		began := fault.Now()
		if c.blocked == 0 {
			c.blockedSince = began
		}
		c.blocked++
		c.unlock()
		r.block(ctx)
		c.mu.Lock()
		now := fault.Now()
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
	if invariant.On {
		for i := range r.r.items {
			c.unchanged(&r.r.items[i])
		}
	}
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
	return l.r.c.views(l.slot, int32(l.r.r.layer), l.expert)
}

// views are the bytes of an expert in a slot.
func (c *Cache) views(slot, layer, expert int32) [3][]byte {
	mem := c.arena.Slot(int(slot))
	var out [3][]byte
	for i := range out {
		s := &c.layouts[layer][expert].spans[i]
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
	if invariant.On {
		c.unchanged(l.it)
	}
	c.v.release(l.it)
}
