package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

// leastModel is the size of a model from which on its own experts are good enough to measure a disk by.
const leastModel = 2 << 30

// runRates measures the machine and keeps what it finds in its profile.
func runRates(c *cli.Context, e env) error {
	dir, err := needCacheDir(e)
	if err != nil {
		return err
	}
	if t := c.Int("threads"); t < 0 || t > 1024 {
		return usagef("--threads is %d, want 1 to 1024 (0: all cores)", t)
	}
	cfg := bench.RateConfig{Threads: c.Int("threads"), Dir: c.String("dir"), DiskTime: c.Duration("disk-time"), Model: c.String("model"),
		Log: slog.New(slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if cfg.DiskTime < 0 {
		return usagef("--disk-time is %v, want at least 0s", cfg.DiskTime)
	}
	if cfg.Model == "" {
		cfg.Model = e.getenv("TERRACE_MODEL")
	}
	if cfg.Model != "" && cfg.Dir == "" {
		cfg.Dir = filepath.Dir(cfg.Model)
	}
	if cfg.Dir == "" {
		cfg.Dir = dir
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return err
	}
	if cfg.Model != "" {
		fi, err := os.Stat(cfg.Model)
		if err != nil {
			return err
		}
		if fi.Size() < leastModel && !strings.Contains(filepath.Base(cfg.Model), "-of-") {
			fmt.Fprintf(e.err, "terrace: %s is too small to measure a disk by: a file made for it is read\n", oneLine(cfg.Model))
			cfg.Model = ""
		}
	}
	cfg.Progress = func(s string) { fmt.Fprintf(e.err, "terrace: %s\n", oneLine(s)) }
	r, err := bench.Rates(c.Context, cfg)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "machine.json")
	if err := bench.SaveRates(path, r); err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	p := &r.Profile
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("%s; load %s", machineText(r.Machine, r.Commit), r.Load)
	line("memory   %.1f GB/s read by %d threads", p.Memory.Rate/1e9, p.Memory.Threads)
	line("kernels  %s: of weights in cache Q4_K %.1f, Q6_K %.1f, Q8_0 %.1f, MXFP4 %.1f GB/s", p.Path, p.Kernels["Q4_K"]/1e9, p.Kernels["Q6_K"]/1e9, p.Kernels["Q8_0"]/1e9, p.Kernels["MXFP4"]/1e9)
	for _, d := range p.Disks {
		settled := ""
		if !d.Settled {
			settled = ", still falling when the time was over: --disk-time measures longer"
		}
		line("disk     %.2f GB/s sustained, %.2f at first%s; best read by %s", d.Sustained/1e9, d.Burst/1e9, settled, d.Store)
	}
	if r.Device == "" {
		line("         this system gives the disk no name, so that plans cannot know it again")
	}
	t, x := &r.Trial, p.Engine
	line("engine   trial of %s, %d layers: %.1f tokens/s with all experts resident, %.1f with a quarter (%s a token read), prompt %.0f", t.Family, t.Layers, t.Resident, t.Starved, bytesText(t.StarvedBytes), t.Prefill)
	line("         %.0f %% of the kernels' rate in decoding, %.0f %% in prompts; reading costs %.2f s of arithmetic a GB, %.0f %% of arithmetic hides reads", 100*x.Efficiency, 100*x.Prefill, x.Read, 100*x.Overlap)
	if g, ok := p.GPUs[r.Card]; ok {
		line("card     %s: weights at %.0f GB/s, the link %.1f GB/s, %.0f us a layer beside them", oneLine(r.Card), g.Memory/1e9, g.Link/1e9, g.Layer*1e6)
	} else {
		line("card     none of use")
	}
	line("kept     %s, in %.0f s", oneLine(path), r.Seconds)
	_, err = fmt.Fprint(e.out, b.String())
	return err
}

// runReuse measures a model's reuse curve.
func runReuse(c *cli.Context, e env) error {
	dir, err := needCacheDir(e)
	if err != nil {
		return err
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	if n := c.Int("tokens"); n < 0 {
		return usagef("--tokens is %d, want at least 0", n)
	}
	cfg := bench.ReuseConfig{Engine: o, Tokens: c.Int("tokens"), Dir: dir}
	switch path := c.String("file"); {
	case path != "":
		if cfg.Texts, err = bench.ReadTexts(path); err != nil {
			return err
		}
	default:
		return usagef("--reuse wants texts like what the model will read and write: -f FILE")
	}
	curve, err := bench.Reuse(c.Context, cfg)
	if err != nil {
		return err
	}
	e.tell()
	if c.Bool("json") {
		return printJSON(e, curve)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d tokens, %d layers of %d experts, %d used; share of experts in RAM and hit rate:\n", curve.Tokens, curve.Layers, curve.Experts, curve.TopK)
	for _, p := range curve.Points {
		fmt.Fprintf(&b, "%4.0f %%  %.3f\n", 100*p.Resident, p.HitRate)
	}
	_, err = fmt.Fprint(e.out, b.String())
	return err
}
