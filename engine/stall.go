package engine

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"terrace/tiers"
)

// stallWatch looks for work that does not move. Whoever computes leaves a beat at each pass, each layer with experts and each
// expert that it gets; the watch is a goroutine that compares beats, so that the way of a token pays one store. A slot whose
// sequence is read from or written to a file has no beats: it moves when the file is done.
type stallWatch struct {
	at       atomic.Uint64 // the latest beat: count<<16 | layer+1, where 0 is before the first layer with experts
	sessions atomic.Int32  // calls of sessions under way
	users    atomic.Pointer[Scheduler]

	after time.Duration // 0: nobody watches
	e     *Engine
	stop  chan struct{}
	done  sync.WaitGroup

	// Of the watching goroutine.
	seen  uint64    // the beat that was seen last
	since time.Time // when it was another, or nobody worked
	told  bool      // that it stands still
	files []slotWatch
	slots []slotNow

	mu    sync.Mutex
	total int64
	now   *Stall
}

// slotWatch is since when a slot is away for a task.
type slotWatch struct {
	task  int64
	since time.Time
	told  bool
}

// slotDoing is what a slot's task does.
type slotDoing uint8

const (
	slotIdle    slotDoing = iota
	slotRuns              // it is in the passes
	slotAway              // another goroutine has it, for a file
	slotFollows           // it waits for another slot's prompt
)

// slotNow is a slot as the scheduler's goroutine has last told.
type slotNow struct {
	task               int64
	doing              slotDoing
	leader             int // of one that follows
	prompt, at, tokens int // the prompt's tokens, how many of them are there, and those of the answer
}

// Stall is work that does not move.
type Stall struct {
	Since    time.Time
	Requests int    // that stand still, or wait behind those
	Report   string // who waits for what: a line
}

// Stalls is what the watch for work without progress knows.
type Stalls struct {
	Total int64  // reports since the start
	Now   *Stall // nil: all moves
}

// Stalls tells of requests that made no progress for Options.StallReport; a model without experts has beats between passes
// only, so that one pass of it must not take as long.
func (e *Engine) Stalls() Stalls {
	w := &e.stall
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stalls{w.total, w.now}
}

// beat tells that work moves in a layer; -1: outside the layers with experts. It belongs to the one goroutine that computes.
func (w *stallWatch) beat(layer int) {
	if w != nil {
		w.at.Store((w.at.Load()>>16+1)<<16 | uint64(uint16(layer+1)))
	}
}

// enter tells that a session begins to work, leave that it has ended.
func (w *stallWatch) enter() {
	w.sessions.Add(1)
	w.beat(-1)
}

func (w *stallWatch) leave() { w.sessions.Add(-1) }

// watchStalls starts the watch.
func (e *Engine) watchStalls() {
	w := &e.stall
	w.e, w.after = e, e.opt.StallReport
	if w.after == 0 {
		return
	}
	w.stop, w.since = make(chan struct{}), time.Now()
	w.done.Go(func() {
		every := min(max(w.after/4, time.Millisecond), time.Second)
		t := time.NewTicker(every)
		defer t.Stop()
		for last := time.Now(); ; {
			select {
			case <-w.stop:
				return
			case <-t.C:
			}
			now := time.Now()
			if gap := now.Sub(last) - every; gap > w.after/2 { // the whole process was stopped
				w.pass(gap)
			}
			last = now
			w.look(now)
		}
	})
}

// pass leaves out a time in which nothing could move.
func (w *stallWatch) pass(gap time.Duration) {
	w.since = w.since.Add(gap)
	for i := range w.files {
		w.files[i].since = w.files[i].since.Add(gap)
	}
}

// close ends the watch.
func (w *stallWatch) close() {
	if w.stop != nil {
		close(w.stop)
		w.done.Wait()
		w.stop = nil
	}
}

// look compares the beat with the one seen before, and tells once about what stands still.
func (w *stallWatch) look(now time.Time) {
	at := w.at.Load()
	queued, knows := w.ask()
	busy := w.sessions.Load() > 0 || queued > 0 || !knows
	for _, s := range w.slots {
		busy = busy || s.doing == slotRuns || s.doing == slotFollows
	}
	if at != w.seen || !busy {
		w.seen, w.since, w.told = at, now, false
	}
	still := now.Sub(w.since) >= w.after
	tell := still && !w.told
	w.told = still
	since, n := now, int(w.sessions.Load())
	if !still {
		n = 0
	} else {
		since, n = w.since, n+queued
	}
	for i := range w.slots {
		s := &w.slots[i]
		if i == len(w.files) {
			w.files = append(w.files, slotWatch{})
		}
		f := &w.files[i]
		if s.doing != slotAway {
			if *f = (slotWatch{}); still && s.doing != slotIdle {
				n++
			}
			continue
		}
		if f.task != s.task || f.since.IsZero() {
			*f = slotWatch{task: s.task, since: now}
		}
		if now.Sub(f.since) < w.after {
			continue
		}
		n++
		if f.since.Before(since) {
			since = f.since
		}
		tell = tell || !f.told
		f.told = true
		still = true
	}
	if tell {
		w.tell(since, n, queued, knows)
		return
	}
	w.mu.Lock()
	was := w.now
	if !still {
		w.now = nil
	}
	w.mu.Unlock()
	if !still && was != nil {
		w.e.log.Info("requests move again", "after", now.Sub(was.Since).Round(time.Millisecond))
	}
}

