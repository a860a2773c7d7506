package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const serveChildEnv = "TERRACE_SERVE_CHILD" // arguments of terrace serve, a line each

// TestServeChild is no test: it is the server that TestServeKilled kills.
func TestServeChild(t *testing.T) {
	args := os.Getenv(serveChildEnv)
	if args == "" {
		t.Skip("for TestServeKilled")
	}
	os.Exit(run(context.Background(), append([]string{"terrace", "serve"}, strings.Split(args, "\n")...), env{
		in: strings.NewReader(""), out: os.Stdout, err: os.Stderr, getenv: func(string) string { return "" },
	}))
}

// victim is a server in a process of its own.
type victim struct {
	url   string
	cmd   *exec.Cmd
	ready chan string
	log   *bytes.Buffer
	done  chan struct{}
}

func startVictim(t *testing.T, args ...string) *victim {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{cmd: exec.Command(exe, "-test.run", "^TestServeChild$"), ready: make(chan string, 1), log: &bytes.Buffer{}, done: make(chan struct{})}
	v.cmd.Env = append(os.Environ(), serveChildEnv+"="+strings.Join(args, "\n"))
	out, err := v.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(v.done)
		readReady(out, v.log, v.ready)
		close(v.ready)
	}()
	return v
}

// wait waits until the server is ready.
func (v *victim) wait(t *testing.T) {
	t.Helper()
	select {
	case v.url = <-v.ready:
	case <-time.After(time.Minute):
	}
	if v.url == "" {
		v.kill()
		t.Fatalf("the server did not start:\n%s", v.log)
	}
}

func (v *victim) kill() {
	v.cmd.Process.Kill()
	<-v.done
	v.cmd.Wait()
}

// talkTurn is one request of a conversation and its answer.
type talkTurn struct {
	prompt, answer []int32
}

const talkPredict = 10

// post sends JSON and reads JSON; status 0 means that the server is gone.
func post(ctx context.Context, url string, body, out any) (status int, text string) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	q, err := http.NewRequestWithContext(ctx, "POST", url, bytes.NewReader(b))
	if err != nil {
		panic(err)
	}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	if res.StatusCode == http.StatusOK && json.Unmarshal(got, out) != nil {
		return 0, "no JSON: " + string(got)
	}
	return res.StatusCode, string(got)
}

type completed struct {
	Tokens  []int32 `json:"tokens"`
	Slot    int     `json:"id_slot"`
	Timings struct {
		CacheN  int `json:"cache_n"`
		PromptN int `json:"prompt_n"`
	} `json:"timings"`
}

func (turn *talkTurn) ask(ctx context.Context, url string, slot int, cache bool) (z completed, status int, text string) {
	status, text = post(ctx, url+"/completion", map[string]any{
		"prompt": turn.prompt, "n_predict": talkPredict, "temperature": 0, "ignore_eos": true, "return_tokens": true, "id_slot": slot, "cache_prompt": cache,
	}, &z)
	return z, status, text
}

// talks are conversations of some turns each, with the answers of a server that keeps nothing.
func talks(t *testing.T, url string, vocab int) [][]talkTurn {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	random := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = 4 + int32(r.IntN(vocab-4))
		}
		return out
	}
	shared := random(70)
	var out [][]talkTurn
	for i := range 8 {
		var prompt []int32
		if i%2 == 0 {
			prompt = slices.Clone(shared)
		}
		prompt = append(prompt, random(90)...)
		var turns []talkTurn
		for range 4 {
			turn := talkTurn{prompt: slices.Clone(prompt)}
			z, status, text := turn.ask(t.Context(), url, -1, false)
			if status != http.StatusOK || len(z.Tokens) != talkPredict || z.Timings.CacheN != 0 {
				t.Fatalf("status %d: %s", status, text)
			}
			turn.answer = z.Tokens
			turns = append(turns, turn)
			prompt = append(append(prompt, z.Tokens...), random(25)...)
		}
		out = append(out, turns)
	}
	return out
}

