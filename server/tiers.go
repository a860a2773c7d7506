package server

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"terrace/engine"
	"terrace/tiers"
)

// wireRoutes are the other dialects', the gap filler's, the vectors' and Terrace's own routes.
func (s *Server) wireRoutes() {
	s.both("POST", "/responses", createResponse, inferRoute)
	s.both("POST", "/responses/input_tokens", responsesInputTokens)
	s.add("POST", "/v1/messages", messages, inferRoute, anthropic)
	s.add("POST", "/v1/messages/count_tokens", countMessageTokens, anthropic)
	s.add("POST", "/infill", infill, inferRoute)
	s.add("POST", "/v1/embeddings", openaiEmbeddings, inferRoute)
	s.add("POST", "/embeddings", embeddings, inferRoute)
	s.add("POST", "/embedding", embeddings, inferRoute)
	for _, p := range []string{"/rerank", "/reranking"} {
		s.both("POST", p, rerank, inferRoute)
	}
	s.add("GET", "/metrics", metrics)
	s.add("GET", "/v1/tiers", showTiers)
	s.add("GET", "/v1/tiers/stream", streamTiers)
	s.add("POST", "/v1/tiers/budget", setBudget, steerRoute)
	s.add("GET", "/v1/plan", showPlan)
}

// tiersSchema is the version of what /v1/tiers and its relatives answer: docs/api-tiers.md.
const tiersSchema = 1

func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// vramOf is f of the graphics card's figures, null where there is none.
func vramOf[T any](v *engine.VRAM, f func(v *engine.VRAM) T) any {
	if v == nil {
		return nil
	}
	return f(v)
}

// vramJSON is the tier in the card's memory.
func vramJSON(v *engine.VRAM) map[string]any {
	m := map[string]any{
		"device": v.Device, "layers": v.Layers, "unified": v.Unified, "experts": v.Experts, "bytes": v.ExpertBytes, "segments": v.Segments,
		"segment_bytes": v.SegmentBytes, "target_bytes": v.Target, "held_bytes": v.Held, "offer_bytes": v.Offer, "swaps": v.Swaps, "shrinks": v.Shrinks,
		"uploaded_bytes": v.Uploaded, "copied_experts": v.Copied, "lost": nil,
	}
	if v.Lost != "" {
		m["lost"] = v.Lost
	}
	return m
}

// showTiers answers GET /v1/tiers.
func showTiers(c *call) error {
	detail := c.r.URL.Query().Get("detail")
	if detail != "" && detail != "experts" {
		return invalid("detail is %.40q, want experts", detail)
	}
	t := c.m.Engine.Tiers()
	v := c.tiersJSON(&t)
	if detail == "experts" {
		v["experts"] = expertsJSON(c.m.Engine, &t)
	}
	return c.json(v)
}

func (c *call) tiersJSON(t *engine.Tiers) map[string]any {
	n, r, q := &t.Cache, &t.Recent, c.m.Scheduler.Counters()
	layers := make([]any, len(t.Layers))
	var experts, all int64
	for i, l := range t.Layers {
		experts += int64(l.Experts)
		all += l.Bytes
		kept := vramOf(t.VRAM, func(v *engine.VRAM) int { return v.Kept[i] })
		found := vramOf(t.VRAM, func(v *engine.VRAM) int64 { return v.LayerHits[i] })
		hits, touches := l.Hits, l.Touches
		if t.VRAM != nil {
			hits, touches = hits+t.VRAM.LayerHits[i], touches+t.VRAM.LayerHits[i]
		}
		layers[i] = map[string]any{
			"layer": i, "experts": l.Experts, "vram": kept, "ram": l.Resident, "loading": l.Loading, "pinned": l.Pinned, "bytes": l.Bytes,
			"ram_bytes": l.ResidentBytes, "touches": touches, "hits_vram": found, "hits_ram": l.Hits, "hits_in_flight": l.InFlight,
			"misses": l.Misses, "hit_rate": share(hits, touches),
		}
	}
	return map[string]any{
		"object": "terrace.tiers", "schema": tiersSchema, "model": c.m.Alias, "uptime_ms": time.Since(c.s.born).Milliseconds(),
		"tiers": map[string]any{
			"vram": vramOf(t.VRAM, vramJSON),
			"ram": map[string]any{
				"experts": n.Resident, "pinned": n.Pinned, "slots": n.Slots, "slot_bytes": n.Bytes, "target_bytes": n.Target, "most_bytes": t.Budget.ArenaMost,
			},
			"disk": map[string]any{"experts": experts, "bytes": all},
		},
		"hits":   hitsJSON(n, t.VRAM),
		"layers": layers,
		"recent": map[string]any{
			"ended_ms": r.Ended.Milliseconds(), "busy_ms": ms(r.Busy), "passes": r.Passes, "tokens": r.Rows, "hits": hitsJSON(&r.Cache, nil),
			"bytes_read": r.Cache.DemandBytes + r.Cache.GuessBytes + r.Cache.PreloadBytes, "disk_busy_ms": ms(r.Cache.DiskBusy),
			"blocked_ms": ms(r.Cache.Blocked), "disk_bytes_per_second": r.Cache.BytesPerSecond(),
		},
		"disk": map[string]any{
			"store": n.Store, "bytes_read": map[string]any{"demand": n.DemandBytes, "guess": n.GuessBytes, "preload": n.PreloadBytes},
			"busy_ms": ms(n.DiskBusy), "blocked_ms": ms(n.Blocked), "overlapped_ms": ms(n.Overlapped), "bytes_per_second": n.BytesPerSecond(),
			"read_errors": n.ReadErrors, "mirror_bytes": n.MirrorBytes, "mirror_errors": n.MirrorErrors,
		},
		"prefetch": map[string]any{
			"predictor": t.Predictor, "predictor_ignored": t.Ignored, "lookahead": t.Lookahead, "auto": t.Auto,
			"experts": map[string]int64{"issued": n.Issued, "used": n.Used, "late": n.Late, "wasted": n.Wasted, "cancelled": n.Cancelled},
			"bytes":   map[string]int64{"issued": n.IssuedBytes, "used": n.UsedBytes, "late": n.LateBytes, "wasted": n.WastedBytes, "cancelled": n.CancelledBytes},
		},
		"batching": map[string]any{
			"slots": c.m.Slots, "processing": q.Processing, "deferred": q.Deferred, "width": q.Width, "width_reason": q.WidthReason,
		},
		"budget":      budgetJSON(t),
		"limit":       limitJSON(&t.Limit),
		"one_more_gb": moreJSON(t),
	}
}

