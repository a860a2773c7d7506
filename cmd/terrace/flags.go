package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/compute"
	"terrace/engine"
	"terrace/sample"
)

// demoModel is the trained model that comes with a checkout.
const demoModel = "testdata/tiny-moe-Q4_K.gguf"

// parseSize reads a number of bytes: k, M, G, T (and KiB ...) are powers of 1024, kB, MB, GB, TB powers of 1000.
func parseSize(s string) (int64, error) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	v, err := strconv.ParseFloat(s[:i], 64)
	unit := strings.TrimSpace(s[i:])
	scale, ok := map[string]float64{
		"": 1, "b": 1,
		"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
		"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	}[strings.ToLower(unit)]
	if err != nil || !ok || v < 0 || v*scale > 1<<62 {
		return 0, fmt.Errorf("%q is no size: want a number with k, M, G (powers of 1024) or kB, MB, GB (powers of 1000)", s)
	}
	return int64(v * scale), nil
}

// modelFlags are the flags of every command that loads a model.
func modelFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, any part of a split one (default: $TERRACE_MODEL, else the demo model of the checkout)"},
		&cli.IntFlag{Name: "ctx-size", Aliases: []string{"c"}, Usage: "context, `N` positions (0: the smaller of the model's and 4096)"},
		&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, Usage: "compute threads (0: physical cores)"},
		&cli.IntFlag{Name: "batch-size", Aliases: []string{"b"}, Usage: "prompt tokens per pass (0: 512, and up to 2048 where experts are read and the budget has room)"},
		&cli.StringFlag{Name: "cache-type-k", Aliases: []string{"ctk"}, Value: "f16", Usage: "element `TYPE` of cached keys: f32, f16, q8_0 or q4_0"},
		&cli.StringFlag{Name: "cache-type-v", Aliases: []string{"ctv"}, Value: "f16", Usage: "element `TYPE` of cached values: f32, f16, q8_0 or q4_0"},
		&cli.StringFlag{Name: "ram", Value: "auto", Usage: "all memory the process may hold, experts included: `SIZE` or auto"},
		&cli.StringFlag{Name: "expert-ram", Usage: "expert arena alone: `SIZE`, PERCENT% of the experts, or min (the smallest working set)"},
		&cli.StringFlag{Name: "lookahead", Value: "auto", Usage: "layers whose experts are predicted ahead: auto, 0, 1 or 2"},
		&cli.StringFlag{Name: "predictor-kind", Value: "auto", Usage: "who predicts them: gate-ahead, fitted (terrace calibrate --predictor makes it) or auto, the fitted one if there is one"},
		&cli.BoolFlag{Name: "refine", Usage: "predict the next layer a second time, from a layer's output: better, later, and a wait more for each layer (not with a fitted predictor)"},
		&cli.StringFlag{Name: "store", Value: "auto", Usage: "how experts are read: auto, uring, pread or mmap"},
		&cli.StringFlag{Name: "dense", Value: "ram", Usage: "dense weights: ram (read at the start) or mmap (left to the page cache, for machines where they do not fit; slower)"},
		&cli.StringFlag{Name: "mirror", Usage: "second copy of the model on another disk, `PATH` of the file or its folder, whole or in part: shares the reads"},
		&cli.StringFlag{Name: "backend", Value: "auto", Usage: "what computes: auto (a discrete GPU if there is one, else the CPU), cpu or vulkan"},
		&cli.IntFlag{Name: "device", Usage: "GPU, `N` of those in the order of terrace doctor (0: the best)"},
		&cli.StringFlag{Name: "vram", Value: "auto", Usage: "GPU memory that may be taken: `SIZE` or auto"},
		&cli.StringFlag{Name: "gpu-layers", Aliases: []string{"ngl", "n-gpu-layers"}, Value: "auto", Usage: "the last `N` layers are on the GPU, the others on the CPU: auto (as many as its memory holds), all or a number"},
		&cli.StringFlag{Name: "rope-scaling", Usage: "`HOW` positions are scaled for a longer context: none, linear or yarn (default: as the file says)"},
		&cli.Float64Flag{Name: "rope-scale", Usage: "extend the context `N` times (default: as the file says)"},
		&cli.Float64Flag{Name: "rope-freq-base", Usage: "base of the rotation, `N` (default: as the file says)"},
		&cli.Float64Flag{Name: "rope-freq-scale", Usage: "extend the context 1/`N` times, instead of --rope-scale"},
		&cli.IntFlag{Name: "yarn-orig-ctx", Usage: "YaRN: positions before the extension, `N` (default: as the file says, else its context)"},
		&cli.Float64Flag{Name: "yarn-ext-factor", Value: -1, Usage: "YaRN: share of extrapolation, `N`; 0 interpolates all (-1: 1 for yarn)"},
		&cli.Float64Flag{Name: "yarn-attn-factor", Value: -1, Usage: "YaRN: multiplies the magnitude of attention by `N` (-1: 1)"},
		&cli.Float64Flag{Name: "yarn-beta-slow", Value: -1, Usage: "YaRN: turns within the original context up to which a pair is stretched, `N` (-1: as the file says, else 1)"},
		&cli.Float64Flag{Name: "yarn-beta-fast", Value: -1, Usage: "YaRN: turns from which on a pair is left alone, `N` (-1: as the file says, else 32)"},
		&cli.BoolFlag{Name: "exact", Usage: "float32 activations and KV cache (slow; for comparisons)"},
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what is decided while loading"},
	}, repoFlags()...)
}

