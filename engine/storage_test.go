package engine

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"terrace/internal/tinymodel"
	"terrace/plan"
)

// copyFile copies a file to dir, without its last cut bytes.
func copyFile(t *testing.T, path, dir string, cut int) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(out, b[:len(b)-cut], 0o644); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWhereBytesComeFrom: mapped dense weights and a mirror change no bit, and the statistics say that they were used.
func TestWhereBytesComeFrom(t *testing.T) {
	o := Options{ExpertRAM: ExpertBudget{Percent: 25}, Lookahead: 1, Threads: 2}
	want := hashRun(t, o)
	if want.Dense != "ram" || want.DenseBytes == 0 || want.MirrorBytes != 0 {
		t.Errorf("%+v", want)
	}
	o.Dense = "mmap"
	got := hashRun(t, o)
	if got.LogitsSHA256 != want.LogitsSHA256 {
		t.Error("other logits with mapped dense weights")
	}
	if got.Dense != "mmap" || got.DenseBytes == 0 || got.DenseBytes > want.DenseBytes || want.RAMBudget-got.RAMBudget != plan.Mapped(want.DenseBytes) {
		t.Errorf("dense %q, %d bytes in a budget of %d; read, %d in %d", got.Dense, got.DenseBytes, got.RAMBudget, want.DenseBytes, want.RAMBudget)
	}
	dir := t.TempDir()
	for _, cut := range []int{0, 4_000_000} {
		o.Mirror = copyFile(t, tinyMoE, dir, cut)
		if cut == 0 {
			o.Mirror = dir
		}
		got := hashRun(t, o)
		if got.LogitsSHA256 != want.LogitsSHA256 {
			t.Errorf("other logits with a mirror that lacks %d bytes", cut)
		}
		if got.MirrorBytes == 0 || got.MirrorBytes >= got.BytesRead || got.MirrorErrors != 0 || !strings.Contains(got.Store, "with a mirror") {
			t.Errorf("mirror: %d of %d bytes, %d errors, store %q", got.MirrorBytes, got.BytesRead, got.MirrorErrors, got.Store)
		}
	}
}

// TestMirrorPaths: a model in several files finds their copies by name, and says so where there are none.
func TestMirrorPaths(t *testing.T) {
	first, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 2, Split: 2})
	if err != nil {
		t.Fatal(err)
	}
	second := strings.Replace(first, "00001", "00002", 1)
	o := Options{Path: first, Context: 64, ExpertRAM: ExpertBudget{Percent: 50}}
	dir := t.TempDir()
	o.Mirror = dir
	if e, err := Open(o); err == nil || !strings.Contains(err.Error(), "no copy of any") {
		t.Errorf("an empty folder: %v", err)
		if err == nil {
			e.Close()
		}
	}
	copyFile(t, second, dir, 0)
	mustOpen(t, o)
	o.Mirror = copyFile(t, first, dir, 0)
	mustOpen(t, o)
	o.Mirror = filepath.Join(dir, "missing")
	if e, err := Open(o); err == nil || !strings.Contains(err.Error(), o.Mirror) {
		t.Errorf("a missing mirror: %v", err)
		if err == nil {
			e.Close()
		}
	}
	o.Mirror = copyFile(t, tinyMoE, t.TempDir(), 0)
	if err := os.Rename(o.Mirror, filepath.Join(filepath.Dir(o.Mirror), filepath.Base(second))); err != nil {
		t.Fatal(err)
	}
	o.Mirror = filepath.Dir(o.Mirror)
	if e, err := Open(o); err == nil || !strings.Contains(err.Error(), "mirror") {
		t.Errorf("another model as mirror: %v", err)
		if err == nil {
			e.Close()
		}
	}
}

// TestDiskProfile: a disk is measured once (again where its rate had not settled), never for a small model, and what is known decides the store.
func TestDiskProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "terrace", "machine.json")
	var log bytes.Buffer
	o := Options{Path: tinyMoE, Context: 64, ExpertRAM: ExpertBudget{Percent: 50}, Profile: path, Log: slog.New(slog.NewTextHandler(&log, nil))}
	open := func() string {
		log.Reset()
		e := mustOpen(t, o)
		return e.cache.Stats().Store
	}
	open()
	if _, err := os.Stat(path); err == nil || !strings.Contains(log.String(), "small") {
		t.Errorf("a small model's disk was measured, or nothing said: %v, %s", err, log.String())
	}
	least, long := probeLeast, probeTime
	probeLeast, probeTime = 1<<20, 300*time.Millisecond
	defer func() { probeLeast, probeTime = least, long }()
	open()
	if !strings.Contains(log.String(), "disk measured") {
		t.Errorf("log: %s", log.String())
	}
	p, err := plan.ReadProfile(path)
	if err != nil || len(p.Disks) != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	var key string
	for k, d := range p.Disks {
		key = k
		if d.Sustained <= 0 || d.Burst < d.Sustained || d.Depth < 1 || d.Piece < 1 || len(d.Stores) == 0 || d.Measured.IsZero() {
			t.Errorf("%+v", d)
		}
	}
	for _, store := range []string{"pread", "mmap"} {
		if err := plan.UpdateProfile(path, func(p *plan.Profile) { d := p.Disks[key]; d.Store = store; p.Disks[key] = d }); err != nil {
			t.Fatal(err)
		}
		if got := open(); !strings.HasPrefix(got, store) || strings.Contains(log.String(), "disk measured") {
			t.Errorf("the profile names %s; %s was opened, log: %s", store, got, log.String())
		}
	}
	for _, c := range []struct {
		settled bool
		age     time.Duration
		again   bool
	}{{false, unsettledFor / 2, false}, {false, 2 * unsettledFor, true}, {true, 1000 * unsettledFor, false}} {
		if err := plan.UpdateProfile(path, func(p *plan.Profile) {
			d := p.Disks[key]
			d.Settled, d.Measured = c.settled, time.Now().Add(-c.age)
			p.Disks[key] = d
		}); err != nil {
			t.Fatal(err)
		}
		if open(); strings.Contains(log.String(), "disk measured") != c.again {
			t.Errorf("%+v: log: %s", c, log.String())
		}
	}
	newer := []byte(`{"version": 99}`)
	if err := os.WriteFile(path, newer, 0o644); err != nil {
		t.Fatal(err)
	}
	open()
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, newer) || !strings.Contains(log.String(), "newer") {
		t.Errorf("a newer program's profile became %s, %v; log: %s", b, err, log.String())
	}
}
