package prefetch

import (
	"fmt"
	"slices"
	"sync"

	"terrace/router"
	"terrace/tiers"
)

type key struct {
	layer  int
	expert int32
}

type slot struct {
	started, done, guarded bool
}

// fake is a cache whose reads start and end when the test says so. With slots > 0 it holds so many experts, takes the
// longest held unguarded one as a victim and refuses a guess where there is none.
type fake struct {
	mu      sync.Mutex
	slots   int
	held    map[key]*slot
	order   []key // by age
	log     []string
	logging bool
}

func newFake(slots int) *fake { return &fake{slots: slots, held: map[key]*slot{}} }

func (f *fake) Prefetch(layer int, experts []int32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, e := range experts {
		k := key{layer, e}
		if s := f.held[k]; s != nil {
			s.guarded = true
			continue
		}
		if !f.room() {
			continue
		}
		f.held[k] = &slot{guarded: true}
		f.order = append(f.order, k)
		n++
		if f.logging {
			f.log = append(f.log, fmt.Sprintf("%d/%d", layer, e))
		}
	}
	return n
}

func (f *fake) PrefetchOver(layer int, expert int32, _ float32) int {
	return f.Prefetch(layer, []int32{expert})
}

func (f *fake) room() bool {
	if f.slots == 0 || len(f.held) < f.slots {
		return true
	}
	for _, k := range f.order {
		if s := f.held[k]; s.done && !s.guarded {
			f.drop(k)
			return true
		}
	}
	return false
}

func (f *fake) drop(k key) {
	delete(f.held, k)
	f.order = slices.DeleteFunc(f.order, func(o key) bool { return o == k })
}

func (f *fake) Settle(layer int, truth []int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range slices.Clone(f.order) {
		if k.layer == layer && !slices.Contains(truth, k.expert) {
			f.withdraw(k)
		}
	}
	for k, s := range f.held {
		s.guarded = s.guarded && k.layer != layer
	}
}

func (f *fake) Withdraw(layer int, expert int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withdraw(key{layer, expert})
}

func (f *fake) withdraw(k key) {
	s := f.held[k]
	if s == nil {
		return
	}
	s.guarded = false
	if !s.started {
		f.drop(k)
		if f.logging {
			f.log = append(f.log, fmt.Sprintf("-%d/%d", k.layer, k.expert))
		}
	}
}

func (f *fake) State(layer int, expert int32) tiers.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch s := f.held[key{layer, expert}]; {
	case s == nil:
		return tiers.Absent
	case s.done:
		return tiers.Resident
	case s.started:
		return tiers.InFlight
	}
	return tiers.Queued
}

// start lets the oldest n queued reads begin; finish lets all that began end.
func (f *fake) start(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.order {
		if s := f.held[k]; !s.started && n > 0 {
			s.started = true
			n--
		}
	}
}

func (f *fake) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.held {
		s.done = s.started
	}
}

func (f *fake) guards() (n int) {
	for _, s := range f.held {
		if s.guarded {
			n++
		}
	}
	return n
}

func (f *fake) readAll() { f.start(1 << 30); f.finish() }

// demand makes experts resident at once, as after the wait of a layer, and ends their protection.
func (f *fake) demand(layer int, experts []int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range experts {
		k := key{layer, e}
		if f.held[k] == nil {
			f.room()
			f.order = append(f.order, k)
		}
		f.held[k] = &slot{started: true, done: true}
	}
}

func (f *fake) evict(layer int, expert int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(key{layer, expert})
}

// told is a predictor that says what it is told: by distance and target, for a single row; for several rows row i of
// the signal begins with the row's number.
type told struct {
	say      func(k, target, row int) []int32
	votes    []int32
	observed []string
	noting   bool
}

func (p *told) Predict(dst []int32, at, target int, s router.Signal) []int32 {
	if s.Rows > 1 {
		return dst[:copy(dst, p.votes)]
	}
	return dst[:copy(dst, p.say(target-at, target, int(s.Scores[0])))]
}

func (p *told) Observe(layer int, chosen []int32, scores []float32) {
	if p.noting {
		p.observed = append(p.observed, fmt.Sprint(layer, chosen))
	}
}

// signal is a signal of rows rows that carry their own number.
func signal(experts, topK, rows int) router.Signal {
	s := router.Signal{Scores: make([]float32, rows*experts), Rows: rows, Rule: &router.Rule{Experts: experts, K: topK, Gating: router.Softmax}}
	for i := range rows {
		s.Scores[i*experts] = float32(i)
	}
	return s
}

// Margins of the guesses told are those of certain ones.
func (p *told) Margins(dst []float32, ids []int32, at, target int, s router.Signal) {
	for i := range dst {
		dst[i] = 3
	}
}

func (f *fake) Flow() Flow { return Flow{} }

func (f *fake) Pending() int64 { return 0 }

func (still) Flow() Flow     { return Flow{} }
func (still) Pending() int64 { return 0 }
