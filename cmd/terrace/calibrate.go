package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func calibrateCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "calibrate",
		Usage: "measure this machine for plans: memory, kernels, the disk, what the engine adds (20 to 60 s); with --predictor or --reuse: what a model can be measured for",
		Flags: append(modelFlags(),
			&cli.StringFlag{Name: "dir", Usage: "folder on the disk to be measured, `DIR`: a file of some 900 MB is made there and removed (default: the model's, where -m or TERRACE_MODEL names one, else the cache's)"},
			&cli.DurationFlag{Name: "disk-time", Value: 8 * time.Second, Usage: "measure the disk for `TIME`"},
			&cli.BoolFlag{Name: "predictor", Usage: "fit the predictor of experts to your texts and keep it, if it guesses better, beside the heat profile"},
			&cli.BoolFlag{Name: "reuse", Usage: "measure how the model uses its experts again, from which plans tell hit rates"},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "text or .jsonl `FILE` like what the model will read and write (default: texts that the model writes now, which takes longer)"},
			&cli.IntFlag{Name: "tokens", Usage: "use `N` tokens at most (0: 32768 of a file, 8192 that the model writes)"},
			&cli.Uint64Flag{Name: "seed", Usage: "of what the model writes", Value: 1},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
		Action: func(c *cli.Context) error { return runCalibrate(c, e) },
	}
}

func runCalibrate(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	switch {
	case c.Bool("predictor") && c.Bool("reuse"):
		return usagef("--predictor and --reuse are measured one after the other: give one")
	case c.Bool("reuse"):
		return runReuse(c, e)
	case !c.Bool("predictor"):
		return runRates(c, e)
	}
	if n := c.Int("tokens"); n < 0 {
		return usagef("--tokens is %d, want at least 0", n)
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	cfg := bench.CalibrateConfig{Engine: o, Tokens: c.Int("tokens"), Seed: c.Uint64("seed"), Progress: func(line string) { fmt.Fprintln(e.err, line) }}
	if cfg.Dir, err = needCacheDir(e); err != nil {
		return err
	}
	if path := c.String("file"); path != "" {
		if cfg.Texts, err = bench.ReadTexts(path); err != nil {
			return err
		}
	} else if c.IsSet("file") {
		return usagef("--file is empty, want a text or .jsonl file")
	} else {
		fmt.Fprintln(e.err, "no --file: the model writes the texts itself")
	}
	r, err := bench.Calibrate(c.Context, cfg)
	if err != nil {
		return err
	}
	e.tell()
	if c.Bool("json") {
		return printJSON(e, r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "fitted on %d tokens of texts (%s) in %.0f s, judged on %d others: share of the true %d experts in %d / %d / %d guesses\n", r.FitTokens, r.Source, r.Seconds, r.Tokens, r.TopK, r.TopK, r.TopK+r.TopK/2, 2*r.TopK)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tone layer ahead\ttwo layers ahead\tcalibration error")
	for _, x := range r.Rows {
		fmt.Fprintf(w, "%s\t%.3f / %.3f / %.3f\t%.3f / %.3f / %.3f\t%.4f, %.4f\n", x.Method, x.Ahead1[0], x.Ahead1[1], x.Ahead1[2], x.Ahead2[0], x.Ahead2[1], x.Ahead2[2], x.ECE[0], x.ECE[1])
	}
	w.Flush()
	if r.Saved {
		fmt.Fprintf(&b, "kept: %s, %s\n", oneLine(r.Path), bytesText(r.Bytes))
	} else {
		fmt.Fprintln(&b, "not kept: the fitted predictor guesses no better than the routers do; more or other texts may help")
	}
	_, err = fmt.Fprint(e.out, b.String())
	return err
}
