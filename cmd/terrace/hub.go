package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"terrace/gguf"
	"terrace/hub"
	"terrace/internal/host"
)

// netFlags are the flags of commands that may ask a model hub.
func netFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hf-token", Aliases: []string{"hft"}, Usage: "`TOKEN` for private and gated repositories (default: $HF_TOKEN)"},
		&cli.StringFlag{Name: "models", Usage: "`FOLDER` of fetched models, in the hub's cache layout (default: $HF_HUB_CACHE, $HF_HOME/hub, else the hub's own place)"},
		&cli.BoolFlag{Name: "offline", Usage: "no network: only what was fetched before"},
	}
}

// repoFlags are those of commands that load a model, which may be fetched first.
func repoFlags() []cli.Flag {
	return append(netFlags(),
		&cli.StringFlag{Name: "hf-repo", Aliases: []string{"hf", "hfr"}, Usage: "model of a hub, `ORG/REPO[:QUANT]` or a URL, fetched first where it is missing, instead of -m"},
		&cli.StringFlag{Name: "hf-file", Aliases: []string{"hff"}, Usage: "`FILE` in that repository, instead of :QUANT"})
}

// modelsDir is the folder of fetched models, "" where the environment names no place.
func modelsDir(c *cli.Context, e env) string {
	if d := c.String("models"); d != "" {
		return d
	}
	if d := e.getenv("HF_HUB_CACHE"); d != "" {
		return d
	}
	if d := e.getenv("HF_HOME"); d != "" {
		return filepath.Join(d, "hub")
	}
	home := e.getenv("HOME")
	if home == "" && runtime.GOOS == "windows" {
		home = e.getenv("USERPROFILE")
	}
	cache := e.getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(cache) {
		if home == "" {
			return ""
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "huggingface", "hub")
}

// newHub makes the client that flags and environment ask for. Nobody is asked yet.
func newHub(c *cli.Context, e env) (*hub.Client, error) {
	o := hub.Options{
		Endpoint: e.getenv("HF_ENDPOINT"), Token: c.String("hf-token"), Dir: modelsDir(c, e), Agent: "terrace/" + strings.TrimSpace(version),
		Offline: c.Bool("offline") || envTrue(e.getenv("HF_HUB_OFFLINE")), Log: logger(c, e),
	}
	if o.Token == "" {
		o.Token = e.getenv("HF_TOKEN")
	}
	h, err := hub.New(o)
	if errors.Is(err, hub.ErrName) {
		return nil, usagef("HF_ENDPOINT: %w", err)
	}
	return h, err
}

func envTrue(s string) bool {
	switch strings.ToUpper(s) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// parseRef reads a name as the command line has it.
func parseRef(e env, s string) (hub.Ref, error) {
	r, err := hub.ParseRef(s, e.getenv("HF_ENDPOINT"))
	if err != nil {
		return r, usageError{err}
	}
	return r, nil
}

// isRemote says whether name means a model on a server: it is written like one, and no file has that name.
func isRemote(name string) bool {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) && !strings.Contains(name, "://") {
		return false
	}
	return hub.IsRef(name)
}

// remote is a model on a server whose header was read.
type remote struct {
	model *hub.Model
	read  int64  // bytes over the network
	run   string // how run names it
}

// remoteReport is what `plan --json` says of a model on a server; sizes in bytes.
type remoteReport struct {
	*hub.Model
	Size int64 `json:"size"`
	Read int64 `json:"bytes_read"` // over the network, for the plan
}

// diskOf is a path on the disk on which a model lies or would lie once it is fetched.
func diskOf(c *cli.Context, e env, path string) string {
	if _, err := os.Stat(path); err == nil {
		return path
	}
	for dir := modelsDir(c, e); dir != "" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			break
		}
	}
	return path
}

// openHeader reads the header of a model, which may be a path, a URL or a hub's name. remote is nil for a path.
func openHeader(c *cli.Context, e env, name string) (*gguf.File, *remote, error) {
	if !isRemote(name) {
		f, err := openCut(e, name)
		return f, nil, err
	}
	ref, err := parseRef(e, name)
	if err != nil {
		return nil, nil, err
	}
	h, err := newHub(c, e)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	m, err := h.Find(c.Context, ref)
	if err != nil {
		return nil, nil, err
	}
	r := &remote{model: m, run: "-hf " + ref.String()}
	f, n, err := h.Header(c.Context, m)
	r.read = n
	return f, r, err
}

