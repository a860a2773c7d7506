package split

import (
	"fmt"

	"terrace/compute"
)

// parts is where the layers of a sequence's state lie: the first n on the host, the others on the device.
type parts struct {
	b *Backend
	n int
}

// at is the side of a layer, and its number there.
func (p *parts) at(layer int) (side, local int) {
	if layer < p.n {
		return host, layer
	}
	return dev, layer - p.n
}

// before is the number of layers on the host, of so many.
func (b *Backend) before(which, layers int) int {
	switch {
	case b.side[dev] == nil:
		return layers
	case b.first <= 0 || b.opt.States == nil:
		return 0
	}
	k, r, i := b.opt.States(b.first)
	return min([3]int{k, r, i}[which], layers)
}

// kv implements compute.KV.
type kv struct {
	parts
	shape compute.KVShape
	on    [2]compute.KV
}

// NewKV implements compute.Backend.
func (b *Backend) NewKV(s compute.KVShape) (compute.KV, error) {
	c := &kv{parts: parts{b: b}, shape: s}
	if err := c.make(); err != nil {
		return nil, err
	}
	b.states[c] = struct{}{}
	return c, nil
}

func (c *kv) make() error {
	c.on = [2]compute.KV{}
	c.n = c.b.before(0, len(c.shape.Layers))
	for s, layers := range [2][]compute.KVLayer{c.shape.Layers[:c.n], c.shape.Layers[c.n:]} {
		if len(layers) == 0 && len(c.shape.Layers) > 0 {
			continue
		}
		if s == dev && c.b.side[dev] == nil {
			continue
		}
		shape := c.shape
		shape.Layers = layers
		x, err := c.b.side[s].NewKV(shape)
		if err != nil {
			c.free()
			return err
		}
		c.on[s] = x
	}
	return nil
}

func (c *kv) free() {
	for s, x := range c.on {
		if x != nil && (s == host || c.b.side[dev] != nil) {
			x.Free()
		}
		c.on[s] = nil
	}
}

// place implements state.
func (c *kv) place() error {
	old := *c
	if err := c.make(); err != nil {
		*c = old
		return err
	}
	var buf []byte
	for l := range c.shape.Layers {
		from, at := old.at(l)
		to, local := c.at(l)
		if from == dev { // the device is gone, or empty
			continue
		}
		for h := range c.shape.Layers[l].Heads {
			for _, values := range [...]bool{false, true} {
				if values && c.shape.Layers[l].Latent {
					continue
				}
				r := compute.KVRange{Layer: l, Head: h, Values: values, Cells: c.shape.Cells(l)}
				if n := c.shape.RangeBytes(r); n > len(buf) {
					buf = make([]byte, n)
				}
				b := buf[:c.shape.RangeBytes(r)]
				r.Layer = at
				old.on[from].CopyOut(b, r)
				r.Layer = local
				c.on[to].CopyIn(r, b)
			}
		}
	}
	old.on[dev] = nil // its memory went with the device
	old.free()
	return nil
}

func ownKV(c compute.KV) *kv {
	x, ok := c.(*kv)
	if !ok {
		panic(fmt.Sprintf("split: a KV cache of another backend (%T)", c))
	}
	return x
}

// Shape implements compute.KV.
func (c *kv) Shape() *compute.KVShape { return &c.shape }

// CopyPrefix implements compute.KV.
func (c *kv) CopyPrefix(from compute.KV, n int) {
	o := ownKV(from)
	for s, x := range c.on {
		if x != nil {
			x.CopyPrefix(o.on[s], n)
		}
	}
}

// Trim implements compute.KV.
func (c *kv) Trim(n int) bool {
	ok := true
	for _, x := range c.on {
		ok = (x == nil || x.Trim(n)) && ok
	}
	return ok
}

// local is the part of a range's layer, and the range there.
func (c *kv) local(r compute.KVRange) (compute.KV, compute.KVRange) {
	c.shape.RangeBytes(r) // panics where there is no such range
	s, l := c.at(r.Layer)
	r.Layer = l
	return c.on[s], r
}

// CopyOut implements compute.KV.
func (c *kv) CopyOut(dst []byte, r compute.KVRange) {
	x, r := c.local(r)
	x.CopyOut(dst, r)
}

// CopyIn implements compute.KV.
func (c *kv) CopyIn(r compute.KVRange, src []byte) {
	x, r := c.local(r)
	x.CopyIn(r, src)
}

