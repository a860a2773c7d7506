package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/internal/tinymodel"
)

// TestMappedFileChanges: with dense weights mapped, a file that shrinks while it is in use fails requests with an error that
// names file and tensor, a file that is written to with one that names the file; never a signal, and everything can be closed.
func TestMappedFileChanges(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tokens := []int32{1, 2, 3, 4, 5, 6, 7}
	var want []float32
	for _, c := range []struct {
		name   string
		change func() error
		says   []string
	}{
		{"shrinks to its header", func() error { return os.Truncate(path, 5000) }, []string{"tensor ", "5000 bytes now"}},
		{"shrinks in its middle", func() error { return os.Truncate(path, int64(len(whole)/3)) }, []string{"bytes now"}},
		{"loses its last byte", func() error { return os.Truncate(path, int64(len(whole)-1)) }, []string{"bytes now"}},
		{"is written to", func() error { return os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)) }, []string{"written to"}},
	} {
		for threads := 1; threads <= 2; threads++ {
			for warm := range 2 {
				if err := os.WriteFile(path, whole, 0o644); err != nil {
					t.Fatal(err)
				}
				e, err := Open(Options{Path: path, Dense: "mmap", Threads: threads, Batch: 4, ExpertRAM: ExpertBudget{Percent: 100}})
				if err != nil {
					t.Fatal(err)
				}
				s, err := e.NewSession()
				if err != nil {
					t.Fatal(err)
				}
				if warm > 0 { // the experts are there: nothing is read any more
					if _, err := s.Sync(context.Background(), tokens); err != nil {
						t.Fatal(err)
					}
					if want == nil {
						want = slices.Clone(s.Logits())
					} else if !slices.Equal(want, s.Logits()) {
						t.Error("other logits")
					}
					s.Reset()
				}
				if err := c.change(); err != nil {
					t.Skip(err) // a system that keeps mapped files as they are
				}
				for range 3 {
					_, err = s.Sync(context.Background(), tokens)
					if err == nil || !strings.Contains(err.Error(), filepath.Base(path)) || warm > 0 && !errors.Is(err, ErrMapped) {
						t.Fatalf("%s, %d threads: %v", c.name, threads, err)
					}
					for _, w := range c.says {
						if warm > 0 && !strings.Contains(err.Error(), w) {
							t.Errorf("%s, %d threads: %v: want %q in it", c.name, threads, err, w)
						}
					}
					if s.Pos() != 0 {
						t.Errorf("%s: %d tokens are said to be there", c.name, s.Pos())
					}
				}
				t.Log(c.name, threads, err)
				s.Close()
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
