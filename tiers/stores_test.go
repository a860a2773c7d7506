package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	mmap "github.com/edsrzf/mmap-go"

	"terrace/internal/invariant"
	"terrace/internal/uring"
)

// moreStores are the stores besides pread that read files; io_uring only where the system has it.
func moreStores(t testing.TB) []maker {
	ms := []maker{{"mmap", NewMmap}, {"pread-buffered", func(paths []string, o StoreOptions) (Store, error) {
		o.buffered = true
		return NewPread(paths, o)
	}}}
	return append(ms, uringStores(t)...)
}

func uringStores(t testing.TB) []maker {
	r, err := uring.Open(uring.Options{Entries: 1, Complete: func(uint64, int32) {}})
	if errors.Is(err, uring.ErrUnavailable) {
		t.Logf("without io_uring: %v", err)
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	with := func(name string, set func(*StoreOptions)) maker {
		return maker{name, func(paths []string, o StoreOptions) (Store, error) {
			set(&o)
			return NewUring(paths, o, nil)
		}}
	}
	return []maker{
		with("uring", func(*StoreOptions) {}),
		with("uring-unregistered", func(o *StoreOptions) { o.noRegister = true }),
		with("uring-buffered", func(o *StoreOptions) { o.buffered = true }),
	}
}

func TestUringName(t *testing.T) {
	for _, m := range uringStores(t) {
		c := newCache(t, m, testExperts(2, 8), 1, Options{Slots: 8, TopK: 4}, StoreOptions{})
		if got := strings.HasSuffix(c.Stats().Store, ", registered buffers"); got != (m.name != "uring-unregistered") {
			t.Errorf("%s calls itself %q", m.name, c.Stats().Store)
		}
		closeCache(t, c)
	}
}

// TestOpenErrors: each store names the file that cannot be used.
func TestOpenErrors(t *testing.T) {
	experts := testExperts(2, 4)
	good := writeModel(t, experts, 1)
	for _, m := range fileStores(t) {
		for _, bad := range []struct {
			paths []string
			want  string
		}{{nil, "no model file"}, {[]string{good[0], "/nowhere/missing.gguf"}, "/nowhere/missing.gguf"}, {[]string{t.TempDir()}, "directory"}} {
			if s, err := m.make(bad.paths, StoreOptions{}); err == nil {
				s.Close()
				t.Errorf("%s opened %v", m.name, bad.paths)
			} else if !strings.Contains(err.Error(), bad.want) {
				t.Errorf("%s: %v, want %q", m.name, err, bad.want)
			}
		}
		for _, o := range []StoreOptions{{Depth: -1}, {Depth: 5000}, {Depth: 2, GuessDepth: 3}} {
			if s, err := m.make(good, o); err == nil {
				s.Close()
				t.Errorf("%s accepted %+v", m.name, o)
			}
		}
		s, err := m.make(good, StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(good[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			p    Piece
			want string
		}{
			{Piece{0, fi.Size() - 10, 11}, fmt.Sprintf("ends at byte %d, the file at %d", fi.Size()+1, fi.Size())},
			{Piece{1, 0, 10}, "file number 1 of 1"},
			{Piece{0, -1, 10}, "offset -1"},
			{Piece{0, 0, -5}, "length -5"},
			{Piece{0, 1 << 62, 1 << 30}, "ends at byte"},
			{Piece{0, 0, 0}, "no bytes"},
		} {
			d := Desc{Pieces: [3]Piece{1: tt.p}}
			if err := s.Check(&d); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %+v: %v, want %q", m.name, tt.p, err, tt.want)
			}
		}
		s.Close()
	}
}

// TestTruncated: a file that shrinks while in use fails the experts that are gone, with both numbers, and no others.
func TestTruncated(t *testing.T) {
	for _, m := range fileStores(t) {
		for _, by := range []int64{1, 4096, 60000} {
			t.Run(fmt.Sprintf("%s/%d", m.name, by), func(t *testing.T) {
				experts := testExperts(4, 8)
				paths := writeModel(t, experts, 1)
				s, err := m.make(paths, StoreOptions{})
				if err != nil {
					t.Fatal(err)
				}
				c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4, Policy: LRU})
				if err != nil {
					t.Fatal(err)
				}
				defer closeCache(t, c)
				if err := fetch(c, 1, []int32{0, 7}); err != nil { // the file's last experts are the first of layer 1
					t.Fatal(err)
				}
				for i := range 30 { // and leave the cache, where slots seldom change their size
					for _, some := range [][]int32{{0, 1, 2, 3}, {4, 5, 6, 7}} {
						if err := fetch(c, 2+i%2, some); err != nil {
							t.Fatal(err)
						}
					}
				}
				for e := range experts[1] {
					if c.Contains(1, e) != Absent {
						t.Fatalf("expert %d is still %v", e, c.Contains(1, e))
					}
				}
				fi, err := os.Stat(paths[0])
				if err != nil {
					t.Fatal(err)
				}
				size := fi.Size() - by
				if err := os.Truncate(paths[0], size); err != nil {
					t.Fatal(err)
				}
				for e := range experts[1] {
					whole := true
					for _, p := range experts[1][e].Pieces {
						whole = whole && p.Offset+p.Length <= size
					}
					err := fetch(c, 1, []int32{int32(e)})
					if whole {
						if err != nil {
							t.Errorf("expert %d is whole: %v", e, err)
						}
						continue
					}
					var re *ReadError
					if !errors.As(err, &re) || !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Fatalf("expert %d: %v", e, err)
					}
					var p Piece
					for i, n := range pieceNames {
						if n == re.Piece {
							p = experts[1][e].Pieces[i]
						}
					}
					if re.ID != experts[1][e].ID || re.File != paths[0] || re.Offset != p.Offset || re.Wanted != p.Length ||
						re.Size != size || re.WasLen != size+by || re.Got != max(0, size-p.Offset) {
						t.Errorf("error %+v: %v", re, re)
					}
					if c.Contains(1, e) != Absent {
						t.Errorf("expert %d is %v after its read failed", e, c.Contains(1, e))
					}
				}
			})
		}
	}
}

