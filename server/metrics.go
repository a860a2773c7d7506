package server

import (
	"bytes"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"terrace/engine"
)

// metrics answers GET /metrics.
func metrics(c *call) error {
	if !c.s.opt.Metrics {
		return unsupported("This server does not support metrics endpoint. Start it with --metrics")
	}
	s := c.s
	s.scrape.mu.Lock()
	defer s.scrape.mu.Unlock()
	if s.scrape.registry == nil {
		s.scrape.registry = prometheus.NewRegistry()
		s.scrape.registry.MustRegister(&collector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	families, err := s.scrape.registry.Gather()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return err
		}
	}
	c.w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(s.born.Unix(), 10))
	return c.reply("text/plain; version=0.0.4; charset=utf-8", b.Bytes())
}

// scrape is what is kept from one scrape to the next, for the gauges of the time between them.
type scrape struct {
	mu       sync.Mutex
	registry *prometheus.Registry
	last     engine.Counters
	disk     struct{ bytes, busy float64 }
}

// desc describes a family of metrics.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// llama-server's families, whose prefix ends in a colon.
var (
	mPrompt        = desc("llamacpp:prompt_tokens_total", "Prompt tokens evaluated, those found in a cache not counted.")
	mPromptCached  = desc("llamacpp:prompt_tokens_cached_total", "Prompt tokens found in a cache.")
	mPromptSeconds = desc("llamacpp:prompt_seconds_total", "Time spent on prompts.")
	mPredicted     = desc("llamacpp:tokens_predicted_total", "Tokens generated.")
	mPredSeconds   = desc("llamacpp:tokens_predicted_seconds_total", "Time spent generating tokens.")
	mDecodes       = desc("llamacpp:n_decode_total", "Passes in which tokens were generated.")
	mLongest       = desc("llamacpp:n_tokens_max", "Longest sequence seen, in tokens.")
	mPromptRate    = desc("llamacpp:prompt_tokens_seconds", "Prompt tokens evaluated per second since the last scrape.")
	mPredRate      = desc("llamacpp:predicted_tokens_seconds", "Tokens generated per second since the last scrape.")
	mProcessing    = desc("llamacpp:requests_processing", "Slots that are busy.")
	mDeferred      = desc("llamacpp:requests_deferred", "Requests that wait for a slot.")
	mBusySlots     = desc("llamacpp:n_busy_slots_per_decode", "Mean number of busy slots in a decode pass.")
	mDrafts        = desc("llamacpp:spec_decode_num_drafts_total", "Speculative drafts.")
	mDraftTokens   = desc("llamacpp:spec_decode_num_draft_tokens_total", "Tokens of speculative drafts.")
	mAccepted      = desc("llamacpp:spec_decode_num_accepted_tokens_total", "Tokens of speculative drafts that were accepted.")
)

