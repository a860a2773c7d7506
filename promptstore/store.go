// Package promptstore keeps what evaluated prompts left behind, so that a later prompt that begins alike goes on from there: in
// a bounded part of RAM and in a bounded folder that survives restarts and crashes.
//
// It knows token ids and bytes, no tensors and no models: who exports and imports the bytes is above it (engine.PromptCache).
//
// What is stored forms a tree. An entry of rows holds what up to PieceTokens positions left, and continues the rows of another
// entry at one of its positions; a snapshot hangs on the rows whose position it stands for. So whatever conversations share is
// kept once, and a conversation that goes on adds only what is new.
package promptstore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"terrace/internal/host"
)

// Options configure a Store.
type Options struct {
	// Space names everything besides the tokens that the bytes depend on: the model, the types they are stored in, the version
	// of the arithmetic. Entries of another space are never seen.
	Space string
	RAM   int64 // bytes that entries may hold in memory, the index included
	// Dir is the folder of entries on disk, of all spaces; empty: none. One process at a time uses a space's part of it.
	Dir  string
	Disk int64 // bytes that all entries in Dir may have
	// Check says why what was just filled is of no use after all, and is dropped; nil: it always is of use.
	Check func() error
	Log   *slog.Logger
}

// Store is a bounded set of entries. Its methods may be called by several goroutines at once.
type Store struct {
	opt   Options
	space [32]byte
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	root    entry
	entries map[ID]*entry
	ram     int64 // bytes of buffers and of the index
	index   int64 // of that, the index
	stats   Stats
	last    int64 // the latest time given out
	closed  bool

	transit sync.Mutex // held while an entry that RAM has no room for is lent
	disk    *disk      // nil: none
}

// Stats are a store's counters.
type Stats struct {
	Entries   int   // in RAM or on disk
	RAM       int64 // bytes in memory
	Disk      int64 // bytes on disk, this space's
	Pending   int   // entries that wait to be written
	Written   int64 // bytes written to disk since the start
	Loaded    int64 // bytes read from disk since the start
	Evicted   int   // entries that left RAM for want of room
	Deleted   int   // entries that left the disk for want of room
	Damaged   int   // entries that were ignored since they were damaged or foreign
	Refused   int   // entries that found no room
	Discarded int   // writes given up: a full queue, a failing disk
}

// entry is a node of the tree. Its identity does not change; the rest is guarded by Store.mu.
type entry struct {
	head
	parent   *entry
	children []*entry // rows that continue it
	snaps    []*entry
	buf      []byte // the payload, or nil: on disk alone
	onDisk   bool
	queued   bool // to be written
	pins     int
	gone     bool  // out of the tree; its buffer is freed with the last pin
	used     int64 // nanoseconds
}

// overhead is what the index takes for an entry: what lives on the Go heap, and as much again, which a collector lets the heap
// grow by before it looks for what has died.
func (e *entry) overhead() int64 { return 2 * (352 + 4*int64(len(e.Tokens))) }

// The index is bounded by a number of entries and by a share of the RAM, as its reciprocal: what lies on disk alone must leave
// room for bytes, or nothing new would ever be kept.
const (
	maxEntries = 1 << 14
	indexShare = 4
)

// Open makes a store and learns what the folder holds, by heads alone. A folder that cannot be used, since another process
// holds it or the disk refuses, costs a line in the log and the use of the disk, never the store.
func Open(o Options) (*Store, error) {
	if o.RAM < 0 || o.Disk < 0 {
		return nil, fmt.Errorf("promptstore: %d bytes of RAM and %d of disk, want at least 0", o.RAM, o.Disk)
	}
	s := &Store{opt: o, space: sha256.Sum256([]byte(o.Space)), log: o.Log, now: time.Now, entries: map[ID]*entry{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Dir != "" && o.Disk > 0 {
		d, err := s.openDisk()
		if err != nil {
			s.log.Warn("prompts are not kept on disk", "folder", o.Dir, "reason", err)
		} else {
			s.disk = d
		}
	}
	return s, nil
}

// Close ends the store once what waits to be written is on disk, or when ctx ends.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.disk != nil {
		s.disk.close(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.pins > 0 {
			panic("promptstore: closed while a prefix is lent")
		}
		s.release(e)
	}
	return nil
}

// Flush waits until everything that was added is on disk or given up.
func (s *Store) Flush() {
	if s.disk != nil {
		s.disk.flush()
	}
}

// Stats are the counters now.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.stats
	t.Entries, t.RAM = len(s.entries), s.ram
	if s.disk != nil {
		t.Disk, t.Pending = s.disk.bytes, s.disk.pending
	}
	return t
}

// Disk reports whether entries are kept on disk.
func (s *Store) Disk() bool { return s.disk != nil }

// tick is the time, later than any before. Callers hold mu.
func (s *Store) tick() int64 {
	s.last = max(s.last+1, s.now().UnixNano())
	return s.last
}

// step is the part of an entry of rows that lies on a path: positions lo to hi-1.
type step struct {
	e      *entry
	lo, hi int
}

