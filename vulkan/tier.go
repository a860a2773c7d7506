//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"math"
	"sync"

	"terrace/compute"
	"terrace/gguf"
)

// tier is the experts that the device keeps, in segments of its memory that come and go whole. Who is kept is decided by others,
// on another goroutine than the one that computes: an expert is found from the moment on at which all of it is there, and one that
// is held stays.
type tier struct {
	b       *Backend
	mu      sync.Mutex
	mem     heap   // its segments
	target  uint64 // bytes of segments that there may be
	slots   map[uint64]*slot
	worth   func(key uint64) float64 // how much an expert is wanted; nil: nobody knows
	n       TierStats
	refused bool                   // the last segment that was asked for
	layers  map[uint64]*layerSlots // by the key of the first expert
	changes uint64                 // rises when an expert comes or goes
}

// slot is an expert in device memory.
type slot struct {
	mem            region
	gate, up, down uint64
	typ            [3]gguf.Type
	bytes          int64 // of the expert, alignment not counted
	pins           int
	ready          bool
	track          track
	layer          *layerSlots // that it was found in; nil: none
}

// layerSlots is the experts of a layer.
type layerSlots struct {
	n       int
	all     bool   // are kept
	changes uint64 // of the tier, when that was found out
	pins    int
	slots   []*slot
	version uint64 // rises when slots are others
}

// held reports whether somebody computes with the expert.
func (s *slot) held() bool { return s.pins > 0 || s.layer != nil && s.layer.pins > 0 }

const (
	// segmentMost is the most that is given back at a time, segmentLeast what is worth an allocation.
	segmentMost  = 512 << 20
	segmentLeast = 1 << 20
	// segmentsLeast is how many there are at least, so that memory can be given back while experts in others are in use.
	segmentsLeast = 8
)

var (
	_ compute.Slots       = (*Backend)(nil)
	_ compute.LayerKeeper = (*Backend)(nil)
)

// Hold implements compute.Keeper.
func (b *Backend) Hold(key uint64) bool {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[key]
	if s == nil || !s.ready {
		return false
	}
	s.pins++
	return true
}

// Release implements compute.Keeper.
func (b *Backend) Release(key uint64) {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[key]
	if s == nil || s.pins == 0 {
		panic(fmt.Sprintf("vulkan: expert %#x released, which is not held", key))
	}
	s.pins--
}

// HoldLayer implements compute.LayerKeeper.
func (b *Backend) HoldLayer(first uint64, n int) bool {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.layers[first]
	if l == nil {
		l = &layerSlots{n: n, slots: make([]*slot, n), changes: t.changes - 1}
		t.layers[first] = l
	}
	if l.pins == 0 && l.changes != t.changes {
		l.changes, l.all = t.changes, true
		for i := range l.slots {
			s := t.slots[first+uint64(i)]
			if s == nil || !s.ready || i > 0 && s.typ != l.slots[0].typ {
				l.all = false
				break
			}
			if s != l.slots[i] {
				l.slots[i] = s
				l.version++
			}
			s.layer = l
		}
	}
	if l.all {
		l.pins++
	}
	return l.all
}

// ReleaseLayer implements compute.LayerKeeper.
func (b *Backend) ReleaseLayer(first uint64) {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.layers[first]
	if l == nil || l.pins == 0 {
		panic(fmt.Sprintf("vulkan: experts from %#x on released, which are not held", first))
	}
	l.pins--
}

// Keeps implements compute.Keeper.
func (b *Backend) Keeps(key uint64) bool {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[key]
	return s != nil && s.ready
}

// Kept appends the keys of the experts that are kept.
func (b *Backend) Kept(dst []uint64) []uint64 {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.slots {
		if s.ready {
			dst = append(dst, key)
		}
	}
	return dst
}

// Err is an error that wraps ErrLost once the device is lost: what caches gave since may be anything.
func (b *Backend) Err() error {
	if b.dev != nil && b.dev.gone.Load() {
		return fmt.Errorf("vulkan: %s: %w", b.dev.c.info.Name, ErrLost)
	}
	return nil
}

