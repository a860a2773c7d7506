package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"sort"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/engine"
	"terrace/tiers"
)

// cacheDir is the folder for what can be learned or made again: $XDG_CACHE_HOME/terrace, else ~/.cache/terrace, on Windows
// in LocalAppData. Empty where the environment names no place.
func cacheDir(e env) string {
	dir := e.getenv("XDG_CACHE_HOME")
	if dir == "" || !filepath.IsAbs(dir) { // a relative one is to be ignored, says its specification
		dir = ""
		if home := e.getenv("HOME"); home != "" {
			dir = filepath.Join(home, ".cache")
		} else if runtime.GOOS == "windows" {
			dir = e.getenv("LocalAppData")
		}
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "terrace")
}

// needCacheDir is cacheDir for commands that are about what lies there.
func needCacheDir(e env) (string, error) {
	if dir := cacheDir(e); dir != "" {
		return dir, nil
	}
	return "", errors.New("no cache folder: neither XDG_CACHE_HOME (an absolute path) nor HOME is set")
}

// heatFlag is --heat of commands that answer.
func heatFlag() cli.Flag {
	return &cli.StringFlag{Name: "heat", Value: "on", Usage: "learn which experts are used and read the hottest ones early at the next start: on or off"}
}

// heatDir is what --heat asks for: the folder, or nothing.
func heatDir(c *cli.Context, e env) (string, error) {
	switch s := c.String("heat"); s {
	case "on":
		return cacheDir(e), nil
	case "off":
		return "", nil
	default:
		return "", usagef("--heat is %q, want on or off", s)
	}
}

