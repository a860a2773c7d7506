package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"time"

	"terrace/engine"
	"terrace/gguf"
	"terrace/plan"
)

// PlanCell is one measurement to be made.
type PlanCell struct {
	Model   string  `json:"model"` // path
	Texts   string  `json:"texts,omitempty"`
	Budget  int64   `json:"budget"`
	Cap     float64 `json:"cap"` // bytes per second; 0: none
	Context int     `json:"ctx"`
	Prompt  int     `json:"prompt"`
	Decode  int     `json:"decode"`
	Warm    int     `json:"warm"`
	Threads int     `json:"threads"`
	Part    int     `json:"part,omitempty"` // of the cell's processes: each reads other tokens
}

// key tells cells apart; a model is known by its name, wherever it lies.
func (c *PlanCell) key() string {
	return fmt.Sprintf("%s %d %.0f %d %d %d %d", filepath.Base(c.Model), c.Budget, c.Cap, c.Prompt, c.Decode, c.Warm, c.Threads)
}

// PlanMeasured is what a cell did: medians of its rounds, sums over them for counts.
type PlanMeasured struct {
	Peak    int64   `json:"peak_rss"` // median of its processes
	HitRate float64 `json:"hit_rate"` // of decoding: found in RAM
	Guessed float64 `json:"guessed"`  // of these, what had been read on a guess: a read all the same, which no plan counts as a hit
	Decode  float64 `json:"decode"`   // tokens per second
	Prefill float64 `json:"prefill"`
	Read    int64   `json:"bytes_read_per_token"`
	WaitMS  float64 `json:"wait_ms_per_token"`
	BusyMS  float64 `json:"disk_ms_per_token"`
	Slots   int     `json:"slots"`
	Load    string  `json:"load_average"`

	// How fast the machine was at that moment: medians of the moments before and after what is timed. Predictions of the
	// cell use these.
	AtPrefill plan.Moment `json:"at_prefill"`
	AtDecode  plan.Moment `json:"at_decode"`

	// The rounds one by one, as they came, to four digits. A round has a moment before the prompt and one before decoding;
	// one more ends the last.
	Prefills []float64 `json:"prefill_rounds"`
	Decodes  []float64 `json:"decode_rounds"`
	Memory   []float64 `json:"memory_moments"`

	Peaks []int64 `json:"peaks,omitempty"` // of the processes, where there were several
}

// needed is the hit rate in a plan's sense: what no read had to bring.
func (m *PlanMeasured) needed() float64 { return m.HitRate - m.Guessed }

// PlanProbe measures how fast memory and processors are now.
type PlanProbe func(context.Context) (plan.Moment, error)

// moments measures moments on as many threads as cells compute with. It takes its memory at the first.
type moments struct {
	threads int
	memory  *memoryReader
}

// momentBytes is read by each thread, as for a machine's profile; momentPasses of two threads take about 0.2 s.
const (
	momentBytes  = 128 << 20
	momentPasses = 25
)

func (m *moments) now(ctx context.Context) (x plan.Moment, err error) {
	if m.memory == nil {
		if m.memory, err = newMemoryReader(m.threads, momentBytes); err != nil {
			return x, err
		}
	}
	if x.Memory, err = m.memory.rate(ctx, momentPasses); err != nil {
		return x, err
	}
	const window = 5 * time.Millisecond
	if x.MatVec, err = kernelRate(ctx, gguf.Q4_K, m.threads, window, vecRows, vecCols, 1); err != nil {
		return x, err
	}
	v, err := kernelRate(ctx, gguf.Q4_K, m.threads, window, gemmRows, gemmCols, plan.MomentRows)
	x.Gemm = gemmRate(gguf.Q4_K, v, plan.MomentRows)
	return x, err
}

func (m *moments) close() {
	if m.memory != nil {
		m.memory.close()
	}
}

