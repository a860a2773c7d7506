package tiers

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	experts := testExperts(3, 8)
	paths := writeModel(t, experts, 2)
	p, err := Probe(context.Background(), ProbeOptions{Paths: paths, Experts: experts, Time: 60 * time.Millisecond, Bytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if p.Burst <= 0 || p.Sustained <= 0 || p.Burst < p.Sustained || p.Bytes <= 0 || p.Took <= 0 || p.Depth != DefaultDepth || p.Piece <= 0 || len(p.Stores) == 0 {
		t.Errorf("%+v", p)
	}
	found := false
	for _, s := range p.Stores {
		found = found || s.Name == p.Best
		if s.Rate <= 0 || s.CPUPerGB < 0 {
			t.Errorf("%+v", s)
		}
	}
	if want := 1 + len(uringStores(t))/3; !found || len(p.Stores) != want {
		t.Errorf("best %q of %+v, want %d stores", p.Best, p.Stores, want)
	}
}

// TestProbeBounds: a probe of few bytes ends at once, and one of a sick disk with its error.
func TestProbeBounds(t *testing.T) {
	experts := testExperts(3, 8)
	paths := writeModel(t, experts, 1)
	start := time.Now()
	p, err := Probe(context.Background(), ProbeOptions{Paths: paths, Experts: experts, Time: time.Minute, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second || p.Bytes > 16<<20 {
		t.Errorf("%v, %d bytes", took, p.Bytes)
	}
	sick := StoreOptions{readAt: func(*os.File, []byte, int64) (int, error) { return 0, syscall.EIO }, result: func(int32) int32 { return -int32(syscall.EIO) }}
	if _, err := Probe(context.Background(), ProbeOptions{Paths: paths, Experts: experts, Store: sick}); !errors.Is(err, syscall.EIO) {
		t.Errorf("a sick disk: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Probe(ctx, ProbeOptions{Paths: paths, Experts: experts}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := Probe(context.Background(), ProbeOptions{Paths: paths}); err == nil {
		t.Error("a model without experts was probed")
	}
}

func TestBestStore(t *testing.T) {
	for _, tt := range []struct {
		s    []ProbeStore
		want string
	}{
		{[]ProbeStore{{"uring", 100, 0.05}, {"pread", 95, 0.08}}, "uring"},
		{[]ProbeStore{{"uring", 95, 0.05}, {"pread", 100, 0.08}}, "uring"},
		{[]ProbeStore{{"uring", 80, 0.05}, {"pread", 100, 0.08}}, "pread"},
		{[]ProbeStore{{"uring", 100, 0.09}, {"pread", 95, 0.08}}, "pread"},
		{[]ProbeStore{{"uring", 100, 0}, {"pread", 100, 0}}, "uring"},
		{[]ProbeStore{{"pread", 1, 1}}, "pread"},
	} {
		if got := bestStore(tt.s); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.s, got, tt.want)
		}
	}
}

// TestProbeHoles: experts in holes of a file say nothing about its disk.
func TestProbeHoles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells where a file has holes")
	}
	path := t.TempDir() + "/holes"
	const size = 64 << 10
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*size); err != nil {
		t.Fatal(err)
	}
	at := func(n uint16, off int64) Desc {
		return Desc{ID: ExpertID{Expert: n}, Pieces: [3]Piece{{Offset: off, Length: size / 4}, {Offset: off + size/4, Length: size / 4}, {Offset: off + size/2, Length: size / 4}}}
	}
	o := ProbeOptions{Paths: []string{path}, Experts: [][]Desc{{at(0, size), at(1, size+size/4)}}, Time: 30 * time.Millisecond, Bytes: 1 << 30}
	if _, err := Probe(context.Background(), o); err == nil || !strings.Contains(err.Error(), "all 2 experts lie in holes") {
		t.Errorf("holes alone: %v", err)
	}
	read := make(map[int64]int)
	var mu sync.Mutex
	o.Experts[0] = append(o.Experts[0], at(2, 0), at(3, size/2)) // of the last a part is in the hole
	o.Store.readAt = func(f *os.File, b []byte, off int64) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		read[off/size]++
		return f.ReadAt(b, off)
	}
	if _, err := Probe(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if read[0] == 0 || read[1] != 0 {
		t.Errorf("reads of the data and of the hole: %v", read)
	}
}
