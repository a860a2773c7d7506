package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"terrace/engine"
)

// LookaheadConfig compares lookahead settings on one loaded model, at several sizes of the expert arena.
//
// For each arena, the largest first: the cache is resized, some tokens are decoded untimed, and what is resident then is
// noted. In each round every setting in turn, in an order that changes, gets the noted experts back and decodes the same
// tokens; other rounds have other tokens. So settings differ in nothing but what they guess.
type LookaheadConfig struct {
	Engine    engine.Options // without Lookahead and ExpertRAM
	Lookahead []int          // settings, engine.LookaheadAuto among them perhaps
	Refine    bool           // each setting but 0 a second time, with guesses refined from a layer's output
	Arenas    []engine.ExpertBudget
	Decode    int    // steps of a timed block
	Depth     int    // tokens before it; at least 1
	Rounds    int    // of which the median counts
	Warm      int    // untimed steps after a change of the arena, four times as many after the first
	Label     string // of the conditions, such as the disk's rate
	Progress  func(line string)
}

func (c *LookaheadConfig) check() error {
	if c.Decode < 1 || c.Rounds < 1 || c.Depth < 0 || c.Warm < 0 {
		return fmt.Errorf("%w: %d steps, %d rounds, depth %d, %d steps to warm up: want at least 1, 1, 0 and 0", engine.ErrUsage, c.Decode, c.Rounds, c.Depth, c.Warm)
	}
	if len(c.Lookahead) == 0 || len(c.Arenas) == 0 {
		return fmt.Errorf("%w: %d lookahead settings at %d arenas, want at least one of each", engine.ErrUsage, len(c.Lookahead), len(c.Arenas))
	}
	for i, n := range c.Lookahead {
		if n < engine.LookaheadAuto || n > 2 || slices.Contains(c.Lookahead[:i], n) {
			return fmt.Errorf("%w: lookahead settings %v: want some of auto (-1), 0, 1, 2, each once", engine.ErrUsage, c.Lookahead)
		}
	}
	c.Depth = max(c.Depth, 1)
	return nil
}

// LookaheadReport is what `bench decode` prints with a list of settings.
type LookaheadReport struct {
	Machine    Machine          `json:"machine"`
	Commit     string           `json:"commit"`
	Model      string           `json:"model"`
	Label      string           `json:"label"`
	Conditions Conditions       `json:"conditions"`
	Rounds     int              `json:"rounds"`
	Store      string           `json:"store"`
	Predictor  string           `json:"predictor"`
	Arenas     []LookaheadArena `json:"arenas"` // the smallest first
	SameLogits bool             `json:"same_logits"`
}

// LookaheadArena is the figures at one size of the arena.
type LookaheadArena struct {
	Bytes  int64           `json:"bytes"`
	Slots  int             `json:"expert_slots"`
	Total  int             `json:"experts_total"`
	Cells  []LookaheadCell `json:"cells"`         // in the order of the settings
	Hashes []string        `json:"logits_sha256"` // of each round, the same for every setting
}

// LookaheadCell is one setting at one size.
type LookaheadCell struct {
	Setting string `json:"lookahead"`
	Rate    Spread `json:"predicted_per_second"`
	// OverOff is the speed over that of setting 0 in the same round; zero where 0 is not compared.
	OverOff Spread `json:"over_off"`
	// Hidden is the share of the time with a read under way in which nobody waited for one; 0 where nothing was read.
	Hidden Spread `json:"hidden_share"`
	// Used is the share of the bytes read on a guess that a layer asked for within the block, late ones included; what waits
	// in the cache for a later use counts as not used. UsedEnded leaves it out.
	Used      float64 `json:"used_share"`
	UsedEnded float64 `json:"used_share_of_ended"`

	ReadMS    float64 `json:"read_ms_per_token"`  // with a read under way
	WaitMS    float64 `json:"wait_ms_per_token"`  // with a layer waiting for one
	RestMS    float64 `json:"other_ms_per_token"` // the rest of the token: arithmetic
	BytesRead float64 `json:"bytes_per_token"`
	HitRate   float64 `json:"hit_rate"` // resident when needed

	Recall1 float64 `json:"recall_1"`
	Recall2 float64 `json:"recall_2"`
	Depth   int     `json:"depth"` // in force at the end
	Reason  string  `json:"disabled_reason"`

	Runs []LookaheadRun `json:"runs"`
}

// LookaheadRun is one timed block.
type LookaheadRun struct {
	Rate   float64      `json:"predicted_per_second"`
	Hidden float64      `json:"hidden_share"`
	Hash   string       `json:"logits_sha256"`
	Stats  engine.Stats `json:"stats"`
}

// setting is what is compared.
type setting struct {
	ahead  int
	refine bool
}

func (s setting) String() string {
	name := fmt.Sprint(s.ahead)
	if s.ahead == engine.LookaheadAuto {
		name = "auto"
	}
	if s.refine {
		name += " refined"
	}
	return name
}

// errLogits says that a setting changed a result.
var errLogits = errors.New("the logits changed with the lookahead")

