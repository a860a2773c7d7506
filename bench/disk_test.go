package bench

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func diskConfig(t *testing.T) DiskConfig {
	return DiskConfig{Dir: t.TempDir(), Size: 2 << 20, Piece: 20_000, Store: "auto", Pairs: 2, Window: 50 * time.Millisecond, Spend: time.Millisecond}
}

func TestDisk(t *testing.T) {
	for _, c := range []DiskConfig{diskConfig(t), {Model: "../testdata/tiny-moe-Q4_K.gguf", Store: "pread", Pairs: 2, Window: 50 * time.Millisecond}} {
		r, err := Disk(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Pairs) != 2 || r.Ours.Min <= 0 || r.Ratio != nil || r.FioVersion != "" || r.Store == "" || r.Depth < 1 || r.Alone.N < 1 || r.Beside.N < 1 ||
			r.Alone.P50 <= 0 || r.Alone.P99 < r.Alone.P50 || r.FileBytes < 2<<20 || r.ExpertBytes < 3*r.PieceBytes-2 || r.ExpertBytes > 3*r.PieceBytes+2 {
			t.Errorf("%+v", r)
		}
		if c.Dir != "" {
			if left, _ := os.ReadDir(c.Dir); len(left) != 0 {
				t.Errorf("left in the folder: %v", left)
			}
		}
	}
}

// TestDiskKeep: a file that is kept is used again.
func TestDiskKeep(t *testing.T) {
	c := diskConfig(t)
	c.Keep = true
	var said strings.Builder
	c.Progress = func(s string) { said.WriteString(s + "\n") }
	for range 2 {
		if _, err := Disk(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(said.String(), "writing"); n != 1 {
		t.Errorf("the file was written %d times", n)
	}
}

// TestDiskFio: what fio reports is taken, its best depth found, and its refusal to register memory got round.
func TestDiskFio(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for fio is a shell script")
	}
	c := diskConfig(t)
	c.Fio = filepath.Join(t.TempDir(), "fio")
	script := `#!/bin/sh
case "$*" in
*--version*) echo fio-9.9; exit;;
*fixedbufs*) echo "fio: cannot register" >&2; exit 1;;
*--iodepth=4*) rate=4000000000;;
*) rate=1000000000;;
esac
case "$*" in *--bs=20480*) ;; *) echo "other block: $*" >&2; exit 1;; esac
echo "note: something"
echo '{"jobs":[{"error":0,"job_runtime":1000,"usr_cpu":2,"sys_cpu":8,"read":{"io_bytes":2000000000,"bw_bytes":'$rate'}}]}'
`
	if err := os.WriteFile(c.Fio, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := Disk(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.FioVersion != "fio-9.9" || r.FioDepth != 4 || r.FioRate.Median != 4e9 || r.FioCPUPerGB < 0.0499 || r.FioCPUPerGB > 0.0501 || len(r.FioDepths) != len(fioDepths) {
		t.Errorf("%+v", r)
	}
	for _, p := range r.Pairs {
		if p.Ratio != p.Ours/4e9 {
			t.Errorf("%+v", p)
		}
	}
	if err := os.WriteFile(c.Fio, []byte("#!/bin/sh\necho broken >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Disk(context.Background(), c); err == nil || !strings.Contains(err.Error(), c.Fio) {
		t.Errorf("a broken fio: %v", err)
	}
}

func TestDiskRefuses(t *testing.T) {
	for _, change := range []func(*DiskConfig){
		func(c *DiskConfig) { c.Pairs = 0 },
		func(c *DiskConfig) { c.Window = time.Millisecond },
		func(c *DiskConfig) { c.Piece = 100 },
		func(c *DiskConfig) { c.Size = 3 * c.Piece },
		func(c *DiskConfig) { c.Dir = filepath.Join(c.Dir, "missing") },
		func(c *DiskConfig) { c.Model = "missing.gguf" },
	} {
		c := diskConfig(t)
		change(&c)
		if _, err := Disk(context.Background(), c); err == nil {
			t.Errorf("accepted: %+v", c)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Disk(ctx, diskConfig(t)); err == nil {
		t.Error("a cancelled run succeeded")
	}
}