// TestFaults hands short reads, disk errors and delays into the pread store.
func TestFaults(t *testing.T) {
	experts := testExperts(2, 8)
	paths := writeModel(t, experts, 2)
	var mode atomic.Int32
	s, err := NewPread(paths, StoreOptions{readAt: func(f *os.File, b []byte, off int64) (int, error) {
		switch mode.Load() {
		case 1:
			return 0, syscall.EIO
		case 2:
			n, _ := f.ReadAt(b[:512], off)
			return n, io.EOF
		case 3:
			time.Sleep(time.Duration(off%5) * time.Millisecond)
		}
		return f.ReadAt(b, off)
	}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	quiet := func() { // a read that began before the mode changed must not fail the next request
		for c.Contains(1, 1) != Absent || c.Contains(1, 2) != Absent {
			time.Sleep(time.Millisecond)
		}
	}
	mode.Store(1)
	if err := fetch(c, 1, []int32{1, 2}); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "of layer 1") || !strings.Contains(err.Error(), paths[0][:len(paths[0])-6]) {
		t.Errorf("disk error: %v", err)
	}
	quiet()
	mode.Store(2)
	if err := fetch(c, 1, []int32{1, 2}); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "wanted") {
		t.Errorf("short read: %v", err)
	}
	quiet()
	mode.Store(3)
	if err := fetch(c, 1, []int32{1, 2, 3, 4}); err != nil {
		t.Errorf("slow reads: %v", err)
	}
}

