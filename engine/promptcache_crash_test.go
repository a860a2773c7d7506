package engine

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const cacheChildEnv = "TERRACE_CACHE_CHILD" // model|folder

var crashOptions = Options{Context: 512, Threads: 1, Batch: 64, ExpertRAM: ExpertBudget{Percent: 100}, CacheRAM: 16 << 20}

// crashTalk is the i-th conversation of the child: some share a beginning.
func crashTalk(i int) []int32 { return append(wave(100, 1+i/3), wave(30, 50+i)...) }

// TestCacheChild is no test: it is the process that TestCacheKilled kills.
func TestCacheChild(t *testing.T) {
	model, dir, ok := strings.Cut(os.Getenv(cacheChildEnv), "|")
	if !ok {
		t.Skip("for TestCacheKilled")
	}
	o := crashOptions
	o.Path = model
	e := mustOpen(t, o)
	pc, err := e.NewPromptCache(PromptCacheOptions{Dir: dir, Disk: 8 << 20, Interval: 64})
	if err != nil {
		t.Fatal(err)
	}
	s := session(t, e, pc)
	for i := 0; ; i++ {
		if _, err := s.Sync(context.Background(), crashTalk(i%12)); err != nil {
			t.Fatal(err)
		}
		s.Keep()
		if i == 0 {
			pc.Flush()
			os.Stdout.WriteString("ready\n")
		}
	}
}

// TestCacheKilled kills a process that evaluates and keeps prompts, at random points. What is found afterwards continues with the
// bits of an evaluation from the start, and nothing damaged is met. TERRACE_EXACT=whole kills it 50 times for each model.
func TestCacheKilled(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	kills := 4
	if exactWhole {
		kills = 50
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 4))
	for name, path := range families(t, "qwen3moe", "gpt-oss", "lfm2moe") {
		dir, hits := t.TempDir(), 0
		for range kills {
			cmd := exec.Command(exe, "-test.run", "^TestCacheChild$")
			cmd.Env = append(os.Environ(), cacheChildEnv+"="+path+"|"+dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
				t.Fatalf("the child said %q: %v, %v", line, err, cmd.Wait())
			}
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			cmd.Process.Kill()
			cmd.Wait()

			o := crashOptions
			o.Path = path
			e := mustOpen(t, o)
			pc, err := e.NewPromptCache(PromptCacheOptions{Dir: dir, Disk: 8 << 20, Interval: 64})
			if err != nil {
				t.Fatal(err)
			}
			s := session(t, e, pc)
			rp := &replay{t, session(t, e, nil)}
			for i := range 12 {
				talk := append(slices.Clone(crashTalk(i)), 1, 2, 3)
				if n := pc.Lookup(s.state, talk); n > 0 {
					hits++
					rp.sync(name, s, talk)
				}
			}
			if st := pc.Stats(); st.Damaged > 0 {
				t.Errorf("%s: %+v", name, st)
			}
			if err := pc.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: %d prompts continued after %d kills", name, hits, kills)
		if hits == 0 {
			t.Errorf("%s: nothing was found after any of %d kills", name, kills)
		}
	}
}
