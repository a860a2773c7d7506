package engine

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Sequences that decode together share the reads of the experts that more than one of them needs, but each brings experts of its
// own: where one sequence's fit the arena and all sequences' do not, a pass of all reads more for each token than the sequences
// would one after the other. width finds out by trying: it compares what a token reads at the number of sequences in force with
// what it reads at half or twice as many, or at one or all, and changes the number where that reads less and is no slower. Where not all may decode
// in one pass they take turns.

const (
	turnTokens   = 32 // tokens of a turn: long enough that what a sequence reads at its beginning is small beside it
	widthSettle  = 8  // passes that are not counted after the number has changed
	widthPasses  = 24 // passes of a block at the number in force
	widthPairs   = 2  // blocks of each before a comparison ends
	widthGain    = 0.95
	widthSame    = 1.02
	widthSlower  = 1.02
	widthLittle  = 0.02 // of what a token uses, read from disk: less is not worth a trial
	widthFirst   = 64   // passes before the first trial
	widthPause   = 512  // passes from one trial to the next, doubled when it changed nothing
	widthMost    = 16384
	widthSamples = 32 // passes over which what a token reads is averaged before a trial
)

// width is the number of sequences that decode in one pass at most.
type width struct {
	most   int     // slots
	best   int     // in force, but for a rival's blocks
	rival  int     // 0: nothing is compared
	wider  bool    // the next trial is of more
	far    [2]bool // the next one of fewer is of one, of more of all: either may be best where a step towards it is no better
	token  float64 // bytes of experts that a token uses
	reason string
	log    *slog.Logger

	turn     bool // a block of the rival's
	skip     int  // passes that are not counted yet
	left     int  // passes of the block
	pairs    int
	is, then reading // of the best and of the rival
	wait     int     // passes until the next trial
	pause    int
	recent   reading
}

// reading is what some passes have read and taken.
type reading struct {
	bytes, tokens int64
	took          time.Duration
	passes        int
}

func (s *reading) add(bytes int64, tokens int, took time.Duration) {
	s.bytes, s.tokens, s.took, s.passes = s.bytes+bytes, s.tokens+int64(tokens), s.took+took, s.passes+1
}

func (s *reading) perToken() float64 { return float64(s.bytes) / float64(max(s.tokens, 1)) }
func (s *reading) time() float64     { return float64(s.took) / float64(max(s.tokens, 1)) }

// newWidth begins with all of so many slots; token is the bytes of the experts that one token uses.
func newWidth(slots int, token int64, log *slog.Logger) *width {
	return &width{most: slots, best: slots, token: float64(token), wait: widthFirst, pause: widthPause, log: log}
}

// limit is the number in force.
func (w *width) limit() int {
	if w.rival > 0 && w.turn {
		return w.rival
	}
	return w.best
}

// passed tells what a pass of so many decoding sequences and no prompts has read and taken, while ready sequences could have
// been in it.
func (w *width) passed(ready, decoding int, bytes int64, took time.Duration) {
	if ready < 2 {
		w.rival = 0
		return
	}
	if w.rival == 0 {
		if w.recent.add(bytes, decoding, took); w.recent.passes > 2*widthSamples {
			w.recent = reading{bytes: w.recent.bytes / 2, tokens: w.recent.tokens / 2, took: w.recent.took / 2, passes: widthSamples}
		}
		if w.wait--; w.wait <= 0 {
			w.begin(ready)
		}
		return
	}
	if least := min(w.best, w.rival); ready <= least { // both would be the same
		w.rival = 0
		return
	}
	if w.skip > 0 {
		w.skip--
		return
	}
	if w.turn {
		w.then.add(bytes, decoding, took)
	} else {
		w.is.add(bytes, decoding, took)
	}
	if w.left--; w.left > 0 {
		return
	}
	if w.turn {
		w.pairs++
	}
	if w.turn && w.pairs == widthPairs {
		w.judge()
		return
	}
	w.turn = !w.turn
	w.block()
}

// block begins a block.
func (w *width) block() {
	w.skip, w.left = widthSettle, widthPasses
	if n := w.limit(); n < w.most { // some turns, so that what their beginnings read counts as much as it does
		w.left = 2 * turnTokens
	}
}

// begin begins a trial, if there is something to be gained.
func (w *width) begin(ready int) {
	w.wait = w.pause
	half := min(w.best, ready) / 2
	narrow := half > 0 && w.recent.perToken() > widthLittle*w.token
	switch {
	case w.best < w.most && (w.wider || !narrow):
		if w.rival, w.wider = min(2*w.best, w.most), false; w.far[1] {
			w.rival = w.most
		}
		w.far[1] = !w.far[1]
	case narrow:
		if w.rival, w.wider = half, true; w.far[0] {
			w.rival = 1
		}
		w.far[0] = !w.far[0]
	}
	if w.rival == 0 {
		return
	}
	w.turn, w.pairs, w.is, w.then = false, 0, reading{}, reading{}
	w.block()
}

// judge ends a trial.
func (w *width) judge() {
	is, then, was, to := w.is.perToken(), w.then.perToken(), w.best, w.rival
	better := then < widthGain*is
	if to > was { // more at once is better for all, where it costs nothing
		better = then <= widthSame*is
	}
	better = better && w.then.time() < widthSlower*w.is.time()
	w.rival, w.recent = 0, reading{}
	if !better {
		w.pause = min(2*w.pause, widthMost)
		w.wait = w.pause
		return
	}
	w.best, w.pause, w.wait = to, widthPause, widthPause/4
	w.wider = to > was // there may be more to be had that way
	w.reason = ""
	if w.best < w.most {
		w.reason = fmt.Sprintf("with %d sequences in a pass a token read %.3g bytes, with %d %.3g", was, is, to, then)
	}
	if w.log != nil {
		w.log.Info("sequences that decode in one pass", "limit", to, "of", w.most, "bytes_per_token", int64(then), "before", int64(is), "limit_before", was)
	}
}

// turns are the slots that decode in the next pass, the oldest task's first, and how many could.
func (s *Scheduler) turns() (now []*slot, ready int) {
	b := &s.batch
	b.turns = b.turns[:0]
	for _, x := range s.slots {
		if x.task != nil && !x.away() && x.task.fill.done() {
			b.turns = append(b.turns, x)
		}
	}
	ready = len(b.turns)
	limit := s.width.limit()
	if ready > limit {
		// Who has begun a turn ends it; then whoever has waited longest.
		slices.SortStableFunc(b.turns, func(x, y *slot) int {
			if a, b := x.task.left > 0, y.task.left > 0; a != b {
				if a {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(x.task.served, y.task.served), cmp.Compare(x.task.id, y.task.id))
		})
		b.turns = b.turns[:limit]
		for _, x := range b.turns {
			t := x.task
			if t.left == 0 {
				t.left = turnTokens
			}
			t.left--
			s.passes++
			t.served = s.passes
		}
	}
	slices.SortFunc(b.turns, func(x, y *slot) int { return cmp.Compare(x.task.id, y.task.id) })
	return b.turns, ready
}
