package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"terrace/compute"
	"terrace/kernels"
)

// recurrent implements compute.Recurrent: copies of one layout in a row, of which now is the state and next what comes after
// it; the others are slots. Saved copies change places with nothing: copying a state costs less than a token.
type recurrent struct {
	shape     compute.RecurrentShape
	mem       []byte
	copies    [][]float32 // the slots from 2 on
	now, next int         // 0 and 1 or the other way round
	at        []int       // where a layer begins: its convolution's inputs, then its heads
	captures  []compute.Capture
	free      func([]byte) error
}

// NewRecurrent implements compute.Backend.
func (b *Backend) NewRecurrent(s compute.RecurrentShape, slots int) (compute.Recurrent, error) {
	if len(s.Layers) == 0 || slots < 0 {
		return nil, fmt.Errorf("cpu: a recurrent state of %d layers with %d slots", len(s.Layers), slots)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	r := &recurrent{shape: s, at: make([]int, len(s.Layers)), next: 1, free: b.opts.Free}
	n, copies := 0, int(s.Copies(slots))
	for i, l := range s.Layers {
		size := float64(l.Channels)*float64(l.Back) + float64(l.Heads)*float64(l.KeyDim)*float64(l.ValDim)
		if (float64(n)+size)*4*float64(copies) > math.MaxInt/2 {
			return nil, fmt.Errorf("cpu: a recurrent state of %.3g elements and more, more than can be addressed", size)
		}
		r.at[i] = n
		n += int(l.Elems())
	}
	var err error
	if r.mem, err = b.opts.Alloc(4 * n * copies); err != nil {
		return nil, fmt.Errorf("cpu: a recurrent state (%d bytes): %w", 4*n*copies, err)
	}
	all := unsafe.Slice((*float32)(unsafe.Pointer(&r.mem[0])), n*copies)
	for i := range copies {
		r.copies = append(r.copies, all[i*n:(i+1)*n:(i+1)*n])
	}
	return r, nil
}

func (r *recurrent) Shape() *compute.RecurrentShape { return &r.shape }
func (r *recurrent) Commit()                        { r.now, r.next, r.captures = r.next, r.now, nil }
func (r *recurrent) Clear()                         { clear(r.copies[r.now]) }
func (r *recurrent) Save(slot int)                  { copy(r.slot(slot), r.copies[r.now]) }
func (r *recurrent) Restore(slot int)               { copy(r.copies[r.now], r.slot(slot)) }

// CopyFrom implements compute.Recurrent.
func (r *recurrent) CopyFrom(from compute.Recurrent, slot int) {
	o, ok := from.(*recurrent)
	if !ok || len(o.copies[0]) != len(r.copies[0]) {
		panic(fmt.Sprintf("cpu: a recurrent state (%T) of another shape", from))
	}
	x := o.copies[o.now]
	if slot >= 0 {
		x = o.slot(slot)
	}
	copy(r.copies[r.now], x)
}

// CopyOut implements compute.Recurrent.
func (r *recurrent) CopyOut(dst []byte) { copy(dst, asBytes(r.copies[r.now], len(dst))) }

// CopyIn implements compute.Recurrent.
func (r *recurrent) CopyIn(src []byte) { copy(asBytes(r.copies[r.now], len(src)), src) }

// Capture implements compute.Recurrent.
func (r *recurrent) Capture(at []compute.Capture) {
	for _, c := range at {
		if c.Rows < 1 || len(c.Dst) != 4*len(r.copies[0]) {
			panic(fmt.Sprintf("cpu: a recurrent state of %d bytes captured after %d rows in %d", 4*len(r.copies[0]), c.Rows, len(c.Dst)))
		}
	}
	r.captures = at
}

// asBytes is the memory of x, which must have n bytes.
func asBytes(x []float32, n int) []byte {
	if n != 4*len(x) {
		panic(fmt.Sprintf("cpu: %d bytes for a recurrent state of %d", n, 4*len(x)))
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), n)
}

func (r *recurrent) slot(i int) []float32 {
	if i < 0 || i >= len(r.copies)-2 {
		panic(fmt.Sprintf("cpu: slot %d of a recurrent state with %d", i, len(r.copies)-2))
	}
	return r.copies[2+i]
}

// Free gives the memory back; the state must not be used afterwards. A second call does nothing.
func (r *recurrent) Free() {
	if r.mem == nil {
		return
	}
	if err := r.free(r.mem); err != nil {
		panic(fmt.Sprintf("cpu: the memory of a recurrent state was not taken back: %v", err))
	}
	r.mem, r.copies = nil, nil
}

