package tiers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// MirrorOptions describe a second copy of the model's files, whole or in part, on another disk.
type MirrorOptions struct {
	// Paths are the copies, by shard; "" where there is none. A copy may end before its original does.
	Paths []string
	// Compare is how many bytes at the start of each shard must be equal: the header.
	Compare []int64
	Log     *slog.Logger
}

// mirrorSamples is how many blocks of each copy are compared with the original when it is opened.
const mirrorSamples = 64

// mirrorStrikes is how many reads in a row may fail before a copy is given up.
const mirrorStrikes = 3

// NewMirror makes a store that shares reads between the original files and copies of them, each read going where it will
// be over first by what both disks have done so far. open makes a store over files; it is called for the originals and for
// the copies. Copies are compared with the originals at open: size, header and a sample of the rest. A read of a copy
// that fails is done again from the original; after a few failures in a row the copy is left alone. An error of the
// original is the read's.
func NewMirror(paths []string, o MirrorOptions, open func(paths []string, copies bool) (Store, error)) (Store, error) {
	if len(o.Paths) != len(paths) || len(o.Compare) != len(paths) {
		panic(fmt.Sprintf("tiers: %d copies and %d headers of %d files", len(o.Paths), len(o.Compare), len(paths)))
	}
	m := &mirrored{log: o.Log, limits: make([]int64, len(paths))}
	copies := make([]string, len(paths))
	some := false
	for i := range paths {
		copies[i] = paths[i] // a store wants each of its files; nothing is read from this one
		if o.Paths[i] == "" {
			continue
		}
		size, err := checkCopy(paths[i], o.Paths[i], o.Compare[i])
		if err != nil {
			return nil, fmt.Errorf("mirror: %w", err)
		}
		copies[i], m.limits[i], some = o.Paths[i], size, true
		if a, err := host.Device(paths[i]); err == nil && o.Log != nil {
			if b, err := host.Device(o.Paths[i]); err == nil && a == b {
				o.Log.Warn("the mirror lies on the same disk as the model: it cannot make reading faster", "mirror", o.Paths[i])
			}
		}
	}
	if !some {
		return nil, errors.New("mirror: no copy of any of the model's files")
	}
	var err error
	if m.sides[0].store, err = open(paths, false); err != nil {
		return nil, err
	}
	if m.sides[1].store, err = open(copies, true); err != nil {
		return nil, errors.Join(fmt.Errorf("mirror: %w", err), m.sides[0].store.Close())
	}
	return m, nil
}

// checkCopy compares a copy with its original and gives the bytes that are in it.
func checkCopy(path, copied string, header int64) (int64, error) {
	var f [2]*os.File
	var size [2]int64
	for i, p := range []string{path, copied} {
		var err error
		if f[i], err = os.Open(p); err != nil {
			return 0, err
		}
		defer f[i].Close()
		if size[i], err = f[i].Seek(0, io.SeekEnd); err != nil {
			return 0, err
		}
	}
	if size[1] > size[0] || size[1] < header {
		return 0, fmt.Errorf("%s has %d bytes, %s has %d: want as many, or fewer with all %d bytes of the header", copied, size[1], path, size[0], header)
	}
	same := func(at, n int64) error {
		var b [2][]byte
		for i := range b {
			b[i] = make([]byte, n)
			if _, err := f[i].ReadAt(b[i], at); err != nil {
				return fmt.Errorf("%s: %d bytes at offset %d: %w", f[i].Name(), n, at, err)
			}
		}
		if !bytes.Equal(b[0], b[1]) {
			return fmt.Errorf("%s is no copy of %s: they differ in the %d bytes at offset %d", copied, path, n, at)
		}
		return nil
	}
	const block = 1 << 20
	for at := int64(0); at < header; at += block {
		if err := same(at, min(block, header-at)); err != nil {
			return 0, err
		}
	}
	rest := size[1] - header
	if n := min(rest, host.IOAlign); n > 0 {
		rng := rand.New(rand.NewPCG(uint64(size[0]), uint64(header))) // the same blocks each time
		for i := range mirrorSamples {
			at := size[1] - n
			if i > 0 {
				at = header + rng.Int64N(rest-n+1)
			}
			if err := same(at, n); err != nil {
				return 0, err
			}
		}
	}
	return size[1], nil
}

