package bench

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"terrace/plan"
)

// TestRates measures with the demo model in place of the trial's, and keeps the profile: a plan finds no guess in it.
func TestRates(t *testing.T) {
	r, err := Rates(context.Background(), RateConfig{Threads: 1, Dir: t.TempDir(), DiskTime: 200 * time.Millisecond, Bytes: 4 << 20, Tokens: 8, trialModel: tinyMoE, window: 300 * time.Microsecond, prompt: 64})
	if err != nil {
		t.Fatal(err)
	}
	p := &r.Profile
	if p.Memory.Rate < 1e8 || p.Kernels["Q4_K"] < 1e7 || p.Kernels["MXFP4"] < 1e7 || len(p.Gemm) == 0 || p.Engine == nil || p.Engine.Efficiency <= 0 || r.Trial.Resident <= 0 || r.Trial.Starved <= 0 || r.Trial.StarvedBytes <= 0 {
		t.Errorf("profile %+v, trial %+v", p, r.Trial)
	}
	path := filepath.Join(t.TempDir(), "cache", "machine.json")
	if err := SaveRates(path, r); err != nil {
		t.Fatal(err)
	}
	back, err := plan.ReadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r.Device == "" {
		t.Skip("the disk has no name here")
	}
	if m := back.Machine(r.Device, 16<<30, 1); !m.Measured || m.Memory != p.Memory.Rate || m.Disk != p.Disks[r.Device].Sustained {
		t.Errorf("machine %+v", m)
	}
	if m := back.Machine("another", 16<<30, 1); m.Measured {
		t.Errorf("a disk that was not measured passes for one that was: %+v", m)
	}
}