// A cell is measured in rounds, so that short ones are repeated more often: single figures of a tenth of a second scatter by a
// factor of three on a virtual machine. A process makes planRounds at least, but no more once planRoundsLong is over, and others
// until planRoundsTime is. Where a process lies in memory and when its collector runs changes with the process: short ones
// are repeated too, up to planParts within planPartsTime.
const (
	planRounds     = 3
	planRoundsMost = 5
	planRoundsTime = 12 * time.Second
	planRoundsLong = 20 * time.Second
	planParts      = 7
	planPartsTime  = 25 * time.Second
)

// more says whether another round is to follow n that took so long.
func more(n int, took time.Duration) bool {
	return n < planRoundsMost && (n == 0 || took < planRoundsTime || n < planRounds && took < planRoundsLong)
}

// measure measures a cell in one process or several.
func (c *PlanConfig) measure(ctx context.Context, cell PlanCell, probe PlanProbe) (PlanMeasured, error) {
	var parts []PlanMeasured
	for begun := time.Now(); len(parts) < c.Parts && (len(parts) == 0 || time.Since(begun) < planPartsTime); cell.Part++ {
		m, err := c.Run(ctx, cell, probe)
		if err != nil {
			return m, err
		}
		parts = append(parts, m)
	}
	return joinParts(parts), nil
}

// joinParts is what several processes of one cell did.
func joinParts(parts []PlanMeasured) PlanMeasured {
	m := parts[len(parts)-1]
	if len(parts) == 1 {
		return m
	}
	var hit, guessed, read, wait, busy, rounds float64
	var peaks []float64
	var at [2][]plan.Moment
	m.Prefills, m.Decodes, m.Memory = nil, nil, nil
	for i := range parts {
		x := &parts[i]
		n := float64(len(x.Decodes))
		hit, guessed, read, wait, busy, rounds = hit+n*x.HitRate, guessed+n*x.Guessed, read+n*float64(x.Read), wait+n*x.WaitMS, busy+n*x.BusyMS, rounds+n
		m.Prefills, m.Decodes, m.Memory = append(m.Prefills, x.Prefills...), append(m.Decodes, x.Decodes...), append(m.Memory, x.Memory...)
		at[0], at[1] = append(at[0], x.AtPrefill), append(at[1], x.AtDecode)
		m.Peaks, peaks = append(m.Peaks, x.Peak), append(peaks, float64(x.Peak))
	}
	m.HitRate, m.Guessed, m.Read, m.WaitMS, m.BusyMS = hit/rounds, guessed/rounds, int64(read/rounds), wait/rounds, busy/rounds
	m.Prefill, m.Decode = median(m.Prefills), median(m.Decodes)
	m.AtPrefill, m.AtDecode = medianMoment(at[0]), medianMoment(at[1])
	m.Peak = int64(median(peaks))
	return m
}