// Terrace's own.
var (
	tExperts      = desc("terrace_experts", "Experts by the fastest tier that has them.", "tier")
	tExpertBytes  = desc("terrace_expert_bytes", "Bytes of experts by the fastest tier that has them.", "tier")
	tTouches      = desc("terrace_expert_touches_total", "Experts that layers asked for, by where they were found.", "found")
	tLayerTouches = desc("terrace_layer_expert_touches_total", "Experts that a layer asked for, by where they were found.", "layer", "found")
	tLayerExperts = desc("terrace_layer_experts", "Experts of a layer by the fastest tier that has them.", "layer", "tier")
	tEvictions    = desc("terrace_expert_evictions_total", "Experts that left RAM for others.")
	tNear         = desc("terrace_one_more_gb_misses_saved_total", "Misses that one more GiB of RAM for experts would have saved, about.")
	tNearBytes    = desc("terrace_one_more_gb_bytes_saved_total", "Bytes read that one more GiB of RAM for experts would have saved, about.")
	tBudget       = desc("terrace_ram_budget_bytes", "RAM budget: at the start, promised now, in force now, and the least that works.", "budget")
	tMemory       = desc("terrace_memory_bytes", "Where the RAM budget goes.", "part")
	tArena        = desc("terrace_arena_bytes", "Expert slots: that there are, that there shall be, and one for every expert.", "arena")
	tResizes      = desc("terrace_budget_changes_total", "Changes of the RAM budget in force.", "direction")
	tRead         = desc("terrace_disk_read_bytes_total", "Bytes of experts read from disk, by what they were read for.", "for")
	tBusy         = desc("terrace_disk_busy_seconds_total", "Time with at least one expert being read.")
	tBlocked      = desc("terrace_disk_blocked_seconds_total", "Time in which a layer waited for a read.")
	tOverlapped   = desc("terrace_disk_overlapped_seconds_total", "Time in which experts were read and no layer waited.")
	tReadErrors   = desc("terrace_disk_read_errors_total", "Reads of experts that failed.")
	tDiskRate     = desc("terrace_disk_bytes_per_second", "Rate of reading while the disk was busy, since the last scrape.")
	tVRAM         = desc("terrace_vram_bytes", "The graphics card's memory: what it offers, what is held, the least that works, segments for experts.", "part")
	tSwaps        = desc("terrace_vram_swaps_total", "Experts that took the place of others in the card's memory.")
	tUploaded     = desc("terrace_vram_uploaded_bytes_total", "Bytes of experts brought to the card's memory.")
	tLost         = desc("terrace_vram_lost", "1 while the card is lost and the CPU computes.")
	tGuesses      = desc("terrace_prefetch_experts_total", "Experts read on a guess, and what became of them.", "end")
	tGuessBytes   = desc("terrace_prefetch_bytes_total", "Bytes of experts read on a guess, and what became of them.", "end")
	tLookahead    = desc("terrace_prefetch_lookahead_layers", "Most layers that are guessed ahead.")
	tBound        = desc("terrace_bound", "1 for what holds the recent work back.", "limit")
	tBoundMS      = desc("terrace_bound_milliseconds", "Least time of a token of the recent work, by part of the machine; 0 where it is not known.", "part")
	tWaiting      = desc("terrace_disk_waiting_ratio", "Share of the recent busy time in which layers waited for reads.")
	tWidth        = desc("terrace_decode_width", "Sequences that may decode in one pass.")
	tQueue        = desc("terrace_requests_inside", "Requests that want a slot and wait or run.")
	tLeases       = desc("terrace_expert_leases", "Experts that a computation holds now.")
	tPages        = desc("terrace_context_pages", "Pages of context, of 256 positions each: that slots may have together, and that they have.", "state")
	tPostponed    = desc("terrace_postponed_total", "Tasks that gave up their slots for want of memory, and went on later.")
	tKept         = desc("terrace_prompt_cache_bytes", "Bytes of kept prompts, by place.", "where")
	tKeptEntries  = desc("terrace_prompt_cache_entries", "Entries of kept prompts.")
	tKeptDisk     = desc("terrace_prompt_cache_disk_bytes_total", "Bytes of kept prompts that went to disk or came from it.", "direction")
	tKeptLost     = desc("terrace_prompt_cache_lost_total", "Entries of kept prompts that left RAM or the disk for want of room, that found no room, and that were not used since they were damaged.", "why")
	tStalls       = desc("terrace_stalls_total", "Times that requests made no progress for as long as --stall-report says.")
	tGrammars     = desc("terrace_grammar_bytes", "Bytes of compiled grammars that are kept.")
	tBodies       = desc("terrace_request_body_bytes", "Bytes of request bodies that are held.")
)

// collector makes metrics of the counters of engine, scheduler and server. It is used under scrape.mu.
type collector struct{ s *Server }

