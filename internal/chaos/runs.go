package chaos

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/internal/host"
)

// Plan is what to run.
type Plan struct {
	Over   string                                         // what the seeds are run over: "run" or "serve"
	Seeds  string                                         // "a..b"; "": 1..10
	File   string                                         // where lines are added, and seeds that are told there are left out; "": nowhere
	Rooms  []string                                       // folders whose code the seeds are of; of tests, files that are named chaos*_test.go
	Failed []uint64                                       // seeds that failed once, and are run each time
	One    func(t *testing.T, seed uint64) (requests int) // runs one and answers how many requests it had
	Tally  *Tally
}

// Line is a block of seeds in the file.
type Line struct {
	Over     string         `json:"over"`
	From     uint64         `json:"from"`
	To       uint64         `json:"to"`
	Seeds    int            `json:"seeds"` // that were run: others of the block were done before
	Requests int            `json:"requests"`
	Minutes  float64        `json:"minutes"`
	Failed   bool           `json:"failed"`
	Told     map[string]int `json:"told"` // faults, and errors by kind
	Commit   string         `json:"commit"`
	Code     string         `json:"code"` // of the rooms, by which seeds add up
	Date     string         `json:"date"`
}

// Tally counts what was told to clients, by kind. It may be used by several goroutines.
type Tally struct {
	mu    sync.Mutex
	n     map[string]int
	Kinds []string // that an error is counted as, when it has one of them in it; otherwise by its whole text
}

// Add counts n of a kind.
func (t *Tally) Add(kind string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	t.n[kind] += n
}

// Error counts an error.
func (t *Tally) Error(msg string) {
	for _, k := range t.Kinds {
		if strings.Contains(msg, k) {
			msg = k
			break
		}
	}
	t.Add(msg, 1)
}

// take is what was counted since the last take.
func (t *Tally) take() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.n
	t.n = nil
	return n
}

const (
	block   = 50  // seeds of a line
	longest = 120 // seconds that a seed may take, those not counted in which the process was stopped
)

// Run runs the seeds that are not done yet, looks after each for goroutines and open files that stay, and adds lines to the file.
func Run(t *testing.T, p Plan) {
	t.Helper()
	from, to := uint64(1), uint64(10)
	if p.Seeds != "" {
		if n, err := fmt.Sscanf(p.Seeds, "%d..%d", &from, &to); n != 2 || from > to {
			t.Fatalf("seeds %q, want a..b: %v", p.Seeds, err)
		}
	}
	code, err := codeOf(p.Rooms)
	if err != nil {
		t.Fatal(err)
	}
	done, err := doneSeeds(p.File, p.Over, code)
	if err != nil {
		t.Fatal(err)
	}
	routines, files := runtime.NumGoroutine(), openFiles()
	one := func(seed uint64) (n int) {
		stop := watch(fmt.Sprintf("seed %d over %s does not end", seed, p.Over))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { n = p.One(t, seed) })
		stop()
		for until := time.Now().Add(5 * time.Second); (runtime.NumGoroutine() > routines || openFiles() > files) && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
		if now := runtime.NumGoroutine(); now > routines {
			t.Errorf("seed %d: %d goroutines, %d before", seed, now, routines)
			routines = now
		}
		if now := openFiles(); now > files {
			t.Errorf("seed %d: %d open files, %d before", seed, now, files)
			files = now
		}
		return n
	}
	for _, s := range p.Failed {
		one(s)
	}
	p.Tally.take()
	for a := from; a <= to; a += block {
		l := Line{Over: p.Over, From: a, To: min(a+block-1, to), Code: code, Date: time.Now().UTC().Format(time.DateOnly)}
		start := time.Now()
		for s := l.From; s <= l.To; s++ {
			if !done[s] {
				l.Requests += one(s)
				l.Seeds++
			}
		}
		if l.Seeds == 0 {
			continue
		}
		l.Minutes, l.Failed, l.Told = float64(int(time.Since(start).Minutes()*100))/100, t.Failed(), p.Tally.take()
		t.Logf("seeds %d to %d over %s: %d requests, %.2f minutes, %v", l.From, l.To, l.Over, l.Requests, l.Minutes, l.Told)
		if p.File != "" {
			if err := l.add(p.File); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// watch ends the process, and shows its goroutines, when the function it answers is not called in time.
func watch(why string) (stop func()) {
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for range longest {
			select {
			case <-over:
				return
			case <-t.C:
			}
		}
		var b bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&b, 2) // to memory
		panic(why + "\n" + b.String())
	}()
	return func() { close(over); <-ended }
}

// add appends the line to the file.
func (l *Line) add(file string) error {
	l.Commit = "unknown"
	if out, err := exec.Command("git", "describe", "--always", "--dirty=+", "--exclude=*").Output(); err == nil {
		l.Commit = strings.TrimSpace(string(out))
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := host.AppendLines(file)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// doneSeeds are those that the file tells of, of this code and without a failure in their block.
func doneSeeds(file, over, code string) (map[uint64]bool, error) {
	done := map[uint64]bool{}
	if file == "" {
		return done, nil
	}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(b) {
		var l Line
		if json.Unmarshal(line, &l) != nil || l.Over != over || l.Code != code || l.Failed { // one may have been cut off
			continue
		}
		for s := l.From; s <= l.To; s++ {
			done[s] = true
		}
	}
	return done, nil
}

// codeOf names the code of rooms: 12 digits of a hash over their Go files.
func codeOf(rooms []string) (string, error) {
	files := map[string]bool{}
	for _, r := range rooms {
		list, err := filepath.Glob(filepath.Join(r, "*.go"))
		if err != nil {
			return "", err
		}
		if len(list) == 0 {
			return "", fmt.Errorf("no code in %s", r)
		}
		for _, f := range list {
			name := filepath.Base(f)
			if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "chaos") {
				files[f] = true
			}
		}
	}
	h := sha256.New()
	for _, f := range slices.Sorted(maps.Keys(files)) {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:12], nil
}

// openFiles is the number of the process's open files, 0 where the system does not show them.
func openFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}
