package host

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// layout reads a machine's files from one text: what is wanted, and each file after a line "-- name --".
func layout(t *testing.T, name string) (want string, tree fstest.MapFS) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	tree = fstest.MapFS{}
	file, body := "", []byte(nil)
	end := func() {
		switch file {
		case "":
		case "want":
			want = string(body)
		default:
			tree[file] = &fstest.MapFile{Data: body}
		}
	}
	for line := range bytes.Lines(text) {
		if s := strings.TrimSpace(string(line)); strings.HasPrefix(s, "-- ") && strings.HasSuffix(s, " --") {
			end()
			file, body = s[3:len(s)-3], nil
		} else {
			body = append(body, line...)
		}
	}
	end()
	return want, tree
}

func TestLayouts(t *testing.T) {
	names, err := filepath.Glob("testdata/layouts/*.txt")
	if err != nil || len(names) < 10 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, tree := layout(t, name)
			w := NewWatch(tree)
			defer w.Close()
			var got, want MemorySample
			err := w.Read(&got)
			limit, limited, lerr := MemoryLimit(tree)
			if !strings.HasPrefix(text, "{") {
				for _, err := range []error{err, lerr} {
					if err == nil || err.Error() != strings.TrimSpace(text) {
						t.Errorf("error %v, want %s", err, text)
					}
				}
				return
			}
			if err := json.Unmarshal([]byte(text), &want); err != nil {
				t.Fatal(err)
			}
			if err != nil || got != want {
				t.Errorf("error %v\ngot  %+v\nwant %+v", err, got, want)
			}
			if limit != want.Limit || limited != want.Limited || lerr != nil {
				t.Errorf("limit %d, %v, %v", limit, limited, lerr)
			}
		})
	}
}

// TestWatchFollows changes the files under a watch: a lowered limit, another group, a group that is gone.
func TestWatchFollows(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	group := func(name string, limit, usage int64) {
		put("sys/fs/cgroup/"+name+"/memory.max", strconv.FormatInt(limit, 10)+"\n")
		put("sys/fs/cgroup/"+name+"/memory.current", strconv.FormatInt(usage, 10)+"\n")
	}
	put("proc/self/cgroup", "0::/a\n")
	group("a", 5000, 1000)
	group("b", 700, 100)
	w := NewWatch(os.DirFS(dir))
	defer w.Close()
	var s MemorySample
	check := func(limit, room int64) {
		t.Helper()
		if err := w.Read(&s); err != nil {
			t.Fatal(err)
		}
		if s.Limit != limit || s.Room != room || s.Limited != (limit > 0) {
			t.Errorf("%+v, want limit %d and room %d", s, limit, room)
		}
	}
	check(5000, 4000)
	group("a", 2000, 1500)
	check(2000, 500)
	put("proc/self/cgroup", "0::/b\n")
	check(700, 600)
	put("proc/self/cgroup", "0::/gone\n")
	check(0, 0)
	group("gone", 900, 0)
	check(0, 0) // a group that appears later under the same name is not looked for
	put("proc/self/cgroup", "0::/a\n")
	check(2000, 500)
	put("sys/fs/cgroup/a/memory.max", "some\n")
	if err := w.Read(&s); err == nil || !strings.Contains(err.Error(), `a/memory.max: "some"`) {
		t.Errorf("error %v", err)
	}
}

// TestWatchHere reads this machine: the figures must be those of RAM and RSS, and a look may not cost anything that adds
// up when it is taken four times a second.
func TestWatchHere(t *testing.T) {
	w := NewWatch(nil)
	defer w.Close()
	var s MemorySample
	if err := w.Read(&s); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", s)
	m, err := RAM()
	if err != nil {
		t.Skip(err)
	}
	if s.Total != m.Total || s.Available <= 0 || s.Available > s.Total {
		t.Errorf("%+v, the machine has %+v", s, m)
	}
	if runtime.GOOS != "linux" {
		return
	}
	b, err := Alloc(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(b)
	for i := range b {
		b[i] = 1
	}
	before := s
	if err := w.Read(&s); err != nil {
		t.Fatal(err)
	}
	if grown := s.Held - before.Held; grown < 31<<20 || grown > 64<<20 {
		t.Errorf("held %d, then %d after 32 MiB were touched", before.Held, s.Held)
	}
	start := time.Now()
	const looks = 200
	for range looks {
		if err := w.Read(&s); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a look takes %v", time.Since(start)/looks)
	if raceEnabled {
		return
	}
	if n := testing.AllocsPerRun(50, func() { _ = w.Read(&s) }); n != 0 {
		t.Errorf("a look allocates %v times", n)
	}
}
