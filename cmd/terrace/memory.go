package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func memoryCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "memory",
		Usage: "change the RAM budget at random while an answer is made: are its logits the same, is the promise kept",
		Flags: append(modelFlags(),
			&cli.IntFlag{Name: "changes", Usage: "`N` changes of the budget, between the smallest and --ram", Value: 200},
			&cli.IntFlag{Name: "prompt", Usage: "`N` tokens of the prompt", Value: 64},
			&cli.IntFlag{Name: "decode", Usage: "`N` tokens answered", Value: 64},
			&cli.Uint64Flag{Name: "seed", Usage: "of prompt and budgets", Value: 1},
			&cli.StringFlag{Name: "limit-file", Usage: "the limit `FILE` of this process's memory control group, which then follows the budget"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
		Action: func(c *cli.Context) error { return runBenchMemory(c, e) },
	}
}

// errOtherLogits is the failure of a run whose answer depended on its memory.
var errOtherLogits = errors.New("the logits changed with the RAM budget")

func runBenchMemory(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	for _, n := range []string{"changes", "prompt", "decode"} {
		if c.Int(n) < 1 {
			return usagef("--%s is %d, want at least 1", n, c.Int(n))
		}
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	r, err := bench.Memory(c.Context, bench.MemoryConfig{Engine: o, Prompt: c.Int("prompt"), Decode: c.Int("decode"), Changes: c.Int("changes"), Seed: c.Uint64("seed"),
		LimitFile: c.String("limit-file")})
	if err != nil {
		return err
	}
	e.tell()
	if c.Bool("json") {
		err = printJSON(e, r)
	} else {
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n%s\n", machineText(r.Machine, r.Commit), conditionsText(r.Model, r.Conditions))
		fmt.Fprintf(&b, "budget   changed %d times between %s and %s, %d answers meanwhile; given back within %.1f ms\n", r.Changes, bytesText(r.Least), bytesText(r.Most), r.Runs, r.SettleMS)
		fmt.Fprintf(&b, "logits   %s, with a fixed budget %s\n", r.Hash, r.HashFixed)
		fmt.Fprintf(&b, "speed    %.1f tokens/s, with a fixed budget %.1f\n", r.Rate, r.RateFixed)
		fmt.Fprintf(&b, "memory   at most %s held by the process, %s charged to its group; limit hits %d before, %d after; %s read back from swap\n",
			bytesText(r.PeakRSS), bytesText(r.GroupPeak), r.FailBefore, r.FailAfter, bytesText(r.SwapIn))
		if c.String("limit-file") != "" {
			fmt.Fprintf(&b, "limits   %d set, the lowest %s; %d refused by the kernel\n", r.LimitsSet, bytesText(r.LowestLimit), r.LimitsBusy)
		}
		_, err = fmt.Fprint(e.out, b.String())
	}
	if err == nil && !r.Same {
		err = errOtherLogits
	}
	return err
}
