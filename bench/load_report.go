package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Text writes the report for people.
func (r *LoadReport) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "model    %s, %d slots of %d tokens\n", r.Model, r.Slots, r.Context)
	fmt.Fprintf(&b, "load     %d clients for %.0f s, %.0f %% of them leave; load average %s\n", r.Clients, r.Seconds, 100*r.Leave, r.Load)
	fmt.Fprintf(&b, "speed    %.1f tokens/s generated, %.1f tokens/s of prompts evaluated, %.0f %% of prompts cached; %d tasks postponed\n", r.PredictedPerSecond, r.PromptPerSecond, 100*r.CachedShare, r.Postponed)
	fmt.Fprintf(&b, "bad      %d requests: %d refused as they must be, %d broken off, %d answered wrongly\n", r.Bad.Requests, r.Bad.Refused, r.Bad.Broken, r.Bad.Wrong)
	fmt.Fprintf(&b, "end      idle after %.0f ms\n", r.Idle)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.rows(func(head bool, cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") })
	t.Flush()
	b.WriteByte('\n')
	r.held(func(head bool, cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") })
	t.Flush()
	fmt.Fprintf(&b, "growth   %+.2f MiB a minute beside prompt cache and experts over the second half, %+.2f MiB in it\n", r.SlopeMiB, r.GrownMiB)
	r.verdict(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the report as bench/results keeps it.
func (r *LoadReport) Markdown(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "`terrace serve %s`: %s, %d slots of %d tokens. %s, %d cores, commit %s, load average %s. %s\n\n", strings.Join(r.Server, " "), r.Model, r.Slots, r.Context, m.CPU, m.Cores,
		r.Commit, r.Load, r.Label)
	fmt.Fprintf(&b, "%d clients for %.0f s, %.0f %% of which leave at random moments. %.1f tokens/s generated in all, %.1f tokens/s of prompts evaluated, %.0f %% of the prompts' tokens cached, %d tasks postponed. "+
		"%d bad requests: %d refused as they must be, %d broken off by the client, %d answered wrongly. Idle %.0f ms after the last client.\n\n", r.Clients, r.Seconds, 100*r.Leave, r.PredictedPerSecond,
		r.PromptPerSecond, 100*r.CachedShare, r.Postponed, r.Bad.Requests, r.Bad.Refused, r.Bad.Broken, r.Bad.Wrong, r.Idle)
	line := func(head bool, cells ...string) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if head {
			b.WriteString(strings.Repeat("| --- ", len(cells)) + "|\n")
		}
	}
	r.rows(line)
	b.WriteByte('\n')
	r.held(line)
	fmt.Fprintf(&b, "\nOver the second half of the time, what is held in RAM beside prompt cache and experts changed by %+.2f MiB a minute, %+.2f MiB in all.\n", r.SlopeMiB, r.GrownMiB)
	r.verdict(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// rows is the table of requests.
func (r *LoadReport) rows(line func(head bool, cells ...string)) {
	line(true, "requests", "sent", "same answer", "wrong", "client left", "refused", "errors", "first token p50 ms", "p99 ms", "whole p50 ms", "p99 ms")
	for _, k := range append(r.Kinds[:len(r.Kinds):len(r.Kinds)], r.All) {
		n := func(v int) string { return fmt.Sprint(v) }
		ms := func(v float64) string {
			if v == 0 {
				return "-"
			}
			return fmt.Sprintf("%.0f", v)
		}
		line(false, k.Kind, n(k.Requests), n(k.Same), n(k.Wrong), n(k.Cancelled), n(k.Refused), n(k.Errors), ms(k.TTFT50), ms(k.TTFT99), ms(k.Whole50), ms(k.Whole99))
	}
}

// held is the table of what the server held.
func (r *LoadReport) held(line func(head bool, cells ...string)) {
	line(true, "server", "goroutines", "files", "RSS MiB", "prompt cache MiB", "Go heap MiB", "grammars MiB", "slots busy", "inside", "leases", "pages of context")
	row := func(name string, s *LoadSample) {
		mib := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
		line(false, name, fmt.Sprint(s.Goroutines), fmt.Sprint(s.Files), mib(s.RSS), mib(s.CacheRAM), mib(s.Heap), mib(s.Grammars), fmt.Sprint(s.Processing), fmt.Sprint(s.Inside), fmt.Sprint(s.Leases),
			fmt.Sprintf("%d of %d", s.Pages, s.PagesMost))
	}
	row("before", &r.Start)
	for _, i := range []int{len(r.Samples) / 4, len(r.Samples) / 2, 3 * len(r.Samples) / 4} {
		if i < len(r.Samples) {
			row(fmt.Sprintf("%.0f s", r.Samples[i].Seconds), &r.Samples[i])
		}
	}
	row("after", &r.End)
	if r.Emptied != nil {
		row("slots erased", r.Emptied)
	}
}

func (r *LoadReport) verdict(b *strings.Builder) {
	if len(r.Problems) == 0 {
		b.WriteString("Nothing was wrong or left behind.\n")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(b, "WRONG: %s\n", p)
	}
}
