package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

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

func orUnknown(name string) string {
	if name == "" {
		return "unnamed"
	}
	return name
}

// finishText says why an answer ended.
func finishText(f engine.Finish) string {
	switch f {
	case engine.FinishStop:
		return "the model ended it"
	case engine.FinishLength:
		return "cut at its length"
	}
	return string(f)
}

// spare names what the budget leaves unused.
func spare(st *engine.Stats) string {
	n := st.RAMBudget - st.DenseBytes - st.KVBytes - st.TableBytes - st.WorkBytes - st.CacheBytes - st.RuntimeBytes - st.ExpertBytes
	if n <= 0 {
		return ""
	}
	return " + unused " + bytesText(n)
}

// held says what memory pressure did to the budget.
func held(st *engine.Stats) string {
	switch {
	case st.BudgetNow < st.RAMBudget:
		return fmt.Sprintf("; held down to %s for now (%s; %d shrinks, %d grows)", bytesText(st.BudgetNow), st.Reason, st.Shrinks, st.Grows)
	case st.Shrinks > 0:
		return fmt.Sprintf("; %d shrinks, %d grows on the way", st.Shrinks, st.Grows)
	}
	return ""
}

// statsText prints a request's statistics for people.
func statsText(w io.Writer, st *engine.Stats) error {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("")
	p("model     %s (%s, %s), %s, KV %s", orUnknown(oneLine(st.Model)), oneLine(st.Arch), st.Quant, st.Backend, st.KVType)
	cached := ""
	if st.PromptCached > 0 {
		cached = fmt.Sprintf(" (%d kept from before)", st.PromptCached)
	}
	p("speed     prompt %d tokens%s at %.1f/s, answer %d tokens at %.1f/s (%s), first token after %.1f ms, loaded in %.0f ms",
		st.PromptTokens, cached, st.PromptPerSecond, st.PredictedTokens, st.PredictedPerSecond, finishText(st.FinishReason), st.TTFTMS, st.LoadMS)
	dense := "dense weights " + bytesText(st.DenseBytes)
	if st.Dense == "mmap" {
		dense = "dense weights (" + bytesText(st.DenseBytes) + ") in the page cache"
	}
	if st.TableBytes > 0 {
		dense += " + table " + bytesText(st.TableBytes)
	}
	p("memory    budget %s = %s + context %s + work space %s + run time %s + expert arena %s%s; peak so far %s%s", bytesText(st.RAMBudget),
		dense, bytesText(st.KVBytes), bytesText(st.WorkBytes), bytesText(st.RuntimeBytes), bytesText(st.ExpertBytes), spare(st), bytesText(st.PeakRSS), held(st))
	if t := st.Table; t != nil {
		p("table     %d rows needed, %s of them from RAM; %s read in %d reads", t.Rows, share(t.Hits, t.Rows), bytesText(t.Bytes), t.Reads)
	}
	if st.ExpertsTotal > 0 {
		p("experts   %d of %d have a slot in RAM (%s)", st.ExpertSlots, st.ExpertsTotal, share(int64(st.ExpertSlots), int64(st.ExpertsTotal)))
		p("tiers     %d experts needed: %s were in RAM, %s on their way, %s had to be asked for", st.Touches,
			share(st.HitsRAM, st.Touches), share(st.HitsInflight, st.Touches), share(st.Misses, st.Touches))
		p("disk      %s read by %s at %s/s; arithmetic waited %.1f ms, %.1f ms of reading were hidden behind it",
			bytesText(st.BytesRead), st.Store, bytesText(int64(st.DiskBytesPerSecond)), st.ReadWaitMS, st.OverlappedReadMS)
		if st.PreloadBytes > 0 {
			p("heat      %s of the hottest experts read before they were asked for (%d experts)", bytesText(st.PreloadBytes), st.PreloadExperts)
		}
		if st.MirrorBytes > 0 || st.MirrorErrors > 0 {
			p("mirror    %s of that came from the mirror, which failed in %d reads so far", bytesText(st.MirrorBytes), st.MirrorErrors)
		}
		f := st.Prefetch
		if f.Ignored != "" {
			p("predictor the fitted one is ignored: %s", f.Ignored)
		}
		if f.Depth == 0 && f.DisabledReason != "" {
			p("prefetch  off: %s", f.DisabledReason)
		} else {
			second := ""
			if f.Depth > 1 {
				second = fmt.Sprintf(", second next %.1f %%", 100*f.Recall2)
			}
			if f.DisabledReason != "" {
				second += "; " + f.DisabledReason
			}
			p("prefetch  %s, lookahead %d: %d early reads asked for: %d used (%d of them late), %d wasted, %d taken back; right guesses: next layer %.1f %%%s",
				f.Predictor, f.Depth, f.Issued, f.Used, f.Late, f.Wasted, f.Issued-f.Used-f.Wasted, 100*f.Recall1, second)
		}
	}
	if st.Bottleneck != "" {
		t := st.BoundTerms
		card := ""
		if t.GPUMS > 0 {
			card = fmt.Sprintf(", %.2f ms of the graphics card", t.GPUMS)
		}
		p("limit     %s: by this machine's rates a token needs %.2f ms of disk, %.2f ms of memory reads, %.2f ms of arithmetic%s; at best %.1f/s, reached %s",
			st.Bottleneck, t.DiskMS, t.MemoryMS, t.ComputeMS, card, st.BoundPerSecond, share(int64(1000*st.Efficiency), 1000))
	}
	if l := st.Loop; l != nil {
		p("loop      %d tokens repeated over %d tokens, from the answer's token %d on", l.Period, l.Tokens, l.At)
	}
	if st.LogitsSHA256 != "" {
		p("logits    sha256 %s", st.LogitsSHA256)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table is lines of aligned columns, the head first; colour tells a row's colour on a terminal that shows any, "" for none.
func table(e env, head []string, rows [][]string, colour func(row int) string) string {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush()
	var b strings.Builder
	for i, line := range strings.Split(strings.TrimRight(text.String(), "\n"), "\n") {
		line = strings.TrimRight(line, " ")
		code := "1"
		if i > 0 {
			code = colour(i - 1)
		}
		if e.colour && code != "" {
			line = "\x1b[" + code + "m" + line + "\x1b[0m"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
