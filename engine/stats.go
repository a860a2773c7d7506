package engine

import (
	"strings"
	"time"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/prefetch"
	"terrace/tiers"
)

// Stats is what one request did; the JSON names are those of docs for `--stats json`. Counts are of this request alone.
type Stats struct {
	Model              string  `json:"model"`
	Arch               string  `json:"arch"`
	Quant              string  `json:"quant"`
	Backend            string  `json:"backend"`
	Device             string  `json:"device"`
	GPUOps             int64   `json:"gpu_ops"`
	CPUFallbackOps     int64   `json:"cpu_fallback_ops"`
	PlacementDependent bool    `json:"placement_dependent"`
	NCtx               int     `json:"n_ctx"`
	Parallel           int     `json:"parallel"`
	KVType             string  `json:"kv_type"`
	Threads            int     `json:"threads"`
	Exact              bool    `json:"exact"`
	PromptTokens       int     `json:"prompt_tokens"`
	PromptCached       int     `json:"prompt_cached_tokens"` // kept from the last request; the others are evaluated
	PredictedTokens    int     `json:"predicted_tokens"`     // an end token included; the first comes out of the prompt
	FinishReason       Finish  `json:"finish_reason"`
	PromptMS           float64 `json:"prompt_ms"`
	PredictedMS        float64 `json:"predicted_ms"`
	PromptPerSecond    float64 `json:"prompt_per_second"`
	PredictedPerSecond float64 `json:"predicted_per_second"`
	LoadMS             float64 `json:"load_ms"`
	TTFTMS             float64 `json:"ttft_ms"`
	RAMBudget          int64   `json:"ram_budget"`
	PeakRSS            int64   `json:"peak_rss"`
	RSSAnon            int64   `json:"rss_anon"`    // now, not backed by files
	Dense              string  `json:"dense"`       // "ram", or "mmap": in the page cache, outside the budget
	DenseBytes         int64   `json:"dense_bytes"` // with "ram", alignment included
	KVBytes            int64   `json:"kv_bytes"`
	TableBytes         int64   `json:"table_bytes"` // set aside for pages of a table of rows that stays on disk
	WorkBytes          int64   `json:"work_bytes"`  // set aside for the activations of one pass
	PredictorBytes     int64   `json:"predictor_bytes"`
	RuntimeBytes       int64   `json:"runtime_bytes"` // set aside for the Go runtime and small tables
	ExpertBytes        int64   `json:"expert_bytes"`  // of the slots that there are now
	ExpertSlots        int     `json:"expert_slots"`
	ExpertsTotal       int     `json:"experts_total"`
	Store              string  `json:"store"`
	Touches            int64   `json:"touches"`
	HitsVRAM           int64   `json:"hits_vram"`
	HitsRAM            int64   `json:"hits_ram"`
	HitsInflight       int64   `json:"hits_inflight"`
	Misses             int64   `json:"misses"`
	BytesRead          int64   `json:"bytes_read"`    // for demands and guesses; preloads are apart
	DemandBytes        int64   `json:"demand_bytes"`  // of the misses: experts nobody had asked for when a layer needed them
	PreloadBytes       int64   `json:"preload_bytes"` // hot experts by the heat profile, since the last request or the start
	PreloadExperts     int64   `json:"preload_experts"`
	BytesVRAM          int64   `json:"bytes_vram"`
	MirrorBytes        int64   `json:"mirror_bytes"`  // of BytesRead, from the mirror
	MirrorErrors       int64   `json:"mirror_errors"` // reads that it failed, since the start
	ReadWaitMS         float64 `json:"read_wait_ms"`
	OverlappedReadMS   float64 `json:"overlapped_read_ms"`

	Prefetch      prefetch.Stats `json:"prefetch"`
	PrefetchBytes PrefetchBytes  `json:"prefetch_bytes"`

	Table *TableStats `json:"table,omitempty"` // nil: the model has none

	DiskBytesPerSecond float64    `json:"disk_bytes_per_second"`
	Bottleneck         string     `json:"bottleneck"` // "disk", "memory" or "compute"; "" before a token was decoded
	BoundPerSecond     float64    `json:"bound_per_second"`
	Efficiency         float64    `json:"efficiency"`
	BoundTerms         BoundTerms `json:"bound_terms"`
	LogitsSHA256       string     `json:"logits_sha256,omitempty"`

	Governor // of the whole process so far

	decodeCold int64   // experts that decode steps needed and that were not resident
	decodeRate float64 // bytes read per second while the disk was busy, decode steps only if they read anything
}

