package tiers

// What a cache shows of itself besides its sums: each layer's counters, the place of each expert, and what it would have
// found with more memory.

// LayerStats are one layer's experts now and its counters since the cache was made.
type LayerStats struct {
	Experts, Resident, Loading, Pinned int

	Bytes         int64 // of all experts, without alignment
	ResidentBytes int64 // of those that are whole in RAM

	Touches, Hits, InFlight, Misses int64 // as in Stats
}

// layerCounts are the counters of one layer.
type layerCounts struct{ hits, inflight, misses int64 }

// Layers appends the layers' statistics to dst, one a layer; those of layers without experts are zero.
func (c *Cache) Layers(dst []LayerStats) []LayerStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.v
	for l, where := range v.where {
		n := &v.byLayer[l]
		s := LayerStats{Experts: len(where), Hits: n.hits, InFlight: n.inflight, Misses: n.misses, Touches: n.hits + n.inflight + n.misses}
		for e, i := range where {
			s.Bytes += v.size[l][e]
			if i < 0 {
				continue
			}
			switch at := &v.slots[i]; at.state {
			case slotReady:
				s.Resident++
				s.ResidentBytes += v.size[l][e]
			case slotLoading:
				s.Loading++
			}
			if v.slots[i].pinned {
				s.Pinned++
			}
		}
		dst = append(dst, s)
	}
	return dst
}

// Flags that Places adds to an expert's State.
const (
	PlacePinned  = 0x10
	PlaceDevice  = 0x40 // a device keeps it as well, or alone; set by who knows
	PlaceGuessed = 0x20 // a guess for its layer's next turn protects it
)

// Count is the number of experts in all layers.
func (c *Cache) Count() int { return len(c.reads) }

// Places writes each expert's State and flags into dst, one byte an expert, layer after layer. dst has Count bytes. It
// allocates nothing.
func (c *Cache) Places(dst []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := 0
	for l, where := range c.v.where {
		out := dst[at : at+len(where)]
		at += len(where)
		for e, i := range where {
			if i < 0 {
				out[e] = byte(Absent)
				continue
			}
			s := &c.v.slots[i]
			b := byte(Resident)
			if s.state != slotReady {
				b = byte(c.v.state(l, e))
			}
			if s.pinned {
				b |= PlacePinned
			}
			if s.guess {
				b |= PlaceGuessed
			}
			out[e] = b
		}
	}
}

// Uses writes how often each expert was used in a visit of its layer of late, 0 to 1, as the policy Reuse has learned it
// (a use counts half after some ninety visits). dst has Count elements, layer after layer; other policies give zeros.
func (c *Cache) Uses(dst []float32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.v.policy.(*reuse)
	if !ok {
		clear(dst)
		return
	}
	at := 0
	for l := range p.layers {
		at += copy(dst[at:], p.layers[l].inputs[slowSpeed])
	}
}

// nearRoom is the memory whose worth a cache counts.
const nearRoom = 1 << 30

// leavers are the experts that an arena larger by room would still hold: of those that left, the ones that score best, as
// in the cache itself. A miss of one of them is one that such an arena would not have had.
type leavers struct {
	room, held int64
	first      []int32 // the number of each layer's first expert
	list       []leaver
	at         []int32 // place of each expert in list, by number, or -1
	turn       int     // where the search for the lowest goes on
}

type leaver struct{ layer, expert int32 }

// leaverLook bounds the search for the one that scores lowest: an eviction makes room for a read, which takes a hundred
// times as long as looking at so many.
const leaverLook = 256

func (g *leavers) init(size [][]int64, room int64) {
	n := int32(0)
	for _, s := range size {
		g.first = append(g.first, n)
		n += int32(len(s))
	}
	g.room, g.list, g.at = room, make([]leaver, 0, n), make([]int32, n)
	for i := range g.at {
		g.at[i] = -1
	}
}

func (g *leavers) has(layer, expert int) bool { return g.at[g.first[layer]+int32(expert)] >= 0 }

// left puts an expert that was evicted into the list and takes out what the room no longer holds.
func (v *residency) left(layer, expert int) {
	g := &v.leavers
	g.at[g.first[layer]+int32(expert)] = int32(len(g.list))
	g.list = append(g.list, leaver{int32(layer), int32(expert)})
	for g.held += v.layer(layer); g.held > g.room; {
		lowest, rank := -1, 0.0
		for range min(len(g.list), leaverLook) {
			if g.turn++; g.turn >= len(g.list) {
				g.turn = 0
			}
			x := g.list[g.turn]
			if r := v.policy.rank(v.policy.score(int(x.layer), int(x.expert)), v.away(int(x.layer))); lowest < 0 || r < rank {
				lowest, rank = g.turn, r
			}
		}
		v.unleave(int(g.list[lowest].layer), int(g.list[lowest].expert))
	}
}

// unleave takes an expert out of the list.
func (v *residency) unleave(layer, expert int) {
	g := &v.leavers
	i, last := g.at[g.first[layer]+int32(expert)], len(g.list)-1
	x := g.list[last]
	g.list[i] = x
	g.at[g.first[x.layer]+x.expert] = i
	g.list = g.list[:last]
	g.at[g.first[layer]+int32(expert)] = -1
	g.held -= v.layer(layer)
}
