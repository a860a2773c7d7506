package engine

import (
	"fmt"
	"slices"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/plan"
)

// The sequences of a Scheduler share memory for as many positions as the context has. Each has addresses for all of them and
// takes memory for those it has come to, in steps of poolStep; before it does so the expert arena makes room. What nobody has
// taken is the arena's. A sequence that needs more than there is gets it from those that are idle, the one used longest ago
// first, then from the youngest that is at work: its task goes back to the queue, and is evaluated anew, to the same bits, when
// there is room.

// poolStep is the number of positions for which memory is taken at a time.
const poolStep = 256

// slotVocab is the bytes for each token of the vocabulary that a slot takes in the Go heap: logits, and what a sampler makes of
// them.
const slotVocab = 48

// contextShare is the part of the room that ContextMost leaves to experts, as its reciprocal.
const contextShare = 4

// stateAlloc makes memory for sequences, which take pages as they grow.
func stateAlloc(n int) ([]byte, error) {
	if fault.On {
		if err := fault.Memory(int64(n)); err != nil {
			return nil, err
		}
	}
	b, err := host.Alloc(n)
	if err == nil {
		_ = host.AdviseSmall(b) // a huge page would take memory for positions to come
	}
	return b, err
}

// stateBytes is what the sequences take, without checkpoints, where one can have ctx positions and all together those or the
// pool's, if it is larger.
func (e *Engine) stateBytes(ctx int) int64 {
	o, m := &e.opt, e.model
	one, other := m.StateBytes(ctx, o.KeyType, o.ValType), o.Slots-1
	more := max(0, min(o.Pool, o.Slots*ctx)-ctx) // beyond those of one sequence
	whole, rest := more/ctx, more%ctx
	n := int64(1+whole)*one + int64(other-whole)*(m.StateFloor(ctx, o.KeyType, o.ValType)+m.Committed(ctx, poolStep, o.KeyType, o.ValType))
	if rest > 0 {
		n += m.Committed(ctx, rest, o.KeyType, o.ValType)
	}
	return n
}

// fitContext lowers the context of b, the one that the model was made for, to the largest that leaves experts their share of
// the room.
func (e *Engine) fitContext(b *Budget, ram int64) error {
	o := &e.opt
	if ram == 0 { // nobody knows how much there is
		o.Context = min(o.Context, defaultContext)
		b.KV = e.stateBytes(o.Context)
		return nil
	}
	cache := o.CacheRAM
	if cache == CacheAuto {
		cache = plan.PromptCache(ram)
	}
	room := *b
	checkpoint := int64(o.Slots) * e.model.CheckpointBytes()
	room.KV = 0
	room.Promise(ram, checkpoint)
	left := ram - room.Fixed() - plan.Mapped(cache)
	share := left / contextShare
	if o.autoBatch { // of which wider passes may take an eighth (plan.Budget.Widen)
		share = share * 8 / 7
	}
	experts := min(max(share, plan.Mapped(b.ArenaMin)), plan.Mapped(b.ArenaMost))
	if o.ExpertRAM.isSet() {
		x := *b
		if err := arenaOf(&x, o.ExpertRAM, e.slotBytes); err != nil {
			return err
		}
		experts = plan.Mapped(x.Arena)
	}
	fits := func(ctx int) bool { return plan.Mapped(e.stateBytes(ctx)) <= left-experts }
	trained := o.Context
	if !fits(trained) {
		low, high := 0, trained/poolStep // steps: the most that fit, and one more that do not
		for low+1 < high {
			if mid := (low + high) / 2; fits(mid * poolStep) {
				low = mid
			} else {
				high = mid
			}
		}
		if low == 0 {
			least := min(poolStep, trained)
			return fmt.Errorf("a context of %d tokens %w: it takes %d bytes, and beside weights, work space and experts the RAM budget of %d bytes leaves %d", least, ErrDoesNotFit,
				e.stateBytes(least), ram, max(left-experts, 0))
		}
		o.Context = low * poolStep
	}
	o.Batch = min(o.Batch, o.Context)
	b.KV = e.stateBytes(o.Context)
	e.log.Info("context", "tokens", o.Context, "made_for", trained, "bytes", b.KV, "room", left, "experts", left-plan.Mapped(b.KV))
	return nil
}

// pool is the memory of a scheduler's sequences.
type pool struct {
	e     *Engine
	steps int   // that all may have together
	fixed int64 // bytes that they take however short they are
	taken int64 // bytes now
}

func newPool(e *Engine, slots int) *pool {
	o := &e.opt
	p := &pool{e: e, steps: stepsOf(max(o.Context, min(o.Pool, slots*o.Context))) + slots - 1}
	p.fixed = int64(slots) * (e.model.StateFloor(o.Context, o.KeyType, o.ValType) + int64(e.budget.Checkpoints)*e.model.CheckpointBytes())
	p.taken = e.budget.KV // as for sessions
	return p
}

