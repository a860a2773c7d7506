package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"terrace/engine"
)

const tinyMoE = "../testdata/tiny-moe-Q4_K.gguf"

// system is a machine's files.
func system(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, text := range map[string]string{
		"proc/meminfo":                               "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
		"proc/self/status":                           "VmRSS: 1000 kB\nRssAnon: 1000 kB\n",
		"proc/self/limits":                           "Limit Soft Limit Hard Limit Units\nMax locked memory         unlimited            unlimited            bytes\n",
		"proc/pressure/memory":                       "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/self/mountinfo":                        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
		"proc/self/cgroup":                           "0::/\n",
		"proc/sys/kernel/io_uring_disabled":          "0\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
		"sys/dev/block/8:1/queue/rotational":         "0\n",
		"sys/dev/block/8:1/queue/read_ahead_kb":      "128\n",
	} {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, text := range files {
		if text == "" {
			delete(root, name)
			continue
		}
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func find(list []Finding, check string) Finding {
	for _, f := range list {
		if f.Check == check {
			return f
		}
	}
	return Finding{}
}

// TestExamine changes one file of a healthy machine at a time: that finding, and no other, changes its state, and says what
// to do.
func TestExamine(t *testing.T) {
	healthy := Examine(context.Background(), Options{Root: system(nil)})
	for _, f := range healthy {
		if f.State != OK && f.Check != "graphics card" && f.Check != "processor" {
			t.Errorf("a healthy machine: %+v", f)
		}
	}
	if c := find(healthy, "graphics card"); c.Measured == nil || *c.Measured {
		t.Errorf("a card that was measured: %+v", c)
	}
	for _, c := range []struct {
		check, state string
		files        map[string]string
		what         string
	}{
		{"memory", Warn, map[string]string{"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 2000000 kB\n"}, "1.9 GiB available of 15.3 GiB"},
		{"pressure", Warn, map[string]string{"proc/pressure/memory": "some avg10=30.00 avg60=0 avg300=0 total=9\nfull avg10=12.00 avg60=0 avg300=0 total=5\n"}, "30.0 %"},
		{"pressure", Unknown, map[string]string{"proc/pressure/memory": ""}, "does not tell"},
		{"swap", Warn, map[string]string{"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 4000000 kB\nSwapFree: 1000000 kB\n"}, "in use"},
		{"swap", Note, map[string]string{"proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\nSwapTotal: 4000000 kB\nSwapFree: 4000000 kB\n", "proc/swaps": "/dev/zram0 partition 4000000 0 100\n"}, "zram"},
		{"huge pages", Warn, map[string]string{"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}, "off"},
		{"locked memory", Note, map[string]string{"proc/self/limits": "Max locked memory         65536                65536                bytes\n"}, "65536"},
		{"io_uring", Note, map[string]string{"proc/sys/kernel/io_uring_disabled": "2\n"}, "switched off"},
		{"file system", Warn, map[string]string{"proc/self/mountinfo": "22 1 0:9 / / rw - nfs4 server:/x rw\n"}, "network"},
		{"file system", Note, map[string]string{"proc/self/mountinfo": "22 1 8:1 / / rw - newfs /dev/sda1 rw\n"}, "newfs"},
		{"disk", Warn, map[string]string{"sys/dev/block/8:1/queue/rotational": "1\n"}, "rotating"},
		{"read-ahead", Note, map[string]string{"sys/dev/block/8:1/queue/read_ahead_kb": "8192\n"}, "8192"},
	} {
		got := Examine(context.Background(), Options{Root: system(c.files)})
		f := find(got, c.check)
		if f.State != c.state || !strings.Contains(f.What, c.what) {
			t.Errorf("%s with %v: %+v, want %s", c.check, c.files, f, c.state)
		}
		if f.State == Warn && f.Do == "" {
			t.Errorf("%s: nothing to do about %q", c.check, f.What)
		}
		for _, f := range got {
			if f.Check != c.check && f.State != find(healthy, f.Check).State && !strings.Contains(c.what, "network") {
				t.Errorf("%v: %+v changed too", c.files, f)
			}
		}
	}
}

func TestCards(t *testing.T) {
	list := Examine(context.Background(), Options{Root: system(nil), Cards: func() ([]Card, error) {
		return []Card{{Name: "good", Memory: 8 << 30}, {Name: "old", Memory: 1 << 30, Refused: "it lacks Vulkan 1.2"}}, nil
	}})
	var got []string
	for _, f := range list {
		if f.Check == "graphics card" {
			got = append(got, f.State+" "+f.What)
			if f.Measured == nil || *f.Measured {
				t.Errorf("nobody measured %q", f.What)
			}
		}
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], "ok 0: good") || !strings.Contains(got[0], "8.0 GiB") || !strings.Contains(got[1], "lacks Vulkan") {
		t.Errorf("%q", got)
	}
}

func TestControlGroup(t *testing.T) {
	root := system(map[string]string{
		"proc/self/cgroup": "0::/box\n", "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/box/memory.max": "4294967296\n", "sys/fs/cgroup/box/memory.current": "1073741824\n", "sys/fs/cgroup/box/memory.stat": "active_file 0\ninactive_file 0\n",
		"sys/fs/cgroup/box/memory.events": "low 0\nhigh 0\nmax 7\noom 0\n",
	})
	if f := find(Examine(context.Background(), Options{Root: root}), "control group"); f.State != Warn || !strings.Contains(f.What, "4.0 GiB") || !strings.Contains(f.What, "7 times") || f.Do == "" {
		t.Errorf("%+v", f)
	}
}

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	at := l.Addr().String()
	if f := find(Examine(context.Background(), Options{Root: system(nil), Address: at}), "port"); f.State != Warn || !strings.Contains(f.What, at) {
		t.Errorf("in use: %+v", f)
	}
	l.Close()
	if f := find(Examine(context.Background(), Options{Root: system(nil), Address: at}), "port"); f.State != OK {
		t.Errorf("free: %+v", f)
	}
}

func TestModel(t *testing.T) {
	whole, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cut := filepath.Join(dir, "cut.gguf")
	if err := os.WriteFile(cut, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	holes := filepath.Join(dir, "holes.gguf")
	f, err := os.Create(holes)
	if err == nil {
		_, err = f.Write(whole[:1<<20])
	}
	if err == nil {
		err = f.Truncate(int64(len(whole)))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, c := range []struct{ path, check, state string }{
		{tinyMoE, "model file", OK}, {tinyMoE, "model data", OK}, {tinyMoE, "fits", OK}, {tinyMoE, "tokenizer", OK}, {tinyMoE, "chat template", OK}, {tinyMoE, "heat profile", Note},
		{cut, "model file", Fail}, {filepath.Join(dir, "none.gguf"), "model file", Fail}, {holes, "model data", Warn},
	} {
		list := Examine(context.Background(), Options{Model: c.path, Cache: dir, Profile: filepath.Join(dir, "machine.json"), Engine: engine.Options{Context: 256}})
		x := find(list, c.check)
		if x.State != c.state || x.State != OK && x.Do == "" {
			t.Errorf("%s: %+v, want %s", filepath.Base(c.path), x, c.state)
		}
		if fmt.Sprint(Worst(list)) == OK {
			t.Errorf("%s: nothing was found at all", c.path)
		}
	}
}
