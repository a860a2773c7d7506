package host

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"unsafe"
)

func TestAlloc(t *testing.T) {
	for _, n := range []int{1, 4096, 1<<20 + 3} {
		b, err := Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != n || cap(b) != n {
			t.Errorf("Alloc(%d): len %d, cap %d", n, len(b), cap(b))
		}
		if a := uintptr(unsafe.Pointer(&b[0])); a%uintptr(PageSize()) != 0 {
			t.Errorf("Alloc(%d): address %#x is not page-aligned", n, a)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d is %d", i, b[i])
			}
			b[i] = 1
		}
		if err := AdviseHuge(b); err != nil && n >= 1<<20 {
			t.Logf("huge pages: %v", err)
		}
		if err := Free(b); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := Alloc(n); err == nil {
			t.Errorf("Alloc(%d) gave memory", n)
		}
	}
}

func TestMachine(t *testing.T) {
	if p, l := PhysicalCores(), LogicalCores(); p < 1 || p > l {
		t.Errorf("%d physical of %d logical cores", p, l)
	}
	switch runtime.GOOS {
	case "linux", "darwin", "windows":
	default:
		t.Skip("no answers on", runtime.GOOS)
	}
	m, err := RAM()
	if err != nil {
		t.Fatal(err)
	}
	if m.Total < 64<<20 || m.Available > m.Total {
		t.Errorf("RAM %+v", m)
	}
	b, err := Alloc(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(b)
	before, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = byte(i)
	}
	after, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	if after.Peak < 32<<20 || after.Peak < before.Peak {
		t.Errorf("peak %d, then %d after 32 MiB were touched", before.Peak, after.Peak)
	}
	if runtime.GOOS == "linux" && after.Anon-before.Anon < 24<<20 { // the runtime gives memory back at any time
		t.Errorf("anonymous part grew from %d to %d by touching 32 MiB", before.Anon, after.Anon)
	}
}

func TestOpenDirect(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, want, 0o644); err != nil {
		t.Fatal(err)
	}
	f, direct, err := OpenDirect(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Log("direct:", direct)
	b, err := Alloc(2 * IOAlign)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(b)
	if n, err := f.ReadAt(b, IOAlign); n != len(b) || err != nil {
		t.Fatal(n, err)
	}
	if !bytes.Equal(b, want[IOAlign:3*IOAlign]) {
		t.Error("other bytes")
	}
	if _, _, err := OpenDirect(filepath.Join(t.TempDir(), "missing")); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("missing file: %v", err)
	}
	if _, _, err := OpenDirect(t.TempDir()); err == nil {
		t.Error("a directory was opened as a model file")
	}
}

func TestMemoryLimit(t *testing.T) {
	tree := func(files ...string) fstest.MapFS {
		m := fstest.MapFS{}
		for i := 0; i < len(files); i += 2 {
			m[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
		}
		return m
	}
	const v1, v2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
	tests := []struct {
		name  string
		root  fstest.MapFS
		limit int64
		ok    bool
		err   string
	}{
		{"no groups", tree(), 0, false, ""},
		{"version 1", tree("proc/self/cgroup", "4:memory:/a/b\n0::/\n", v1+"/a/b/memory.limit_in_bytes", "1073741824\n"), 1 << 30, true, ""},
		{"version 1 with another controller", tree("proc/self/cgroup", "4:cpu,memory:/a\n", v1+"/a/memory.limit_in_bytes", "4096\n"), 4096, true, ""},
		{"version 1 without limit", tree("proc/self/cgroup", "4:memory:/a\n", v1+"/a/memory.limit_in_bytes", "9223372036854771712\n"), 0, false, ""},
		{"version 1, the parent is tighter", tree("proc/self/cgroup", "4:memory:/a/b\n", v1+"/a/b/memory.limit_in_bytes", "8192", v1+"/a/memory.limit_in_bytes", "4096"), 4096, true, ""},
		{"version 1 seen from inside a container", tree("proc/self/cgroup", "4:memory:/docker/xyz\n", v1+"/memory.limit_in_bytes", "12288\n"), 12288, true, ""},
		{"version 2", tree("proc/self/cgroup", "0::/u/s\n", v2+"/u/s/memory.max", "2147483648\n", v2+"/u/memory.max", "max\n"), 2 << 30, true, ""},
		{"version 2, max everywhere", tree("proc/self/cgroup", "0::/u\n", v2+"/u/memory.max", "max\n"), 0, false, ""},
		{"version 2, only the grandparent", tree("proc/self/cgroup", "0::/a/b/c\n", v2+"/a/b/c/memory.max", "max\n", v2+"/a/memory.max", "5000\n"), 5000, true, ""},
		{"both versions", tree("proc/self/cgroup", "4:memory:/a\n0::/b\n", v1+"/a/memory.limit_in_bytes", "9000\n", v2+"/unified/b/memory.max", "7000\n"), 7000, true, ""},
		{"not a number", tree("proc/self/cgroup", "0::/u\n", v2+"/u/memory.max", "lots\n"), 0, false, `/sys/fs/cgroup/u/memory.max: "lots"`},
		{"odd lines", tree("proc/self/cgroup", "what\n\n4:memory\n"), 0, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limit, ok, err := MemoryLimit(tt.root)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || limit != tt.limit || ok != tt.ok {
				t.Errorf("%d, %v, %v; want %d, %v", limit, ok, err, tt.limit, tt.ok)
			}
		})
	}
	if _, _, err := HostMemoryLimit(); err != nil {
		t.Error(err)
	}
}