// Put implements compute.Slots. The copy goes over the queue for transfers where there is one.
func (b *Backend) Put(x *compute.Expert) error {
	t := &b.tier
	up := func(n int) uint64 { return uint64(n+align-1) &^ (align - 1) }
	g, u, d := up(len(x.Gate.Data)), up(len(x.Up.Data)), up(len(x.Down.Data))
	s := &slot{typ: [3]gguf.Type{x.Gate.Type, x.Up.Type, x.Down.Type}, pins: 1, bytes: int64(len(x.Gate.Data) + len(x.Up.Data) + len(x.Down.Data))}
	t.mu.Lock()
	if t.slots[x.Key] != nil {
		t.mu.Unlock()
		return nil
	}
	var err error
	if s.mem, err = t.take(g + u + d); err != nil {
		t.mu.Unlock()
		return err
	}
	t.slots[x.Key] = s
	t.mu.Unlock()
	at := s.mem.addr()
	s.gate, s.up, s.down = at, at+g, at+g+u
	for _, p := range []struct {
		at uint64
		b  []byte
	}{{0, x.Gate.Data}, {g, x.Up.Data}, {g + u, x.Down.Data}} {
		if err == nil {
			err = b.side.put(s.mem, p.at, p.b)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.pins, s.ready = 0, true
	if err != nil {
		t.remove(x.Key, s)
		return err
	}
	t.changes++
	t.n.Puts++
	t.n.PutBytes += s.bytes
	t.n.ExpertBytes += s.bytes
	return nil
}

// Drop implements compute.Slots.
func (b *Backend) Drop(key uint64) bool {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[key]
	if s == nil || s.held() {
		return false
	}
	t.n.ExpertBytes -= s.bytes
	t.n.Drops++
	t.remove(key, s)
	return true
}

// remove frees a slot that nobody holds. Under mu.
func (t *tier) remove(key uint64, s *slot) {
	delete(t.slots, key)
	t.changes++
	s.mem.b.put(s.mem)
}

// take finds room for n bytes, in a new segment where the others have none. Under mu.
func (t *tier) take(n uint64) (region, error) {
	n = max((n+align-1)&^(align-1), align)
	for _, b := range t.mem.blocks {
		if r, ok := b.cut(n); ok {
			return r, nil
		}
	}
	full := fmt.Errorf("vulkan: %w of %d bytes beside %d of %d", compute.ErrNoRoom, n, t.mem.held, t.target)
	if t.mem.held+n > t.target {
		return region{}, full
	}
	size := min(max(t.target/segmentsLeast, segmentLeast), segmentMost, t.mem.most)
	size = min(max(size, n), t.target-t.mem.held)
	b := &block{}
	r := t.b.dev.allocate(size, t.mem.typ, 0, &b.b)
	if r != 0 {
		// The device has less than was thought: the tier is as large as it could become.
		t.target = t.mem.held
		t.n.Shrinks++
		t.refused = true
		if err := t.b.dev.check("a segment for experts", r); r == lostResult {
			return region{}, err
		}
		t.b.log.Warn("the device's memory is smaller than was thought: fewer experts are kept there", "segment", size, "kept", t.mem.held, "reason", result(int(r)))
		return region{}, full
	}
	b.size, b.free = size, []span{{0, size}}
	t.mem.blocks, t.mem.held = append(t.mem.blocks, b), t.mem.held+size
	got, _ := b.cut(n)
	return got, nil
}

// release gives one segment back, that whose experts are wanted least of those of which none is in use. Under mu.
func (t *tier) release() bool {
	type sum struct {
		worth float64
		busy  bool
	}
	all := make(map[*block]*sum, len(t.mem.blocks))
	for _, b := range t.mem.blocks {
		all[b] = &sum{}
	}
	for key, s := range t.slots {
		a := all[s.mem.b]
		a.busy = a.busy || s.held()
		if t.worth != nil {
			a.worth += t.worth(key)
		} else {
			a.worth += float64(s.bytes)
		}
	}
	at, low := -1, math.Inf(1)
	for i, b := range t.mem.blocks {
		if a := all[b]; !a.busy && a.worth < low {
			at, low = i, a.worth
		}
	}
	if at < 0 {
		return false
	}
	b := t.mem.blocks[at]
	for key, s := range t.slots {
		if s.mem.b == b {
			t.n.ExpertBytes -= s.bytes
			t.n.Drops++
			t.changes++
			delete(t.slots, key)
		}
	}
	t.mem.blocks = append(t.mem.blocks[:at], t.mem.blocks[at+1:]...)
	t.mem.held -= b.size
	t.b.dev.release(&b.b)
	return true
}

// SetTier sets how many bytes of the device's memory may hold experts, and answers how many do. Fewer than before: segments are
// given back, which waits for those in use: then it has to be called again.
func (b *Backend) SetTier(bytes int64) (held int64) {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.unified {
		bytes = 0
	}
	t.target, t.refused = uint64(max(bytes, 0)), false
	t.trim()
	return int64(t.mem.held)
}

// trim gives back what is beyond the target. Under mu.
func (t *tier) trim() {
	for t.mem.held > t.target && t.release() {
	}
}

// SetWorth tells how much experts are wanted, for the choice of segments that are given back. f is called under a lock.
func (b *Backend) SetWorth(f func(key uint64) float64) {
	b.tier.mu.Lock()
	defer b.tier.mu.Unlock()
	b.tier.worth = f
}

// take is device memory for what must be there, for which experts give way: the tier is smaller from then on.
func (b *Backend) take(n uint64) (region, error) {
	r, err := b.mem.take(n)
	for err != nil {
		t := &b.tier
		t.mu.Lock()
		gone := t.release()
		if gone {
			t.target = min(t.target, t.mem.held)
			t.n.Shrinks++
		}
		t.mu.Unlock()
		if !gone {
			break
		}
		b.log.Info("experts leave the device for what must be there", "bytes", n, "reason", err)
		r, err = b.mem.take(n)
	}
	return r, err
}

// Tier is how much the device keeps now. It may be asked from any goroutine.
func (b *Backend) Tier() TierStats {
	t := &b.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.n
	n.Experts, n.Bytes, n.Target, n.Segments = 0, int64(t.mem.held), int64(t.target), len(t.mem.blocks)
	for _, s := range t.slots {
		if s.ready {
			n.Experts++
		}
	}
	n.Imports, n.Copied = len(b.imports.list), b.imports.copied
	n.Unified, n.Refused = b.unified, b.imports.refused
	return n
}

// Memory is what the device offers to this process in all, what is taken of it, and whether the driver tells how much is free: else
// the offer is the heap's size less a tenth. With Options.Memory the offer is that.
func (b *Backend) Memory() (offer, held int64, told bool) {
	b.tier.mu.Lock()
	experts := int64(b.tier.mem.held)
	b.tier.mu.Unlock()
	held = int64(b.mem.total.Load()) + experts
	if b.opts.Memory > 0 {
		return b.opts.Memory, held, true
	}
	m := b.dev.heaps()
	h := &m.heap[m._type[b.mem.typ].heap]
	if h.budget > 0 {
		free := int64(h.budget)
		return held + free - free/16, held, true
	}
	return int64(h.size) / 10 * 9, held, false
}

// place is where an expert's matrices are to be computed from: its slot, or where it lies in memory that both see; nil: it has to
// be copied.
func (t *tier) place(x *compute.Expert, c *expertCall) *slot {
	if len(x.Up.Data) > 0 {
		if !t.b.unified {
			return nil
		}
		return t.b.imports.expert(x)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[x.Key]
	if s == nil || s.pins == 0 {
		panic(fmt.Sprintf("vulkan: expert %#x has no bytes and is not held", x.Key))
	}
	if s.typ != [3]gguf.Type{x.Gate.Type, x.Up.Type, x.Down.Type} {
		panic(fmt.Sprintf("vulkan: expert %#x has other types than before", x.Key))
	}
	t.b.enc.stats.Hits++
	return s
}

// close gives everything back.
func (t *tier) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.mem.blocks {
		t.b.dev.release(&b.b)
	}
	t.mem.blocks, t.mem.held, t.target = nil, 0, 0
	clear(t.slots)
}
