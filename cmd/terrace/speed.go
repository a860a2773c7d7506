package main

import (
	"fmt"
	"os"
	"runtime/pprof"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/engine"
)

// speedFlags are those of the commands that time a loaded model.
func speedFlags(prompt, decode int) []cli.Flag {
	fs := modelFlags()
	for _, f := range fs {
		if s, ok := f.(*cli.StringFlag); ok && s.Name == "expert-ram" {
			s.Value = "100%"
			s.Usage = "expert arena: `SIZE`, PERCENT% of the experts, or min (the smallest working set); with --ram alone what that leaves"
		}
	}
	if prompt > 0 {
		fs = append(fs, &cli.IntFlag{Name: "prompt", Value: prompt, Usage: "time a prompt of `N` tokens (0: none)"})
	}
	if decode > 0 && prompt == 0 {
		fs = append(fs, lookaheadFlags()...)
	}
	if decode > 0 {
		fs = append(fs,
			&cli.IntFlag{Name: "decode", Value: decode, Usage: "time `N` decode steps (0: none)"},
			&cli.IntFlag{Name: "depth", Value: 1, Usage: "decode behind `N` tokens"})
	}
	return append(fs,
		&cli.IntFlag{Name: "reps", Value: 1, Usage: "`N` timed runs"},
		&cli.StringFlag{Name: "cpuprofile", Usage: "write a profile of the run to `FILE`"},
		&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"})
}

func speedConfig(c *cli.Context, e env) (bench.SpeedConfig, error) {
	s := bench.SpeedConfig{Prompt: c.Int("prompt"), Decode: c.Int("decode"), Depth: c.Int("depth"), Reps: c.Int("reps")}
	if c.NArg() > 0 {
		return s, usagef("unexpected argument %q", c.Args().First())
	}
	var err error
	s.Engine, err = engineOptions(c, e)
	if c.IsSet("ram") && !c.IsSet("expert-ram") {
		s.Engine.ExpertRAM = engine.ExpertBudget{} // what the budget leaves
	}
	return s, err
}

// profiled runs f under the profiler when a file is given.
func profiled(path string, f func() error) error {
	if path == "" {
		return f()
	}
	w, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		w.Close()
		return err
	}
	err = f()
	pprof.StopCPUProfile()
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

func speedCommand(e env, name, usage string, prompt, decode int) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Flags: speedFlags(prompt, decode),
		Action: func(c *cli.Context) error {
			if decode > 0 && isLookaheads(c) {
				return runLookaheads(c, e)
			}
			s, err := speedConfig(c, e)
			if err != nil {
				return err
			}
			var r *bench.SpeedReport
			err = profiled(c.String("cpuprofile"), func() error {
				r, err = bench.Speed(c.Context, s)
				return err
			})
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(e, r)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "%s\n%s\n", machineText(r.Machine, r.Commit), conditionsText(r.Model, r.Conditions))
			if r.Prefill != nil {
				fmt.Fprintf(&b, "prefill  %s tokens/s\n", spreadText(*r.Prefill, 1))
			}
			if r.Decode != nil {
				fmt.Fprintf(&b, "decode   %s tokens/s", spreadText(*r.Decode, 1))
				if r.Stats.Bottleneck != "" {
					fmt.Fprintf(&b, "; limit %s, at best %.1f/s", r.Stats.Bottleneck, r.Bound)
				}
				b.WriteString("\n")
			}
			_, err = fmt.Fprint(e.out, b.String())
			return err
		},
	}
}

func peerCommand(e env) *cli.Command {
	return &cli.Command{
		Name: "peer", Usage: "the same file through llama-bench and Terrace in turn: ratios of their speeds, all experts resident",
		Flags: append(speedFlags(512, 64),
			&cli.StringFlag{Name: "llama-bench", Usage: "`PATH` of the other program"},
			&cli.StringSliceFlag{Name: "peer-arg", Usage: "a further `ARGUMENT` for it"},
			&cli.IntFlag{Name: "pairs", Value: 5, Usage: "`N` alternations"}),
		Action: func(c *cli.Context) error {
			if c.String("llama-bench") == "" {
				return usagef("give the other program: --llama-bench PATH")
			}
			s, err := speedConfig(c, e)
			if err != nil {
				return err
			}
			var r *bench.PeerReport
			err = profiled(c.String("cpuprofile"), func() error {
				r, err = bench.Peer(c.Context, bench.PeerConfig{SpeedConfig: s, LlamaBench: c.String("llama-bench"), Extra: c.StringSlice("peer-arg"), Pairs: c.Int("pairs")})
				return err
			})
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(e, r)
			}
			var b strings.Builder
			p := r.Peer
			fmt.Fprintf(&b, "%s\n%s\n", machineText(r.Machine, r.Commit), conditionsText(r.Model, r.Conditions))
			fmt.Fprintf(&b, "llama.cpp %s: %s, %d threads, batch %d/%d, KV %s/%s\n", p.Commit, p.Backend, p.Threads, p.Batch, p.UBatch, p.KeyType, p.ValType)
			for i, x := range r.Pairs {
				fmt.Fprintf(&b, "pair %d    prefill %.1f and %.1f, decode %.1f and %.1f tokens/s, load %s\n", i+1, x.Prefill, x.PeerPrefill, x.Decode, x.PeerDecode, x.Load)
			}
			if r.PrefillRatio != nil {
				fmt.Fprintf(&b, "prefill   ratio %s: Terrace %s, llama.cpp %s tokens/s\n", spreadText(*r.PrefillRatio, 2), spreadText(*r.Prefill, 1), spreadText(*r.PeerPrefill, 1))
			}
			if r.DecodeRatio != nil {
				fmt.Fprintf(&b, "decode    ratio %s: Terrace %s, llama.cpp %s tokens/s\n", spreadText(*r.DecodeRatio, 2), spreadText(*r.Decode, 1), spreadText(*r.PeerDecode, 1))
			}
			_, err = fmt.Fprint(e.out, b.String())
			return err
		},
	}
}

// spreadText prints the median and what lies around it.
func spreadText(s bench.Spread, digits int) string {
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, s.Median, digits, s.Min, digits, s.Max)
}

func machineText(m bench.Machine, commit string) string {
	if commit == "" {
		commit = "unknown"
	}
	return fmt.Sprintf("machine  %s, %d cores, %s, %s, %s; commit %s", m.CPU, m.Cores, bytesText(m.RAM), m.System, m.Features, commit)
}

func conditionsText(model string, c bench.Conditions) string {
	warm := "warm"
	if !c.Warm {
		warm = bytesText(c.BytesRead) + " of experts read on the way"
	}
	return fmt.Sprintf("model    %s: %d threads, context %d, batch %d, KV %s, %d of %d experts with a slot, lookahead %d, %s, load %s", model, c.Threads, c.Context, c.Batch, c.KVType,
		c.ExpertSlots, c.ExpertsTotal, c.Lookahead, warm, c.Load)
}
