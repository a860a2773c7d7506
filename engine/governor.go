package engine

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/plan"
)

// resizer is the door of an expert cache whose arena can grow and shrink while it is in use. Sizes are bytes.
type resizer interface {
	// Resize sets what the arena may hold, at least MinBytes, and answers what it holds now: what is lent stays until it
	// is given back.
	Resize(bytes int64) (live int64)
	Arena() (target, live int64)
	MinBytes() int64
}

// lookEvery is the time between two looks at the machine. A limit that was lowered is followed within a quarter of a
// second, reading included.
const lookEvery = 225 * time.Millisecond

// The reasons for which the budget in force changes, as shown by Stats.
const (
	reasonLimit    = "memory limit"     // of a control group: what it leaves
	reasonMachine  = "available memory" // of the machine
	reasonPressure = "memory pressure"  // tasks wait for memory
	reasonFailed   = "limit hit"        // the group ran into its limit
	reasonSwap     = "swapping"
	reasonCalm     = "memory is free again"
	reasonUser     = "set"
	reasonStart    = "more than there was at the start"
)

// course is what the governor knows between two looks; step is its whole judgement and touches nothing else.
type course struct {
	budget int64 // the promise; never more
	least  int64 // the smallest working set; never less
	now    int64 // in force

	seen      bool // a sample was taken before
	last      host.MemorySample
	lastAt    time.Duration
	calmSince time.Duration // nothing was wrong since
	growAt    time.Duration // not before
	hurtAt    time.Duration // no second step for the same distress before
	hold      time.Duration // calm needed after distress
	grewAt    time.Duration
}

const (
	holdLeast = 10 * time.Second // after distress, before growing again
	holdMost  = 5 * time.Minute  // the same, when growing has brought it back again and again
	calmLeast = 3 * time.Second  // after a shrink because others needed the room
	stepEvery = time.Second      // between two steps of growth, and two steps for one distress
)

// guard is what is left to others out of an offer: a thirty-second, within 32 MiB and half a GiB, of a very small offer an
// eighth. Kernels begin to reclaim and to swap at one to three per cent.
func guard(offer int64) int64 { return min(max(offer/32, 32<<20), 512<<20, offer/8) }

// offered is what the process could hold in all without pushing anybody out: what it holds already and what is left, in
// the tightest group and in the machine. ok is false where the system tells neither.
func offered(s *host.MemorySample) (offer int64, why string, ok bool) {
	if s.Available > 0 {
		offer, why, ok = s.Held+s.Available, reasonMachine, true
	}
	if s.Limited {
		if o := max(0, s.Held+s.Room); !ok || o < offer {
			offer, why, ok = o, reasonLimit, true
		}
	}
	return offer, why, ok
}

// pressing is the share of the time since the last look, in per mille, during which every task waited for memory, from
// which on it counts as distress; halfPressing is the same for some task.
const (
	pressing     = 50
	halfPressing = 200
)

// distress says what is wrong beyond a lack of room: signs that the system already works to make some.
func (c *course) distress(s *host.MemorySample, at time.Duration) string {
	if !c.seen || at <= c.lastAt {
		return ""
	}
	dt := at - c.lastAt
	stalled := func(now, before host.Pressure) bool {
		return now.Known && before.Known && ((now.FullTime-before.FullTime)*1000 >= pressing*dt || (now.SomeTime-before.SomeTime)*1000 >= halfPressing*dt)
	}
	// Others may thrash inside limits of their own while there is plenty for us: the machine's pressure and its swap count
	// only when the machine is short.
	short := s.Available > 0 && s.Available < max(s.Total/10, 4*guard(s.Available+s.Held))
	tight := s.Limited && s.Room < 4*guard(max(0, s.Room+s.Held))
	switch {
	case stalled(s.Group, c.last.Group) && (tight || short), stalled(s.Machine, c.last.Machine) && short:
		return reasonPressure
	case s.Failed > c.last.Failed && tight: // with room left it was file cache that met the limit, and gave way
		return reasonFailed
	case s.Swapped > c.last.Swapped+1<<20, s.SwapFree < c.last.SwapFree-4<<20 && short:
		return reasonSwap
	}
	return ""
}