// walk is the path of the longest beginning of tokens that there are rows of. Callers hold mu.
func (s *Store) walk(tokens []int32) []step {
	var path []step
	e, end := &s.root, 0
	for {
		var next *entry
		reach := end
		for _, c := range e.children {
			if c.Start > end || c.Start >= len(tokens) || c.Tokens[0] != tokens[c.Start] {
				continue
			}
			n := 1
			for n < len(c.Tokens) && c.Start+n < len(tokens) && c.Tokens[n] == tokens[c.Start+n] {
				n++
			}
			if c.Start+n > reach {
				next, reach = c, c.Start+n
			}
		}
		if next == nil {
			return path
		}
		if len(path) > 0 {
			path[len(path)-1].hi = next.Start
		}
		path = append(path, step{next, next.Start, reach})
		e, end = next, reach
	}
}

// reach is the number of positions of a path.
func reach(path []step) int {
	if len(path) == 0 {
		return 0
	}
	return path[len(path)-1].hi
}

// Known tells what there is of tokens.
type Known struct {
	Rows      int   // of how many tokens there are rows
	Snapshots []int // rising positions
}

// Known looks for the longest beginning of tokens.
func (s *Store) Known(tokens []int32) Known {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.walk(tokens)
	k := Known{Rows: reach(path)}
	for _, t := range path {
		for _, x := range t.e.snaps {
			if x.Start > t.lo && x.Start <= t.hi {
				k.Snapshots = append(k.Snapshots, x.Start)
			}
		}
	}
	slices.Sort(k.Snapshots)
	return k
}

// Need says what makes a prefix usable.
type Need struct {
	Window   int  // rows of the last Window-1 positions must have been stored with windows; 0: none
	Snapshot bool // a snapshot at its end
}

// Prefix is a stored beginning of some tokens. Its entries stay until Close.
type Prefix struct {
	N    int // positions; 0: there is none
	s    *Store
	path []step
	snap *entry
}

// Find looks for the longest beginning of tokens that need makes usable.
func (s *Store) Find(tokens []int32, need Need) *Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(tokens, need)
	now := s.tick()
	for _, t := range p.path {
		t.e.pins++
		t.e.used = now
	}
	if p.snap != nil {
		p.snap.pins++
		p.snap.used = now
	}
	if p.N > 0 && s.disk != nil {
		s.disk.touch(p)
	}
	return p
}

// Reach is the length of what Find would find. Nothing counts as used.
func (s *Store) Reach(tokens []int32, need Need) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(tokens, need).N
}

// find is Find without holding on to the entries. Callers hold mu.
func (s *Store) find(tokens []int32, need Need) *Prefix {
	p := &Prefix{s: s}
	path := s.walk(tokens)
	if need.Snapshot {
		for i := len(path) - 1; i >= 0; i-- {
			for _, x := range path[i].e.snaps {
				if x.Start > path[i].lo && x.Start <= path[i].hi && x.Start > p.N && windows(path, x.Start, need.Window) {
					p.N, p.snap = x.Start, x
				}
			}
		}
	} else {
		p.N = reach(path)
		for p.N > 0 && !windows(path, p.N, need.Window) {
			p.N = windowEnd(path, p.N)
		}
	}
	for _, t := range path {
		if t.lo >= p.N {
			break
		}
		t.hi = min(t.hi, p.N)
		p.path = append(p.path, t)
	}
	return p
}

// windows reports whether the last window-1 of n positions were stored with windows.
func windows(path []step, n, window int) bool {
	if window == 0 {
		return true
	}
	for _, t := range path {
		if t.lo < n && t.hi > n-window+1 && !t.e.Windowed {
			return false
		}
	}
	return true
}

// windowEnd is the next smaller number of positions than n that ends in rows with windows, or 0.
func windowEnd(path []step, n int) int {
	cut := false // a step without windows was met
	for i := len(path) - 1; i >= 0; i-- {
		t := path[i]
		if t.lo >= n {
			continue
		}
		if cut && t.e.Windowed {
			return t.hi
		}
		cut = cut || !t.e.Windowed
	}
	return 0
}

// Close gives the entries back.
func (p *Prefix) Close() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, t := range p.path {
		p.s.unpin(t.e)
	}
	if p.snap != nil {
		p.s.unpin(p.snap)
	}
	p.path, p.snap = nil, nil
}

func (s *Store) unpin(e *entry) {
	e.pins--
	if e.gone && e.pins == 0 {
		s.release(e)
	}
}

// release frees an entry's buffer. Callers hold mu.
func (s *Store) release(e *entry) {
	if e.buf == nil {
		return
	}
	s.ram -= taken(e.Size)
	freeBuf(e.buf)
	e.buf = nil
}

// heapBuf is the size from which on a buffer is memory of its own outside the Go heap, whole pages of it.
const heapBuf = 4 << 10

// hugeBuf is the size from which on a buffer may lie in huge pages.
const hugeBuf = 2 << 20

// taken is what a buffer of n bytes takes.
func taken(n int64) int64 {
	if n < heapBuf {
		return n
	}
	page := int64(host.PageSize())
	return (n + page - 1) / page * page
}

func makeBuf(n int64) ([]byte, error) {
	if n < heapBuf {
		return make([]byte, n), nil
	}
	b, err := host.Alloc(int(n))
	if err == nil && n >= hugeBuf {
		_ = host.AdviseHuge(b) // only an advice: whole megabytes are written at once, and each page's first touch costs more than its copy
	}
	return b, err
}

func freeBuf(b []byte) {
	if len(b) < heapBuf {
		return
	}
	if err := host.Free(b); err != nil {
		panic(fmt.Sprintf("promptstore: %d bytes were not taken back: %v", len(b), err))
	}
}
