package tiers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fillPiece writes what a test model has in a piece: every 8 bytes tell layer, expert, piece and place.
func fillPiece(d *Desc, piece int, dst []byte) error {
	var w [8]byte
	for i := 0; i < len(dst); i += 8 {
		h := uint64(d.ID.Layer)<<48 ^ uint64(d.ID.Expert)<<32 ^ uint64(piece)<<30 ^ uint64(i/8)
		binary.LittleEndian.PutUint64(w[:], h*0x9e3779b97f4a7c15)
		copy(dst[i:], w[:])
	}
	return nil
}

// checkViews compares a lease with the identity of its expert.
func checkViews(d *Desc, got [3][]byte) error {
	for p, b := range got {
		want := make([]byte, d.Pieces[p].Length)
		fillPiece(d, p, want)
		if !bytes.Equal(b, want) {
			return fmt.Errorf("%v, %s: other bytes (%d, want %d)", d.ID, pieceNames[p], len(b), len(want))
		}
	}
	return nil
}

// shape of a test model: layer 0 has no experts, lengths differ by layer and piece, one layer has no gate.
func testExperts(layers, experts int) [][]Desc {
	out := make([][]Desc, layers)
	for l := 1; l < layers; l++ {
		for e := range experts {
			d := Desc{ID: ExpertID{uint16(l), uint16(e)}}
			for p := range d.Pieces {
				d.Pieces[p].Length = int64(4096 + 999*l + 32*p + e%3)
			}
			if l == 2 {
				d.Pieces[0].Length = 0
			}
			out[l] = append(out[l], d)
		}
	}
	return out
}

// writeModel lays the experts out in reversed order over shards files, at odd offsets, the last piece ending its file,
// and fills in where they are.
func writeModel(t testing.TB, experts [][]Desc, shards int) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	files := make([]bytes.Buffer, shards)
	n := 0
	for l := len(experts) - 1; l >= 0; l-- {
		for e := len(experts[l]) - 1; e >= 0; e-- {
			d := &experts[l][e]
			for p := range d.Pieces {
				if d.Pieces[p].Length == 0 {
					continue
				}
				n++
				b := &files[n%shards]
				for range 1 + n%97 {
					b.WriteByte(0xee)
				}
				d.Pieces[p].Shard, d.Pieces[p].Offset = n%shards, int64(b.Len())
				data := make([]byte, d.Pieces[p].Length)
				fillPiece(d, p, data)
				b.Write(data)
			}
		}
	}
	for i := range files {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("shard-%d.gguf", i)))
		if err := os.WriteFile(paths[i], files[i].Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// maker makes a store for a model that lies in paths.
type maker struct {
	name string
	make func(paths []string, o StoreOptions) (Store, error)
}

func fileStores(t testing.TB) []maker {
	ms := []maker{{"pread", NewPread}}
	return append(ms, moreStores(t)...)
}

func allStores(t testing.TB) []maker {
	mem := maker{"mem", func(_ []string, o StoreOptions) (Store, error) { return NewMem(Mem{Fill: fillPiece}, o) }}
	return append([]maker{mem}, fileStores(t)...)
}

func newCache(t testing.TB, m maker, experts [][]Desc, shards int, o Options, so StoreOptions) *Cache {
	t.Helper()
	s, err := m.make(writeModel(t, experts, shards), so)
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Experts = s, experts
	c, err := NewCache(o)
	if err != nil {
		s.Close()
		t.Fatal(err)
	}
	return c
}

func closeCache(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// fetch takes all experts of one request, one lease at a time, and checks their bytes.
func fetch(c *Cache, layer int, experts []int32) error {
	r, err := c.Begin(layer, experts)
	if err != nil {
		return err
	}
	defer r.Close()
	seen := map[int]bool{}
	for {
		l, ok, err := r.Next(context.Background(), true)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := checkViews(&c.experts[layer][l.Expert()], l.Views()); err != nil {
			return err
		}
		seen[l.Expert()] = true
		l.Release()
	}
	for _, e := range experts {
		if !seen[int(e)] {
			return fmt.Errorf("expert %d of layer %d was not handed out", e, layer)
		}
	}
	if len(seen) != len(experts) || r.Left() != 0 {
		return fmt.Errorf("%d experts handed out, want %d, left %d", len(seen), len(experts), r.Left())
	}
	return nil
}

func distinct(rng *rand.Rand, n, of int) []int32 {
	p := rng.Perm(of)[:n]
	out := make([]int32, n)
	for i := range p {
		out[i] = int32(p[i])
	}
	return out
}

func TestBytes(t *testing.T) {
	for _, m := range allStores(t) {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", m.name, shards), func(t *testing.T) {
				c := newCache(t, m, testExperts(5, 16), shards, Options{Slots: 10, TopK: 3, Lookahead: 2, Guesses: 2}, StoreOptions{})
				defer closeCache(t, c)
				rng := rand.New(rand.NewPCG(1, 2))
				for range 15 {
					for l := 1; l < 5; l++ {
						for k := 1; k <= 2 && l+k < 5; k++ {
							c.Prefetch(l+k, distinct(rng, 2, 16))
						}
						want := distinct(rng, 3, 16)
						c.Settle(l, want)
						if err := fetch(c, l, want); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := fetch(c, 3, distinct(rng, 16, 16)); err != nil { // more than the slots
					t.Fatal(err)
				}
				s := c.Stats()
				if s.Touches != 15*4*3+16 || s.Touches != s.Hits+s.InFlight+s.Misses {
					t.Errorf("touches %d = %d + %d + %d?", s.Touches, s.Hits, s.InFlight, s.Misses)
				}
				if s.DemandBytes == 0 || s.GuessBytes == 0 || s.Evictions == 0 || s.DiskBusy == 0 || s.BytesPerSecond() == 0 {
					t.Errorf("stats %+v", s)
				}
				if s.Issued == 0 || s.Issued != s.Used+s.Late+s.Wasted+s.Cancelled+countGuesses(c) {
					t.Errorf("issued %d, used %d, late %d, wasted %d, cancelled %d", s.Issued, s.Used, s.Late, s.Wasted, s.Cancelled)
				}
				t.Logf("%+v", s)
			})
		}
	}
}

// countGuesses is the number of guesses that have caused a read and whose expert nobody has used since.
func countGuesses(c *Cache) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return countIssued(c.v)
}