// step follows one sample, taken at a time of any origin. The budget in force falls at once to what is offered, falls by
// an eighth of the arena for distress, and rises slowly when there was calm and room for more than a guard beyond. why is
// "" when nothing changed.
func (c course) step(s *host.MemorySample, at time.Duration) (next course, why string) {
	n := c
	n.now = max(min(n.now, n.budget), n.least)
	if !c.seen {
		n.calmSince, n.hold = at, holdLeast
	}
	grain := max(c.budget/256, 1<<20)
	room := n.budget // without an offer there is only the promise
	offer, short, known := offered(s)
	if known {
		room = offer - guard(offer)
	}
	if room < n.now {
		if now := max(room/grain*grain, n.least); now < n.now {
			n.now, why = now, short
		}
		n.calmSince = at
		n.growAt = max(n.growAt, at+calmLeast)
	}
	if d := c.distress(s, at); d != "" {
		n.calmSince = at
		if at >= c.hurtAt {
			if c.grewAt > 0 && at-c.grewAt < time.Minute { // growing brought it about
				n.hold = min(2*c.hold, holdMost)
			}
			if now := max(n.now-max((n.now-n.least)/8, grain), n.least); now < n.now {
				n.now, why = now, d
			}
			n.hurtAt = at + stepEvery
		}
		n.growAt = max(n.growAt, at+n.hold)
	}
	if why == "" && n.now < n.budget && at >= n.growAt && at-n.calmSince >= calmLeast {
		more := min(n.budget, n.now+max(n.budget/16, grain))
		if known {
			more = min(more, room-guard(offer)) // a guard further down than where shrinking begins, so that it does not follow
		}
		if more >= min(n.now+grain, n.budget) && more > n.now {
			n.now, why = more, reasonCalm
			n.growAt, n.grewAt = at+stepEvery, at
		}
	}
	if n.hold > holdLeast && n.grewAt > 0 && at-n.grewAt > 2*n.hold && n.calmSince <= n.grewAt {
		n.hold = holdLeast // what growth was given was kept
	}
	n.seen, n.last, n.lastAt = true, *s, at
	return n, why
}

// Governor is what Stats shows of it.
type Governor struct {
	BudgetNow int64  `json:"budget_now"` // in force; less than the promise while memory is short
	KVNow     int64  `json:"-"`          // what sequences have taken of the memory counted for them; the arena has the rest
	Shrinks   int64  `json:"shrinks"`
	Grows     int64  `json:"grows"`
	FailCount int64  `json:"failcnt"`     // times that the process's control groups ran into their limits, in their life
	Reason    string `json:"budget_last"` // why the budget in force is what it is; "" if it always was the promise
}

// governor keeps a process inside the memory it may hold: it looks at the machine, moves the budget in force and resizes
// the arena.
type governor struct {
	arena resizer
	plan  Budget // as it was at the start
	log   *slog.Logger
	began time.Time

	mu    sync.Mutex
	watch *host.Watch
	c     course
	spare int64 // of what the plan counts for sequences and they have not taken
	state Governor
	bad   bool // the limit could not be read the last time
	low   bool // a shrink was logged that growth has not undone

	stop, done chan struct{} // nil while no goroutine runs
}

// newGovernor governs an arena that was made as b says, within what may be used now. It takes over the watch.
func newGovernor(a resizer, b Budget, w *host.Watch, log *slog.Logger) *governor {
	g := &governor{arena: a, plan: b, log: log, watch: w, began: fault.Now()}
	g.c = course{budget: b.RAM, least: b.Fixed() + plan.Mapped(a.MinBytes()), now: b.Now}
	g.c.now = max(min(g.c.now, g.c.budget), g.c.least)
	g.state.BudgetNow = g.c.now
	if g.c.now < g.c.budget {
		g.low, g.state.Reason = true, reasonStart
	}
	g.goLimit()
	return g
}

// arenaFor is the arena that a budget leaves room for.
func (g *governor) arenaFor(budget int64) int64 {
	return max(g.plan.ArenaIn(budget+g.spare), g.arena.MinBytes())
}

