package engine

import (
	"strings"
	"time"

	"terrace/gguf"
	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/prefetch"
	"terrace/sample"
	"terrace/tiers"
	"terrace/vulkan"
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
	CacheBytes         int64   `json:"cache_bytes"` // set aside for prompts that may come again
	PredictorBytes     int64   `json:"predictor_bytes"`
	RuntimeBytes       int64   `json:"runtime_bytes"` // set aside for the Go runtime and small tables
	ExpertBytes        int64   `json:"expert_bytes"`  // of the slots that there are now
	ExpertSlots        int     `json:"expert_slots"`
	ExpertsTotal       int     `json:"experts_total"`
	Store              string  `json:"store"`
	Touches            int64   `json:"touches"`
	HitsVRAM           int64   `json:"hits_vram"`
	HitsRAM            int64   `json:"hits_ram"`
	HitsGuessed        int64   `json:"hits_guessed"` // of HitsRAM, those of experts that had been read on a guess, each at its first use
	HitsInflight       int64   `json:"hits_inflight"`
	Misses             int64   `json:"misses"`
	BytesRead          int64   `json:"bytes_read"`    // for demands and guesses; preloads are apart
	DemandBytes        int64   `json:"demand_bytes"`  // of the misses: experts nobody had asked for when a layer needed them
	PreloadBytes       int64   `json:"preload_bytes"` // hot experts by the heat profile, since the last request or the start
	PreloadExperts     int64   `json:"preload_experts"`
	BytesVRAM          int64   `json:"bytes_vram"` // of the experts that the device keeps now
	ExpertsVRAM        int     `json:"experts_vram"`
	Unified            bool    `json:"unified"`        // the device has the machine's memory: experts are computed where they lie
	ExpertsCopied      int64   `json:"experts_copied"` // of these, since the start, which the driver would not take as they lie
	MirrorBytes        int64   `json:"mirror_bytes"`   // of BytesRead, from the mirror
	MirrorErrors       int64   `json:"mirror_errors"`  // reads that it failed, since the start
	ReadWaitMS         float64 `json:"read_wait_ms"`
	OverlappedReadMS   float64 `json:"overlapped_read_ms"`

	Prefetch      prefetch.Stats `json:"prefetch"`
	PrefetchBytes PrefetchBytes  `json:"prefetch_bytes"`

	Table *TableStats `json:"table,omitempty"` // nil: the model has none

	Loop *sample.Loop `json:"loop,omitempty"` // the answer repeated itself; nil: it did not

	DiskBytesPerSecond float64    `json:"disk_bytes_per_second"`
	Bottleneck         string     `json:"bottleneck"` // "disk", "memory", "compute" or "gpu"; "" before a token was decoded, or beside a card that was not measured
	BoundPerSecond     float64    `json:"bound_per_second"`
	Efficiency         float64    `json:"efficiency"`
	BoundTerms         BoundTerms `json:"bound_terms"`
	LogitsSHA256       string     `json:"logits_sha256,omitempty"`

	Governor // of the whole process so far

	decodeCold int64   // bytes of experts that decode steps needed and that had to be read, on a guess or not
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
	DiskMS    float64 `json:"disk_ms"`    // experts that were needed and had to be read, wasted guesses not counted / read rate of this run
	MemoryMS  float64 `json:"memory_ms"`  // weight bytes touched / read bandwidth
	ComputeMS float64 `json:"compute_ms"` // weight bytes touched / rate of the kernels from cache
	GPUMS     float64 `json:"gpu_ms"`
	LinkMS    float64 `json:"link_ms"`
}

// Meter measures what a session does between two moments, or what a job had of the passes that it shared with others.
type Meter struct {
	w                   *walk
	parallel            int
	account             *counters // of a job; nil: the totals are this one's
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
	gpu   vulkan.Stats
}

func (s *walk) counters() counters {
	var c counters
	if s.e.cache != nil {
		c.cache = s.e.cache.Stats()
		c.pipe = s.pipe.Stats()
	}
	if s.e.rows != nil {
		c.table = s.e.rows.Stats()
	}
	if s.e.gpu != nil {
		c.gpu = s.e.gpu.stats()
	}
	return c
}

