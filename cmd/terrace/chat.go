package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/chatui"
	"terrace/engine"
	"terrace/internal/host"
)

func chatCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "chat",
		Usage: "talk with a model; from a pipe, a message a line",
		Flags: append(append(append(modelFlags(), samplingFlags()...), chatFlags()...), answerFlags()...),
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("%d arguments, and chat takes none: terrace run %q answers one prompt", c.NArg(), c.Args().First())
			}
			return runRun(c.Context, c, e)
		},
	}
}

// chatFlags are those of conversations alone.
func chatFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "load", Usage: "conversation: begin with the saved one of this `NAME`; last is the latest"},
		&cli.IntFlag{Name: "cache-ram", Aliases: []string{"cram"}, Value: -1, Usage: "conversation: MiB for prompts that are kept (-1: 8192 or 5 % of the budget, the smaller; 0: none)"},
		&cli.StringFlag{Name: "cache-dir", Usage: "conversation: `FOLDER` where prompts are kept over a restart (default: prompts in Terrace's cache folder)"},
		&cli.StringFlag{Name: "cache-disk", Value: "auto", Usage: "conversation: `SIZE` that they may take there (auto: 16GiB or a tenth of what is free, the smaller; 0: none)"},
	}
}

// stateDir is the folder of conversations and of what was typed, "" where the environment names no place.
func stateDir(e env) string {
	dir := e.getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // a relative one is to be ignored, says its specification
		dir = ""
		if home := e.getenv("HOME"); home != "" {
			dir = filepath.Join(home, ".local", "state")
		} else if local := e.getenv("LocalAppData"); local != "" {
			dir = local
		}
	}
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "terrace")
}

// interrupts are the interrupts of the keyboard: somebody may take them, else they end the program.
type interrupts struct {
	mu    sync.Mutex
	taker chan struct{}
}

// take hands interrupts over until release.
func (i *interrupts) take() (hear <-chan struct{}, release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := make(chan struct{}, 1)
	i.taker = c
	return c, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.taker == c {
			i.taker = nil
		}
	}
}

// came gives an interrupt to whoever has taken them, if anybody has.
func (i *interrupts) came() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.taker == nil {
		return false
	}
	select {
	case i.taker <- struct{}{}:
	default: // the last one was not heard yet
	}
	return true
}

// diverter is standard error, which a screen may take over, a line at a time.
type diverter struct {
	w    io.Writer
	mu   sync.Mutex
	to   func(string)
	line []byte
}

func (d *diverter) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.to == nil {
		return d.w.Write(p)
	}
	d.line = append(d.line, p...)
	for {
		i := bytes.IndexByte(d.line, '\n')
		if i < 0 {
			return len(p), nil
		}
		d.to(string(d.line[:i]))
		d.line = d.line[i+1:]
	}
}

// divert hands lines to to until restore.
func (d *diverter) divert(to func(string)) (restore func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.to = nil
		if len(d.line) > 0 {
			d.w.Write(append(d.line, '\n'))
			d.line = nil
		}
	}
}

// screen says whether a live view can be shown: keys come from a terminal, and what is written goes to one that can more than lines.
func (e env) screen() bool {
	out, ok := e.tty.out.(*os.File)
	return e.terminal && e.getenv("TERM") != "dumb" && ok && host.IsTerminal(out)
}

// chat talks with whoever is at the other end of standard input.
func (r *runner) chat(ctx context.Context, cache engine.PromptCacheOptions) (failed error) {
	if r.eng.Budget().Cache > 0 {
		prompts, err := r.eng.NewPromptCache(cache)
		if err != nil {
			return err
		}
		r.s.UseCache(prompts)
		defer func() {
			r.s.UseCache(nil)
			end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := prompts.Close(end); err != nil && failed == nil {
				failed = fmt.Errorf("the prompt cache: %w", err)
			}
		}()
	}
	o := chatui.Options{
		Engine: r.eng, Session: r.s, Params: r.params, System: r.c.String("system-prompt"), NoThink: r.c.Bool("no-think"), Max: max(0, r.c.Int("predict")),
		Name: r.modelName(), HashLogits: r.c.Bool("hash-logits"), Dir: stateDir(r.e), Load: r.c.String("load"),
		In: r.e.in, Out: r.e.out, Err: r.e.err, Prompt: r.e.terminal,
		Report: func(st *engine.Stats) (string, error) {
			var b strings.Builder
			if r.statsTo != r.e.err {
				return "", r.printStats(r.statsTo, st)
			}
			err := r.printStats(&b, st)
			return b.String(), err
		},
		Explain: func(st *engine.Stats) string {
			var b strings.Builder
			_ = statsText(&b, st) // a builder takes everything
			return b.String()
		},
	}
	if r.e.interrupts != nil {
		o.Interrupts = r.e.interrupts.take
	}
	if r.e.screen() {
		o.Screen, o.Colour, o.Environ = true, r.e.colour, os.Environ()
		o.In, o.Out, o.Divert = r.e.tty.in, r.e.tty.out, r.e.tty.err.divert
	}
	return chatui.Run(ctx, o)
}

// modelName is what the model calls itself, else its file's name.
func (r *runner) modelName() string {
	if n, err := r.eng.File().Metadata.StringOr("general.name", ""); err == nil && n != "" {
		return oneLine(n)
	}
	return filepath.Base(r.eng.Options().Path)
}