// history is the inputs of a layer's convolution: those before this step, and room for those after it.
func (r *recurrent) history(layer int) (now, next []float32) {
	l := &r.shape.Layers[layer]
	at := r.at[layer]
	n := at + l.Channels*l.Back
	return r.copies[r.now][at:n:n], r.copies[r.next][at:n:n]
}

// heads is the matrices of a layer's heads before this step, and room for those after it.
func (r *recurrent) heads(layer int) (now, next []float32) {
	l := &r.shape.Layers[layer]
	at := r.at[layer] + l.Channels*l.Back
	n := at + l.Heads*l.KeyDim*l.ValDim
	return r.copies[r.now][at:n:n], r.copies[r.next][at:n:n]
}

func ownRecurrent(op string, r compute.Recurrent, layer int) (*recurrent, *compute.RecurrentLayer) {
	x, ok := r.(*recurrent)
	if !ok {
		panic(fmt.Sprintf("cpu: a recurrent state of another backend (%T)", r))
	}
	if layer < 0 || layer >= len(x.shape.Layers) {
		panic(fmt.Sprintf("cpu: %s in layer %d of a recurrent state of %d", op, layer, len(x.shape.Layers)))
	}
	return x, &x.shape.Layers[layer]
}

// taps is a convolution's weight, Out channels of In taps, transposed. It is made when it is first asked for.
func (w *weight) taps() []float32 {
	if w.turned == nil {
		row, size := make([]float32, w.m.In), w.m.Type.RowBytes(w.m.In)
		w.turned = make([]float32, w.m.In*w.m.Out)
		for c := range w.m.Out {
			kernels.DecodeRow(w.m.Type, row, w.m.Data[c*size:(c+1)*size])
			for j, x := range row {
				w.turned[j*w.m.Out+c] = x
			}
		}
	}
	return w.turned
}

// recurOp names a region of a recurrent layer.
type recurOp uint8

const (
	recurConv  recurOp = iota
	recurGates         // DeltaNet by rows: norms and gates
	recurDelta
	recurSteps // Mamba-2 by rows: gates
	recurScan
)

// recurTask runs one region of a recurrent layer. Which fields are set depends on the operation.
type recurTask struct {
	op    recurOp
	step  int // rows or channels an item
	conv  kernels.Conv
	delta kernels.DeltaNet
	scan  kernels.Scan
	eps   float32

	x, alpha, beta *tensor
	a, dt          []float32
	now, next      []float32 // the state that is read and written
	captures       []compute.Capture
	place          int // of next in a state
	// decay and gain are the factors of rows x heads; row is one row of alphas and betas by head, a worker's own.
	decay, gain []float32
	row         [][]float32
}

func (t *recurTask) do(worker, item int) {
	switch t.op {
	case recurConv:
		c := &t.conv
		lo, hi := item*t.step, min((item+1)*t.step, c.Channels)
		for i := lo; i < len(t.now); i += c.Channels {
			copy(t.next[i:i+hi-lo], t.now[i:i+hi-lo])
		}
		c.Run(lo, hi)
		t.captureConv(lo, hi)
	case recurGates:
		for r := item * t.step; r < min((item+1)*t.step, t.x.rows); r++ {
			t.gates(worker, r)
		}
	case recurDelta:
		n := t.delta.KeyDim * t.delta.ValDim
		copy(t.next[item*n:(item+1)*n], t.now[item*n:(item+1)*n])
		t.pieces(item, n, t.delta.Rows, func(from, to int) {
			d := t.delta
			d.Rows, d.Q, d.K, d.V = to-from, d.Q[from*d.Stride:], d.K[from*d.Stride:], d.V[from*d.Stride:]
			d.Decay, d.Beta = d.Decay[from*d.Heads:to*d.Heads], d.Beta[from*d.Heads:to*d.Heads]
			d.Out = d.Out[from*d.Heads*d.ValDim : to*d.Heads*d.ValDim]
			d.Run(item, item+1)
		})
	case recurSteps:
		n := t.scan.Heads
		for r := item * t.step; r < min((item+1)*t.step, t.x.rows); r++ {
			kernels.ScanGates(t.decay[r*n:(r+1)*n], t.gain[r*n:(r+1)*n], t.x.row(r), t.a, t.dt)
		}
	case recurScan:
		n := t.scan.StateDim * t.scan.HeadDim
		copy(t.next[item*n:(item+1)*n], t.now[item*n:(item+1)*n])
		t.pieces(item, n, t.scan.Rows, func(from, to int) {
			d := t.scan
			d.Rows, d.X, d.B, d.C = to-from, d.X[from*d.Stride:], d.B[from*d.Stride:], d.C[from*d.Stride:]
			d.Decay, d.Dt = d.Decay[from*d.Heads:to*d.Heads], d.Dt[from*d.Heads:to*d.Heads]
			d.Out = d.Out[from*d.Heads*d.HeadDim : to*d.Heads*d.HeadDim]
			d.Run(item, item+1)
		})
	}
}