// PrefetchBytes is what became of the bytes read on a guess, alignment not counted. What was issued ends as one of the
// others, or waits in the cache: late is needed before it was whole, wasted left the cache unused, cancelled was not read.
// A guess that was wrong for the layer's next turn and is used later is used.
type PrefetchBytes struct {
	Issued    int64 `json:"issued"`
	Used      int64 `json:"used"`
	Late      int64 `json:"late"`
	Wasted    int64 `json:"wasted"`
	Cancelled int64 `json:"cancelled"`
}

// BoundTerms are the least milliseconds a decoded token can take on each part of the machine.
type BoundTerms struct {
	DiskMS    float64 `json:"disk_ms"`    // experts that had to be read / read rate of this run
	MemoryMS  float64 `json:"memory_ms"`  // weight bytes touched / read bandwidth
	ComputeMS float64 `json:"compute_ms"` // weight bytes touched / rate of the kernels from cache
	GPUMS     float64 `json:"gpu_ms"`
	LinkMS    float64 `json:"link_ms"`
}

// Meter measures what a session does between two moments.
type Meter struct {
	s                   *Session
	start, prompt, last time.Time
	prompts, evaluated  int // tokens of the prompt, and those not kept from before
	predicted           int
	before, decode      counters
	ttft                time.Duration
	idle                bool // every expert was in RAM before the start, so no guesses were made
}

// counters are the running totals a request is the difference of.
type counters struct {
	table tiers.TableStats
	cache tiers.Stats
	pipe  prefetch.Stats
}

func (s *Session) counters() counters {
	var c counters
	if s.e.cache != nil {
		c.cache = s.e.cache.Stats()
		c.pipe = s.pipe.Stats()
	}
	if s.e.rows != nil {
		c.table = s.e.rows.Stats()
	}
	return c
}

func (s *Session) begin(prompt int) *Meter {
	m := &Meter{s: s, start: time.Now(), prompts: prompt, before: s.counters()}
	if src, ok := s.src.(*source); ok {
		m.idle = src.ahead > 0 && !src.always && s.e.cache.Complete()
	}
	return m
}

// Measure starts a measurement of what follows as decoding.
func (s *Session) Measure() *Meter {
	m := s.begin(0)
	m.promptDone()
	return m
}

// End is what was done since Measure.
func (m *Meter) End() Stats {
	m.last = time.Now()
	return m.end()
}

func (m *Meter) promptDone() {
	m.prompt = time.Now()
	m.decode = m.s.counters()
}

