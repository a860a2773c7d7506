package main

import (
	"fmt"
	"io"
	"strings"

	"terrace/engine"
)

// bytesText prints a size for people, in powers of 1000.
func bytesText(n int64) string {
	f, u := float64(n), []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for f >= 1000 && i < len(u)-1 {
		f /= 1000
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, u[i])
}

func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// statsText prints a request's statistics for people.
func statsText(w io.Writer, st *engine.Stats) error {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("")
	p("model     %s (%s, %s), %s on %d threads, KV %s", oneLine(st.Model), oneLine(st.Arch), st.Quant, st.Backend, st.Threads, st.KVType)
	p("speed     prompt %d tokens at %.1f/s, answer %d tokens at %.1f/s, first token after %.1f ms, loaded in %.0f ms",
		st.PromptTokens, st.PromptPerSecond, st.PredictedTokens, st.PredictedPerSecond, st.TTFTMS, st.LoadMS)
	p("memory    peak %s of %s: dense weights %s, context %s, expert arena %s", bytesText(st.PeakRSS), bytesText(st.RAMBudget),
		bytesText(st.DenseBytes), bytesText(st.KVBytes), bytesText(st.ExpertBytes))
	if st.ExpertsTotal > 0 {
		p("experts   %d of %d have a slot in RAM (%s)", st.ExpertSlots, st.ExpertsTotal, share(int64(st.ExpertSlots), int64(st.ExpertsTotal)))
		p("tiers     %d experts needed: %s were in RAM, %s on their way, %s had to be asked for; VRAM %d", st.Touches,
			share(st.HitsRAM, st.Touches), share(st.HitsInflight, st.Touches), share(st.Misses, st.Touches), st.HitsVRAM)
		p("disk      %s read by %s at %s/s; arithmetic waited %.1f ms, %.1f ms of reading were hidden behind it",
			bytesText(st.BytesRead), st.Store, bytesText(int64(st.DiskBytesPerSecond)), st.ReadWaitMS, st.OverlappedReadMS)
		f := st.Prefetch
		if f.DisabledReason != "" {
			p("prefetch  off: %s", f.DisabledReason)
		} else {
			p("prefetch  %d layers ahead: %d experts read early, %d used, %d late, %d wasted; right guesses: next layer %.1f %%, second next %.1f %%",
				f.Depth, f.Issued, f.Used, f.Late, f.Wasted, 100*f.Recall1, 100*f.Recall2)
		}
	}
	if st.Bottleneck != "" {
		t := st.BoundTerms
		p("limit     %s: a token needs %.2f ms of disk, %.2f ms of memory reads, %.2f ms of arithmetic; at best %.1f/s, reached %s",
			st.Bottleneck, t.DiskMS, t.MemoryMS, t.ComputeMS, st.BoundPerSecond, share(int64(1000*st.Efficiency), 1000))
	}
	if st.LogitsSHA256 != "" {
		p("logits    sha256 %s", st.LogitsSHA256)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