// ask copies what the scheduler says of its slots, and answers how many tasks wait for one. false: its lock is held.
func (w *stallWatch) ask() (queued int, knows bool) {
	s := w.users.Load()
	if s == nil {
		w.slots = w.slots[:0]
		return 0, true
	}
	if !tiers.TryLock(&s.mu) {
		return 0, false // the slots are as they were
	}
	defer s.mu.Unlock()
	w.slots = append(w.slots[:0], s.now...)
	return len(s.queue), true
}

// tell makes the report, logs and keeps it.
func (w *stallWatch) tell(since time.Time, n, queued int, knows bool) {
	var held []string // locks
	if !knows {
		held = append(held, "the scheduler's")
	}
	r := w.requests(queued) + "; " + w.place() + "; " + w.experts(&held)
	held = append(held, w.locks()...)
	if len(held) > 0 {
		r += "; held locks: " + strings.Join(held, ", ")
	}
	w.mu.Lock()
	w.total++
	w.now = &Stall{Since: since, Requests: n, Report: r}
	w.mu.Unlock()
	w.e.log.Warn("no progress", "for", w.after, "waits", r)
	if len(held) > 0 { // the only way to see who has them
		var b bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // to memory
		w.e.log.Warn("goroutines", "stacks", string(b.Bytes()[:min(b.Len(), 64<<10)]))
	}
}

// requests says who waits.
func (w *stallWatch) requests(queued int) string {
	var out []string
	if n := w.sessions.Load(); n > 0 {
		out = append(out, "a session computes")
	}
	for i, s := range w.slots {
		who := fmt.Sprintf("slot %d, request %d (prompt %d of %d, %d tokens)", i, s.task, s.at, s.prompt, s.tokens)
		switch s.doing {
		case slotRuns:
			out = append(out, who+" computes")
		case slotFollows:
			out = append(out, fmt.Sprintf("%s waits for the prompt in slot %d", who, s.leader))
		case slotAway:
			out = append(out, fmt.Sprintf("slot %d, request %d waits for a file", i, s.task))
		}
	}
	if queued > 0 {
		out = append(out, fmt.Sprintf("%d wait for a slot", queued))
	}
	return strings.Join(out, ", ")
}

// place says where the latest beat was.
func (w *stallWatch) place() string {
	if w.e.cache == nil {
		return "the model has no layers with experts, so its place is not known"
	}
	l := int(uint16(w.at.Load())) - 1
	if l < 0 {
		return "before the first layer with experts"
	}
	return fmt.Sprintf("in layer %d of %d", l, w.e.model.Config().Layers)
}

// reportReads is how many reads a report names.
const reportReads = 6

// experts says what the cache's requests wait for.
func (w *stallWatch) experts(held *[]string) string {
	c := w.e.cache
	if c == nil {
		return "no expert is waited for"
	}
	z, ok := c.Waiting()
	if !ok {
		*held = append(*held, "the expert cache's")
		return "what experts are waited for is not known"
	}
	var b strings.Builder
	if z.Blocked == 0 {
		b.WriteString("no expert is waited for")
	} else {
		fmt.Fprintf(&b, "%d wait for experts", z.Blocked)
	}
	for i, r := range z.Reads {
		if i == reportReads {
			fmt.Fprintf(&b, ", and %d more reads", len(z.Reads)-i)
			break
		}
		b.WriteString(", " + w.read(&r))
	}
	for _, q := range z.Without {
		fmt.Fprintf(&b, ", %d experts of layer %d have no slot", q.Experts, q.Layer)
	}
	if z.Store {
		fmt.Fprintf(&b, "; queued reads: %d demands, %d guesses; pieces under way: %d", z.Backlog.Demands, z.Backlog.Guesses, z.Backlog.Flying)
	} else {
		*held = append(*held, "the store's queue's")
	}
	sum, layers := 0, ""
	for _, h := range z.Held {
		sum += h.Experts
		layers += fmt.Sprintf(" layer %d: %d", h.Layer, h.Experts)
	}
	fmt.Fprintf(&b, "; leases: %d%s", sum, layers)
	return b.String()
}

// read describes an expert on its way: which file and where, and since when.
func (w *stallWatch) read(r *tiers.PendingRead) string {
	s := r.Desc.ID.String()
	for _, p := range r.Desc.Pieces {
		if p.Length > 0 && p.Shard < len(w.e.file.Shards) {
			s += fmt.Sprintf(" (%s at %d)", w.e.file.Shards[p.Shard].Path, p.Offset)
			break
		}
	}
	if r.Began {
		s += fmt.Sprintf(" is being read for %v", r.For.Round(time.Millisecond))
	} else {
		s += " is queued"
	}
	if r.Waiters == 0 {
		s += " on a guess"
	}
	return s
}

// locks names those of the engine's that somebody keeps.
func (w *stallWatch) locks() (held []string) {
	e := w.e
	look := func(name string, l *sync.Mutex) {
		if !tiers.TryLock(l) {
			held = append(held, name)
			return
		}
		l.Unlock()
	}
	if e.mon != nil {
		look("the monitor's", &e.mon.mu)
		look("the watchers'", &e.mon.view.mu)
	}
	look("the governor's", &e.gov.mu)
	if e.gpu != nil && e.gpu.tier != nil {
		look("the card's", &e.gpu.tier.mu)
	}
	return held
}

// mark tells the watch what the slots do; with the lock.
func (s *Scheduler) mark() {
	for i, x := range s.slots {
		n := slotNow{}
		if t := x.task; t != nil {
			n.task, n.prompt, n.at, n.tokens, n.doing = t.id, len(t.text), t.fill.at, len(t.res.Tokens), slotRuns
			switch {
			case t.back != nil:
				n.doing = slotAway
			case t.leader != nil:
				n.doing, n.leader = slotFollows, t.leader.id
			}
		}
		s.now[i] = n
	}
}
