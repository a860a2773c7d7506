package bench

import "container/list"

// rival is a cache policy of the literature that decides by itself what it holds: touch says whether the key was there.
type rival interface{ touch(key int) bool }

// rivals of the literature, each in its published form with its published constants.
var rivals = []struct {
	name string
	make func(slots int) rival
}{
	{"ARC", func(n int) rival { return newARC(n) }},
	{"LIRS", func(n int) rival { return newLIRS(n) }},
	{"S3-FIFO", func(n int) rival { return newS3FIFO(n) }},
	{"W-TinyLFU", func(n int) rival { return newTinyLFU(n) }},
}

// looseRival replays one touch at a time.
func looseRival(r *Routing, p rival) float64 {
	touches, hits := int64(0), int64(0)
	for _, pass := range r.Passes {
		prompt := r.prompt(pass)
		for l, ids := range pass {
			for _, e := range ids {
				hit := p.touch(r.key(l, e))
				if prompt {
					continue
				}
				touches++
				if hit {
					hits++
				}
			}
		}
	}
	return ratio(hits, touches)
}

// queue is a list of distinct keys, the newest in front.
type queue struct {
	l  *list.List
	at map[int]*list.Element
}

func newQueue() *queue { return &queue{list.New(), map[int]*list.Element{}} }

func (q *queue) len() int       { return q.l.Len() }
func (q *queue) has(k int) bool { return q.at[k] != nil }
func (q *queue) push(k int)     { q.at[k] = q.l.PushFront(k) }
func (q *queue) front(k int)    { q.l.MoveToFront(q.at[k]) }
func (q *queue) last() int      { return q.l.Back().Value.(int) }

func (q *queue) remove(k int) {
	q.l.Remove(q.at[k])
	delete(q.at, k)
}

func (q *queue) pop() int {
	k := q.last()
	q.remove(k)
	return k
}

// arc is the adaptive replacement cache (Megiddo and Modha, 2003): t1 holds what was seen once lately, t2 what was seen
// again, b1 and b2 remember what left them and move the border between the two.
type arc struct {
	n              int
	border         float64 // what t1 should hold
	t1, t2, b1, b2 *queue
}

func newARC(n int) *arc {
	return &arc{n: n, t1: newQueue(), t2: newQueue(), b1: newQueue(), b2: newQueue()}
}

func (c *arc) touch(k int) bool {
	switch {
	case c.t1.has(k):
		c.t1.remove(k)
		c.t2.push(k)
		return true
	case c.t2.has(k):
		c.t2.front(k)
		return true
	case c.b1.has(k):
		c.border = min(float64(c.n), c.border+max(1, float64(c.b2.len())/float64(c.b1.len())))
		c.replace(false)
		c.b1.remove(k)
		c.t2.push(k)
		return false
	case c.b2.has(k):
		c.border = max(0, c.border-max(1, float64(c.b1.len())/float64(c.b2.len())))
		c.replace(true)
		c.b2.remove(k)
		c.t2.push(k)
		return false
	}
	if c.t1.len()+c.b1.len() == c.n {
		if c.t1.len() < c.n {
			c.b1.pop()
			c.replace(false)
		} else {
			c.t1.pop()
		}
	} else if all := c.t1.len() + c.t2.len() + c.b1.len() + c.b2.len(); all >= c.n {
		if all == 2*c.n {
			c.b2.pop()
		}
		c.replace(false)
	}
	c.t1.push(k)
	return false
}

func (c *arc) replace(fromB2 bool) {
	if c.t1.len()+c.t2.len() < c.n {
		return
	}
	if n := float64(c.t1.len()); n > 0 && (n > c.border || fromB2 && n == c.border || c.t2.len() == 0) {
		c.b1.push(c.t1.pop())
		return
	}
	c.b2.push(c.t2.pop())
}

// lirs keeps the keys with the shortest time between two uses (Jiang and Zhang, 2002): hot ones for good, and a small
// queue of the others; stack holds hot keys, and cold ones that would become hot if they came again.
type lirs struct {
	n, hotMost int
	stack      *queue
	cold       *queue // resident cold keys
	hot        map[int]bool
}

func newLIRS(n int) *lirs {
	return &lirs{n: n, hotMost: n - max(1, n/100), stack: newQueue(), cold: newQueue(), hot: map[int]bool{}}
}

