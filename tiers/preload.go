package tiers

import "sort"

// preloadWindow is how many preloads are with the store at once: enough to keep its share of reads for guesses busy,
// few enough that a guess soon has its turn behind them.
const preloadWindow = 4

// preload is the list of experts to be read before anybody asks, and how far it is.
type preload struct {
	lists  [][]int32 // by layer, in file order
	at     []int     // next of each list
	total  int       // experts in them
	left   int       // not yet looked at
	flying int       // with the store
	spare  int64     // free bytes that stay free, so that a demand need not evict while this goes on
	early  []bool    // by slot: its read is a preload
	n      int64     // experts read
	bytes  [2]int64  // of these, whole blocks, by the priority at which they were read in the end
}

// Preload tells the cache how often a token is expected to use each expert ([layer][expert], as Heat.Rates gives) before
// anything was used: the eviction policy starts with that, and the hottest experts that fit are read in file order behind
// every demand. Only free slots are filled, nothing is evicted; it ends when none is left. In a pass the layers ahead of
// it come first. It returns how many experts are to be read and does not wait.
func (c *Cache) Preload(rates [][]float64) int {
	c.mu.Lock()
	defer c.unlock()
	if c.closed || c.pre != nil {
		return 0
	}
	type hot struct {
		rate float64
		id   ExpertID
	}
	var all []hot
	var use []float32
	for l := range c.experts {
		use = use[:0]
		for e := range c.experts[l] {
			r := rates[l][e]
			if !(r > 0) {
				r = 0
			}
			use = append(use, float32(r))
			if r > 0 {
				all = append(all, hot{r, c.experts[l][e].ID})
			}
		}
		if len(use) > 0 {
			c.v.policy.seed(l, use)
		}
	}
	c.v.reheap()
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		if a.rate != b.rate {
			return a.rate > b.rate
		}
		if a.id.Layer != b.id.Layer {
			return a.id.Layer < b.id.Layer
		}
		return a.id.Expert < b.id.Expert
	})
	p := &preload{lists: make([][]int32, len(c.experts)), at: make([]int, len(c.experts)), early: make([]bool, len(c.v.slots))}
	v := c.v
	if v.room.target < v.bytes {
		p.spare = min(2*int64(v.topK)*v.classes[0].bytes, v.room.target/4)
	}
	fit, room := 0, v.slack()+v.room.free-p.spare
	for _, x := range all {
		if room -= v.classes[v.classOf[x.id.Layer]].bytes; room < 0 {
			break
		}
		fit++
	}
	all = all[:fit]
	for _, x := range all {
		p.lists[x.id.Layer] = append(p.lists[x.id.Layer], int32(x.id.Expert))
	}
	for l, list := range p.lists {
		sort.Slice(list, func(i, j int) bool {
			a, b := c.firstPiece(l, list[i]), c.firstPiece(l, list[j])
			return a.Shard < b.Shard || a.Shard == b.Shard && a.Offset < b.Offset
		})
	}
	p.left, p.total = len(all), len(all)
	c.pre = p
	c.pump()
	return len(all)
}

// Preloading is how many of the experts that Preload promised are done with, read or found to have no room; total is 0 without
// a Preload.
func (c *Cache) Preloading() (done, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pre == nil {
		return 0, 0
	}
	return c.pre.total - c.pre.left - c.pre.flying, c.pre.total
}

func (c *Cache) firstPiece(layer int, expert int32) *Piece {
	return &c.experts[layer][expert].Pieces[c.layouts[layer][expert].first()]
}

// pump gives the store the next preloads while there are free slots and nobody waits for one. Under the lock.
func (c *Cache) pump() {
	p := c.pre
	if p == nil || p.left == 0 || c.closed {
		return
	}
	v := c.v
	for p.left > 0 && p.flying < preloadWindow && v.streamer == nil && v.waiting.head == nil {
		if v.slack()+v.room.free <= p.spare {
			p.left = 0 // what is free now belongs to demands; later slots are won by use
			return
		}
		layer := v.current
		if v.clock > 0 { // a pass runs there: what it needs next is ahead of it
			layer++
		}
		for range p.lists {
			if layer >= len(p.lists) {
				layer = 0
			}
			if p.at[layer] < len(p.lists[layer]) {
				break
			}
			layer++
		}
		e := p.lists[layer][p.at[layer]]
		p.at[layer]++
		p.left--
		if v.where[layer][e] >= 0 {
			continue
		}
		i := v.takeFree(v.classOf[layer])
		if i < 0 {
			p.left = 0
			return
		}
		p.early[i] = true
		p.flying++
		v.load(i, layer, int(e), Guess)
	}
}

// preloaded takes note of a read that ended. Like a guess, it counts as what first asked for it, though a layer may have
// come to wait for it.
func (c *Cache) preloaded(r *Read, err error) {
	p := c.pre
	if p == nil || r.Slot >= len(p.early) || !p.early[r.Slot] {
		return
	}
	p.early[r.Slot] = false
	p.flying--
	if err != nil {
		return
	}
	p.n++
	for i := range r.layout.spans {
		if s := &r.layout.spans[i]; s.length > 0 {
			p.bytes[r.as[i]] += int64(s.size)
		}
	}
}

// withdrawn takes note of a read that was taken back.
func (c *Cache) withdrawn(slot int) {
	if p := c.pre; p != nil && slot < len(p.early) && p.early[slot] {
		p.early[slot] = false
		p.flying--
	}
}
