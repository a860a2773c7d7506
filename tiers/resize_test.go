package tiers

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// slotWatcher is a store that checks what it is told about the memory of slots.
type slotWatcher struct {
	Store
	t        *testing.T
	mu       sync.Mutex
	mem      map[int][]byte
	reading  map[int]bool
	held     int64
	attached int
}

func (w *slotWatcher) Attach(slot int, mem []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mem[slot] != nil || w.reading[slot] {
		w.t.Errorf("slot %d attached twice", slot)
	}
	w.mem[slot] = mem
	w.held += int64(len(mem))
	w.attached++
}

func (w *slotWatcher) Detach(slot int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mem[slot] == nil || w.reading[slot] {
		w.t.Errorf("slot %d detached: attached %v, being read into %v", slot, w.mem[slot] != nil, w.reading[slot])
	}
	w.held -= int64(len(w.mem[slot]))
	delete(w.mem, slot)
}

func (w *slotWatcher) Queue(r *Read) {
	w.mu.Lock()
	if m := w.mem[r.Slot]; m == nil || &m[0] != &r.Dst[0] || len(m) != len(r.Dst) || w.reading[r.Slot] {
		w.t.Errorf("a read into slot %d that is not attached or read into", r.Slot)
	}
	w.reading[r.Slot] = true
	w.mu.Unlock()
	r.Sink = slotWatcherSink{w, r.Sink}
	w.Store.Queue(r)
}

type slotWatcherSink struct {
	w    *slotWatcher
	sink Sink
}

func (s slotWatcherSink) ReadDone(r *Read, err error) {
	s.w.mu.Lock()
	delete(s.w.reading, r.Slot)
	s.w.mu.Unlock()
	s.sink.ReadDone(r, err)
}

func (w *slotWatcher) Cancel(r *Read) bool {
	ok := w.Store.Cancel(r)
	if ok {
		w.mu.Lock()
		delete(w.reading, r.Slot)
		w.mu.Unlock()
	}
	return ok
}

// TestResizeStress changes the arena at random while sequences decode, guess and prefill: every expert must be the right
// one to its last byte, every request must end, and memory must stay within what is live.
func TestResizeStress(t *testing.T) {
	const layers, n, k, guesses = 5, 12, 3, 3
	turns := 25
	if raceOn || testing.Short() {
		turns = 8
	}
	for i, m := range allStores(t) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			experts := testExperts(layers, n)
			paths := writeModel(t, experts, 2)
			s, err := m.make(paths, StoreOptions{Depth: 3, GuessDepth: 1})
			if err != nil {
				t.Fatal(err)
			}
			w := &slotWatcher{Store: s, t: t, mem: map[int][]byte{}, reading: map[int]bool{}}
			c, err := NewCache(Options{Store: w, Experts: experts, Slots: 30, TopK: k, Lookahead: 1, Guesses: guesses, Sessions: 3})
			if err != nil {
				t.Fatal(err)
			}
			defer closeCache(t, c)
			watch := time.AfterFunc(time.Minute, func() {
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
				panic("tiers: the requests do not end")
			})
			defer watch.Stop()
			least, most := c.MinBytes(), c.MaxBytes()
			var wg sync.WaitGroup
			var over atomic.Bool
			for g := range 3 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), uint64(i)))
					for range turns {
						for l := 1; l < layers; l++ {
							if l+1 < layers {
								c.Prefetch(l+1, distinct(rng, guesses, n))
								c.Withdraw(l+1, int32(rng.IntN(n)))
							}
							count := k
							if g == 0 {
								count = 1 + rng.IntN(n)
							}
							want := distinct(rng, count, n)
							c.Settle(l, want)
							if err := stressRequest(c, rng, l, want, k); err != nil {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			var resizer sync.WaitGroup
			resizer.Go(func() {
				rng := rand.New(rand.NewPCG(9, uint64(i)))
				for !over.Load() {
					want := least + rng.Int64N(most-least+1)
					c.Resize(want)
					if target, live := c.Arena(); target != want || live > most {
						t.Errorf("target %d, live %d after a resize to %d", target, live, want)
					}
					w.mu.Lock()
					held := w.held
					w.mu.Unlock()
					if held > most {
						t.Errorf("%d bytes of memory", held)
					}
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
				}
			})
			wg.Wait()
			over.Store(true)
			resizer.Wait()
			for l := range experts {
				c.Settle(l, nil)
			}
			for c.Resize(0) > least { // guesses that have begun to be read
				time.Sleep(time.Millisecond)
			}
			checkCache(t, c)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.held > least {
				t.Errorf("%d bytes of memory, %d live", w.held, least)
			}
			if st := c.Stats(); st.Target != least || st.Bytes > least || w.attached < 100 {
				t.Errorf("%d attached, %+v", w.attached, st)
			}
		})
	}
}

