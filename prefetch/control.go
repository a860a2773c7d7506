package prefetch

import (
	"fmt"
	"math"
	"time"
)

// control chooses the depth by what decode steps take. It compares two depths in turn: blocks of a few steps at each, the
// pair's relative difference counting as one sample, so that a change of text or of the machine's load falls on both.
//
// The burden of proof is the deeper one's. It stays, or comes into force, when the mean difference is clear of its error
// by what a small sample asks; else the shallower one does: guesses must not hurt, and what cannot be told from noise is
// not worth a read. What a comparison found counts half in the next one of the same two depths, so that a small
// gain is found in time. A depth that lost is tried again later, after a pause that grows each time.
//
// It knows nothing but durations: guesses that cost more than they save show in them whatever the reason.
type control struct {
	most  int // the greatest depth
	depth int // in force: the best known, but for a rival's blocks
	best  int
	rival int // -1: nothing is compared
	turn  bool

	step  int // of the block
	sum   time.Duration
	first float64 // seconds of the first block of this pair
	swap  bool    // the rival's block comes first, every other pair

	pairs      int        // of this comparison
	seen       [3]samples // of depths 0 and 1, 0 and 2, 1 and 2
	wait       int        // steps until the next comparison
	pause      []int
	next       int
	why        string // format of the reason for the depth, for two depths and per cents
	gain       float64
	over       int
	comparison int64
}

// samples are relative differences of time, the deeper depth's less the shallower one's.
type samples struct{ n, mean, m2 float64 }

func (s *samples) add(x float64) {
	s.n++
	d := x - s.mean
	s.mean += d / s.n
	s.m2 += d * (x - s.mean)
}

// err is how far the mean may be off: Student's 97.5 % quantile, widened a little since it is asked after each pair.
func (s *samples) err() float64 {
	if s.n < 2 {
		return math.Inf(1)
	}
	return (2.2 + 4/(s.n-1)) * math.Sqrt(s.m2/(s.n-1)/s.n)
}

const (
	controlBlock    = 4    // decode steps
	controlLeast    = 4    // pairs before a comparison may end
	controlDoubt    = 8    // pairs after which a deeper depth that shows no gain at all has lost
	controlMost     = 24   // pairs after which it ends
	controlMargin   = 0.01 // relative gain that is worth its reads
	controlClip     = 0.3  // a greater difference is the machine's
	controlFirst    = 4    // steps before the first comparison: caches are cold
	controlPause    = 160  // steps from one comparison to the next, tripled when nothing changed
	controlMaxPause = 4096
)

func newControl(most int) *control {
	first := min(1, most) // guesses of the next layer are the best ones; off is compared with them first
	c := &control{most: most, best: first, depth: first, rival: -1, next: most, wait: controlFirst, pause: make([]int, most+1)}
	for i := range c.pause {
		c.pause[i] = controlPause
	}
	return c
}

// took tells that a decode step at the present depth took d.
func (c *control) took(d time.Duration) {
	if c.most == 0 || d <= 0 {
		return
	}
	if c.rival < 0 {
		if c.wait--; c.wait <= 0 {
			c.begin()
		}
		return
	}
	c.sum += d
	if c.step++; c.step < controlBlock {
		return
	}
	took := c.sum.Seconds()
	c.step, c.sum = 0, 0
	if !c.turn {
		c.first, c.turn = took, true
		c.depth = c.best + c.rival - c.depth
		return
	}
	deep := took
	shallow := c.first
	if c.depth < c.best || c.depth < c.rival { // the second block was the shallower depth's
		deep, shallow = shallow, deep
	}
	x := (deep - shallow) / max(min(deep, shallow), 1e-9)
	c.evidence().add(max(-controlClip, min(x, controlClip)))
	c.pairs++
	c.swap = !c.swap
	c.restart()
	c.judge()
}

// evidence is what is known of the two depths that are compared.
func (c *control) evidence() *samples { return &c.seen[c.best+c.rival-1] }

// restart begins the pair of blocks at work anew.
func (c *control) restart() {
	c.step, c.sum, c.turn, c.depth = 0, 0, false, c.best
	if c.swap && c.rival >= 0 {
		c.depth = c.rival
	}
}

// reason says why the best depth is below the greatest; "" where it is not.
func (c *control) reason() string {
	switch {
	case c.best == c.most:
		return ""
	case c.comparison < 1 || c.why == "":
		return fmt.Sprintf("depth %d is where it begins", c.best)
	}
	return fmt.Sprintf(c.why, c.best, c.over, 100*c.gain)
}

func (c *control) begin() {
	c.comparison++
	for { // the others in turn
		c.next = (c.next + 1) % (c.most + 1)
		if c.next != c.best {
			break
		}
	}
	c.rival, c.pairs = c.next, 0
	s := c.evidence()
	s.n, s.m2 = s.n/2, s.m2/2
	c.restart()
}

func (c *control) judge() {
	s, low, deep := c.evidence(), min(c.best, c.rival), max(c.best, c.rival)
	err := s.err()
	winner := low
	switch {
	case c.pairs < controlLeast:
		return
	case s.mean < -controlMargin && s.mean+err < 0:
		winner = deep
		c.why = "decode steps at depth %d were %.1[3]f %% faster than at %[2]d"
	case s.mean-err > 0:
		c.why = "decode steps at depth %d were %.1[3]f %% faster than at %[2]d"
	case c.pairs >= controlDoubt && s.mean > 0, c.pairs >= controlMost:
		c.why = "depth %d stands until a deeper one is clearly faster: at %d decode steps were faster by %.1[3]f %%, which may be chance"
	default:
		return
	}
	c.over, c.gain = low+deep-winner, math.Abs(s.mean)
	if winner == low && s.mean <= err {
		c.gain = -s.mean
	}
	if c.wait = controlPause / 4; winner == c.best { // else the third depth may be better still
		if c.comparison >= int64(c.most) { // else another depth has not been tried at all
			c.wait = c.pause[c.rival]
		}
		c.pause[c.rival] = min(3*c.pause[c.rival], controlMaxPause)
	} else {
		c.best = winner
		for i := range c.pause {
			c.pause[i] = controlPause
		}
	}
	c.rival, c.depth = -1, c.best
}