// repoPath is the path of the model that --hf-repo names, fetched first where it is missing.
func repoPath(c *cli.Context, e env) (string, error) {
	name := c.String("hf-repo")
	if c.String("model") != "" {
		return "", usagef("the model is given twice: --model %s and --hf-repo %s", c.String("model"), name)
	}
	ref, err := parseRef(e, name)
	if err != nil {
		return "", err
	}
	if f := c.String("hf-file"); f != "" {
		if ref.URL != "" || ref.File != "" || ref.Quant != "" {
			return "", usagef("--hf-file %s beside --hf-repo %s, which names a file or a quantisation already", f, name)
		}
		if ref, err = parseRef(e, ref.String()+"/"+f); err != nil {
			return "", err
		}
	}
	h, err := newHub(c, e)
	if err != nil {
		return "", err
	}
	defer h.Close()
	view := newPullView(e)
	defer view.end()
	return h.Resolve(c.Context, ref, hub.PullOptions{Progress: view.progress}, func(m *hub.Model, n hub.Need) error {
		fmt.Fprintf(e.err, "terrace: %s: %s\n", oneLine(m.Name), needText(m, n))
		return nil
	})
}

// needText says what a pull would fetch.
func needText(m *hub.Model, n hub.Need) string {
	what := fmt.Sprintf("%d file(s) of %s", len(m.Files), bytesText(m.Size()))
	if m.Quant != "" {
		what = m.Quant + ", " + what
	}
	switch {
	case n.Files == 0:
		return what + ", all there"
	case n.Kept > 0:
		what += fmt.Sprintf(", %s are missing (%s are there of an interrupted pull)", bytesText(n.Bytes), bytesText(n.Kept))
	case n.Bytes < m.Size():
		what += fmt.Sprintf(", %s are missing", bytesText(n.Bytes))
	}
	if n.Free >= 0 {
		what += fmt.Sprintf("; %s free in %s", bytesText(n.Free), oneLine(n.Dir))
	}
	return what
}

// pullView shows how far a pull has come: a bar on a terminal, else a line now and then.
type pullView struct {
	to    io.Writer
	bar   *mpb.Bar
	bars  *mpb.Progress
	start time.Time
	last  time.Time
	now   atomic.Pointer[hub.Progress]
	rate  atomic.Int64 // bytes per second
	came  int64
	at    time.Time
}

const lineEvery = 10 * time.Second

func newPullView(e env) *pullView {
	v := &pullView{to: e.err, start: time.Now()}
	v.last = v.start
	if f, ok := e.tty.errFile(); ok && host.IsTerminal(f) {
		v.bars = mpb.New(mpb.WithOutput(f), mpb.WithRefreshRate(200*time.Millisecond))
	}
	return v
}

// progress is called by one goroutine.
func (v *pullView) progress(p hub.Progress) {
	now := time.Now()
	if dt := now.Sub(v.at).Seconds(); v.at.IsZero() {
		v.at, v.came = now, p.Came
	} else if dt >= 1 { // smoothed over some seconds
		r := float64(p.Came-v.came) / dt
		if old := float64(v.rate.Load()); old > 0 {
			r = 0.7*old + 0.3*r
		}
		v.rate.Store(int64(r))
		v.at, v.came = now, p.Came
	}
	v.now.Store(&p)
	if v.bars == nil {
		if now.Sub(v.last) >= lineEvery {
			v.last = now
			fmt.Fprintf(v.to, "terrace: %s\n", v.text())
		}
		return
	}
	if v.bar == nil {
		v.bar = v.bars.New(p.Total, mpb.BarStyle(), mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return v.text() + " " })),
			mpb.AppendDecorators(decor.Percentage()))
	}
	v.bar.SetCurrent(min(p.Done, p.Total-1)) // it ends when the pull does, not when the last byte came
}

