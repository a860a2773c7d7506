package engine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/internal/tinymodel"
	"terrace/tiers"
)

// writeTiny makes a small model in a folder of its own, last written a minute ago.
func writeTiny(t *testing.T) (path string, written time.Time) {
	t.Helper()
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	written = time.Now().Add(-time.Minute).Truncate(time.Second)
	if err := os.Chtimes(path, time.Time{}, written); err != nil {
		t.Fatal(err)
	}
	return path, written
}

// TestChangedUnderneath: a model file that is written to, cut or copied over under a running engine fails the requests that
// read of it, with expert, matrix and offset; no logits come of it; the engine lives on, and when the file is what it was,
// the answer is what it was. A file renamed over it changes nothing.
func TestChangedUnderneath(t *testing.T) {
	tokens := []int32{1, 2, 3, 4, 5, 6, 7}
	ctx := context.Background()
	for _, store := range []string{"pread", "mmap", "auto"} {
		path, written := writeTiny(t)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		e := mustOpen(t, Options{Path: path, Store: store, Threads: 2, Batch: 4, ExpertRAM: ExpertBudget{Min: true}})
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Sync(ctx, tokens); err != nil {
			t.Fatal(err)
		}
		want := slices.Clone(s.Logits())
		again := func(what string) {
			t.Helper()
			s.Reset()
			var err error
			for range 50 { // reads of before that are still under way fail who joins them
				if _, err = s.Sync(ctx, tokens); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if err != nil {
				t.Errorf("%s, %s: %v", store, what, err)
			} else if !slices.Equal(s.Logits(), want) {
				t.Errorf("%s, %s: other logits", store, what)
			}
		}
		for _, how := range []struct {
			name   string
			change func() error
		}{
			{"written", func() error {
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.WriteAt([]byte{0xff, 0xff}, int64(len(whole)-100))
				return errors.Join(err, f.Close())
			}},
			{"copied over", func() error { return os.WriteFile(path, make([]byte, len(whole)), 0o644) }},
			{"cut", func() error { return os.Truncate(path, int64(len(whole)/2)) }},
		} {
			if err := how.change(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s.Reset()
				_, err := s.Sync(ctx, tokens)
				var changed *tiers.ChangedError
				if !errors.As(err, &changed) && !(how.name == "cut" && errors.Is(err, io.ErrUnexpectedEOF)) {
					t.Fatalf("%s, %s: %v", store, how.name, err)
				}
				for _, w := range []string{path, "expert ", "layer ", "offset "} {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%s, %s: %v: want %q in it", store, how.name, err, w)
					}
				}
			}
			// A read that began while the file was another must end before the times are set back: what tells them apart is
			// gone then.
			for e.cache.Pending() > 0 {
				time.Sleep(time.Millisecond)
			}
			if err := os.WriteFile(path, whole, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Time{}, written); err != nil {
				t.Fatal(err)
			}
			again("after it was " + how.name)
		}
		if err := os.WriteFile(path+".new", make([]byte, len(whole)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		again("with a new file of the name")
	}
}

// TestChecksums: without checksums --verify is refused with the way to make them; with them a sound file answers as ever,
// and one with a flipped bit fails with both sums, again and again, while without --verify nobody would know.
func TestChecksums(t *testing.T) {
	path, _ := writeTiny(t)
	dir := filepath.Join(t.TempDir(), "cache")
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	open := func(sums string) (*Engine, error) {
		return Open(Options{Path: path, Threads: 2, ExpertRAM: ExpertBudget{Min: true}, SumsDir: sums})
	}
	if _, err := open(dir); !errors.Is(err, ErrNoSums) || !strings.Contains(err.Error(), "inspect --checksum") {
		t.Fatalf("without checksums: %v", err)
	}
	var told int64
	out, err := Checksum(context.Background(), path, dir, func(done, total int64) { told = total })
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(out) != dir || told == 0 {
		t.Errorf("checksums of %d bytes in %s", told, out)
	}
	answer := func(sums string) ([]float32, error) {
		t.Helper()
		e, err := open(sums)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = s.Sync(context.Background(), tokens)
		if err != nil {
			if _, again := s.Sync(context.Background(), tokens); again == nil {
				t.Error("a damaged expert was believed at the second try")
			}
		}
		return slices.Clone(s.Logits()), err
	}
	want, err := answer("")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := answer(dir); err != nil || !slices.Equal(got, want) {
		t.Fatalf("verified: %v, or other logits", err)
	}
	// One bit of every expert of layer 2: some of them are used.
	e, err := open("")
	if err != nil {
		t.Fatal(err)
	}
	table := e.table
	e.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, d := range table[2] {
		var b [1]byte
		at := d.Pieces[1].Offset + d.Pieces[1].Length/2
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	_, err = answer(dir)
	var bad *tiers.SumError
	if !errors.As(err, &bad) || bad.ID.Layer != 2 || bad.Piece != "up" || !strings.Contains(err.Error(), path) {
		t.Errorf("damaged: %v", err)
	}
	if _, err := answer(""); err != nil {
		t.Errorf("not compared: %v", err)
	}
	// Checksums that are cut, or of another model.
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(out, b[:len(b)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir); err == nil || !strings.Contains(err.Error(), out) {
		t.Errorf("cut checksums: %v", err)
	}
}
