package engine

import (
	"context"
	"fmt"
	"os"
	"time"

	"terrace/internal/fault"
	"terrace/internal/invariant"
	"terrace/sample"
)

// task is a job from its arrival to its end.
type task struct {
	Job
	id      int64
	ctx     context.Context
	text    []int32           // evaluated before a token is chosen: the prompt, and what was said already by one that had to give up its slot
	act     func(*slot) error // instead of a job: something to be done with an idle slot
	need    int               // positions that it needs memory for
	done    chan struct{}     // closed when res and err are there
	back    chan error        // not nil while another goroutine has the slot; it answers here
	res     JobResult
	err     error
	fill    filling
	start   time.Time // a slot was given
	ready   time.Time // the prompt was evaluated
	last    time.Time // the last token was chosen
	meter   *Meter
	account counters // its part of the passes that it shared with others

	// A prompt that begins like that of an earlier task which is still on its way waits for it, and takes the first share tokens
	// from its slot.
	leader *slot
	led    *task
	share  int

	left   int   // passes of its turn, where not all may decode at once
	served int64 // when it was in a pass last, where not all may

	shifted bool // text has no longer the whole prompt

	loops  *sample.LoopDetector // nil before the first token
	chosen int32                // by the Chooser; to be evaluated next once the client has it
	failed error                // of the Chooser
}

// slot is a sequence and who uses it.
type slot struct {
	line
	id     int
	steps  int       // of memory
	coming int       // tokens that the pass at hand adds, for which there is memory
	logits []float32 // after the last token
	one    [1]int32
	copied []float32 // the same for a Chooser
	task   *task     // nil: idle
	used   int64     // when it was given away last, by the number of the task
	last   *task     // the latest one
}

// SlotInfo is what Slots tells of a slot. TaskID and what follows are of the latest task; 0: there was none.
type SlotInfo struct {
	ID, Context  int
	Processing   bool
	TaskID       int64
	PromptTokens int
	Processed    int // prompt tokens evaluated for the task
	Cached       int // prompt tokens that were there
	Decoded      int
	Remain       int // tokens that may follow; -1: no limit
	Info         any
	Held         int // tokens that the slot holds
}

// Counters are totals since the start, but for what is said to be of now.
type Counters struct {
	PromptTokens    int64 // evaluated
	CachedTokens    int64 // of prompts, not evaluated
	PromptTime      time.Duration
	PredictedTokens int64
	PredictedTime   time.Duration
	Decodes         int64 // passes with at least one decoding slot
	BusySlots       int64 // sum over them of the slots that were busy
	Longest         int   // longest sequence seen
	Processing      int   // now
	Deferred        int   // waiting for a slot now
	Postponed       int64 // tasks that had to give up their slots for want of memory
	Pages           int   // of context, of 256 positions each, that slots may have together
	PagesTaken      int   // that they have now
	Width           int   // sequences that may decode in one pass now
	WidthReason     string
}

// Slots tells what each slot does.
func (s *Scheduler) Slots() []SlotInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]SlotInfo(nil), s.infos...)
}

// Counters tells the totals.
func (s *Scheduler) Counters() Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// publish brings what Slots shows up to date.
func (s *Scheduler) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark()
	s.counts.Processing, s.counts.Pages, s.counts.PagesTaken = 0, s.pool.steps, 0
	for i, x := range s.slots {
		n := SlotInfo{ID: x.id, Context: s.e.opt.Context, Held: s.infos[i].Held, Processing: x.task != nil}
		if !x.away() {
			n.Held = len(x.tokens)
		}
		if n.Processing {
			s.counts.Processing++
		}
		if t := x.last; t != nil {
			n.TaskID, n.PromptTokens, n.Info = t.id, len(t.Prompt), t.Info
			n.Processed, n.Cached, n.Decoded, n.Remain = t.res.Timings.PromptN, t.res.Timings.CacheN, len(t.res.Tokens), -1
			if t.Max >= 0 {
				n.Remain = t.Max - n.Decoded
			}
		}
		s.counts.Longest = max(s.counts.Longest, n.Held)
		s.counts.PagesTaken += x.steps
		s.infos[i] = n
	}
}

// run is the scheduler's goroutine.
func (s *Scheduler) run() {
	defer close(s.ended)
	defer s.free()
	for {
		if stop := s.admit(); stop {
			return
		}
		s.freed = false
		busy := s.step()
		if invariant.On {
			s.consistent()
		}
		s.publish()
		if !busy && !s.freed { // a slot that came back may be what a waiting task wants
			<-s.wake
		}
	}
}

