package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/internal/host"
	"terrace/plan"
)

func benchPlanCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "plan",
		Usage: "predictions beside measurements: memory, hit rate, decode and prefill under RAM budgets and caps of the disk, each predicted without itself",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, or FILE=TEXTS with the texts (.jsonl) that it shall read instead of random tokens; may be given again"},
			&cli.StringFlag{Name: "budget", Usage: "RAM budgets, `LIST` of sizes (default: those that hold 10, 20, 35, 50, 75 and 100 % of the experts)"},
			&cli.StringFlag{Name: "shares", Usage: "instead: budgets by the per cent of the experts that they hold, `LIST`"},
			&cli.StringFlag{Name: "cap", Usage: "caps of the disk, `LIST` of bytes a second such as 500MB,1GB, or none (needs root, control groups of version 1, --device)", Value: "none"},
			&cli.StringFlag{Name: "device", Usage: "`DISK` that is capped, such as /dev/vda"},
			&cli.BoolFlag{Name: "memory-group", Usage: "run in a control group whose memory limit is a sixteenth above the budget"},
			&cli.IntFlag{Name: "prompt", Value: 512, Usage: "time a prompt of `N` tokens"},
			&cli.IntFlag{Name: "warm", Value: 48, Usage: "decode `N` tokens before"},
			&cli.IntFlag{Name: "decode", Value: 64, Usage: "time `N` decode steps"},
			&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, Usage: "compute threads (0: physical cores)"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` of results, a JSON line each; what is there is not measured again"},
			&cli.BoolFlag{Name: "no-run", Usage: "compare what the results hold, measure nothing"},
			&cli.StringFlag{Name: "profile", Usage: "machine profile, `FILE` (default: that of terrace calibrate)"},
			&cli.StringFlag{Name: "markdown", Usage: "write the table to `FILE`"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
			&cli.BoolFlag{Name: "cell", Hidden: true, Usage: "measure the cell on standard input"},
		},
		Action: func(c *cli.Context) error { return runBenchPlan(c, e) },
	}
}

func runBenchPlan(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q", c.Args().First())
	}
	if c.Bool("cell") {
		return runPlanCell(c.Context, e)
	}
	cfg, err := benchPlanConfig(c, e)
	if err != nil {
		return err
	}
	r, err := bench.Predictions(c.Context, cfg)
	if err != nil {
		return err
	}
	if path := c.String("markdown"); path != "" {
		if err := replaceResult(path, []byte(r.Markdown())); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	_, err = fmt.Fprint(e.out, r.Markdown())
	return err
}

// runPlanCell measures the cell on standard input, where who started this process answers probes of the machine.
func runPlanCell(ctx context.Context, e env) error {
	in := bufio.NewReader(e.in)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("cell: %w", err)
	}
	var cell bench.PlanCell
	if err := json.Unmarshal(line, &cell); err != nil {
		return fmt.Errorf("cell: %w", err)
	}
	m, err := bench.MeasureCell(ctx, cell, bench.ProbeThrough(in, e.out))
	if err != nil {
		return err
	}
	return json.NewEncoder(e.out).Encode(m)
}

func benchPlanConfig(c *cli.Context, e env) (bench.PlanConfig, error) {
	cfg := bench.PlanConfig{Prompt: c.Int("prompt"), Warm: c.Int("warm"), Decode: c.Int("decode"), Threads: c.Int("threads"), Results: c.String("output"), NoRun: c.Bool("no-run")}
	if len(c.StringSlice("model")) == 0 || cfg.Results == "" {
		return cfg, usagef("give models and a file for results: -m FILE -o FILE")
	}
	for _, n := range []string{"prompt", "warm", "decode"} {
		if c.Int(n) < 1 {
			return cfg, usagef("--%s is %d, want at least 1", n, c.Int(n))
		}
	}
	if t := c.Int("threads"); t < 0 || t > 1024 {
		return cfg, usagef("--threads is %d, want 1 to 1024 (0: all cores)", t)
	}
	for _, m := range c.StringSlice("model") {
		path, texts, _ := strings.Cut(m, "=")
		cfg.Models = append(cfg.Models, bench.PlanModel{Path: path, Texts: texts})
	}
	var err error
	if c.String("budget") != "" && c.String("shares") != "" {
		return cfg, usagef("--budget and --shares exclude one another")
	}
	if v := c.String("budget"); v != "" {
		if cfg.Budgets, err = parseSizes("budget", v); err != nil {
			return cfg, err
		}
	}
	if v := c.String("shares"); v != "" {
		for _, w := range strings.Split(v, ",") {
			x, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(w), "%"), 64)
			if err != nil || !(x > 0 && x <= 100) {
				return cfg, usagef("--shares: %q, want per cent above 0 and at most 100", w)
			}
			cfg.Shares = append(cfg.Shares, x/100)
		}
	}
	groups := bench.PlanGroups{Memory: c.Bool("memory-group")}
	for _, w := range strings.Split(c.String("cap"), ",") {
		if w = strings.TrimSpace(w); w == "none" {
			cfg.Caps = append(cfg.Caps, 0)
			continue
		}
		n, err := parseSize(w)
		if err != nil || n < 1e6 {
			return cfg, usagef("--cap: %q, want at least 1MB a second, or none", w)
		}
		cfg.Caps = append(cfg.Caps, float64(n))
	}
	if d := c.String("device"); d != "" {
		if groups.Device, err = bench.DeviceNumber(d); err != nil {
			return cfg, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return cfg, err
	}
	groups.Command = []string{self, "bench", "plan", "--cell"}
	cfg.Run = groups.Run
	path := c.String("profile")
	if path == "" {
		if dir := cacheDir(e); dir != "" {
			path = filepath.Join(dir, "machine.json")
		}
	}
	if path != "" {
		if cfg.Profile, err = plan.ReadProfile(path); err != nil {
			return cfg, err
		}
	}
	cfg.Progress = func(s string) { fmt.Fprintf(e.err, "terrace: %s\n", oneLine(s)) }
	return cfg, nil
}

// replaceResult writes a result whole or not at all; where path is a pipe or a terminal, as it comes.
func replaceResult(path string, data []byte) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644)
	}
	return host.ReplaceFile(path, data)
}
