package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func parallelCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "parallel",
		Usage: "tokens a second and reads of streams that decode together, beside one stream and beside a replay of the policy",
		Flags: append(modelFlags(),
			&cli.StringFlag{Name: "streams", Value: "1,2,4,8", Usage: "numbers of streams, `LIST` with commas"},
			&cli.IntFlag{Name: "prompt", Value: 64, Usage: "tokens of each stream's prompt, `N`"},
			&cli.IntFlag{Name: "same", Usage: "of which the first `N` are the same for all"},
			&cli.IntFlag{Name: "decode", Value: 64, Usage: "tokens that each stream decodes, `N`"},
			&cli.IntFlag{Name: "rounds", Value: 1, Usage: "`N` rounds, of which the median counts"},
			&cli.StringFlag{Name: "label", Usage: "`TEXT` about the conditions, such as the disk's rate"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
		Action: func(c *cli.Context) error { return runParallel(c, e) },
	}
}

func parallelConfig(c *cli.Context, e env) (cfg bench.ParallelConfig, err error) {
	cfg = bench.ParallelConfig{Prompt: c.Int("prompt"), Same: c.Int("same"), Decode: c.Int("decode"), Rounds: c.Int("rounds"), Label: c.String("label")}
	if cfg.Streams, err = intList("streams", c.String("streams")); err != nil {
		return cfg, err
	}
	list := c.String("expert-ram")
	if list == "" {
		return cfg, usagef("--expert-ram names the sizes of the arena to measure at, with commas")
	}
	for _, s := range strings.Split(list, ",") {
		b, err := parseExpertRAM(strings.TrimSpace(s))
		if err != nil {
			return cfg, err
		}
		cfg.Arenas = append(cfg.Arenas, b)
	}
	if err := c.Set("expert-ram", "min"); err != nil { // the list goes its own way
		return cfg, err
	}
	cfg.Engine, err = engineOptions(c, e)
	cfg.Progress = func(line string) { fmt.Fprintf(e.err, "%s\n", line) }
	return cfg, err
}

func runParallel(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	cfg, err := parallelConfig(c, e)
	if err != nil {
		return err
	}
	r, err := bench.Parallel(c.Context, cfg)
	if err != nil {
		return err
	}
	e.tell()
	if c.Bool("json") {
		return printJSON(e, r)
	}
	k := r.Conditions
	fmt.Fprintf(e.out, "%s\nmodel    %s: %d threads, KV %s, prompts of %d tokens, %d of them the same, %d decoded, lookahead %d, store %s, load %s\n", machineText(r.Machine, r.Commit), r.Model,
		k.Threads, k.KVType, k.PromptTokens, r.Same, k.DecodeTokens, k.Lookahead, r.Store, k.Load)
	if r.Label != "" {
		fmt.Fprintf(e.out, "label    %s\n", r.Label)
	}
	same := "the same beside others as alone"
	if !r.SameTokens {
		same = "NOT the same beside others as alone"
	}
	fmt.Fprintf(e.out, "answers  %s; medians of %d rounds\n", same, r.Rounds)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "slots\tstreams\ttokens/s\tover one\tMB a token\tmisses\treplay\tover replay\tprompt tokens\tfirst token ms\twidth\t")
	for _, x := range r.Cells {
		fmt.Fprintf(w, "%.0f %%\t%d\t%.2f\t%.2f\t%.2f\t%d\t%d\t%.3f\t%d\t%.0f\t%d\t\n", 100*float64(x.Slots)/float64(max(x.Total, 1)), x.Streams, x.Rate.Median, x.OverOne, x.BytesRead/1e6,
			x.Misses, x.Reads, x.OverReads, x.Prompts, x.TTFT, x.Width)
	}
	return w.Flush()
}
