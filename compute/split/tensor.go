package split

import (
	"fmt"
	"math"

	"terrace/compute"
)

// tensor implements compute.Tensor and compute.View: a twin on each side, made when it is first used there.
type tensor struct {
	b                *Backend
	room, rows, cols int
	gen              int // of the device that on[dev] is of
	on               [2]compute.Tensor
	ok               [2]bool // the side has what was written last
	coming           bool    // the host has it after the next Submit

	// Of a view: whose rows it has, from first on, and whether the twins are set to them.
	of    *tensor
	first int
	set   [2]bool
}

// NewTensor implements compute.Backend.
func (b *Backend) NewTensor(rows, cols int) compute.Tensor {
	if rows < 1 || cols < 1 || rows > math.MaxInt/4/cols {
		panic(fmt.Sprintf("split: a tensor of %d rows of %d elements", rows, cols))
	}
	return &tensor{b: b, room: rows, cols: cols}
}

// NewView implements compute.Backend.
func (b *Backend) NewView() compute.View { return &tensor{b: b} }

func (t *tensor) Rows() int { return t.rows }
func (t *tensor) Cols() int { return t.cols }

// SetRows implements compute.Tensor. The twins follow when they are used.
func (t *tensor) SetRows(n int) {
	if t.room == 0 {
		panic("split: SetRows on a view")
	}
	if n < 0 || n > t.room {
		panic(fmt.Sprintf("split: %d rows in a tensor with room for %d", n, t.room))
	}
	t.rows = n
}

// Set implements compute.View.
func (t *tensor) Set(x compute.Tensor, first, rows int) {
	of := own(x)
	if t.room > 0 || of.of != nil {
		panic("split: a view of a view, or a tensor of its own made one")
	}
	if first < 0 || rows < 0 || first+rows > of.rows {
		panic(fmt.Sprintf("split: a view of rows %d to %d of %d", first, first+rows, of.rows))
	}
	t.of, t.first, t.rows, t.cols, t.set = of, first, rows, of.cols, [2]bool{}
}

func own(t compute.Tensor) *tensor {
	x, ok := t.(*tensor)
	if !ok {
		panic(fmt.Sprintf("split: a tensor of another backend (%T)", t))
	}
	return x
}

// root is the tensor whose rows these are.
func (t *tensor) root() *tensor {
	if t.of != nil {
		return t.of
	}
	return t
}

// at is the twin on a side, with the rows that the tensor has.
func (t *tensor) at(s int) compute.Tensor {
	if s == dev && t.gen != t.b.gen {
		t.on[dev], t.ok[dev], t.set[dev], t.gen = nil, false, false, t.b.gen
	}
	if t.of != nil {
		x := t.of.at(s)
		if t.on[s] == nil {
			t.on[s] = t.b.side[s].NewView()
		}
		if !t.set[s] {
			t.on[s].(compute.View).Set(x, t.first, t.rows)
			t.set[s] = true
		}
		return t.on[s]
	}
	if t.on[s] == nil {
		t.on[s] = t.b.side[s].NewTensor(t.room, t.cols)
	}
	if t.on[s].Rows() != t.rows {
		t.on[s].SetRows(t.rows)
	}
	return t.on[s]
}

// valid reports whether a side has what was written last.
func (t *tensor) valid(s int) bool {
	r := t.root()
	return r.ok[s] && (s == host || r.gen == t.b.gen)
}

// reads is the twin on a side, with what was written last.
func (t *tensor) reads(s int) compute.Tensor {
	if !t.valid(s) && t.valid(1-s) {
		t.b.enc.move(t.root(), s)
	}
	return t.at(s)
}

// writes is the twin on a side that is about to be written, all of its rows.
func (t *tensor) writes(s int) compute.Tensor {
	if t.of != nil && t.rows < t.of.rows {
		return t.changes(s) // the others stay
	}
	x := t.at(s)
	t.wrote(s)
	return x
}

// changes is the twin on a side that is about to be written in part.
func (t *tensor) changes(s int) compute.Tensor {
	x := t.reads(s)
	t.wrote(s)
	return x
}

// wrote says that a side has what was written last, and the other not.
func (t *tensor) wrote(s int) {
	r := t.root()
	if s == dev && r.gen != t.b.gen {
		r.at(dev)
	}
	r.ok[s], r.ok[1-s], r.coming = true, false, false
}
