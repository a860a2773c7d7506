package host

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLockFile: one holder at a time, who waits too long is told, and a lock given back can be had.
func TestLockFile(t *testing.T) {
	p := filepath.Join(t.TempDir(), "a.lock")
	unlock, err := LockFile(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockFile(p, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), p) {
		t.Fatalf("second holder: %v", err)
	}
	unlock()
	n := 0 // guarded by the lock: the race detector does not see it, the sum does
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		wg.Go(func() {
			for range 20 {
				unlock, err := LockFile(p, 10*time.Second)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				was := n
				mu.Unlock()
				time.Sleep(10 * time.Microsecond)
				mu.Lock()
				n = was + 1
				mu.Unlock()
				unlock()
			}
		})
	}
	wg.Wait()
	if n != 160 {
		t.Errorf("%d turns counted, want 160", n)
	}
	if _, err := LockFile(filepath.Join(t.TempDir(), "none", "x"), 0); err == nil {
		t.Error("a lock in a folder that does not exist")
	}
}

// TestReplaceFile: whole contents only, seen by readers meanwhile, and nothing left beside.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "a[1].json")
	content := func(i int) []byte { return []byte(strings.Repeat(string(rune('a'+i%26)), 100000)) }
	if err := ReplaceFile(p, content(0)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".a[1].json.terrace-tmp-123"), []byte("cut"), 0o600); err != nil { // what a killed writer leaves
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			b, err := os.ReadFile(p)
			if err != nil || len(b) != 100000 || b[0] != b[len(b)-1] {
				t.Errorf("read %d bytes: %v", len(b), err)
				return
			}
		}
	})
	for i := range 20 {
		if err := ReplaceFile(p, content(i)); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	es, err := os.ReadDir(dir)
	if err != nil || len(es) != 1 {
		t.Errorf("left in the folder: %v, %v", es, err)
	}
	if err := ReplaceFile(filepath.Join(dir, "none", "x"), nil); err == nil {
		t.Error("written into a folder that does not exist")
	}
}

// TestReplace: nothing is seen before Commit, nothing is left after Abort, and only what is old beside it is removed.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "trace.gz")
	if err := os.WriteFile(p, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	young, old := filepath.Join(dir, ".trace.gz.terrace-tmp-1"), filepath.Join(dir, ".trace.gz.terrace-tmp-2")
	for _, q := range []string{young, old} {
		if err := os.WriteFile(q, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*replaceAge)); err != nil {
		t.Fatal(err)
	}
	write := func() *Replacement {
		r, err := Replace(p)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := r.Write([]byte("new ")); err != nil {
				t.Fatal(err)
			}
		}
		if b, _ := os.ReadFile(p); string(b) != "old" {
			t.Errorf("before the end it is %q", b)
		}
		return r
	}
	if err := write().Abort(); err != nil {
		t.Error(err)
	}
	if err := write().Commit(); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(p); string(b) != "new new new " {
		t.Errorf("it is %q", b)
	}
	if es, _ := os.ReadDir(dir); len(es) != 2 || es[0].Name() != filepath.Base(young) {
		t.Errorf("left in the folder: %v, want the file and what somebody else just writes", es)
	}
}

// TestReplacePrivate: nobody else may read it, before and after.
func TestReplacePrivate(t *testing.T) {
	p := filepath.Join(t.TempDir(), "x")
	for range 2 {
		if err := ReplacePrivate(p, []byte("mine")); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(p); err != nil || runtime.GOOS != "windows" && st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
	}
}

// TestAppendLines: a line that was cut off is ended before another is added, and whole ones are left as they are.
func TestAppendLines(t *testing.T) {
	p := filepath.Join(t.TempDir(), "x.jsonl")
	add := func(s string) {
		f, err := AppendLines(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{"one\n", "two\n", "cut o", "three\n", "four\n"} {
		add(s)
	}
	if b, _ := os.ReadFile(p); string(b) != "one\ntwo\ncut o\nthree\nfour\n" {
		t.Errorf("%q", b)
	}
	if f, err := AppendLines(os.DevNull); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}
