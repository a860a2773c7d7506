package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"terrace/engine"
	"terrace/sample"
)

// ParallelConfig compares numbers of streams that decode together, at several sizes of the expert arena.
//
// For each size and number the model is opened anew, so that each run begins with nothing resident. Every stream has a prompt of its
// own; what is timed is the time in which all of them decode.
type ParallelConfig struct {
	Engine   engine.Options // without ExpertRAM and Slots
	Streams  []int
	Arenas   []engine.ExpertBudget
	Prompt   int // tokens of each stream's prompt
	Decode   int // tokens that each decodes
	Same     int // tokens that the prompts begin with alike
	Rounds   int // of which the median counts
	Label    string
	Progress func(line string)
}

func (c *ParallelConfig) check() error {
	if c.Prompt < 1 || c.Decode < 2 || c.Rounds < 1 || c.Same < 0 || c.Same >= c.Prompt {
		return fmt.Errorf("%w: prompts of %d tokens of which %d are the same, %d decoded, %d rounds: want at least 1, fewer, 2 and 1", engine.ErrUsage, c.Prompt, c.Same, c.Decode, c.Rounds)
	}
	if len(c.Streams) == 0 || len(c.Arenas) == 0 || slices.Min(c.Streams) < 1 {
		return fmt.Errorf("%w: streams %v at %d arenas, want at least 1 at one", engine.ErrUsage, c.Streams, len(c.Arenas))
	}
	return nil
}

// ParallelReport is what `bench parallel` prints.
type ParallelReport struct {
	Machine    Machine         `json:"machine"`
	Commit     string          `json:"commit"`
	Model      string          `json:"model"`
	Label      string          `json:"label"`
	Conditions Conditions      `json:"conditions"`
	Same       int             `json:"same_prompt_tokens"`
	Rounds     int             `json:"rounds"`
	Cells      []ParallelCell  `json:"cells"`
	Store      string          `json:"store"`
	SameTokens bool            `json:"same_tokens"` // each stream answered the same beside others and alone
	answers    map[int][]int32 // of each stream
}

// ParallelCell is one number of streams at one size of the arena.
type ParallelCell struct {
	Streams int   `json:"streams"`
	Bytes   int64 `json:"arena_bytes"`
	Slots   int   `json:"expert_slots"`
	Total   int   `json:"experts_total"`

	Rate    Spread  `json:"predicted_per_second"` // of all streams together
	OverOne float64 `json:"over_one_stream"`      // median of the rounds' own ratios to one stream at this size; 0: there is none
	TTFT    float64 `json:"ttft_ms"`              // of the last stream, median
	Prompts int64   `json:"prompt_tokens"`        // evaluated by all streams

	// Of the run as a whole, prompts included.
	Misses    int64   `json:"misses"`      // experts that a pass needed and nobody had asked for
	Reads     int64   `json:"reads"`       // the same of a replay: the policy on the union of each pass's routing
	OverReads float64 `json:"over_replay"` // Misses over Reads; 0 where there are none

	BytesRead float64 `json:"bytes_per_token"` // of the tokens decoded while all streams did
	Width     int     `json:"width"`           // sequences in one pass, at the end
	Reason    string  `json:"width_reason"`
}

// Parallel measures. With a lookahead of 0 each miss is a demand's, and the replay makes the same decisions.
func Parallel(ctx context.Context, c ParallelConfig) (*ParallelReport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	rep := &ParallelReport{Machine: ThisMachine(), Commit: Commit(), Label: c.Label, Same: c.Same, Rounds: c.Rounds, SameTokens: true, answers: map[int][]int32{}}
	for _, a := range c.Arenas {
		if err := rep.arena(ctx, &c, a); err != nil {
			return nil, err
		}
	}
	return rep, nil
}

// arena runs each number of streams at one size, some rounds in which they take turns, so that a slow minute of the machine
// meets all of them.
func (rep *ParallelReport) arena(ctx context.Context, c *ParallelConfig, a engine.ExpertBudget) error {
	cells := make([]ParallelCell, len(c.Streams))
	rates, first := make([][]float64, len(cells)), make([][]float64, len(cells))
	read, tokens := make([]float64, len(cells)), make([]float64, len(cells))
	for round := range c.Rounds {
		for i, n := range c.Streams {
			r, err := rep.run(ctx, c, a, n)
			if err != nil {
				return err
			}
			x := &cells[i]
			rates[i], first[i] = append(rates[i], r.rate), append(first[i], r.ttft)
			read[i], tokens[i] = read[i]+r.read, tokens[i]+r.tokens
			x.Streams, x.Bytes, x.Slots, x.Total = n, r.budget.Arena, r.budget.Slots, r.budget.Experts
			x.Prompts = r.counters.PromptTokens
			x.Misses, x.Reads = x.Misses+r.misses, x.Reads+r.reads
			x.Width, x.Reason = r.counters.Width, r.counters.WidthReason
			if c.Progress != nil {
				c.Progress(fmt.Sprintf("%d of %d slots, %d streams, round %d: %.2f tokens/s, %d misses, %d in the replay", x.Slots, x.Total, n, round+1, r.rate, r.misses, r.reads))
			}
		}
	}
	one := slices.Index(c.Streams, 1)
	for i := range cells {
		x := &cells[i]
		if one >= 0 && !slices.Contains(rates[one], 0) {
			over := make([]float64, c.Rounds)
			for r := range over {
				over[r] = rates[i][r] / rates[one][r]
			}
			x.OverOne = SpreadOf(over).Median
		}
		x.Rate, x.TTFT = SpreadOf(rates[i]), SpreadOf(first[i]).Median
		if x.Reads > 0 {
			x.OverReads = float64(x.Misses) / float64(x.Reads)
		}
		if tokens[i] > 0 {
			x.BytesRead = read[i] / tokens[i]
		}
	}
	rep.Cells = append(rep.Cells, cells...)
	return nil
}