// samplingFlags are the settings of sampling; samplerParams reads them.
func samplingFlags() []cli.Flag {
	def := sample.Defaults(1)
	return []cli.Flag{
		&cli.Float64Flag{Name: "temp", Aliases: []string{"temperature"}, Value: decimal(def.Temp), Usage: "temperature; 0 is greedy"},
		&cli.IntFlag{Name: "top-k", Value: def.TopK, Usage: "keep the k likeliest tokens (0: all)"},
		&cli.Float64Flag{Name: "top-p", Value: decimal(def.TopP), Usage: "keep the likeliest tokens up to this mass (1: all)"},
		&cli.Float64Flag{Name: "min-p", Value: decimal(def.MinP), Usage: "drop tokens below this share of the likeliest (0: none)"},
		&cli.Float64Flag{Name: "repeat-penalty", Value: decimal(def.RepeatPenalty), Usage: "penalise repeated tokens (1: off)"},
		&cli.IntFlag{Name: "repeat-last-n", Value: def.RepeatLastN, Usage: "tokens looked back at for repeats (0: off, -1: the context)"},
		&cli.Float64Flag{Name: "presence-penalty", Usage: "penalise tokens seen (0: off)"},
		&cli.Float64Flag{Name: "frequency-penalty", Usage: "penalise tokens by how often seen (0: off)"},
		&cli.Int64Flag{Name: "seed", Aliases: []string{"s"}, Value: -1, Usage: "seed of the draws (-1: a new one)"},
		&cli.BoolFlag{Name: "ignore-eos", Usage: "never sample an end token"},
		&cli.BoolFlag{Name: "stop-loops", Usage: "end an answer that repeats the same tokens over and over; without it that is a warning"},
	}
}

// modelPath is the model a command means: the flag, the environment, or the checkout's demo model.
func modelPath(c *cli.Context, e env) (string, error) {
	if c.String("hf-repo") != "" {
		return repoPath(c, e)
	}
	if m := c.String("model"); m != "" {
		return m, nil
	}
	if c.IsSet("model") { // an unset variable, perhaps: another model than the one meant would answer
		return "", usagef("--model is empty, want a GGUF file")
	}
	if m := e.getenv("TERRACE_MODEL"); m != "" {
		return m, nil
	}
	var dirs []string
	if d, err := os.Getwd(); err == nil {
		dirs = append(dirs, d)
	}
	if x, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(x))
	}
	for _, d := range dirs {
		for ; ; d = filepath.Dir(d) {
			p := filepath.Join(d, demoModel)
			if _, err := os.Stat(p); err == nil {
				*e.notice = fmt.Sprintf("no -m and no TERRACE_MODEL: the demo model is used (%s)", demoModel)
				return p, nil
			}
			if filepath.Dir(d) == d {
				break
			}
		}
	}
	return "", usagef("no model: give -m FILE or set TERRACE_MODEL (the demo model, %s, is not in this folder or above it)", demoModel)
}

