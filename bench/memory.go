package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"terrace/engine"
	"terrace/internal/host"
	"terrace/sample"
)

// MemoryConfig asks for an answer whose RAM budget is changed again and again while it is made.
type MemoryConfig struct {
	Engine  engine.Options
	Prompt  int // tokens of the prompt, random ones of the vocabulary
	Decode  int // tokens answered
	Changes int // of the budget
	Seed    uint64
	// LimitFile, if not "", is the limit of a memory control group that this process is in. It is raised before a budget
	// grows and lowered to the budget after it has shrunk.
	LimitFile string
}

func (c *MemoryConfig) check() error {
	if c.Prompt < 1 || c.Decode < 2 || c.Changes < 1 {
		return fmt.Errorf("%d prompt tokens, %d answered, %d changes: want at least 1, 2 and 1", c.Prompt, c.Decode, c.Changes)
	}
	if c.Engine.ExpertRAM.Bytes > 0 || c.Engine.ExpertRAM.Percent > 0 || c.Engine.ExpertRAM.Min {
		return fmt.Errorf("%w: a fixed expert arena does not follow the RAM budget", engine.ErrUsage)
	}
	return nil
}

// MemoryReport is what `bench memory` prints. Sizes are bytes.
type MemoryReport struct {
	Machine    Machine    `json:"machine"`
	Commit     string     `json:"commit"`
	Model      string     `json:"model"`
	Conditions Conditions `json:"conditions"`

	Changes   int     `json:"changes"`
	Least     int64   `json:"least"` // of the budgets, the smallest possible
	Most      int64   `json:"most"`
	Runs      int     `json:"runs"` // answers made meanwhile, each of the same tokens
	Hash      string  `json:"logits_sha256"`
	HashFixed string  `json:"logits_sha256_fixed"` // with the budget left alone
	Same      bool    `json:"same"`
	Rate      float64 `json:"predicted_per_second"` // with changes
	RateFixed float64 `json:"predicted_per_second_fixed"`
	// SettleMS is the longest time until the arena had given back what a change took from it; what is lent is waited for.
	SettleMS float64 `json:"settle_ms"`

	PeakRSS     int64 `json:"peak_rss"`
	GroupPeak   int64 `json:"group_peak"` // charged to the control group at most, in its life
	FailBefore  int64 `json:"failcnt_before"`
	FailAfter   int64 `json:"failcnt_after"`
	SwapIn      int64 `json:"swap_in"` // of the whole machine meanwhile
	Swapped     int64 `json:"swapped"` // of this process at the end
	LimitsSet   int   `json:"limits_set"`
	LimitsBusy  int   `json:"limits_refused"` // by the kernel, since more was in use than could be reclaimed
	LowestLimit int64 `json:"lowest_limit"`   // that was set

	Stats engine.Stats `json:"stats"` // of the last answer
}

