package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/plan"
)

func cacheCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "cache",
		Usage: "hit rates of the expert cache and of other policies over a routing trace, beside the optimum",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Usage: "routing trace `FILE` (.jsonl, .jsonl.gz); without it three invented routings"},
			&cli.IntFlag{Name: "limit", Usage: "use the first `N` tokens (0: all)"},
			&cli.IntFlag{Name: "experts", Usage: "experts of a layer, `N`, which a trace does not tell (0: the largest number in it, plus one)"},
			&cli.StringFlag{Name: "residency", Usage: "per cent of the experts that fit, `LIST` with commas", Value: "10,20,35,50"},
			&cli.IntFlag{Name: "prompt", Usage: "read the first `N` tokens of each text as one batch, as a prompt is (0: none)"},
			&cli.BoolFlag{Name: "rivals", Usage: "policies of the literature too, and the own one without its parts"},
			&cli.StringFlag{Name: "curve", Usage: "write the reuse curve of the trace to `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error { return runBenchCache(c, e) },
	}
}

func cacheConfig(c *cli.Context) (cfg bench.CacheConfig, err error) {
	cfg.Rivals = c.Bool("rivals")
	for _, name := range []string{"limit", "experts", "prompt"} {
		if n := c.Int(name); n < 0 {
			return cfg, usagef("--%s is %d, want at least 0", name, n)
		}
	}
	for _, f := range strings.Split(c.String("residency"), ",") {
		x, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(f), "%"), 64)
		if err != nil || !(x > 0 && x <= 100) {
			return cfg, usagef("--residency: %q is no number of per cent above 0 and at most 100", f)
		}
		cfg.Shares = append(cfg.Shares, x/100)
	}
	if path := c.String("trace"); path != "" {
		r, err := bench.ReadRouting(path, c.Int("limit"), c.Int("experts"))
		if err != nil {
			return cfg, err
		}
		cfg.Routings = []*bench.Routing{r}
	} else {
		if c.Int("limit") > 0 || c.Int("experts") > 0 || c.String("curve") != "" {
			return cfg, usagef("--limit, --experts and --curve belong to --trace FILE")
		}
		for _, x := range bench.Invented() {
			cfg.Routings = append(cfg.Routings, bench.MakeRouting(x))
		}
	}
	for i, r := range cfg.Routings {
		cfg.Routings[i] = r.WithPrompts(c.Int("prompt"))
	}
	return cfg, nil
}

func runBenchCache(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	cfg, err := cacheConfig(c)
	if err != nil {
		return err
	}
	if path := c.String("curve"); path != "" {
		if err := writeCurve(path, cfg.Routings[0]); err != nil {
			return err
		}
	}
	r, err := bench.Cache(c.Context, cfg)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "%s\nslots are the share of all experts, rounded down; nothing is resident at first\n", machineText(r.Machine, r.Commit))
	for _, x := range r.Routings {
		fmt.Fprintf(e.out, "\n%s: %d tokens, %d layers of %d experts, %d used by a token\n", x.Name, x.Tokens, x.Layers, x.Experts, x.TopK)
		w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
		fmt.Fprint(w, "share of touches that need no read, at")
		for i, s := range r.Conditions.Shares {
			fmt.Fprintf(w, "\t%.4g %% (%d)", 100*s, x.Slots[i])
		}
		fmt.Fprintln(w)
		line := func(name string, hits []float64) {
			fmt.Fprint(w, name)
			for _, h := range hits {
				fmt.Fprintf(w, "\t%.3f", h)
			}
			fmt.Fprintln(w)
		}
		for _, p := range x.Rows {
			name := p.Policy
			if p.Ships {
				name += " (ships)"
			}
			line(name, p.HitRate)
		}
		for _, g := range x.Gains {
			name := fmt.Sprintf("reuse, %d layers ahead known and protected", g.Ahead)
			if g.Reads {
				name = fmt.Sprintf("reuse, %d layers ahead known and read early", g.Ahead)
			}
			line(name, g.HitRate)
		}
		fmt.Fprintln(w, "a token's experts of a layer not held together:")
		for _, p := range x.Loose {
			line("  "+p.Policy, p.HitRate)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// writeCurve measures the reuse curve of a routing and writes it.
func writeCurve(path string, r *bench.Routing) error {
	m, err := plan.NewCurveMeter(r.Name, r.Layers, r.Experts, r.TopK, nil)
	if err != nil {
		return err
	}
	for _, p := range r.Passes {
		m.Pass(p)
	}
	curve, err := m.Curve()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(curve, "", "  ")
	if err != nil {
		return err
	}
	return replaceResult(path, append(b, '\n'))
}
