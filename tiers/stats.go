package tiers

import (
	"time"

	"terrace/internal/fault"
)

// Stats are a cache's counters since it was made.
type Stats struct {
	Store    string // its name
	Slots    int    // that may hold an expert now
	Bytes    int64  // of these slots
	Target   int64  // bytes that they may have; fewer than Bytes while a smaller arena waits for leases and reads
	Resident int    // slots that hold a whole expert
	Pinned   int
	Leased   int // leases out now

	Touches  int64 // experts asked for by requests; the sum of the next three
	Hits     int64 // were resident
	InFlight int64 // were on their way
	Misses   int64 // had not been asked for

	MissBytes int64 // of the experts in Misses, without alignment

	Evictions int64

	// What an arena with NearRoom more bytes of slots would have saved, about: misses and reads of experts that it would still
	// have held, and these reads' bytes without alignment. Reads include those on a guess.
	NearRoom, NearMisses, NearReads, NearBytes int64

	// Experts read on a guess, in experts and in bytes without alignment. Each ends in one way: Used, it was whole when
	// it was first asked for, in the layer's next turn or later; Late, it was still on its way then; Wasted, it left the
	// cache (or failed) unused; Cancelled, its read was taken back before it began. The rest of Issued waits in the cache.
	Issued, Used, Late, Wasted, Cancelled                          int64
	IssuedBytes, UsedBytes, LateBytes, WastedBytes, CancelledBytes int64

	DemandBytes int64 // read for demands, whole blocks
	GuessBytes  int64 // read for guesses, whole blocks
	ReadErrors  int64
	MirrorBytes int64 // of both, from a mirror

	MirrorErrors int64 // reads of the mirror that failed and were done again from the original
	Unregistered int64 // pieces read into memory that the system would not register

	Preloads     int64 // experts read before anybody asked, Cache.Preload
	PreloadBytes int64 // read for them, whole blocks; in neither of the above

	ReadWait   time.Duration // requests waited, summed
	Blocked    time.Duration // time with at least one request waiting
	DiskBusy   time.Duration // time with at least one read under way
	Overlapped time.Duration // of that, with no request waiting
}

// BytesPerSecond is the rate of reading while the disk was busy; 0 when it never was.
func (s Stats) BytesPerSecond() float64 {
	if s.DiskBusy <= 0 {
		return 0
	}
	return float64(s.DemandBytes+s.GuessBytes+s.PreloadBytes) / s.DiskBusy.Seconds()
}

// Since returns what was counted between old, an earlier snapshot of the same cache, and s. What is not a count is as in s.
func (s Stats) Since(old Stats) Stats {
	s.Touches -= old.Touches
	s.Hits -= old.Hits
	s.InFlight -= old.InFlight
	s.Misses -= old.Misses
	s.MissBytes -= old.MissBytes
	s.Evictions -= old.Evictions
	s.NearMisses -= old.NearMisses
	s.NearReads -= old.NearReads
	s.NearBytes -= old.NearBytes
	s.Issued -= old.Issued
	s.Used -= old.Used
	s.Late -= old.Late
	s.Wasted -= old.Wasted
	s.Cancelled -= old.Cancelled
	s.IssuedBytes -= old.IssuedBytes
	s.UsedBytes -= old.UsedBytes
	s.LateBytes -= old.LateBytes
	s.WastedBytes -= old.WastedBytes
	s.CancelledBytes -= old.CancelledBytes
	s.DemandBytes -= old.DemandBytes
	s.GuessBytes -= old.GuessBytes
	s.ReadErrors -= old.ReadErrors
	s.MirrorBytes -= old.MirrorBytes
	s.MirrorErrors -= old.MirrorErrors
	s.Unregistered -= old.Unregistered
	s.Preloads -= old.Preloads
	s.PreloadBytes -= old.PreloadBytes
	s.ReadWait -= old.ReadWait
	s.Blocked -= old.Blocked
	s.DiskBusy -= old.DiskBusy
	s.Overlapped -= old.Overlapped
	return s
}

// Stats is a snapshot of the counters.
func (c *Cache) Stats() Stats {
	s := c.Counters()
	s.Store = c.store.Name()
	return s
}

// Counters are Stats without the store's name, which takes an allocation to make.
func (c *Cache) Counters() Stats {
	d := c.store.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	v, n := c.v, &c.v.n
	s := Stats{
		Slots: v.liveSlots(), Bytes: v.room.live, Target: v.room.target, Resident: v.ready, Pinned: v.pins, Leased: v.leases,
		Touches: n.touches, Hits: n.hits, InFlight: n.inflight, Misses: n.misses, MissBytes: n.missBytes, Evictions: n.evictions,
		Issued: n.guessed, Used: n.used, Late: n.late, Wasted: n.wasted, Cancelled: n.cancelled,
		IssuedBytes: n.guessedBytes, UsedBytes: n.usedBytes, LateBytes: n.lateBytes, WastedBytes: n.wastedBytes, CancelledBytes: n.cancelB,
		NearRoom: min(v.leavers.room, v.bytes-v.room.target), NearMisses: n.near, NearReads: n.nearReads, NearBytes: n.nearBytes,
		DemandBytes: d.DemandBytes, GuessBytes: d.GuessBytes, ReadErrors: d.Errors,
		MirrorBytes: d.MirrorBytes, MirrorErrors: d.MirrorErrors, Unregistered: d.Unregistered,
		ReadWait: c.waited, Blocked: c.blockedTime, DiskBusy: d.Busy,
	}
	if c.pre != nil {
		b := c.pre.bytes
		s.Preloads, s.PreloadBytes = c.pre.n, b[Demand]+b[Guess]
		s.DemandBytes = max(0, s.DemandBytes-b[Demand]) // the store was asked a moment earlier
		s.GuessBytes = max(0, s.GuessBytes-b[Guess])
	}
	if c.blocked > 0 {
		s.Blocked += fault.Since(c.blockedSince)
	}
	s.Overlapped = max(0, s.DiskBusy-s.Blocked)
	return s
}
