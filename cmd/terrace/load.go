package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/bench"
)

func loadCommand(e env) *cli.Command {
	return &cli.Command{
		Name:  "load",
		Usage: "many HTTP clients at once, half of which leave in the middle, with bad requests among them: are answers the same, and does nothing leak?",
		Description: "Without --url a server is started, and ended, with the flags of `terrace serve` behind --:\n" +
			"  terrace bench load -m MODEL --clients 64 --time 10m -- --expert-ram 50% -np 8\n" +
			"The exit status is 1 where an answer was not the one that a single client gets, or something was left behind.",
		ArgsUsage: "[-- SERVE FLAGS]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "url", Usage: "a server that runs, with --metrics, at `URL`"},
			&cli.StringFlag{Name: "api-key", Usage: "the `KEY` that it wants"},
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE` of the server to be started"},
			&cli.IntFlag{Name: "clients", Value: 64, Usage: "`N` at the same time"},
			&cli.DurationFlag{Name: "time", Value: time.Minute, Usage: "how long, `D` such as 90s or 10m"},
			&cli.Float64Flag{Name: "leave", Value: 0.5, Usage: "`SHARE` of the clients that leave at random moments"},
			&cli.Float64Flag{Name: "bad", Value: 0.15, Usage: "`SHARE` of the requests that are bad"},
			&cli.IntFlag{Name: "cases", Value: 35, Usage: "`N` different questions"},
			&cli.IntFlag{Name: "predict", Aliases: []string{"n"}, Value: 32, Usage: "tokens of an answer at most, `N`"},
			&cli.Uint64Flag{Name: "seed", Usage: "of what clients do, `N`"},
			&cli.DurationFlag{Name: "every", Value: 2 * time.Second, Usage: "time between two looks at the server, `D`"},
			&cli.DurationFlag{Name: "resize", Usage: "time between two changes of the server's RAM budget, from the least that works to half of all experts, `D` (0: none)"},
			&cli.StringFlag{Name: "soak", Usage: "`FILE` that each minute is appended to, as a line of JSON; those that it has already of this code are left out"},
			&cli.IntFlag{Name: "minutes", Value: 60, Usage: "with --soak: `N` in all, instead of --time"},
			&cli.StringFlag{Name: "code", Usage: "with --soak: the `COMMIT` of the code that counts (default: the program's own)"},
			&cli.StringFlag{Name: "label", Usage: "`TEXT` about the conditions"},
			&cli.StringFlag{Name: "server-log", Usage: "`FILE` for what the started server says (default: standard error)"},
			&cli.BoolFlag{Name: "markdown", Usage: "tables for bench/results on standard output"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}},
		Action: func(c *cli.Context) error { return runLoad(c, e) },
	}
}

func runLoad(c *cli.Context, e env) error {
	cfg := bench.LoadConfig{
		URL: c.String("url"), Key: c.String("api-key"), Clients: c.Int("clients"), Duration: c.Duration("time"), Leave: c.Float64("leave"), Bad: c.Float64("bad"),
		Cases: c.Int("cases"), Predict: c.Int("predict"), Seed: c.Uint64("seed"), Every: c.Duration("every"), Label: c.String("label"),
		Resize:   c.Duration("resize"),
		Progress: func(line string) { fmt.Fprintf(e.err, "%s\n", line) },
	}
	flags := c.Args().Slice()
	if cfg.URL != "" && (len(flags) > 0 || c.IsSet("model")) {
		return usagef("--url names a server that runs: -m and flags behind -- are for one to be started")
	}
	ctx := c.Context
	soak := bench.SoakConfig{File: c.String("soak"), Commit: c.String("code"), Minutes: c.Int("minutes")}
	if soak.Commit == "" {
		soak.Commit = bench.Commit()
	}
	if soak.File != "" {
		if soak.Minutes < 1 {
			return usagef("--minutes is %d, want at least 1", soak.Minutes)
		}
		left, err := bench.SoakLeft(soak.File, soak.Commit, soak.Minutes)
		if err != nil {
			return err
		}
		if left == 0 {
			return soakDone(e, &soak)
		}
	}
	var s *served
	if cfg.URL == "" {
		var err error
		if s, err = startServer(ctx, c, e, flags); err != nil {
			return err
		}
		defer s.remove()
		cfg.URL = s.url
	}
	var r *bench.LoadReport
	var err error
	if soak.Load = cfg; soak.File != "" {
		r, err = bench.Soak(ctx, soak)
	} else {
		r, err = bench.Load(ctx, cfg)
	}
	if s != nil {
		if bad := s.end(); bad != nil {
			if err != nil {
				return fmt.Errorf("%w; the server ended by itself or badly: %w", err, bad)
			}
			r.Problems = append(r.Problems, fmt.Sprintf("the server did not end as it must: %s", bad))
		}
	}
	if err != nil {
		return err
	}
	if s != nil {
		r.Server = s.flags
	}
	switch {
	case c.Bool("json"):
		err = printJSON(e, r)
	case c.Bool("markdown"):
		err = r.Markdown(e.out)
	default:
		err = r.Text(e.out)
	}
	if err == nil && soak.File != "" {
		err = soakDone(e, &soak)
	}
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("%d things are not as they must be, the first: %s", len(r.Problems), r.Problems[0])
	}
	return err
}

// soakDone tells what the file has.
func soakDone(e env, c *bench.SoakConfig) error {
	text, err := bench.SoakText(c.File, c.Commit)
	if err == nil {
		fmt.Fprintln(e.err, text)
	}
	return err
}

// served is a server that this program has started.
type served struct {
	cmd   *exec.Cmd
	url   string
	flags []string
	dir   string // of its slots and prompts
	done  chan error
}

// startPatience is how long a server may take to load its model.
const startPatience = 10 * time.Minute

// startServer starts terrace serve, with folders of its own for slots and prompts where the flags name none.
func startServer(ctx context.Context, c *cli.Context, e env, flags []string) (*served, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "terrace-load-*")
	if err != nil {
		return nil, err
	}
	s := &served{dir: dir, done: make(chan error, 1)}
	has := func(name string) bool {
		return slices.ContainsFunc(flags, func(f string) bool {
			return strings.TrimLeft(f, "-") == name || strings.HasPrefix(strings.TrimLeft(f, "-"), name+"=")
		})
	}
	s.flags = []string{"--metrics"}
	if m := c.String("model"); m != "" {
		s.flags = append(s.flags, "-m", m)
	}
	for _, f := range [][2]string{{"port", "0"}, {"heat", "off"}, {"slot-save-path", filepath.Join(dir, "slots")}, {"cache-dir", filepath.Join(dir, "prompts")}} {
		if !has(f[0]) {
			s.flags = append(s.flags, "--"+f[0], f[1])
		}
	}
	s.flags = append(s.flags, flags...)
	fail := func(err error) (*served, error) {
		s.remove()
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "slots"), 0o700); err != nil {
		return fail(err)
	}
	log := e.err
	if path := c.String("server-log"); path != "" {
		f, err := os.Create(path)
		if err != nil {
			return fail(err)
		}
		context.AfterFunc(ctx, func() { f.Close() })
		log = f
	}
	s.cmd = exec.Command(exe, append([]string{"serve"}, s.flags...)...)
	out, err := s.cmd.StderrPipe()
	if err != nil {
		return fail(err)
	}
	if err := s.cmd.Start(); err != nil {
		return fail(err)
	}
	ready := make(chan string, 1)
	go func() {
		url, last := readReady(out, log, ready)
		if url == "" && last != "" {
			last = ": " + last
		}
		err := s.cmd.Wait()
		close(ready)
		if err != nil {
			err = fmt.Errorf("%w%s", err, last)
		}
		s.done <- err
	}()
	select {
	case url, ok := <-ready:
		if !ok {
			return fail(fmt.Errorf("the server did not start: %w", <-s.done))
		}
		s.url = url
		return s, nil
	case <-time.After(startPatience):
		err = fmt.Errorf("the server is not ready after %s", startPatience)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return fail(errors.Join(err, s.end()))
}

var listening = regexp.MustCompile(`listening on (http://[^,]+),`)

// readReady copies what a server says, and tells its address once it is ready. It answers the address and the last line.
func readReady(in io.Reader, log io.Writer, ready chan<- string) (url, last string) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		last = lines.Text()
		fmt.Fprintln(log, last)
		if m := listening.FindStringSubmatch(last); m != nil {
			url = m[1]
		}
		if strings.HasPrefix(last, "terrace: ready:") {
			ready <- url
		}
	}
	io.Copy(io.Discard, in) // a line too long to be shown
	return url, last
}

// end asks the server to end, and waits for it.
func (s *served) end() error {
	select {
	case err := <-s.done: // by itself
		if err == nil {
			err = errors.New("it ended before it was asked to")
		}
		return err
	default:
	}
	if s.cmd.Process.Signal(os.Interrupt) != nil { // a system without such signals
		s.cmd.Process.Kill()
		<-s.done
		return nil
	}
	select {
	case err := <-s.done:
		return err
	case <-time.After(time.Minute):
		s.cmd.Process.Kill()
		return fmt.Errorf("it did not end within a minute: %w", <-s.done)
	}
}

func (s *served) remove() { os.RemoveAll(s.dir) }