// pieces runs rows of one head, of n elements of state, and captures the state where it is wanted on the way.
func (t *recurTask) pieces(head, n, rows int, run func(from, to int)) {
	from := 0
	for from < rows {
		to := rows
		for _, c := range t.captures {
			if c.Rows > from {
				to = min(to, c.Rows)
			}
		}
		run(from, to)
		for _, c := range t.captures {
			if c.Rows == to {
				x := t.next[head*n : (head+1)*n]
				copy(c.Dst[4*(t.place+head*n):], asBytes(x, 4*n))
			}
		}
		from = to
	}
}

// captureConv copies what the convolution would look back at after some of the rows, channels lo to hi of it: inputs of this
// step, or of those before it.
func (t *recurTask) captureConv(lo, hi int) {
	v := &t.conv
	back := len(t.now) / v.Channels
	for _, c := range t.captures {
		if c.Rows > v.Rows {
			continue
		}
		for j := range back {
			at := c.Rows - back + j
			x := v.X
			if i := at * v.Stride; at >= 0 {
				x = x[i+lo : i+hi]
			} else {
				i = (back + at) * v.Channels
				x = t.now[i+lo : i+hi]
			}
			copy(c.Dst[4*(t.place+j*v.Channels+lo):], asBytes(x, 4*(hi-lo)))
		}
	}
}

// gates divides the queries and keys of row r by their lengths and computes its decays and betas.
func (t *recurTask) gates(worker, r int) {
	d := &t.delta
	q := t.x.row(r)[:2*d.KeyHeads*d.KeyDim]
	for i := 0; i < len(q); i += d.KeyDim {
		kernels.L2Norm(q[i:i+d.KeyDim], t.eps)
	}
	var alpha, beta []float32
	if t.alpha != nil {
		alpha, beta = t.alpha.row(r), t.beta.row(r)
	} else {
		if len(t.row[worker]) < 2*d.Heads {
			t.row[worker] = make([]float32, 2*d.Heads)
		}
		alpha, beta = t.row[worker][:d.Heads], t.row[worker][d.Heads:2*d.Heads]
		both, of := t.beta.row(r), d.Heads/d.KeyHeads
		for g := range d.KeyHeads {
			copy(beta[g*of:(g+1)*of], both[2*g*of:])
			copy(alpha[g*of:(g+1)*of], both[(2*g+1)*of:])
		}
	}
	at := r * d.Heads
	kernels.DeltaGates(t.decay[at:at+d.Heads], t.gain[at:at+d.Heads], alpha, beta, t.a, t.dt)
}

// factors makes room for the factors of n rows and heads.
func (t *recurTask) factors(n int) {
	if cap(t.decay) < n {
		t.decay, t.gain = make([]float32, n), make([]float32, n)
	}
	t.decay, t.gain = t.decay[:n], t.gain[:n]
}

// release lets go of what was borrowed.
func (t *recurTask) release() {
	*t = recurTask{decay: t.decay, gain: t.gain, row: t.row}
}

// ShortConv implements compute.Encoder.
func (e *encoder) ShortConv(dst, x compute.Tensor, r compute.Recurrent, s compute.ConvSpec) {
	e.drain()
	d, in, w := own(dst), own(x), ownWeight(s.Weight)
	sameShape("ShortConv", d, in)
	st, l := ownRecurrent("ShortConv", r, s.Layer)
	if w.m.Out != in.cols || l.Channels != in.cols || l.Back != (w.m.In-1)*max(s.Dilation, 1) || d == in {
		panic(fmt.Sprintf("cpu: ShortConv of %d taps over %d channels at a distance of %d in rows of %d, with a state of %d inputs of %d",
			w.m.In, w.m.Out, s.Dilation, in.cols, l.Back, l.Channels))
	}
	t := &e.recur
	t.op, t.captures, t.place = recurConv, st.captures, st.at[s.Layer]
	t.now, t.next = st.history(s.Layer)
	t.conv = kernels.Conv{Channels: in.cols, Taps: w.m.In, Dilation: s.Dilation, Rows: in.rows, X: in.all(), Out: d.all(), Stride: in.cols,
		Weight: w.taps(), Linear: !s.SiLU, State: t.next}
	if s.Bias != nil {
		t.conv.Bias = vector(s.Bias, in.cols)
	}
	d.touch()
	t.step = in.cols
	if work := in.rows * in.cols * w.m.In; e.pool.threads > 1 && work >= smallRegion {
		t.step = max(64, cuts(in.cols, 4*e.pool.threads*16)*16) // whole vectors
	}
	e.pool.run(t, cuts(in.cols, t.step))
	t.release()
}

