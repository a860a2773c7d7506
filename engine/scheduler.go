package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"terrace/sample"
)

// ErrClosed is the answer of a scheduler that ends.
var ErrClosed = errors.New("the scheduler is closed")

// ErrNotOn is the answer of what was not switched on.
var ErrNotOn = errors.New("is not switched on")

// ErrUnsupported is the answer of what this model or build cannot do.
var ErrUnsupported = errors.New("is not supported")

// ErrNoSlot is the answer to a slot that does not exist.
var ErrNoSlot = errors.New("no such slot")

// SchedulerOptions configure a Scheduler. The zero value of each field asks for its default.
type SchedulerOptions struct {
	Slots      int          // sequences, at most Options.Slots; 0: all of these
	Similarity float64      // least share of a prompt that a slot must hold to be chosen for it; 0: 0.1, negative: any
	Cache      *PromptCache // prefixes kept beyond the slots; nil: none
	SaveDir    string       // folder of saved slots; "": off
	Log        *slog.Logger // nil: silent

	width int // sequences in a pass, in tests; 0: the scheduler's choice
}

const (
	defaultSimilarity = 0.1
	maxSlots          = 256
)

// Chooser picks a token from logits, which it may change, and learns what was picked.
type Chooser interface {
	Next(logits []float32) (int32, error)
	Accept(id int32)
}

// proposer is a Chooser that tells the probabilities of its last choice.
type proposer interface{ Probs() []sample.Prob }

// Job is a prompt to be evaluated and an answer to be made.
type Job struct {
	Prompt    []int32
	Max       int     // tokens to generate at most; negative: until an end token or the full context; 0: evaluate the prompt only
	Slot      int     // the slot it must run in; -1: any
	NoCache   bool    // evaluate the whole prompt anew
	Chooser   Chooser // may be nil where Max is 0
	IgnoreEOS bool    // do not end at end tokens
	StopLoops bool    // end the answer at a loop (sample.LoopDetector); otherwise it is told in the statistics and the log only

	// With Shift a full context does not end the answer: it keeps the first Keep tokens (negative: the prompt), gives up the Discard
	// ones behind them (0: half of the rest), and evaluates what follows anew, to the bits that it has as a prompt.
	Shift         bool
	Keep, Discard int

	// The calls below come from the scheduler's goroutine: they must be short and never block.
	OnSlot   func(slot int)            // a slot was given
	OnPrompt func(p PromptProgress)    // after each piece of the prompt
	OnToken  func(t Token) (more bool) // false ends the job; an end token is not shown
	Info     any                       // shown by Slots

	embed *embedding // instead of logits
}

// PromptProgress says how far a prompt has come: Cached tokens were there already, Processed are evaluated or were there.
type PromptProgress struct {
	Total, Cached, Processed int
	Elapsed                  time.Duration
}

// Token is a token of an answer.
type Token struct {
	ID      int32
	Logits  []float32     // it was chosen by, as the model gave them; valid during the call, not to be changed
	Probs   []sample.Prob // after the sampler's steps, where the Chooser tells them; valid during the call
	Elapsed time.Duration // since the prompt was evaluated
}

// JobResult is what became of a Job.
type JobResult struct {
	Slot      int
	Finish    Finish
	Truncated bool    // the context was full, and a part of it was given up or the answer ended
	Tokens    []int32 // generated, an end token not included
	End       int32   // the end token, or -1
	Timings   Timings
	Held      int // tokens that the slot holds afterwards
	Stats     Stats
}

// Timings are a job's counts and times. CacheN + PromptN is the length of the prompt; an end token counts as predicted.
type Timings struct {
	CacheN, PromptN, PredictedN int
	Prompt, Predicted           time.Duration
}

// Scheduler decodes the jobs of several clients together over a fixed number of slots, each of which holds a sequence and
// keeps it when a job is done, for a prompt that begins alike. A Scheduler must be the only user of its Engine. Its methods
// may be called from any goroutine.
type Scheduler struct {
	walk
	opt   SchedulerOptions
	log   *slog.Logger
	slots []*slot
	pool  *pool
	width *width
	batch batch

	passes int64         // that were shared by turns
	freed  bool          // a slot was given back since the queue was looked at last
	wake   chan struct{} // holds a token when there is something to do
	ended  chan struct{} // the goroutine is gone

	mu      sync.Mutex
	queue   []*task // waiting, in order of arrival
	ids     int64
	closing bool
	// cancelled ends what runs, too.
	cancelled bool
	infos     []SlotInfo
	now       []slotNow // the slots, for the watch for work that does not move
	counts    Counters
}

