package prefetch

import (
	"fmt"
	"math"
	"time"
)

// control chooses the depth by what decode steps take. It compares the depth in force with another one in turn: blocks
// of a few steps at each, the pair's relative difference counting as one sample, so that a change of text or of the
// machine's load falls on both. A comparison ends as soon as the mean difference is clear of its error, or after so many
// pairs that it cannot matter; a depth that lost is tried again later, after a pause that grows each time.
//
// It knows nothing but durations: guesses that cost more than they save show in them whatever the reason.
type control struct {
	most  int // the greatest depth
	depth int // in force: the best known, but for a rival's blocks
	best  int
	rival int // -1: nothing is compared
	turn  bool

	step       int // of the block
	sum        time.Duration
	mine       float64 // seconds of the best one's block of this pair
	n          int
	mean, m2   float64
	wait       int // steps until the next comparison
	pause      []int
	next       int
	gain       float64 // relative, of the last change
	was        int     // depth before it
	decided    int64   // comparisons that changed the depth
	comparison int64
}

const (
	controlBlock    = 4    // decode steps
	controlLeast    = 3    // pairs before a comparison may end
	controlMost     = 16   // pairs after which it ends without a winner
	controlMargin   = 0.01 // relative difference that is worth a change
	controlFirst    = 4    // steps before the first comparison: caches are cold
	controlPause    = 160  // steps from one comparison to the next, tripled when nothing changed
	controlMaxPause = 4096
)

func newControl(most int) *control {
	c := &control{most: most, best: most, depth: most, rival: -1, next: most, wait: controlFirst, pause: make([]int, most+1)}
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
		c.mine, c.turn, c.depth = took, true, c.rival
		return
	}
	c.turn, c.depth = false, c.best
	c.n++
	x := (took - c.mine) / max(min(took, c.mine), 1e-9)
	delta := x - c.mean
	c.mean += delta / float64(c.n)
	c.m2 += delta * (x - c.mean)
	c.judge()
}

// reason says why the best depth is below the greatest; "" where it is not.
func (c *control) reason() string {
	if c.best == c.most {
		return ""
	}
	return fmt.Sprintf("decode steps were %.1f %% faster at depth %d than at %d", 100*c.gain, c.best, c.was)
}

func (c *control) begin() {
	c.comparison++
	for { // the others in turn
		c.next = (c.next + 1) % (c.most + 1)
		if c.next != c.best {
			break
		}
	}
	c.rival, c.turn, c.step, c.sum, c.n, c.mean, c.m2 = c.next, false, 0, 0, 0, 0, 0
	c.depth = c.best
}

func (c *control) judge() {
	if c.n < controlLeast {
		return
	}
	err := 2 * math.Sqrt(c.m2/float64(c.n-1)/float64(c.n))
	switch {
	case c.mean < -controlMargin && (c.mean+err < 0 || c.n >= controlMost):
		was := c.best
		c.best = c.rival
		c.decided++
		for i := range c.pause {
			c.pause[i] = controlPause
		}
		c.was, c.gain = was, -c.mean
		c.wait = controlPause / 4 // the third depth may be better still
	case c.mean-err > 0 || c.n >= controlMost:
		c.wait = c.pause[c.rival]
		c.pause[c.rival] = min(3*c.pause[c.rival], controlMaxPause)
	default:
		return
	}
	c.rival, c.depth = -1, c.best
}