// Free implements compute.KV.
func (c *kv) Free() {
	c.free()
	delete(c.b.states, c)
}

// recurrent implements compute.Recurrent.
type recurrent struct {
	parts
	shape    compute.RecurrentShape
	slots    int
	split    int // bytes of the host's part
	on       [2]compute.Recurrent
	captures [2][]compute.Capture
}

// NewRecurrent implements compute.Backend.
func (b *Backend) NewRecurrent(s compute.RecurrentShape, slots int) (compute.Recurrent, error) {
	r := &recurrent{parts: parts{b: b}, shape: s, slots: slots}
	if err := r.make(); err != nil {
		return nil, err
	}
	b.states[r] = struct{}{}
	return r, nil
}

func (r *recurrent) make() error {
	r.on = [2]compute.Recurrent{}
	r.n = r.b.before(1, len(r.shape.Layers))
	first := compute.RecurrentShape{Layers: r.shape.Layers[:r.n]}
	r.split = int(first.Bytes())
	for s, layers := range [2][]compute.RecurrentLayer{first.Layers, r.shape.Layers[r.n:]} {
		if len(layers) == 0 && len(r.shape.Layers) > 0 {
			continue
		}
		if s == dev && r.b.side[dev] == nil {
			continue
		}
		x, err := r.b.side[s].NewRecurrent(compute.RecurrentShape{Layers: layers}, r.slots)
		if err != nil {
			r.free()
			return err
		}
		r.on[s] = x
	}
	return nil
}

func (r *recurrent) free() {
	for s, x := range r.on {
		if x != nil && (s == host || r.b.side[dev] != nil) {
			x.Free()
		}
		r.on[s] = nil
	}
}

// place implements state.
func (r *recurrent) place() error {
	old := *r
	if err := r.make(); err != nil {
		*r = old
		return err
	}
	if old.on[dev] == nil && old.on[host] != nil { // all of it is there
		now, saved := make([]byte, r.shape.Bytes()), make([]byte, r.shape.Bytes())
		old.on[host].CopyOut(now)
		for slot := range r.slots {
			old.on[host].Restore(slot)
			old.on[host].CopyOut(saved)
			r.CopyIn(saved)
			r.Save(slot)
		}
		r.CopyIn(now)
	}
	old.on[dev] = nil
	old.free()
	return nil
}

func ownRecurrent(r compute.Recurrent) *recurrent {
	x, ok := r.(*recurrent)
	if !ok {
		panic(fmt.Sprintf("split: a recurrent state of another backend (%T)", r))
	}
	return x
}

// each calls f with the parts that there are.
func (r *recurrent) each(f func(s int, x compute.Recurrent)) {
	for s, x := range r.on {
		if x != nil {
			f(s, x)
		}
	}
}

// Shape implements compute.Recurrent.
func (r *recurrent) Shape() *compute.RecurrentShape { return &r.shape }

// Commit implements compute.Recurrent.
func (r *recurrent) Commit() {
	for _, x := range r.on {
		if x != nil {
			x.Commit()
		}
	}
}

// Clear implements compute.Recurrent.
func (r *recurrent) Clear() { r.each(func(_ int, x compute.Recurrent) { x.Clear() }) }

// Save implements compute.Recurrent.
func (r *recurrent) Save(slot int) { r.each(func(_ int, x compute.Recurrent) { x.Save(slot) }) }

// Restore implements compute.Recurrent.
func (r *recurrent) Restore(slot int) { r.each(func(_ int, x compute.Recurrent) { x.Restore(slot) }) }

// CopyFrom implements compute.Recurrent.
func (r *recurrent) CopyFrom(from compute.Recurrent, slot int) {
	o := ownRecurrent(from)
	r.each(func(s int, x compute.Recurrent) { x.CopyFrom(o.on[s], slot) })
}

// cut is the part of b that belongs to a side.
func (r *recurrent) cut(b []byte, s int) []byte {
	if int64(len(b)) != r.shape.Bytes() {
		panic(fmt.Sprintf("split: %d bytes for a recurrent state of %d", len(b), r.shape.Bytes()))
	}
	if s == host {
		return b[:r.split]
	}
	return b[r.split:]
}

// CopyOut implements compute.Recurrent.
func (r *recurrent) CopyOut(dst []byte) {
	r.each(func(s int, x compute.Recurrent) { x.CopyOut(r.cut(dst, s)) })
}