// NewScheduler makes a scheduler over an engine that has no other users. It fails where the slots do not fit the memory.
func (e *Engine) NewScheduler(o SchedulerOptions) (*Scheduler, error) {
	if o.Slots == 0 {
		o.Slots = e.opt.Slots
	}
	if o.Slots < 1 || o.Slots > e.opt.Slots {
		return nil, fmt.Errorf("%w: %d slots, want 1 to %d, for which the engine was opened", ErrUsage, o.Slots, e.opt.Slots)
	}
	if o.Similarity == 0 {
		o.Similarity = defaultSimilarity
	}
	if !(o.Similarity <= 1) {
		return nil, fmt.Errorf("%w: slot similarity is %g, want at most 1", ErrUsage, o.Similarity)
	}
	s := &Scheduler{opt: o, batch: batch{piece: pieceRows}, log: o.Log, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.walk.init(e); err != nil {
		return nil, err
	}
	for i := range o.Slots {
		st, err := e.model.NewState(e.opt.Context, e.opt.KeyType, e.opt.ValType, e.budget.Checkpoints)
		if err != nil {
			s.free()
			return nil, err
		}
		s.slots = append(s.slots, &slot{line: line{state: st, cache: o.Cache, life: e.lives}, id: i, logits: make([]float32, e.model.Config().Vocab)})
	}
	s.width = newWidth(len(s.slots), e.tokenBytes(), s.log)
	if o.width > 0 {
		s.width.best, s.width.reason, s.width.wait = o.width, "asked for", math.MaxInt
	}
	s.pool = newPool(e, len(s.slots))
	s.pool.set(s.slots)
	s.counts.Width = len(s.slots)
	s.infos, s.now = make([]SlotInfo, len(s.slots)), make([]slotNow, len(s.slots))
	s.publish()
	e.stall.users.Store(s)
	go s.run()
	return s, nil
}

func (s *Scheduler) free() {
	s.e.stall.users.CompareAndSwap(s, nil)
	for _, x := range s.slots {
		x.state.Free()
	}
	if s.pool != nil {
		s.e.gov.commit(s.e.budget.KV)
	}
	if s.e.heat != nil {
		s.e.heat.save()
	}
}

// Close takes no more jobs and waits for those that there are; when ctx ends, they are cancelled. Nothing of the scheduler
// may be used afterwards.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.kick()
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.cancelled = true
	s.mu.Unlock()
	s.kick()
	<-s.ended
	return ctx.Err()
}

// Cache is the store of prompts that the scheduler was given, or nil.
func (s *Scheduler) Cache() *PromptCache { return s.opt.Cache }

// kick wakes the goroutine.
func (s *Scheduler) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Do runs a job and waits for it. When ctx ends, the job ends at the next token or piece of the prompt, with what it has and
// ctx's error.
func (s *Scheduler) Do(ctx context.Context, j Job) (JobResult, error) {
	none := JobResult{Slot: -1, Finish: FinishAborted, End: -1}
	if err := s.e.checkPrompt(j.Prompt); err != nil {
		return none, err
	}
	if j.Slot < -1 || j.Slot >= len(s.slots) {
		return none, fmt.Errorf("%w: %d of %d", ErrNoSlot, j.Slot, len(s.slots))
	}
	if j.Max != 0 && j.Chooser == nil {
		panic("engine: a job that generates without a chooser")
	}
	t := &task{Job: j, text: j.Prompt, ctx: ctx, done: make(chan struct{}), res: none}
	if err := s.submit(t); err != nil {
		return none, err
	}
	stop := context.AfterFunc(ctx, s.kick)
	defer stop()
	<-t.done
	return t.res, t.err
}

// submit puts a task at the end of the queue.
func (s *Scheduler) submit(t *task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrClosed
	}
	s.ids++
	t.id = s.ids
	s.queue = append(s.queue, t)
	s.counts.Deferred = len(s.queue)
	s.kick()
	return nil
}
