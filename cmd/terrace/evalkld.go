package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/engine"
	"terrace/gguf"
	"terrace/plan"
)

func runEvalKLD(c *cli.Context, e env) error {
	switch {
	case c.NArg() > 0:
		return usagef("unexpected argument %q", c.Args().First())
	case c.String("ref") == "":
		return usagef("give the model to compare with: --ref FILE")
	case c.String("file") == "":
		return usagef("give the text: -f FILE")
	case c.Int("tokens") < 0:
		return usagef("--tokens is %d, want at least 0", c.Int("tokens"))
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	texts, err := bench.ReadTexts(c.String("file"))
	if err != nil {
		return err
	}
	ref := o
	ref.Path = c.String("ref")
	if err := shareRAM(&o, &ref); err != nil {
		return err
	}
	var engines [2]*engine.Engine
	var sessions [2]*engine.Session
	for i, o := range []engine.Options{o, ref} {
		eng, err := engine.Open(o)
		if err != nil {
			return err
		}
		defer eng.Close()
		s, err := eng.NewSession()
		if err != nil {
			return err
		}
		defer s.Close()
		engines[i], sessions[i] = eng, s
	}
	e.tell()
	last := time.Now()
	r, err := bench.KLD(c.Context, engines[0], engines[1], sessions[0], sessions[1], bench.KLDConfig{
		Texts: texts, Whole: !strings.HasSuffix(c.String("file"), ".jsonl"), Most: c.Int("tokens"),
		Report: func(n int) bool {
			if now := time.Now(); now.Sub(last) >= lineEvery {
				last = now
				fmt.Fprintf(e.err, "terrace: %d tokens compared\n", n)
			}
			return true
		},
	})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "mean KL divergence %.6f +- %.6f over %d tokens (median %.6f, 99 %% below %.6f, largest %.4f)\n", r.Mean, r.Error, r.Tokens, r.Median, r.P99, r.Max)
	fmt.Fprintf(e.out, "same first choice at %.2f %% of positions; perplexity %.4f against %.4f of the reference, ratio %.5f\n", 100*r.Top1, r.PPL, r.RefPPL, r.Ratio)
	return nil
}

// shareRAM divides the memory that two models may hold together: each gets what it cannot do without, and of the rest in
// proportion to what it could use.
func shareRAM(a, b *engine.Options) error {
	total := a.RAM
	if total == 0 {
		var err error
		if total, err = engine.AutoRAM(); err != nil {
			return err
		}
	}
	var least, full [2]int64
	for i, o := range []*engine.Options{a, b} {
		f, err := gguf.Open(o.Path)
		if err != nil {
			return err
		}
		var s plan.Shape
		if s, err = engine.ShapeOf(f, *o); err != nil {
			return err
		}
		least[i] = s.Least()
		full[i] = max(s.Fixed.Full(), least[i])
	}
	rest, use := total-least[0]-least[1], full[0]-least[0]+full[1]-least[1]
	if rest < 0 {
		return fmt.Errorf("%s needs %d bytes and %s %d, together %d, and %d are there: %w", a.Path, least[0], b.Path, least[1], least[0]+least[1], total, engine.ErrDoesNotFit)
	}
	if use == 0 {
		use = 1
	}
	first := int64(float64(rest) * float64(full[0]-least[0]) / float64(use))
	a.RAM, b.RAM = least[0]+first, total-least[0]-first
	return nil
}
