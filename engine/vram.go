package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"terrace/compute"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/tiers"
	"terrace/vulkan"
)

// vram moves experts into the memory of a device, the hottest first, while others compute: room is filled as it is there, and an
// expert takes another's place only when it is wanted clearly more often. It moves copies of experts that are in RAM, which leave
// there; where the device has room for every expert, those on disk too.
type vram struct {
	g *gpu
	e *Engine

	keys   []uint64 // by the expert's number through the model
	ids    []tiers.ExpertID
	hits   []atomic.Int64 // by layer
	whole  atomic.Bool    // every expert is in RAM or here
	moved  atomic.Int64   // swaps
	budget atomic.Int64   // bytes of the device's memory in all; 0: what it offers
	kick   chan struct{}

	mu     sync.Mutex // while it moves
	heat   []float64
	seen   []uint32 // the monitor's counts at the last look
	rows   int64
	kept   []bool
	places []byte
	list   []uint64
	// settled: nothing will change before something runs, unless it is forced.
	settled, force bool
	files          []*os.File
	buf            []byte
	looked         time.Time // at the device's memory

	stop, done chan struct{}
}

const (
	// vramEvery is the time between two looks at who is hot, vramLook at the device's memory.
	vramEvery = 100 * time.Millisecond
	vramLook  = time.Second
	// heatRows is the number of tokens after which a use counts half.
	heatRows = 4096
	// swapLead is how much hotter an expert must be than the one whose place it takes, in uses swapUses more.
	swapLead, swapUses = 1.5, 2.0
	// swapMost and fillBytes bound what is moved between two looks.
	swapMost  = 8
	fillBytes = 512 << 20
)

func newVRAM(g *gpu) *vram {
	e := g.e
	v := &vram{g: g, e: e, hits: make([]atomic.Int64, len(e.table)), kick: make(chan struct{}, 1)}
	for l, xs := range e.table {
		for i := range xs {
			v.keys = append(v.keys, expertKey(l, int32(i)))
			v.ids = append(v.ids, xs[i].ID)
		}
	}
	v.heat, v.seen = make([]float64, len(v.keys)), make([]uint32, len(v.keys))
	v.kept, v.places, v.list = make([]bool, len(v.keys)), make([]byte, len(v.keys)), make([]uint64, 0, len(v.keys))
	if e.heat != nil { // what earlier runs learned counts like a few hundred tokens
		if learned, err := e.heat.profile.Load(); err == nil {
			at := 0
			for _, xs := range learned.Rates() {
				for _, r := range xs {
					v.heat[at] = r * 256
					at++
				}
			}
		}
	}
	v.budget.Store(e.opt.VRAM)
	v.fit()
	return v
}

// fit sets the room for experts to what the device's memory leaves.
func (v *vram) fit() {
	b := v.g.b.Load()
	if b == nil {
		return
	}
	v.looked = time.Now()
	if n := v.e.opt.gpu.tier; n > 0 {
		b.SetTier(n)
		return
	}
	b.SetTier(max(0, v.room(b)))
}

// room is what is left for experts.
func (v *vram) room(b *vulkan.Backend) int64 {
	offer, held, _ := b.Memory()
	if n := v.budget.Load(); n > 0 {
		offer = min(offer, n)
	}
	t := b.Tier()
	other := held - t.Bytes
	reserve := max(v.g.base0()+v.g.reserve()-other, 0) // of which sequences have taken some
	return offer - other - reserve - plan.CardMargin(offer)
}

// base0 is what the weights took.
func (g *gpu) base0() int64 {
	n := int64(0)
	for l, x := range g.e.model.LayerBytes() {
		if l >= g.first {
			n += x
		}
	}
	return n
}

func (v *vram) start() {
	v.stop, v.done = make(chan struct{}), make(chan struct{})
	go v.run()
}

func (v *vram) close() {
	if v.stop != nil {
		close(v.stop)
		<-v.done
		v.stop = nil
	}
	for _, f := range v.files {
		if f != nil {
			f.Close()
		}
	}
	if v.buf != nil {
		_ = host.Free(v.buf)
	}
}

// pause waits until nothing is moved, after which there is no device to move to.
func (v *vram) pause() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.whole.Store(false)
}

// resume fills a device that came back.
func (v *vram) resume() {
	v.mu.Lock()
	v.fit()
	v.force = true
	v.mu.Unlock()
	v.wake()
}

func (v *vram) wake() {
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

func (v *vram) run() {
	defer close(v.done)
	t := time.NewTicker(vramEvery)
	defer t.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-t.C:
		case <-v.kick:
		}
		v.mu.Lock()
		for v.step() {
			select {
			case <-v.stop:
				v.mu.Unlock()
				return
			default:
			}
		}
		v.mu.Unlock()
	}
}