// TestUringResults hands short, interrupted and failed completions into the uring store.
func TestUringResults(t *testing.T) {
	for _, m := range uringStores(t) {
		t.Run(m.name, func(t *testing.T) {
			experts := testExperts(3, 8)
			var mode, seen atomic.Int32
			c := newCache(t, m, experts, 2, Options{Slots: 4, TopK: 2}, StoreOptions{result: func(n int32) int32 {
				seen.Add(1)
				switch mode.Load() {
				case 1: // one block at a time
					return min(n, 4096)
				case 2: // every other one is to be tried again
					if seen.Load()%2 == 0 {
						return [...]int32{-int32(syscall.EAGAIN), -int32(syscall.EINTR)}[seen.Load()/2%2]
					}
				case 3:
					return -int32(syscall.EIO)
				case 4:
					return -int32(syscall.EAGAIN)
				case 5: // the end of the file in the middle of a block
					return min(n, 100)
				case 6:
					return 0
				}
				return n
			}})
			defer closeCache(t, c)
			for i := range int32(3) {
				mode.Store(i)
				for range 3 {
					for l := 1; l < 3; l++ {
						if err := fetch(c, l, []int32{0, 1, 2, 3, 4, 5, 6, 7}); err != nil {
							t.Fatalf("mode %d: %v", i, err)
						}
					}
				}
			}
			var absent []int32
			for e := range int32(8) {
				if c.Contains(1, int(e)) == Absent {
					absent = append(absent, e)
				}
			}
			want := map[int32]error{3: syscall.EIO, 4: syscall.EAGAIN, 5: io.ErrUnexpectedEOF, 6: io.ErrUnexpectedEOF}
			if strings.HasSuffix(m.name, "buffered") {
				delete(want, 5) // goes on in the middle of a block
			}
			for i, w := range want {
				mode.Store(i)
				if err := fetch(c, 1, absent[:1]); !errors.Is(err, w) || !strings.Contains(err.Error(), fmt.Sprintf("expert %d of layer 1", absent[0])) {
					t.Errorf("mode %d: %v, want %v", i, err, w)
				}
			}
			mode.Store(0)
			if err := fetch(c, 1, absent[:1]); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFault copies from a mapping whose file is gone from under it.
func TestFault(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a mapped file cannot shrink everywhere")
	}
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, make([]byte, 4*os.Getpagesize()), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	dst := make([]byte, len(m))
	if err := copyMapped(dst, m); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, 10); err != nil {
		t.Fatal(err)
	}
	if err := copyMapped(dst, m); !errors.Is(err, errFault) {
		t.Errorf("error %v, want %v", err, errFault)
	}
}

// waitSink collects the order in which reads end.
type waitSink struct {
	mu   sync.Mutex
	ids  []uint16
	errs map[uint16]error
	done chan uint16
}

func (s *waitSink) ReadDone(r *Read, err error) {
	s.mu.Lock()
	s.ids = append(s.ids, r.Desc.ID.Expert)
	if s.errs == nil {
		s.errs = map[uint16]error{}
	}
	s.errs[r.Desc.ID.Expert] = err
	s.mu.Unlock()
	s.done <- r.Desc.ID.Expert
}

func newRead(e int, p Priority, sink Sink) *Read {
	d := &Desc{ID: ExpertID{0, uint16(e)}, Pieces: [3]Piece{{0, 0, 100}, {}, {0, 100, 100}}}
	l := layoutOf(d)
	return &Read{Desc: d, layout: &l, Dst: make([]byte, l.bytes), Priority: p, Sink: sink}
}

// TestOrder: demands before guesses, promoted guesses behind the demands, cancelled ones never; guesses do not fill the
// queue.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flying, most atomic.Int32
		s, err := NewMem(Mem{Fill: func(d *Desc, p int, dst []byte) error {
			n := flying.Add(1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(time.Millisecond)
			flying.Add(-1)
			return nil
		}}, StoreOptions{Depth: 2, GuessDepth: 1})
		if err != nil {
			t.Fatal(err)
		}
		sink := &waitSink{done: make(chan uint16, 100)}
		var rs []*Read
		for e := range 6 { // only guesses: one piece at a time
			rs = append(rs, newRead(e, Guess, sink))
			s.Queue(rs[e])
		}
		time.Sleep(500 * time.Microsecond)
		if n := most.Load(); n != 1 {
			t.Errorf("%d guesses at a time, want 1", n)
		}
		if s.Cancel(rs[0]) {
			t.Error("a read that has begun was cancelled")
		}
		if !s.Cancel(rs[2]) {
			t.Error("a waiting read was not cancelled")
		}
		rs = append(rs, newRead(6, Demand, sink))
		s.Queue(rs[6])
		s.Promote(rs[4])
		for range 6 {
			<-sink.done
		}
		if n := most.Load(); n != 2 {
			t.Errorf("%d pieces at a time, want 2", n)
		}
		// Expert 0 had begun, its second piece waits behind the demand; expert 4 was promoted.
		if want := []uint16{6, 4, 0, 1, 3, 5}; !slices.Equal(sink.ids, want) && !slices.Equal(sink.ids, []uint16{6, 0, 4, 1, 3, 5}) {
			t.Errorf("order %v, want %v", sink.ids, want)
		}
		if st := s.Stats(); st.DemandBytes == 0 || st.GuessBytes == 0 || st.Reads != 12 || st.Busy <= 0 {
			t.Errorf("stats %+v", st)
		}
		s.Queue(rs[2]) // a cancelled read can be used again
		<-sink.done
		for e := 10; e < 14; e++ {
			s.Queue(newRead(e, Guess, sink))
		}
		s.Close()
		for range 4 {
			<-sink.done
		}
		if !errors.Is(sink.errs[13], ErrClosed) {
			t.Errorf("a read that had not begun when the store was closed: %v", sink.errs[13])
		}
	})
}