// CopyIn implements compute.Recurrent.
func (r *recurrent) CopyIn(src []byte) {
	r.each(func(s int, x compute.Recurrent) { x.CopyIn(r.cut(src, s)) })
}

// Capture implements compute.Recurrent.
func (r *recurrent) Capture(at []compute.Capture) {
	r.each(func(s int, x compute.Recurrent) {
		r.captures[s] = r.captures[s][:0]
		for _, c := range at {
			r.captures[s] = append(r.captures[s], compute.Capture{Rows: c.Rows, Dst: r.cut(c.Dst, s)})
		}
		if at == nil {
			x.Capture(nil)
			return
		}
		x.Capture(r.captures[s])
	})
}

// Free implements compute.Recurrent.
func (r *recurrent) Free() {
	r.free()
	delete(r.b.states, r)
}

// index implements compute.Index.
type index struct {
	parts
	shape compute.IndexShape
	on    [2]compute.Index
}

// NewIndex implements compute.Backend.
func (b *Backend) NewIndex(s compute.IndexShape) (compute.Index, error) {
	x := &index{parts: parts{b: b}, shape: s}
	if err := x.make(); err != nil {
		return nil, err
	}
	b.states[x] = struct{}{}
	return x, nil
}

func (x *index) make() error {
	x.on = [2]compute.Index{}
	x.n = x.b.before(2, x.shape.Layers)
	for s, layers := range [2]int{x.n, x.shape.Layers - x.n} {
		if layers == 0 && x.shape.Layers > 0 || s == dev && x.b.side[dev] == nil {
			continue
		}
		shape := x.shape
		shape.Layers = layers
		y, err := x.b.side[s].NewIndex(shape)
		if err != nil {
			x.free()
			return err
		}
		x.on[s] = y
	}
	return nil
}

func (x *index) free() {
	for s, y := range x.on {
		if y != nil && (s == host || x.b.side[dev] != nil) {
			y.Free()
		}
		x.on[s] = nil
	}
}

// place implements state.
func (x *index) place() error {
	old := *x
	if err := x.make(); err != nil {
		*x = old
		return err
	}
	blocks, others := x.shape.Before(x.shape.Blocks() * x.shape.Block)
	for l := range x.shape.Layers {
		from, at := old.at(l)
		to, local := x.at(l)
		if from == dev {
			continue
		}
		for _, r := range [...]compute.IndexRange{{Blocks: true, N: blocks}, {N: others}} {
			r.Layer = l
			b := make([]byte, x.shape.RangeBytes(r))
			r.Layer = at
			old.on[from].CopyOut(b, r)
			r.Layer = local
			x.on[to].CopyIn(r, b)
		}
	}
	old.on[dev] = nil
	old.free()
	return nil
}

func ownIndex(i compute.Index) *index {
	x, ok := i.(*index)
	if !ok {
		panic(fmt.Sprintf("split: a block index of another backend (%T)", i))
	}
	return x
}

// Shape implements compute.Index.
func (x *index) Shape() *compute.IndexShape { return &x.shape }

// CopyPrefix implements compute.Index.
func (x *index) CopyPrefix(from compute.Index, n int) {
	o := ownIndex(from)
	for s, y := range x.on {
		if y != nil {
			y.CopyPrefix(o.on[s], n)
		}
	}
}

// Trim implements compute.Index.
func (x *index) Trim(n int) bool {
	ok := true
	for _, y := range x.on {
		ok = (y == nil || y.Trim(n)) && ok
	}
	return ok
}

// local is the part of a range's layer, and the range there.
func (x *index) local(r compute.IndexRange) (compute.Index, compute.IndexRange) {
	x.shape.RangeBytes(r) // panics where there is no such range
	s, l := x.at(r.Layer)
	r.Layer = l
	return x.on[s], r
}

// CopyOut implements compute.Index.
func (x *index) CopyOut(dst []byte, r compute.IndexRange) {
	y, r := x.local(r)
	y.CopyOut(dst, r)
}

// CopyIn implements compute.Index.
func (x *index) CopyIn(r compute.IndexRange, src []byte) {
	y, r := x.local(r)
	y.CopyIn(r, src)
}

// Free implements compute.Index.
func (x *index) Free() {
	x.free()
	delete(x.b.states, x)
}
