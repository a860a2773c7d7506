package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"terrace/doctor"
	"terrace/engine"
	"terrace/plan"
)

func doctorCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "what stands in the way of a good run on this machine, or with a model file, and what to do about it",
		ArgsUsage: "[MODEL]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE` to look at as well (default: $TERRACE_MODEL, or none)"},
			&cli.IntFlag{Name: "ctx-size", Aliases: []string{"c"}, Usage: "context, `N` positions (0: the smaller of the model's and 4096)"},
			&cli.StringFlag{Name: "host", Value: "127.0.0.1", Usage: "address that serve would listen on"},
			&cli.IntFlag{Name: "port", Value: 8080, Usage: "port of it, `N`"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"},
		},
		Action: func(c *cli.Context) error { return runDoctor(c, e) },
	}
}

// doctorReport is what `doctor --json` prints.
type doctorReport struct {
	State    string           `json:"state"` // the gravest
	Findings []doctor.Finding `json:"findings"`
}

func runDoctor(c *cli.Context, e env) error {
	path := c.String("model")
	switch {
	case c.NArg() > 1:
		return usagef("%d arguments, want at most one model", c.NArg())
	case c.NArg() == 1 && path != "":
		return usagef("the model is given twice: by --model and as an argument")
	case c.NArg() == 1:
		path = c.Args().First()
	case path == "":
		path = e.getenv("TERRACE_MODEL")
	}
	if p := c.Int("port"); p < 1 || p > 65535 {
		return usagef("--port is %d, want 1 to 65535", p)
	}
	o := doctor.Options{Model: path, Engine: engine.Options{Context: c.Int("ctx-size"), Lookahead: engine.LookaheadAuto}, Address: net.JoinHostPort(c.String("host"), strconv.Itoa(c.Int("port")))}
	if dir := cacheDir(e); dir != "" {
		o.Cache, o.Profile = dir, filepath.Join(dir, "machine.json")
	}
	o.Cards = func() ([]doctor.Card, error) {
		var p plan.Profile
		if o.Profile != "" {
			p, _ = plan.ReadProfile(o.Profile) // the finding about the profile says what is wrong with it
		}
		return cards(&p)
	}
	list := doctor.Examine(c.Context, o)
	r := doctorReport{State: doctor.Worst(list), Findings: list}
	if c.Bool("json") {
		if err := printJSON(e, r); err != nil {
			return err
		}
	} else if err := doctorText(e, list); err != nil {
		return err
	}
	if r.State == doctor.Fail {
		for _, f := range list {
			if f.State == doctor.Fail {
				return fmt.Errorf("%s: %s", f.Check, f.What)
			}
		}
	}
	return nil
}

func doctorText(e env, list []doctor.Finding) error {
	colours := map[string]string{doctor.OK: "\x1b[32m", doctor.Warn: "\x1b[33m", doctor.Fail: "\x1b[31m"}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.State, f.Check, oneLine(f.What))
		if f.Do != "" {
			fmt.Fprintf(w, "\t\t> %s\n", oneLine(f.Do))
		}
	}
	w.Flush()
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		word, _, _ := strings.Cut(line, " ")
		if c := colours[word]; c != "" && e.colour {
			line = c + word + "\x1b[0m" + line[len(word):]
		}
		out.WriteString(line)
	}
	_, err := fmt.Fprint(e.out, out.String())
	return err
}