// MeasureCell runs a model under a budget: a prompt, and then rounds of a prompt that is timed, tokens to warm up, and those
// that are timed, with a moment of the machine before and after each.
func MeasureCell(ctx context.Context, c PlanCell, probe PlanProbe) (m PlanMeasured, err error) {
	if probe == nil {
		return m, errors.New("a cell without a probe of the machine, want one")
	}
	e, s, err := openRouted(engine.Options{Path: c.Model, Threads: c.Threads, Context: c.Context, RAM: c.Budget, Lookahead: engine.LookaheadAuto})
	if err != nil {
		return m, err
	}
	defer e.Close()
	defer s.Close()
	next, err := cellTokens(e, c)
	if err != nil {
		return m, err
	}
	if b := e.Budget(); b.Slots == b.Experts {
		if err := e.Preload(ctx); err != nil {
			return m, err
		}
	}
	if _, err := s.Sync(ctx, next(c.Prompt)); err != nil {
		return m, err
	}
	var at []plan.Moment
	look := func() error {
		x, err := probe(ctx)
		at = append(at, x)
		return err
	}
	var touches, missed, guessed, read int64
	var wait, busy float64
	begun := time.Now()
	for n := 0; more(n, time.Since(begun)); n++ {
		if err := look(); err != nil {
			return m, err
		}
		s.Reset()
		prompt := next(c.Prompt)
		start := time.Now()
		if _, err := s.Sync(ctx, prompt); err != nil {
			return m, err
		}
		m.Prefills = append(m.Prefills, fourDigits(float64(c.Prompt)/time.Since(start).Seconds()))
		if err := look(); err != nil {
			return m, err
		}
		for _, id := range next(c.Warm) {
			if err := s.Eval(ctx, id); err != nil {
				return m, err
			}
		}
		ids := next(c.Decode)
		meter := s.Measure()
		start = time.Now()
		for _, id := range ids {
			if err := s.Eval(ctx, id); err != nil {
				return m, err
			}
		}
		m.Decodes = append(m.Decodes, fourDigits(float64(c.Decode)/time.Since(start).Seconds()))
		st := meter.End()
		touches += st.Touches
		missed += st.Misses + st.HitsInflight
		guessed += st.HitsGuessed
		read += st.BytesRead
		wait += st.ReadWaitMS
		busy += busyMS(&st)
		m.Slots, m.Peak = st.ExpertSlots, st.PeakRSS
	}
	if err := look(); err != nil {
		return m, err
	}
	if touches > 0 {
		m.HitRate = 1 - float64(missed)/float64(touches)
		m.Guessed = float64(guessed) / float64(touches)
	}
	n := float64(c.Decode * len(m.Decodes))
	m.Read, m.WaitMS, m.BusyMS, m.Load = int64(float64(read)/n), wait/n, busy/n, LoadAverage()
	m.Prefill, m.Decode = median(m.Prefills), median(m.Decodes)
	var around [2][]plan.Moment // of prompts, of decoding
	for i := range len(at) - 1 {
		around[i%2] = append(around[i%2], at[i], at[i+1])
	}
	m.AtPrefill, m.AtDecode = medianMoment(around[0]), medianMoment(around[1])
	for _, x := range at {
		m.Memory = append(m.Memory, fourDigits(x.Memory))
	}
	return m, nil
}

// medianMoment is the median of each figure.
func medianMoment(all []plan.Moment) plan.Moment {
	of := func(pick func(*plan.Moment) float64) float64 {
		v := make([]float64, len(all))
		for i := range all {
			v[i] = pick(&all[i])
		}
		return fourDigits(median(v))
	}
	return plan.Moment{
		Memory: of(func(x *plan.Moment) float64 { return x.Memory }),
		MatVec: of(func(x *plan.Moment) float64 { return x.MatVec }),
		Gemm:   of(func(x *plan.Moment) float64 { return x.Gemm }),
	}
}

// fourDigits rounds for the record.
func fourDigits(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64)
	if err != nil { // it was just formatted
		return v
	}
	return r
}

// cellTokens gives the tokens of a cell one after the other: of the second half of its texts, over again where they end, or
// random ones.
func cellTokens(e *engine.Engine, c PlanCell) (next func(n int) []int32, err error) {
	if c.Texts == "" {
		rng := rand.New(rand.NewPCG(8, 8+uint64(c.Part)))
		vocab := e.Model().Config().Vocab
		return func(n int) []int32 {
			out := make([]int32, n)
			for i := range out {
				out[i] = int32(rng.IntN(vocab))
			}
			return out
		}, nil
	}
	texts, err := ReadTexts(c.Texts)
	if err != nil {
		return nil, err
	}
	const rounds = planParts * (planRoundsMost + 1)
	pieces, err := e.TextsPieces(texts[len(texts)/2:], c.Context, rounds*(c.Prompt+c.Warm+c.Decode))
	if err != nil {
		return nil, err
	}
	var all []int32
	for _, p := range pieces {
		all = append(all, p...)
	}
	if need := planRounds * (c.Prompt + c.Warm + c.Decode); len(all) < need {
		return nil, fmt.Errorf("%s: the second half has %d tokens, the runs need %d", c.Texts, len(all), need)
	}
	at := c.Part * (planRoundsMost + 1) * (c.Prompt + c.Warm + c.Decode) % len(all)
	return func(n int) []int32 {
		out := make([]int32, 0, n)
		for len(out) < n {
			k := min(n-len(out), len(all)-at)
			out = append(out, all[at:at+k]...)
			at = (at + k) % len(all)
		}
		return out
	}, nil
}
