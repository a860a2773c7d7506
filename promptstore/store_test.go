package promptstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

const rowSize = 32

// row is what position len(tokens)-1 leaves behind: it depends on all tokens up to it.
func row(tokens []int32) []byte {
	b := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// snapshot is the state after tokens, of size bytes.
func snapshot(tokens []int32, size int) []byte {
	return bytes.Repeat(row(append(slices.Clone(tokens), -1)), size/rowSize+1)[:size]
}

// keep stores all rows of tokens, in pieces of at most step, and a snapshot at the end; it reports whether everything found
// room.
func keep(s *Store, tokens []int32, step, snap int, class Class, windowed bool) bool {
	for at := s.Known(tokens).Rows; at < len(tokens); {
		to := min(at+step, len(tokens))
		ok := s.AddRows(tokens[:to], at, windowed, int64(to-at)*rowSize, func(dst []byte) {
			for i := range to - at {
				copy(dst[i*rowSize:], row(tokens[:at+i+1]))
			}
		})
		if !ok {
			return false
		}
		at = to
	}
	if snap == 0 {
		return true
	}
	return s.AddSnapshot(tokens, class, int64(snap), func(dst []byte) { copy(dst, snapshot(tokens, snap)) })
}

// check finds the prefix of tokens and compares what it is made of; it answers its length.
func check(t testing.TB, s *Store, tokens []int32, n Need, snap int) int {
	t.Helper()
	p := s.Find(tokens, n)
	defer p.Close()
	at := 0
	err := p.Pieces(context.Background(), 0, func(x Piece) error {
		if x.Lo != at || x.Hi <= x.Lo || x.Lo < x.First || x.Hi > x.First+x.N || len(x.Data) != x.N*rowSize {
			t.Fatalf("a piece of %d bytes of positions %d to %d has %d to %d, want it from %d on", len(x.Data), x.First, x.First+x.N, x.Lo, x.Hi, at)
		}
		for ; at < x.Hi; at++ {
			if got := x.Data[(at-x.First)*rowSize:][:rowSize]; !bytes.Equal(got, row(tokens[:at+1])) {
				t.Fatalf("position %d of %v is wrong", at, tokens)
			}
		}
		if n.Window > 0 && !x.Windowed && x.Hi > p.N-n.Window+1 {
			t.Fatalf("position %d of %d has no windows, window %d", x.Hi-1, p.N, n.Window)
		}
		return nil
	})
	if err == nil && n.Snapshot && p.N > 0 {
		err = p.Snapshot(func(b []byte) error {
			if !bytes.Equal(b, snapshot(tokens[:p.N], snap)) {
				t.Fatalf("the snapshot of position %d is wrong", p.N)
			}
			return nil
		})
	}
	if errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist) {
		return check(t, s, tokens, n, snap)
	}
	if err != nil {
		t.Fatal(err)
	}
	if at != p.N {
		t.Fatalf("a prefix of %d positions has pieces up to %d", p.N, at)
	}
	return p.N
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.RAM == 0 {
		o.RAM = 1 << 20
	}
	if o.Disk == 0 {
		o.Disk = 1 << 30
	}
	if o.Space == "" {
		o.Space = "test"
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closing(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func count(n, salt int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i*salt + i/7)
	}
	return out
}

// TestShared: what conversations share is kept once, and prefixes may end anywhere in an entry.
func TestShared(t *testing.T) {
	s := open(t, Options{})
	defer closing(t, s)
	a := count(300, 1)
	b := append(slices.Clone(a[:100]), count(50, 9)...)
	c := append(slices.Clone(a[:280]), 7, 7, 7)
	for _, x := range [][]int32{a, b, c} {
		if !keep(s, x, PieceTokens, 0, 0, false) {
			t.Fatal("no room")
		}
	}
	if st := s.Stats(); st.Entries != 4 || st.RAM > (300+50+3)*rowSize+2*(4*400+4*353) {
		t.Errorf("%+v", st)
	}
	for _, x := range [][]int32{a, b, c, a[:1], a[:256], a[:257], b[:101]} {
		if n := check(t, s, x, Need{}, 0); n != len(x) {
			t.Errorf("%d of %d positions found", n, len(x))
		}
	}
	if n := check(t, s, append(slices.Clone(b), a...), Need{}, 0); n != len(b) {
		t.Errorf("%d positions found, want %d", n, len(b))
	}
	if n := check(t, s, []int32{5, 5}, Need{}, 0); n != 0 {
		t.Errorf("%d positions of another prompt found", n)
	}
	if keep(s, b, 1, 0, 0, false); s.Stats().Entries != 4 {
		t.Error("what is there was added again")
	}
	if s.AddRows(append(count(10, 3), 1), 10, false, rowSize, func([]byte) { t.Error("filled") }) {
		t.Error("rows were added behind rows that are not there")
	}
	if s.AddSnapshot(count(10, 3), Turn, 8, func([]byte) { t.Error("filled") }) {
		t.Error("a snapshot was added where there are no rows")
	}
}

// TestNeeds: prefixes end at a snapshot, or where windows are whole.
func TestNeeds(t *testing.T) {
	s := open(t, Options{})
	defer closing(t, s)
	a := count(400, 1)
	keep(s, a[:100], 50, 64, Interval, true)
	keep(s, a[:200], 50, 64, Turn, false)
	keep(s, a[:300], 50, 64, Turn, true)
	keep(s, a, 100, 0, 0, true)
	for _, c := range []struct{ tokens, window, snap, want int }{
		{400, 0, 0, 400}, {400, 0, 1, 300}, {299, 0, 1, 200}, {200, 0, 1, 200}, {199, 0, 1, 100}, {99, 0, 1, 0},
		{400, 150, 0, 400}, {400, 201, 0, 400}, {400, 202, 0, 100}, {250, 51, 0, 250}, {250, 52, 0, 100}, {230, 32, 0, 100}, {199, 10, 0, 100}, {200, 1000, 0, 100},
		{400, 40, 1, 300}, {299, 40, 1, 100},
	} {
		if n := check(t, s, a[:c.tokens], Need{Window: c.window, Snapshot: c.snap > 0}, 64); n != c.want {
			t.Errorf("%+v: %d positions found", c, n)
		}
	}
	k := s.Known(a)
	if k.Rows != 400 || !slices.Equal(k.Snapshots, []int{100, 200, 300}) {
		t.Errorf("%+v", k)
	}
}

// dirBytes adds up the files of entries below dir.
func dirBytes(t testing.TB, dir string) (n int64, files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != rowsExt && filepath.Ext(path) != snapExt {
			return err
		}
		st, err := d.Info()
		if err == nil {
			n += st.Size()
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, files
}

// TestRandom keeps and finds random conversations in stores that are too small for them, with restarts: what is found is right,
// and the budgets hold.
func TestRandom(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := Options{Dir: t.TempDir(), RAM: 40 << 10, Disk: 60 << 10}
		if seed == 0 {
			o.Dir = ""
		}
		s := open(t, o)
		var talks [][]int32
		found, whole := 0, 0
		for range 300 {
			var x []int32
			if len(talks) > 0 && r.IntN(4) > 0 {
				x = slices.Clone(talks[r.IntN(len(talks))])
				x = x[:r.IntN(len(x)+1)]
			}
			for range 1 + r.IntN(60) {
				x = append(x, int32(r.IntN(3)))
			}
			if r.IntN(3) > 0 {
				keep(s, x, 1+r.IntN(40), 500*r.IntN(2), Class(r.IntN(3)), r.IntN(3) > 0)
				talks = append(talks, x)
			}
			n := check(t, s, x, Need{Window: 20 * r.IntN(2), Snapshot: r.IntN(2) > 0}, 500)
			found += n
			whole += len(x)
			indexed(t, s)
			st := s.Stats()
			if st.RAM > o.RAM || st.Disk > o.Disk {
				t.Fatalf("seed %d: %+v", seed, st)
			}
			if r.IntN(40) == 0 {
				s.Flush()
				if n, _ := dirBytes(t, filepath.Join(o.Dir, "nowhere", "..")); o.Dir != "" && n != s.Stats().Disk {
					t.Fatalf("seed %d: %d bytes on disk, the store counts %d", seed, n, s.Stats().Disk)
				}
				closing(t, s)
				s = open(t, o)
				if st := s.Stats(); st.Damaged > 0 || (o.Dir != "") != (st.Disk > 0) {
					t.Fatalf("seed %d, after a restart: %+v", seed, st)
				}
			}
		}
		if found*30 < whole {
			t.Errorf("seed %d: only %d of %d positions were found", seed, found, whole)
		}
		closing(t, s)
		if s.ram < 0 {
			t.Errorf("seed %d: %d bytes counted at the end", seed, s.ram)
		}
	}
}

// TestParallel uses a store from several goroutines.
func TestParallel(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), RAM: 50 << 10, Disk: 80 << 10})
	var g sync.WaitGroup
	for i := range 6 {
		g.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 150 {
				x := make([]int32, 1+r.IntN(120))
				for j := range x {
					x[j] = int32(r.IntN(2) * j % 3)
				}
				keep(s, x, 1+r.IntN(30), 300, Class(r.IntN(3)), false)
				check(t, s, x, Need{Snapshot: r.IntN(2) > 0}, 300)
			}
		})
	}
	g.Wait()
	s.Flush()
	if st := s.Stats(); st.RAM > 50<<10 || st.Disk > 80<<10 || st.Damaged > 0 {
		t.Errorf("%+v", st)
	}
	closing(t, s)
}

