//go:build faults

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/engine"
	runs "terrace/internal/chaos"
	"terrace/internal/fault"
	"terrace/router"
	"terrace/vulkan"
)

// failedSeeds failed once, and are run each time.
var failedSeeds = []uint64{}

// chaosPrompts are short and long.
var chaosPrompts = []string{
	"What is the capital of France?",
	"Once upon a time",
	strings.Repeat("The river runs down to the sea. ", 5),
}

// chaosTalks are conversations from a pipe: what is said, and whether a saved one goes on. The first is saved at its end.
var chaosTalks = []struct {
	say  string
	load bool
}{
	{"What is the capital of France?\nAnd of Italy?\n/save a\n", false},
	{"And of Spain?\n", true},
}

// chaos is what all runs share: the right answers, the hashes of their logits, and files that take long to make.
type chaos struct {
	runs.Tally
	text, talk []string
	hash       []string
	sums       string // file of checksums
	pipelines  string // file of compiled shaders, "" until the first run on a GPU has made it
	gpu        bool
}

// place is where a seed's runs keep their files.
type place struct{ dir string }

func (p place) cache() string { return filepath.Join(p.dir, "cache", "terrace") }
func (p place) trace() string { return filepath.Join(p.dir, "trace.jsonl.gz") }
func (p place) stats() string { return filepath.Join(p.dir, "stats.jsonl") }
func (p place) saved() bool {
	_, err := os.Stat(filepath.Join(p.dir, "state", "terrace", "chats", "a.json"))
	return err == nil
}

func (p place) getenv(name string) string {
	switch name {
	case "XDG_CACHE_HOME":
		return filepath.Join(p.dir, "cache")
	case "XDG_STATE_HOME":
		return filepath.Join(p.dir, "state")
	}
	return ""
}

// onLoaded is standard error that calls f when the model is there.
type onLoaded struct {
	bytes.Buffer
	mu sync.Mutex
	f  func()
}

func (w *onLoaded) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f != nil && bytes.Contains(b, []byte("model loaded")) {
		w.f()
		w.f = nil
	}
	return w.Buffer.Write(b)
}

// said is what one run said.
type said struct {
	code      int
	out, errs string
}

// terrace runs a command line in this process; loaded is called when its model is there.
func (p place) terrace(ctx context.Context, stdin string, loaded func(), args ...string) said {
	var out bytes.Buffer
	errs := &onLoaded{f: loaded}
	code := run(ctx, append([]string{"terrace"}, args...), env{in: strings.NewReader(stdin), out: &out, err: errs, getenv: p.getenv})
	return said{code, out.String(), errs.String()}
}

// newChaos asks everything on a sound machine.
func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{talk: make([]string, len(chaosTalks))}
	c.Kinds = []string{"input/output error", "the file has", "cannot allocate memory", "no space left", "checksum", "does not fit", "interrupted", "no conversation is saved", "truncated"}
	p := place{t.TempDir()}
	ask := func(stdin string, args ...string) said {
		t.Helper()
		r := p.terrace(context.Background(), stdin, nil, append(args, "-m", tinyMoE, "-c", "256", "-n", "4", "--temp", "0", "--ignore-eos", "--backend", "cpu")...)
		if r.code != exitOK || r.out == "" {
			t.Fatalf("%q: %+v", args, r)
		}
		return r
	}
	for _, s := range chaosPrompts {
		c.text = append(c.text, ask("", "run", "--stats-file", p.stats(), "--hash-logits", s).out)
	}
	for _, st := range p.readStats(t) {
		c.hash = append(c.hash, st.LogitsSHA256)
	}
	if len(c.hash) != len(c.text) || slices.Contains(c.hash, "") {
		t.Fatalf("hashes %q of %d answers", c.hash, len(c.text))
	}
	for i, k := range chaosTalks {
		args := []string{"chat"}
		if k.load {
			args = append(args, "--load", "a")
		}
		c.talk[i] = ask(k.say, args...).out
	}
	if r := p.terrace(context.Background(), "", nil, "inspect", tinyMoE, "--checksum"); r.code != exitOK {
		t.Fatal(r)
	}
	sums, _ := filepath.Glob(filepath.Join(p.cache(), "sums-*.json"))
	if len(sums) != 1 {
		t.Fatalf("checksums %q", sums)
	}
	c.sums = sums[0]
	devices, err := vulkan.Devices()
	if c.gpu = err == nil && len(devices) > 0; !c.gpu {
		t.Logf("there is no GPU to lose: %v", err)
	}
	return c
}

