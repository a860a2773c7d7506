package tiers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// copyModel copies files, each of them shortened by cut bytes.
func copyModel(t testing.TB, paths []string, cut int64) (copies []string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		c := filepath.Join(dir, filepath.Base(p))
		if err := os.WriteFile(c, b[:int64(len(b))-cut], 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, c)
	}
	return copies
}

// newMirrored makes a cache over originals and copies, whose stores get options of their own.
func newMirrored(t testing.TB, m maker, experts [][]Desc, paths, copies []string, a, b StoreOptions, log *slog.Logger) *Cache {
	t.Helper()
	s, err := NewMirror(paths, MirrorOptions{Paths: copies, Compare: make([]int64, len(paths)), Log: log}, func(paths []string, copies bool) (Store, error) {
		o := a
		if copies {
			o = b
		}
		s, err := m.make(paths, o)
		if err != nil {
			return nil, err
		}
		return NewVerify(s, paths, nil, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: MinSlots(3, 2, 3), TopK: 3, Lookahead: 2, Guesses: 3})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// useMirrored runs several sequences with guesses and checks every byte; no request may fail.
func useMirrored(t testing.TB, c *Cache, turns int) {
	t.Helper()
	var wg sync.WaitGroup
	layers := len(c.experts)
	n := len(c.experts[1])
	for g := range 5 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			for range turns {
				for l := 1; l < layers; l++ {
					for a := 1; a <= 2 && l+a < layers; a++ {
						c.Prefetch(l+a, distinct(rng, 3, n))
					}
					want := distinct(rng, 1+rng.IntN(4), n)
					c.Settle(l, want)
					if err := stressRequest(c, rng, l, want, 3); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	checkCache(t.(*testing.T), c)
}

func mirrorTurns() int {
	if raceOn || testing.Short() {
		return 6
	}
	return 10
}

// TestMirror: both disks serve, with whatever is in a whole copy, a shorter one, and one that lacks a file.
func TestMirror(t *testing.T) {
	for _, m := range fileStores(t) {
		if m.name == "mmap" || m.name == "uring-unregistered" {
			continue
		}
		for _, kind := range []string{"whole", "shorter", "a file less"} {
			t.Run(m.name+"/"+kind, func(t *testing.T) {
				experts := testExperts(4, 12)
				paths := writeModel(t, experts, 2)
				cut := int64(0)
				if kind == "shorter" {
					cut = 100_000
				}
				copies := copyModel(t, paths, cut)
				if kind == "a file less" {
					copies[0] = ""
				}
				c := newMirrored(t, m, experts, paths, copies, StoreOptions{}, StoreOptions{}, nil)
				defer closeCache(t, c)
				useMirrored(t, c, mirrorTurns())
				st := c.store.Stats()
				some := st.MirrorBytes > 0 && st.MirrorBytes < st.DemandBytes+st.GuessBytes
				if kind == "a file less" { // every expert has a piece in the file that is not there, but in layer 2
					some = some || st.MirrorBytes == 0
				}
				if !some || st.MirrorErrors != 0 || st.Errors != 0 || !strings.HasSuffix(c.store.Name(), "with a mirror") {
					t.Errorf("%s: %+v", c.store.Name(), st)
				}
			})
		}
	}
}

// TestMirrorShares: the slower disk gets less, and more again when it has become the faster one.
func TestMirrorShares(t *testing.T) {
	experts := testExperts(4, 12)
	paths := writeModel(t, experts, 1)
	var delay [2]atomic.Int64 // microseconds
	slow := func(i int) StoreOptions {
		return StoreOptions{Depth: 1, readAt: func(f *os.File, b []byte, off int64) (int, error) {
			time.Sleep(time.Duration(delay[i].Load()) * time.Microsecond)
			return f.ReadAt(b, off)
		}}
	}
	c := newMirrored(t, maker{"pread", NewPread}, experts, paths, copyModel(t, paths, 0), slow(0), slow(1), nil)
	defer closeCache(t, c)
	share := func() float64 {
		a := c.store.Stats()
		useMirrored(t, c, 6)
		b := c.store.Stats()
		return float64(b.MirrorBytes-a.MirrorBytes) / float64(b.DemandBytes+b.GuessBytes-a.DemandBytes-a.GuessBytes)
	}
	delay[0].Store(100)
	delay[1].Store(2000)
	share() // learn
	first := share()
	delay[0].Store(2000)
	delay[1].Store(100)
	share()
	second := share()
	if first > 0.4 || second < 0.6 {
		t.Errorf("the mirror's share is %.2f while it is slow and %.2f while it is fast", first, second)
	}
}

// TestMirrorFaults: a mirror that fails now and then costs time, never an expert; one that always fails is given up.
func TestMirrorFaults(t *testing.T) {
	for _, m := range fileStores(t) {
		if m.name != "pread" && m.name != "uring" {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			experts := testExperts(4, 12)
			paths := writeModel(t, experts, 2)
			var mode, n atomic.Int64
			fails := func() bool { return mode.Load() == 1 && n.Add(1)%7 == 0 || mode.Load() == 2 }
			sick := StoreOptions{
				readAt: func(f *os.File, b []byte, off int64) (int, error) {
					if fails() {
						return 0, syscall.EIO
					}
					return f.ReadAt(b, off)
				},
				result: func(n int32) int32 {
					if fails() {
						return -int32(syscall.EIO)
					}
					return n
				},
			}
			var mu sync.Mutex
			var out bytes.Buffer
			log := slog.New(slog.NewTextHandler(lockedWriter{&mu, &out}, nil))
			c := newMirrored(t, m, experts, paths, copyModel(t, paths, 0), StoreOptions{}, sick, log)
			defer closeCache(t, c)
			mode.Store(1)
			useMirrored(t, c, mirrorTurns())
			st := c.store.Stats()
			if st.MirrorErrors == 0 || st.Errors != 0 || st.MirrorBytes == 0 {
				t.Errorf("%+v", st)
			}
			mode.Store(2)
			useMirrored(t, c, mirrorTurns())
			if !strings.HasSuffix(c.store.Name(), "mirror given up") {
				t.Errorf("%s: %+v", c.store.Name(), c.store.Stats())
			}
			before := c.store.Stats()
			mode.Store(0)
			useMirrored(t, c, 2)
			if after := c.store.Stats(); after.MirrorBytes != before.MirrorBytes || after.MirrorErrors != before.MirrorErrors {
				t.Errorf("a mirror that was given up was read: %+v, %+v", before, after)
			}
			mu.Lock()
			defer mu.Unlock()
			if s := out.String(); !strings.Contains(s, "input/output error") || !strings.Contains(s, "given_up=true") {
				t.Errorf("log: %s", s)
			}
		})
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// TestMirrorTruncated: a copy that shrinks while in use is read past, the original's own end is an error.
func TestMirrorTruncated(t *testing.T) {
	for _, m := range fileStores(t) {
		if m.name != "pread" && m.name != "uring" && m.name != "uring-buffered" {
			continue
		}
		experts := testExperts(4, 12)
		paths := writeModel(t, experts, 1)
		copies := copyModel(t, paths, 0)
		c := newMirrored(t, m, experts, paths, copies, StoreOptions{}, StoreOptions{}, nil)
		useMirrored(t, c, 2)
		if err := os.Truncate(copies[0], 5000); err != nil {
			t.Fatal(err)
		}
		useMirrored(t, c, mirrorTurns())
		if st := c.store.Stats(); st.MirrorErrors == 0 || st.Errors != 0 {
			t.Errorf("%s: %+v", m.name, st)
		}
		closeCache(t, c)
	}
}

// TestMirrorChanged: bytes of a copy that somebody writes to while it is in use reach nobody.
func TestMirrorChanged(t *testing.T) {
	experts := testExperts(4, 12)
	paths := writeModel(t, experts, 1)
	copies := copyModel(t, paths, 0)
	c := newMirrored(t, maker{"pread", NewPread}, experts, paths, copies, StoreOptions{}, StoreOptions{}, nil)
	defer closeCache(t, c)
	useMirrored(t, c, 2)
	fi, err := os.Stat(copies[0])
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // so that the time of writing differs
	f, err := os.OpenFile(copies[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, fi.Size()), 0); err != nil {
		t.Fatal(err)
	}
	useMirrored(t, c, mirrorTurns())
	if st := c.store.Stats(); st.MirrorErrors == 0 || !strings.HasSuffix(c.store.Name(), "mirror given up") {
		t.Errorf("%s: %+v", c.store.Name(), st)
	}
}

// TestMirrorClose: closing with reads waiting on both sides ends them all.
func TestMirrorClose(t *testing.T) {
	experts := testExperts(3, 12)
	paths := writeModel(t, experts, 1)
	slow := StoreOptions{Depth: 1, readAt: func(f *os.File, b []byte, off int64) (int, error) {
		time.Sleep(time.Millisecond)
		return f.ReadAt(b, off)
	}}
	c := newMirrored(t, maker{"pread", NewPread}, experts, paths, copyModel(t, paths, 0), slow, slow, nil)
	r, err := c.Begin(1, []int32{0, 1, 2, 3, 4, 5, 6, 7})
	if err != nil {
		t.Fatal(err)
	}
	c.Prefetch(2, []int32{0, 1, 2})
	done := make(chan error)
	go func() { done <- c.Close() }()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, err := r.Next(context.Background(), true); err == nil {
		t.Error("an expert came from a closed cache")
	}
	r.Close()
}

// TestMirrorRefused: what is no copy is named, with what differs.
func TestMirrorRefused(t *testing.T) {
	experts := testExperts(3, 12)
	path := writeModel(t, experts, 1)[0]
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const header = 10_000
	dir := t.TempDir()
	for i, tt := range []struct {
		change func(b []byte) []byte
		want   string
	}{
		{func(b []byte) []byte { return append(b, 0) }, fmt.Sprintf("has %d bytes", len(good)+1)},
		{func(b []byte) []byte { return b[:header-1] }, fmt.Sprintf("has %d bytes", header-1)},
		{func(b []byte) []byte { b[header-1]++; return b }, "bytes at offset 0"},
		{func(b []byte) []byte { b[len(b)-1]++; return b }, "is no copy of"},
		{func(b []byte) []byte { clear(b[header:]); return b }, "is no copy of"},
		{nil, "no such file"},
	} {
		p := filepath.Join(dir, fmt.Sprint(i))
		if tt.change != nil {
			if err := os.WriteFile(p, tt.change(bytes.Clone(good)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := NewMirror([]string{path}, MirrorOptions{Paths: []string{p}, Compare: []int64{header}}, func(paths []string, _ bool) (Store, error) { return NewPread(paths, StoreOptions{}) })
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), p) {
			t.Errorf("%d: %v, want %q", i, err, tt.want)
		}
	}
	if s, err := NewMirror([]string{path}, MirrorOptions{Paths: []string{""}, Compare: []int64{header}}, nil); err == nil {
		s.Close()
		t.Error("a mirror of nothing was made")
	}
}