// TestVictims: what was of use lately stays, snapshots thin out, and the ends of turns outlive what was made between them.
func TestVictims(t *testing.T) {
	clock := time.Unix(1000, 0)
	s := open(t, Options{RAM: 200 << 10})
	s.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	defer closing(t, s)
	old, used := append([]int32{1}, count(100, 3)...), append([]int32{2}, count(100, 3)...)
	keep(s, old, 50, 20<<10, Turn, false)
	keep(s, used, 50, 20<<10, Turn, false)
	talk := append([]int32{3}, count(1500, 5)...)
	for n := 64; n <= 1472; n += 64 {
		check(t, s, used, Need{Snapshot: true}, 20<<10)
		class := Interval
		if n == 704 {
			class = Turn
		}
		if !keep(s, talk[:n], 64, 20<<10, class, false) {
			t.Fatalf("no room at %d", n)
		}
	}
	if n := check(t, s, used, Need{Snapshot: true}, 20<<10); n != 101 {
		t.Errorf("%d positions of what was of use are left", n)
	}
	k := s.Known(talk[:1472])
	if k.Rows != 1472 || !slices.Contains(k.Snapshots, 704) || !slices.Contains(k.Snapshots, 1472) || len(k.Snapshots) > 6 {
		t.Errorf("%+v", k)
	}
}

