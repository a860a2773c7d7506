package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/internal/invariant"
	"terrace/model"
	"terrace/sample"
	"terrace/vulkan"
)

// pieceRows is how many tokens of prompts go into a pass at first while somebody decodes. It follows the time that they take,
// between pieceLeast and the batch.
const (
	pieceRows  = 64
	pieceLeast = 16
)

// pieceTime is what a piece of prompts may add to the time between two tokens of those who decode: about a sweep through the
// experts of a middling model, which a piece costs almost whatever its length.
const pieceTime = 400 * time.Millisecond

// shareLeast is how many tokens a prompt must have in common with one that is on its way to wait for it.
const shareLeast = 16

// batch is what one pass takes.
type batch struct {
	parts  []part
	seqs   []model.Seq
	choose []*slot // that have new logits
	turns  []*slot // that decode
	ready  int     // slots that could decode
	piece  int     // tokens of prompts beside decoding slots
	first  int     // the slot whose prompt is served first
	before counters
	decode time.Duration // what a pass without prompts takes, lately
}

// part is one slot's part in a pass.
type part struct {
	x      *slot
	n      int  // tokens
	prompt bool // of its prompt; otherwise the one chosen last
	err    error
}

// begin starts a task in an idle slot.
func (s *Scheduler) begin(t *task, x *slot) {
	x.task, x.last, x.used = t, t, t.id
	t.res.Slot = x.id
	if t.meter == nil {
		t.start = fault.Now()
		t.meter = s.beginJob(len(t.Prompt), len(s.slots), &t.account)
	}
	switch c := s.opt.Cache; {
	case t.NoCache:
		x.truncate(0)
	case c != nil && c.Lookup(x.state, t.text) > s.inSlots(t, x) && s.reserve(x, len(t.text)-len(x.tokens)):
		s.send(t, func() error {
			_, err := x.recall(t.ctx, t.text)
			return err
		})
		return
	default:
		x.truncate(x.common(t.text))
	}
	s.start(t, x)
}

// inSlots is how many tokens of a task's prompt its slot or others hold or will hold soon.
func (s *Scheduler) inSlots(t *task, x *slot) int {
	n := x.state.Reach(x.common(t.text)) // where it can go back to, which may lie before what it has in common
	for _, y := range s.slots {
		if y == x || y.away() {
			continue
		}
		n = max(n, y.state.Reach(y.common(t.text)))
		if u := y.task; u != nil && u.act == nil {
			n = max(n, min(common(u.text, t.text), len(t.text)-1))
		}
	}
	return n
}

// send has f called by a goroutine of its own, since it may read or write files: until it answers, the slot is away and others go
// on.
func (s *Scheduler) send(t *task, f func() error) {
	t.back = make(chan error, 1)
	go func() {
		t.back <- f()
		s.kick()
	}()
}

// away reports whether another goroutine has the slot.
func (x *slot) away() bool { return x.task != nil && x.task.back != nil }

// returned takes a slot back whose goroutine has answered.
func (s *Scheduler) returned(t *task, x *slot) {
	select {
	case err := <-t.back:
		t.back = nil
		if t.act != nil {
			if len(x.tokens) > x.steps*poolStep && !s.reserve(x, 0) { // a file has grown since its size was looked at
				x.truncate(0)
			}
			s.end(t, x, err)
			if x.steps > stepsOf(len(x.tokens)) {
				s.shrink(x)
			}
			return
		}
		if err != nil {
			s.end(t, x, err)
			return
		}
		s.start(t, x)
	default:
	}
}

// start begins with the prompt of a task whose slot holds what is known of it.
func (s *Scheduler) start(t *task, x *slot) {
	t.fill = x.line.fill(t.text, s.e.budget.Checkpoints > 0)
	if t.embed != nil {
		t.fill.private = true
		t.embed.begin()
	}
	if !t.NoCache {
		s.follow(x)
	}
	if t.ready.IsZero() {
		t.res.Timings.CacheN = t.fill.keep
	}
	if t.OnSlot != nil {
		t.OnSlot(x.id)
	}
}

// follow looks for another slot that has more of a task's prompt than its own, and copies it; or for an earlier task that will
// have more of it, and waits.
func (s *Scheduler) follow(x *slot) {
	t := x.task
	t.leader = nil
	var best *slot
	most := t.fill.at
	for _, y := range s.slots {
		if y == x || y.away() {
			continue
		}
		if n := y.state.Reach(y.common(t.text)); n > most {
			best, most = y, n
		}
	}
	for _, y := range s.slots {
		u := y.task
		if y == x || u == nil || y.away() || u.id > t.id || u.fill.done() {
			continue
		}
		if n := min(common(u.text, t.text), len(t.text)-1); n > most && n >= t.fill.at+shareLeast && n > u.fill.at {
			t.leader, t.led, t.share, most = y, u, n, n
		}
	}
	if t.leader == nil && best != nil && s.reserve(x, most-len(x.tokens)) && best.state.Pos() >= most {
		s.copyFrom(x, best, most)
	}
}