// learn brings the heat up to date. It answers whether anything ran.
func (v *vram) learn() bool {
	m := v.e.mon
	m.mu.Lock()
	rows := m.rows
	if rows == v.rows {
		m.mu.Unlock()
		return false
	}
	fade := math.Exp2(-float64(rows-v.rows) / heatRows)
	v.rows = rows
	for i, n := range m.used {
		v.heat[i] = v.heat[i]*fade + float64(n-v.seen[i])
		v.seen[i] = n
	}
	m.mu.Unlock()
	return true
}

// candidate is an expert that is here, or may come.
type candidate struct {
	at   int
	heat float64
}

// number is the number of an expert through the model.
func (v *vram) number(key uint64) int { return int(v.e.mon.first[key>>32]) + int(uint32(key)) - 1 }

// resident reports whether an expert was in RAM at the last look.
func (v *vram) resident(i int) bool { return tiers.State(v.places[i]&0x0f) == tiers.Resident }

// step looks once and moves what is worth it; it answers whether there is more to do at once. Under mu.
func (v *vram) step() (more bool) {
	b := v.g.b.Load()
	if b == nil || b.Err() != nil {
		return false
	}
	ran := v.learn()
	if time.Since(v.looked) >= vramLook {
		v.watch(b)
	}
	t := b.Tier()
	if t.Target == 0 || !ran && v.settled && !v.force {
		return false
	}
	v.force = false
	kept := v.kept
	clear(kept)
	for _, key := range b.Kept(v.list[:0]) {
		kept[v.number(key)] = true
	}
	v.e.cache.Places(v.places)
	var here, out []candidate
	there, skipped := 0, 0
	for i := range v.keys {
		switch {
		case kept[i]:
			here = append(here, candidate{i, v.heat[i]})
		case int(v.ids[i].Layer) < v.g.first:
			skipped++
		default:
			out = append(out, candidate{i, v.heat[i]})
		}
		if kept[i] || v.resident(i) {
			there++
		}
	}
	v.whole.Store(there == len(v.keys))
	if ran {
		worth := make(map[uint64]float64, len(here))
		for _, c := range here {
			worth[v.keys[c.at]] = c.heat
		}
		b.SetWorth(func(key uint64) float64 { return worth[key] })
	}
	hotter := func(a, b candidate) int { return cmp.Or(cmp.Compare(b.heat, a.heat), cmp.Compare(a.at, b.at)) }
	slices.SortFunc(out, hotter)
	all := t.Target >= v.e.budget.ArenaMost && skipped == 0
	full, moved, bytes := false, 0, int64(0)
	for _, c := range out {
		if full || !all && c.heat == 0 || bytes >= fillBytes {
			more = more || bytes >= fillBytes
			break
		}
		n, err := v.put(c.at, all)
		switch {
		case errors.Is(err, compute.ErrNoRoom):
			full = true
		case err != nil:
			v.e.log.Warn("an expert was not brought to the device", "error", err)
			return false
		}
		if n > 0 {
			moved++
			bytes += n
		}
	}
	v.settled = full || moved == 0 && !all
	if moved > 0 || !full || v.e.opt.gpu.frozen || !ran || v.g.placementDependent() {
		return more
	}
	slices.SortFunc(here, func(a, b candidate) int { return hotter(b, a) })
	swaps := 0
	for _, c := range out {
		if swaps == len(here) || swaps == swapMost || c.heat <= swapLead*here[swaps].heat+swapUses {
			break
		}
		if !v.resident(c.at) {
			continue
		}
		if !b.Drop(v.keys[here[swaps].at]) { // in use: the next look finds it
			break
		}
		swaps++
		v.moved.Add(1)
		if _, err := v.put(c.at, false); err != nil {
			break // of another size: room for it comes with the next that goes
		}
	}
	return more
}

// watch follows what the device offers: the tier shrinks at once, by whole segments, and grows again when there is clearly more.
func (v *vram) watch(b *vulkan.Backend) {
	v.looked = time.Now()
	if v.e.opt.gpu.tier > 0 {
		return
	}
	room, t := v.room(b), b.Tier()
	switch {
	case room < t.Target-t.Target/32, room > t.Target+max(t.Target/8, 64<<20) && t.Shrinks == 0:
		b.SetTier(max(room, 0))
	}
}