// mirrored is a store over originals and copies.
type mirrored struct {
	log    *slog.Logger
	limits []int64 // bytes of each copy

	mu      sync.Mutex // taken before a side's own lock
	sides   [2]side    // originals, copies
	strikes int        // failures of copies in a row
	given   bool       // the copies were given up
	closed  bool
	errors  int64 // reads of copies that failed
	flying  int   // reads on either side
	since   time.Time
	busy    time.Duration
}

// side is one set of files and how fast it is.
type side struct {
	store   Store
	waiting [2]int64 // bytes of reads there, by priority
	flying  int
	began   time.Time     // when flying rose from 0
	last    time.Time     // a read ended
	busy    time.Duration // with reads there, before began, since the rate was taken
	bytes   int64         // that came since then
	rate    float64       // bytes per second; 0: not known yet
}

// windowTime is how long a side is busy before its rate is taken.
const windowTime = 20 * time.Millisecond

// retryTime is after how long a side that nothing was sent to is tried again: it may have been slow for a while only.
const retryTime = 5 * time.Second

// eta is how long a read of n bytes may take to be over on a side; a demand passes all guesses but those under way.
func (s *side) eta(n int64, p Priority, other float64) float64 {
	before := s.waiting[Demand]
	if g := s.waiting[Guess]; p == Guess {
		before += g
	} else {
		before += min(g, n)
	}
	rate := s.rate
	if rate == 0 {
		rate = other // as good as the other until it was tried
	}
	if rate == 0 {
		rate = 1
	}
	return float64(before+n) / rate
}

func (s *side) add(r *Read, now time.Time) {
	if s.flying == 0 {
		s.began = now
	}
	s.flying++
	s.waiting[r.at] += r.Desc.Bytes()
	r.counted = true
}

// remove takes a read out of the sums; came is the bytes it brought.
func (s *side) remove(r *Read, came int64, now time.Time) {
	r.counted = false
	s.waiting[r.at] -= r.Desc.Bytes()
	s.bytes += came
	s.last = now
	s.flying--
	d := s.busy + now.Sub(s.began)
	if d >= windowTime {
		rate := float64(s.bytes) / d.Seconds()
		if s.rate > 0 {
			rate = 0.7*s.rate + 0.3*rate
		}
		s.rate, s.began, s.busy, s.bytes = rate, now, 0, 0
	} else if s.flying == 0 {
		s.busy = d
	}
}

// held says whether all of an expert is in the copies.
func (m *mirrored) held(d *Desc) bool {
	for i := range d.Pieces {
		if p := &d.Pieces[i]; p.Length > 0 && p.Offset+p.Length > m.limits[p.Shard] {
			return false
		}
	}
	return true
}

// Name implements Store.
func (m *mirrored) Name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.given {
		return m.sides[0].store.Name() + ", mirror given up"
	}
	return m.sides[0].store.Name() + ", with a mirror"
}

// Check implements Store.
func (m *mirrored) Check(d *Desc) error { return m.sides[0].store.Check(d) }

// Queue implements Store.
func (m *mirrored) Queue(r *Read) {
	m.mu.Lock()
	defer m.mu.Unlock()
	where := 0
	if !m.given && m.held(r.Desc) {
		n, a, b := r.Desc.Bytes(), &m.sides[0], &m.sides[1]
		now := fault.Now()
		switch {
		case b.flying == 0 && now.Sub(b.last) > retryTime:
			where = 1
		case a.flying == 0 && now.Sub(a.last) > retryTime:
		case b.eta(n, r.Priority, a.rate) < a.eta(n, r.Priority, b.rate):
			where = 1
		}
	}
	r.home, r.Sink = r.Sink, m
	m.put(r, where)
}