// parallelRun is what one run gave.
type parallelRun struct {
	rate, ttft, read, tokens float64
	misses, reads            int64
	budget                   engine.Budget
	counters                 engine.Counters
}

// union collects which experts each pass used.
type union struct {
	layers int
	passes [][][]int32
	last   int
}

func (u *union) route(layer int, choices []int32) {
	if len(u.passes) == 0 || layer <= u.last {
		u.passes = append(u.passes, make([][]int32, u.layers))
	}
	u.last = layer
	u.passes[len(u.passes)-1][layer] = slices.Compact(slices.Sorted(slices.Values(choices)))
}

func (rep *ParallelReport) run(ctx context.Context, c *ParallelConfig, a engine.ExpertBudget, n int) (run *parallelRun, err error) {
	o := c.Engine
	o.ExpertRAM, o.Slots = a, n
	if o.Context == 0 {
		o.Context = c.Prompt + c.Decode
	}
	o.Pool = n * o.Context // nobody has to wait for memory
	e, err := engine.Open(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	k := e.Model().Config()
	if k.Experts == 0 {
		return nil, fmt.Errorf("%s: the model has no routed experts", o.Path)
	}
	s, err := e.NewScheduler(engine.SchedulerOptions{Slots: n, Log: o.Log})
	if err != nil {
		return nil, err
	}
	u := &union{layers: k.Layers, last: -1}
	s.OnRoute(u.route)
	done := make([]parallelStream, n)
	window := &window{s: s, e: e, open: n}
	var g sync.WaitGroup
	for i := range n {
		g.Go(func() { done[i].err = done[i].decode(ctx, c, s, e, window, i) })
	}
	g.Wait()
	run = &parallelRun{counters: s.Counters(), budget: e.Budget()}
	if err := s.Close(ctx); err != nil {
		return nil, err
	}
	for i := range done {
		if done[i].err != nil {
			return nil, done[i].err
		}
		if was, ok := rep.answers[i]; ok && !slices.Equal(was, done[i].tokens) {
			rep.SameTokens = false
		}
		rep.answers[i] = done[i].tokens
	}
	if took := window.end.Sub(window.begin).Seconds(); took > 0 {
		run.tokens = float64(window.tokens)
		run.rate = run.tokens / took
		run.read = float64(window.after - window.before)
	}
	run.ttft = window.begin.Sub(window.start).Seconds() * 1e3
	run.misses = e.CacheStats().Misses
	replay := e.Replay(u.passes)
	run.reads = replay.Reads + replay.PromptReads
	b, eo := run.budget, e.Options()
	rep.Model, rep.Store = eo.Path, e.CacheStats().Store
	rep.Conditions = Conditions{Threads: eo.Threads, Context: eo.Context, Batch: eo.Batch, KVType: eo.KeyType.String() + "/" + eo.ValType.String(), PromptTokens: c.Prompt, DecodeTokens: c.Decode,
		Lookahead: eo.Lookahead, RAMBudget: b.RAM, ExpertSlots: b.Slots, ExpertsTotal: b.Experts, Load: LoadAverage()}
	return run, nil
}

// window is the time in which all streams decode: from the first token of the last one to the last token of the first.
type window struct {
	s             *engine.Scheduler
	e             *engine.Engine
	mu            sync.Mutex
	open          int // streams that have no token yet
	start         time.Time
	begin, end    time.Time
	tokens        int64
	before, after int64 // bytes read
}

// token tells that a stream has another token, of so many.
func (w *window) token(n, of int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	read := func() int64 { st := w.e.CacheStats(); return st.DemandBytes + st.GuessBytes }
	if n == 1 {
		if w.open--; w.open == 0 {
			w.begin, w.before = now, read()
			return
		}
	}
	if w.open == 0 && w.end.IsZero() {
		w.tokens++
		if n == of {
			w.end, w.after = now, read()
		}
	}
}

// parallelStream is one stream's answer.
type parallelStream struct {
	tokens []int32
	err    error
}

func (p *parallelStream) decode(ctx context.Context, c *ParallelConfig, s *engine.Scheduler, e *engine.Engine, w *window, i int) error {
	vocab := e.Model().Config().Vocab
	prompt := make([]int32, c.Prompt)
	same, own := rand.New(rand.NewPCG(1, 0x9a7a11e1)), rand.New(rand.NewPCG(uint64(i)+2, 0x9a7a11e1))
	for j := range prompt {
		rng := own
		if j < c.Same {
			rng = same
		}
		prompt[j] = int32(rng.IntN(vocab))
	}
	sp := sample.Defaults(vocab)
	sp.Temp = 0.8
	sp.Seed = int64(i)
	chooser, err := sample.New(sp)
	if err != nil {
		return err
	}
	n := 0
	w.mu.Lock()
	if w.start.IsZero() {
		w.start = time.Now()
	}
	w.mu.Unlock()
	r, err := s.Do(ctx, engine.Job{Prompt: prompt, Max: c.Decode, Slot: -1, Chooser: chooser, IgnoreEOS: true, OnToken: func(engine.Token) bool {
		n++
		w.token(n, c.Decode)
		return true
	}})
	p.tokens = r.Tokens
	return err
}
