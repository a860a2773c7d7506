package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func completionCommand(e env, app func() *cli.App) *cli.Command {
	kinds := map[string]func(*cli.App) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completions of a shell: bash, zsh or fish",
		ArgsUsage: "bash|zsh|fish",
		Description: "bash: source <(terrace completion bash), for example in ~/.bashrc. zsh: terrace completion zsh > _terrace in a folder of $fpath. " +
			"fish: terrace completion fish > ~/.config/fish/completions/terrace.fish",
		Action: func(c *cli.Context) error {
			make, ok := kinds[c.Args().First()]
			if c.NArg() != 1 || !ok {
				return usagef("%q, want one of bash, zsh, fish", strings.Join(c.Args().Slice(), " "))
			}
			_, err := fmt.Fprint(e.out, make(app()))
			return err
		},
	}
}

// flagValues are the words that flags take.
var flagValues = map[string][]string{
	"cache-type-k": {"f32", "f16", "q8_0", "q4_0"}, "cache-type-v": {"f32", "f16", "q8_0", "q4_0"},
	"ram": {"auto"}, "vram": {"auto"}, "expert-ram": {"min"}, "lookahead": {"auto", "0", "1", "2"},
	"predictor-kind": {"auto", "gate-ahead", "fitted"}, "store": {"auto", "uring", "pread", "mmap"}, "dense": {"ram", "mmap"},
	"backend": {"auto", "cpu", "vulkan"}, "rope-scaling": {"none", "linear", "yarn"}, "heat": {"on", "off"},
	"stats": {"off", "text", "json"}, "cache-disk": {"auto", "0"}, "reasoning-format": {"auto", "deepseek", "none", "deepseek-legacy"},
}

// node is a command and the words that lead to it.
type node struct {
	*cli.Command
	path []string // without the program's name
}

// nodes are all commands that are shown, each before its subcommands.
func nodes(app *cli.App) (out []node) {
	var walk func(cs []*cli.Command, path []string)
	walk = func(cs []*cli.Command, path []string) {
		for _, c := range cs {
			if c.Hidden || c.Name == "help" {
				continue
			}
			n := node{c, append(slices.Clone(path), c.Name)}
			out = append(out, n)
			walk(c.Subcommands, n.path)
		}
	}
	walk(app.Commands, nil)
	return out
}

// dashed is a flag's name as it is typed.
func dashed(n string) string {
	if len(n) <= 3 && n != "ram" && n != "raw" {
		return "-" + n
	}
	return "--" + n
}

func bashCompletion(app *cli.App) string {
	var b strings.Builder
	all := nodes(app)
	b.WriteString("# completions of terrace for bash\n_terrace() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= i words=\n")
	b.WriteString("\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tcase \"$path/${COMP_WORDS[i]}\" in\n\t\t")
	for i, n := range all {
		if i > 0 {
			b.WriteString(" | ")
		}
		b.WriteString("/" + strings.Join(n.path, "/"))
	}
	b.WriteString(") path+=/${COMP_WORDS[i]} ;;\n\t\tesac\n\tdone\n\tcase $prev in\n")
	for _, name := range sortedKeys(flagValues) {
		fmt.Fprintf(&b, "\t--%s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", name, strings.Join(flagValues[name], " "))
	}
	b.WriteString("\tesac\n\tcase $path in\n\t'')\n\t\twords=\"")
	for i, c := range app.Commands {
		if i > 0 {
			b.WriteString(" ")
		}
		b.WriteString(c.Name)
	}
	b.WriteString(" --help --version\" ;;\n")
	for _, n := range all {
		var words []string
		for _, c := range n.Subcommands {
			if !c.Hidden && c.Name != "help" {
				words = append(words, c.Name)
			}
		}
		if n.Name == "completion" {
			words = append(words, "bash", "zsh", "fish")
		}
		for _, f := range visibleFlags(n.Command) {
			words = append(words, "--"+f.Names()[0])
		}
		fmt.Fprintf(&b, "\t/%s) words=%q ;;\n", strings.Join(n.path, "/"), strings.Join(append(words, "--help"), " "))
	}
	b.WriteString("\tesac\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n" +
		"\tif [[ $cur != -* && $path ]]; then COMPREPLY+=($(compgen -f -- \"$cur\")); fi\n}\ncomplete -o filenames -F _terrace terrace\n")
	return b.String()
}

// zshQuote is text within '...' of a specification of _arguments.
func zshQuote(s string) string {
	return strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`, "`", "").Replace(s)
}

