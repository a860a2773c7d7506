package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func benchCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure: decode, prefill, peer, predictor",
		Subcommands: []*cli.Command{speedCommand(e, "decode", "tokens a second of single decode steps, beside the machine's bound", 0, 64),
			speedCommand(e, "prefill", "tokens a second of a prompt", 512, 0), peerCommand(e), {
				Name:  "predictor",
				Usage: "how many experts are guessed right, one and two layers ahead, over a routing trace's tokens",
				Flags: append(modelFlags(),
					&cli.StringFlag{Name: "trace", Usage: "routing trace `FILE` (.jsonl, .jsonl.gz)"},
					&cli.IntFlag{Name: "limit", Usage: "use the first `N` tokens (0: all)"},
					&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
				Action: func(c *cli.Context) error { return runBenchPredictor(c, e) },
			}},
	}
}

func runBenchPredictor(c *cli.Context, e env) error {
	if c.String("trace") == "" {
		return usagef("give the routing trace: --trace FILE")
	}
	if n := c.Int("limit"); n < 0 {
		return usagef("--limit is %d, want at least 0", n)
	}
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	rs, err := bench.Predictor(c.Context, bench.PredictorConfig{Engine: o, Trace: c.String("trace"), Tokens: c.Int("limit")})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, rs)
	}
	r := rs[0]
	fmt.Fprintf(e.out, "%d tokens, %d of %d experts with a slot, store %s; the trace's experts were chosen here too: %.2f %%\n", r.Tokens, r.Slots, r.Total, r.Store, 100*r.Agreement)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "lookahead\tright n+1\tright n+2\tresident\tin flight\ttogether\tabsent\tMB read\ttokens/s\t")
	for _, r := range rs {
		fmt.Fprintf(w, "%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f\t%.1f\t\n", r.Depth, r.Recall1, r.Recall2, r.Resident, r.InFlight, r.Resident+r.InFlight, r.Absent,
			float64(r.Detail.BytesRead)/1e6, float64(r.Tokens)/r.Detail.PredictedMS*1e3)
	}
	return w.Flush()
}