// readStats reads the file of statistics, all of whose lines must be whole.
func (p place) readStats(t *testing.T) (all []engine.Stats) {
	t.Helper()
	b, err := os.ReadFile(p.stats())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var st engine.Stats
		if err := json.Unmarshal(line, &st); err != nil {
			t.Errorf("statistics: %v in %q", err, line)
		}
		all = append(all, st)
	}
	return all
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run is one seed: a few runs and conversations one after the other with flags of chance, the same folders and a machine on which
// things go wrong. Each must end with the right text or one clear error, and what is printed of an answer must be its beginning.
// Afterwards, on a sound machine and with the files that were left, all must be right.
func (c *chaos) run(t *testing.T, seed uint64) (requests int) {
	defer fault.Set(nil)
	rng := rand.New(rand.NewPCG(seed, 12))
	chance := func(most int) int {
		if rng.IntN(2) == 0 {
			return 0
		}
		return 1 + rng.IntN(most)
	}
	p := place{t.TempDir()}
	m := runs.NewMachine(2 << 30)
	pl := &fault.Plan{
		Seed: seed, ReadError: chance(300), ReadShort: chance(300), ReadSlow: chance(100), Slow: 3 * time.Millisecond, Memory: chance(300),
		DiskFull: chance(5000), ClockJump: chance(500), Machine: m,
	}
	flags := []string{"-m", tinyMoE, "-c", "256", "-n", "4", "--temp", "0", "--ignore-eos", "--verbose",
		"--threads", []string{"1", "2"}[rng.IntN(2)], "-b", []string{"0", "7", "64"}[rng.IntN(3)], "--store", []string{"uring", "pread", "mmap"}[rng.IntN(3)],
		"--lookahead", []string{"auto", "0", "1", "2"}[rng.IntN(4)], "--dense", []string{"ram", "mmap"}[rng.IntN(2)], "--stall-report", "1"}
	if s := []string{"min", "30%", "60%", ""}[rng.IntN(4)]; s != "" {
		flags = append(flags, "--expert-ram", s)
	} else {
		flags = append(flags, "--ram", "1G")
	}
	if rng.IntN(3) == 0 {
		copyFile(t, c.sums, filepath.Join(p.cache(), filepath.Base(c.sums)))
		flags = append(flags, "--verify")
		pl.ReadWrong = chance(1000)
	}
	gpu := rng.IntN(40) == 0 && c.gpu
	pipelines := filepath.Join(p.cache(), "pipelines.bin")
	if gpu {
		flags = append(flags, "--backend", "vulkan")
		pl.DeviceLost, pl.Device = chance(300), chance(100)
		if c.pipelines != "" {
			copyFile(t, c.pipelines, pipelines)
		}
	} else {
		flags = append(flags, "--backend", "cpu")
	}
	early := rng.IntN(4) == 0
	for range 1 + rng.IntN(3) {
		requests++
		ctx, cancel := context.WithCancel(context.Background())
		cut := rng.IntN(6) == 0
		if cut {
			stop := time.AfterFunc(time.Duration(rng.IntN(60))*time.Millisecond, cancel)
			defer stop.Stop()
		}
		changes := make(chan struct{})
		orng := rand.New(rand.NewPCG(rng.Uint64(), 5))
		go func() { // what happens to the machine meanwhile
			defer close(changes)
			for range orng.IntN(4) {
				time.Sleep(time.Duration(orng.IntN(20)) * time.Millisecond)
				m.Set(int64(200+orng.IntN(1500))<<20, time.Duration(orng.IntN(2))*time.Second)
			}
		}()
		loaded := func() { fault.Set(pl) }
		if early {
			loaded()
		} else {
			fault.Set(&fault.Plan{Seed: seed, Machine: m})
		}
		pl.Seed++ // so that the next run draws others
		c.one(t, seed, p, ctx, rng, flags, loaded, cut, false)
		cancel()
		<-changes
		c.Add("faults", int(fault.Counts().Sum()))
		m.Set(2<<30, 0)
	}
	fault.Set(&fault.Plan{Seed: seed, Machine: m})
	for range 2 {
		requests++
		c.one(t, seed, p, context.Background(), rng, flags, nil, false, true)
	}
	if gpu && c.pipelines == "" {
		if _, err := os.Stat(pipelines); err == nil {
			c.pipelines = filepath.Join(filepath.Dir(c.sums), "pipelines.bin")
			copyFile(t, pipelines, c.pipelines)
		}
	}
	p.whole(t, seed)
	return requests
}

