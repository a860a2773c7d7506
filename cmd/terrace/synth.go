package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func synthCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "synth",
		Usage: "write a file of the geometry of Qwen3.8-Flash-Next with random weights and a sparse n-gram table",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "the new `FILE`"},
			&cli.IntFlag{Name: "layers", Usage: "layers, `N` of 48", Value: 12},
			&cli.IntFlag{Name: "experts", Usage: "experts of a layer, `N` of 512", Value: 512},
			&cli.StringFlag{Name: "mix", Usage: "types of experts: q2_0, or iq4_nl (with Q4_K)", Value: "iq4_nl"},
			&cli.Int64Flag{Name: "rows", Usage: "rows of the table, `N` (0: all 320 million, 28.8 GB of which nearly all is a hole)"},
			&cli.IntFlag{Name: "tokens", Usage: "write the rows that the first `N` tokens of bench decode and prefill need, a page of the disk each", Value: 8192},
			&cli.IntFlag{Name: "vocab", Usage: "tokens, `N` of 248320", Value: 248320},
			&cli.Uint64Flag{Name: "seed", Usage: "seed of the weights, `N`", Value: 1},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error {
			if c.String("out") == "" || c.NArg() > 0 {
				return usagef("give the file to write with --out, and nothing else")
			}
			r, err := bench.Synth(bench.SynthConfig{Path: c.String("out"), Layers: c.Int("layers"), Experts: c.Int("experts"), Mix: c.String("mix"),
				Rows: c.Int64("rows"), Tokens: c.Int("tokens"), Vocab: c.Int("vocab"), Seed: c.Uint64("seed")})
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(e, r)
			}
			_, err = fmt.Fprintf(e.out, "%s: %s, of which a table of %s is a hole but for %d rows; experts %s of %s each, the rest %s\n", oneLine(r.Path), bytesText(r.Size),
				bytesText(r.Holes), r.TableRows, bytesText(r.Experts), bytesText(r.Expert), bytesText(r.Dense))
			return err
		},
	}
}