func countIssued(v *residency) (n int64) {
	for i := range v.slots {
		if v.slots[i].issued {
			n++
		}
	}
	return n
}

func TestTooSmall(t *testing.T) {
	experts := testExperts(3, 8)
	s, err := NewMem(Mem{Fill: fillPiece}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = NewCache(Options{Store: s, Experts: experts, Slots: 11, TopK: 4, Lookahead: 2, Guesses: 2})
	if !errors.Is(err, ErrTooSmall) || !strings.Contains(err.Error(), fmt.Sprint(ArenaBytes(experts, 11))) || !strings.Contains(err.Error(), "in 12 slots") {
		t.Errorf("error %v, want %d and 12 slots", err, ArenaBytes(experts, 11))
	}
	if MinSlots(4, 2, 2) != 12 {
		t.Errorf("MinSlots(4, 2, 2) = %d", MinSlots(4, 2, 2))
	}
	if _, err := NewCache(Options{Store: s, Experts: [][]Desc{{}, {}}, Slots: 12, TopK: 4}); err == nil {
		t.Error("a model without experts was accepted")
	}
}

func TestOneReader(t *testing.T) {
	var mu sync.Mutex
	reads := map[ExpertID]int{}
	gate := make(chan struct{})
	experts := testExperts(2, 8)
	s, err := NewMem(Mem{Fill: func(d *Desc, p int, dst []byte) error {
		<-gate
		mu.Lock()
		reads[d.ID]++
		mu.Unlock()
		return fillPiece(d, p, dst)
	}}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	var wg sync.WaitGroup
	var rs []*Request
	for range 5 {
		r, err := c.Begin(1, []int32{1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	if st := c.Contains(1, 1); st != InFlight && st != Queued {
		t.Errorf("expert 1 is %v", st)
	}
	close(gate)
	for _, r := range rs {
		wg.Go(func() {
			defer r.Close()
			for range 3 {
				l, ok, err := r.Next(context.Background(), true)
				if !ok || err != nil {
					t.Error(ok, err)
					return
				}
				if err := checkViews(&experts[1][l.Expert()], l.Views()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for id, n := range reads {
		if n != 3 {
			t.Errorf("%v: %d pieces read, want 3", id, n)
		}
	}
	if s := c.Stats(); s.Misses != 3 || s.InFlight != 12 {
		t.Errorf("misses %d, in flight %d; want 3, 12", s.Misses, s.InFlight)
	}
	if st := c.Contains(1, 1); st != Resident {
		t.Errorf("expert 1 is %v", st)
	}
}

// TestFailedRead: each waiter gets the error, no slot is left ready, and a later request tries again.
func TestFailedRead(t *testing.T) {
	broken := errors.New("bad sector")
	var fail sync.Map
	fail.Store(ExpertID{1, 2}, true)
	experts := testExperts(2, 8)
	s, err := NewMem(Mem{Fill: func(d *Desc, p int, dst []byte) error {
		if _, bad := fail.Load(d.ID); bad && p == 1 {
			return broken
		}
		return fillPiece(d, p, dst)
	}}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	for range 3 {
		err := fetch(c, 1, []int32{1, 2, 3})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "expert 2 of layer 1, up") {
			t.Fatalf("error %v", err)
		}
		if st := c.Contains(1, 2); st != Absent {
			t.Errorf("the failed expert is %v", st)
		}
	}
	fail.Delete(ExpertID{1, 2})
	if err := fetch(c, 1, []int32{1, 2, 3}); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.ReadErrors != 3 {
		t.Errorf("%d read errors, want 3", s.ReadErrors)
	}
}

func TestContext(t *testing.T) {
	gate, begun := make(chan struct{}), make(chan struct{}, 64)
	experts := testExperts(2, 8)
	s, err := NewMem(Mem{Fill: func(d *Desc, p int, dst []byte) error { begun <- struct{}{}; <-gate; return fillPiece(d, p, dst) }}, StoreOptions{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	r, err := c.Begin(1, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.Next(context.Background(), false); ok || err != nil {
		t.Errorf("Next without waiting: %v, %v", ok, err)
	}
	// A busy machine may let the deadline come near before Next begins to wait: then it has another try.
	for try, waited := 1, time.Duration(0); waited < 15*time.Millisecond; try++ {
		start, before := time.Now(), c.Stats().ReadWait
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if _, ok, err := r.Next(ctx, true); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Next past the deadline: %v, %v", ok, err)
		}
		cancel()
		if waited = c.Stats().ReadWait - before; waited > time.Since(start) || waited < 15*time.Millisecond && try == 50 {
			t.Fatalf("waited %v, want about 20 ms", waited)
		}
	}
	<-begun
	r.Close()
	// The first read had begun and ends; the second was taken back.
	if a, b := c.Contains(1, 1), c.Contains(1, 2); a != InFlight || b != Absent {
		t.Errorf("after Close: %v and %v", a, b)
	}
	close(gate)
}

// TestCloseWakes: a request that waits when the cache is closed gets ErrClosed.
func TestCloseWakes(t *testing.T) {
	experts := testExperts(2, 8)
	s, err := NewMem(Mem{Fill: fillPiece, Delay: 20 * time.Millisecond}, StoreOptions{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 4, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	var rs []*Request
	for _, want := range [][]int32{{1, 2}, {3, 4}, {5, 6}, {0, 1, 2, 3, 4, 5, 6, 7}} { // the third waits for admission
		r, err := c.Begin(1, want)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			for {
				l, ok, err := r.Next(context.Background(), true)
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				if !ok {
					t.Error("everything was handed out")
					return
				}
				l.Release()
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	closeCache(t, c)
	wg.Wait()
	if _, err := c.Begin(1, []int32{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("Begin after Close: %v", err)
	}
	if n := c.Prefetch(1, []int32{1}); n != 0 {
		t.Errorf("Prefetch after Close queued %d", n)
	}
	for _, r := range rs {
		r.Close()
	}
}

func TestContracts(t *testing.T) {
	c := newCache(t, allStores(t)[0], testExperts(2, 8), 1, Options{Slots: 8, TopK: 4}, StoreOptions{})
	defer closeCache(t, c)
	panics := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("no panic: %s", what)
			}
		}()
		f()
	}
	panics("expert named twice", func() { c.Begin(1, []int32{3, 3}) })
	r, err := c.Begin(1, []int32{3, 4})
	if err != nil {
		t.Fatal(err)
	}
	l, ok, err := r.Next(context.Background(), true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	panics("cache closed under a lease", func() { c.Close() })
	l.Release()
	panics("lease released twice", func() { l.Release() })
	l, ok, err = r.Next(context.Background(), true)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	r.Close()
	panics("request closed twice", func() { r.Close() })
	panics("lease released after Close", func() { l.Release() })
	for _, bad := range []struct {
		layer   int
		experts []int32
	}{{-1, nil}, {2, nil}, {1, []int32{8}}, {1, []int32{-1}}, {0, []int32{0}}} {
		if _, err := c.Begin(bad.layer, bad.experts); err == nil {
			t.Errorf("Begin(%d, %v) was accepted", bad.layer, bad.experts)
		}
		if len(bad.experts) > 0 && (c.Prefetch(bad.layer, bad.experts) != 0 || c.Contains(bad.layer, int(bad.experts[0])) != Absent) {
			t.Errorf("Prefetch(%d, %v) was accepted", bad.layer, bad.experts)
		}
	}
	if _, err := c.Pin([]ExpertID{{1, 9}}); err == nil {
		t.Error("a pin of no expert was accepted")
	}
}