func (m *Meter) token() {
	m.last = time.Now()
	if m.predicted == 0 {
		m.ttft = m.last.Sub(m.start)
	}
	m.predicted++
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func perSecond(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// end closes the request's account.
func (m *Meter) end() Stats {
	if m.prompt.IsZero() {
		m.promptDone()
	}
	end := m.last
	if end.Before(m.prompt) {
		end = m.prompt
	}
	e, now := m.s.e, m.s.counters()
	c := e.model.Config()
	name, _ := e.file.Metadata.StringOr("general.name", "")
	rss, _ := host.RSS() // zeros where the system does not tell
	gov, plan := e.gov.snapshot()
	st := Stats{
		Model: name, Arch: c.Arch, Quant: e.quantLabel(), Backend: e.backend.Name(), NCtx: e.opt.Context, Parallel: 1,
		KVType: e.opt.KeyType.String() + "/" + e.opt.ValType.String(), Threads: e.opt.Threads, Exact: e.opt.Exact,
		PromptTokens: m.prompts, PredictedTokens: m.predicted, PromptMS: ms(m.prompt.Sub(m.start)), PredictedMS: ms(end.Sub(m.prompt)),
		LoadMS: ms(e.load), TTFTMS: ms(m.ttft), RAMBudget: plan.RAM, Governor: gov, PeakRSS: rss.Peak, RSSAnon: rss.Anon,
		Dense: e.opt.Dense, DenseBytes: plan.Dense, KVBytes: plan.KV, TableBytes: plan.Table, WorkBytes: plan.Work, PredictorBytes: plan.Predictor, RuntimeBytes: plan.Runtime + pageTables(plan.Arena),
		ExpertBytes: plan.Arena, ExpertSlots: plan.Slots, ExpertsTotal: plan.Experts, Store: e.store,
	}
	if e.rows != nil {
		a, b := m.before.table, now.table
		st.Table = &TableStats{Rows: b.Rows - a.Rows, Hits: b.Hits - a.Hits, Reads: b.Reads - a.Reads, Bytes: b.Bytes - a.Bytes}
	}
	if st.Dense == "mmap" {
		st.DenseBytes = e.dense.bytes
	}
	st.PromptCached = max(0, m.prompts-m.evaluated)
	st.PromptPerSecond = perSecond(m.evaluated, m.prompt.Sub(m.start))
	// The first generated token comes out of the prompt; the others are decode steps.
	st.PredictedPerSecond = perSecond(m.predicted-1, end.Sub(m.prompt))
	if e.cache == nil {
		st.Prefetch.DisabledReason = "no routed experts"
		return st
	}
	a, b := m.before.cache, now.cache
	st.Touches = b.Touches - a.Touches
	st.HitsRAM = b.Hits - a.Hits
	st.HitsInflight = b.InFlight - a.InFlight
	st.Misses = b.Misses - a.Misses
	st.DemandBytes = b.MissBytes - a.MissBytes
	st.BytesRead = max(0, b.DemandBytes+b.GuessBytes-a.DemandBytes-a.GuessBytes)
	st.ExpertBytes, st.ExpertSlots = b.Bytes, b.Slots
	st.PrefetchBytes = PrefetchBytes{
		Issued: b.IssuedBytes - a.IssuedBytes, Used: b.UsedBytes - a.UsedBytes, Late: b.LateBytes - a.LateBytes,
		Wasted: b.WastedBytes - a.WastedBytes, Cancelled: b.CancelledBytes - a.CancelledBytes,
	}
	st.PreloadBytes, st.PreloadExperts = b.PreloadBytes-e.told.PreloadBytes, b.Preloads-e.told.Preloads
	e.told = b
	st.Store, st.MirrorBytes, st.MirrorErrors = b.Store, b.MirrorBytes-a.MirrorBytes, b.MirrorErrors
	st.ReadWaitMS = ms(b.Blocked - a.Blocked)
	st.OverlappedReadMS = ms(b.Overlapped - a.Overlapped)
	d := m.decode.cache
	st.decodeCold = b.Misses - d.Misses + b.InFlight - d.InFlight
	if busy := b.DiskBusy - a.DiskBusy; busy > 0 {
		st.DiskBytesPerSecond = float64(st.BytesRead+b.PreloadBytes-a.PreloadBytes) / busy.Seconds()
		st.decodeRate = st.DiskBytesPerSecond
	}
	if busy := b.DiskBusy - d.DiskBusy; busy > 0 {
		st.decodeRate = float64(b.DemandBytes+b.GuessBytes+b.PreloadBytes-d.DemandBytes-d.GuessBytes-d.PreloadBytes) / busy.Seconds()
	}
	st.Prefetch = now.pipe.Since(m.before.pipe)
	st.Prefetch.Predictor, st.Prefetch.Ignored = e.guesser.name, e.guesser.ignored
	if m.idle {
		st.Prefetch.Depth, st.Prefetch.DisabledReason = 0, "all experts resident"
	}
	return st
}

// Bound fills the bound terms of a finished request: it measures what the machine's memory and kernels can do (some tens
// of milliseconds), so it is called only where somebody will look.
func (s *Session) Bound(st *Stats) {
	e := s.e
	if st.PredictedTokens < 2 {
		return
	}
	r := e.rates()
	var touched float64 // bytes of weights per decoded token
	var compute float64
	for _, t := range e.tokenTraffic() {
		touched += float64(t.bytes)
		compute += float64(t.bytes) / r.kernel[t.typ]
	}
	b := &st.BoundTerms
	b.MemoryMS = touched / r.memory * 1e3
	b.ComputeMS = compute * 1e3
	if st.decodeRate > 0 && st.Touches > 0 {
		perToken := float64(st.decodeCold) * float64(e.meanExpert()) / float64(max(st.PredictedTokens-1, 1))
		b.DiskMS = perToken / st.decodeRate * 1e3
	}
	most := max(b.DiskMS, b.MemoryMS, b.ComputeMS)
	switch most {
	case b.DiskMS:
		st.Bottleneck = "disk"
	case b.MemoryMS:
		st.Bottleneck = "memory"
	default:
		st.Bottleneck = "compute"
	}
	if most > 0 {
		st.BoundPerSecond = 1e3 / most
		st.Efficiency = st.PredictedPerSecond / st.BoundPerSecond
	}
}

// traffic is the weight bytes of one type that a decoded token reads.
type traffic struct {
	typ   gguf.Type
	bytes int64
}

// tokenTraffic sums what one decoded token reads, by type: every dense matrix but the embedding table (one row), and
// top-k experts a layer.
func (e *Engine) tokenTraffic() []traffic {
	sum := map[gguf.Type]int64{}
	for _, t := range e.model.Dense() {
		if t.Name == "token_embd.weight" && !e.model.Config().Tied {
			continue
		}
		sum[t.Type] += t.Length
	}
	k := int64(e.model.Config().TopK)
	for _, l := range e.model.Experts() {
		if len(l) == 0 {
			continue
		}
		for _, m := range []struct {
			t gguf.Type
			n int64
		}{{l[0].Gate.Type, l[0].Gate.Length}, {l[0].Up.Type, l[0].Up.Length}, {l[0].Down.Type, l[0].Down.Length}} {
			sum[m.t] += k * m.n
		}
	}
	out := make([]traffic, 0, len(sum))
	for t, n := range sum {
		out = append(out, traffic{t, n})
	}
	return out
}

// meanExpert is the mean size of an expert in bytes.
func (e *Engine) meanExpert() int64 {
	var n, b int64
	for _, l := range e.model.Experts() {
		for _, x := range l {
			n++
			b += x.Bytes()
		}
	}
	return b / max(n, 1)
}

// quantLabel names the types of the routed experts, or of the dense matrices where there are none.
func (e *Engine) quantLabel() string {
	if e.quant != "" {
		return e.quant
	}
	var names []string
	add := func(t gguf.Type) {
		for _, n := range names {
			if n == t.String() {
				return
			}
		}
		names = append(names, t.String())
	}
	for _, l := range e.model.Experts() {
		for _, x := range l[:min(1, len(l))] {
			add(x.Gate.Type)
			add(x.Up.Type)
			add(x.Down.Type)
		}
	}
	if len(names) == 0 {
		for _, t := range e.model.Dense() {
			if strings.HasSuffix(t.Name, ".weight") && t.Out > 1 {
				add(t.Type)
			}
		}
	}
	e.quant = strings.Join(names, "+")
	return e.quant
}
