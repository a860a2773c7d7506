//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"math"
	"runtime"

	"terrace/compute"
)

// recurrent implements compute.Recurrent: copies of one layout, of which now is the state and next what comes after it; the
// others are slots.
type recurrent struct {
	shape     compute.RecurrentShape
	e         *encoder
	copies    []region
	track     []track
	elems     int
	now, next int
	at        []int // where a layer begins: its convolution's inputs, then its heads
	parts     *[]part
	freed     bool
	captures  []compute.Capture
}

// NewRecurrent implements compute.Backend.
func (b *Backend) NewRecurrent(s compute.RecurrentShape, slots int) (compute.Recurrent, error) {
	if len(s.Layers) == 0 || slots < 0 {
		return nil, fmt.Errorf("vulkan: a recurrent state of %d layers with %d slots", len(s.Layers), slots)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("vulkan: %w", err)
	}
	r := &recurrent{shape: s, e: &b.enc, at: make([]int, len(s.Layers)), next: 1, parts: new([]part)}
	copies := int(s.Copies(slots))
	for i, l := range s.Layers {
		size := float64(l.Channels)*float64(l.Back) + float64(l.Heads)*float64(l.KeyDim)*float64(l.ValDim)
		if (float64(r.elems)+size)*4*float64(copies) > math.MaxInt/2 {
			return nil, fmt.Errorf("vulkan: a recurrent state of %.3g elements and more, more than can be addressed", size)
		}
		r.at[i] = r.elems
		r.elems += int(l.Elems())
	}
	for range copies {
		m, err := b.take(4 * uint64(r.elems))
		if err != nil {
			r.Free()
			return nil, fmt.Errorf("vulkan: a recurrent state: %w", err)
		}
		r.copies = append(r.copies, m)
		*r.parts = append(*r.parts, part{r: m})
	}
	r.track = make([]track, copies)
	runtime.AddCleanup(r, b.enc.bin.drop, r.parts)
	for _, m := range r.copies {
		b.side.clear(m, r.bytes())
	}
	return r, nil
}

func (r *recurrent) Shape() *compute.RecurrentShape { return &r.shape }
func (r *recurrent) Commit()                        { r.now, r.next, r.captures = r.next, r.now, nil }

// Capture implements compute.Recurrent.
func (r *recurrent) Capture(at []compute.Capture) {
	for _, c := range at {
		if c.Rows < 1 || uint64(len(c.Dst)) != r.bytes() {
			panic(fmt.Sprintf("vulkan: a recurrent state of %d bytes captured after %d rows in %d", r.bytes(), c.Rows, len(c.Dst)))
		}
	}
	r.captures = at
}

func (r *recurrent) bytes() uint64 { return 4 * uint64(r.elems) }

// Clear implements compute.Recurrent.
func (r *recurrent) Clear() { r.e.b.side.clear(r.copies[r.now], r.bytes()) }

func (r *recurrent) Save(slot int)    { r.copy(r.copies[r.slot(slot)], r.copies[r.now]) }
func (r *recurrent) Restore(slot int) { r.copy(r.copies[r.now], r.copies[r.slot(slot)]) }

func (r *recurrent) copy(to, from region) {
	r.e.b.side.do(func(c *commands) { c.copy(to, 0, from, 0, r.bytes()) })
}

// CopyFrom implements compute.Recurrent.
func (r *recurrent) CopyFrom(from compute.Recurrent, slot int) {
	o, ok := from.(*recurrent)
	if !ok || o.elems != r.elems {
		panic(fmt.Sprintf("vulkan: a recurrent state (%T) of another shape", from))
	}
	x := o.copies[o.now]
	if slot >= 0 {
		x = o.copies[o.slot(slot)]
	}
	r.copy(r.copies[r.now], x)
}

// CopyOut implements compute.Recurrent.
func (r *recurrent) CopyOut(dst []byte) {
	r.sized(len(dst))
	r.e.b.side.read(dst, r.copies[r.now], 0)
}

// CopyIn implements compute.Recurrent.
func (r *recurrent) CopyIn(src []byte) {
	r.sized(len(src))
	r.e.b.side.write(r.copies[r.now], 0, src)
}

