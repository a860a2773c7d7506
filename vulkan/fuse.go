//go:build cgo && !novulkan

package vulkan

// A token's operations wait for one another, and each wait costs about as much as what a small operation does. So some of them are
// held back when they are asked for, until the next one shows whether both can be one dispatch. Whatever else is asked for records
// first what waits (drain), so that the order is the one asked for.

// fuseRows bounds the rows of what is held back: with more of them work is more than waiting.
const fuseRows = 8

// summed is what is added to x: y, or so many rows of y for each of x, by weights that lie on the device.
type summed struct {
	x, y    *tensor
	weights *tensor // nil: y as it is
	k       int
}

// waiting is what was asked for and is not recorded yet: a sum, which waits for a norm of it. It is older than the queue of experts.
type waiting struct{ sum summed }

// uses tells whether something that waits is about t.
func (q *waiting) uses(t *tensor) bool {
	return t == q.sum.x || t == q.sum.y
}

// run records what waits.
func (q *waiting) run(e *encoder) {
	if s := q.sum; s.x != nil {
		q.sum = summed{}
		e.sum(&s)
	}
}

// fuses tells whether an operation on x may be held back.
func (e *encoder) fuses(x *tensor) bool {
	return x.rows > 0 && x.rows <= fuseRows && e.err == nil && !e.b.opts.apart
}

// sum records s.
func (e *encoder) sum(s *summed) {
	e.in(&s.y.track)
	if s.weights == nil {
		e.change(s.x, each{op: ewAdd, x: s.y.addr()})
		return
	}
	e.in(&s.weights.track)
	e.weigh(s.x, s.y, 0, s.weights.addr(), s.k)
}

// later holds s back, or records it.
func (e *encoder) later(s summed) {
	if e.fuses(s.x) && s.x.root() != s.y.root() {
		e.waiting.sum = s
		return
	}
	e.sum(&s)
}

// before is the sum that a norm of x into dst makes first, if one waits for that; everything else that waits is recorded.
func (e *encoder) before(dst, x *tensor) *summed {
	s := e.waiting.sum
	// A thread writes the elements of x before those of dst: they are the same or lie apart.
	if s.x != x || s.x != dst && s.x.root() == dst.root() || s.y.root() == dst.root() {
		e.drain()
		return nil
	}
	e.waiting.sum = summed{}
	return &s
}