// TestServeKilled kills a server under load with a signal that it cannot catch, at random points, its start among them. Started
// again, it serves; every answer is the one of a server that keeps nothing, whatever was found on disk; nothing that was found is
// damaged; and every file of a saved slot is whole. TERRACE_EXACT=whole kills it 50 times for each model.
func TestServeKilled(t *testing.T) {
	kills := 3
	if os.Getenv("TERRACE_EXACT") == "whole" {
		kills = 50
	}
	for _, c := range []struct {
		name, path string
		vocab      int
	}{{"tiny-moe", tinyMoE, 5632}, {"qwen3next", golden(t, "qwen3next"), 320}, {"gpt-oss", golden(t, "gpt-oss"), 320}} {
		t.Run(c.name, func(t *testing.T) {
			common := []string{"-m", c.path, "-c", "1000", "-np", "3", "-t", "1", "--port", "0", "--heat", "off", "--ram", "500M", "--metrics"}
			calm := startVictim(t, append(common, "--cache-ram", "0")...)
			calm.wait(t)
			want := talks(t, calm.url, c.vocab)
			calm.kill()
			k := &killing{t: t, want: want, slots: t.TempDir(), prompts: t.TempDir(), r: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
			k.args = append(common, "--cache-ram", "24", "--cache-disk", "6M", "--cache-dir", k.prompts, "--slot-save-path", k.slots)
			for i := range kills {
				k.once(i)
				if t.Failed() {
					return
				}
			}
			last := startVictim(t, k.args...)
			last.wait(t)
			k.verify(last.url)
			last.kill()
			t.Logf("%d kills, %d of them at the start, during %d finished and %d unfinished requests; afterwards %d prompts of %d were found in part, %d tokens of them cached, and %d slots restored",
				kills, k.early, k.finished.Load(), k.unfinished.Load(), k.hits, k.asked, k.cached, k.restored)
			if k.hits == 0 || k.restored == 0 || k.finished.Load() == 0 {
				t.Error("the kills met nothing that was kept")
			}
		})
	}
}

// killing is a server that is killed again and again.
type killing struct {
	t                             *testing.T
	args                          []string
	want                          [][]talkTurn
	slots, prompts                string
	r                             *rand.Rand
	early                         int
	hits, asked, cached, restored int
	finished, unfinished, saved   atomic.Int64
}

// once starts the server, looks at what it found, puts it under load and kills it.
func (k *killing) once(i int) {
	v := startVictim(k.t, k.args...)
	if i%7 == 3 { // while it starts
		time.Sleep(time.Duration(k.r.IntN(300)) * time.Millisecond)
		v.kill()
		k.early++
		return
	}
	v.wait(k.t)
	k.verify(v.url)
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	var killed atomic.Bool
	for w := range 5 {
		seed := k.r.Uint64()
		g.Go(func() { k.load(ctx, v.url, rand.New(rand.NewPCG(seed, uint64(w))), &killed) })
	}
	for i == 0 && k.saved.Load() == 0 && !k.t.Failed() { // however slow the machine is, something is kept
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Duration(20+k.r.IntN(500)) * time.Millisecond)
	killed.Store(true) // whatever fails from here on may fail
	v.kill()
	cancel()
	g.Wait()
}

// load asks and saves until the server is gone.
func (k *killing) load(ctx context.Context, url string, r *rand.Rand, killed *atomic.Bool) {
	for ctx.Err() == nil && !killed.Load() {
		i := r.IntN(len(k.want))
		turn := &k.want[i][r.IntN(len(k.want[i]))]
		z, status, text := turn.ask(ctx, url, -1, true)
		if status == 0 {
			k.unfinished.Add(1)
			if !killed.Load() {
				k.t.Errorf("the server was gone before it was killed: %s", text)
			}
			return
		}
		k.finished.Add(1)
		if status != http.StatusOK || !slices.Equal(z.Tokens, turn.answer) {
			k.t.Errorf("talk %d, %d of %d tokens cached: status %d, answer %v, want %v", i, z.Timings.CacheN, len(turn.prompt), status, z.Tokens, turn.answer)
			return
		}
		if r.IntN(3) == 0 {
			var saved struct{}
			status, text := post(ctx, fmt.Sprintf("%s/slots/%d?action=save", url, z.Slot), map[string]any{"filename": fmt.Sprintf("talk-%d.bin", i)}, &saved)
			switch status {
			case http.StatusOK:
				k.saved.Add(1)
			case 0:
			default:
				k.t.Errorf("a slot is not saved: %d %s", status, text)
			}
		}
	}
}

// verify looks at what a server has found.
func (k *killing) verify(url string) {
	ctx := k.t.Context()
	for i := range k.want {
		turn := &k.want[i][k.r.IntN(len(k.want[i]))]
		z, status, text := turn.ask(ctx, url, -1, true)
		if status != http.StatusOK || !slices.Equal(z.Tokens, turn.answer) {
			k.t.Errorf("started again, talk %d, %d of %d tokens cached: status %d %.200s, answer %v, want %v", i, z.Timings.CacheN, len(turn.prompt), status, text, z.Tokens, turn.answer)
		}
		k.asked++
		if k.cached += z.Timings.CacheN; z.Timings.CacheN > 0 {
			k.hits++
		}
	}
	files, err := filepath.Glob(filepath.Join(k.slots, "*.bin"))
	if err != nil {
		k.t.Fatal(err)
	}
	for _, f := range files {
		var got struct {
			Restored int `json:"n_restored"`
		}
		status, text := post(ctx, url+"/slots/1?action=restore", map[string]any{"filename": filepath.Base(f)}, &got)
		if status != http.StatusOK || got.Restored == 0 {
			k.t.Errorf("%s was saved and is not restored: %d %s", filepath.Base(f), status, text)
			continue
		}
		k.restored++
		i := int(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "talk-"), ".bin")[0] - '0')
		turn := &k.want[i][len(k.want[i])-1]
		if z, status, text := turn.ask(ctx, url, 1, true); status != http.StatusOK || !slices.Equal(z.Tokens, turn.answer) {
			k.t.Errorf("%s restored, %d of %d tokens cached: status %d %.200s, answer %v, want %v", filepath.Base(f), z.Timings.CacheN, len(turn.prompt), status, text, z.Tokens, turn.answer)
		}
	}
	res, err := http.Get(url + "/metrics")
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	if !strings.Contains(string(text), `terrace_prompt_cache_lost_total{why="damaged"} 0`+"\n") {
		k.t.Errorf("damaged entries were met: %s", strings.Join(slices.DeleteFunc(strings.Split(string(text), "\n"), func(s string) bool { return !strings.HasPrefix(s, "terrace_prompt_cache") }), "\n"))
	}
}