// copyFrom brings the first n tokens of another slot into one that holds fewer of them.
func (s *Scheduler) copyFrom(x, from *slot, n int) {
	t := x.task
	computed := t.fill.at - t.fill.keep
	x.state.CopyPrefix(from.state, n)
	x.tokens = append(x.tokens[:0], from.tokens[:n]...)
	t.fill = x.line.fill(t.text, s.e.budget.Checkpoints > 0)
	t.fill.keep -= computed
}

// settle ends the waiting of those whose leaders have come far enough, or have gone.
func (s *Scheduler) settle() {
	for _, x := range s.slots {
		if x.task == nil || x.task.leader == nil {
			continue
		}
		if t := x.task; t.leader.task != t.led || t.led.fill.at >= t.share {
			s.follow(x)
		}
	}
}

// step lets the busy slots go on: those that decode by a token, prompts by a piece. It answers whether there were any.
func (s *Scheduler) step() (busy bool) {
	b := &s.batch
	for _, x := range s.slots {
		if x.away() {
			s.returned(x.task, x)
		}
		if t := x.task; t != nil && !x.away() {
			if err := s.over(t); err != nil {
				s.end(t, x, err)
			}
		}
	}
	if s.regains() {
		s.e.regain()
	}
	s.settle()
	decoding := s.plan()
	if len(b.parts) == 0 {
		return false
	}
	s.pass()
	b.choose = b.choose[:0]
	for i := range b.parts {
		p := &b.parts[i]
		t := p.x.task
		switch {
		case p.err != nil:
			s.end(t, p.x, p.err)
		case !p.prompt:
			if len(p.x.tokens)%checkpointGap == 0 {
				p.x.keep(MarkMore)
			}
			b.choose = append(b.choose, p.x)
		default:
			s.evaluated(p)
		}
	}
	s.chooseTokens()
	if decoding > 0 {
		s.count(func(c *Counters) {
			c.Decodes++
			c.BusySlots += int64(decoding)
			c.Width, c.WidthReason = s.width.best, s.width.reason
		})
	}
	return true
}

// over is why a task that runs must end now, or nil.
func (s *Scheduler) over(t *task) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancelled {
		return ErrClosed
	}
	return nil
}

// plan fills the batch. It answers how many slots decode in it.
func (s *Scheduler) plan() (decoding int) {
	b := &s.batch
	b.parts = b.parts[:0]
	turns, ready := s.turns()
	b.ready = ready
	for _, x := range turns {
		if x.task != nil && s.reserve(x, 1) { // an older one may have taken its slot
			b.parts = append(b.parts, part{x: x, n: 1})
			x.coming = 1
		}
	}
	decoding = s.kept()
	rows := s.e.model.MaxRows() - decoding
	if decoding > 0 {
		rows = min(rows, b.piece)
	}
	filling := 0
	for _, x := range s.slots {
		if s.fills(x) {
			filling++
		}
	}
	for i := range s.slots {
		x := s.slots[(b.first+i)%len(s.slots)]
		if !s.fills(x) {
			continue
		}
		f := &x.task.fill
		n := min((rows+filling-1)/filling, s.until(x)-f.at)
		filling--
		if n > 0 {
			n, _ = f.next(n)
		}
		if n > 0 && s.reserve(x, n) {
			b.parts = append(b.parts, part{x: x, n: n, prompt: true})
			x.coming = n
			rows -= n
		}
	}
	b.first++
	return min(decoding, s.kept())
}

// kept leaves in the batch those who still have their slots, and answers how many there are.
func (s *Scheduler) kept() int {
	b := &s.batch
	b.parts = slices.DeleteFunc(b.parts, func(p part) bool { return p.x.task == nil })
	return len(b.parts)
}

// fills says that a slot's prompt is to be evaluated now.
func (s *Scheduler) fills(x *slot) bool {
	return x.task != nil && !x.away() && !x.task.fill.done() && x.task.leader == nil
}

// until is where a prompt has to pause: others take its beginning from there.
func (s *Scheduler) until(x *slot) int {
	at, n := x.task.fill.at, len(x.task.text)
	for _, y := range s.slots {
		if t := y.task; t != nil && t.leader == x && t.share > at {
			n = min(n, t.share)
		}
	}
	return n
}