// logged collects the lines of a log.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

// TestDamage spoils files in every way: none of what they hold is found, a line tells of it, and the rest is.
func TestDamage(t *testing.T) {
	talk := count(90, 2)
	for what, spoil := range map[string]func(t *testing.T, path string, b []byte){
		"a bit of the payload": func(t *testing.T, path string, b []byte) { b[len(b)-5] ^= 4; rewrite(t, path, b) },
		"a bit of the head":    func(t *testing.T, path string, b []byte) { b[81] ^= 1; rewrite(t, path, b) },
		"a token":              func(t *testing.T, path string, b []byte) { b[headBytes] ^= 1; rewrite(t, path, b) },
		"cut off":              func(t *testing.T, path string, b []byte) { rewrite(t, path, b[:len(b)-1]) },
		"cut off early":        func(t *testing.T, path string, b []byte) { rewrite(t, path, b[:50]) },
		"empty":                func(t *testing.T, path string, b []byte) { rewrite(t, path, nil) },
		"longer":               func(t *testing.T, path string, b []byte) { rewrite(t, path, append(b, 0)) },
		"another version":      func(t *testing.T, path string, b []byte) { b[8] = 2; rewrite(t, path, b) },
		"gone":                 func(t *testing.T, path string, b []byte) { os.Remove(path) },
	} {
		for _, ext := range []string{rowsExt, snapExt} {
			for _, late := range []bool{false, true} { // while the store is open
				if late && what == "longer" { // than it was checked to be: what was there is right
					continue
				}
				l := &logged{}
				o := Options{Dir: t.TempDir(), Log: l.log()}
				s := open(t, o)
				keep(s, talk[:30], 30, 100, Turn, false)
				keep(s, talk[:60], 30, 100, Turn, false)
				keep(s, talk, 30, 100, Turn, false)
				path := s.disk.path(&s.walk(talk)[1].e.head)
				good := 30
				if ext == snapExt {
					path, good = s.disk.path(&s.walk(talk)[2].e.snaps[0].head), 60
				}
				closing(t, s)
				if late {
					s = open(t, o)
				}
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				spoil(t, path, b)
				if !late {
					s = open(t, o)
				}
				if n := check(t, s, talk, Need{Snapshot: true}, 100); n != good {
					t.Errorf("%s, %s, late %t: %d positions found, want %d", what, ext, late, n, good)
				}
				if what != "gone" && l.lines() == 0 {
					t.Errorf("%s, %s, late %t: nothing was logged", what, ext, late)
				}
				if !keep(s, talk, 30, 100, Turn, false) || check(t, s, talk, Need{Snapshot: true}, 100) != 90 {
					t.Errorf("%s, %s, late %t: it cannot be kept again", what, ext, late)
				}
				closing(t, s)
				s = open(t, o)
				if n := check(t, s, talk, Need{Snapshot: true}, 100); n != 90 {
					t.Errorf("%s, %s, late %t: %d positions after a restart", what, ext, late, n)
				}
				closing(t, s)
			}
		}
	}
}