// stallFlag is of commands that may run for long.
func stallFlag() cli.Flag {
	return &cli.IntFlag{Name: "stall-report", Value: 30, Usage: "`SECONDS` without progress after which the log says what waits for what (0: never)"}
}

// stallReport reads it.
func stallReport(c *cli.Context) (time.Duration, error) {
	n := c.Int("stall-report")
	if n < 0 || n > 1<<30 {
		return 0, usagef("--stall-report is %d, want at least 1 second, or 0", n)
	}
	return time.Duration(n) * time.Second, nil
}

func parseKV(name, s string) (compute.KVType, error) {
	for t := range compute.KVType(compute.KVTypes) {
		if strings.EqualFold(s, t.String()) {
			return t, nil
		}
	}
	return 0, usagef("--%s is %q, want f32, f16, q8_0 or q4_0", name, s)
}

// engineOptions turns the flags into what the engine takes.
func engineOptions(c *cli.Context, e env) (engine.Options, error) {
	var o engine.Options
	var err error
	if o.Path, err = modelPath(c, e); err != nil {
		return o, err
	}
	o.Context, o.Threads, o.Batch = c.Int("ctx-size"), c.Int("threads"), c.Int("batch-size")
	o.Exact = c.Bool("exact")
	if o.Exact && (c.IsSet("cache-type-k") && c.String("cache-type-k") != "f32" || c.IsSet("cache-type-v") && c.String("cache-type-v") != "f32") {
		return o, usagef("--exact keeps keys and values in f32, --cache-type-k and -v say %s and %s", c.String("cache-type-k"), c.String("cache-type-v"))
	}
	if o.KeyType, err = parseKV("cache-type-k", c.String("cache-type-k")); err != nil {
		return o, err
	}
	if o.ValType, err = parseKV("cache-type-v", c.String("cache-type-v")); err != nil {
		return o, err
	}
	if o.Rope, err = ropeOptions(c); err != nil {
		return o, err
	}
	if s := c.String("ram"); s != "auto" {
		if o.RAM, err = parseSize(s); err != nil {
			return o, usagef("--ram: %w", err)
		}
		if o.RAM == 0 {
			return o, usagef("--ram is 0, want a size or auto")
		}
	}
	if s := c.String("expert-ram"); s != "" {
		if o.ExpertRAM, err = parseExpertRAM(s); err != nil {
			return o, err
		}
	}
	if o.Lookahead, err = parseLookahead(c.String("lookahead")); err != nil {
		return o, err
	}
	o.Store, o.Dense, o.Mirror = c.String("store"), c.String("dense"), c.String("mirror")
	o.Predictor, o.Refine = c.String("predictor-kind"), c.Bool("refine")
	if dir := cacheDir(e); dir != "" {
		o.Profile, o.PredictorDir = filepath.Join(dir, "machine.json"), dir
		o.PipelineCache = filepath.Join(dir, "pipelines.bin")
	}
	if c.IsSet("mirror") && o.Mirror == "" {
		return o, usagef("--mirror is empty, want a path")
	}
	o.Backend, o.Device = c.String("backend"), c.Int("device")
	switch o.Backend {
	case "auto", "cpu", "vulkan":
	default:
		return o, usagef("--backend is %q, want auto, cpu or vulkan", o.Backend)
	}
	if o.Device < 0 {
		return o, usagef("--device is %d, want at least 0", o.Device)
	}
	if s := c.String("vram"); s != "auto" {
		if o.VRAM, err = parseSize(s); err != nil {
			return o, usagef("--vram: %w", err)
		}
		if o.VRAM == 0 {
			return o, usagef("--vram is 0, want a size or auto")
		}
	}
	if o.GPULayers, err = gpuLayers(c.String("gpu-layers")); err != nil {
		return o, err
	}
	o.Log = logger(c, e)
	return o, nil
}

// gpuLayers reads --gpu-layers. Below 0 is auto, as for llama-server.
func gpuLayers(s string) (int, error) {
	switch s {
	case "auto", "":
		return 0, nil
	case "all":
		return math.MaxInt32, nil
	}
	n, err := strconv.Atoi(s)
	switch {
	case err != nil || n > math.MaxInt32:
		return 0, usagef("--gpu-layers is %q, want auto, all or a number", s)
	case n == 0:
		return engine.GPULayersNone, nil
	}
	return max(n, 0), nil
}