// DeltaNet implements compute.Encoder.
func (e *encoder) DeltaNet(dst, qkv, alpha, beta compute.Tensor, r compute.Recurrent, s compute.DeltaSpec) {
	e.drain()
	d, x, b := own(dst), own(qkv), own(beta)
	st, l := ownRecurrent("DeltaNet", r, s.Layer)
	t := &e.recur
	t.x, t.beta, t.eps = x, b, s.Eps
	joint := 2
	if alpha != nil {
		t.alpha, joint = own(alpha), 1
		sameShape("DeltaNet", t.alpha, b)
	}
	val, key := l.Heads*l.ValDim, s.KeyHeads*l.KeyDim
	if s.KeyHeads < 1 || l.Heads%s.KeyHeads != 0 || x.cols != 2*key+val || d.cols != val || b.cols != joint*l.Heads || d.rows != x.rows || b.rows != x.rows {
		panic(fmt.Sprintf("cpu: DeltaNet of %d x %d with %d x %d betas into %d x %d, %d heads of %d by %d, %d of them keys", x.rows, x.cols, b.rows, b.cols,
			d.rows, d.cols, l.Heads, l.KeyDim, l.ValDim, s.KeyHeads))
	}
	t.a, t.dt = vector(s.A, l.Heads), vector(s.Dt, l.Heads)
	t.factors(x.rows * l.Heads)
	t.now, t.next = st.heads(s.Layer)
	t.captures, t.place = st.captures, st.at[s.Layer]+l.Channels*l.Back
	all := x.all()
	t.delta = kernels.DeltaNet{Rows: x.rows, Heads: l.Heads, KeyHeads: s.KeyHeads, KeyDim: l.KeyDim, ValDim: l.ValDim, Grouped: s.Grouped,
		Q: all, K: all[min(key, len(all)):], V: all[min(2*key, len(all)):], Stride: x.cols, Decay: t.decay, Beta: t.gain, Scale: s.Scale, State: t.next, Out: d.all()}
	x.touch()
	d.touch()
	t.op, t.step = recurGates, rowsAtOnce(x.rows, 2*key+16*l.Heads, e.pool.threads)
	e.pool.run(t, cuts(x.rows, t.step))
	t.op = recurDelta
	e.pool.run(t, l.Heads)
	t.release()
}

// Mamba2 implements compute.Encoder.
func (e *encoder) Mamba2(dst, xbc, dt compute.Tensor, r compute.Recurrent, s compute.MambaSpec) {
	e.drain()
	d, x, p := own(dst), own(xbc), own(dt)
	st, l := ownRecurrent("Mamba2", r, s.Layer)
	in, key := l.Heads*l.ValDim, s.Groups*l.KeyDim
	if s.Groups < 1 || l.Heads%s.Groups != 0 || x.cols != in+2*key || d.cols != in || p.cols != l.Heads || d.rows != x.rows || p.rows != x.rows {
		panic(fmt.Sprintf("cpu: Mamba2 of %d x %d with %d x %d steps into %d x %d, %d heads of %d by %d in %d groups", x.rows, x.cols, p.rows, p.cols,
			d.rows, d.cols, l.Heads, l.KeyDim, l.ValDim, s.Groups))
	}
	t := &e.recur
	t.x, t.a, t.dt = p, vector(s.A, l.Heads), vector(s.Dt, l.Heads)
	t.factors(x.rows * l.Heads)
	t.now, t.next = st.heads(s.Layer)
	t.captures, t.place = st.captures, st.at[s.Layer]+l.Channels*l.Back
	all := x.all()
	t.scan = kernels.Scan{Rows: x.rows, Heads: l.Heads, Groups: s.Groups, StateDim: l.KeyDim, HeadDim: l.ValDim,
		X: all, B: all[min(in, len(all)):], C: all[min(in+key, len(all)):], Stride: x.cols, Decay: t.decay, Dt: t.gain, Skip: vector(s.Skip, l.Heads), State: t.next, Out: d.all()}
	d.touch()
	t.op, t.step = recurSteps, rowsAtOnce(x.rows, 16*l.Heads, e.pool.threads)
	e.pool.run(t, cuts(x.rows, t.step))
	t.op = recurScan
	e.pool.run(t, l.Heads)
	t.release()
}

