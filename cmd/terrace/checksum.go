package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/engine"
	"terrace/internal/host"
)

// checksumReport is what inspect --checksum prints with --json.
type checksumReport struct {
	Path    string  `json:"path"` // of the checksums
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// runChecksum writes the checksums of a model's experts beside its heat profile.
func runChecksum(c *cli.Context, e env, path string) error {
	if c.Bool("tensors") || c.Bool("metadata") {
		return usagef("--checksum gives no report: leave --tensors and --metadata out")
	}
	dir, err := needCacheDir(e)
	if err != nil {
		return fmt.Errorf("--checksum: %w", err)
	}
	e.tell()
	f, ok := e.err.(*os.File)
	show := newProgress(e, ok && host.IsTerminal(f))
	start := time.Now()
	out, err := engine.Checksum(c.Context, path, dir, show.set)
	show.end()
	if err != nil {
		return err
	}
	r := checksumReport{Path: out, Bytes: show.total, Seconds: time.Since(start).Seconds()}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	_, err = fmt.Fprintf(e.out, "checksums of %s of experts in %s, made in %.1f s (%s/s)\n", bytesText(r.Bytes), oneLine(out), r.Seconds, bytesText(int64(float64(r.Bytes)/max(r.Seconds, 1e-9))))
	return err
}

// progress tells on standard error how far long work is: over one line on a terminal, else a line at each tenth.
type progress struct {
	e        env
	terminal bool
	total    int64
	last     time.Time
	tenth    int64
	shown    bool
}

func newProgress(e env, terminal bool) *progress {
	return &progress{e: e, terminal: terminal, last: time.Now()}
}

// set is told the bytes done and their total.
func (p *progress) set(done, total int64) {
	p.total = total
	now := time.Now()
	switch {
	case p.terminal && now.Sub(p.last) > 100*time.Millisecond:
		p.last, p.shown = now, true
		fmt.Fprintf(p.e.err, "\r%s of %s ", bytesText(done), bytesText(total))
	case !p.terminal && 10*done/total > p.tenth && now.Sub(p.last) > time.Second:
		p.last, p.tenth = now, 10*done/total
		fmt.Fprintf(p.e.err, "%s of %s\n", bytesText(done), bytesText(total))
	}
}

// end leaves a terminal's line.
func (p *progress) end() {
	if p.shown {
		fmt.Fprintln(p.e.err)
	}
}
