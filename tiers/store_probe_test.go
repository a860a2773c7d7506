package tiers

import (
	"context"
	"errors"
	"os"
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