// TestGuessRoom: beside demands guesses of up to 512 KiB or one are read, alone 2 MiB or two, never more than the options
// allow.
func TestGuessRoom(t *testing.T) {
	for _, tt := range []struct {
		piece          int64
		demands, limit int
		want           int
	}{{900_000, 0, 8, 3}, {3_000_000, 0, 8, 2}, {300_000, 0, 8, 7}, {1000, 0, 4, 4}, {900_000, 0, 1, 1}, {900_000, 1, 8, 1}, {300_000, 1, 8, 2}, {1000, 3, 4, 4}} {
		var q queue
		o := StoreOptions{Depth: 12, GuessDepth: tt.limit}
		q.init(&o)
		for i := range 20 {
			d := &Desc{ID: ExpertID{0, uint16(i)}, Pieces: [3]Piece{{0, 0, tt.piece}}}
			l := layoutOf(d)
			r := &Read{Desc: d, layout: &l, Priority: Guess}
			if i < tt.demands {
				r.Priority = Demand
			}
			q.Queue(r)
		}
		var got []*Read
		for {
			r, _, ok := q.take()
			if !ok {
				break
			}
			got = append(got, r)
		}
		if len(got) != tt.demands+tt.want {
			t.Errorf("%+v: %d reads under way, want %d", tt, len(got), tt.demands+tt.want)
		}
		for _, r := range got {
			q.finish(r, 0, 0, nil)
		}
		if q.flyingGuess != 0 || q.guessBytes != 0 {
			t.Errorf("%+v: %d guesses of %d bytes are left", tt, q.flyingGuess, q.guessBytes)
		}
	}
}

// TestLayout: blocks around each piece, none of them shared, all within the slot.
func TestLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		var d Desc
		for i := range d.Pieces {
			if rng.IntN(5) > 0 {
				d.Pieces[i] = Piece{Offset: rng.Int64N(1 << 20), Length: 1 + rng.Int64N(20000)}
			}
		}
		l := layoutOf(&d)
		end := 0
		for i, s := range l.spans {
			p := d.Pieces[i]
			if p.Length == 0 {
				if s.length != 0 || s.size != 0 {
					t.Fatalf("%+v: %+v", p, s)
				}
				continue
			}
			if s.start%4096 != 0 || s.size%4096 != 0 || s.at != end || s.start+int64(s.skip) != p.Offset || s.length != int(p.Length) ||
				s.skip < 0 || s.skip >= 4096 || s.size-s.want() < 0 || s.size-s.want() >= 4096 {
				t.Fatalf("%+v: %+v", p, s)
			}
			end += s.size
		}
		if l.bytes != end {
			t.Fatalf("slot of %d bytes, the blocks end at %d", l.bytes, end)
		}
	}
}

