package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
	"terrace/tokenizer"
)

// job is one completion to be made.
type job struct {
	p       *params
	index   int
	prompt  []int32
	chooser engine.Chooser // nil where nothing is generated
	seed    int64          // in use
	parser  *chat.Parser   // reads the answer of a chat; nil: text
	stops   []string       // besides p.stop: they end the answer as an end token does
	show    map[int32]bool // control tokens whose text the parser needs
	think   *thinker       // counts thoughts; nil: nobody asked
	newline atomic.Bool    // the answer has one
}

// kept is how many tokens a shift of the context keeps: those of n_keep, and the one that begins every text; negative: the prompt.
func (j *job) kept(m *Model) int {
	t := m.Engine.Tokenizer()
	if j.p.keep >= 0 && t.AddBOS() && j.prompt[0] == t.BOS() {
		return j.p.keep + 1
	}
	return j.p.keep
}

// piece is what became certain of an answer by one token or more, or how far its prompt is.
type piece struct {
	index    int
	slot     int
	text     string       // of the answer, whole characters; the raw text also where deltas are
	deltas   []chat.Delta // of a chat's answer
	tokens   []int32
	probs    []tokenProb
	count    int // tokens generated so far
	timings  *timings
	progress *progress // nil: not a report on the prompt
	final    *result   // the last piece of an answer
	err      error     // the answer failed
}

// result is a finished answer.
type result struct {
	index, slot int
	text        string      // without the stop string
	answer      chat.Answer // of a chat
	tokens      []int32
	probs       []tokenProb
	stop        string // "eos", "limit", "word" or "none"
	word        string // the stop string that was met
	truncated   bool
	newline     bool
	prompt      int // its tokens
	count       int // tokens generated
	thoughts    int // of them, within the thoughts of a chat's answer, the end of these included
	chatty      bool
	held        int // tokens in the slot afterwards
	seed        int64
	timings     timings
	stats       engine.Stats
	last        piece // of a stream: what was not given out before
}

// tokenProb is a token with the alternatives to it.
type tokenProb struct {
	id    int32
	value float64 // its log-probability, or with post_sampling_probs its probability
	top   []candidate
	start int // where its text begins in the answer's
}

type candidate struct {
	id    int32
	value float64
}

// timings are the contract's object of that name.
type timings struct {
	CacheN             int     `json:"cache_n"`
	PromptN            int     `json:"prompt_n"`
	PromptMS           float64 `json:"prompt_ms"`
	PromptPerToken     float64 `json:"prompt_per_token_ms"`
	PromptPerSecond    float64 `json:"prompt_per_second"`
	PredictedN         int     `json:"predicted_n"`
	PredictedMS        float64 `json:"predicted_ms"`
	PredictedPerToken  float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond float64 `json:"predicted_per_second"`
}

