package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func manCommand(e env, app func() *cli.App) *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "print the manual page: terrace man > terrace.1",
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("%d arguments, want none", c.NArg())
			}
			_, err := fmt.Fprint(e.out, manPage(app()))
			return err
		},
	}
}

// roff is text for a line of a manual page.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", "").Replace(strings.Join(strings.Fields(s), " "))
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// manPage is the manual page in roff's man macros.
func manPage(app *cli.App) string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p(`.TH TERRACE 1 "" "terrace %s" "User Commands"`, roff(version))
	p(".SH NAME\nterrace \\- %s", roff(app.Usage))
	p(".SH SYNOPSIS\n.B terrace\n.I COMMAND\n.RI [ FLAGS ]\n.RI [ ARGUMENTS ]")
	p(".SH DESCRIPTION")
	p("%s", roff("Terrace keeps the dense weights of a Mixture-of-Experts model in memory and reads the experts from the disk as they are needed, through a cache within a budget. "+
		"Sizes take k, M and G (powers of 1024) and kB, MB and GB (powers of 1000)."))
	p(".SH COMMANDS")
	for _, n := range nodes(app) {
		p(".SS terrace %s %s", roff(strings.Join(n.path, " ")), roff(n.ArgsUsage))
		p("%s", roff(sentence(n.Usage)))
		if n.Description != "" {
			p(".PP\n%s", roff(n.Description))
		}
		flags := visibleFlags(n.Command)
		byName := map[string]cli.DocGenerationFlag{}
		for _, f := range flags {
			byName[f.Names()[0]] = f
		}
		groups, _ := grouped(flags)
		for _, g := range groups {
			if len(groups) > 1 {
				p(".PP\n%s:", roff(g.title))
			}
			for _, name := range g.flags {
				names, value, usage := flagWords(byName[name])
				if value != "" {
					value = ` \fI` + roff(value) + `\fR`
				}
				p(".TP\n\\fB%s\\fR%s", roff(names), value)
				p("%s", roff(usage))
			}
		}
	}
	p(".SH ENVIRONMENT")
	for _, v := range [][2]string{
		{"TERRACE_MODEL", "the model that is used without -m"},
		{"HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE", "the hub that models are fetched from, a token for it, and whether it is left alone"},
		{"HF_HUB_CACHE, HF_HOME", "where fetched models lie"},
		{"XDG_CACHE_HOME", "its folder terrace holds what can be made again: the machine's profile, heat, prompts"},
		{"XDG_STATE_HOME", "its folder terrace holds saved conversations and what was typed"},
		{"NO_COLOR", "if it is set there are no colours"},
		{"TERM", "dumb: no escape codes at all"},
	} {
		p(".TP\n.B %s\n%s", roff(v[0]), roff(v[1]))
	}
	p(".SH EXIT STATUS")
	for _, v := range [][2]string{{"0", "success"}, {"1", "a failure while it ran"}, {"2", "wrong usage"}, {"3", "the model or the plan does not fit into memory"}} {
		p(".TP\n.B %s\n%s", v[0], v[1])
	}
	return b.String()
}
