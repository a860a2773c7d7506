package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/bench/synth"
	"terrace/internal/host"
)

func synthCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "synth",
		Usage:     "write a GGUF file with the real geometry of a published model and random weights; without -o, say what it would weigh",
		ArgsUsage: "[FAMILY]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write `FILE`"},
			&cli.BoolFlag{Name: "force", Usage: "in place of a file of that name"},
			&cli.BoolFlag{Name: "list", Usage: "list the families"},
			&cli.IntFlag{Name: "layers", Usage: "the first `N` layers alone (0: all)"},
			&cli.StringFlag{Name: "quant", Usage: "types of experts: `TYPE`, GATEUP+DOWN, GATE+UP+DOWN, q4_k_m or ud-q4_k_xl (default: q4_k; gpt-oss: mxfp4)"},
			&cli.StringFlag{Name: "dense", Usage: "`TYPE` of all other matrices", Value: "q8_0"},
			&cli.StringFlag{Name: "embd", Usage: "`TYPE` of the embedding (default: as --dense)"},
			&cli.StringFlag{Name: "head", Usage: "`TYPE` of the output matrix (default: as --dense)"},
			&cli.StringFlag{Name: "router", Usage: "`TYPE` of routers", Value: "f32"},
			&cli.StringFlag{Name: "table", Usage: "`TYPE` of an n-gram table", Value: "iq4_nl"},
			&cli.BoolFlag{Name: "mtp", Usage: "with the block for drafting that published files have"},
			&cli.Uint64Flag{Name: "seed", Usage: "the same `N` gives the same bytes"},
			&cli.Float64Flag{Name: "skew", Usage: "how much some experts are wanted more than others: exponent of their popularity, `S` from 0 to about 1", Value: 0.3},
			&cli.Float64Flag{Name: "corr", Usage: "how far experts go with those of the layer before, `C` from 0 to 1", Value: 0.3},
			&cli.IntFlag{Name: "topics", Usage: "`N` groups of tokens that route alike and follow one another"},
			&cli.Float64Flag{Name: "gain", Usage: "what a layer's part adds to the residual, `G`; small values make guesses easy", Value: 0.25},
			&cli.BoolFlag{Name: "header-only", Aliases: []string{"sparse"}, Usage: "full size but no data: a hole behind the header"},
			&cli.StringFlag{Name: "rows-for", Usage: "rows of the n-gram table that tokens read: those of `FILE`, a sequence of ids each line, or bench:N, the first N of bench decode and prefill; the rest of the table is a hole"},
			&cli.BoolFlag{Name: "add-rows", Usage: "write these rows into the file of -o, which exists"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error { return runSynth(c, e) },
	}
}

// synthReport is what `bench synth --json` prints; sizes in bytes.
type synthReport struct {
	Family  string        `json:"family"`
	Layers  int           `json:"layers"`
	Path    string        `json:"path,omitempty"`
	Size    int64         `json:"size"`
	Data    int64         `json:"data"` // of it on the disk
	Free    int64         `json:"free,omitempty"`
	Weights synth.Weights `json:"weights"`
	Seconds float64       `json:"seconds,omitempty"`
}

func synthOptions(c *cli.Context) (o synth.Options, err error) {
	o = synth.Options{Layers: c.Int("layers"), Quant: c.String("quant"), Dense: c.String("dense"), Embd: c.String("embd"), Head: c.String("head"), Router: c.String("router"),
		Table: c.String("table"), MTP: c.Bool("mtp"), Seed: c.Uint64("seed"), Skew: c.Float64("skew"), Corr: c.Float64("corr"), Topics: c.Int("topics"), Gain: c.Float64("gain"),
		HeaderOnly: c.Bool("header-only"), Family: c.Args().First()}
	if c.NArg() != 1 {
		return o, usagef("%d families named, want one; --list lists them", c.NArg())
	}
	if r := c.String("rows-for"); r != "" {
		vocab, err := synth.Vocab(o.Family)
		if err != nil {
			return o, usageError{err}
		}
		if o.Rows, err = tokenRows(r, vocab); err != nil {
			return o, err
		}
	}
	return o, nil
}

// tokenRows reads what --rows-for names.
func tokenRows(s string, vocab int) (seqs [][]int32, err error) {
	if n, ok := strings.CutPrefix(s, "bench:"); ok {
		k, err := strconv.Atoi(n)
		if err != nil || k < 1 || k > 1<<20 {
			return nil, usagef("--rows-for %s: want bench:N with N from 1 to %d", s, 1<<20)
		}
		all := bench.RandomTokens(k, vocab)
		seqs = append(seqs, all)
		for i := range all { // wherever a run begins anew
			seqs = append(seqs, all[i:min(i+2, k)])
		}
		return seqs, nil
	}
	f, err := os.Open(s)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		var seq []int32
		for _, w := range strings.FieldsFunc(lines.Text(), func(r rune) bool { return strings.ContainsRune(" \t\r,[]", r) }) {
			id, err := strconv.ParseInt(w, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s: line %d: %q is no token id", s, n, short(w))
			}
			seq = append(seq, int32(id))
		}
		if len(seq) > 0 {
			seqs = append(seqs, seq)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}
	if len(seqs) == 0 {
		return nil, fmt.Errorf("%s: no token ids", s)
	}
	return seqs, nil
}

