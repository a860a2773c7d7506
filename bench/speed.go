package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"terrace/engine"
)

// SpeedConfig says what is timed. Tokens are random ones of the vocabulary, so that no sampling takes part.
type SpeedConfig struct {
	Engine engine.Options
	Prompt int // tokens of the timed prompt; 0: no prompt is timed
	Decode int // decode steps timed; 0: none
	Depth  int // tokens already in the context when the decode steps begin; at least 1
	Reps   int // timed runs; 0: 1
}

func (c *SpeedConfig) check() error {
	if c.Prompt < 0 || c.Decode < 0 || c.Depth < 0 || c.Reps < 0 {
		return fmt.Errorf("%d prompt tokens, %d decode steps at depth %d, %d runs: negative numbers", c.Prompt, c.Decode, c.Depth, c.Reps)
	}
	if c.Prompt == 0 && c.Decode == 0 {
		return fmt.Errorf("neither prompt tokens nor decode steps to be timed")
	}
	c.Depth, c.Reps = max(c.Depth, 1), max(c.Reps, 1)
	return nil
}

// Spread is the least, the middle and the largest of some figures.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// SpreadOf summarises at least one figure; of an even number the median is the mean of the middle two.
func SpreadOf(v []float64) Spread {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	return Spread{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}

// Conditions is what a speed depends on besides machine and model.
type Conditions struct {
	Threads      int    `json:"threads"`
	Context      int    `json:"n_ctx"`
	Batch        int    `json:"batch"`
	KVType       string `json:"kv_type"`
	PromptTokens int    `json:"prompt_tokens"`
	DecodeTokens int    `json:"decode_tokens"`
	Depth        int    `json:"depth"`
	Lookahead    int    `json:"lookahead"`
	RAMBudget    int64  `json:"ram_budget"`
	ExpertSlots  int    `json:"expert_slots"`
	ExpertsTotal int    `json:"experts_total"`
	Warm         bool   `json:"warm"`       // no expert was read in a timed run
	BytesRead    int64  `json:"bytes_read"` // of experts, in all timed runs
	Load         string `json:"load_average"`
}

// SpeedReport is what `bench decode` and `bench prefill` print. Speeds are tokens per second.
type SpeedReport struct {
	Machine    Machine           `json:"machine"`
	Commit     string            `json:"commit"`
	Model      string            `json:"model"`
	Conditions Conditions        `json:"conditions"`
	Prefill    *Spread           `json:"prefill,omitempty"`
	Decode     *Spread           `json:"decode,omitempty"`
	Bound      float64           `json:"bound_per_second,omitempty"` // of decoding
	Terms      engine.BoundTerms `json:"bound_terms"`
	Stats      engine.Stats      `json:"stats"` // of the last timed decode run
}

// runner times a loaded model.
type runner struct {
	c     SpeedConfig
	e     *engine.Engine
	s     *engine.Session
	rng   *rand.Rand
	toks  []int32
	stats engine.Stats
	bytes int64 // read in timed runs
}

// openRunner loads the model and runs it until nothing is read any more, or the arena is too small for that to happen.
func openRunner(ctx context.Context, c SpeedConfig) (*runner, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	need := max(c.Prompt, c.Depth+c.Decode)
	if c.Engine.Context == 0 {
		c.Engine.Context = need
	}
	e, err := engine.Open(c.Engine)
	if err != nil {
		return nil, err
	}
	r := &runner{c: c, e: e, rng: rand.New(rand.NewPCG(1, 2))}
	if e.Options().Context < need {
		r.close()
		return nil, fmt.Errorf("the context holds %d tokens, the runs need %d", e.Options().Context, need)
	}
	if r.s, err = e.NewSession(); err != nil {
		r.close()
		return nil, err
	}
	if err := r.warmUp(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *runner) close() {
	if r.s != nil {
		r.s.Close()
	}
	r.e.Close()
}

// maxWarmUps bounds the prompts evaluated before anything is timed.
const maxWarmUps = 8

func (r *runner) warmUp(ctx context.Context) error {
	if b := r.e.Budget(); b.Slots == b.Experts {
		if err := r.e.Preload(ctx); err != nil {
			return err
		}
	}
	for range maxWarmUps {
		m := r.s.Measure()
		if err := r.prompt(ctx, min(r.e.Options().Context, 512)); err != nil {
			return err
		}
		if m.End().BytesRead == 0 {
			return nil
		}
	}
	return nil
}

// random is n random tokens.
func (r *runner) random(n int) []int32 {
	r.toks = r.toks[:0]
	for range n {
		r.toks = append(r.toks, int32(r.rng.IntN(r.e.Model().Config().Vocab)))
	}
	return r.toks
}

// prompt evaluates n random tokens from an empty timeline.
func (r *runner) prompt(ctx context.Context, n int) error {
	r.s.Reset()
	_, err := r.s.Sync(ctx, r.random(n))
	return err
}

// prefill times one prompt after an untimed one.
func (r *runner) prefill(ctx context.Context) (perSecond float64, err error) {
	for range 2 {
		m := r.s.Measure()
		start := time.Now()
		if err := r.prompt(ctx, r.c.Prompt); err != nil {
			return 0, err
		}
		perSecond = float64(r.c.Prompt) / time.Since(start).Seconds()
		r.stats = m.End()
	}
	r.bytes += r.stats.BytesRead
	return perSecond, nil
}

// decode times the steps after Depth tokens, the first of them untimed once.
func (r *runner) decode(ctx context.Context) (perSecond float64, err error) {
	if err := r.prompt(ctx, r.c.Depth); err != nil {
		return 0, err
	}
	if err := r.s.Eval(ctx, r.random(1)[0]); err != nil {
		return 0, err
	}
	if err := r.prompt(ctx, r.c.Depth); err != nil {
		return 0, err
	}
	steps := r.random(r.c.Decode)
	m := r.s.Measure()
	start := time.Now()
	for _, id := range steps {
		if err := r.s.Eval(ctx, id); err != nil {
			return 0, err
		}
	}
	perSecond = float64(len(steps)) / time.Since(start).Seconds()
	r.stats = m.End()
	r.bytes += r.stats.BytesRead
	return perSecond, nil
}

// conditions describes the runs so far.
func (r *runner) conditions() Conditions {
	o, b := r.e.Options(), r.e.Budget()
	return Conditions{Threads: o.Threads, Context: o.Context, Batch: o.Batch, KVType: o.KeyType.String() + "/" + o.ValType.String(),
		PromptTokens: r.c.Prompt, DecodeTokens: r.c.Decode, Depth: r.c.Depth, Lookahead: o.Lookahead, RAMBudget: b.RAM, ExpertSlots: b.Slots, ExpertsTotal: b.Experts,
		Warm: r.bytes == 0, BytesRead: r.bytes, Load: LoadAverage()}
}

// Speed times prompts and decode steps of a warm model.
func Speed(ctx context.Context, c SpeedConfig) (*SpeedReport, error) {
	r, err := openRunner(ctx, c)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var pp, tg []float64
	for range r.c.Reps {
		if c.Prompt > 0 {
			v, err := r.prefill(ctx)
			if err != nil {
				return nil, err
			}
			pp = append(pp, v)
		}
		if c.Decode > 0 {
			v, err := r.decode(ctx)
			if err != nil {
				return nil, err
			}
			tg = append(tg, v)
		}
	}
	rep := &SpeedReport{Machine: ThisMachine(), Commit: Commit(), Model: r.stats.Model, Conditions: r.conditions(), Stats: r.stats}
	if pp != nil {
		s := SpreadOf(pp)
		rep.Prefill = &s
	}
	if tg != nil {
		s := SpreadOf(tg)
		rep.Decode = &s
		rep.Stats.PredictedTokens, rep.Stats.PredictedPerSecond = c.Decode, s.Median
		r.s.Bound(&rep.Stats)
		rep.Bound, rep.Terms = rep.Stats.BoundPerSecond, rep.Stats.BoundTerms
	}
	return rep, nil
}