func hitsJSON(n *tiers.Stats, v *engine.VRAM) map[string]any {
	found := int64(0)
	if v != nil {
		found = v.Hits
	}
	return map[string]any{
		"touches": n.Touches + found, "vram": vramOf(v, func(v *engine.VRAM) int64 { return v.Hits }), "ram": n.Hits, "in_flight": n.InFlight, "misses": n.Misses, "evictions": n.Evictions, "hit_rate": share(n.Hits+found, n.Touches+found),
	}
}

func budgetJSON(t *engine.Tiers) map[string]any {
	b := &t.Budget
	limited := ""
	if b.Now < b.RAM {
		limited = t.Governor.Reason
	}
	return map[string]any{
		"ram": b.RAM, "ram_now": b.Now, "ram_start": t.Start, "ram_least": b.Least(), "ram_full": b.Full(), "limited_by": limited,
		"vram": vramOf(t.VRAM, func(v *engine.VRAM) map[string]int64 {
			return map[string]int64{"budget": v.Budget, "held": v.Held, "offer": v.Offer, "least": v.Least, "full": v.Full}
		}),
		"parts": map[string]int64{
			"runtime": b.Runtime, "dense": b.Dense, "kv": b.KV, "table": b.Table, "work": b.Work, "prompt_cache": b.Cache, "predictor": b.Predictor, "arena": b.Arena,
		},
		"shrinks": t.Governor.Shrinks, "grows": t.Governor.Grows,
	}
}

func limitJSON(l *engine.Limit) map[string]any {
	return map[string]any{
		"code": l.Code, "words": l.Words, "waiting": l.Waiting,
		"terms": map[string]any{"disk_ms": l.Terms.DiskMS, "memory_ms": l.Terms.MemoryMS, "compute_ms": l.Terms.ComputeMS, "gpu_ms": nil, "link_ms": nil},
	}
}

// moreFew is the number of touches below which the recent work says nothing about what more memory would bring.
const moreFew = 2000

// moreJSON is what one more GiB of RAM for experts would have bought: in the recent work, or since the start where that was
// little.
func moreJSON(t *engine.Tiers) map[string]any {
	n, span := &t.Recent.Cache, "recent"
	if n.Touches < moreFew {
		n, span = &t.Cache, "start"
	}
	read := n.MissBytes
	v := map[string]any{
		"bytes": n.NearRoom, "span": span, "touches": n.Touches, "misses": n.Misses, "misses_saved": n.NearMisses, "reads_saved": n.NearReads,
		"bytes_saved": n.NearBytes, "hit_rate": share(n.Hits, n.Touches), "hit_rate_then": share(n.Hits+n.NearMisses, n.Touches),
		"misses_saved_share": share(n.NearMisses, n.Misses),
	}
	switch {
	case len(t.Layers) == 0:
		v["words"] = "nothing: the model has no routed experts"
	case n.NearRoom <= 0:
		v["words"] = "nothing: there is a slot for every expert"
	case n.Touches == 0:
		v["words"] = "not known yet: nothing has run"
	case read == 0:
		v["words"] = "nothing: every expert that was used was in RAM"
	default:
		v["words"] = fmt.Sprintf("%.0f %% fewer experts to wait for: %.1f %% of those that were used would have been in RAM in place of %.1f %%",
			100*share(n.NearMisses, n.Misses), 100*share(n.Hits+n.NearMisses, n.Touches), 100*share(n.Hits, n.Touches))
	}
	return v
}