// TestComplete: all experts are resident until the arena shrinks, and again when it has grown and they were read.
func TestComplete(t *testing.T) {
	experts := testExperts(3, 8)
	c := newCache(t, allStores(t)[0], experts, 1, Options{Slots: 16, TopK: 2}, StoreOptions{})
	defer closeCache(t, c)
	all := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	read := func() {
		t.Helper()
		for l := 1; l < 3; l++ {
			if err := fetch(c, l, all); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c.Complete() {
		t.Error("complete before anything was read")
	}
	read()
	if !c.Complete() {
		t.Errorf("not complete: %+v", c.Stats())
	}
	if live := c.Resize(c.MaxBytes() - 1); live >= c.MaxBytes() || c.Complete() {
		t.Errorf("%d bytes live, complete %v, one byte short", live, c.Complete())
	}
	if live := c.Resize(1 << 60); live != c.MaxBytes() || c.Complete() {
		t.Errorf("%d bytes live of %d, complete %v, before the last was read again", live, c.MaxBytes(), c.Complete())
	}
	read()
	if st := c.Stats(); !c.Complete() || st.Misses != 17 || st.Slots != 16 || st.Evictions != 1 {
		t.Errorf("%+v", st)
	}
}

// TestLeasesOutliveResize: what is lent keeps its bytes while everything else leaves, and follows when it is given back.
func TestLeasesOutliveResize(t *testing.T) {
	experts := testExperts(3, 8)
	c := newCache(t, allStores(t)[0], experts, 1, Options{Slots: 16, TopK: 2}, StoreOptions{})
	defer closeCache(t, c)
	r, err := c.Begin(1, []int32{0, 1, 2, 3, 4, 5, 6, 7}) // more than fit into the smallest arena
	if err != nil {
		t.Fatal(err)
	}
	var ls []Lease
	for range 8 {
		l, ok, err := r.Next(context.Background(), true)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		ls = append(ls, l)
	}
	least := c.MinBytes()
	live := c.Resize(least)
	if live <= least {
		t.Fatalf("%d bytes live with 8 leases out, the smallest arena has %d", live, least)
	}
	for _, l := range ls {
		if err := checkViews(&experts[1][l.Expert()], l.Views()); err != nil {
			t.Error(err)
		}
	}
	last := live
	for _, l := range ls {
		l.Release()
		if _, now := c.Arena(); now > last {
			t.Errorf("%d bytes live after a release, %d before", now, last)
		} else {
			last = now
		}
	}
	r.Close()
	if _, now := c.Arena(); now > least {
		t.Errorf("%d bytes live at the end, %d are to be", now, least)
	}
	if err := fetch(c, 2, []int32{1, 2}); err != nil {
		t.Error(err)
	}
}

// TestCloseWhileShrinking: what a smaller arena still waits for must not be given back after all memory was.
func TestCloseWhileShrinking(t *testing.T) {
	for _, m := range allStores(t) {
		c := newCache(t, m, testExperts(3, 8), 1, Options{Slots: 16, TopK: 2}, StoreOptions{})
		var rs []*Request
		for l := 1; l < 3; l++ {
			r, err := c.Begin(l, []int32{0, 1, 2, 3, 4, 5, 6, 7})
			if err != nil {
				t.Fatal(err)
			}
			rs = append(rs, r)
		}
		least := c.MinBytes()
		if live := c.Resize(least); live <= least {
			t.Errorf("%s: %d bytes live while 16 experts are wanted", m.name, live)
		}
		closeCache(t, c)
		for _, r := range rs {
			r.Close()
		}
		if live := c.Resize(least); live < least {
			t.Errorf("%s: %d bytes live after Close", m.name, live)
		}
	}
}

// TestNoMemory: a slot that can get no memory fails its expert, which is absent then, and is tried again.
func TestNoMemory(t *testing.T) {
	c := newCache(t, allStores(t)[0], testExperts(2, 8), 1, Options{Slots: 8, TopK: 2}, StoreOptions{})
	defer closeCache(t, c)
	real := c.commit
	c.commit = func(i int32) error {
		if i == 1 {
			return errors.New("all gone")
		}
		return real(i)
	}
	if err := fetch(c, 1, []int32{3}); err != nil { // by itself: the end of a failed request takes back reads not begun
		t.Error(err)
	}
	if err := fetch(c, 1, []int32{3, 4}); err == nil || !strings.Contains(err.Error(), "expert 4 of layer 1: no memory for its slot: all gone") {
		t.Errorf("error %v", err)
	}
	if a, b := c.Contains(1, 3), c.Contains(1, 4); a == Absent || b != Absent {
		t.Errorf("%v and %v", a, b)
	}
	c.commit = real
	if err := fetch(c, 1, []int32{3, 4}); err != nil {
		t.Error(err)
	}
	checkCache(t, c)
}

// TestSizes: classes, the smallest working set and the helpers that count in slots.
func TestSizes(t *testing.T) {
	mb := func(pages ...int) []int64 {
		var b []int64
		for _, n := range pages {
			b = append(b, int64(n)*page)
		}
		return b
	}
	z := sizesOf(mb(100, 0, 99, 50, 60), []int{4, 0, 4, 4, 2})
	if len(z.classes) != 3 || z.classOf[0] != 0 || z.classOf[1] != -1 || z.classOf[2] != 0 || z.classOf[4] != 1 || z.classOf[3] != 2 {
		t.Errorf("%+v", z)
	}
	if z.slots != 14 || z.bytes != (8*100+2*60+4*50)*page || z.layer(2) != 100*page || z.layer(1) != 0 {
		t.Errorf("%d slots, %d bytes", z.slots, z.bytes)
	}
	counts := func(l int) int { return []int{4, 0, 4, 4, 2}[l] }
	for _, c := range []struct {
		need Need
		want int64 // pages
	}{
		{Need{TopK: 1}, 200}, // layers 0 and 2
		{Need{TopK: 2, Lookahead: 1, Guesses: 3}, 120 + 200 + 3*100}, // 4, 0 and 2: layer 4 has but two
		{Need{TopK: 3, Lookahead: 1, Guesses: 3}, 600 + 3*50},        // 0, 2 and 3
		{Need{TopK: 1, Sessions: 3}, 3 * 200},                        // two more
		{Need{TopK: 4, Lookahead: 2, Guesses: 4}, 8*100 + 320},       // all
		{Need{TopK: 4, Lookahead: 0, Sessions: 5}, 8*100 + 320},      // no more than all
		{Need{TopK: 2, Lookahead: 2, Guesses: 2}, 400 + 100 + 120},   // 0 2 3 4
	} {
		got := z.min(counts, c.need) / page
		if got != c.want {
			t.Errorf("%+v: %d pages, want %d", c.need, got, c.want)
		}
	}
	if a, b := z.share(14), z.share(20); a != z.bytes || b != z.bytes {
		t.Errorf("all slots take %d and %d bytes of %d", a, b, z.bytes)
	}
	if got := z.share(7); got != z.bytes/2 {
		t.Errorf("half the slots take %d bytes of %d", got, z.bytes)
	}
	if z := sizesOf([]int64{12345}, []int{7}); z.share(3) != 3*z.classes[0].bytes {
		t.Errorf("3 equal slots take %d bytes, one %d", z.share(3), z.classes[0].bytes)
	}
}
