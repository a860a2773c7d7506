// Package prefetch turns guesses about the layers ahead into early expert reads and keeps the score of what they were
// worth. It decides what to ask for and when to take it back; it moves no bytes, picks no victims and never waits.
package prefetch

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/router"
	"terrace/tiers"
)

// Cache is what the pipeline needs of the expert cache; Over makes one of a tiers.Cache. No call may wait for a read.
type Cache interface {
	// Prefetch queues, behind every demand read, reads of those experts of a layer that are Absent, protects those asked
	// for and those already there until the layer is settled, and returns how many reads it queued. Where no slot can be
	// had without taking a leased, pinned or guessed expert, it leaves the expert Absent.
	Prefetch(layer int, experts []int32) int
	// PrefetchOver is Prefetch for one guess with its chance of coming true: no expert has to go for it that is likelier to
	// be used.
	PrefetchOver(layer int, expert int32, chance float32) int
	// Withdraw takes back the guess of an expert: it loses its protection, and its read is cancelled if it has not begun.
	Withdraw(layer int, expert int32)
	// Settle ends the guesses of a layer, whose true experts are now known: the wrong ones are taken back, and all
	// protection ends, for the demand that follows holds the right ones.
	Settle(layer int, truth []int32)
	// State tells where an expert is now.
	State(layer int, expert int32) tiers.State
	// Flow tells about the disk.
	Flow() Flow
	// Pending is Flow's, alone.
	Pending() int64
}

// MaxDepth is how many layers ahead a guess may reach.
const MaxDepth = 2

// Options describe a pipeline; Cache, Layers, Experts and TopK are always needed, Predictor unless Depth is 0.
type Options struct {
	Cache     Cache
	Predictor router.Predictor
	Layers    int // layers of the model; hints and settlements name a layer below it
	Experts   int // routed experts of a layer
	TopK      int // experts chosen for a token
	Depth     int // layers ahead, 0..MaxDepth; 0 turns guessing off, the needs are still counted

	// Guesses is how many experts are asked for ahead of a layer when the batch is a single row; 0 means TopK, and half as
	// many again with Auto, where their price decides which are read.
	Guesses int
	// Cap is the largest number of experts of one layer asked for ahead, whatever the batch; the ones with most votes
	// are asked for. 0 means Guesses. No more than Depth*Cap guesses are protected at once (Cap more if a layer's hints
	// come before it is settled): the cache needs slots for them beside the leased ones.
	Cap int

	// Auto lets the pipeline choose the depth, from 0 to Depth, by what decode steps take, and makes it read only what is
	// worth its price; without it every guess is asked for.
	Auto bool

	DisabledReason string       // what Stats gives for depth 0; "" means "lookahead 0"
	Log            *slog.Logger // nil: silent
}

// expert flags, one byte an expert of a layer
const (
	listed  uint8 = 1 << iota // among the layer's present guesses
	asked                     // given to the cache since the guesses last changed
	issued                    // a read was queued on this pipeline's word, and is not scored yet
	refused                   // the cache had no slot, counted once for a list
	unworth                   // its price was too high, counted once for a list
	chosen                    // needed by the layer being settled
	idle                      // scored as wasted, and not seen leaving the cache since
)

// ahead is what is known about a layer that has not run yet.
type ahead struct {
	dist  int       // distance of the hint that made the list; 0: none
	list  []int32   // present guesses, the likeliest first; room for Cap
	open  []int32   // experts with the flag issued; room for all
	flags []uint8   // one an expert
	worth []float32 // chances, parallel to list; a batch's guesses have none
}

// guessed holds each row's first TopK guesses for one layer from one distance, for the recall.
type guessed struct {
	layer, rows int     // rows 0: empty
	dist        int     // layers between, less one
	ids         []int32 // rows x TopK, -1 where a row had fewer

	// Of a decode step: all guesses whose experts were absent, with their rows and margins, from which chances are learnt.
	cold    []int32
	of      []int32
	margins []float32
}