// TestAllocs: once warm, asking, waiting, reading and releasing allocates nothing.
func TestAllocs(t *testing.T) {
	if raceOn || invariant.On {
		t.Skip("the race detector and a build that checks itself allocate")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, m := range fileStores(t) {
		c := newCache(t, m, testExperts(4, 16), 2, Options{Slots: 12, TopK: 4, Lookahead: 1, Guesses: 4}, StoreOptions{})
		rng := rand.New(rand.NewPCG(5, 6))
		var lists [64][]int32
		for i := range lists {
			lists[i] = distinct(rng, 4, 16)
		}
		n := 0
		step := func() {
			layer := 1 + n%3
			want := lists[n%64]
			c.Settle(layer, want)
			r, err := c.Begin(layer, want)
			if err != nil {
				t.Fatal(err)
			}
			c.Prefetch(1+(n+1)%3, lists[(n+7)%64])
			for {
				l, ok, err := r.Next(ctx, false)
				if err == nil && !ok {
					l, ok, err = r.Next(ctx, true)
				}
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				_ = l.Views()
				l.Release()
			}
			r.Close()
			n++
		}
		for range 200 {
			step()
		}
		before := c.Stats()
		if a := testing.AllocsPerRun(300, step); a != 0 {
			t.Errorf("%s: %v allocations a step", m.name, a)
		}
		if s := c.Stats(); s.Misses-before.Misses < 300 || s.Used == before.Used {
			t.Errorf("%s: only %d misses, %d guesses used", m.name, s.Misses-before.Misses, s.Used-before.Used)
		}
		closeCache(t, c)
	}
}

// TestStress runs many sequences at once over few slots: decode that keeps its leases until the layer is done, prefill
// that streams, guesses, settlements, pins, cancelled waits. Every lease is checked when it comes and when it goes.
func TestStress(t *testing.T) {
	for _, m := range allStores(t) {
		t.Run(m.name, func(t *testing.T) {
			const layers, n, k = 5, 16, 3
			c := newCache(t, m, testExperts(layers, n), 2, Options{Slots: 14, TopK: k, Lookahead: 2, Guesses: 3}, StoreOptions{})
			defer closeCache(t, c)
			turns := 20
			if raceOn || invariant.On || testing.Short() {
				turns = 8
			}
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 9))
					for turn := range turns {
						for l := 1; l < layers; l++ {
							for a := 1; a <= 2 && l+a < layers; a++ {
								c.Prefetch(l+a, distinct(rng, 3, n))
							}
							count := k
							if g == 0 || rng.IntN(10) == 0 {
								count = 1 + rng.IntN(n)
							}
							want := distinct(rng, count, n)
							c.Settle(l, want)
							if err := stressRequest(c, rng, l, want, k); err != nil {
								t.Error(err)
								return
							}
						}
						if g == 1 && turn%8 == 0 {
							if _, err := c.Pin([]ExpertID{{1, uint16(rng.IntN(n))}, {2, uint16(rng.IntN(n))}}); err != nil {
								t.Error(err)
							}
						}
						_ = c.Stats()
					}
				})
			}
			wg.Wait()
			checkCache(t, c)
		})
	}
}

