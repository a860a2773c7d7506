package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// commandGroup is what commands have in common, for the first screen.
type commandGroup struct {
	title    string
	commands [][2]string // name, and what it is for in a few words
}

var commandGroups = []commandGroup{
	{"Talk", [][2]string{
		{"run", "answer one prompt, streamed; without a prompt, talk"},
		{"chat", "talk with a model"},
		{"serve", "answer HTTP as llama-server, OpenAI and Anthropic do"},
	}},
	{"Models", [][2]string{
		{"pull", "fetch a model by its name"},
		{"plan", "what a model would do on this machine, before it is loaded"},
		{"inspect", "what is in a model's file"},
		{"heat", "which experts a model was seen to use"},
	}},
	{"Measure", [][2]string{
		{"doctor", "what stands in the way of a good run"},
		{"calibrate", "measure this machine once, for plans"},
		{"bench", "measure speed, memory and the disk"},
		{"eval", "measure what a model says"},
	}},
	{"Shell", [][2]string{
		{"completion", "completions for bash, zsh or fish"},
		{"man", "all of this as a manual page"},
	}},
}

// flagGroup is what flags have in common. The first ones of a group, common of them, are shown by a short help.
type flagGroup struct {
	title  string
	common int
	flags  []string
}

var flagGroups = []flagGroup{
	{"Model", 3, []string{"model", "hf-repo", "offline", "hf-file", "models", "hf-token", "chat-template", "chat-template-file", "chat-template-kwargs", "alias"}},
	{"Answer", 6, []string{"prompt", "system-prompt", "predict", "no-think", "raw", "load", "stop-loops", "keep", "context-shift", "no-context-shift", "grammar", "json-schema", "reasoning", "reasoning-format", "reasoning-budget"}},
	{"Server", 3, []string{"host", "port", "parallel", "api-key", "api-key-file", "api-prefix", "metrics", "ui", "no-ui", "slots", "no-slots", "props", "slot-save-path", "slot-prompt-similarity",
		"timeout", "sse-ping-interval", "cors-origins", "cors-methods", "cors-headers", "cors-credentials", "no-cors-credentials", "embeddings", "pooling", "reranking", "spm-infill"}},
	{"Memory", 3, []string{"ram", "ctx-size", "vram", "expert-ram", "cache-type-k", "cache-type-v", "dense"}},
	{"Speed", 2, []string{"threads", "backend", "gpu-layers", "device", "batch-size", "store", "mirror", "lookahead", "predictor-kind", "refine", "heat", "verify", "exact"}},
	{"Sampling", 2, []string{"temp", "seed", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-last-n", "presence-penalty", "frequency-penalty", "ignore-eos", "samplers"}},
	{"Longer contexts", 0, []string{"rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx", "yarn-ext-factor", "yarn-attn-factor", "yarn-beta-slow", "yarn-beta-fast"}},
	{"Prompts kept", 0, []string{"cache-prompt", "no-cache-prompt", "cache-ram", "cache-dir", "cache-disk"}},
	{"Output", 2, []string{"stats", "json", "stats-file", "hash-logits", "trace", "stall-report", "verbose"}},
}

// shortFlags is how many flags a command may have for its help to show them all.
const shortFlags = 16

// helpWidth is how wide help is at most.
const helpWidth = 100

// appHelp is the first screen: at most 24 lines of 80 columns.
func appHelp() string {
	var b strings.Builder
	b.WriteString("terrace runs Mixture-of-Experts models larger than memory, straight from GGUF.\n")
	for _, g := range commandGroups {
		fmt.Fprintf(&b, "%s\n", g.title)
		for _, c := range g.commands {
			fmt.Fprintf(&b, "  %-11s %s\n", c[0], c[1])
		}
	}
	fmt.Fprintf(&b, "terrace COMMAND --help says more; --version: %s\n", version)
	return b.String()
}

// helpFlag is the flag of commands that have more flags than their help shows.
func helpFlag() cli.Flag {
	return &cli.BoolFlag{Name: "help-all", Usage: "all flags, explained"}
}

// visibleFlags are the flags of a command but --help.
func visibleFlags(c *cli.Command) []cli.DocGenerationFlag {
	var out []cli.DocGenerationFlag
	for _, f := range c.Flags {
		d, ok := f.(cli.DocGenerationFlag)
		if v, hides := f.(cli.VisibleFlag); !ok || hides && !v.IsVisible() || slices.Contains(f.Names(), "help") {
			continue
		}
		out = append(out, d)
	}
	return out
}

// grouped sorts flags into groups, of which the last takes what no group has. common tells those of a short help.
func grouped(flags []cli.DocGenerationFlag) (groups []flagGroup, common func(name string) bool) {
	have := map[string]bool{}
	for _, f := range flags {
		have[f.Names()[0]] = true
	}
	often := map[string]bool{}
	for _, g := range flagGroups {
		z := flagGroup{title: g.title}
		for i, n := range g.flags {
			if have[n] {
				z.flags = append(z.flags, n)
				often[n] = i < g.common
				delete(have, n)
			}
		}
		if len(z.flags) > 0 {
			groups = append(groups, z)
		}
	}
	rest := flagGroup{title: "Other"}
	for _, f := range flags {
		if n := f.Names()[0]; have[n] {
			rest.flags = append(rest.flags, n)
			often[n] = true
		}
	}
	if len(rest.flags) > 0 {
		groups = append(groups, rest)
	}
	return groups, func(name string) bool { return often[name] }
}

// flagWords are a flag's names, as they are typed, with the word for its value, and what it is for.
func flagWords(f cli.DocGenerationFlag) (names, value, usage string) {
	usage = f.GetUsage()
	if i := strings.IndexByte(usage, '`'); i >= 0 {
		if j := strings.IndexByte(usage[i+1:], '`'); j >= 0 {
			value = usage[i+1 : i+1+j]
			usage = usage[:i] + value + usage[i+j+2:]
		}
	}
	if value == "" && f.TakesValue() {
		value = "TEXT"
		switch f.(type) {
		case *cli.IntFlag, *cli.Int64Flag, *cli.Uint64Flag, *cli.Float64Flag, *cli.UintFlag:
			value = "N"
		case *cli.DurationFlag:
			value = "TIME"
		}
	}
	var short, long []string
	for _, n := range f.Names() {
		if len(n) == 1 {
			short = append(short, "-"+n)
		} else if n == f.Names()[0] {
			long = append([]string{"--" + n}, long...)
		} else if len(n) <= 3 {
			short = append(short, "-"+n)
		} else {
			long = append(long, "--"+n)
		}
	}
	names = strings.Join(append(short, long...), ", ")
	if d := strings.Trim(f.GetDefaultText(), `"`); f.TakesValue() && d != "" && d != "0" && d != "-1" && !strings.Contains(usage, "default") {
		usage += " (default: " + d + ")"
	}
	return names, value, usage
}

// commandHelp is a command's help; all has it explain every flag.
func commandHelp(c *cli.Command, path string, all bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n  %s", sentence(fold(c.Usage, helpWidth, "")), path)
	var below []*cli.Command
	for _, s := range c.Subcommands {
		if !s.Hidden && s.Name != "help" {
			below = append(below, s)
		}
	}
	if len(below) > 0 {
		b.WriteString(" COMMAND")
	}
	if len(visibleFlags(c)) > 0 {
		b.WriteString(" [FLAGS]")
	}
	if c.ArgsUsage != "" {
		b.WriteString(" " + c.ArgsUsage)
	}
	b.WriteString("\n")
	if c.Description != "" {
		b.WriteString("\n" + fold(c.Description, helpWidth, "") + "\n")
	}
	if len(below) > 0 {
		b.WriteString("\n")
		wide := 0
		for _, s := range below {
			wide = max(wide, len(s.Name))
		}
		for _, s := range below {
			fmt.Fprintf(&b, "  %-*s  %s\n", wide, s.Name, fold(s.Usage, helpWidth-wide-4, strings.Repeat(" ", wide+4)))
		}
	}
	flags := visibleFlags(c)
	byName := map[string]cli.DocGenerationFlag{}
	for _, f := range flags {
		byName[f.Names()[0]] = f
	}
	all = all || len(flags) <= shortFlags
	groups, common := grouped(flags)
	var more []string
	for _, g := range groups {
		var left []string
		said := len(groups) == 1
		if said {
			b.WriteString("\n")
		}
		for _, n := range g.flags {
			if !all && !common(n) {
				left = append(left, "--"+n)
				continue
			}
			if n == "help-all" {
				continue
			}
			if !said {
				said = true
				fmt.Fprintf(&b, "\n%s\n", g.title)
			}
			names, value, usage := flagWords(byName[n])
			head := strings.TrimSpace("  " + names + " " + value)
			const col = 30
			if utf8.RuneCountInString(head) > col-2 {
				fmt.Fprintf(&b, "  %s\n%s%s\n", head, strings.Repeat(" ", col+2), fold(usage, helpWidth-col-2, strings.Repeat(" ", col+2)))
			} else {
				fmt.Fprintf(&b, "  %-*s%s\n", col, head, fold(usage, helpWidth-col-2, strings.Repeat(" ", col+2)))
			}
		}
		if len(left) > 0 {
			more = append(more, fmt.Sprintf("  %-16s %s", g.title, fold(strings.Join(left, " "), helpWidth-19, strings.Repeat(" ", 19))))
		}
	}
	if len(more) > 0 {
		fmt.Fprintf(&b, "\nMore, explained by %s --help-all\n%s\n", path, strings.Join(more, "\n"))
	}
	return b.String()
}

// sentence begins with a capital letter.
func sentence(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(string(r)) + s[n:] + "."
}

// fold breaks text between words into lines of at most width; all but the first begin with indent.
func fold(text string, width int, indent string) string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return strings.Join(append(lines, line), "\n"+indent)
}

// literal is text as a template that prints it.
func literal(text string) string { return strings.ReplaceAll(text, "{{", `{{"{{"}}`) }

// explain gives every command its help.
func explain(app *cli.App, e env) {
	app.CustomAppHelpTemplate = literal(appHelp())
	var walk func(cs []*cli.Command, path string)
	walk = func(cs []*cli.Command, path string) {
		for _, c := range cs {
			path := path + " " + c.Name
			help := commandHelp(c, path, false)
			if all := commandHelp(c, path, true); strings.Count(help, "\n") >= strings.Count(all, "\n") {
				help = all // to leave so few out saves no line
			} else {
				c.Flags = append(c.Flags, helpFlag())
				act := c.Action
				c.Action = func(x *cli.Context) error {
					if x.Bool("help-all") {
						_, err := fmt.Fprint(e.out, commandHelp(c, path, true))
						return err
					}
					return act(x)
				}
			}
			c.CustomHelpTemplate = literal(help)
			walk(c.Subcommands, path)
		}
	}
	walk(app.Commands, app.Name)
}
