package cpu

import (
	"runtime"
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

// pool runs regions on the caller's goroutine and threads-1 workers that live as long as the pool.
//
// One word, left, both announces a region and hands out its items: who lowers it by one owns an item. An owned item keeps
// the region open until done counts it, so whoever owns one may read task and items, and a worker that was preempted
// before it took anything delays nobody. A worker that slept through a region never learns of it and need not.
type pool struct {
	_     [64]byte
	left  atomic.Int64 // items not yet taken
	_     [120]byte
	done  atomic.Int64 // items finished
	_     [120]byte
	task  task
	items int64

	threads  int
	sleepers []sleeper // one a worker; worker w > 0 has sleepers[w-1]
	stop     atomic.Bool
	gone     sync.WaitGroup

	mu     sync.Mutex // guards failed
	failed any        // the first panic of an item on a worker
}

// newPool starts threads-1 workers.
func newPool(threads int) *pool {
	p := &pool{threads: threads, sleepers: make([]sleeper, threads-1)}
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
	p.task, p.items = t, int64(items)
	p.done.Store(0)
	p.left.Store(int64(items)) // publishes task and items
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
	for {
		n := p.left.Load()
		if n <= 0 {
			return false
		}
		if p.left.CompareAndSwap(n, n-1) {
			p.one(worker, int(p.items-n))
			return true
		}
	}
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
		if (p.left.Load() > 0 || p.stop.Load()) && s.asleep.CompareAndSwap(true, false) {
			continue
		}
		<-s.wake
	}
}

// spin waits for items for about spinTime and reports whether there are some, or the pool stops.
func (p *pool) spin() bool {
	begin := time.Now()
	for n := 1; ; n++ {
		if p.left.Load() > 0 || p.stop.Load() {
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