// put queues a read on a side; with the lock.
func (m *mirrored) put(r *Read, where int) {
	now := fault.Now()
	if m.flying == 0 {
		m.since = now
	}
	m.flying++
	r.side, r.at = uint8(where), r.Priority
	m.sides[where].add(r, now)
	m.sides[where].store.Queue(r)
}

// took counts a read as gone from its side, with the bytes it brought; with the lock.
func (m *mirrored) took(r *Read, came int64) {
	now := fault.Now()
	m.sides[r.side].remove(r, came, now)
	m.flying--
	if m.flying == 0 {
		m.busy += now.Sub(m.since)
	}
}

// Kick implements Store.
func (m *mirrored) Kick() {
	m.sides[0].store.Kick()
	m.sides[1].store.Kick()
}

// Promote implements Store.
func (m *mirrored) Promote(r *Read) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.sides[r.side]
	s.store.Promote(r)
	if r.counted && r.at == Guess {
		s.waiting[Guess] -= r.Desc.Bytes()
		s.waiting[Demand] += r.Desc.Bytes()
		r.at = Demand
	}
}

// Cancel implements Store.
func (m *mirrored) Cancel(r *Read) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.sides[r.side].store.Cancel(r) {
		return false
	}
	m.took(r, 0)
	r.Sink = r.home
	return true
}

// ReadDone implements Sink: a read of a copy that failed begins again with the original.
func (m *mirrored) ReadDone(r *Read, err error) {
	m.mu.Lock()
	from, came := r.side, int64(0)
	if err == nil {
		came = r.Desc.Bytes()
	}
	m.took(r, came)
	if from == 1 && err == nil {
		m.strikes = 0
	}
	if from == 1 && err != nil && !m.closed {
		m.errors++
		m.strikes++
		m.given = m.given || m.strikes >= mirrorStrikes
		if m.log != nil {
			m.log.Warn("the mirror could not be read; the original is", "reason", err, "given_up", m.given)
		}
		r.Priority = Demand // it has waited already
		m.put(r, 0)
		m.mu.Unlock()
		m.sides[0].store.Kick()
		return
	}
	m.mu.Unlock()
	r.Sink = r.home
	r.Sink.ReadDone(r, err)
}

// Poll implements Store.
func (m *mirrored) Poll() {
	m.sides[0].store.Poll()
	m.sides[1].store.Poll()
}

// Attach implements Attacher.
func (m *mirrored) Attach(slot int, mem []byte) {
	for i := range m.sides {
		if a, ok := m.sides[i].store.(Attacher); ok {
			a.Attach(slot, mem)
		}
	}
}

// Detach implements Attacher.
func (m *mirrored) Detach(slot int) {
	for i := range m.sides {
		if a, ok := m.sides[i].store.(Attacher); ok {
			a.Detach(slot)
		}
	}
}

// Stats implements Store.
func (m *mirrored) Stats() StoreStats {
	a, b := m.sides[0].store.Stats(), m.sides[1].store.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := StoreStats{
		DemandBytes: a.DemandBytes + b.DemandBytes, GuessBytes: a.GuessBytes + b.GuessBytes, Reads: a.Reads + b.Reads,
		Errors: a.Errors, Unregistered: a.Unregistered + b.Unregistered,
		MirrorBytes: b.DemandBytes + b.GuessBytes, MirrorErrors: m.errors, Busy: m.busy,
	}
	if m.flying > 0 {
		s.Busy += fault.Since(m.since)
	}
	return s
}

// Close implements Store. What fails on the copies because they are being closed is not begun again.
func (m *mirrored) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	return errors.Join(m.sides[1].store.Close(), m.sides[0].store.Close())
}