func (v *pullView) text() string {
	p := v.now.Load()
	file := oneLine(filepath.Base(p.File))
	switch p.Phase {
	case hub.PhaseWait:
		return file + ": waiting for another pull of it"
	case hub.PhaseVerify:
		return fmt.Sprintf("%s: %s compared with its hash", file, bytesText(p.Done))
	}
	s := fmt.Sprintf("%s: %s of %s", file, bytesText(p.Done), bytesText(p.Total))
	if r := v.rate.Load(); r > 0 && p.Done < p.Total {
		left := time.Duration(float64(p.Total-p.Done) / float64(r) * float64(time.Second))
		s += fmt.Sprintf(", %s/s, %v left", bytesText(r), left.Round(time.Second))
	}
	return s
}

// end takes the bar away.
func (v *pullView) end() {
	if v.bars == nil {
		return
	}
	if v.bar != nil {
		v.bar.Abort(true)
	}
	v.bars.Wait()
}

func pullCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "fetch a model: ORG/REPO:QUANT, ORG/REPO/FILE.gguf, hf://... or a URL; what it would do on this machine comes first",
		ArgsUsage: "NAME",
		Flags: append(append(netFlags(), planUseFlags()...),
			&cli.IntFlag{Name: "connections", Value: 4, Usage: "ranges of a file fetched at once, `N`"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be fetched, and fetch nothing"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what the server does"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}),
		Action: func(c *cli.Context) error { return runPull(c, e) },
	}
}

// pullReport is what `pull --json` prints; sizes in bytes.
type pullReport struct {
	*hub.Model
	Size    int64       `json:"size"`
	Missing int64       `json:"missing"`
	Path    string      `json:"path,omitempty"` // of the first file, once all are there
	Plan    *planReport `json:"plan,omitempty"`
	Reason  string      `json:"reason,omitempty"` // why there is no plan
	Seconds float64     `json:"seconds,omitempty"`
}

func runPull(c *cli.Context, e env) error {
	if c.NArg() != 1 {
		return usagef("%d names, want one: terrace pull ORG/REPO:QUANT", c.NArg())
	}
	if n := c.Int("connections"); n < 1 || n > 64 {
		return usagef("--connections is %d, want 1 to 64", n)
	}
	ref, err := parseRef(e, c.Args().First())
	if err != nil {
		return err
	}
	h, err := newHub(c, e)
	if err != nil {
		return err
	}
	defer h.Close()
	if modelsDir(c, e) == "" {
		return errors.New("no folder for models: give --models or set HF_HOME")
	}
	m, err := h.Find(c.Context, ref)
	if err != nil {
		return err
	}
	need, err := h.Need(m)
	if err != nil {
		return err
	}
	r := pullReport{Model: m, Size: m.Size(), Missing: need.Bytes}
	if r.Plan, err = pullPlan(c.Context, c, e, h, m); err != nil {
		if c.Context.Err() != nil {
			return err
		}
		r.Reason = err.Error()
	}
	asJSON := c.Bool("json")
	if !asJSON {
		if r.Plan != nil {
			fmt.Fprint(e.out, planHead(r.Plan), planHere(r.Plan, e.colour))
		} else {
			fmt.Fprintf(e.out, "no plan: %s\n", oneLine(r.Reason))
		}
		fmt.Fprintf(e.out, "%s: %s\n", oneLine(m.Name), needText(m, need))
	}
	if !c.Bool("dry-run") {
		start := time.Now()
		view := newPullView(e)
		r.Path, err = h.Pull(c.Context, m, hub.PullOptions{Connections: c.Int("connections"), Progress: view.progress})
		view.end()
		if err != nil {
			return err
		}
		r.Seconds = time.Since(start).Seconds()
		if !asJSON {
			fmt.Fprintln(e.out, oneLine(r.Path))
		}
	}
	if asJSON {
		return printJSON(e, r)
	}
	return nil
}

// pullPlan plans for a model that is about to be fetched, from its header.
func pullPlan(ctx context.Context, c *cli.Context, e env, h *hub.Client, m *hub.Model) (*planReport, error) {
	f, n, err := h.Header(ctx, m)
	if err != nil {
		return nil, err
	}
	p, err := planOf(c, e, f)
	if err != nil {
		return nil, err
	}
	p.Remote, p.run = &remoteReport{m, m.Size(), n}, "-hf "+c.Args().First()
	return p, nil
}
