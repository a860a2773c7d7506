package tiers

import (
	"sync"
	"sync/atomic"

	"terrace/internal/host"
)

// warmAhead is how many bytes of slots have memory before they are used. The system clears a page when it is first touched,
// which on the way to a read costs as much as a fast disk needs for the read itself, and more on a virtual machine; so it
// is done beside the reads.
const warmAhead = 96 << 20

// warmer touches the memory of slots shortly before their first use, in a goroutine of its own, where slots lie side by side.
// It touches nothing but slots that are to be in use from the start, so that with the others in use what is resident stays
// within the slots that the arena may have. That ends when a slot gives memory back or one beyond these comes into use: then
// the runs may not be used to their ends, what was touched and is not in use goes back (retreat), and nothing more is touched.
type warmer struct {
	mu   sync.Mutex // held while memory is touched, and while some is given back
	runs []warmRun
	wake chan struct{}
	done chan struct{}
	over bool // it has retreated; for the goroutine that calls used and retreat
}

// warmRun is how far a run of slots has been touched.
type warmRun struct {
	mem  []byte       // whole huge pages of the run
	next int          // bytes of mem that have been touched
	used int          // bytes of mem in use, or about to be
	want atomic.Int64 // bytes of mem that should be touched
	off  atomic.Bool  // no more of it is
}

// newWarmer makes a warmer for an arena's runs; nil where there are none or the system cannot do it.
func newWarmer(runs []run) *warmer {
	if len(runs) == 0 || !host.CanPopulate {
		return nil
	}
	w := &warmer{wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.runs = make([]warmRun, len(runs))
	for i := range runs {
		w.runs[i].mem = runs[i].huge
	}
	go w.work()
	return w
}

// used tells that the first end bytes of run r are in use, or about to be. It waits for nothing; one goroutine at a time
// calls it.
func (w *warmer) used(r, end int) {
	x := &w.runs[r]
	x.used = max(x.used, min(end, len(x.mem)))
	want := int64(min(end+warmAhead, len(x.mem)/huge*huge))
	if x.off.Load() || want <= x.want.Load() {
		return
	}
	x.want.Store(want)
	select {
	case w.wake <- struct{}{}:
	default: // it is awake
	}
}

func (w *warmer) work() {
	defer close(w.done)
	for range w.wake {
		for w.step() {
		}
	}
}

// step touches a huge page, if any is wanted.
func (w *warmer) step() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.runs {
		r := &w.runs[i]
		if r.off.Load() || int64(r.next) >= r.want.Load() {
			continue
		}
		// A refusal is none of the reads' business: they touch the memory themselves.
		if host.Populate(r.mem[r.next:r.next+huge]) != nil {
			r.off.Store(true)
		}
		r.next += huge
		return true
	}
	return false
}

// retreat ends the touching, and gives back through release what was touched and is not in use.
func (w *warmer) retreat(release func([]byte) error) {
	if w.over {
		return
	}
	w.over = true
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.runs {
		r := &w.runs[i]
		r.off.Store(true)
		if from := (r.used + huge - 1) / huge * huge; from < r.next {
			_ = release(r.mem[from:r.next]) // it stays where the system refuses; a slot to come may still use it
		}
	}
}

// stop ends the goroutine.
func (w *warmer) stop() {
	close(w.wake)
	<-w.done
}
