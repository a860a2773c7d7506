// Command terrace runs Mixture-of-Experts language models from the SSD within a memory budget.
//
// The commands are thin: flags become an options struct, one call does the work, and the result is printed. This is the
// only package that reads the environment and talks to people.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"terrace/engine"
	"terrace/hub"
	"terrace/internal/host"
)

// Exit codes (documented in README.md).
const (
	exitOK      = 0
	exitFailure = 1 // a run-time failure
	exitUsage   = 2 // wrong usage
	exitNoFit   = 3 // the model does not fit into the memory it may use
)

// usageError marks an error that the caller's command line caused.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// env is what a command may touch of the outside, so that tests can stand in for it.
type env struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	terminal bool // in is one: somebody types there
	colour   bool // out is one that shows colours
	notice   *string

	interrupts *interrupts // nil: nobody hands them over
	tty        *tty        // the streams as they are; run fills it
}

// tell prints what modelPath had to say, once nothing went wrong with the model: an error stays a single line.
func (e env) tell() {
	if *e.notice != "" {
		fmt.Fprintf(e.err, "terrace: %s\n", *e.notice)
		*e.notice = ""
	}
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	taken := new(interrupts)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for s := range signals {
			if s == os.Interrupt && taken.came() {
				continue
			}
			signal.Stop(signals) // a second signal ends the process at once, whatever it is in
			cancel()
			return
		}
	}()
	os.Exit(run(ctx, os.Args, env{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, interrupts: taken}))
}

// run executes the command line and returns the exit code. An error is one line on e.err.
func run(ctx context.Context, args []string, e env) (code int) {
	defer func() {
		if p := recover(); p != nil { // a broken contract inside: still one line, never a stack
			fmt.Fprintf(e.err, "terrace: internal error, please report it: %s\n", oneLine(fmt.Sprint(p)))
			code = exitFailure
		}
	}()
	if f, ok := e.out.(*os.File); ok && e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb" {
		e.colour = host.IsTerminal(f)
	}
	e.tty = &tty{in: e.in, out: e.out, err: &diverter{w: e.err}}
	out := &watched{w: e.out}
	e.out, e.err = out, e.tty.err
	if f, ok := e.in.(*os.File); ok {
		e.terminal = host.IsTerminal(f)
	}
	e.in = &interruptible{ctx: ctx, r: e.in}
	e.notice = new(string)
	app := newApp(e)
	err := app.RunContext(ctx, reorder(app, args))
	if err == nil && out.err != nil {
		err = fmt.Errorf("standard output: %w", out.err)
	}
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(e.err, "terrace: %s\n", oneLine(err.Error()))
	var u usageError
	switch {
	case errors.As(err, &u), errors.Is(err, engine.ErrUsage), errors.Is(err, hub.ErrName):
		return exitUsage
	case errors.Is(err, engine.ErrDoesNotFit):
		return exitNoFit
	}
	return exitFailure
}

// version is set by the build.
var version = "(development)"

// known are flags of llama.cpp's and Ollama's that Terrace has no use for, and what to do instead.
var known = map[string]string{
	"fa": "attention has one form: leave it out", "flash-attn": "attention has one form: leave it out",
	"no-mmap": "experts are read as --store says, dense weights stay in RAM", "mlock": "dense weights stay in RAM: leave it out",
	"cpu-moe": "experts are on the CPU: leave it out", "n-cpu-moe": "experts are on the CPU: leave it out", "ncmoe": "experts are on the CPU: leave it out",
	"cnv": "without PROMPT on a terminal it is a conversation", "i": "without PROMPT on a terminal it is a conversation", "no-cnv": "--raw continues a text without the template",
	"f": "write < FILE", "think": "--no-think turns thinking off", "reasoning-budget": "--no-think turns thinking off",
}

// flagError words the library's complaint about a flag as ours.
func flagError(c *cli.Context, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return err
	}
	if hint, ok := known[strings.TrimLeft(name, "-")]; ok {
		return fmt.Errorf("unknown flag -%s: %s", name, hint)
	}
	help := "terrace --help lists them"
	if c != nil && c.Command != nil && c.Command.Name != "" && c.Command.Name != "terrace" {
		help = fmt.Sprintf("terrace %s --help lists them; a prompt that begins with - goes after --", c.Command.FullName())
	}
	return fmt.Errorf("unknown flag -%s: %s", name, help)
}

func newApp(e env) *cli.App {
	var app *cli.App
	this := func() *cli.App { return app }
	app = &cli.App{
		Name:      "terrace",
		Usage:     "run Mixture-of-Experts models larger than memory, straight from their GGUF file",
		Writer:    e.out,
		ErrWriter: e.err,
		Reader:    e.in,
		Commands: []*cli.Command{
			runCommand(e),
			chatCommand(e),
			planCommand(e),
			pullCommand(e),
			serveCommand(e),
			inspectCommand(e),
			evalCommand(e),
			benchCommand(e),
			heatCommand(e),
			calibrateCommand(e),
			doctorCommand(e),
			completionCommand(e, this),
			manCommand(e, this),
		},
		Version:                version,
		ExitErrHandler:         func(*cli.Context, error) {},
		UseShortOptionHandling: false,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("unknown command %q; terrace --help lists them", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	onUsage := func(c *cli.Context, err error, _ bool) error { return usageError{flagError(c, err)} }
	app.OnUsageError = onUsage
	var walk func(cs []*cli.Command)
	walk = func(cs []*cli.Command) {
		for _, c := range cs {
			c.OnUsageError = onUsage
			if c.Action == nil {
				name := c.Name
				c.Action = func(c *cli.Context) error {
					if c.NArg() > 0 {
						return usagef("unknown %s %q; terrace %s --help lists them", name, c.Args().First(), name)
					}
					return cli.ShowSubcommandHelp(c)
				}
			}
			walk(c.Subcommands)
		}
	}
	walk(app.Commands)
	explain(app, e)
	return app
}

// reorder moves the flags of a command before its positional arguments, so that `terrace run "question" -n 20` works: the
// library stops at the first positional. Everything after "--" stays as it is. A call for help is left alone with its
// command, and a last flag that lacks its value comes last, so that the library names it.
func reorder(app *cli.App, args []string) []string {
	if len(args) < 2 {
		return args
	}
	head := 1
	var cmd *cli.Command
	list := app.Commands
	for head < len(args) {
		var next *cli.Command
		for _, c := range list {
			if c.HasName(args[head]) {
				next = c
			}
		}
		if next == nil {
			break
		}
		cmd, list = next, next.Subcommands
		head++
	}
	if cmd == nil {
		return args
	}
	isBool := map[string]bool{"help": true, "h": true, "help-all": true}
	for _, f := range cmd.Flags {
		if _, ok := f.(*cli.BoolFlag); ok {
			for _, n := range f.Names() {
				isBool[n] = true
			}
		}
	}
	var flags, rest []string
	bare := false // the last flag lacks its value
	for i := head; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			rest = append(rest, a)
			continue
		}
		name := strings.TrimLeft(a, "-")
		if name == "help" || name == "h" || name == "help-all" {
			return append(append([]string{}, args[:head]...), a)
		}
		flags = append(flags, a)
		if !strings.Contains(name, "=") && !isBool[name] {
			if i++; i == len(args) {
				bare = true
				break
			}
			flags = append(flags, args[i])
		}
	}
	out := append(append([]string{}, args[:head]...), flags...)
	if bare {
		return out
	}
	return append(append(out, "--"), rest...)
}
