package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func diskCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "disk",
		Usage: "how fast experts come from the disk, beside fio where it is installed",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "read the experts of a GGUF `FILE` (default: of a file made for it)"},
			&cli.StringFlag{Name: "dir", Usage: "make that file in `DIR`", Value: os.TempDir()},
			&cli.StringFlag{Name: "size", Usage: "make it `SIZE` large", Value: "4G"},
			&cli.BoolFlag{Name: "keep", Usage: "leave it there, and use it again when it has the right size"},
			&cli.StringFlag{Name: "piece", Usage: "one of an expert's three matrices, `SIZE`", Value: "2M"},
			&cli.StringFlag{Name: "store", Usage: "how they are read: auto, uring, pread or mmap", Value: "auto"},
			&cli.IntFlag{Name: "depth", Usage: "`N` reads at once (0: as an engine does)"},
			&cli.IntFlag{Name: "guess-depth", Usage: "at most `N` of them for guesses (0: as an engine does)"},
			&cli.StringFlag{Name: "fio", Usage: "compare with fio, `PROGRAM`, or none (default: fio, where it is installed)"},
			&cli.IntFlag{Name: "pairs", Usage: "`N` alternating pairs, of which the median counts", Value: 9},
			&cli.DurationFlag{Name: "window", Usage: "`TIME` of one run", Value: time.Second},
			&cli.DurationFlag{Name: "spend", Usage: "read for at most `TIME` before, until a burst is over", Value: 8 * time.Second},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error { return runBenchDisk(c, e) },
	}
}

func diskConfig(c *cli.Context, e env) (bench.DiskConfig, error) {
	cfg := bench.DiskConfig{Model: c.String("model"), Dir: c.String("dir"), Keep: c.Bool("keep"), Depth: c.Int("depth"), Guess: c.Int("guess-depth"), Pairs: c.Int("pairs"),
		Window: c.Duration("window"), Spend: c.Duration("spend"), Store: c.String("store")}
	if c.NArg() > 0 {
		return cfg, usagef("unexpected argument %q", c.Args().First())
	}
	if cfg.Model == "" && c.IsSet("model") {
		return cfg, usagef("--model is empty, want a GGUF file")
	}
	if cfg.Model != "" && (c.IsSet("size") || c.IsSet("piece") || c.IsSet("dir") || c.IsSet("keep")) {
		return cfg, usagef("-m has experts of its own: leave --size, --piece, --dir and --keep out")
	}
	var err error
	if cfg.Size, err = parseSize(c.String("size")); err != nil {
		return cfg, usagef("--size: %w", err)
	}
	if cfg.Piece, err = parseSize(c.String("piece")); err != nil {
		return cfg, usagef("--piece: %w", err)
	}
	switch cfg.Store {
	case "auto", "uring", "pread", "mmap":
	default:
		return cfg, usagef("--store is %q, want auto, uring, pread or mmap", cfg.Store)
	}
	if cfg.Pairs < 1 || cfg.Pairs > 1000 {
		return cfg, usagef("--pairs is %d, want 1 to 1000", cfg.Pairs)
	}
	if cfg.Window < 50*time.Millisecond || cfg.Spend < 0 {
		return cfg, usagef("--window is %v and --spend %v, want at least 50ms and 0s", cfg.Window, cfg.Spend)
	}
	switch p := c.String("fio"); {
	case p == "none":
	case p != "":
		if cfg.Fio, err = exec.LookPath(p); err != nil {
			return cfg, usagef("--fio: %w", err)
		}
	default:
		if cfg.Fio, err = exec.LookPath("fio"); err != nil {
			fmt.Fprintln(e.err, "terrace: fio is not installed: nothing to compare with")
		}
	}
	cfg.Log = slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg.Progress = func(s string) { fmt.Fprintln(e.err, s) }
	return cfg, nil
}

func runBenchDisk(c *cli.Context, e env) error {
	cfg, err := diskConfig(c, e)
	if err != nil {
		return err
	}
	r, err := bench.Disk(c.Context, cfg)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	p := func(format string, a ...any) { fmt.Fprintf(e.out, format+"\n", a...) }
	p("%s; load %s", machineText(r.Machine, r.Commit), r.Load)
	p("%s (%s): %s, experts of 3 matrices of %s on average", r.Model, r.Device, bytesText(r.FileBytes), bytesText(r.PieceBytes))
	p("before: %s read in %.1f s, at first up to %.2f GB/s, at last %.2f", bytesText(r.SpentBytes), r.SpentS, r.BurstRate/1e9, r.SettledRate/1e9)
	p("store   %s, %d reads at once: median %.3f GB/s (%.3f to %.3f), %.4f processor seconds per GB", r.Store, r.Depth, r.Ours.Median/1e9, r.Ours.Min/1e9, r.Ours.Max/1e9, r.CPUPerGB)
	if r.Unregistered > 0 {
		p("        %d reads went into memory that is not registered with the kernel", r.Unregistered)
	}
	if r.Ratio != nil {
		p("%s depth %d, its best: median %.3f GB/s (%.3f to %.3f), %.4f processor seconds per GB", r.FioVersion, r.FioDepth, r.FioRate.Median/1e9, r.FioRate.Min/1e9, r.FioRate.Max/1e9, r.FioCPUPerGB)
		p("ratio   median %.3f of %d pairs (%.3f to %.3f)", r.Ratio.Median, len(r.Pairs), r.Ratio.Min, r.Ratio.Max)
	}
	p("demand  one expert at a time: p50 %.2f ms, p99 %.2f of %d; beside guesses: p50 %.2f ms, p99 %.2f of %d, %.2f GB/s in all",
		r.Alone.P50, r.Alone.P99, r.Alone.N, r.Beside.P50, r.Beside.P99, r.Beside.N, r.BesideRate/1e9)
	return nil
}