// groupTask is the row region of SplitGroups.
type groupTask struct {
	qkv, z, x              *tensor
	groups, key, val, step int
}

func (t *groupTask) do(_, item int) {
	for r := item * t.step; r < min((item+1)*t.step, t.x.rows); r++ {
		x, qkv, z := t.x.row(r), t.qkv.row(r), t.z.row(r)
		for g := range t.groups {
			for i, to := range [...][]float32{qkv[g*t.key:], qkv[(t.groups+g)*t.key:]} {
				copy(to[:t.key], x[i*t.key:])
			}
			x = x[2*t.key:]
			copy(qkv[2*t.groups*t.key+g*t.val:][:t.val], x)
			copy(z[g*t.val:][:t.val], x[t.val:])
			x = x[2*t.val:]
		}
	}
}

// SplitGroups implements compute.Encoder.
func (e *encoder) SplitGroups(qkv, z, x compute.Tensor, groups, key, val int) {
	e.drain()
	t := &e.groups
	t.qkv, t.z, t.x, t.groups, t.key, t.val = own(qkv), own(z), own(x), groups, key, val
	if groups < 1 || key < 1 || val < 1 || t.x.cols != 2*groups*(key+val) || t.qkv.cols != groups*(2*key+val) || t.z.cols != groups*val ||
		t.qkv.rows != t.x.rows || t.z.rows != t.x.rows {
		panic(fmt.Sprintf("cpu: SplitGroups of %d x %d into %d x %d and %d x %d, %d groups of %d and %d", t.x.rows, t.x.cols, t.qkv.rows, t.qkv.cols, t.z.rows, t.z.cols, groups, key, val))
	}
	t.qkv.touch()
	t.z.touch()
	t.step = rowsAtOnce(t.x.rows, t.x.cols, e.pool.threads)
	e.pool.run(t, cuts(t.x.rows, t.step))
	*t = groupTask{}
}

// normTask is a row region of GatedNorm and GroupNorm.
type normTask struct {
	dst, x, z *tensor
	w         []float32
	dim, step int
	wide      bool // a weight for each element of a row
	eps       float32
	gate      func(dst, gate, x []float32) // nil: none
}

func (t *normTask) do(_, item int) {
	for r := item * t.step; r < min((item+1)*t.step, t.dst.rows); r++ {
		dst, x, w := t.dst.row(r), t.x.row(r), t.w
		for h := 0; h < len(x); h += t.dim {
			if t.wide {
				w = t.w[h : h+t.dim]
			}
			kernels.RMSNorm(dst[h:h+t.dim], x[h:h+t.dim], w, t.eps)
		}
		if t.gate != nil {
			t.gate(dst, t.z.row(r), dst)
		}
	}
}

func (t *normTask) start(p *pool) {
	t.dst.touch()
	t.step = rowsAtOnce(t.dst.rows, 8*t.dst.cols, p.threads)
	p.run(t, cuts(t.dst.rows, t.step))
	*t = normTask{}
}

// GatedNorm implements compute.Encoder.
func (e *encoder) GatedNorm(dst, x, z compute.Tensor, w compute.Weight, dim int, eps float32, act compute.Act) {
	e.drain()
	t := &e.norm
	t.dst, t.x, t.z, t.w, t.dim, t.eps = own(dst), own(x), own(z), vector(w, dim), dim, eps
	sameShape("GatedNorm", t.dst, t.x)
	sameShape("GatedNorm", t.dst, t.z)
	wholeHeads("GatedNorm", t.x, dim)
	switch act {
	case compute.SiLU:
		t.gate = kernels.SiluMul
	case compute.Sigmoid:
		t.gate = kernels.SigmoidMul
	default:
		panic(fmt.Sprintf("cpu: GatedNorm with function %d", act))
	}
	t.start(e.pool)
}

// GroupNorm implements compute.Encoder.
func (e *encoder) GroupNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	e.drain()
	t := &e.norm
	t.dst = own(x)
	t.x, t.w, t.dim, t.eps, t.wide = t.dst, vector(w, t.dst.cols), dim, eps, true
	wholeHeads("GroupNorm", t.x, dim)
	t.start(e.pool)
}