// pass evaluates the batch, each slot's part with what it costs put to the task's account.
func (s *Scheduler) pass() {
	b := &s.batch
	s.mu.Lock()
	s.mark() // publish comes after the pass
	s.mu.Unlock()
	s.e.stall.beat(-1)
	b.before = s.counters()
	start := fault.Now()
	b.seqs = b.seqs[:0]
	for i := range b.parts {
		b.seqs = append(b.seqs, s.seq(&b.parts[i]))
	}
	ctx := context.Background()
	if len(b.parts) == 1 {
		ctx = b.parts[0].x.task.ctx // nobody else is disturbed when it ends
	}
	err := s.e.model.ForwardAll(ctx, b.seqs, s.src)
	if errors.Is(err, vulkan.ErrLost) {
		s.failed()
		if s.revive(err) {
			b.seqs = b.seqs[:0]
			for i := range b.parts {
				b.seqs = append(b.seqs, s.seq(&b.parts[i]))
			}
			err = s.e.model.ForwardAll(ctx, b.seqs, s.src)
		}
	}
	if err != nil {
		s.failed()
		b.parts[0].err = err
	}
	if err != nil && len(b.parts) > 1 {
		// Each by itself: an error is of those alone who meet it again.
		for i := range b.parts {
			p := &b.parts[i]
			if p.err = s.e.model.ForwardAll(p.x.task.ctx, b.seqs[i:i+1], s.src); p.err != nil {
				s.failed()
			}
		}
	}
	clear(b.seqs)
	if invariant.On {
		s.returnedAll()
	}
	rows, decode, prompts := int64(0), 0, 0
	for i := range b.parts {
		p := &b.parts[i]
		rows += int64(p.n)
		p.x.coming = 0
		if p.prompt {
			prompts += p.n
		} else {
			decode++
		}
		if p.err != nil {
			continue
		}
		x, t := p.x, p.x.task
		if p.prompt {
			x.tokens = append(x.tokens, t.text[t.fill.at:t.fill.at+p.n]...)
		} else {
			x.tokens = append(x.tokens, t.chosen)
		}
	}
	now := s.counters()
	at := int64(0)
	for i := range b.parts {
		p := &b.parts[i]
		p.x.task.account.portion(&now, &b.before, at, at+int64(p.n), rows)
		at += int64(p.n)
	}
	took := fault.Since(start)
	s.took(took, decode, prompts)
	if decode > 0 && prompts == 0 && err == nil {
		s.width.passed(b.ready, decode, now.cache.DemandBytes+now.cache.GuessBytes-b.before.cache.DemandBytes-b.before.cache.GuessBytes, took)
	}
}

// seq is what a part adds to its sequence.
func (s *Scheduler) seq(p *part) model.Seq {
	x, t := p.x, p.x.task
	q := model.Seq{State: x.state}
	if !p.prompt {
		x.one[0] = t.chosen
		q.Tokens, q.Logits = x.one[:], model.LastLogits
	} else {
		t.fill.will(p.n)
		q.Tokens = t.text[t.fill.at : t.fill.at+p.n]
		_, q.Logits = t.fill.next(p.n)
	}
	if t.embed != nil {
		rows := t.embed.wants(p.n, q.Logits == model.LastLogits)
		q.Hidden, q.Out = true, t.embed.room(rows)
		switch rows {
		case 0:
			q.Logits = model.NoLogits
		case p.n:
			q.Logits = model.AllLogits
		default:
			q.Logits = model.LastLogits
		}
	} else if q.Logits == model.LastLogits {
		q.Out = x.logits
	}
	return q
}

// took follows the time of a pass, which had so many parts that decode and tokens of prompts, with the size of pieces.
func (s *Scheduler) took(d time.Duration, decode, prompts int) {
	b := &s.batch
	decoding := decode > 0
	switch {
	case prompts == 0:
		b.decode = d
	case decoding && prompts >= b.piece && d-b.decode > pieceTime:
		b.piece = max(b.piece/2, pieceLeast)
	case decoding && prompts >= b.piece && d-b.decode < pieceTime/3:
		b.piece = min(b.piece*2, s.e.opt.Batch)
	}
}