// put brings an expert to the device and answers its bytes, 0 where it is not in RAM; with disk it is read.
func (v *vram) put(at int, disk bool) (int64, error) {
	id := v.ids[at]
	shape := &v.e.shapes[id.Layer]
	x := compute.Expert{Gate: shape.gate, Up: shape.up, Down: shape.down, Key: v.keys[at]}
	loan, ok := v.e.cache.Lend(id)
	var views [3][]byte
	switch {
	case ok:
		views = loan.Views()
	case disk:
		var err error
		if views, err = v.read(id); err != nil {
			return 0, err
		}
	default:
		return 0, nil
	}
	x.Gate.Data, x.Up.Data, x.Down.Data = views[0], views[1], views[2]
	err := v.g.split.Put(&x)
	if ok {
		loan.Return(err == nil)
	}
	if err != nil {
		return 0, err
	}
	return int64(len(views[0]) + len(views[1]) + len(views[2])), nil
}

// read reads an expert from the model's files.
func (v *vram) read(id tiers.ExpertID) (views [3][]byte, err error) {
	d := &v.e.table[id.Layer][id.Expert]
	n := int(d.Bytes())
	if len(v.buf) < n {
		if v.buf != nil {
			_ = host.Free(v.buf)
			v.buf = nil
		}
		if v.buf, err = host.Alloc(n); err != nil {
			return views, err
		}
	}
	if v.files == nil {
		v.files = make([]*os.File, len(v.e.file.Shards))
	}
	at := 0
	for i := range d.Pieces {
		p := &d.Pieces[i]
		if p.Length == 0 {
			continue
		}
		f := v.files[p.Shard]
		if f == nil {
			if f, err = os.Open(v.e.file.Shards[p.Shard].Path); err != nil {
				return views, err
			}
			v.files[p.Shard] = f
		}
		views[i] = v.buf[at : at+int(p.Length)]
		if _, err := f.ReadAt(views[i], p.Offset); err != nil {
			return views, fmt.Errorf("%s: expert %d of layer %d: %w", f.Name(), id.Expert, id.Layer, err)
		}
		at += int(p.Length)
	}
	return views, nil
}

// SetVRAM changes how much of the device's memory may be taken in all; experts make room or fill it. Less than the dense weights,
// the context and what activations take is refused.
func (e *Engine) SetVRAM(bytes int64) error {
	g := e.gpu
	if g == nil || g.tier == nil {
		return fmt.Errorf("%w: there is no graphics card whose memory keeps experts", ErrUnsupported)
	}
	b := g.b.Load()
	if b == nil {
		return fmt.Errorf("%w: the graphics card was lost", ErrUnsupported)
	}
	v := g.tier
	v.mu.Lock()
	defer v.mu.Unlock()
	least := v.least(b)
	if bytes < least {
		return fmt.Errorf("VRAM budget of %d bytes %w: dense weights, context and work space take %d bytes", bytes, ErrDoesNotFit, least)
	}
	v.budget.Store(bytes)
	b.SetTier(max(0, v.room(b)))
	v.force = true
	v.wake()
	return nil
}

// least is what must be on the device.
func (v *vram) least(b *vulkan.Backend) int64 {
	_, held, _ := b.Memory()
	t := b.Tier()
	return max(held-t.Bytes, v.g.base0()+v.g.reserve())
}

// vram is what the graphics card holds, nil where there is none.
func (e *Engine) vram() *VRAM {
	g := e.gpu
	if g == nil {
		return nil
	}
	n := e.model.Config().Layers
	r := &VRAM{Device: g.info.String(), Lost: e.Health(), Layers: max(0, n-g.first), Kept: make([]int, len(e.table)), LayerHits: make([]int64, len(e.table))}
	if v := g.tier; v != nil {
		for l := range v.hits {
			r.LayerHits[l] = v.hits[l].Load()
			r.Hits += r.LayerHits[l]
		}
		r.Swaps, r.Budget = v.moved.Load(), v.budget.Load()
	}
	b := g.b.Load()
	if b == nil {
		return r
	}
	t := b.Tier()
	r.Unified, r.Experts, r.ExpertBytes, r.SegmentBytes, r.Target, r.Segments = t.Unified, t.Experts, t.ExpertBytes, t.Bytes, t.Target, t.Segments
	r.Shrinks, r.Uploaded, r.Copied = t.Shrinks, t.PutBytes, t.Copied
	r.Offer, r.Held, _ = b.Memory()
	if g.tier != nil {
		r.Least = g.tier.least(b)
		r.Full = r.Least + e.budget.ArenaMost + e.budget.ArenaMost/16
		for _, key := range b.Kept(nil) {
			r.Kept[key>>32]++
		}
	}
	return r
}
