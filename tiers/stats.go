package tiers

import "time"

// Stats are a cache's counters since it was made.
type Stats struct {
	Store    string // its name
	Slots    int    // that may hold an expert now
	Bytes    int64  // of these slots
	Target   int64  // bytes that they may have; fewer than Bytes while a smaller arena waits for leases and reads
	Resident int    // slots that hold a whole expert
	Pinned   int

	Touches  int64 // experts asked for by requests; the sum of the next three
	Hits     int64 // were resident
	InFlight int64 // were on their way
	Misses   int64 // had not been asked for

	Evictions int64

	// Experts read on a guess, in experts and in bytes without alignment. Each ends in one way: Used, it was whole when
	// it was first asked for, in the layer's next turn or later; Late, it was still on its way then; Wasted, it left the
	// cache (or failed) unused; Cancelled, its read was taken back before it began. The rest of Issued waits in the cache.
	Issued, Used, Late, Wasted, Cancelled                          int64
	IssuedBytes, UsedBytes, LateBytes, WastedBytes, CancelledBytes int64

	DemandBytes int64 // read for demands, whole blocks
	GuessBytes  int64 // read for guesses, whole blocks
	ReadErrors  int64

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
	return float64(s.DemandBytes+s.GuessBytes) / s.DiskBusy.Seconds()
}

// Stats is a snapshot of the counters.
func (c *Cache) Stats() Stats {
	d := c.store.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	v, n := c.v, &c.v.n
	s := Stats{
		Store: c.store.Name(), Slots: v.liveSlots(), Bytes: v.room.live, Target: v.room.target, Resident: v.ready, Pinned: v.pins,
		Touches: n.touches, Hits: n.hits, InFlight: n.inflight, Misses: n.misses, Evictions: n.evictions,
		Issued: n.guessed, Used: n.used, Late: n.late, Wasted: n.wasted, Cancelled: n.cancelled,
		IssuedBytes: n.guessedBytes, UsedBytes: n.usedBytes, LateBytes: n.lateBytes, WastedBytes: n.wastedBytes, CancelledBytes: n.cancelB,
		DemandBytes: d.DemandBytes, GuessBytes: d.GuessBytes, ReadErrors: d.Errors,
		ReadWait: c.waited, Blocked: c.blockedTime, DiskBusy: d.Busy,
	}
	if c.blocked > 0 {
		s.Blocked += time.Since(c.blockedSince)
	}
	s.Overlapped = max(0, s.DiskBusy-s.Blocked)
	return s
}
