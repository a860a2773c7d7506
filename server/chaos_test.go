//go:build faults

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/engine"
	runs "terrace/internal/chaos"
	"terrace/internal/fault"
)

const chaosModel = "../testdata/tiny-moe-Q4_K.gguf"

// failedSeeds failed once, and are run each time.
var failedSeeds = []uint64{400, 618, 652, 927} // a request waited for ever for a slot that a save had given back

// chaosPrompts are short and long, and two begin alike, so that slots copy from one another.
var chaosPrompts = []string{
	"What is the capital of France?",
	"What is the capital of France? And that of Italy, and of Spain, and of all the other countries that lie beside the sea?",
	"Once upon a time",
	strings.Repeat("The river runs down to the sea. ", 5),
}

const chaosTokens = 4

// chaos is what all runs share: the right answers.
type chaos struct {
	right map[string]string
	sums  string // folder of checksums
	runs.Tally
}

// newChaos asks each prompt on a sound machine, and makes checksums of the experts.
func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{right: map[string]string{}}
	c.Kinds = []string{"input/output error", "the file has", "cannot allocate memory", "no space left", "checksum", "does not fit", "truncated", "the slot is empty"}
	e, err := engine.Open(engine.Options{Path: chaosModel, Context: 256, Slots: 1, ExpertRAM: engine.ExpertBudget{Percent: 100}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c.sums = t.TempDir()
	if _, err := engine.Checksum(context.Background(), chaosModel, c.sums, nil); err != nil {
		t.Fatal(err)
	}
	s, err := e.NewScheduler(engine.SchedulerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	srv, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	if err := srv.Ready(&Model{Engine: e, Scheduler: s, Alias: "tiny"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range chaosPrompts {
		code, text, msg := askChaos(context.Background(), srv, p, false)
		if code != 200 || text == "" {
			t.Fatalf("%d %q %s", code, text, msg)
		}
		c.right[p] = text
	}
	return c
}

// askChaos posts a completion and gives its text, or the error's message.
func askChaos(ctx context.Context, srv *Server, prompt string, stream bool) (code int, text, msg string) {
	body, _ := json.Marshal(m{"prompt": prompt, "n_predict": chaosTokens, "temperature": 0, "stream": stream, "ignore_eos": true})
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, httptest.NewRequest("POST", "/completion", bytes.NewReader(body)).WithContext(ctx))
	code = w.Code
	if ctx.Err() != nil && w.Body.Len() == 0 { // nobody was there to be answered
		return 499, "", "cut off"
	}
	type reply struct {
		Content string
		Error   struct{ Message string }
	}
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
		var r reply
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			return 0, "", fmt.Sprintf("%d: %v: %q", code, err, w.Body)
		}
		return code, r.Content, r.Error.Message
	}
	for line := range strings.Lines(w.Body.String()) {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || strings.HasPrefix(data, "[DONE]") {
			continue
		}
		var r reply
		if err := json.Unmarshal([]byte(data), &r); err != nil {
			return 0, "", fmt.Sprintf("%v: %q", err, data)
		}
		text += r.Content
		if r.Error.Message != "" {
			return 500, text, r.Error.Message
		}
	}
	return code, text, ""
}

// run is one seed: an engine with settings of chance, clients beside one another, a machine on which things go wrong. Each
// request must end in the right text or in one clear error; afterwards, on a sound machine, all must be right.
func (c *chaos) run(t *testing.T, seed uint64) (requests int) {
	defer fault.Set(nil)
	rng := rand.New(rand.NewPCG(seed, 11))
	chance := func(most int) int {
		if rng.IntN(2) == 0 {
			return 0
		}
		return 1 + rng.IntN(most)
	}
	g := runs.NewMachine(2 << 30)
	o := engine.Options{
		Path: chaosModel, Context: 256, Slots: 1 + rng.IntN(3), Threads: 1 + rng.IntN(2), Batch: []int{0, 7, 64}[rng.IntN(3)],
		Store: []string{"uring", "pread", "mmap"}[rng.IntN(3)], Lookahead: rng.IntN(3), Dense: []string{"ram", "mmap"}[rng.IntN(2)],
		HeatDir: t.TempDir(), RAM: 1 << 30,
		ExpertRAM: []engine.ExpertBudget{{Min: true}, {Percent: 30}, {Percent: 60}, {}}[rng.IntN(4)],
	}
	p := &fault.Plan{
		Seed: seed, ReadError: chance(300), ReadShort: chance(300), ReadSlow: chance(100), Slow: 3 * time.Millisecond, Memory: chance(300),
		DiskFull: chance(5000), ClockJump: chance(500), Machine: g,
	}
	if rng.IntN(3) == 0 {
		o.SumsDir, p.ReadWrong = c.sums, chance(1000)
	}
	early := rng.IntN(4) == 0
	if early {
		fault.Set(p)
	} else {
		fault.Set(&fault.Plan{Seed: seed, Machine: g})
	}
	e, err := engine.Open(o)
	if err != nil {
		if !early || strings.Contains(err.Error(), "\n") {
			t.Errorf("seed %d: open: %v", seed, err)
		}
		c.Error("open: " + err.Error())
		return 1
	}
	defer func() {
		fault.Set(nil)
		if err := e.Close(); err != nil {
			t.Errorf("seed %d: close: %v", seed, err)
		}
	}()
	saves := t.TempDir()
	s, err := e.NewScheduler(engine.SchedulerOptions{SaveDir: saves})
	if err != nil {
		if !early {
			t.Errorf("seed %d: %v", seed, err)
		}
		c.Error("scheduler: " + err.Error())
		return 1
	}
	defer s.Close(context.Background())
	srv, err := New(Options{SaveSlots: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	if err := srv.Ready(&Model{Engine: e, Scheduler: s, Alias: "tiny"}); err != nil {
		t.Fatal(err)
	}
	fault.Set(p)
	var wg sync.WaitGroup
	clients := 1 + rng.IntN(3)
	for range clients {
		crng := rand.New(rand.NewPCG(rng.Uint64(), 3))
		wg.Go(func() {
			for range 1 + crng.IntN(2) {
				ctx, cancel := context.WithCancel(context.Background())
				cut := crng.IntN(6) == 0
				if cut {
					time.AfterFunc(time.Duration(crng.IntN(20))*time.Millisecond, cancel)
				}
				prompt := chaosPrompts[crng.IntN(len(chaosPrompts))]
				code, text, msg := askChaos(ctx, srv, prompt, crng.IntN(2) == 0)
				cancel()
				c.judge(t, seed, prompt, code, text, msg, cut)
			}
		})
		requests += 2
	}
	wg.Go(func() { // what happens to a server meanwhile
		orng := rand.New(rand.NewPCG(seed, 5))
		for range orng.IntN(4) {
			switch orng.IntN(3) {
			case 0:
				g.Set(int64(200+orng.IntN(1500))<<20, time.Duration(orng.IntN(2))*time.Second)
			case 1:
				_ = e.SetRAM(int64(100+orng.IntN(900)) << 20) // too little is refused
			case 2:
				_, err := s.SaveSlot(context.Background(), 0, "a.bin")
				if err == nil {
					_, err = s.RestoreSlot(context.Background(), 0, "a.bin")
				}
				if err != nil {
					c.Error("slot: " + err.Error())
				}
			}
		}
	})
	wg.Wait()
	c.Add("faults", int(fault.Counts().Sum()))
	fault.Set(&fault.Plan{Seed: seed, Machine: g})
	for _, prompt := range chaosPrompts[:1+rng.IntN(len(chaosPrompts))] {
		requests++
		var code int
		var text, msg string
		for try := 0; try < 50; try++ { // guesses whose reads began on the sick disk may still fail who joins them
			if code, text, msg = askChaos(context.Background(), srv, prompt, false); code == 200 {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		if code != 200 || text != c.right[prompt] {
			t.Errorf("seed %d: on a sound machine: %d %q %s, want %q", seed, code, text, msg, c.right[prompt])
		}
	}
	if n, b := srv.gate.load(); n != 0 || b != 0 {
		t.Errorf("seed %d: %d requests and %d bytes are still held", seed, n, b)
	}
	left, _ := filepath.Glob(filepath.Join(saves, ".*"))
	if len(left) > 0 {
		t.Errorf("seed %d: half-written files stay: %v", seed, left)
	}
	return requests
}

// judge looks at one answer.
func (c *chaos) judge(t *testing.T, seed uint64, prompt string, code int, text, msg string, cut bool) {
	want := c.right[prompt]
	switch {
	case code == 200 && msg == "" && (text == want || cut && strings.HasPrefix(want, text)):
	case cut && code != 0:
	case code < 400 || msg == "" || strings.Contains(msg, "\n") || strings.Contains(msg, "goroutine") || !strings.HasPrefix(want, text):
		t.Errorf("seed %d: %q: %d %q %q, want %q", seed, prompt, code, text, msg, want)
	default:
		c.Error(msg)
	}
}

// TestChaos runs the seeds of TERRACE_CHAOS. With TERRACE_CHAOS_FILE it leaves out those that this code has done according to
// that file, and adds those it does.
func TestChaos(t *testing.T) {
	c := newChaos(t)
	runs.Run(t, runs.Plan{
		Over: "serve", Seeds: os.Getenv("TERRACE_CHAOS"), File: os.Getenv("TERRACE_CHAOS_FILE"), Failed: failedSeeds, One: c.run, Tally: &c.Tally,
		Rooms: []string{".", "../tiers", "../engine", "../model", "../prefetch", "../promptstore", "../internal/host", "../internal/fault", "../internal/chaos"},
	})
}
