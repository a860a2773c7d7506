package bench

import (
	"math"
	"runtime"
	"slices"

	"github.com/dgraph-io/ristretto/v2"

	"terrace/tiers"
)

// key numbers an expert over all layers.
func (r *Routing) key(layer int, expert int32) int { return layer*r.Experts + int(expert) }

// lfu counts uses and never forgets.
type lfu struct {
	r    *Routing
	uses []float64
}

func newLFU(r *Routing) *lfu { return &lfu{r, make([]float64, r.total())} }

func (p *lfu) Visit(layer int, experts []int32) {
	for _, e := range experts {
		p.uses[p.r.key(layer, e)]++
	}
}

func (p *lfu) Score(layer, expert int) float64 { return p.uses[p.r.key(layer, int32(expert))] }

// ristrettoCache is a ristretto cache in its fairest case: driven from one goroutine, waited for after each Set, and its
// Gets followed by pauses in which its own goroutine may count them (called back to back, two thirds of them are lost and
// the hit rate falls by 2 to 7 points). Its victims depend on the order of a Go map, so that two replays differ by some
// tenths of a per cent.
type ristrettoCache struct {
	c    *ristretto.Cache[uint64, int]
	held []bool // by key; changed by its goroutine, which Wait waits for
}

func newRistretto(keys, slots int) *ristrettoCache {
	p := &ristrettoCache{held: make([]bool, keys)}
	gone := func(i *ristretto.Item[int]) { p.held[i.Value] = false }
	c, err := ristretto.NewCache(&ristretto.Config[uint64, int]{
		NumCounters: int64(10 * slots), MaxCost: int64(slots), BufferItems: 64, IgnoreInternalCost: true,
		OnEvict: gone, OnReject: gone,
	})
	if err != nil {
		panic("bench: ristretto refused a config: " + err.Error())
	}
	p.c = c
	return p
}

func (p *ristrettoCache) touch(k int) bool {
	_, ok := p.c.Get(uint64(k))
	if !ok {
		p.held[k] = true
		if !p.c.Set(uint64(k), k, 1) {
			p.held[k] = false
		}
	}
	p.c.Wait()
	for range 3 {
		runtime.Gosched()
	}
	return ok
}

func (p *ristrettoCache) close() { p.c.Close() }

// ristrettoOrder is ristretto behind the policy's door: what it holds is worth keeping, what it refused or evicted leaves
// first. It holds numbers only; the residency owns the bytes.
type ristrettoOrder struct {
	r *Routing
	*ristrettoCache
}

func (p ristrettoOrder) Visit(layer int, experts []int32) {
	for _, e := range experts {
		p.touch(p.r.key(layer, e))
	}
}

func (p ristrettoOrder) Score(layer, expert int) float64 {
	if p.held[p.r.key(layer, int32(expert))] {
		return 1
	}
	return 0
}

// belady is the hit rate of the optimum, which knows the future: the expert wanted last again leaves first. With
// together, a token's experts of one layer are held until all of them are there.
func belady(r *Routing, slots int, together bool) float64 {
	n := 0
	for _, pass := range r.Passes {
		for _, ids := range pass {
			n += len(ids)
		}
	}
	next := make([]int, n) // by touch: the touch that wants the same expert again
	seen := make([]int, r.total())
	for i := range seen {
		seen[i] = n
	}
	i := n
	for t := len(r.Passes) - 1; t >= 0; t-- {
		for l := r.Layers - 1; l >= 0; l-- {
			ids := r.Passes[t][l]
			for j := len(ids) - 1; j >= 0; j-- {
				i--
				k := r.key(l, ids[j])
				next[i], seen[k] = seen[k], i
			}
		}
	}
	at := make([]int, r.total()) // place in held, or -1
	for i := range at {
		at[i] = -1
	}
	type entry struct{ key, next int }
	var held []entry
	touches, hits := int64(0), int64(0)
	group := func(l int, ids []int32, first int, counts bool) {
		for j, e := range ids {
			if counts {
				touches++
			}
			if p := at[r.key(l, e)]; p >= 0 {
				if counts {
					hits++
				}
				held[p].next = next[first+j]
			}
		}
		for j, e := range ids {
			k := r.key(l, e)
			if at[k] >= 0 {
				continue
			}
			place := len(held)
			if place < slots {
				held = append(held, entry{})
			} else {
				place = -1
				for p, h := range held {
					if (place < 0 || h.next > held[place].next) && !(h.key/r.Experts == l && slices.Contains(ids, int32(h.key%r.Experts))) {
						place = p
					}
				}
				at[held[place].key] = -1
			}
			at[k], held[place] = place, entry{k, next[first+j]}
		}
	}
	i = 0
	for _, pass := range r.Passes {
		prompt := r.prompt(pass)
		for l, ids := range pass {
			if together && !prompt {
				group(l, ids, i, true)
			} else {
				for j := range ids {
					group(l, ids[j:j+1], i+j, !prompt)
				}
			}
			i += len(ids)
		}
	}
	return ratio(hits, touches)
}

// loose is a policy driven one touch at a time, as caches are usually simulated: nothing but the touched expert is held.
type loose interface {
	pass(layer int) // a layer of the next token begins
	touch(key int)
	score(key int) float64
}

// looseScores replays one touch at a time; among equal scores the layer visited latest gives first.
func looseScores(r *Routing, slots int, p loose) float64 {
	in := make([]bool, r.total())
	visited := make([]int, r.Layers)
	size, clock := 0, 0
	touches, hits := int64(0), int64(0)
	for _, pass := range r.Passes {
		prompt := r.prompt(pass)
		for l, ids := range pass {
			clock++
			visited[l] = clock
			p.pass(l)
			for _, e := range ids {
				k := r.key(l, e)
				p.touch(k)
				if !prompt {
					touches++
				}
				if in[k] {
					if !prompt {
						hits++
					}
					continue
				}
				if size < slots {
					size++
				} else {
					worst, low := -1, 0.0
					for v := range in {
						if !in[v] {
							continue
						}
						if s := p.score(v); worst < 0 || s < low || s == low && visited[v/r.Experts] > visited[worst/r.Experts] {
							worst, low = v, s
						}
					}
					in[worst] = false
				}
				in[k] = true
			}
		}
	}
	return ratio(hits, touches)
}

// decayed counts uses, in logarithms to base 2 so that nothing overflows; a half-life of 0 never forgets.
type decayed struct {
	r        *Routing
	halfLife float64
	passes   []float64
	log      []float64
}

func newDecayed(r *Routing, halfLife float64) *decayed {
	d := &decayed{r, halfLife, make([]float64, r.Layers), make([]float64, r.total())}
	for i := range d.log {
		d.log[i] = math.Inf(-1)
	}
	return d
}

func (d *decayed) pass(layer int) { d.passes[layer]++ }

func (d *decayed) touch(k int) {
	use := 0.0
	if d.halfLife > 0 {
		use = d.passes[k/d.r.Experts] / d.halfLife
	}
	hi, lo := max(d.log[k], use), min(d.log[k], use)
	d.log[k] = hi + math.Log2(1+math.Exp2(lo-hi))
}

func (d *decayed) score(k int) float64 { return d.log[k] }

// recent scores by the last touch.
type recent struct {
	clock float64
	last  []float64
}

func newRecent(r *Routing) *recent { return &recent{last: make([]float64, r.total())} }

func (p *recent) pass(int)            {}
func (p *recent) touch(k int)         { p.clock++; p.last[k] = p.clock }
func (p *recent) score(k int) float64 { return p.last[k] }

var _ tiers.Order = ristrettoOrder{}