func (r *recurrent) sized(n int) {
	if uint64(n) != r.bytes() {
		panic(fmt.Sprintf("vulkan: %d bytes for a recurrent state of %d", n, r.bytes()))
	}
}

func (r *recurrent) slot(i int) int {
	if i < 0 || i >= len(r.copies)-2 {
		panic(fmt.Sprintf("vulkan: slot %d of a recurrent state with %d", i, len(r.copies)-2))
	}
	return 2 + i
}

// Free gives the memory back; the state must not be used afterwards. A second call does nothing.
func (r *recurrent) Free() {
	if !r.freed {
		r.freed = true
		r.e.bin.drop(r.parts)
		*r.parts = nil
	}
}

// history is where the inputs of a layer's convolution lie, and where those after this step go; heads is the same for the
// matrices of its heads.
func (r *recurrent) history(layer int) (now, next uint64) {
	at := 4 * uint64(r.at[layer])
	return r.copies[r.now].addr() + at, r.copies[r.next].addr() + at
}

func (r *recurrent) heads(layer int) (now, next uint64) {
	l := &r.shape.Layers[layer]
	at := 4 * uint64(r.at[layer]+l.Channels*l.Back)
	return r.copies[r.now].addr() + at, r.copies[r.next].addr() + at
}

// step says that the state is read and its successor written. Layers, and the parts of one, are apart.
func (r *recurrent) step(e *encoder) { e.in(&r.track[r.now]) }

// stepped notes what step began.
func (r *recurrent) stepped(e *encoder) { r.track[r.next].wrote = e.epoch }

func ownRecurrent(op string, r compute.Recurrent, layer int) (*recurrent, *compute.RecurrentLayer) {
	x, ok := r.(*recurrent)
	if !ok {
		panic(fmt.Sprintf("vulkan: a recurrent state of another backend (%T)", r))
	}
	if layer < 0 || layer >= len(x.shape.Layers) {
		panic(fmt.Sprintf("vulkan: %s in layer %d of a recurrent state of %d", op, layer, len(x.shape.Layers)))
	}
	return x, &x.shape.Layers[layer]
}

// ShortConv implements compute.Encoder.
func (e *encoder) ShortConv(dst, x compute.Tensor, r compute.Recurrent, s compute.ConvSpec) {
	e.drain()
	d, in, w := own(dst), own(x), ownWeight(s.Weight)
	sameShape("ShortConv", d, in)
	st, l := ownRecurrent("ShortConv", r, s.Layer)
	dilation := max(s.Dilation, 1)
	if w.m.Out != in.cols || l.Channels != in.cols || l.Back != (w.m.In-1)*dilation || d == in {
		panic(fmt.Sprintf("vulkan: ShortConv of %d taps over %d channels at a distance of %d in rows of %d, with a state of %d inputs of %d",
			w.m.In, w.m.Out, s.Dilation, in.cols, l.Back, l.Channels))
	}
	taps, err := e.b.all(w) // before anything is said about the command
	if err != nil {
		e.fail(err)
		return
	}
	bias, silu := uint64(0), uint32(0)
	if s.SiLU {
		silu = 1
	}
	now, next := st.history(s.Layer)
	run := func(rows int, next uint64) {
		e.in(&in.track, &w.track)
		st.step(e)
		if s.Bias != nil {
			bias = e.vector(s.Bias, in.cols)
		}
		e.out(&d.track)
		e.begin(shConv, [4]uint32{})
		e.u64(d.addr(), in.addr(), taps, bias, now, next)
		e.u32(uint32(in.cols), uint32(w.m.In), uint32(dilation), uint32(rows), uint32(l.Back), silu)
		y, z := across(rows + l.Back)
		e.dispatch(groups(in.cols, 64), y, z)
	}
	d.touch()
	n := l.Channels * l.Back
	for _, c := range st.captures {
		if c.Rows <= in.rows && n > 0 { // the same results again, and the inputs that are kept after so many
			at := e.temp("captured inputs", 1, n)
			e.out(&at.track)
			run(c.Rows, at.addr())
			e.in(&at.track)
			e.fetchBytes(c.Dst[4*st.at[s.Layer]:][:4*n], at.region())
		}
	}
	run(in.rows, next)
	st.stepped(e)
}

