package promptstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const childEnv = "TERRACE_PROMPTSTORE_CHILD"

// crashTalk is the i-th conversation of the child.
func crashTalk(i int) []int32 {
	r := rand.New(rand.NewPCG(uint64(i/3), 3)) // three that share a beginning
	x := make([]int32, 40+r.IntN(200))
	for j := range x {
		x[j] = int32(r.IntN(1000))
	}
	return append(x, int32(i), int32(i), int32(i))
}

const crashSnap = 40 << 10

// child keeps conversations until it is killed.
func child() {
	s, err := Open(Options{Space: "test", RAM: 4 << 20, Dir: os.Getenv(childEnv), Disk: 3 << 20})
	if err != nil || !s.Disk() {
		os.Exit(3)
	}
	os.Stdout.WriteString("ready\n")
	first, _ := strconv.Atoi(os.Getenv(childEnv + "_FIRST"))
	for i := first; ; i++ {
		keep(s, crashTalk(i), 64, crashSnap, Turn, false)
		if i%8 == 0 {
			s.Flush()
		}
	}
}

// TestKilled kills a process that writes entries, at random points: what a store finds afterwards is right, and never damaged.
func TestKilled(t *testing.T) {
	kills := 52
	if testing.Short() {
		kills = 10
	}
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 4))
	first, parts, found := 0, 0, 0
	for k := range kills {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childEnv+"="+dir, childEnv+"_FIRST="+strconv.Itoa(first))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("the child said %q: %v, %v", line, err, cmd.Wait())
		}
		time.Sleep(time.Duration(r.IntN(15000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"+tempExt))
		if err != nil {
			t.Fatal(err)
		}
		parts += len(left)
		s := open(t, Options{Dir: dir, RAM: 4 << 20, Disk: 3 << 20})
		if !s.Disk() {
			t.Fatal("the lock of a killed process stayed")
		}
		for i := max(0, first-60); i < first+60; i++ {
			if n := check(t, s, crashTalk(i), Need{Snapshot: true}, crashSnap); n > 0 {
				found++
				first = max(first, i+1-40*(k%2)) // now and then over what was written before
			}
			check(t, s, crashTalk(i), Need{}, 0)
		}
		if st := s.Stats(); st.Damaged > 0 || st.Disk > 3<<20 {
			t.Fatalf("kill %d: %+v", k, st)
		}
		closing(t, s)
	}
	t.Logf("%d kills left %d parts of files; %d conversations found", kills, parts, found)
	if found == 0 {
		t.Error("nothing was ever found")
	}
}

// FuzzEntry: what decodes is what encodes, and nothing else is taken for an entry.
func FuzzEntry(f *testing.F) {
	h := head{Kind: Rows, Windowed: true, Start: 0, End: 3, Size: 12, Sum: 5, Tokens: []int32{1, 2, 3}}
	h.ID = h.id()
	f.Add(h.encode())
	x := head{Kind: Snapshot, Class: Tail, Parent: h.ID, Start: 3, End: 3, Size: 100}
	x.ID = x.id()
	f.Add(x.encode())
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeHead(b)
		if err != nil {
			return
		}
		if n := got.encoded(); n > len(b) || string(got.encode()) != string(b[:n]) {
			t.Fatalf("%x is read as %+v", b, got)
		}
	})
}

// A changed file: put comes at byte at, or the file ends there where put is empty; resum repairs the head's checksum, as somebody
// who means harm could.
func change(b []byte, at uint16, put []byte, resum bool) []byte {
	b = append([]byte(nil), b...)
	i := int(at) % len(b)
	if len(put) == 0 {
		return b[:i]
	}
	copy(b[i:], put)
	n := headBytes
	if resum && string(b[:8]) == magic {
		if tokens := binary.LittleEndian.Uint32(b[100:]); tokens <= PieceTokens {
			n += 4 * int(tokens)
		}
		if n <= len(b) {
			binary.LittleEndian.PutUint32(b[104:], headSum(b[:n]))
		}
	}
	return b
}

func addChanges(f *testing.F, add func(at uint16, put []byte, resum bool)) {
	add(8, []byte{2}, false)
	add(80, binary.LittleEndian.AppendUint32(nil, 1<<31), true)
	add(88, []byte{255, 255, 255, 255, 255, 255, 255, 255}, true)
	add(750, []byte{1}, false)
	add(300, []byte{}, false)
}

// FuzzFile: whatever a file of the store is turned into, nothing wrong is found.
func FuzzFile(f *testing.F) {
	dir := f.TempDir()
	s := open(f, Options{Dir: dir})
	talk := count(20, 3)
	keep(s, talk, 20, 64, Turn, false)
	paths := [2]string{s.disk.path(&s.walk(talk)[0].e.head), s.disk.path(&s.walk(talk)[0].e.snaps[0].head)}
	closing(f, s)
	var files [2][]byte
	for i, path := range paths {
		var err error
		if files[i], err = os.ReadFile(path); err != nil {
			f.Fatal(err)
		}
	}
	addChanges(f, func(at uint16, put []byte, resum bool) {
		f.Add(at, put, resum, false)
		f.Add(at, put, resum, true)
	})
	f.Fuzz(func(t *testing.T, at uint16, put []byte, resum, state bool) {
		for i, path := range paths {
			b := files[i]
			if state == (i == 1) {
				b = change(b, at, put, resum)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, Options{Dir: dir})
		check(t, s, talk, Need{Snapshot: state}, 64)
		closing(t, s)
	})
}

// FuzzSlot: a slot file that was changed is refused.
func FuzzSlot(f *testing.F) {
	path := filepath.Join(f.TempDir(), "slot")
	w, err := CreateSlot(path, "test", count(20, 3))
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(w.Rows(12, true, make([]byte, 120)), w.Rows(8, false, make([]byte, 80)), w.Snapshot(make([]byte, 64))); err != nil {
		f.Fatal(err)
	}
	if n, err := w.Commit(); err != nil || n != slotHead+3*headBytes+20*4+264 {
		f.Fatalf("%d bytes, %v", n, err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	read := func() error {
		r, err := OpenSlot(path, "test")
		if err != nil {
			return err
		}
		defer r.Close()
		return r.Each(make([]byte, r.Largest), func(Piece) error { return nil }, func([]byte) error { return nil })
	}
	if err := read(); err != nil {
		f.Fatal(err)
	}
	addChanges(f, func(at uint16, put []byte, resum bool) { f.Add(at, put) })
	f.Fuzz(func(t *testing.T, at uint16, put []byte) {
		bad := change(file, at, put, false)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := read(); (err == nil) != (string(bad) == string(file)) {
			t.Fatalf("%x at %d: %v", put, at, err)
		}
	})
}