// lookaheads is a run of Lookaheads.
type lookaheads struct {
	c    LookaheadConfig
	e    *engine.Engine
	s    *engine.Session
	size []int64 // of each arena
	keep []byte  // logits of a block, float32 little-endian
	rows [][]float32
	list []setting
}

// Lookaheads measures. Different logits are an error that comes with the report.
func Lookaheads(ctx context.Context, c LookaheadConfig) (*LookaheadReport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	o := c.Engine
	o.Lookahead, o.ExpertRAM, o.Refine = engine.LookaheadAuto, largest(c.Arenas), false
	if need := c.Depth + max(c.Decode, c.Warm); o.Context == 0 {
		o.Context = need
	} else if o.Context < need {
		return nil, fmt.Errorf("%w: the context holds %d tokens, the runs need %d", engine.ErrUsage, o.Context, need)
	}
	e, s, err := openRouted(o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer s.Close()
	r := &lookaheads{c: c, e: e, s: s, size: make([]int64, len(c.Arenas))}
	for _, n := range c.Lookahead {
		r.list = append(r.list, setting{n, false})
	}
	for _, n := range c.Lookahead {
		if c.Refine && n != 0 {
			r.list = append(r.list, setting{n, true})
		}
	}
	order := make([]int, len(c.Arenas))
	for i, a := range c.Arenas {
		order[i] = i
		if r.size[i], err = e.ArenaBytes(a); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(order, func(a, b int) int { return int(min(max(r.size[b]-r.size[a], -1), 1)) })
	for range c.Decode {
		r.rows = append(r.rows, make([]float32, e.Model().Config().Vocab))
	}
	rep := &LookaheadReport{Machine: ThisMachine(), Commit: Commit(), Model: e.Options().Path, Label: c.Label, Rounds: c.Rounds, SameLogits: true}
	for n, i := range order {
		a, err := r.arena(ctx, i, n == 0)
		if a != nil {
			rep.Arenas = append([]LookaheadArena{*a}, rep.Arenas...)
		}
		if errors.Is(err, errLogits) {
			rep.SameLogits = false
		} else if err != nil {
			return nil, err
		}
	}
	st := rep.Arenas[0].Cells[0].Runs[0].Stats
	b, eo := e.Budget(), e.Options()
	rep.Store, rep.Predictor = st.Store, st.Prefetch.Predictor
	rep.Conditions = Conditions{Threads: eo.Threads, Context: eo.Context, Batch: eo.Batch, KVType: st.KVType, DecodeTokens: c.Decode, Depth: c.Depth,
		Lookahead: eo.Lookahead, RAMBudget: b.RAM, ExpertSlots: b.Slots, ExpertsTotal: b.Experts, Load: LoadAverage()}
	if !rep.SameLogits {
		return rep, errLogits
	}
	return rep, nil
}

// largest is the arena to open with: of a list of shares, or of sizes, the largest; of both, a slot for every expert.
func largest(list []engine.ExpertBudget) engine.ExpertBudget {
	var most engine.ExpertBudget
	for _, a := range list {
		most.Bytes, most.Percent = max(most.Bytes, a.Bytes), max(most.Percent, a.Percent)
	}
	switch {
	case most.Bytes > 0 && most.Percent > 0:
		return engine.ExpertBudget{Percent: 100}
	case most.Bytes == 0 && most.Percent == 0:
		return engine.ExpertBudget{Min: true}
	}
	return most
}

// tokens are random ones, the same for the same seeds.
func (r *lookaheads) tokens(n int, seeds ...int) []int32 {
	h := uint64(0)
	for _, s := range seeds {
		h = h*1000003 + uint64(s) + 1
	}
	rng := rand.New(rand.NewPCG(h, 0x100ca4ead))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(r.e.Model().Config().Vocab))
	}
	return out
}