// gates records the factors of rows by heads, decays and gains, and answers where they lie.
func (e *encoder) gates(scan, joint int, alpha, beta *tensor, a, dt compute.Weight, rows, heads int) (decay, gain *tensor) {
	decay, gain = e.temp("decay", rows, heads), e.temp("gain", rows, heads)
	from := uint64(0)
	if alpha != nil {
		from = alpha.addr()
		e.in(&alpha.track)
	}
	both := uint64(0)
	if beta != nil {
		both = beta.addr()
		e.in(&beta.track)
	}
	by, bias := e.vector(a, heads), e.vector(dt, heads)
	e.out(&decay.track, &gain.track)
	e.begin(shGates, [4]uint32{uint32(scan)})
	e.u64(decay.addr(), gain.addr(), from, both, by, bias)
	e.u32(uint32(heads), uint32(rows), uint32(joint))
	e.dispatch(groups(rows*heads, 64), 1, 1)
	return decay, gain
}

// recur is a recurrence over rows.
type recur struct {
	scan         uint32
	dst          *tensor
	q, k, v      uint64
	decay, gain  *tensor
	now, next    uint64
	skip         uint64
	skipped      compute.Weight // of Mamba-2
	layer        int
	rows         int
	l            *compute.RecurrentLayer
	stride, keys int
	grouped      bool
	scale        float32
	st           *recurrent
	sources      []*track
}

func (e *encoder) recur(r recur) {
	r.dst.touch()
	heads := region{r.st.copies[r.st.next].b, r.st.copies[r.st.next].at + r.next - r.st.copies[r.st.next].addr(), 0}
	size := 4 * r.l.Heads * r.l.KeyDim * r.l.ValDim
	now := r.now
	for done := 0; ; {
		end := r.rows
		for _, c := range r.st.captures {
			if c.Rows > done && c.Rows < end {
				end = c.Rows
			}
		}
		e.recurRows(&r, now, done, end)
		for _, c := range r.st.captures {
			if c.Rows == end {
				e.in(&r.st.track[r.st.next])
				e.fetchBytes(c.Dst[4*(r.st.at[r.layer]+r.l.Channels*r.l.Back):][:size], heads)
			}
		}
		if now, done = r.next, end; done == r.rows {
			return
		}
	}
}

// recurRows records rows first to end, from the state at now.
func (e *encoder) recurRows(r *recur, now uint64, first, end int) {
	e.in(r.sources...)
	e.in(&r.decay.track, &r.gain.track)
	r.st.step(e)
	if first > 0 {
		e.in(&r.st.track[r.st.next])
	}
	e.out(&r.dst.track)
	if r.skipped != nil {
		r.skip = e.vector(r.skipped, r.l.Heads)
	}
	grouped := uint32(0)
	if r.grouped {
		grouped = 1
	}
	row, factor := 4*uint64(first*r.stride), 4*uint64(first*r.l.Heads)
	e.begin(shRecur, [4]uint32{r.scan})
	e.u64(r.dst.at(first), r.q+row, r.k+row, r.v+row, r.decay.addr()+factor, r.gain.addr()+factor, now, r.next, r.skip)
	e.u32(uint32(end-first), uint32(r.l.Heads), uint32(r.l.KeyDim), uint32(r.l.ValDim), uint32(r.stride), uint32(r.keys), grouped)
	e.f32(r.scale)
	e.dispatch(groups(r.l.ValDim, 64), r.l.Heads, 1)
	r.st.stepped(e)
}