func heatCommand(e env) *cli.Command {
	model := &cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, instead of the argument"}
	return &cli.Command{
		Name:  "heat",
		Usage: "the learned expert heat of a model: show, export, import",
		Subcommands: []*cli.Command{
			{
				Name: "show", Usage: "how often which experts were used", ArgsUsage: "[MODEL]",
				Flags:  []cli.Flag{model, &cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}},
				Action: func(c *cli.Context) error { return runHeatShow(c, e) },
			},
			{
				Name: "export", Usage: "write the profile to a file that seeds another machine", ArgsUsage: "[MODEL]",
				Flags:  []cli.Flag{model, &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` to write (default: standard output)"}},
				Action: func(c *cli.Context) error { return runHeatExport(c, e) },
			},
			{
				Name: "import", Usage: "add the profile of a file, of the same model in any quantisation, to what was learned here", ArgsUsage: "[MODEL] FILE",
				Flags:  []cli.Flag{model, &cli.BoolFlag{Name: "replace", Usage: "forget what was learned here"}},
				Action: func(c *cli.Context) error { return runHeatImport(c, e) },
			},
		},
	}
}

// openHeat finds the profile of the model that --model or the argument in front of more others names.
func openHeat(c *cli.Context, e env, more int) (*engine.HeatProfile, []string, error) {
	args := c.Args().Slice()
	path := c.String("model")
	switch {
	case len(args) > more+1:
		return nil, nil, usagef("%d arguments, want at most %d", len(args), more+1)
	case len(args) == more+1 && path != "":
		return nil, nil, usagef("the model is given twice: by --model and as an argument")
	case len(args) == more+1:
		path, args = args[0], args[1:]
	case len(args) < more:
		return nil, nil, usagef("give the heat file")
	case path == "":
		var err error
		if path, err = modelPath(c, e); err != nil {
			return nil, nil, err
		}
	}
	dir, err := needCacheDir(e)
	if err != nil {
		return nil, nil, err
	}
	p, err := engine.OpenHeat(path, dir)
	if err != nil {
		return nil, nil, err
	}
	e.tell()
	return p, args, nil
}

// loadHeat reads a profile and says so where nothing was learned yet.
func loadHeat(p *engine.HeatProfile) (*tiers.Heat, error) {
	h, err := p.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("nothing was learned of this model yet: there is no %s", p.Path)
	}
	return h, err
}

// heatReport is what heat show prints.
type heatReport struct {
	Path   string          `json:"path"`
	Model  tiers.HeatModel `json:"model"`
	Tokens int64           `json:"tokens"`
	Layers []heatLayer     `json:"layers"`
	Half   int             `json:"experts_for_half"`       // as many hottest experts, of all layers, take half of the uses
	Most   int             `json:"experts_for_nine_tenth"` // and nine tenths
	Total  int             `json:"experts"`
}

type heatLayer struct {
	Layer   int       `json:"layer"`
	Used    int       `json:"used"`             // experts with any use left
	Half    int       `json:"experts_for_half"` // as many hottest take half of the layer's uses
	Hottest []int     `json:"hottest"`          // the first ones, hottest first
	Rates   []float64 `json:"rates"`            // by expert: estimated uses per token
}

// shareOf is how many of the rates, which fall, make so much of their sum.
func shareOf(falling []float64, share float64) int {
	var sum, part float64
	for _, r := range falling {
		sum += r
	}
	for i, r := range falling {
		if part += r; part >= share*sum && sum > 0 {
			return i + 1
		}
	}
	return 0
}

func heatReportOf(p *engine.HeatProfile, h *tiers.Heat) *heatReport {
	r := &heatReport{Path: p.Path, Model: h.Model, Tokens: h.Tokens}
	var all []float64
	for l, rates := range h.Rates() {
		if len(rates) == 0 {
			continue
		}
		x := heatLayer{Layer: l, Rates: rates}
		order := make([]int, len(rates))
		for i := range order {
			order[i] = i
		}
		sort.SliceStable(order, func(i, j int) bool { return rates[order[i]] > rates[order[j]] })
		falling := make([]float64, len(rates))
		for i, e := range order {
			falling[i] = rates[e]
			if rates[e] > 0 {
				x.Used++
			}
		}
		x.Half = shareOf(falling, 0.5)
		x.Hottest = order[:min(8, x.Used)]
		all = append(all, rates...)
		r.Layers = append(r.Layers, x)
	}
	sort.Sort(sort.Reverse(sort.Float64Slice(all)))
	r.Half, r.Most, r.Total = shareOf(all, 0.5), shareOf(all, 0.9), len(all)
	return r
}

func runHeatShow(c *cli.Context, e env) error {
	p, _, err := openHeat(c, e, 0)
	if err != nil {
		return err
	}
	h, err := loadHeat(p)
	if err != nil {
		return err
	}
	r := heatReportOf(p, h)
	if c.Bool("json") {
		return printJSON(e, r)
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "file\t%s\n", oneLine(r.Path))
	fmt.Fprintf(w, "model\t%s, architecture %s, %d experts a token\n", orUnknown(oneLine(r.Model.Name)), oneLine(r.Model.Arch), r.Model.TopK)
	fmt.Fprintf(w, "learned\t%d tokens; %d of %d experts (%s) take half of the uses, %d (%s) nine tenths\n", r.Tokens,
		r.Half, r.Total, share(int64(r.Half), int64(r.Total)), r.Most, share(int64(r.Most), int64(r.Total)))
	fmt.Fprintf(w, "\nlayer\tused\thalf\thottest (uses per 100 tokens)\n")
	for _, x := range r.Layers {
		fmt.Fprintf(w, "%d\t%d\t%d\t", x.Layer, x.Used, x.Half)
		for _, i := range x.Hottest {
			fmt.Fprintf(w, "%d (%.0f)  ", i, 100*x.Rates[i])
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func runHeatExport(c *cli.Context, e env) error {
	p, _, err := openHeat(c, e, 0)
	if err != nil {
		return err
	}
	h, err := loadHeat(p)
	if err != nil {
		return err
	}
	b, err := h.Encode()
	if err != nil {
		return err
	}
	if path := c.String("output"); path != "" && path != "-" {
		return replaceResult(path, b)
	}
	_, err = e.out.Write(b)
	return err
}

func runHeatImport(c *cli.Context, e env) error {
	p, args, err := openHeat(c, e, 1)
	if err != nil {
		return err
	}
	if err := p.Import(args[0], c.Bool("replace")); err != nil {
		return err
	}
	h, err := p.Load()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "%s now holds %d tokens\n", oneLine(p.Path), h.Tokens)
	return err
}