// commit tells how much of the memory counted for sequences they have from now on. The arena has the rest: it is asked to make
// room before more is taken, and Over says when it has.
func (g *governor) commit(kv int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if kv < 0 || kv > g.plan.KV {
		panic(fmt.Sprintf("engine: sequences that take %d bytes, of %d counted for them", kv, g.plan.KV))
	}
	g.spare = g.plan.KV - kv
	g.arena.Resize(g.arenaFor(g.c.now))
	g.goLimit()
}

// start lets the governor look at the machine from time to time until close.
func (g *governor) start() {
	g.stop, g.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(g.done)
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for {
			select {
			case <-g.stop:
				return
			case <-t.C:
				g.look()
			}
		}
	}()
}

func (g *governor) close() {
	if g.stop != nil {
		close(g.stop)
		<-g.done
		g.stop = nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watch.Close()
}

// look takes a sample and follows it. It allocates nothing unless something changes.
func (g *governor) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	var s host.MemorySample
	if !g.sample(&s) {
		return
	}
	was := g.c.now
	next, why := g.c.step(&s, fault.Since(g.began))
	g.c = next
	if why == "" {
		return
	}
	g.apply(why)
	switch {
	case next.now < was && !g.low:
		g.low = true
		g.log.Warn("expert arena shrinks: memory is short", "reason", why, "budget", next.budget, "now", next.now, "limit", s.Limit, "room", s.Room, "available", s.Available)
	case next.now >= next.budget:
		g.low = false
		g.log.Info("expert arena has its size again", "budget", next.budget)
	default:
		g.log.Info("expert arena is resized", "reason", why, "budget", next.budget, "now", next.now)
	}
}

// sample reads one; false, and a line in the log the first time, when a limit cannot be understood.
func (g *governor) sample(s *host.MemorySample) bool {
	if err := g.watch.Read(s); err != nil {
		if !g.bad {
			g.log.Warn("the memory limit cannot be read, the budget stays as it is", "error", err)
		}
		g.bad = true
		return false
	}
	g.bad = false
	g.state.FailCount = s.Failed
	return true
}

// apply brings arena and Go heap to the budget in force.
func (g *governor) apply(why string) {
	switch {
	case g.c.now < g.state.BudgetNow:
		g.state.Shrinks++
	case g.c.now > g.state.BudgetNow:
		g.state.Grows++
	default:
		return
	}
	g.state.BudgetNow, g.state.Reason = g.c.now, why
	g.arena.Resize(g.arenaFor(g.c.now))
	g.goLimit()
}

// goLimit tells the Go runtime what it may hold: what was planned for it, and what the budget in force leaves over, since
// a collector that has room works less. Weights, context, slots and what the kernel keeps for us are not its own.
func (g *governor) goLimit() {
	p := &g.plan
	left := g.c.now - p.Dense - (p.KV - g.spare) - p.Table - p.Cache - outsideGo - plan.Mapped(g.arenaFor(g.c.now))
	debug.SetMemoryLimit(max(left, p.Runtime+p.Work+p.Predictor-outsideGo))
}

// set changes the promise. What the machine has is taken at once, without the patience of growth.
func (g *governor) set(budget int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if budget < g.c.least {
		return fmt.Errorf("RAM budget of %d bytes %w: the smallest working set takes %d bytes", budget, ErrDoesNotFit, g.c.least)
	}
	now := budget
	var s host.MemorySample
	if g.sample(&s) {
		if offer, _, ok := offered(&s); ok {
			now = min(now, offer-guard(offer))
		}
	}
	g.c.budget = budget
	g.c.now = min(max(now, g.c.least), budget)
	g.low = g.low && g.c.now < budget
	g.apply(reasonUser)
	return nil
}

// snapshot is what Stats shows, and the plan with promise and arena as they are now.
func (g *governor) snapshot() (Governor, Budget) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.plan
	b.RAM, b.Now = g.c.budget, g.c.now
	b.Arena, _ = g.arena.Arena()
	state := g.state
	state.KVNow = b.KV - g.spare
	return state, b
}

// noArena stands for the arena of a model without experts.
type noArena struct{}

func (noArena) Resize(int64) int64    { return 0 }
func (noArena) Arena() (int64, int64) { return 0, 0 }
func (noArena) MinBytes() int64       { return 0 }
