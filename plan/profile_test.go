package plan

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache", "terrace", "machine.json")
	if p, err := ReadProfile(path); err != nil || p.Disks != nil {
		t.Fatalf("a file that does not exist: %+v, %v", p, err)
	}
	d := Disk{Measured: time.Date(2026, 12, 1, 2, 3, 4, 0, time.UTC), Burst: 5e9, Sustained: 1.4e9, Settled: true, Piece: 900000, Depth: 8, Store: "uring",
		Stores: []Store{{"uring", 1.4e9, 0.04}, {"pread", 1.38e9, 0.08}}}
	if err := UpdateProfile(path, func(p *Profile) { p.Disks["dev-1"] = d }); err != nil {
		t.Fatal(err)
	}
	if err := UpdateProfile(path, func(p *Profile) {
		p.Kernels = map[string]float64{"Q4_K": 4e10}
		p.Memory = &Memory{Rate: 5e10, Threads: 2}
	}); err != nil {
		t.Fatal(err)
	}
	p, err := ReadProfile(path)
	want := Profile{Version: ProfileVersion, Disks: map[string]Disk{"dev-1": d}, Kernels: map[string]float64{"Q4_K": 4e10}, Memory: &Memory{Rate: 5e10, Threads: 2}}
	if err != nil || !cmp.Equal(p, want) {
		t.Errorf("%v; difference: %s", err, cmp.Diff(want, p))
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 { // and its lock
		t.Errorf("beside the profile: %v, %v", left, err)
	}
}

// TestProfileBad: what cannot be used is said, empty, and replaced, unless a newer program wrote it.
func TestProfileBad(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "unexpected end"},
		{`{"version":1,"disks":{"a":{`, "unexpected end"},
		{`{"disks":{}}`, "version 0, want 1"},
		{`{"version":-3}`, "version -3"},
		{`{"version":2,"disks":[]}`, "version 2, this program knows 1"},
		{`{"version":1,"disks":[]}`, "cannot unmarshal"},
		{`{"version":1,"disks":{"a":{"burst_bytes_per_second":1,"sustained_bytes_per_second":0,"store":"x"}}}`, "disk \"a\": sustained is 0"},
		{`{"version":1,"disks":{"a":{"burst_bytes_per_second":1,"sustained_bytes_per_second":1}}}`, "no store"},
		{`{"version":1,"kernels":{"Q4_K":-1}}`, "kernel \"Q4_K\" is -1"},
		{`{"version":1,"memory":{}}`, "memory rate is 0"},
	} {
		path := filepath.Join(t.TempDir(), "machine.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadProfile(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
		var log bytes.Buffer
		if p := LoadProfile(path, slog.New(slog.NewTextHandler(&log, nil))); len(p.Disks)+len(p.Kernels) > 0 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%s: %+v, log %q", tt.text, p, log.String())
		}
		err = UpdateProfile(path, func(p *Profile) { p.Kernels = map[string]float64{"F32": 1} })
		after, _ := os.ReadFile(path)
		if newer := strings.Contains(tt.want, "knows"); newer != errors.Is(err, ErrNewer) || newer != (string(after) == tt.text) {
			t.Errorf("%s: updated with %v to %s", tt.text, err, after)
		}
		if err == nil {
			if p, err := ReadProfile(path); err != nil || p.Kernels["F32"] != 1 {
				t.Errorf("%s: after the update %+v, %v", tt.text, p, err)
			}
		}
	}
}

// TestProfileUnwritable: the old profile survives a failed update.
func TestProfileUnwritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := UpdateProfile(filepath.Join(file, "machine.json"), func(*Profile) {}); err == nil {
		t.Error("a profile was written below a file")
	}
	path := filepath.Join(dir, "machine.json")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := UpdateProfile(path, func(*Profile) {}); err == nil {
		t.Error("a profile replaced a folder")
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 { // and a lock
		t.Errorf("a failed write left %v", left)
	}
}