func zshCompletion(app *cli.App) string {
	var b strings.Builder
	b.WriteString("#compdef terrace\n# completions of terrace for zsh\n")
	function := func(path []string) string { return strings.Join(append([]string{"_terrace"}, path...), "_") }
	list := func(cs []*cli.Command) {
		b.WriteString("\t\tlocal -a commands=(\n")
		for _, c := range cs {
			if !c.Hidden && c.Name != "help" {
				fmt.Fprintf(&b, "\t\t\t'%s:%s'\n", c.Name, zshQuote(c.Usage))
			}
		}
		b.WriteString("\t\t)\n\t\t_describe command commands\n")
	}
	dispatch := func(cs []*cli.Command, path []string) {
		fmt.Fprintf(&b, "%s() {\n\tif (( CURRENT == 2 )); then\n", function(path))
		list(cs)
		b.WriteString("\t\treturn\n\tfi\n\tcase $words[2] in\n")
		for _, c := range cs {
			if !c.Hidden && c.Name != "help" {
				fmt.Fprintf(&b, "\t%s) shift words; (( CURRENT-- )); %s ;;\n", c.Name, function(append(slices.Clone(path), c.Name)))
			}
		}
		b.WriteString("\tesac\n}\n")
	}
	for _, n := range nodes(app) {
		if len(n.Subcommands) > 0 {
			dispatch(n.Subcommands, n.path)
			continue
		}
		fmt.Fprintf(&b, "%s() {\n\t_arguments", function(n.path))
		for _, f := range visibleFlags(n.Command) {
			_, value, usage := flagWords(f)
			for _, name := range f.Names() {
				fmt.Fprintf(&b, " \\\n\t\t'%s[%s]", dashed(name), zshQuote(usage))
				if f.TakesValue() {
					fmt.Fprintf(&b, ":%s:", zshQuote(value))
					switch {
					case flagValues[f.Names()[0]] != nil:
						fmt.Fprintf(&b, "(%s)", strings.Join(flagValues[f.Names()[0]], " "))
					case f.Names()[0] == "model":
						b.WriteString(`_files -g "*.gguf"`)
					case value == "FILE", value == "PATH":
						b.WriteString("_files")
					case value == "FOLDER":
						b.WriteString("_files -/")
					}
				}
				b.WriteString("'")
			}
		}
		if n.Name == "completion" {
			b.WriteString(" \\\n\t\t'1:shell:(bash zsh fish)'\n}\n")
		} else {
			b.WriteString(" \\\n\t\t'*:file:_files'\n}\n")
		}
	}
	dispatch(app.Commands, nil)
	b.WriteString("if [ \"$funcstack[1]\" = _terrace ]; then _terrace \"$@\"; else compdef _terrace terrace; fi\n")
	return b.String()
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`, "`", "").Replace(s) + "'"
}

func fishCompletion(app *cli.App) string {
	var b strings.Builder
	b.WriteString("# completions of terrace for fish\n")
	for _, c := range app.Commands {
		if !c.Hidden && c.Name != "help" {
			fmt.Fprintf(&b, "complete -c terrace -n __fish_use_subcommand -f -a %s -d %s\n", c.Name, fishQuote(c.Usage))
		}
	}
	for _, n := range nodes(app) {
		var seen []string
		for _, p := range n.path {
			seen = append(seen, "__fish_seen_subcommand_from "+p)
		}
		when := strings.Join(seen, "; and ")
		if len(n.Subcommands) > 0 {
			var names []string
			for _, c := range n.Subcommands {
				names = append(names, c.Name)
			}
			for _, c := range n.Subcommands {
				if !c.Hidden && c.Name != "help" {
					fmt.Fprintf(&b, "complete -c terrace -n '%s; and not __fish_seen_subcommand_from %s' -f -a %s -d %s\n", when, strings.Join(names, " "), c.Name, fishQuote(c.Usage))
				}
			}
		}
		if n.Name == "completion" {
			fmt.Fprintf(&b, "complete -c terrace -n '%s' -f -a 'bash zsh fish'\n", when)
		}
		for _, f := range visibleFlags(n.Command) {
			_, value, usage := flagWords(f)
			fmt.Fprintf(&b, "complete -c terrace -n '%s'", when)
			for _, name := range f.Names() {
				switch d := dashed(name); {
				case len(name) == 1:
					b.WriteString(" -s " + name)
				case strings.HasPrefix(d, "--"):
					b.WriteString(" -l " + name)
				default:
					b.WriteString(" -o " + name)
				}
			}
			if f.TakesValue() {
				switch words := flagValues[f.Names()[0]]; {
				case words != nil:
					fmt.Fprintf(&b, " -x -a '%s'", strings.Join(words, " "))
				case value == "FILE", value == "PATH", value == "FOLDER":
					b.WriteString(" -r -F")
				default:
					b.WriteString(" -x")
				}
			}
			fmt.Fprintf(&b, " -d %s\n", fishQuote(usage))
		}
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