// one is a run or a conversation, and what must be true of it. sound says that nothing goes wrong.
func (c *chaos) one(t *testing.T, seed uint64, p place, ctx context.Context, rng *rand.Rand, flags []string, loaded func(), cut, sound bool) {
	t.Helper()
	args, stdin, want, hash := append([]string{"run"}, flags...), "", "", ""
	before := len(p.readStats(t))
	loads := false
	if rng.IntN(3) == 0 {
		i := rng.IntN(len(chaosTalks))
		if sound && chaosTalks[i].load && !p.saved() {
			i = 0
		}
		args[0], stdin, want, loads = "chat", chaosTalks[i].say, c.talk[i], chaosTalks[i].load
		if loads {
			args = append(args, "--load", "a")
		}
	} else {
		i := rng.IntN(len(chaosPrompts))
		want = c.text[i]
		if rng.IntN(2) == 0 {
			args, hash = append(args, "--stats-file", p.stats(), "--hash-logits"), c.hash[i]
		}
		if rng.IntN(3) == 0 {
			args = append(args, "--trace", p.trace())
		}
		if rng.IntN(2) == 0 {
			stdin = chaosPrompts[i]
		} else {
			args = append(args, chaosPrompts[i])
		}
	}
	r := p.terrace(ctx, stdin, loaded, args...)
	last := r.errs[strings.LastIndexByte(strings.TrimSuffix(r.errs, "\n"), '\n')+1:]
	bad := func(why string) {
		t.Helper()
		t.Errorf("seed %d: %s: %q of %q: exit %d, %q, want %q; %s", seed, why, args, stdin, r.code, r.out, want, r.errs)
	}
	switch {
	case strings.Contains(r.errs, "internal error") || strings.Contains(r.errs, "goroutine "):
		bad("a panic")
	case r.code == exitOK && r.out == want:
		if now := p.readStats(t); hash != "" && (len(now) != before+1 || now[before].LogitsSHA256 != hash) {
			bad("other logits")
		}
	case sound:
		bad("on a sound machine")
	case r.code == exitOK:
		bad("no error")
	case !strings.HasPrefix(want, strings.TrimSuffix(r.out, "\n")):
		bad("a wrong text")
	case !strings.HasPrefix(last, "terrace: ") || len(last) < 15:
		bad("no clear error")
	case ctx.Err() != nil && !cut, strings.Contains(last, "interrupted") && !cut:
		bad("nobody interrupted it")
	default:
		c.Error(strings.TrimSpace(last))
	}
}

// whole looks at the files that runs leave: nothing half written beside them, and each that may be read is whole.
func (p place) whole(t *testing.T, seed uint64) {
	t.Helper()
	p.readStats(t)
	err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && !d.IsDir() && (strings.Contains(name, "-tmp-") || strings.HasSuffix(name, ".tmp") || strings.HasPrefix(name, ".slot-")) {
			t.Errorf("seed %d: a half-written file stays: %s", seed, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	r, err := router.OpenTrace(p.trace())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
		return
	}
	defer r.Close()
	var l router.TraceLine
	n := 0
	for err = r.Next(&l); err == nil; err = r.Next(&l) {
		n++
	}
	if err != io.EOF || n == 0 {
		t.Errorf("seed %d: the trace has %d lines: %v", seed, n, err)
	}
}

// TestChaos runs the seeds of TERRACE_CHAOS. With TERRACE_CHAOS_FILE it leaves out those that this code has done according to
// that file, and adds those it does.
func TestChaos(t *testing.T) {
	c := newChaos(t)
	runs.Run(t, runs.Plan{
		Over: "run", Seeds: os.Getenv("TERRACE_CHAOS"), File: os.Getenv("TERRACE_CHAOS_FILE"), Failed: failedSeeds, One: c.run, Tally: &c.Tally,
		Rooms: []string{".", "../../chatui", "../../tiers", "../../engine", "../../model", "../../prefetch", "../../promptstore", "../../router", "../../vulkan",
			"../../internal/host", "../../internal/fault", "../../internal/chaos"},
	})
}
