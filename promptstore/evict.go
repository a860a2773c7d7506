package promptstore

import (
	"slices"
	"time"
)

// Who leaves when room is short: what costs much memory for each token that it saves and was not of use for long. A snapshot
// saves the tokens since the snapshot before it; so those of a conversation thin out evenly, and the oldest first.

// boost is how much more a snapshot of each class is worth.
var boost = [...]float64{Interval: 1, Tail: 4, Turn: 8}

// graceAge is added to ages: within it cost decides.
const graceAge = float64(2 * time.Second)

// badness orders victims: the largest leaves first. Callers hold mu.
func (s *Store) badness(e *entry, now int64) float64 {
	saved := float64(e.End - e.Start)
	if e.Kind == Snapshot {
		saved = float64(e.Start-s.before(e)) * boost[e.Class]
	}
	return (float64(now-e.used) + graceAge) * float64(e.Size) / saved
}

// before is the position of the snapshot before e on its path, or 0.
func (s *Store) before(e *entry) int {
	end := e.Start
	for p := e.parent; p != nil; p = p.parent {
		best := 0
		for _, x := range p.snaps {
			if x != e && x.Start < end && x.Start > best {
				best = x.Start
			}
		}
		if best > 0 {
			return best
		}
		end = min(end, p.Start+1)
	}
	return 0
}

// worst is the entry of the largest badness among those that ok accepts. Callers hold mu.
func (s *Store) worst(ok func(e *entry) bool) *entry {
	var worst *entry
	most, now := 0.0, s.last
	for _, e := range s.entries {
		if e.pins == 0 && ok(e) {
			if b := s.badness(e, now); worst == nil || b > most {
				worst, most = e, b
			}
		}
	}
	return worst
}

// leaf reports whether nothing hangs on e.
func (e *entry) leaf() bool { return len(e.children)+len(e.snaps) == 0 }

// reserve makes room for n bytes in RAM and counts them. Callers hold mu.
func (s *Store) reserve(n int64) bool {
	if n > s.opt.RAM {
		return false
	}
	s.tick()
	for s.ram+n > s.opt.RAM {
		e := s.worst(func(e *entry) bool { return e.buf != nil && (e.onDisk || e.leaf()) && !e.queued })
		if e == nil { // the disk is slower than we are: it will never see what leaves now
			e = s.worst(func(e *entry) bool { return e.buf != nil && e.leaf() })
		}
		if e == nil {
			return false
		}
		if e.queued {
			s.stats.Discarded++
		}
		s.stats.Evicted++
		if e.onDisk {
			s.release(e)
		} else {
			s.remove(e)
		}
	}
	s.ram += n
	return true
}

// enter makes room for e in the index and counts it there. Callers hold mu.
func (s *Store) enter(e *entry) bool {
	n := e.overhead()
	if n > s.opt.RAM/indexShare {
		return false
	}
	for s.crowded(1, n) {
		if !s.forget() {
			return false
		}
	}
	if !s.reserve(n) {
		return false
	}
	s.index += n
	return true
}

// crowded reports whether n entries of so many bytes are too many for the index, beside those that it has. Callers hold mu.
func (s *Store) crowded(n int, bytes int64) bool {
	return len(s.entries)+n > maxEntries || s.index+bytes > s.opt.RAM/indexShare
}

// leave takes back what enter counted. Callers hold mu.
func (s *Store) leave(e *entry) {
	s.ram -= e.overhead()
	s.index -= e.overhead()
}

// forget takes the entry out of the index whose loss costs least. Callers hold mu.
func (s *Store) forget() bool {
	e := s.worst(func(e *entry) bool { return e.leaf() && !e.queued })
	if e == nil {
		return false
	}
	s.remove(e)
	return true
}

// remove takes an entry and all that hangs on it out of the tree and off the disk. Callers hold mu.
func (s *Store) remove(e *entry) {
	for len(e.children) > 0 {
		s.remove(e.children[0])
	}
	for len(e.snaps) > 0 {
		s.remove(e.snaps[0])
	}
	out := func(from []*entry) []*entry {
		return slices.DeleteFunc(from, func(x *entry) bool { return x == e })
	}
	if e.Kind == Rows {
		e.parent.children = out(e.parent.children)
	} else {
		e.parent.snaps = out(e.parent.snaps)
	}
	delete(s.entries, e.ID)
	s.leave(e)
	e.gone = true
	if e.onDisk {
		s.disk.delete(e)
	}
	if e.pins == 0 {
		s.release(e)
	}
}