func (s *walk) begin(prompt int) *Meter {
	m := &Meter{w: s, parallel: 1, start: fault.Now(), prompts: prompt, before: s.counters()}
	if src, ok := s.src.(*source); ok {
		m.idle = src.ahead > 0 && !src.always && s.e.cache.Complete()
	}
	return m
}

// beginJob is begin for a job of a scheduler, whose part of the passes is added up in account.
func (s *walk) beginJob(prompt, parallel int, account *counters) *Meter {
	m := s.begin(prompt)
	m.parallel, m.account, m.before = parallel, account, *account
	return m
}

// now is the running totals that the meter is about.
func (m *Meter) now() counters {
	if m.account != nil {
		return *m.account
	}
	return m.w.counters()
}

// Measure starts a measurement of what follows as decoding.
func (s *Session) Measure() *Meter {
	m := s.begin(0)
	m.promptDone()
	return m
}

// End is what was done since Measure.
func (m *Meter) End() Stats {
	m.last = fault.Now()
	return m.end()
}

func (m *Meter) promptDone() {
	m.prompt = fault.Now()
	m.decode = m.now()
}

func (m *Meter) token() {
	m.last = fault.Now()
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
	e, now := m.w.e, m.now()
	c := e.model.Config()
	name, _ := e.file.Metadata.StringOr("general.name", "")
	rss, _ := host.RSS() // zeros where the system does not tell
	gov, budget := e.gov.snapshot()
	st := Stats{
		Model: name, Arch: c.Arch, Quant: e.quantLabel(), Backend: e.backend.Name(), NCtx: e.opt.Context, Parallel: m.parallel,
		KVType: e.opt.KeyType.String() + "/" + e.opt.ValType.String(), Threads: e.opt.Threads, Exact: e.opt.Exact,
		PromptTokens: m.prompts, PredictedTokens: m.predicted, PromptMS: ms(m.prompt.Sub(m.start)), PredictedMS: ms(end.Sub(m.prompt)),
		LoadMS: ms(e.load), TTFTMS: ms(m.ttft), RAMBudget: budget.RAM, Governor: gov, PeakRSS: rss.Peak, RSSAnon: rss.Anon,
		Dense: e.opt.Dense, DenseBytes: budget.Dense, KVBytes: gov.KVNow, TableBytes: budget.Table, WorkBytes: budget.Work, CacheBytes: budget.Cache, PredictorBytes: budget.Predictor, RuntimeBytes: budget.Runtime + plan.PageTables(budget.Arena),
		ExpertBytes: budget.Arena, ExpertSlots: budget.Slots, ExpertsTotal: budget.Experts, Store: e.store,
	}
	if e.gpu != nil {
		i := &e.gpu.info
		st.PlacementDependent = e.gpu.placementDependent()
		st.Device = i.String()
		st.GPUOps, st.CPUFallbackOps = now.gpu.Dispatches-m.before.gpu.Dispatches, now.gpu.Fallbacks-m.before.gpu.Fallbacks
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
	st.HitsVRAM = now.gpu.Hits - m.before.gpu.Hits
	if v := e.vram(); v != nil {
		st.BytesVRAM, st.ExpertsVRAM, st.ExpertsCopied, st.Unified = v.ExpertBytes, v.Experts, v.Copied, v.Unified
	}
	st.Touches = b.Touches - a.Touches + st.HitsVRAM
	st.HitsRAM = b.Hits - a.Hits
	st.HitsGuessed = b.Used - a.Used
	st.HitsInflight = b.InFlight - a.InFlight
	st.Misses = b.Misses - a.Misses
	st.DemandBytes = b.MissBytes - a.MissBytes
	st.BytesRead = max(0, b.DemandBytes+b.GuessBytes-a.DemandBytes-a.GuessBytes)
	real := e.cache.Stats()
	st.ExpertBytes, st.ExpertSlots = real.Bytes, real.Slots
	st.PrefetchBytes = PrefetchBytes{
		Issued: b.IssuedBytes - a.IssuedBytes, Used: b.UsedBytes - a.UsedBytes, Late: b.LateBytes - a.LateBytes,
		Wasted: b.WastedBytes - a.WastedBytes, Cancelled: b.CancelledBytes - a.CancelledBytes,
	}
	st.PreloadBytes, st.PreloadExperts = real.PreloadBytes-e.told.PreloadBytes, real.Preloads-e.told.Preloads
	e.told = real
	st.Store, st.MirrorBytes, st.MirrorErrors = real.Store, b.MirrorBytes-a.MirrorBytes, real.MirrorErrors
	st.ReadWaitMS = ms(b.Blocked - a.Blocked)
	st.OverlappedReadMS = ms(b.Overlapped - a.Overlapped)
	d := m.decode.cache
	st.decodeCold = (b.Misses-d.Misses+b.InFlight-d.InFlight)*e.meanExpert() + b.UsedBytes - d.UsedBytes
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
	var touched, device float64 // bytes of weights per decoded token, in RAM and in VRAM
	var compute float64
	dense := map[gguf.Type]int64{}
	for _, t := range e.denseTraffic() {
		dense[t.typ] += t.bytes
	}
	denseHost, expertsHost := e.hostShares(st)
	for _, t := range e.tokenTraffic() {
		n := float64(dense[t.typ])*denseHost + float64(t.bytes-dense[t.typ])*expertsHost
		device += float64(t.bytes) - n
		touched += n
		compute += n / r.kernel[t.typ]
	}
	b := &st.BoundTerms
	b.MemoryMS = touched / r.memory * 1e3
	b.ComputeMS = compute * 1e3
	if st.decodeRate > 0 && st.Touches > 0 {
		perToken := float64(st.decodeCold) / float64(max(st.PredictedTokens-1, 1))
		b.DiskMS = perToken / st.decodeRate * 1e3
	}
	if device > 0 {
		rate := e.deviceRate()
		if rate == 0 {
			return // nobody measured the card, so no bound is known
		}
		b.GPUMS = device / rate * 1e3
	}
	most := max(b.DiskMS, b.MemoryMS, b.ComputeMS, b.GPUMS)
	switch most {
	case b.GPUMS:
		st.Bottleneck = "gpu"
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

// hostShares are the parts of dense weights and of experts' bytes that the processor reads.
func (e *Engine) hostShares(st *Stats) (dense, experts float64) {
	g := e.gpu
	if g == nil || g.b.Load() == nil {
		return 1, 1
	}
	n := e.model.Config().Layers
	dense, experts = float64(min(g.first, n))/float64(n), 1
	switch {
	case g.b.Load().Tier().Unified:
		experts = dense
	case st.Touches > 0:
		experts = 1 - float64(st.HitsVRAM)/float64(st.Touches)
	}
	return dense, experts
}

// deviceRate is how fast the card reads its memory by the machine's profile, 0 where nobody measured it.
func (e *Engine) deviceRate() float64 {
	if e.opt.Profile == "" {
		return 0
	}
	return plan.LoadProfile(e.opt.Profile, e.log).GPUs[e.gpu.info.Name].Memory
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
	for _, t := range e.denseTraffic() {
		sum[t.typ] += t.bytes
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

// denseTraffic is the part of it that does not depend on the tokens, tensor by tensor.
func (e *Engine) denseTraffic() []traffic {
	var out []traffic
	for _, t := range e.model.Dense() {
		if t.Name == "token_embd.weight" && !e.model.Config().Tied {
			continue
		}
		out = append(out, traffic{t.Type, t.Length})
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

// tokenBytes is the size of the routed experts that a token uses.
func (e *Engine) tokenBytes() int64 {
	n := int64(0)
	for _, l := range e.model.Experts() {
		if len(l) > 0 {
			n += int64(e.model.Config().TopK) * l[0].Bytes()
		}
	}
	return n
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

// CacheStats are the counters of the experts' cache since the engine was opened; zeros where there is none.
func (e *Engine) CacheStats() tiers.Stats {
	if e.cache == nil {
		return tiers.Stats{}
	}
	return e.cache.Stats()
}

// Replay plays passes ([pass][layer], the distinct experts that each used) on the cache's policy in an arena like the engine's
// as it is now, from nothing resident on: what it reads is what demands alone must read.
func (e *Engine) Replay(passes [][][]int32) tiers.SimResult {
	return tiers.Simulate(e.cache.Sim(), passes)
}