func short(s string) string { return s[:min(len(s), 40)] }

func runSynth(c *cli.Context, e env) error {
	if c.Bool("list") {
		if c.NArg() > 0 {
			return usagef("unexpected argument %q", c.Args().First())
		}
		return listFamilies(c, e)
	}
	path := c.String("output")
	if c.Bool("add-rows") {
		return addRows(c, e, path)
	}
	o, err := synthOptions(c)
	if err != nil {
		return err
	}
	m, err := synth.New(o)
	if err != nil {
		return usageError{err}
	}
	r := synthReport{Family: m.Family.Name, Layers: m.Layers, Path: path, Size: m.Size, Data: m.Data, Weights: m.Weights}
	if path != "" {
		if _, err := os.Stat(path); err == nil && !c.Bool("force") {
			return fmt.Errorf("%s exists: --force writes a new file in its place", path)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if r.Free, err = host.DiskFree(filepath.Dir(path)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
	}
	if !c.Bool("json") {
		synthText(e, m, r)
	}
	if path != "" {
		start := time.Now()
		if err := m.Write(c.Context, path, synthProgress(c, e, m, start)); err != nil {
			return err
		}
		r.Seconds = time.Since(start).Seconds()
		if !c.Bool("json") {
			fmt.Fprintf(e.out, "%s written in %.1f s\n", oneLine(path), r.Seconds)
		}
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	return nil
}

// synthProgress says every few seconds how far a file has come.
func synthProgress(c *cli.Context, e env, m *synth.Model, start time.Time) func(int64) {
	last := start
	return func(done int64) {
		if now := time.Now(); now.Sub(last) > 5*time.Second {
			last = now
			fmt.Fprintf(e.err, "terrace: %s of %s, %.2f GB/s\n", bytesText(done), bytesText(m.Data), float64(done)/1e9/now.Sub(start).Seconds())
		}
	}
}

// synthText says what a file weighs, before it is written.
func synthText(e env, m *synth.Model, r synthReport) {
	w := m.Weights
	p := func(format string, a ...any) { fmt.Fprintf(e.out, format+"\n", a...) }
	p("%s (%s), %d layers, %.2f billion parameters", m.Family.Title, m.Family.Arch, m.Layers, float64(w.Params)/1e9)
	p("experts %d layers of %d, %s to %s each, %s in all", w.ExpertLayers, w.PerLayer, bytesText(w.ExpertMin), bytesText(w.ExpertMax), bytesText(w.Experts))
	p("dense   %s", bytesText(w.Dense))
	if w.Table > 0 {
		p("table   %s, a hole but for the rows asked for", bytesText(w.Table))
	}
	if w.Draft > 0 {
		p("draft   %s, which plain decoding leaves out", bytesText(w.Draft))
	}
	p("file    %s, of which %s take room on the disk", bytesText(r.Size), bytesText(r.Data))
	if r.Free > 0 {
		p("disk    %s free", bytesText(r.Free))
	}
}

func listFamilies(c *cli.Context, e env) error {
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "family\tarchitecture\tlayers\texperts\tparameters\texpert\tall experts\tdense\t(experts "+quantText(c)+", dense "+c.String("dense")+")")
	for _, f := range synth.Families() {
		m, err := synth.New(synth.Options{Family: f.Name, Quant: c.String("quant"), Dense: c.String("dense"), HeaderOnly: true})
		if err != nil {
			return err
		}
		x := m.Weights
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1f B\t%s\t%s\t%s\n", f.Name, f.Arch, m.Layers, x.PerLayer, float64(x.Params)/1e9, bytesText(x.ExpertMax), bytesText(x.Experts), bytesText(x.Dense))
	}
	return w.Flush()
}

func quantText(c *cli.Context) string {
	if q := c.String("quant"); q != "" {
		return q
	}
	return "q4_k, gpt-oss mxfp4"
}

// addRows writes rows into a file that exists.
func addRows(c *cli.Context, e env, path string) error {
	if path == "" || c.String("rows-for") == "" || c.NArg() > 0 {
		return usagef("--add-rows wants -o FILE and --rows-for, and no family")
	}
	vocab, err := synth.FileVocab(path)
	if err != nil {
		return err
	}
	seqs, err := tokenRows(c.String("rows-for"), vocab)
	if err != nil {
		return err
	}
	n, err := synth.AddRows(path, c.Uint64("seed"), seqs)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, map[string]int{"rows": n})
	}
	fmt.Fprintf(e.out, "%d rows of the n-gram table written\n", n)
	return nil
}