func rewrite(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFolder: another space sees nothing, takes no more than the folder's budget, and what is not the store's stays.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "notes")
	if err := os.MkdirAll(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(mine, "x.rows"), []byte("mine"))
	a := open(t, Options{Dir: dir, Space: "a", Disk: 20 << 10})
	keep(a, count(200, 1), 50, 0, 0, false)
	a.Flush()

	// A second process over the same space has to do without the disk.
	l := &logged{}
	second := open(t, Options{Dir: dir, Space: "a", Disk: 20 << 10, Log: l.log()})
	if second.Disk() || l.lines() != 1 {
		t.Errorf("a folder is used twice; %d lines in the log", l.lines())
	}
	closing(t, second)

	b := open(t, Options{Dir: dir, Space: "b", Disk: 20 << 10})
	if n := check(t, b, count(200, 1), Need{}, 0); n != 0 {
		t.Errorf("%d positions of another space found", n)
	}
	closing(t, a)
	for i := range 6 {
		keep(b, count(60+i, 20+i), 100, 0, 0, false)
	}
	b.Flush()
	if n, _ := dirBytes(t, dir); n > 20<<10+4 {
		t.Errorf("%d bytes on disk, at most %d wanted", n, 20<<10)
	}
	if st := b.Stats(); st.Deleted == 0 || st.Disk == 0 {
		t.Errorf("%+v", st)
	}
	closing(t, b)
	a = open(t, Options{Dir: dir, Space: "a", Disk: 20 << 10}) // some of its entries have gone
	if n := check(t, a, count(200, 1), Need{}, 0); n == 200 {
		t.Error("nothing gave way")
	}
	closing(t, a)
	if _, err := os.Stat(filepath.Join(mine, "x.rows")); err != nil {
		t.Error(err)
	}
	// A folder that cannot be made costs the disk alone.
	c := open(t, Options{Dir: filepath.Join(mine, "x.rows", "y"), Log: l.log()})
	if c.Disk() || !keep(c, count(20, 1), 20, 0, 0, false) {
		t.Error("a store without its folder does not work")
	}
	closing(t, c)
}

// indexed adds up what the index takes and compares it with what is counted.
func indexed(t testing.TB, s *Store) int64 {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int64(0)
	for _, e := range s.entries {
		n += e.overhead()
	}
	if n != s.index {
		t.Fatalf("an index of %d bytes counts as %d", n, s.index)
	}
	return n
}