// evaluated tells that a piece of a prompt is there.
func (s *Scheduler) evaluated(p *part) {
	x, t := p.x, p.x.task
	t.fill.did(p.n)
	if t.embed != nil {
		t.embed.took(p.n)
	}
	s.count(func(c *Counters) { c.PromptTokens += int64(p.n) })
	if !t.ready.IsZero() { // it had to give up its slot, and has it again
		if t.fill.done() {
			s.batch.choose = append(s.batch.choose, x)
		}
		return
	}
	t.res.Timings.PromptN += p.n
	now := fault.Now()
	t.res.Timings.Prompt = now.Sub(t.start)
	t.res.Timings.CacheN = t.fill.keep
	if t.OnPrompt != nil {
		t.OnPrompt(PromptProgress{Total: len(t.Prompt), Cached: t.fill.keep, Processed: t.fill.at, Elapsed: now.Sub(t.start)})
	}
	if !t.fill.done() {
		return
	}
	t.ready = now
	t.meter.evaluated = t.res.Timings.PromptN
	t.meter.promptDone()
	s.count(func(c *Counters) { c.CachedTokens += int64(t.fill.keep) })
	if t.Max == 0 {
		t.res.Finish = FinishLength
		s.end(t, x, nil)
		return
	}
	s.batch.choose = append(s.batch.choose, x)
}

// chooseTokens lets the Choosers of the slots with new logits choose, at the same time, and gives the tokens to the clients.
func (s *Scheduler) chooseTokens() {
	b := &s.batch
	next := func(x *slot) {
		x.copied = append(x.copied[:0], x.logits...)
		x.task.chosen, x.task.failed = x.task.Chooser.Next(x.copied)
	}
	if n := len(b.choose); n > 1 && n*len(b.choose[0].logits) >= spreadLogits {
		var g sync.WaitGroup
		for _, x := range b.choose[1:] {
			g.Go(func() { next(x) })
		}
		next(b.choose[0])
		g.Wait()
	} else {
		for _, x := range b.choose {
			next(x)
		}
	}
	for _, x := range b.choose {
		if err := s.token(x, x.task); err != nil {
			s.end(x.task, x, err)
		}
	}
}

// spreadLogits is the number of logits from which on choosing is spread over goroutines: some hundred microseconds of work.
const spreadLogits = 128 << 10

// token gives a chosen token to its client, and ends the task where it was the last.
func (s *Scheduler) token(x *slot, t *task) error {
	if t.failed != nil {
		return t.failed
	}
	r, id := &t.res, t.chosen
	t.Chooser.Accept(id)
	var probs []sample.Prob
	if p, ok := t.Chooser.(proposer); ok {
		probs = p.Probs()
	}
	t.last = fault.Now()
	t.meter.token()
	r.Timings.PredictedN++
	s.count(func(c *Counters) { c.PredictedTokens++ })
	if s.e.tok.IsEOG(id) && !t.IgnoreEOS {
		r.Finish, r.End = FinishStop, id
		s.end(t, x, nil)
		return nil
	}
	r.Tokens = append(r.Tokens, id)
	more := t.OnToken == nil || t.OnToken(Token{ID: id, Logits: x.logits, Probs: probs, Elapsed: t.last.Sub(t.ready)})
	if t.loops == nil {
		t.loops = sample.NewLoopDetector()
	}
	looped := t.loops.Accept(id)
	if looped {
		s.e.looped(t.loops.Loop(), t.StopLoops)
	}
	switch {
	case !more:
		r.Finish = FinishStop
	case looped && t.StopLoops:
		r.Finish = FinishLength
	case t.Max > 0 && len(r.Tokens) >= t.Max:
		r.Finish = FinishLength
	case len(x.tokens) >= s.e.opt.Context:
		if r.Truncated = true; t.Shift {
			s.shift(x, t)
			return nil
		}
		r.Finish = FinishLength
	default:
		return nil
	}
	s.end(t, x, nil)
	return nil
}

// end tells a task's client what became of it, and frees the slot.
func (s *Scheduler) end(t *task, x *slot, err error) {
	t.err = err
	if x != nil {
		x.task, s.freed = nil, true
		t.res.Held = len(x.tokens)
	}
	if t.meter != nil {
		t.res.Stats = t.meter.end()
		t.res.Stats.FinishReason = t.res.Finish
		if t.loops != nil {
			t.res.Stats.Loop = t.loops.Loop()
		}
	}
	if !t.ready.IsZero() && t.last.After(t.ready) {
		t.res.Timings.Predicted = t.last.Sub(t.ready)
	}
	s.count(func(c *Counters) {
		c.PromptTime += t.res.Timings.Prompt
		c.PredictedTime += t.res.Timings.Predicted
	})
	s.publish() // before the client knows: who has an answer finds its slot idle
	close(t.done)
	t.fill.drop()
	if x != nil && t.act == nil && t.embed == nil {
		x.keep(MarkEnd)
	}
}

func (s *Scheduler) count(f func(c *Counters)) {
	s.mu.Lock()
	f(&s.counts)
	s.mu.Unlock()
}