// stressRequest takes the experts of one request, holding small ones to the end and giving up now and then.
func stressRequest(c *Cache, rng *rand.Rand, layer int, want []int32, k int) error {
	r, err := c.Begin(layer, want)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx := context.Background()
	giveUp := rng.IntN(12) == 0
	if giveUp {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(300))*time.Microsecond)
		defer cancel()
	}
	var held []Lease
	check := func(l Lease) error { return checkViews(&c.experts[layer][l.Expert()], l.Views()) }
	for {
		l, ok, err := r.Next(ctx, len(held) == 0 || len(want) <= k)
		if err != nil {
			if giveUp && errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}
		if ok {
			if err := check(l); err != nil {
				return err
			}
			held = append(held, l)
			continue
		}
		for _, l := range held {
			if err := check(l); err != nil {
				return fmt.Errorf("while leased: %w", err)
			}
			l.Release()
		}
		held = held[:0]
		if r.Left() == 0 {
			return nil
		}
	}
}

// checkCache checks what must hold when nobody uses the cache.
func checkCache(t *testing.T, c *Cache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.v.check(); err != nil {
		t.Error(err)
	}
	if c.v.leases != 0 || c.v.waiting.head != nil || c.v.streamer != nil {
		t.Errorf("%d leases, waiting %v, streaming %v", c.v.leases, c.v.waiting.head, c.v.streamer)
	}
	for i := range c.v.slots {
		if s := &c.v.slots[i]; s.wants != 0 || s.refs != 0 {
			t.Errorf("slot %d: %+v", i, s)
		}
	}
}

// TestMemlock runs the uring store in processes that are not privileged and may lock little memory: with too little for
// the arena it must work without registered buffers and say why; with none at all newer kernels refuse the ring itself,
// which must be ErrUnavailable so that the caller can take another store.
func TestMemlock(t *testing.T) {
	if s := os.Getenv("TERRACE_TEST_MEMLOCK"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		memlockChild(t, n)
		return
	}
	if runtime.GOOS != "linux" || len(uringStores(t)) == 0 {
		t.Skip("no io_uring here")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{0, 128 << 10} {
		cmd := exec.Command(exe, "-test.run=^TestMemlock$", "-test.v")
		cmd.Env = append(os.Environ(), fmt.Sprintf("TERRACE_TEST_MEMLOCK=%d", limit))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("limit %d: %v\n%s", limit, err, out)
		}
		if s := string(out); strings.Contains(s, "SKIP") {
			t.Skip(s)
		} else if !strings.Contains(s, "fell back") && !strings.Contains(s, "no ring") {
			t.Errorf("limit %d: the child did not fall back:\n%s", limit, s)
		}
	}
}

func memlockChild(t *testing.T, limit int) {
	if err := dropMemlock(limit); err != nil {
		t.Skip("SKIP", err)
	}
	experts := testExperts(3, 8)
	var sb strings.Builder
	s, err := NewUring(writeModel(t, experts, 1), StoreOptions{}, slog.New(slog.NewTextHandler(&sb, nil)))
	if errors.Is(err, uring.ErrUnavailable) && (limit == 0 || errors.Is(err, syscall.ENOMEM)) { // what other processes of this user have locked counts too
		a, err := NewAuto(writeModel(t, experts, 1), StoreOptions{}, slog.New(slog.NewTextHandler(&sb, nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if n := a.Name(); !strings.HasPrefix(n, "pread") || !strings.Contains(n, "io_uring is not available") || !strings.Contains(sb.String(), "reading with pread") {
			t.Errorf("%s; log: %s", n, sb.String())
		}
		t.Log("no ring")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 8, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := fetch(c, 1+i%2, []int32{0, 2, 4, 6, 7}); err != nil {
			t.Fatal(err)
		}
	}
	if out := sb.String(); strings.Count(out, "memory that is not registered") == 1 && strings.Contains(out, "cannot allocate memory") &&
		s.Stats().Unregistered > 0 && strings.Contains(s.Name(), "cannot allocate memory") {
		t.Logf("fell back: %d of %d reads", s.Stats().Unregistered, s.Stats().Reads)
	} else {
		t.Errorf("%s: %+v, log: %s", s.Name(), s.Stats(), out)
	}
	closeCache(t, c)
}