func (c *lirs) touch(k int) bool {
	if c.hot[k] {
		c.stack.front(k)
		c.prune()
		return true
	}
	hit := c.cold.has(k)
	if !hit {
		if len(c.hot) < c.hotMost {
			c.hot[k] = true
			if c.stack.has(k) {
				c.stack.remove(k)
			}
			c.stack.push(k)
			return false
		}
		if len(c.hot)+c.cold.len() >= c.n {
			c.cold.pop()
		}
	}
	if c.stack.has(k) { // its time between uses is shorter than that of the oldest hot key
		c.stack.front(k)
		if hit {
			c.cold.remove(k)
		}
		c.hot[k] = true
		old := c.stack.pop()
		delete(c.hot, old)
		c.cold.push(old)
		c.prune()
		return hit
	}
	c.stack.push(k)
	if hit {
		c.cold.front(k)
	} else {
		c.cold.push(k)
	}
	return hit
}

// prune keeps a hot key at the stack's end.
func (c *lirs) prune() {
	for c.stack.len() > 0 && !c.hot[c.stack.last()] {
		c.stack.pop()
	}
}

// s3fifo has a small queue that newcomers must survive, a main queue, and remembers who left the small one (Yang et al.,
// 2023).
type s3fifo struct {
	n, smallMost       int
	small, main, ghost *queue
	uses               map[int]int
}

func newS3FIFO(n int) *s3fifo {
	return &s3fifo{n: n, smallMost: max(1, n/10), small: newQueue(), main: newQueue(), ghost: newQueue(), uses: map[int]int{}}
}

func (c *s3fifo) touch(k int) bool {
	if c.small.has(k) || c.main.has(k) {
		c.uses[k] = min(c.uses[k]+1, 3)
		return true
	}
	for c.small.len()+c.main.len() >= c.n {
		if c.small.len() >= c.smallMost || c.main.len() == 0 {
			c.evictSmall()
		} else {
			c.evictMain()
		}
	}
	c.uses[k] = 0
	if c.ghost.has(k) {
		c.ghost.remove(k)
		c.main.push(k)
	} else {
		c.small.push(k)
	}
	return false
}

func (c *s3fifo) evictSmall() {
	for c.small.len() > 0 {
		k := c.small.pop()
		if c.uses[k] <= 1 {
			c.ghost.push(k)
			if c.ghost.len() > c.n {
				c.ghost.pop()
			}
			return
		}
		c.uses[k] = 0
		c.main.push(k)
	}
}

func (c *s3fifo) evictMain() {
	for {
		k := c.main.pop()
		if c.uses[k] == 0 {
			return
		}
		c.uses[k]--
		c.main.push(k)
	}
}

// tinyLFU has a window of newcomers before a segmented LRU list; a newcomer gets in where its count, halved from time to
// time, is above that of the one that would leave (Einziger, Friedman and Manes, 2017). Counts are exact here.
type tinyLFU struct {
	window, probation, protected   *queue
	windowMost, mainMost, safeMost int
	counts                         map[int]int
	sample, sampleMost             int
}

func newTinyLFU(n int) *tinyLFU {
	w := max(1, n/100)
	return &tinyLFU{window: newQueue(), probation: newQueue(), protected: newQueue(), windowMost: w, mainMost: n - w, safeMost: (n - w) * 8 / 10,
		counts: map[int]int{}, sampleMost: 10 * n}
}

func (c *tinyLFU) touch(k int) bool {
	c.counts[k] = min(c.counts[k]+1, 15)
	if c.sample++; c.sample >= c.sampleMost {
		c.sample /= 2
		for k := range c.counts {
			c.counts[k] /= 2
		}
	}
	switch {
	case c.window.has(k):
		c.window.front(k)
		return true
	case c.protected.has(k):
		c.protected.front(k)
		return true
	case c.probation.has(k):
		c.probation.remove(k)
		c.protected.push(k)
		if c.protected.len() > c.safeMost {
			c.probation.push(c.protected.pop())
		}
		return true
	}
	c.window.push(k)
	if c.window.len() <= c.windowMost {
		return false
	}
	in := c.window.pop()
	if c.probation.len()+c.protected.len() < c.mainMost {
		c.probation.push(in)
		return false
	}
	from := c.probation
	if from.len() == 0 {
		from = c.protected
	}
	if c.counts[in] > c.counts[from.last()] {
		from.pop()
		c.probation.push(in)
	}
	return false
}