// Pipeline asks for experts ahead of need. It belongs to one walk through the layers at a time, whose batch may hold
// rows of one sequence or of several. Walks that interleave layer by layer would settle each other's guesses: each needs
// a pipeline of its own (they may share a cache). A walk that is given up must be followed by Reset.
//
// The order for each layer is: Settle with its true choice, then the demand for its experts, then the hints about the
// layers ahead, nearest first. Hints before the demand work too, but what they ask for may push out experts that the
// layer is just about to demand and that nobody holds yet, and the layer's own guesses still take slots.
//
// A later hint about the same layer from the same or a nearer distance replaces the earlier one: guesses in both are
// confirmed, guesses in the old one only are taken back if their reads have not started. No method waits, and none
// allocates once the largest batch has been seen. Stats may be called from any goroutine, the rest from one.
type Pipeline struct {
	o Options

	mu      sync.Mutex // guards the rest, for Stats
	layers  []ahead
	ring    [][MaxDepth]guessed // by layer modulo Depth+1: no more layers than that are open at once
	ids     []int32             // the predictor's answer
	guesses []int32             // its answer for one of several rows
	stale   []int32             // guesses taken back
	margin  []float32           // of ids
	odds    []float32           // chances of ids
	joint   []float32           // by expert, of several rows: the chance that none of them wants it; 1 between uses
	ranked  []int32             // experts with a smaller one
	price   price
	ctl     *control
	first   int           // first layer that was ever settled
	begun   time.Time     // of the decode step, zero outside one
	rows    int           // of the pass
	before  []tiers.State // states before guesses are taken back, parallel to ahead.open
	n       counts
}

// New checks the options and makes a pipeline.
func New(o Options) (*Pipeline, error) {
	if o.Cache == nil {
		return nil, fmt.Errorf("prefetch: no cache")
	}
	if o.Layers < 1 {
		return nil, fmt.Errorf("prefetch: layer count %d is below 1", o.Layers)
	}
	if o.TopK < 1 || o.TopK > o.Experts {
		return nil, fmt.Errorf("prefetch: %d experts a token, outside 1..%d, the experts of a layer", o.TopK, o.Experts)
	}
	if o.Depth < 0 || o.Depth > MaxDepth {
		return nil, fmt.Errorf("prefetch: lookahead %d is outside 0..%d", o.Depth, MaxDepth)
	}
	if o.Depth > 0 && o.Predictor == nil {
		return nil, fmt.Errorf("prefetch: lookahead %d and no predictor", o.Depth)
	}
	if o.Guesses == 0 {
		o.Guesses = o.TopK
		if o.Auto {
			o.Guesses = min(o.Experts, o.TopK+o.TopK/2)
		}
		if o.Cap != 0 {
			o.Guesses = min(o.Guesses, max(o.Cap, o.TopK))
		}
	}
	if o.Guesses < 1 || o.Guesses > o.Experts {
		return nil, fmt.Errorf("prefetch: %d guesses a layer, outside 1..%d, the experts of a layer", o.Guesses, o.Experts)
	}
	if o.Cap == 0 {
		o.Cap = o.Guesses
	}
	if o.Cap < o.Guesses || o.Cap > o.Experts {
		return nil, fmt.Errorf("prefetch: cap of %d guesses a layer, outside %d..%d, guesses and experts of a layer", o.Cap, o.Guesses, o.Experts)
	}
	if o.DisabledReason == "" {
		o.DisabledReason = "lookahead 0"
	}
	p := &Pipeline{o: o, layers: make([]ahead, o.Layers), ring: make([][MaxDepth]guessed, o.Depth+1),
		ids: make([]int32, max(o.TopK, o.Cap)), guesses: make([]int32, max(o.TopK, o.Guesses)), stale: make([]int32, 0, o.Cap), before: make([]tiers.State, o.Experts), first: o.Layers}
	p.price.least = firstChance
	p.margin, p.odds = make([]float32, max(len(p.ids), o.Guesses)), make([]float32, max(len(p.ids), o.Guesses))
	if o.Auto && o.Depth > 0 {
		p.joint, p.ranked = make([]float32, o.Experts), make([]int32, 0, o.Experts)
		for i := range p.joint {
			p.joint[i] = 1
		}
	}
	if o.Auto && o.Depth > 0 {
		p.ctl = newControl(o.Depth)
	}
	for i := range p.ring {
		for k := range p.ring[i] {
			g := &p.ring[i][k]
			g.cold, g.of, g.margins = make([]int32, 0, o.Guesses), make([]int32, 0, o.Guesses), make([]float32, 0, o.Guesses)
		}
	}
	for l := range p.layers {
		p.layers[l].flags = make([]uint8, o.Experts)
		if o.Depth > 0 {
			p.layers[l].list = make([]int32, 0, o.Cap)
			p.layers[l].open = make([]int32, 0, o.Experts)
			p.layers[l].worth = make([]float32, 0, o.Cap)
		}
	}
	if o.Log != nil {
		o.Log.Debug("prefetch", "depth", o.Depth, "guesses", o.Guesses, "cap", o.Cap)
	}
	return p, nil
}