// Describe implements prometheus.Collector: it tells nothing, because to collect for it would count as a scrape.
func (k *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (k *collector) Collect(ch chan<- prometheus.Metric) {
	m := k.s.model.Load()
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	requests, bodies := k.s.gate.load()
	gauge(tQueue, float64(requests))
	gauge(tBodies, float64(bodies))
	gauge(tGrammars, float64(m.limits.bytes()))
	n, last := m.Scheduler.Counters(), k.s.scrape.last
	k.s.scrape.last = n
	count(mPrompt, float64(n.PromptTokens))
	count(mPromptCached, float64(n.CachedTokens))
	count(mPromptSeconds, n.PromptTime.Seconds())
	count(mPredicted, float64(n.PredictedTokens))
	count(mPredSeconds, n.PredictedTime.Seconds())
	count(mDecodes, float64(n.Decodes))
	count(mLongest, float64(n.Longest))
	gauge(mPromptRate, ratio(float64(n.PromptTokens-last.PromptTokens), (n.PromptTime-last.PromptTime).Seconds()))
	gauge(mPredRate, ratio(float64(n.PredictedTokens-last.PredictedTokens), (n.PredictedTime-last.PredictedTime).Seconds()))
	gauge(mProcessing, float64(n.Processing))
	gauge(mDeferred, float64(n.Deferred))
	gauge(mBusySlots, ratio(float64(n.BusySlots), float64(n.Decodes)))
	for _, d := range []*prometheus.Desc{mDrafts, mDraftTokens, mAccepted} {
		count(d, 0) // there is no speculation
	}
	count(tStalls, float64(m.Engine.Stalls().Total))
	gauge(tWidth, float64(n.Width))
	gauge(tPages, float64(n.Pages), "all")
	gauge(tPages, float64(n.PagesTaken), "taken")
	count(tPostponed, float64(n.Postponed))
	if c := m.Scheduler.Cache(); c != nil {
		p := c.Stats()
		gauge(tKept, float64(p.RAM), "ram")
		gauge(tKept, float64(p.Disk), "disk")
		gauge(tKeptEntries, float64(p.Entries))
		count(tKeptDisk, float64(p.Written), "written")
		count(tKeptDisk, float64(p.Loaded), "read")
		count(tKeptLost, float64(p.Evicted), "evicted")
		count(tKeptLost, float64(p.Deleted), "deleted")
		count(tKeptLost, float64(p.Refused), "refused")
		count(tKeptLost, float64(p.Discarded), "discarded")
		count(tKeptLost, float64(p.Damaged), "damaged")
	}
	t := m.Engine.Tiers()
	k.collectTiers(&t, count, gauge)
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

func (k *collector) collectTiers(t *engine.Tiers, count, gauge func(*prometheus.Desc, float64, ...string)) {
	b, c := &t.Budget, &t.Cache
	var experts, resident int
	var bytes, residentBytes int64
	for i, l := range t.Layers {
		experts, resident, bytes, residentBytes = experts+l.Experts, resident+l.Resident, bytes+l.Bytes, residentBytes+l.ResidentBytes
		layer := strconv.Itoa(i)
		if t.VRAM != nil {
			gauge(tLayerExperts, float64(t.VRAM.Kept[i]), layer, "vram")
			count(tLayerTouches, float64(t.VRAM.LayerHits[i]), layer, "vram")
		}
		gauge(tLayerExperts, float64(l.Resident), layer, "ram")
		gauge(tLayerExperts, float64(l.Experts-l.Resident), layer, "disk")
		count(tLayerTouches, float64(l.Hits), layer, "ram")
		count(tLayerTouches, float64(l.InFlight), layer, "in_flight")
		count(tLayerTouches, float64(l.Misses), layer, "disk")
	}
	if v := t.VRAM; v != nil {
		gauge(tExperts, float64(v.Experts), "vram")
		gauge(tExpertBytes, float64(v.ExpertBytes), "vram")
		count(tTouches, float64(v.Hits), "vram")
		count(tSwaps, float64(v.Swaps))
		count(tUploaded, float64(v.Uploaded))
		for _, x := range []struct {
			name string
			n    int64
		}{{"offer", v.Offer}, {"held", v.Held}, {"least", v.Least}, {"experts", v.SegmentBytes}} {
			gauge(tVRAM, float64(x.n), x.name)
		}
		lost := 0.0
		if v.Lost != "" {
			lost = 1
		}
		gauge(tLost, lost)
	}
	gauge(tExperts, float64(resident), "ram")
	gauge(tExperts, float64(experts-resident), "disk")
	gauge(tExpertBytes, float64(residentBytes), "ram")
	gauge(tExpertBytes, float64(bytes-residentBytes), "disk")
	count(tTouches, float64(c.Hits), "ram")
	count(tTouches, float64(c.InFlight), "in_flight")
	count(tTouches, float64(c.Misses), "disk")
	count(tEvictions, float64(c.Evictions))
	gauge(tLeases, float64(c.Leased))
	count(tNear, float64(c.NearMisses))
	count(tNearBytes, float64(c.NearBytes))
	for _, x := range []struct {
		name string
		n    int64
	}{{"start", t.Start}, {"promised", b.RAM}, {"now", b.Now}, {"least", b.Least()}} {
		gauge(tBudget, float64(x.n), x.name)
	}
	for _, x := range []struct {
		name string
		n    int64
	}{{"runtime", b.Runtime}, {"dense", b.Dense}, {"kv", b.KV}, {"table", b.Table}, {"work", b.Work}, {"prompt_cache", b.Cache}, {"predictor", b.Predictor}, {"arena", b.Arena}} {
		gauge(tMemory, float64(x.n), x.name)
	}
	gauge(tArena, float64(c.Bytes), "now")
	gauge(tArena, float64(c.Target), "target")
	gauge(tArena, float64(b.ArenaMost), "most")
	count(tResizes, float64(t.Governor.Shrinks), "shrink")
	count(tResizes, float64(t.Governor.Grows), "grow")
	count(tRead, float64(c.DemandBytes), "demand")
	count(tRead, float64(c.GuessBytes), "guess")
	count(tRead, float64(c.PreloadBytes), "preload")
	count(tBusy, c.DiskBusy.Seconds())
	count(tBlocked, c.Blocked.Seconds())
	count(tOverlapped, c.Overlapped.Seconds())
	count(tReadErrors, float64(c.ReadErrors))
	read, busy := float64(c.DemandBytes+c.GuessBytes+c.PreloadBytes), c.DiskBusy.Seconds()
	d := &k.s.scrape.disk
	gauge(tDiskRate, ratio(read-d.bytes, busy-d.busy))
	d.bytes, d.busy = read, busy
	for _, x := range []struct {
		name     string
		n, bytes int64
	}{{"issued", c.Issued, c.IssuedBytes}, {"used", c.Used, c.UsedBytes}, {"late", c.Late, c.LateBytes}, {"wasted", c.Wasted, c.WastedBytes}, {"cancelled", c.Cancelled, c.CancelledBytes}} {
		count(tGuesses, float64(x.n), x.name)
		count(tGuessBytes, float64(x.bytes), x.name)
	}
	gauge(tLookahead, float64(t.Lookahead))
	for _, code := range []engine.LimitCode{engine.LimitIdle, engine.LimitDisk, engine.LimitMemory, engine.LimitCompute, engine.LimitProcessor} {
		v := 0.0
		if t.Limit.Code == code {
			v = 1
		}
		gauge(tBound, v, string(code))
	}
	gauge(tBoundMS, t.Limit.Terms.DiskMS, "disk")
	gauge(tBoundMS, t.Limit.Terms.MemoryMS, "memory")
	gauge(tBoundMS, t.Limit.Terms.ComputeMS, "compute")
	gauge(tWaiting, t.Limit.Waiting)
}