// TestIndex: what lies on disk alone never takes the RAM from what is new, and a store that has less RAM than before goes on with the
// part of the folder that it can remember.
func TestIndex(t *testing.T) {
	o := Options{Dir: t.TempDir(), RAM: 128 << 10}
	s := open(t, o)
	var last []int32
	for i := range 300 {
		last = append([]int32{int32(i)}, count(63, 1+i)...)
		if !keep(s, last, 64, 0, 0, false) {
			t.Fatalf("no room for prompt %d: %+v", i, s.Stats())
		}
		if n := indexed(t, s); n > o.RAM/indexShare {
			t.Fatalf("after %d prompts the index takes %d bytes of %d", i+1, n, o.RAM)
		}
		s.Flush()
	}
	if n := check(t, s, last, Need{}, 0); n != len(last) {
		t.Errorf("%d of %d positions of the last prompt found", n, len(last))
	}
	long := append([]int32{-1}, count(640, 3)...) // eleven entries, each of which the next one hangs on
	if !keep(s, long, 64, 0, 0, false) {
		t.Errorf("no room for a long prompt: %+v", s.Stats())
	}
	s.Flush()
	had := s.Stats().Entries
	closing(t, s)

	o.RAM /= 2
	s = open(t, o)
	defer closing(t, s)
	st := s.Stats()
	if n := indexed(t, s); !s.Disk() || st.Entries == 0 || st.Entries+st.Deleted != had || n > o.RAM/indexShare {
		t.Errorf("with half the RAM: %d entries, an index of %d bytes; %+v", had, n, st)
	}
	if n, files := dirBytes(t, o.Dir); n != st.Disk || len(files) != st.Entries {
		t.Errorf("%d bytes in %d files, the store counts %d in %d entries", n, len(files), st.Disk, st.Entries)
	}
	if !keep(s, count(64, 2), 64, 0, 0, false) {
		t.Errorf("no room afterwards: %+v", s.Stats())
	}
}

// TestIndexCount: an entry of the index counts as what the heap grows by for it, twice what lives.
func TestIndexCount(t *testing.T) {
	const entries = 4000
	for _, n := range []int{1, 16, 100, PieceTokens} {
		s := open(t, Options{RAM: 1 << 30})
		live := func() int64 {
			runtime.GC()
			runtime.GC() // what pools hold goes with the second
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		was := live()
		for i := range entries {
			tokens := make([]int32, n)
			tokens[0] = int32(i)
			if !s.AddRows(tokens, 0, false, 1, func([]byte) {}) {
				t.Fatal("no room")
			}
		}
		got, want := 2*(live()-was)/entries, indexed(t, s)/entries
		if got > want+want/8 || got < want-want/8 {
			t.Errorf("an entry of %d tokens counts as %d bytes, twice what lives is %d", n, want, got)
		}
		closing(t, s)
	}
}

// TestTails: a snapshot shortly before a prompt's end is written once it was of use.
func TestTails(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	defer closing(t, s)
	talk := count(50, 1)
	keep(s, talk, 50, 100, Tail, false)
	s.Flush()
	if _, files := dirBytes(t, s.opt.Dir); len(files) != 1 {
		t.Errorf("%d files", len(files))
	}
	check(t, s, talk, Need{Snapshot: true}, 100)
	s.Flush()
	if _, files := dirBytes(t, s.opt.Dir); len(files) != 2 {
		t.Errorf("%d files after it was of use", len(files))
	}
}

func ExampleStore() {
	s, _ := Open(Options{Space: "a model", RAM: 1 << 20})
	defer s.Close(context.Background())
	prompt := []int32{5, 6, 7, 8}
	s.AddRows(prompt, 0, false, 4, func(dst []byte) { copy(dst, "abcd") }) // a byte a position
	p := s.Find([]int32{5, 6, 9}, Need{})
	defer p.Close()
	p.Pieces(context.Background(), 0, func(x Piece) error {
		fmt.Printf("%d positions: %s\n", p.N, x.Data[x.Lo-x.First:x.Hi-x.First])
		return nil
	})
	// Output: 2 positions: ab
}