// admit gives slots to tasks, in order of arrival but for those that wait for a certain slot. It answers true when the
// scheduler has to end.
func (s *Scheduler) admit() (stop bool) {
	for {
		t, x, end := s.pick()
		if end != nil {
			s.end(t, nil, end)
			continue
		}
		if t == nil {
			break
		}
		if t.act != nil {
			if x.task = t; t.need > len(x.tokens) && !s.reserve(x, t.need-len(x.tokens)) {
				s.end(t, x, fmt.Errorf("%d tokens beside those of other slots: %w", t.need, ErrDoesNotFit))
				continue
			}
			s.send(t, func() error { return t.act(x) })
			continue
		}
		s.begin(t, x)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.slots {
		if x.task != nil {
			return false
		}
	}
	return s.closing && len(s.queue) == 0
}

// pick takes a task that can begin out of the queue, with its slot, or one that has ended in the queue, with the reason.
func (s *Scheduler) pick() (*task, *slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	short := false
	for i, t := range s.queue {
		err := t.ctx.Err()
		if s.cancelled {
			err = ErrClosed
		}
		var x *slot
		if err == nil {
			if short = short || !s.roomFor(t); short { // those behind it wait, too: memory comes to whoever was first
				continue
			}
			if x = s.choose(t); x == nil {
				continue
			}
		}
		s.queue = append(s.queue[:i], s.queue[i+1:]...)
		s.counts.Deferred = len(s.queue)
		return t, x, err
	}
	return nil, nil, nil
}

// choose is the slot for a task: the one it must have, the idle one that shares most of its prompt, or the one that was used
// longest ago. It is nil where the task has to wait.
func (s *Scheduler) choose(t *task) *slot {
	if t.Slot >= 0 {
		if x := s.slots[t.Slot]; x.task == nil {
			return x
		}
		return nil
	}
	var best, oldest *slot
	most := 0
	for _, x := range s.slots {
		if x.task != nil {
			continue
		}
		if n := x.common(t.text); n > most && float64(n) >= s.opt.Similarity*float64(len(t.text)) {
			best, most = x, n
		}
		if oldest == nil || x.used < oldest.used {
			oldest = x
		}
	}
	if best != nil {
		return best
	}
	return oldest
}

// SlotFile is what was saved or restored.
type SlotFile struct {
	Tokens  int
	Bytes   int64
	Elapsed time.Duration
}

// do has f called with an idle slot that has memory for need positions.
func (s *Scheduler) do(ctx context.Context, id, need int, f func(*slot) error) error {
	if id < 0 || id >= len(s.slots) {
		return fmt.Errorf("%w: %d of %d", ErrNoSlot, id, len(s.slots))
	}
	t := &task{Job: Job{Slot: id}, ctx: ctx, act: f, need: need, done: make(chan struct{})}
	if err := s.submit(t); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.kick)
	defer stop()
	<-t.done
	return t.err
}

// SaveSlot writes what a slot holds to the file called name of SaveDir, once it is idle: whole, or not at all.
func (s *Scheduler) SaveSlot(ctx context.Context, id int, name string) (SlotFile, error) {
	return s.file(ctx, id, name, func(string) int { return 0 }, func(x *slot, path string) (int, int64, error) {
		n, err := s.e.SaveState(x.state, x.tokens, path)
		return len(x.tokens), n, err
	})
}

// RestoreSlot brings back what SaveSlot wrote; a file of another model or of other settings is refused. Errors about the file wrap
// ErrState.
func (s *Scheduler) RestoreSlot(ctx context.Context, id int, name string) (SlotFile, error) {
	return s.file(ctx, id, name, s.e.heldBy, func(x *slot, path string) (int, int64, error) {
		n, err := x.load(s.e, path)
		return len(x.tokens), n, err
	})
}

// heldBy is the most positions that a file with a saved sequence can have, by its size.
func (e *Engine) heldBy(path string) int {
	st, err := os.Stat(path)
	z := e.model.StateSize(e.opt.KeyType, e.opt.ValType)
	each := z.Token - z.Windowed + z.Index
	if err != nil || each == 0 { // reading it will say why, or its length is of no account
		return 0
	}
	return int(min(st.Size()/each, int64(e.opt.Context)))
}

// file has f called with an idle slot and the path of the file called name, which has memory for as many positions as need says.
func (s *Scheduler) file(ctx context.Context, id int, name string, need func(path string) int, f func(x *slot, path string) (int, int64, error)) (z SlotFile, err error) {
	if s.opt.SaveDir == "" {
		return z, fmt.Errorf("saving slots %w: no folder was given", ErrNotOn)
	}
	path, err := slotPath(s.opt.SaveDir, name)
	if err != nil {
		return z, err
	}
	start := fault.Now()
	err = s.do(ctx, id, need(path), func(x *slot) (err error) {
		z.Tokens, z.Bytes, err = f(x, path)
		return err
	})
	if err != nil {
		return SlotFile{}, err
	}
	z.Elapsed = fault.Since(start)
	return z, nil
}

// EraseSlot empties a slot, once it is idle, and tells how many tokens it held.
func (s *Scheduler) EraseSlot(ctx context.Context, id int) (SlotFile, error) {
	if s.opt.SaveDir == "" {
		return SlotFile{}, fmt.Errorf("saving slots %w: no folder was given", ErrNotOn)
	}
	var f SlotFile
	start := fault.Now()
	err := s.do(ctx, id, 0, func(x *slot) error {
		f.Tokens = len(x.tokens)
		x.truncate(0)
		return nil
	})
	f.Elapsed = fault.Since(start)
	return f, err
}
