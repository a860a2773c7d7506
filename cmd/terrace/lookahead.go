package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/engine"
)

// lookaheadFlags are those of `bench decode` with lists of settings.
func lookaheadFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "rounds", Value: 3, Usage: "with lists for --lookahead or --expert-ram: `N` rounds in which the settings take turns over the same cache and tokens"},
		&cli.IntFlag{Name: "warm", Value: 48, Usage: "with lists: `N` untimed steps after each change of the arena"},
		&cli.StringFlag{Name: "label", Usage: "with lists: `TEXT` about the conditions, such as the disk's rate"},
		&cli.StringFlag{Name: "svg", Usage: "with lists: draw the speeds into `FILE`"},
		&cli.StringFlag{Name: "merge", Usage: "measure nothing: table and plot of the JSON reports in `FILES` with commas"},
	}
}

// isLookaheads says that lists were given.
func isLookaheads(c *cli.Context) bool {
	return strings.Contains(c.String("lookahead"), ",") || strings.Contains(c.String("expert-ram"), ",") || c.IsSet("rounds") || c.IsSet("svg") || c.IsSet("merge")
}

// parseExpertRAM reads a size, a share or min.
func parseExpertRAM(s string) (b engine.ExpertBudget, err error) {
	switch {
	case s == "min":
		b.Min = true
	case strings.HasSuffix(s, "%"):
		p, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return b, usagef("--expert-ram is %q, want a share over 0%% and up to 100%%", s)
		}
		b.Percent = p
	default:
		if b.Bytes, err = parseSize(s); err != nil {
			return b, usagef("--expert-ram: %w", err)
		}
		if b.Bytes == 0 {
			return b, usagef("--expert-ram is 0, want a size, a share or min")
		}
	}
	return b, nil
}

// parseLookahead reads one setting.
func parseLookahead(s string) (int, error) {
	switch s {
	case "auto":
		return engine.LookaheadAuto, nil
	case "0", "1", "2":
		return int(s[0] - '0'), nil
	}
	return 0, usagef("--lookahead is %q, want auto, 0, 1 or 2", s)
}

func lookaheadConfig(c *cli.Context, e env) (cfg bench.LookaheadConfig, err error) {
	cfg = bench.LookaheadConfig{Decode: c.Int("decode"), Depth: c.Int("depth"), Rounds: c.Int("rounds"), Warm: c.Int("warm"), Refine: c.Bool("refine"), Label: c.String("label")}
	if c.IsSet("reps") {
		return cfg, usagef("--reps is for a single setting; lists have --rounds")
	}
	for _, s := range strings.Split(c.String("lookahead"), ",") {
		n, err := parseLookahead(strings.TrimSpace(s))
		if err != nil {
			return cfg, err
		}
		cfg.Lookahead = append(cfg.Lookahead, n)
	}
	for _, s := range strings.Split(c.String("expert-ram"), ",") {
		b, err := parseExpertRAM(strings.TrimSpace(s))
		if err != nil {
			return cfg, err
		}
		cfg.Arenas = append(cfg.Arenas, b)
	}
	for name, value := range map[string]string{"lookahead": "auto", "expert-ram": "min"} { // the lists go on their own way
		if err := c.Set(name, value); err != nil {
			return cfg, err
		}
	}
	cfg.Engine, err = engineOptions(c, e)
	cfg.Progress = func(line string) { fmt.Fprintf(e.err, "%s\n", line) }
	return cfg, err
}

func runLookaheads(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	var rs []*bench.LookaheadReport
	var failed error
	if list := c.String("merge"); list != "" {
		for _, path := range strings.Split(list, ",") {
			r, err := readLookaheads(strings.TrimSpace(path))
			if err != nil {
				return err
			}
			rs = append(rs, r)
		}
	} else {
		cfg, err := lookaheadConfig(c, e)
		if err != nil {
			return err
		}
		var r *bench.LookaheadReport
		err = profiled(c.String("cpuprofile"), func() error {
			r, err = bench.Lookaheads(c.Context, cfg)
			return err
		})
		if r == nil {
			return err
		}
		rs, failed = append(rs, r), err
		e.tell()
	}
	if path := c.String("svg"); path != "" {
		var panels []bench.Plot
		for _, r := range rs {
			panels = append(panels, r.Plot())
		}
		var b strings.Builder
		if err := bench.WriteSVG(&b, panels); err != nil {
			return err
		}
		if err := replaceResult(path, []byte(b.String())); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	if c.Bool("json") {
		if len(rs) == 1 {
			return errors.Join(printJSON(e, rs[0]), failed)
		}
		return errors.Join(printJSON(e, rs), failed)
	}
	for i, r := range rs {
		if i > 0 {
			fmt.Fprintln(e.out)
		}
		if err := lookaheadText(e.out, r); err != nil {
			return err
		}
	}
	return failed
}

func readLookaheads(path string) (*bench.LookaheadReport, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--merge: %w", err)
	}
	r := new(bench.LookaheadReport)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("--merge: %s: %w", path, err)
	}
	if len(r.Arenas) == 0 {
		return nil, fmt.Errorf("--merge: %s: no report of bench decode with a list of settings: it has 0 arenas", path)
	}
	return r, nil
}

func lookaheadText(to io.Writer, r *bench.LookaheadReport) error {
	k := r.Conditions
	fmt.Fprintf(to, "%s\nmodel    %s: %d threads, context %d, KV %s, %d steps behind %d tokens, store %s, predictor %s, load %s\n", machineText(r.Machine, r.Commit), r.Model, k.Threads, k.Context,
		k.KVType, k.DecodeTokens, k.Depth, r.Store, r.Predictor, k.Load)
	if r.Label != "" {
		fmt.Fprintf(to, "label    %s\n", r.Label)
	}
	same := "the same with every setting"
	if !r.SameLogits {
		same = "NOT the same with every setting"
	}
	fmt.Fprintf(to, "logits   %s; medians of %d rounds\n", same, r.Rounds)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "slots\tlookahead\ttokens/s (least to most)\tover 0\thidden\tused\tof ended\tread ms\twait ms\tother ms\tMB\tresident\tright n+1, n+2\tdepth")
	for _, a := range r.Arenas {
		for _, x := range a.Cells {
			fmt.Fprintf(w, "%.0f %%\t%s\t%.2f (%.2f to %.2f)\t%.3f\t%.2f\t%.3f\t%.3f\t%.1f\t%.1f\t%.1f\t%.1f\t%.3f\t%.3f, %.3f\t%d\n", 100*float64(a.Slots)/float64(max(a.Total, 1)), x.Setting,
				x.Rate.Median, x.Rate.Min, x.Rate.Max, x.OverOff.Median, x.Hidden.Median, x.Used, x.UsedEnded, x.ReadMS, x.WaitMS, x.RestMS, x.BytesRead/1e6, x.HitRate, x.Recall1, x.Recall2, x.Depth)
		}
	}
	return w.Flush()
}
