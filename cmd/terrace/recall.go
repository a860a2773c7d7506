package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func runBenchRecall(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	if c.String("trace") != "" {
		return usagef("give --trace or --texts, not both")
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	texts, err := bench.ReadTexts(c.String("texts"))
	if err != nil {
		return err
	}
	r, err := bench.Recall(c.Context, bench.RecallConfig{Engine: o, Texts: texts, FitShare: c.Float64("fit-share")})
	if err != nil {
		return err
	}
	e.tell()
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "fitted on %d texts, %d tokens; judged on %d texts, %d tokens; top %d\n", r.FitTexts, r.FitTokens, r.Texts, r.Tokens, r.TopK)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	k := r.TopK
	fmt.Fprintf(w, "signal\tmethod\tn+1: %d / %d / %d\tn+2\tcalibration error n+1, n+2\n", k, k+k/2, 2*k)
	for _, x := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%.3f / %.3f / %.3f\t%.3f / %.3f / %.3f\t%.4f, %.4f\n", x.Signal, x.Method, x.Ahead1[0], x.Ahead1[1], x.Ahead1[2],
			x.Ahead2[0], x.Ahead2[1], x.Ahead2[2], x.ECE[0], x.ECE[1])
	}
	return w.Flush()
}
