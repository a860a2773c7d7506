package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func benchCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure: predictor",
		Subcommands: []*cli.Command{{
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
	eng, s, err := openSession(c, e)
	if err != nil {
		return err
	}
	defer eng.Close()
	defer s.Close()
	r, err := bench.Predictor(c.Context, eng, s, bench.PredictorConfig{Trace: c.String("trace"), Tokens: c.Int("limit")})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "%d tokens, %d of %d experts with a slot, store %s\n", r.Tokens, r.Slots, r.Total, r.Store)
	fmt.Fprintf(e.out, "the trace's experts were chosen here too: %.2f %%\n", 100*r.Agreement)
	fmt.Fprintf(e.out, "guessed right, %d layers ahead at most: next layer %.3f, second next %.3f\n", r.Depth, r.Recall1, r.Recall2)
	fmt.Fprintf(e.out, "when needed: resident %.3f, in flight %.3f, together %.3f; absent %.3f\n", r.Resident, r.InFlight, r.Resident+r.InFlight, r.Absent)
	return nil
}