// Hint tells, while layer at runs, what is known about the routing of layer target, and asks the cache for the likely
// experts. Distances beyond the depth are ignored.
func (p *Pipeline) Hint(at, target int, sig router.Signal) {
	k := target - at
	if at < 0 || k < 1 || target >= p.o.Layers {
		panic(fmt.Sprintf("prefetch: a hint at layer %d about layer %d of %d", at, target, p.o.Layers))
	}
	if k > p.o.Depth {
		return
	}
	if sig.Rule == nil || sig.Rule.Experts != p.o.Experts || sig.Rows < 1 {
		panic(fmt.Sprintf("prefetch: a hint about layer %d whose signal does not have rows of %d experts", target, p.o.Experts))
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	list, odds := p.predict(at, target, sig)
	if a := &p.layers[target]; a.dist == 0 || k <= a.dist {
		p.replace(target, k, list, odds)
	}
	p.issue(at)
}

// Depth is how many layers ahead hints are wanted for a batch of rows rows.
func (p *Pipeline) Depth(rows int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctl != nil && rows <= decodeRows {
		return p.ctl.depth
	}
	return p.o.Depth
}

// decodeRows is the number of rows up to which a pass counts as a decode step, of several sequences: with more it has a piece of
// a prompt.
const decodeRows = 32

// predict keeps each row's guesses for the recall and returns those to be asked for, in p.ids, with a single row's chances.
func (p *Pipeline) predict(at, target int, sig router.Signal) ([]int32, []float32) {
	topK := p.o.TopK
	g := &p.ring[target%len(p.ring)][target-at-1]
	g.layer, g.rows, g.dist = target, sig.Rows, target-at-1
	if need := sig.Rows * topK; cap(g.ids) < need {
		g.ids = make([]int32, need)
	} else {
		g.ids = g.ids[:need]
	}
	if sig.Rows == 1 {
		ids := p.o.Predictor.Predict(p.ids[:max(topK, p.o.Guesses)], at, target, sig)
		pad(g.ids, copy(g.ids, ids))
		ids = ids[:min(len(ids), p.o.Guesses)]
		margins, odds := p.margin[:len(ids)], p.odds[:len(ids)]
		p.o.Predictor.Margins(margins, ids, at, target, sig)
		g.cold, g.of, g.margins = g.cold[:0], g.of[:0], g.margins[:0]
		for i, e := range ids {
			odds[i] = p.chance(g, target, 0, e, margins[i])
		}
		return ids, odds
	}
	g.cold, g.of, g.margins = g.cold[:0], g.of[:0], g.margins[:0]
	if p.ctl != nil && sig.Rows <= decodeRows {
		return p.together(g, at, target, sig)
	}
	for i := range sig.Rows {
		row := g.ids[i*topK : (i+1)*topK]
		pad(row, len(p.o.Predictor.Predict(row, at, target, sig.Row(i))))
	}
	return p.o.Predictor.Predict(p.ids[:p.o.Cap], at, target, sig), nil
}

// chance is that of a guess for a row, noted to learn from where its expert is absent.
func (p *Pipeline) chance(g *guessed, target, row int, e int32, margin float32) float32 {
	if p.o.Cache.State(target, e) != tiers.Resident {
		g.cold, g.of, g.margins = append(g.cold, e), append(g.of, int32(row)), append(g.margins, margin)
	}
	return p.price.chance[g.dist].Of(margin)
}

// together is predict for a step of several sequences: an expert's chance is that any of them wants it, each by itself.
func (p *Pipeline) together(g *guessed, at, target int, sig router.Signal) ([]int32, []float32) {
	topK := p.o.TopK
	p.ranked = p.ranked[:0]
	for r := range sig.Rows {
		one := sig.Row(r)
		ids := p.o.Predictor.Predict(p.guesses[:max(topK, p.o.Guesses)], at, target, one)
		row := g.ids[r*topK : (r+1)*topK]
		pad(row, copy(row, ids))
		ids = ids[:min(len(ids), p.o.Guesses)]
		margins := p.margin[:len(ids)]
		p.o.Predictor.Margins(margins, ids, at, target, one)
		for i, e := range ids {
			if p.joint[e] == 1 {
				p.ranked = append(p.ranked, e)
			}
			p.joint[e] = min(p.joint[e]*(1-p.chance(g, target, r, e, margins[i])), lessThanOne)
		}
	}
	slices.SortFunc(p.ranked, func(a, b int32) int { return cmp.Or(cmp.Compare(p.joint[a], p.joint[b]), int(a-b)) })
	n := min(len(p.ranked), p.o.Cap)
	copy(p.ids, p.ranked[:n])
	for i, e := range p.ranked {
		if i < n {
			p.odds[i] = 1 - p.joint[e]
		}
		p.joint[e] = 1
	}
	return p.ids[:n], p.odds[:n]
}

// lessThanOne tells an expert without a chance from one that was not guessed.
const lessThanOne = 1 - 1e-6

func pad(ids []int32, n int) {
	for i := n; i < len(ids); i++ {
		ids[i] = -1
	}
}

// replace makes list the guesses for a layer and takes back those issued before that are not in it.
func (p *Pipeline) replace(layer, dist int, list []int32, odds []float32) {
	a := &p.layers[layer]
	for _, e := range a.list {
		a.flags[e] &^= listed | asked | refused | unworth
	}
	for _, e := range list {
		a.flags[e] |= listed
	}
	p.stale = p.stale[:0] // residents among the old guesses hold their protection too
	for _, e := range a.list {
		if a.flags[e]&listed == 0 {
			p.stale = append(p.stale, e)
		}
	}
	a.dist = dist
	a.list = append(a.list[:0], list...)
	a.worth = append(a.worth[:0], odds...)
	if len(p.stale) == 0 {
		return
	}
	for i, e := range a.open {
		p.before[i] = p.o.Cache.State(layer, e)
	}
	for _, e := range p.stale {
		p.o.Cache.Withdraw(layer, e)
	}
	kept := a.open[:0]
	for i, e := range a.open {
		if a.flags[e]&listed != 0 || !p.gone(layer, e, p.before[i]) {
			kept = append(kept, e) // a read that has started is scored when the layer is settled
		} else {
			a.flags[e] &^= issued
		}
	}
	a.open = kept
}

// gone reports whether a guess taken back has left the cache, and counts why: cancelled if it was on its way before,
// dropped if the cache had already let it go.
func (p *Pipeline) gone(layer int, e int32, before tiers.State) bool {
	if p.o.Cache.State(layer, e) != tiers.Absent {
		return false
	}
	if before == tiers.Queued || before == tiers.InFlight {
		p.n.cancelled++
	} else {
		p.n.dropped++
	}
	return true
}

// Issue asks again for guesses that had no slot when they were made, seen from layer at: for a batch whose experts
// streamed through the cache, once the last of them has come.
func (p *Pipeline) Issue(at int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.issue(at)
}

// issue asks the cache for what is listed and not asked for yet, nearest layer first. It ends at the first expert for
// which there is no slot: what comes free goes to that one first, at the next hint.
func (p *Pipeline) issue(at int) {
	for layer := at + 1; layer <= at+p.o.Depth && layer < p.o.Layers; layer++ {
		a := &p.layers[layer]
		for i, e := range a.list {
			if a.flags[e]&asked != 0 {
				continue
			}
			if p.ctl != nil && len(a.worth) > 0 && p.o.Cache.State(layer, e) == tiers.Absent &&
				!p.price.worth(float64(a.worth[i]), layer-at, p.o.Cache.Pending(), p.price.old.ExpertBytes) {
				if a.flags[e]&unworth == 0 {
					a.flags[e] |= unworth
					p.n.unworth++
				}
				continue
			}
			n := 0
			if len(a.worth) > 0 {
				n = p.o.Cache.PrefetchOver(layer, e, a.worth[i])
			} else {
				n = p.o.Cache.Prefetch(layer, a.list[i:i+1])
			}
			if n == 0 {
				if p.o.Cache.State(layer, e) == tiers.Absent {
					if a.flags[e]&refused == 0 {
						a.flags[e] |= refused
						p.n.refused++
					}
					return
				}
				a.flags[e] |= asked
				continue
			}
			p.n.issued++
			if a.flags[e]&issued != 0 { // asked for before the guesses changed, and lost by the cache since
				p.n.dropped++
			} else {
				a.open = append(a.open, e)
			}
			a.flags[e] |= asked | issued
			a.flags[e] &^= idle
		}
	}
}

// Guesses returns each row's first TopK guesses for a layer from a distance of 1 or 2: rows x TopK expert numbers, -1
// where a row had fewer; nil where there was no hint. They are valid until the layer is settled.
func (p *Pipeline) Guesses(layer, distance int) []int32 {
	if layer < 0 || layer >= p.o.Layers || distance < 1 || distance > MaxDepth {
		panic(fmt.Sprintf("prefetch: guesses for layer %d of %d from a distance of %d", layer, p.o.Layers, distance))
	}
	if g := &p.ring[layer%len(p.ring)][distance-1]; g.rows > 0 && g.layer == layer {
		return g.ids
	}
	return nil
}

// Settle tells a layer's true choice, just before its experts are demanded: needed holds the distinct experts of the
// batch, rows the choice of each row, rows x TopK, in the row order of the hints, scores what each row was chosen by, or
// nil. It scores the guesses made for the layer, takes back those that were wrong and teaches the predictor.
func (p *Pipeline) Settle(layer int, needed, rows []int32, scores []float32) {
	if layer < 0 || layer >= p.o.Layers || len(rows) == 0 || len(rows)%p.o.TopK != 0 {
		panic(fmt.Sprintf("prefetch: layer %d of %d settled with %d choices, not a multiple of %d", layer, p.o.Layers, len(rows), p.o.TopK))
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.clock(layer, len(rows)/p.o.TopK)
	a := &p.layers[layer]
	for _, e := range needed {
		if a.flags[e]&chosen != 0 {
			panic(fmt.Sprintf("prefetch: layer %d settled with expert %d twice among the distinct ones", layer, e))
		}
		s := p.o.Cache.State(layer, e)
		p.n.needed[s]++
		switch f := a.flags[e]; {
		case f&issued != 0 && s == tiers.Absent:
			p.n.dropped++
		case f&issued != 0:
			p.n.used++
			p.price.came(true)
			if s != tiers.Resident {
				p.n.late++
			}
		case f&idle != 0 && s != tiers.Absent:
			p.n.revived++
		}
		a.flags[e] = a.flags[e]&^(issued|idle) | chosen
	}
	if p.o.Depth > 0 {
		p.takeBack(layer, needed)
		p.score(layer, rows)
		p.o.Predictor.Observe(layer, rows, scores)
	}
	for _, e := range needed {
		a.flags[e] &^= chosen
	}
}

// clock keeps time: of the layers and steps of decoding, for the price and for the choice of the depth.
func (p *Pipeline) clock(layer, rows int) {
	p.first = min(p.first, layer)
	if layer == p.first {
		if p.ctl != nil && rows != p.rows {
			p.ctl.restart() // steps of other sizes say nothing about each other
		}
		p.rows = rows
	}
	if p.rows > decodeRows {
		p.begun = time.Time{}
		p.price.since, p.price.begun = time.Time{}, time.Time{}
		return
	}
	if p.ctl == nil {
		return
	}
	now := fault.Now()
	p.price.settled(now, layer, layer == p.first, p.o.Cache.Flow)
	switch {
	case layer == p.first:
		p.begun = now
	case layer == p.o.Layers-1 && !p.begun.IsZero():
		p.ctl.took(now.Sub(p.begun))
		p.begun = time.Time{}
	}
}

// takeBack ends the guesses for a layer: those among keep have been scored, the rest were wrong.
func (p *Pipeline) takeBack(layer int, keep []int32) {
	a := &p.layers[layer]
	if a.dist == 0 {
		return
	}
	for i, e := range a.open {
		p.before[i] = p.o.Cache.State(layer, e)
	}
	p.o.Cache.Settle(layer, keep)
	for i, e := range a.open {
		if a.flags[e]&issued == 0 {
			continue
		}
		a.flags[e] &^= issued
		if !p.gone(layer, e, p.before[i]) {
			p.n.wasted++
			p.price.came(false)
			a.flags[e] |= idle
		}
	}
	for _, e := range a.list {
		a.flags[e] &^= listed | asked | refused | unworth
	}
	a.list, a.open, a.worth, a.dist = a.list[:0], a.open[:0], a.worth[:0], 0
}

// score compares each row's guesses with its choice.
func (p *Pipeline) score(layer int, rows []int32) {
	topK := p.o.TopK
	for k := range p.ring[layer%len(p.ring)] {
		g := &p.ring[layer%len(p.ring)][k]
		if g.rows == 0 || g.layer != layer {
			continue
		}
		if len(g.ids) != len(rows) {
			p.n.unscored += int64(g.rows)
			g.rows = 0
			continue
		}
		for i, e := range g.cold {
			at := int(g.of[i]) * topK
			p.price.chance[k].Learn(g.margins[i], slices.Contains(rows[at:at+topK], e))
		}
		hits := 0
		for i := 0; i < len(rows); i += topK {
			for _, want := range rows[i : i+topK] {
				for _, got := range g.ids[i : i+topK] {
					if got == want {
						hits++
						break
					}
				}
			}
		}
		p.n.hits[k] += int64(hits)
		p.n.truths[k] += int64(len(rows))
		g.rows = 0
	}
}

// Reset gives up all open guesses, for a walk that ended before its last layer: reads that have not started are
// cancelled, the others count as wasted.
func (p *Pipeline) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for layer := range p.layers {
		p.takeBack(layer, nil)
	}
	for i := range p.ring {
		for k := range p.ring[i] {
			p.ring[i][k].rows = 0
		}
	}
	p.begun, p.price.since, p.price.begun = time.Time{}, time.Time{}, time.Time{}
}
