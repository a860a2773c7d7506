package engine

import "context"

// regains reports whether a device that came back may be taken: nobody else has a slot.
func (s *Scheduler) regains() bool {
	if s.e.gpu == nil || s.e.gpu.found.Load() == nil {
		return false
	}
	for _, x := range s.slots {
		if x.away() {
			return false
		}
	}
	return true
}

// revive goes on after the error of a lost device: what idle slots hold is given up, busy ones evaluate theirs anew. It answers false
// where that cannot be.
func (s *Scheduler) revive(err error) bool {
	for _, x := range s.slots {
		if x.away() { // what it copies meanwhile is of no use
			back := <-x.task.back
			x.task.back <- back
		}
	}
	if !s.e.gone(err) {
		return false
	}
	for _, x := range s.slots {
		t := x.task
		if t == nil || t.back != nil || t.act != nil {
			x.empty(s.e)
			continue
		}
		f := t.fill
		f.drop()
		if err := x.line.revive(context.Background(), s.e, s.src); err != nil {
			s.log.Error("a slot's text was not evaluated anew", "slot", x.id, "error", err)
			return false
		}
		x.anew = false // the piece at work captures from here on
		t.fill = x.line.fill(t.text, s.e.budget.Checkpoints > 0)
		t.fill.keep = f.keep
	}
	return true
}