// stepsOf is the number of steps that n positions take.
func stepsOf(n int) int { return (n + poolStep - 1) / poolStep }

// set takes or gives back memory until the slots have theirs; when it takes, the arena has made room before it returns.
func (p *pool) set(slots []*slot) {
	o := &p.e.opt
	n := p.fixed
	for _, x := range slots {
		n += p.e.model.Committed(o.Context, min(x.steps*poolStep, o.Context), o.KeyType, o.ValType)
	}
	if n = min(n, p.e.budget.KV); n == p.taken {
		return
	}
	more := n > p.taken
	p.taken = n
	p.e.gov.commit(n)
	for wait := time.Duration(0); more && p.e.Over() > 0 && wait < arenaWait; wait += arenaLook {
		time.Sleep(arenaLook) // reads of guesses that came too late end
	}
}

// arenaWait is how long the arena may take to make room: what it waits for are reads.
const (
	arenaWait = 5 * time.Second
	arenaLook = 200 * time.Microsecond
)

// left is the number of steps that nobody has.
func (s *Scheduler) left() int {
	n := s.pool.steps
	for _, x := range s.slots {
		n -= x.steps
	}
	return n
}

// reserve makes sure that a slot has memory for n more tokens. It answers false where that would take from older tasks.
func (s *Scheduler) reserve(x *slot, n int) bool {
	want := stepsOf(len(x.tokens) + n)
	if want <= x.steps {
		return true
	}
	for s.left() < want-x.steps {
		if !s.reclaim(x) {
			return false
		}
	}
	x.steps = want
	s.pool.set(s.slots)
	return true
}

// reclaim takes memory from somebody else than x: what lies behind the end of a sequence, then an idle slot's, then that of the
// youngest task, if x has an older one. It answers whether there was any.
func (s *Scheduler) reclaim(x *slot) bool {
	for _, y := range s.slots {
		if y != x && !y.away() && y.steps > y.least() && s.shrink(y) {
			return true
		}
	}
	var idle, young *slot
	for _, y := range s.slots {
		switch {
		case y == x || y.steps == 0 || y.away():
		case y.task == nil:
			if idle == nil || y.used < idle.used {
				idle = y
			}
		case young == nil || y.task.id > young.task.id:
			young = y
		}
	}
	switch {
	case idle != nil:
		idle.truncate(0)
		return s.shrink(idle)
	case young != nil && young.task.id > x.task.id:
		s.postpone(young)
		return s.shrink(young)
	}
	return false
}

// least is the number of steps that a slot needs for what it holds and what the pass at hand adds.
func (x *slot) least() int { return stepsOf(len(x.tokens) + x.coming) }

// shrink gives back what lies behind the end of a slot's sequence.
func (s *Scheduler) shrink(x *slot) bool {
	if !x.state.Trim() {
		if len(x.tokens) > 0 {
			return false
		}
		// The system takes back blocks only.
		o := &s.e.opt
		st, err := s.e.model.NewState(o.Context, o.KeyType, o.ValType, s.e.budget.Checkpoints)
		if err != nil {
			return false
		}
		x.state.Free()
		x.state = st
	}
	x.steps = x.least()
	s.pool.set(s.slots)
	return true
}

// postpone takes a slot's task back into the queue, at its head but for older ones, with what it has said so far.
func (s *Scheduler) postpone(x *slot) {
	t := x.task
	if t.embed == nil {
		x.keep(MarkEnd)
	}
	text := t.text
	if t.shifted && t.fill.done() {
		text = append(slices.Clone(x.tokens), t.chosen)
	}
	x.task, x.coming = nil, 0
	x.truncate(0)
	t.leader = nil
	switch {
	case t.ready.IsZero():
		t.res.Timings.PromptN = 0
	case t.shifted:
		t.text = text
	default:
		t.text = append(append([]int32(nil), t.Prompt...), t.res.Tokens...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := 0
	for at < len(s.queue) && s.queue[at].id < t.id {
		at++
	}
	s.queue = append(s.queue[:at], append([]*task{t}, s.queue[at:]...)...)
	s.counts.Postponed++
	s.counts.Deferred = len(s.queue)
}

// roomFor reports whether a task can begin: there is memory for its prompt that no task at work has, or none is at work.
func (s *Scheduler) roomFor(t *task) bool {
	n, busy := s.pool.steps, false
	for _, x := range s.slots {
		if x.task != nil {
			n -= x.steps
			busy = true
		}
	}
	return !busy || n >= stepsOf(t.size())
}

// size is the number of positions that a task needs to begin with.
func (t *task) size() int {
	if t.act != nil {
		return t.need
	}
	return len(t.text)
}