// arena measures every setting at arena i.
func (r *lookaheads) arena(ctx context.Context, i int, first bool) (*LookaheadArena, error) {
	c := &r.c
	if err := r.e.SetExpertRAM(c.Arenas[i]); err != nil {
		return nil, err
	}
	warm := c.Warm
	if first {
		if err := r.e.Fill(ctx); err != nil {
			return nil, err
		}
		if _, err := r.s.Sync(ctx, r.tokens(c.Depth, 0)); err != nil {
			return nil, err
		}
		warm *= 4
	}
	adapt := c.Lookahead[len(c.Lookahead)-1]
	if slices.Contains(c.Lookahead, engine.LookaheadAuto) {
		adapt = engine.LookaheadAuto // it has to learn what pays here
	}
	if err := r.s.SetLookahead(adapt); err != nil {
		return nil, err
	}
	for at := 0; at < warm; at += c.Warm {
		r.s.Truncate(c.Depth)
		for _, id := range r.tokens(min(c.Warm, warm-at), 1, i, at) {
			if err := r.s.Eval(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	r.s.Truncate(c.Depth)
	state := r.e.Residents()
	a := &LookaheadArena{Bytes: r.size[i], Total: r.e.Budget().Experts}
	a.Cells = make([]LookaheadCell, len(r.list))
	var wrong error
	for round := range c.Rounds {
		ids := r.tokens(c.Decode, 2, round)
		hash := ""
		for k := range r.list {
			at := turn(k, round, len(r.list))
			run, err := r.block(ctx, state, r.list[at], ids)
			if err != nil {
				return nil, err
			}
			if hash == "" {
				hash = run.Hash
			} else if run.Hash != hash {
				wrong = errLogits
			}
			a.Slots = run.Stats.ExpertSlots
			x := &a.Cells[at]
			x.Runs = append(x.Runs, *run)
			if c.Progress != nil {
				c.Progress(fmt.Sprintf("%d of %d slots, round %d, lookahead %s: %.2f tokens/s", a.Slots, a.Total, round+1, r.list[at], run.Rate))
			}
		}
		a.Hashes = append(a.Hashes, hash)
	}
	off := slices.Index(c.Lookahead, 0)
	for k := range a.Cells {
		var base []LookaheadRun
		if off >= 0 {
			base = a.Cells[off].Runs
		}
		a.Cells[k].sum(r.list[k].String(), base, c.Decode)
	}
	return a, wrong
}

// turn is the setting that is k-th in a round of n: the order is a row of a Williams square, 0 1 n-1 2 n-2 .., so that for an even
// n no setting follows the same one in every round. What a block leaves behind (evicted experts, a disk in debt to its
// cap) falls on all alike.
func turn(k, round, n int) int {
	at := (k + 1) / 2
	if k > 0 && k%2 == 0 {
		at = n - k/2
	}
	return (at + round) % n
}

// settle is the pause between a restored cache and the clock: a capped disk pays what it owes.
const settle = 200 * time.Millisecond

// block restores the cache and times the decoding of some tokens.
func (r *lookaheads) block(ctx context.Context, state [][]int32, set setting, ids []int32) (*LookaheadRun, error) {
	if err := r.e.Restore(ctx, state); err != nil {
		return nil, err
	}
	if err := errors.Join(r.s.SetLookahead(set.ahead), r.s.SetRefine(set.refine)); err != nil {
		return nil, err
	}
	r.s.Truncate(r.c.Depth)
	time.Sleep(settle)
	m := r.s.Measure()
	var took time.Duration
	for i, id := range ids {
		start := time.Now()
		if err := r.s.Eval(ctx, id); err != nil {
			return nil, err
		}
		took += time.Since(start)
		copy(r.rows[i], r.s.Logits())
	}
	run := &LookaheadRun{Rate: float64(len(ids)) / took.Seconds(), Stats: m.End()}
	st := &run.Stats
	st.PredictedTokens, st.PredictedMS, st.PredictedPerSecond = len(ids), took.Seconds()*1e3, run.Rate
	if busy := busyMS(st); busy > 0 {
		run.Hidden = min(st.OverlappedReadMS/busy, 1)
	}
	h := sha256.New()
	for _, row := range r.rows[:len(ids)] {
		r.keep = r.keep[:0]
		for _, v := range row {
			r.keep = binary.LittleEndian.AppendUint32(r.keep, math.Float32bits(v))
		}
		h.Write(r.keep)
	}
	run.Hash = hex.EncodeToString(h.Sum(nil))
	return run, nil
}

// busyMS is the time with a read under way.
func busyMS(st *engine.Stats) float64 {
	if st.DiskBytesPerSecond <= 0 {
		return 0
	}
	return float64(st.BytesRead) / st.DiskBytesPerSecond * 1e3
}

// sum fills a cell from its runs; base are those of setting 0 in the same rounds.
func (x *LookaheadCell) sum(name string, base []LookaheadRun, steps int) {
	x.Setting = name
	var rate, over, hidden []float64
	var read, ended, used, touches, hits int64
	for i := range x.Runs {
		run := &x.Runs[i]
		st := &run.Stats
		rate, hidden = append(rate, run.Rate), append(hidden, run.Hidden)
		if base != nil {
			over = append(over, run.Rate/base[i].Rate)
		}
		n := float64(steps * len(x.Runs))
		x.ReadMS += busyMS(st) / n
		x.WaitMS += st.ReadWaitMS / n
		x.RestMS += (st.PredictedMS - st.ReadWaitMS) / n
		x.BytesRead += float64(st.BytesRead) / n
		b := st.PrefetchBytes
		used += b.Used + b.Late
		read += b.Issued - b.Cancelled
		ended += b.Used + b.Late + b.Wasted
		touches, hits = touches+st.Touches, hits+st.HitsRAM
		x.Recall1 += st.Prefetch.Recall1 / float64(len(x.Runs))
		x.Recall2 += st.Prefetch.Recall2 / float64(len(x.Runs))
		x.Depth, x.Reason = st.Prefetch.Depth, st.Prefetch.DisabledReason
	}
	x.Rate, x.Hidden = SpreadOf(rate), SpreadOf(hidden)
	if over != nil {
		x.OverOff = SpreadOf(over)
	}
	x.Used, x.UsedEnded, x.HitRate = min(ratio(used, read), 1), ratio(used, ended), ratio(hits, touches)
}