// expertsJSON is tier and heat of each expert, one byte each.
func expertsJSON(e *engine.Engine, t *engine.Tiers) map[string]any {
	places, uses := e.Experts()
	heat := make([]byte, len(uses))
	for i, u := range uses {
		heat[i] = byte(math.Round(255 * math.Sqrt(float64(min(max(u, 0), 1)))))
	}
	return map[string]any{
		"counts": counts(t.Layers), "tier": base64.StdEncoding.EncodeToString(places), "heat": base64.StdEncoding.EncodeToString(heat),
	}
}

// counts are the numbers of experts of the layers.
func counts(layers []tiers.LayerStats) []int {
	n := make([]int, len(layers))
	for i := range layers {
		n[i] = layers[i].Experts
	}
	return n
}

// streamTiers answers GET /v1/tiers/stream: at first where every expert is, then what changes.
func streamTiers(c *call) error {
	w, places, err := c.m.Engine.Watch()
	if errors.Is(err, engine.ErrWatchers) {
		return unavailable(5, "%s", err)
	}
	if errors.Is(err, engine.ErrNoExperts) {
		return unsupported("%s", err)
	}
	if err != nil {
		return err
	}
	defer w.Close()
	t := c.m.Engine.Tiers()
	e := c.stream(c.s.opt.Ping)
	start := time.Now()
	first := map[string]any{
		"object": "terrace.tiers.state", "schema": tiersSchema, "model": c.m.Alias, "counts": counts(t.Layers), "tier": base64.StdEncoding.EncodeToString(places),
	}
	if err := e.send("state", first); err != nil {
		return err
	}
	for {
		d, err := w.Next(c.ctx)
		if err != nil {
			return err
		}
		if err := e.send("delta", changeJSON(d, time.Since(start))); err != nil {
			return err
		}
	}
}

func changeJSON(d *engine.Change, age time.Duration) map[string]any {
	return map[string]any{
		"t_ms": age.Milliseconds(), "passes": d.Passes, "tokens": d.Rows, "routed": packWords(d.Routed), "moved": packWords(d.Moved), "missed": d.Missed,
	}
}

// packWords is base64 of the words' bytes, the lowest first.
func packWords(list []uint32) string {
	b := make([]byte, 0, 4*len(list))
	for _, x := range list {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// setBudget answers POST /v1/tiers/budget.
func setBudget(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	if !f.has("ram") && !f.has("vram") {
		f.fail("ram is not given, want bytes")
	}
	size := func(name string) int64 {
		n := f.number(name, 0)
		if f.err == nil && f.has(name) && !(n >= 1 && n < math.MaxInt64) {
			f.fail("%s is %g, want bytes", name, n)
		}
		return int64(n)
	}
	asked, card := size("ram"), size("vram")
	if f.err != nil {
		return f.err
	}
	e := c.m.Engine
	if f.has("vram") {
		if err := e.SetVRAM(card); err != nil {
			switch {
			case errors.Is(err, engine.ErrUnsupported):
				return unsupported("%s", err)
			case errors.Is(err, engine.ErrDoesNotFit):
				least := int64(0)
				if t := e.Tiers(); t.VRAM != nil {
					least = t.VRAM.Least
				}
				return &failure{code: http.StatusBadRequest, kind: "invalid_request_error", message: err.Error(), extra: map[string]any{"vram": card, "vram_least": least}}
			}
			return err
		}
		if !f.has("ram") {
			t := e.Tiers()
			v := budgetJSON(&t)
			v["object"], v["schema"], v["clamped"], v["over_bytes"] = "terrace.tiers.budget", tiersSchema, false, e.Over()
			return c.json(v)
		}
	}
	start := e.Tiers().Start
	if err := e.SetRAM(min(asked, start)); err != nil {
		if errors.Is(err, engine.ErrDoesNotFit) {
			b := e.Budget()
			return &failure{code: http.StatusBadRequest, kind: "invalid_request_error", message: err.Error(), extra: map[string]any{"ram": asked, "ram_least": b.Least()}}
		}
		return err
	}
	t := e.Tiers()
	v := budgetJSON(&t)
	v["object"], v["schema"], v["clamped"], v["over_bytes"] = "terrace.tiers.budget", tiersSchema, asked > start, e.Over()
	return c.json(v)
}