// DeltaNet implements compute.Encoder.
func (e *encoder) DeltaNet(dst, qkv, alpha, beta compute.Tensor, r compute.Recurrent, s compute.DeltaSpec) {
	e.drain()
	d, x, b := own(dst), own(qkv), own(beta)
	st, l := ownRecurrent("DeltaNet", r, s.Layer)
	var a *tensor
	joint, of := 2, 0
	if alpha != nil {
		a, joint = own(alpha), 1
		sameShape("DeltaNet", a, b)
	}
	val, key := l.Heads*l.ValDim, s.KeyHeads*l.KeyDim
	if s.KeyHeads < 1 || l.Heads%s.KeyHeads != 0 || x.cols != 2*key+val || d.cols != val || b.cols != joint*l.Heads || d.rows != x.rows || b.rows != x.rows {
		panic(fmt.Sprintf("vulkan: DeltaNet of %d x %d with %d x %d betas into %d x %d, %d heads of %d by %d, %d of them keys", x.rows, x.cols, b.rows, b.cols,
			d.rows, d.cols, l.Heads, l.KeyDim, l.ValDim, s.KeyHeads))
	}
	if alpha == nil {
		of = l.Heads / s.KeyHeads
	}
	// Queries and keys by their lengths.
	e.norm(normed{dst: x, x: x, dim: l.KeyDim, heads: 2 * s.KeyHeads, step: l.KeyDim, eps: s.Eps, over: 1})
	decay, gain := e.gates(0, of, a, b, s.A, s.Dt, x.rows, l.Heads)
	now, next := st.heads(s.Layer)
	at := x.addr()
	e.recur(recur{dst: d, q: at, k: at + 4*uint64(key), v: at + 8*uint64(key), decay: decay, gain: gain, now: now, next: next, rows: x.rows, l: l, layer: s.Layer,
		stride: x.cols, keys: s.KeyHeads, grouped: s.Grouped, scale: s.Scale, st: st, sources: []*track{&x.track}})
}

// Mamba2 implements compute.Encoder.
func (e *encoder) Mamba2(dst, xbc, dt compute.Tensor, r compute.Recurrent, s compute.MambaSpec) {
	e.drain()
	d, x, p := own(dst), own(xbc), own(dt)
	st, l := ownRecurrent("Mamba2", r, s.Layer)
	in, key := l.Heads*l.ValDim, s.Groups*l.KeyDim
	if s.Groups < 1 || l.Heads%s.Groups != 0 || x.cols != in+2*key || d.cols != in || p.cols != l.Heads || d.rows != x.rows || p.rows != x.rows {
		panic(fmt.Sprintf("vulkan: Mamba2 of %d x %d with %d x %d steps into %d x %d, %d heads of %d by %d in %d groups", x.rows, x.cols, p.rows, p.cols,
			d.rows, d.cols, l.Heads, l.KeyDim, l.ValDim, s.Groups))
	}
	decay, gain := e.gates(1, 0, p, nil, s.A, s.Dt, x.rows, l.Heads)
	now, next := st.heads(s.Layer)
	at := x.addr()
	e.recur(recur{scan: 1, dst: d, v: at, k: at + 4*uint64(in), q: at + 4*uint64(in+key), decay: decay, gain: gain, now: now, next: next, skipped: s.Skip,
		rows: x.rows, l: l, layer: s.Layer, stride: x.cols, keys: s.Groups, grouped: true, st: st, sources: []*track{&x.track}})
}

// SplitGroups implements compute.Encoder.
func (e *encoder) SplitGroups(qkv, z, x compute.Tensor, groups, key, val int) {
	e.drain()
	d, g, t := own(qkv), own(z), own(x)
	if groups < 1 || key < 1 || val < 1 || t.cols != 2*groups*(key+val) || d.cols != groups*(2*key+val) || g.cols != groups*val || d.rows != t.rows || g.rows != t.rows {
		panic(fmt.Sprintf("vulkan: SplitGroups of %d x %d into %d x %d and %d x %d, %d groups of %d and %d", t.rows, t.cols, d.rows, d.cols, g.rows, g.cols, groups, key, val))
	}
	e.in(&t.track)
	e.out(&d.track, &g.track)
	d.touch()
	g.touch()
	e.each(each{op: ewSplitGroups, dst: d.addr(), x: t.addr(), y: g.addr(), n: t.rows * t.cols, cols: t.cols, a: groups, b: key, c: val})
}
