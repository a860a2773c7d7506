package cpu

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// spinTime is how long a worker looks for the next region before it sleeps: longer than the serial stretches between the
// regions of a decode step, short enough that a server without requests uses no processor.
const spinTime = 50 * time.Microsecond

// task is one parallel region. do computes item, an index below the count given to run; worker is below pool.threads and
// names the scratch memory that belongs to the goroutine. Items may run in any order and at the same time.
type task interface {
	do(worker, item int)
}

// sleeper is one worker's parking place, alone on its cache lines.
type sleeper struct {
	asleep atomic.Bool
	wake   chan struct{}
	_      [112]byte
}

// share is the items of a region that lie before one worker and are not taken: first<<32 | end, on cache lines of its own.
type share struct {
	v atomic.Uint64
	_ [120]byte
}

// pool runs regions on the caller's goroutine and threads-1 workers that live as long as the pool.
//
// Each worker gets a run of items that follow one another and takes them from the front, because items are mostly rows of
// weights in memory: a core that reads on where it stopped gets them a quarter faster than one that begins anew at each
// item. Who has none left takes from the end of the longest run, one at a time, so a worker that was preempted delays
// nobody for longer than the item it is at.
//
// A run's word both announces a region and hands out its items: who changes it owns an item. An owned item keeps the
// region open until done counts it, so whoever owns one may read task and items, and a worker that slept through a region
// never learns of it and need not. A word that was read in one region and is found equal in a later one names an item of
// the later one.
type pool struct {
	shares []share
	_      [64]byte
	done   atomic.Int64 // items finished
	_      [120]byte
	task   task

	threads  int
	sleepers []sleeper // one a worker; worker w > 0 has sleepers[w-1]
	stop     atomic.Bool
	gone     sync.WaitGroup

	mu     sync.Mutex // guards failed
	failed any        // the first panic of an item on a worker
}

// newPool starts threads-1 workers.
func newPool(threads int) *pool {
	p := &pool{threads: threads, shares: make([]share, threads), sleepers: make([]sleeper, threads-1)}
	p.gone.Add(threads - 1)
	for i := range p.sleepers {
		p.sleepers[i].wake = make(chan struct{}, 1)
		go p.work(i + 1)
	}
	return p
}

// run does items 0..items-1 of t and returns when all are finished. One region at a time.
func (p *pool) run(t task, items int) {
	if items <= 0 {
		return
	}
	if items == 1 || p.threads == 1 {
		for i := range items {
			t.do(0, i)
		}
		return
	}
	if p.stop.Load() {
		panic("cpu: operation on a closed backend")
	}
	p.task = t
	p.done.Store(0)
	for w, from := 0, 0; w < p.threads; w++ { // publishes task
		end := (items*(w+1) + p.threads - 1) / p.threads
		p.shares[w].v.Store(uint64(from)<<32 | uint64(end))
		from = end
	}
	wake := items - 1
	for i := range p.sleepers {
		if wake == 0 {
			break
		}
		s := &p.sleepers[i]
		if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
			s.wake <- struct{}{} // never blocks: one token for each lowered flag
		}
		wake--
	}
	for p.takeOne(0) {
	}
	for n := 1; p.done.Load() != int64(items); n++ {
		if n%256 == 0 {
			runtime.Gosched()
		} else {
			pause()
		}
	}
	p.task = nil
	if p.failed != nil {
		f := p.failed
		p.failed = nil
		panic(f)
	}
}

// takeOne takes and does one item; false when none is left.
func (p *pool) takeOne(worker int) bool {
	own := &p.shares[worker].v
	for {
		v := own.Load()
		first, end := uint32(v>>32), uint32(v)
		if first >= end {
			return p.steal(worker)
		}
		if own.CompareAndSwap(v, v+1<<32) {
			p.one(worker, int(first))
			return true
		}
	}
}

// steal does the last item of the longest run; false when none is left.
func (p *pool) steal(worker int) bool {
	for {
		var from *atomic.Uint64
		var v uint64
		most := uint32(0)
		for i := range p.shares {
			w := p.shares[i].v.Load()
			if first, end := uint32(w>>32), uint32(w); end > first && end-first > most {
				from, v, most = &p.shares[i].v, w, end-first
			}
		}
		if from == nil {
			return false
		}
		if from.CompareAndSwap(v, v-1) {
			p.one(worker, int(uint32(v))-1)
			return true
		}
	}
}

// any reports whether items are left.
func (p *pool) any() bool {
	for i := range p.shares {
		if v := p.shares[i].v.Load(); uint32(v) > uint32(v>>32) {
			return true
		}
	}
	return false
}

// one does an item. A panic on a worker is kept for run's caller, so that it surfaces where the operation was asked for.
func (p *pool) one(worker, item int) {
	defer p.finish()
	p.task.do(worker, item)
}

func (p *pool) finish() {
	if r := recover(); r != nil {
		p.mu.Lock()
		if p.failed == nil {
			p.failed = r
		}
		p.mu.Unlock()
	}
	p.done.Add(1)
}

// work is a worker's life: take items while there are any, look around for a while, sleep.
func (p *pool) work(w int) {
	runtime.LockOSThread()
	debug.SetPanicOnFault(true) // weights may be a mapping: run's caller gets the fault and knows what it means
	defer p.gone.Done()
	s := &p.sleepers[w-1]
	for !p.stop.Load() {
		if p.takeOne(w) {
			continue
		}
		if p.spin() {
			continue
		}
		// Raise the flag first and look again after it: either the caller sees the flag or this look sees the items.
		s.asleep.Store(true)
		if (p.any() || p.stop.Load()) && s.asleep.CompareAndSwap(true, false) {
			continue
		}
		<-s.wake
	}
}

// spin waits for items for about spinTime and reports whether there are some, or the pool stops.
func (p *pool) spin() bool {
	begin := time.Now()
	for n := 1; ; n++ {
		if p.any() || p.stop.Load() {
			return true
		}
		if n%32 == 0 && time.Since(begin) > spinTime {
			return false
		}
		pause()
	}
}

// idle reports whether every worker sleeps.
func (p *pool) idle() bool {
	for i := range p.sleepers {
		if !p.sleepers[i].asleep.Load() {
			return false
		}
	}
	return true
}

// close ends the workers and waits for them. A second call does nothing.
func (p *pool) close() {
	if p.stop.Swap(true) {
		return
	}
	for i := range p.sleepers {
		s := &p.sleepers[i]
		if s.asleep.CompareAndSwap(true, false) {
			s.wake <- struct{}{}
		}
	}
	p.gone.Wait()
}
