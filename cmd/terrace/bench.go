package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/gguf"
	"terrace/kernels"
)

func benchCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure: decode, prefill, disk, memory, peer, parallel, load, cache, predictor, kernels, plan; synth makes a file to measure with",
		Subcommands: []*cli.Command{speedCommand(e, "decode", "tokens a second of single decode steps, beside the machine's bound", 0, 64),
			speedCommand(e, "prefill", "tokens a second of a prompt", 512, 0), diskCommand(e), memoryCommand(e), peerCommand(e), parallelCommand(e), loadCommand(e), cacheCommand(e), kernelsCommand(e), synthCommand(e), benchPlanCommand(e), {
				Name:  "predictor",
				Usage: "how many experts are guessed right, one and two layers ahead, over a routing trace's tokens",
				Flags: append(modelFlags(),
					&cli.StringFlag{Name: "trace", Usage: "routing trace `FILE` (.jsonl, .jsonl.gz)"},
					&cli.StringFlag{Name: "texts", Aliases: []string{"f"}, Usage: "instead of a trace: fit and judge predictors on the texts of `FILE` (.jsonl)"},
					&cli.Float64Flag{Name: "fit-share", Usage: "share of the texts to fit on", Value: 0.6},
					&cli.IntFlag{Name: "limit", Usage: "use the first `N` tokens (0: all)"},
					&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
				Action: func(c *cli.Context) error { return runBenchPredictor(c, e) },
			}},
	}
}

func runBenchPredictor(c *cli.Context, e env) error {
	if c.String("texts") != "" {
		return runBenchRecall(c, e)
	}
	if c.String("trace") == "" {
		return usagef("give the routing trace: --trace FILE, or texts: --texts FILE")
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
	e.tell()
	if c.Bool("json") {
		return printJSON(e, rs)
	}
	r := rs[0]
	fmt.Fprintf(e.out, "%d tokens, %d of %d experts with a slot, store %s; the trace's experts were chosen here too: %.2f %%\n", r.Tokens, r.Slots, r.Total, r.Store, 100*r.Agreement)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "predictor\tlookahead\tright n+1\tright n+2\tresident\tin flight\ttogether\tabsent\tMB read\ttokens/s\t")
	for _, r := range rs {
		fmt.Fprintf(w, "%s\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.1f\t%.1f\t\n", r.Predictor, r.Depth, r.Recall1, r.Recall2, r.Resident, r.InFlight, r.Resident+r.InFlight, r.Absent,
			float64(r.Detail.BytesRead)/1e6, float64(r.Tokens)/r.Detail.PredictedMS*1e3)
	}
	return w.Flush()
}

func kernelsCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "kernels",
		Usage: "speed of matrix products by weight type, beside a loop that only reads",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "types", Usage: "weight types, `LIST` with commas (default: all)"},
			&cli.IntFlag{Name: "rows", Usage: "rows of a matrix, `N`", Value: 768},
			&cli.StringFlag{Name: "cols", Usage: "elements of a row, `LIST` with commas", Value: "2048"},
			&cli.StringFlag{Name: "batch", Usage: "columns of products beside the single one, `LIST` with commas", Value: "8,32,128,512"},
			&cli.StringFlag{Name: "level", Usage: "instructions: auto, generic, avx2 or avx512", Value: "auto"},
			&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, Usage: "`N` threads, each with weights of its own", Value: 1},
			&cli.StringFlag{Name: "size", Usage: "weights of a thread, `SIZE`, far more than the caches", Value: "256M"},
			&cli.IntFlag{Name: "repeats", Usage: "repeats, `N`, of which the median counts", Value: 9},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error { return runBenchKernels(c, e) },
	}
}

// intList reads numbers between commas; none from an empty string.
func intList(name, s string) (list []int, err error) {
	for _, f := range strings.Split(s, ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, usagef("--%s: %q is no positive number", name, f)
		}
		list = append(list, n)
	}
	return list, nil
}

// typeNamed finds a weight type by its name, any case.
func typeNamed(name string) (gguf.Type, error) {
	for t := gguf.Type(0); t < 64; t++ {
		if _, ok := kernels.KindOf(t); ok && strings.EqualFold(t.String(), name) {
			return t, nil
		}
	}
	return 0, usagef("--types: %q is no weight type", name)
}

func kernelsConfig(c *cli.Context) (cfg bench.KernelsConfig, err error) {
	cfg = bench.KernelsConfig{Rows: c.Int("rows"), Threads: c.Int("threads"), Repeats: c.Int("repeats")}
	for _, name := range []string{"rows", "threads", "repeats"} {
		if c.Int(name) < 1 {
			return cfg, usagef("--%s: %d, want at least 1", name, c.Int(name))
		}
	}
	for _, f := range strings.Split(c.String("types"), ",") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		t, err := typeNamed(f)
		if err != nil {
			return cfg, err
		}
		cfg.Types = append(cfg.Types, t)
	}
	if cfg.Cols, err = intList("cols", c.String("cols")); err != nil {
		return cfg, err
	}
	if cfg.Batches, err = intList("batch", c.String("batch")); err != nil {
		return cfg, err
	}
	size, err := parseSize(c.String("size"))
	if err != nil {
		return cfg, usagef("--size: %w", err)
	}
	cfg.Bytes = int(size)
	switch name := c.String("level"); name {
	case "auto":
	case "generic", "avx2", "avx512":
		l := map[string]kernels.Level{"generic": kernels.LevelGeneric, "avx2": kernels.LevelAVX2, "avx512": kernels.LevelAVX512}[name]
		cfg.Level = &l
	default:
		return cfg, usagef("--level %q: want auto, generic, avx2 or avx512", name)
	}
	return cfg, nil
}

func runBenchKernels(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	cfg, err := kernelsConfig(c)
	if err != nil {
		return err
	}
	r, err := bench.RunKernels(c.Context, cfg)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "%s; load %s; huge pages asked for: %t\n", machineText(r.Machine, r.Commit), r.Load, r.Huge)
	fmt.Fprintf(e.out, "kernels %s, %d threads, %d MiB of weights each, median of %d repeats\n", r.Level, r.Threads, r.Bytes>>20, r.Repeats)
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "type\trows\tcols\tGB/s\tread\t%\tGB/s cpu\tread cpu\t% cpu\t")
	for _, b := range cfg.Batches {
		fmt.Fprintf(w, "GOP/s %d\tcpu\t", b)
	}
	fmt.Fprintln(w)
	for _, x := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t", x.Type, x.Rows, x.Cols, x.GBs, x.ReadGBs, 100*x.Share, x.CPUGBs, x.CPURead, 100*x.CPUShare)
		for _, b := range x.Batches {
			fmt.Fprintf(w, "%.0f\t%.0f\t", b.GOPs, b.CPUGOPs)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}
