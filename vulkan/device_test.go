//go:build cgo && !novulkan

package vulkan

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/gguf"
)

// TestMasked takes features away: what can be done without gives the results in bounds, what cannot is refused by name.
func TestMasked(t *testing.T) {
	b := open(t, Options{Mask: []string{"float64", "subnormals"}})
	if n := b.Numerics(); n.Double || n.Emulated {
		t.Errorf("without float64: %+v", n)
	}
	if i := b.Info(); !strings.Contains(strings.Join(i.Lacks, ";"), "float64") {
		t.Errorf("it lacks %q", i.Lacks)
	}
	e := b.Encoder()
	s := lane{Encoder: e, t: t, b: b, out: map[string][]float32{}}
	x := s.load([]float32{3, 4, 0, 0}, 4)
	e.RMSNorm(x, x, nil, 0)
	got := make([]float32, 4)
	e.Read(got, x)
	if err := e.Submit(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{1.2, 1.6, 0, 0} {
		if d := got[i] - want; d > 1e-6 || d < -1e-6 {
			t.Errorf("a norm of pairs: %v", got)
		}
	}
	for _, m := range []string{"buffer addresses", "64-bit integers", "8-bit storage", "Vulkan 1.2"} {
		_, err := New(Options{Device: *deviceFlag, Mask: []string{m}})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), m) {
			t.Errorf("without %s: %v", m, err)
		}
	}
}

// TestCollector records while the collector runs again and again: 10,000 times with TERRACE_EXACT=whole.
func TestCollector(t *testing.T) {
	collections := int64(500)
	if os.Getenv("TERRACE_EXACT") == "whole" {
		collections = 10_000
	}
	var stop atomic.Bool
	var cycles atomic.Int64
	done := make(chan bool)
	go func() {
		for !stop.Load() {
			runtime.GC()
			cycles.Add(1)
		}
		close(done)
	}()
	b := open(t, Options{})
	m, _ := computetest.Matrix(t, 1, gguf.Q8_0, 256, 64)
	w, err := b.NewWeight(m)
	if err != nil {
		t.Fatal(err)
	}
	e := b.Encoder()
	want := make([]float32, 64)
	steps := 0
	for i := 0; cycles.Load() < collections; i++ {
		steps++
		s := lane{Encoder: e, t: t, b: b}
		x, d := s.load(random(3, 256, 1), 256), s.empty(1, 64)
		e.MatMul(d, w, x)
		got := make([]float32, 64)
		e.Read(got, d)
		if err := e.Submit(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			copy(want, got)
		}
		for k := range got {
			if got[k] != want[k] {
				t.Fatalf("step %d: result %d is %v, was %v", i, k, got[k], want[k])
			}
		}
	}
	stop.Store(true)
	<-done
	t.Logf("%d cycles over %d steps", cycles.Load(), steps)
}

// TestMemory runs into the limit of memory at each allocation in turn: an error that tells, and the next step works.
func TestMemory(t *testing.T) {
	b := open(t, Options{Memory: firstBlock + 3<<20, CacheFile: filepath.Join(t.TempDir(), "cache", "pipelines")})
	_, err := b.NewWeight(compute.Matrix{Type: gguf.F32, In: 1 << 10, Out: 20 << 10, Data: make([]byte, 80<<20)})
	if err == nil || !strings.Contains(err.Error(), "limit") {
		t.Fatalf("a weight larger than the limit: %v", err)
	}
	if _, err := b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 8, KeyDim: 128, ValDim: 128}}, Context: 1 << 14}); err == nil {
		t.Error("a cache larger than the limit was made")
	}
	if _, err := b.NewRecurrent(compute.RecurrentShape{Layers: []compute.RecurrentLayer{{Heads: 64, KeyDim: 128, ValDim: 128}}}, 9); err == nil {
		t.Error("a state larger than the limit was made")
	}
	e := b.Encoder()
	big := b.NewTensor(1<<13, 1<<12)
	big.SetRows(1 << 13)
	e.Clear(big)
	if err := e.Submit(); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a tensor larger than the limit: %v", err)
	}
	// What fits goes on, as often as one likes.
	for range 20 {
		d := b.NewTensor(1<<10, 1<<10)
		d.SetRows(1 << 10)
		e.Clear(d)
		if err := e.Submit(); err != nil {
			t.Fatal(err)
		}
	}
}