// Memory changes the budget of a running engine at random.
func Memory(ctx context.Context, c MemoryConfig) (*MemoryReport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Engine.Context == 0 {
		c.Engine.Context = c.Prompt + c.Decode
	}
	e, err := engine.Open(c.Engine)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	if n := e.Options().Context; n < c.Prompt+c.Decode {
		return nil, fmt.Errorf("the context holds %d tokens, the runs need %d", n, c.Prompt+c.Decode)
	}
	s, err := e.NewSession()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	w := host.NewWatch(nil)
	defer w.Close()
	var before, after host.MemorySample
	if err := w.Read(&before); err != nil {
		return nil, err
	}
	swap, _ := host.SwapIns(nil)
	rng := rand.New(rand.NewPCG(c.Seed, 3))
	prompt := make([]int32, c.Prompt)
	for i := range prompt {
		prompt[i] = int32(rng.IntN(e.Model().Config().Vocab))
	}
	answer := func() (engine.Stats, error) {
		s.Reset()
		p := sample.Defaults(e.Model().Config().Vocab)
		p.Temp = 0
		sm, err := sample.New(p)
		if err != nil {
			return engine.Stats{}, err
		}
		r, err := s.Generate(ctx, engine.Request{Prompt: prompt, Max: c.Decode, Sampler: sm, IgnoreEOS: true, HashLogits: true})
		return r.Stats, err
	}
	b := e.Budget()
	r := &MemoryReport{Machine: ThisMachine(), Commit: Commit(), Least: b.Least(), Most: min(b.RAM, b.Full()), FailBefore: before.Failed}
	if r.Most <= r.Least {
		return nil, fmt.Errorf("the RAM budget of %d bytes leaves nothing to change: the smallest is %d, the model needs at most %d", b.RAM, b.Least(), b.Full())
	}
	start := time.Now()
	st, err := answer()
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	r.HashFixed, r.RateFixed = st.LogitsSHA256, st.PredictedPerSecond

	ch := &changer{c: &c, e: e, r: r, rng: rng, pause: max(took/time.Duration(c.Changes), time.Millisecond)}
	inner, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { ch.run(inner) })
	for r.Runs == 0 || !ch.done() {
		if st, err = answer(); err != nil {
			break
		}
		if r.Runs++; r.Hash == "" || st.LogitsSHA256 != r.HashFixed {
			r.Hash = st.LogitsSHA256
		}
		r.Rate = st.PredictedPerSecond
	}
	stop()
	wg.Wait()
	if err = errors.Join(err, ch.err); err != nil {
		return nil, err
	}
	if err := w.Read(&after); err != nil {
		return nil, err
	}
	r.Same = r.Hash == r.HashFixed
	r.Stats, r.Model = st, st.Model
	r.PeakRSS, r.GroupPeak, r.FailAfter, r.Swapped = st.PeakRSS, after.Peak, after.Failed, after.Swapped
	if now, ok := host.SwapIns(nil); ok {
		r.SwapIn = now - swap
	}
	o := e.Options()
	r.Conditions = Conditions{Threads: o.Threads, Context: o.Context, Batch: o.Batch, KVType: st.KVType, PromptTokens: c.Prompt, DecodeTokens: c.Decode, Depth: c.Prompt,
		Lookahead: o.Lookahead, RAMBudget: b.RAM, ExpertSlots: st.ExpertSlots, ExpertsTotal: st.ExpertsTotal, Warm: st.BytesRead == 0, BytesRead: st.BytesRead, Load: LoadAverage()}
	return r, nil
}

// changer changes the budget from a goroutine of its own.
type changer struct {
	c     *MemoryConfig
	e     *engine.Engine
	r     *MemoryReport // Changes, SettleMS and the limits are its own until it is done
	rng   *rand.Rand
	pause time.Duration // mean time between two changes

	mu    sync.Mutex
	ended bool
	err   error
}

func (x *changer) done() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ended
}

func (x *changer) run(ctx context.Context) {
	err := x.changes(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	if ctx.Err() == nil {
		x.err = err
	}
}

func (x *changer) changes(ctx context.Context) error {
	r := x.r
	was := x.e.Budget().RAM
	for r.Changes < x.c.Changes {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(x.rng.Int64N(2 * int64(x.pause)))):
		}
		to := r.Least + x.rng.Int64N(r.Most-r.Least+1)
		switch x.rng.IntN(10) { // the ends are of interest
		case 0:
			to = r.Least
		case 1:
			to = r.Most
		}
		if to > was {
			if err := x.limit(ctx, to); err != nil {
				return err
			}
		}
		start := time.Now()
		if err := x.e.SetRAM(to); err != nil {
			return err
		}
		for x.e.Over() > 0 {
			if ctx.Err() != nil {
				return nil
			}
			time.Sleep(100 * time.Microsecond)
		}
		r.SettleMS = max(r.SettleMS, float64(time.Since(start).Nanoseconds())/1e6)
		if to < was {
			if err := x.limit(ctx, to); err != nil {
				return err
			}
		}
		was = to
		r.Changes++
	}
	return nil
}

// limitTries is how often a limit is written that the kernel refuses because too much is in use.
const limitTries = 20

// limit sets the control group's limit.
func (x *changer) limit(ctx context.Context, bytes int64) error {
	if x.c.LimitFile == "" {
		return nil
	}
	var err error
	for range limitTries {
		if err = os.WriteFile(x.c.LimitFile, []byte(strconv.FormatInt(bytes, 10)), 0o644); err == nil {
			x.r.LimitsSet++
			if x.r.LowestLimit == 0 || bytes < x.r.LowestLimit {
				x.r.LowestLimit = bytes
			}
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Millisecond):
		}
	}
	x.r.LimitsBusy++
	return nil
}
