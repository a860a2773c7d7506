package engine

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/internal/tinymodel"
)

// openFiles counts the process's open files, -1 where the system does not show them.
func openFiles() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(d)
}

// TestNothingLeft opens, uses and closes engines over every store, some of them interrupted and some on a file that was
// cut short under them: neither goroutines nor files may stay, closing must find every expert given back, and what failed
// must not show in later logits.
func TestNothingLeft(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 2, Split: 2})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.gguf"))
	if err != nil || len(parts) != 2 {
		t.Fatal(parts, err)
	}
	saved := make([][]byte, len(parts))
	written := make([]time.Time, len(parts))
	for i, p := range parts {
		if saved[i], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		written[i] = st.ModTime()
	}
	var want []float32
	cycle := func(i int) {
		store := []string{"pread", "mmap", "auto"}[i%3]
		e, err := Open(Options{Path: path, Store: store, Lookahead: i % 3, Threads: 2, Batch: 4, ExpertRAM: ExpertBudget{Min: true}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		tokens := []int32{1, 2, 3, 4, 5, 6, 7}
		switch i % 4 {
		case 1: // interrupted in some layer
			n := 0
			s.OnRoute(func(int, []int32) {
				if n++; n == 1+i%6 { // the seventh is the last: nothing is left to interrupt
					cancel()
				}
			})
			if _, err := s.Sync(ctx, tokens); err == nil {
				t.Error("interrupted, and no error")
			}
		case 2: // the file shrinks
			for _, p := range parts {
				if err := os.Truncate(p, 5000); err != nil {
					t.Skip(err) // a system that keeps open files as they are
				}
			}
			if _, err := s.Sync(ctx, tokens); err == nil || !strings.Contains(err.Error(), "5000") {
				t.Errorf("cut file: %v", err)
			}
			for j, p := range parts {
				if err := os.WriteFile(p, saved[j], 0o644); err != nil {
					t.Fatal(err)
				}
				// A file that was written to is not believed, whatever is in it now: whoever knows it to be the same again says so.
				if err := os.Chtimes(p, time.Time{}, written[j]); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.OnRoute(nil)
		_, err = s.Sync(context.Background(), tokens) // a session survives both
		for try := 0; err != nil && i%4 == 2 && try < 2000; try++ {
			// Reads of the cut file that were under way still fail who joins them.
			time.Sleep(time.Millisecond)
			_, err = s.Sync(context.Background(), tokens)
		}
		if err != nil {
			t.Errorf("%s, after case %d: %v", store, i%4, err)
		} else if want == nil {
			want = slices.Clone(s.Logits())
		} else if !slices.Equal(s.Logits(), want) {
			t.Errorf("%s, after case %d: other logits than the first time", store, i%4)
		}
		s.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	for i := range 12 { // what the runtime opens once
		cycle(i)
	}
	files, routines := openFiles(), runtime.NumGoroutine()
	cycles := 60
	if raceEnabled {
		cycles = 24
	}
	for i := range cycles {
		cycle(i)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > routines && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := openFiles(); n > files {
		t.Errorf("%d open files, %d before", n, files)
	}
	if n := runtime.NumGoroutine(); n > routines {
		t.Errorf("%d goroutines, %d before", n, routines)
	}
}