func newTimings(t engine.Timings) timings {
	out := timings{CacheN: t.CacheN, PromptN: t.PromptN, PredictedN: t.PredictedN, PromptMS: ms(t.Prompt), PredictedMS: ms(t.Predicted)}
	rate := func(n int, ms float64) (per, each float64) {
		if n == 0 {
			return 0, 0
		}
		if ms > 0 {
			per = float64(n) / ms * 1000
		}
		return per, ms / float64(n)
	}
	out.PromptPerSecond, out.PromptPerToken = rate(out.PromptN, out.PromptMS)
	out.PredictedPerSecond, out.PredictedPerToken = rate(out.PredictedN, out.PredictedMS)
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// progress is the contract's prompt_progress.
type progress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`
	Processed int   `json:"processed"`
	TimeMS    int64 `json:"time_ms"`
}

// maxQueued bounds the pieces that wait for a client that reads slowly; then its request ends.
const maxQueued = 8192

// errSlow ends a request whose client reads slower than the model writes, for too long.
var errSlow = errors.New("the client reads too slowly")

// outbox is the queue between the scheduler, which must not wait, and the goroutine that writes to the client.
type outbox struct {
	mu    sync.Mutex
	queue []piece
	wake  chan struct{}
	slow  bool
}

// push adds a piece; it tells whether there was room for it. The last piece of an answer always has room.
func (o *outbox) push(p piece) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= maxQueued && p.final == nil && p.err == nil {
		o.slow = true
		return false
	}
	o.queue = append(o.queue, p)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// full tells whether a piece was refused.
func (o *outbox) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.slow
}

func (o *outbox) take() []piece {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := o.queue
	o.queue = nil
	return q
}

// running are the completions of one request at work.
type running struct {
	c      *call
	box    outbox
	left   int // answers that are not finished
	live   bool
	last   atomic.Int64 // when there was progress
	extra  int          // completions beside the first, which the route counted
	err    error        // they were not started
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

// start hands completions to the scheduler. live asks for pieces as they come; otherwise only finished answers are given.
// The caller must call stop when it is done.
func (c *call) start(jobs []*job, live bool) *running {
	r := &running{c: c, left: len(jobs), live: live, box: outbox{wake: make(chan struct{}, 1)}}
	var ctx context.Context
	ctx, r.cancel = context.WithCancelCause(c.ctx)
	c.body = nil // long answers need not hold it
	if r.extra = len(jobs) - 1; r.extra > 0 {
		if r.err = c.s.gate.enter(r.extra); r.err != nil {
			r.extra = 0
			return r
		}
	}
	for _, j := range jobs {
		r.wg.Go(func() {
			res, err := j.run(ctx, c.m, r)
			if err != nil {
				r.box.push(piece{index: j.index, err: err})
				return
			}
			last := res.last
			last.index, last.slot, last.count, last.final = j.index, res.slot, res.count, res
			r.box.push(last)
		})
	}
	return r
}

// stop cancels what still runs and waits until the slots are free.
func (r *running) stop() {
	r.cancel(errGone)
	r.wg.Wait()
	r.c.s.gate.leave(r.extra)
}

// next waits for pieces. It gives nil when all answers were given, and the first error of any of them.
func (r *running) next() ([]piece, error) {
	if r.left == 0 || r.err != nil {
		return nil, r.err
	}
	r.moved() // the last pieces were written
	patience := time.NewTimer(r.c.s.opt.Timeout)
	defer patience.Stop()
wait:
	for {
		select {
		case <-r.box.wake:
			break wait
		case <-r.c.ctx.Done():
			return nil, context.Cause(r.c.ctx)
		case <-patience.C:
			idle := time.Since(time.Unix(0, r.last.Load()))
			if idle >= r.c.s.opt.Timeout {
				return nil, unavailable(0, "the request made no progress for %s", r.c.s.opt.Timeout)
			}
			patience.Reset(r.c.s.opt.Timeout - idle)
		}
	}
	ps := r.box.take()
	for i := range ps {
		if ps[i].err != nil {
			return nil, ps[i].err
		}
		if ps[i].final != nil {
			r.left--
		}
	}
	if ps == nil {
		ps = []piece{}
	}
	return ps, nil
}

// each hands pieces to f as they come, until all answers were given or f fails.
func (r *running) each(f func(p *piece) error) error {
	for {
		ps, err := r.next()
		if ps == nil || err != nil {
			return err
		}
		for i := range ps {
			if err := f(&ps[i]); err != nil {
				return err
			}
		}
	}
}

// all waits for all answers, in the order of their indices.
func (r *running) all() ([]*result, error) {
	out := make([]*result, r.left)
	err := r.each(func(p *piece) error {
		if f := p.final; f != nil {
			out[f.index] = f
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// answer is a completion as it grows. Its methods run on the scheduler's goroutine.
type answer struct {
	*job
	m        *Model
	r        *running
	slot     int
	stream   *tokenizer.Stream
	text     strings.Builder // certain, and given out
	held     string          // may be the beginning of a stop string, or of a line that is indented less
	tokens   []int32
	probs    []tokenProb
	thoughts int
	fresh    []int32     // tokens not given out yet
	newest   []tokenProb // likewise
	reply    chat.Answer
	reason   string // why the server ended the answer; "" if it did not
	word     string
	column   int // of indentation: blanks since the last newline; -1: the line's indentation is decided
	started  time.Time
	prompt   engine.PromptProgress
	last     piece         // not given out yet: that of the token at which the server ended the answer
	took     time.Duration // of the prompt
	broken   error
}

// run makes a completion.
func (j *job) run(ctx context.Context, m *Model, r *running) (*result, error) {
	a := &answer{job: j, m: m, r: r, slot: -1, stream: m.Engine.Tokenizer().NewStream(false), column: -1}
	if len(j.show) > 0 {
		a.stream.Show(j.show)
	}
	if j.think != nil {
		j.think.a = a
	}
	if len(j.prompt) == 0 { // tokenized to nothing: there is nothing to continue
		return &result{index: j.index, slot: max(0, j.p.slot), stop: "limit", seed: j.seed}, nil
	}
	res, err := m.Scheduler.Do(ctx, engine.Job{
		Prompt: j.prompt, Max: j.p.predict, Slot: j.p.slot, NoCache: !j.p.cache, Chooser: j.chooser, IgnoreEOS: j.p.sample.IgnoreEOS, StopLoops: j.p.stopLoops,
		Shift: r.c.s.opt.Shift, Keep: j.kept(m), Discard: j.p.discard,
		OnSlot: func(slot int) { a.slot = slot }, OnPrompt: a.onPrompt, OnToken: a.onToken, Info: j,
	})
	if err != nil {
		if r.box.full() {
			err = errSlow
		} else if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		var long *engine.PromptTooLong
		if errors.As(err, &long) {
			err = tooLong(long.Tokens, long.Context)
		}
		return nil, err
	}
	if r.box.full() {
		return nil, errSlow
	}
	if a.broken != nil {
		return nil, a.broken
	}
	return a.end(res), nil
}

func (a *answer) onPrompt(p engine.PromptProgress) {
	a.prompt, a.took = p, p.Elapsed
	a.r.moved()
	if a.r.live && a.p.progress {
		a.r.box.push(piece{index: a.index, slot: a.slot, progress: &progress{Total: p.Total, Cache: p.Cached, Processed: p.Processed, TimeMS: p.Elapsed.Milliseconds()}})
	}
}

// moved notes that there is progress.
func (r *running) moved() { r.last.Store(time.Now().UnixNano()) }

// onToken takes a token and tells whether there shall be more of them.
func (a *answer) onToken(t engine.Token) (more bool) {
	defer func() {
		if p := recover(); p != nil { // on the scheduler's goroutine: other clients' answers go on
			a.broken = fmt.Errorf("internal error while an answer was read: %v", p)
			a.r.c.s.log.Error("reading an answer panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			more = false
		}
	}()
	return a.take(t)
}

func (a *answer) take(t engine.Token) bool {
	if a.started.IsZero() {
		a.started = time.Now()
	}
	if a.p.probs > 0 {
		at := a.text.Len() + len(a.held)
		var p tokenProb
		if a.p.postProbs {
			p = postProb(t, a.p.probs)
		} else {
			p = rawProb(t.ID, t.Logits, a.p.probs)
		}
		p.start = at
		if a.parser == nil || !a.parser.InReasoning() && !a.parser.InCall() {
			a.newest = append(a.newest, p)
		}
	}
	if a.parser != nil && a.parser.InReasoning() {
		a.thoughts++
	}
	a.r.moved()
	a.tokens = append(a.tokens, t.ID)
	a.fresh = append(a.fresh, t.ID)
	text, more := a.advance(string(a.stream.Push(t.ID)))
	if more && a.p.maxMS > 0 && a.newline.Load() && time.Since(a.started) > time.Duration(a.p.maxMS)*time.Millisecond {
		a.reason, more = "limit", false
	}
	deltas := a.read(text)
	if !a.r.live {
		return more
	}
	// A token whose text is held back waits for the next piece, unless somebody counts tokens.
	if more && text == "" && len(deltas) == 0 && !a.p.timings {
		return true
	}
	p := piece{index: a.index, slot: a.slot, text: text, deltas: deltas, tokens: a.fresh, probs: a.newest, count: len(a.tokens)}
	if a.p.timings {
		tm := newTimings(engine.Timings{CacheN: a.prompt.Cached, PromptN: len(a.job.prompt) - a.prompt.Cached, PredictedN: len(a.tokens), Prompt: a.took, Predicted: t.Elapsed})
		p.timings = &tm
	}
	a.probs = append(a.probs, a.newest...)
	a.fresh, a.newest = nil, nil
	if !more {
		a.last = p // what the end releases goes with it
		return false
	}
	return a.r.box.push(p)
}

// read gives text to the parser of a chat.
func (a *answer) read(text string) []chat.Delta {
	if a.parser == nil || text == "" {
		return nil
	}
	ds := a.parser.Feed(text)
	for _, d := range ds {
		a.reply.Add(d)
	}
	return ds
}

// advance takes text of the model's and gives what of it is certain; more is false where a stop string or a line's
// indentation ends the answer.
func (a *answer) advance(text string) (out string, more bool) {
	if text == "" {
		return "", true
	}
	a.held += text
	cut, word, own := a.findStop()
	if cut >= 0 {
		out, a.held = a.held[:cut], ""
		if out, ok := a.indented(out); !ok {
			a.reason = "limit"
			return a.give(out), false
		}
		a.reason, a.word = "word", word
		if own {
			a.reason, a.word = "eos", ""
		}
		return a.give(out), false
	}
	keep := a.mayStop()
	out = a.held[:len(a.held)-keep]
	a.held = a.held[len(out):]
	if a.p.indent > 0 {
		whole := out
		var ok bool
		if out, ok = a.indented(whole); !ok {
			a.held, a.reason = "", "limit"
			return a.give(out), false
		}
		a.held = whole[len(out):] + a.held
	}
	return a.give(out), true
}

func (a *answer) give(out string) string {
	a.text.WriteString(out)
	if strings.Contains(out, "\n") {
		a.newline.Store(true)
	}
	return out
}

// findStop finds the stop string that is complete first in what is held, of several that end alike the longest: so the pieces
// in which text comes make no difference. own tells that it is the model family's.
func (a *answer) findStop() (cut int, word string, own bool) {
	cut = -1
	end := 0
	for i, list := range [2][]string{a.p.stop, a.stops} {
		for _, s := range list {
			if at := strings.Index(a.held, s); at >= 0 && (cut < 0 || at+len(s) < end || at+len(s) == end && at < cut) {
				cut, end, word, own = at, at+len(s), s, i == 1
			}
		}
	}
	return cut, word, own
}

// mayStop is the length of the longest end of what is held that may be the beginning of a stop string.
func (a *answer) mayStop() int {
	keep := 0
	for _, list := range [2][]string{a.p.stop, a.stops} {
		for _, s := range list {
			for n := min(len(s)-1, len(a.held)); n > keep; n-- {
				if strings.HasSuffix(a.held, s[:n]) {
					keep = n
					break
				}
			}
		}
	}
	return keep
}

// indented cuts text before a line that is indented by less than n_indent; ok is false then. The blanks that begin a line
// are held back until something else follows. Lines of blanks only, and the first line, which continues the client's, do
// not count.
func (a *answer) indented(text string) (out string, ok bool) {
	if a.p.indent <= 0 {
		return text, true
	}
	line := -1 // where the undecided line begins in text
	if a.column >= 0 {
		line, a.column = 0, 0
	}
	for i := 0; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == '\n':
			line, a.column = i+1, 0
		case a.column >= 0 && (ch == ' ' || ch == '\t'):
			a.column++
		case a.column >= 0:
			if a.column < a.p.indent {
				return text[:line], false
			}
			line, a.column = -1, -1
		}
	}
	if line >= 0 {
		return text[:line], true
	}
	return text, true
}

// end completes the answer.
func (a *answer) end(res engine.JobResult) *result {
	rest := a.held // did not become a stop string
	if a.reason == "" {
		var ok bool
		if rest, ok = a.indented(rest); !ok {
			a.reason = "limit"
		}
	}
	a.held = ""
	ds := a.read(a.give(rest))
	if a.parser != nil {
		tail := a.parser.Close()
		for _, d := range tail {
			a.reply.Add(d)
		}
		ds = append(ds, tail...)
	}
	out := &result{
		index: a.index, slot: res.Slot, text: a.text.String(), tokens: a.tokens, stop: a.reason, word: a.word, truncated: res.Truncated,
		newline: a.newline.Load(), prompt: len(a.job.prompt), count: res.Timings.PredictedN, held: res.Held, seed: a.seed,
		timings: newTimings(res.Timings), stats: res.Stats, thoughts: a.thoughts, chatty: a.parser != nil,
	}
	if out.stop == "" {
		out.stop = "limit"
		if res.End >= 0 {
			out.stop = "eos"
		}
	}
	keep := func(ps []tokenProb) []tokenProb {
		for out.stop == "word" && len(ps) > 0 && ps[len(ps)-1].start >= len(out.text) {
			ps = ps[:len(ps)-1] // of the stop string
		}
		return ps
	}
	out.probs, out.answer = keep(append(a.probs, a.newest...)), a.reply
	out.last = a.last
	out.last.text += rest
	out.last.deltas = append(out.last.deltas, ds...)
	out.last.tokens = append(out.last.tokens, a.fresh...)
	out.last.probs = keep(append(out.last.probs, a.newest...))
	return out
}

// rawProb is a token's log-probability by the model's logits, with the n likeliest tokens.
func rawProb(id int32, logits []float32, n int) tokenProb {
	norm := sample.LogSum(logits)
	log := func(v float32) float64 { return max(-math.MaxFloat32, min(0, float64(v)-norm)) }
	p := tokenProb{id: id, value: log(logits[id])}
	best := make([]candidate, 0, min(n, len(logits))+1)
	if n > 64 { // rarely: a list kept in order would be too slow
		for i, v := range logits {
			best = append(best, candidate{int32(i), float64(v)})
		}
		slices.SortStableFunc(best, func(a, b candidate) int { return cmp.Compare(b.value, a.value) })
		best = best[:min(n, len(best))]
	} else {
		for i, v := range logits {
			if len(best) < n || float64(v) > best[n-1].value {
				best = insert(best, candidate{int32(i), float64(v)}, n)
			}
		}
	}
	for i := range best {
		best[i].value = log(float32(best[i].value))
	}
	p.top = best
	return p
}

// insert puts c into a list of at most n, best first.
func insert(list []candidate, c candidate, n int) []candidate {
	at := len(list)
	for at > 0 && list[at-1].value < c.value {
		at--
	}
	list = slices.Insert(list, at, c)
	return list[:min(len(list), n)]
}

// postProb is a token's probability among those that the samplers left.
func postProb(t engine.Token, n int) tokenProb {
	p := tokenProb{id: t.ID, value: 1}
	for _, q := range t.Probs {
		if q.ID == t.ID {
			p.value = float64(q.P)
		}
		p.top = insert(p.top, candidate{q.ID, float64(q.P)}, n)
	}
	if len(p.top) == 0 {
		p.top = []candidate{{t.ID, 1}}
	}
	return p
}
