package split

import (
	"fmt"
	"time"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// encoder implements compute.Encoder. An operation runs on the side of its weights or caches, one without any where the one before
// ran.
type encoder struct {
	b     *Backend
	enc   [2]compute.Encoder
	guest compute.Guest // enc[dev]
	cur   int
	err   error

	pending []part // experts of the host that the device does not wait for yet
	fills   []fill // those that it waits for
	coming  []*tensor
	mixers  map[*compute.Mixer]*[2]compute.Mixer
	engrams map[*compute.Engram]*[2]compute.Engram
	sparse  compute.SparseSpec
	price   price
}

// part is rows of a tensor that the host computes.
type part struct {
	t        *tensor
	first, n int
}

// fill is where the device looks for them.
type fill struct {
	part
	to []float32
}

var (
	_ compute.Encoder = (*encoder)(nil)
	_ compute.Sharer  = (*encoder)(nil)
)

func (e *encoder) init(b *Backend) {
	e.b = b
	e.mixers, e.engrams = map[*compute.Mixer]*[2]compute.Mixer{}, map[*compute.Engram]*[2]compute.Engram{}
	e.price.init()
	e.bind()
}

// bind takes up the sides that there are.
func (e *encoder) bind() {
	e.enc, e.guest = [2]compute.Encoder{e.b.side[host].Encoder(), nil}, nil
	clear(e.mixers)
	clear(e.engrams)
	if d := e.b.side[dev]; d != nil {
		e.enc[dev] = d.Encoder()
		e.guest = e.enc[dev].(compute.Guest)
		e.guest.OnRun(e.run)
	}
	e.cur = e.b.of(nowhere - 1)
}

// reset forgets what was recorded.
func (e *encoder) reset() {
	e.pending, e.fills, e.coming, e.err = e.pending[:0], e.fills[:0], e.coming[:0], nil
	_ = e.enc[host].Submit()
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// move copies a tensor to the side s.
func (e *encoder) move(t *tensor, s int) {
	e.settlePending()
	if err := e.enc[host].Submit(); err != nil { // what still writes or reads the host's twin
		e.fail(err)
	}
	if s == dev {
		x, y := t.at(dev), e.floats(t)
		if len(y) > 0 {
			copy(e.guest.Await(x, 0, t.rows), y) // there already
		}
	} else if y := e.floats(t); len(y) > 0 {
		e.enc[dev].Read(y, t.at(dev))
		if err := e.enc[dev].Submit(); err != nil {
			e.fail(err)
		}
		e.arrived()
	}
	t.ok[s] = true
}

// floats is the host's twin.
func (e *encoder) floats(t *tensor) []float32 { return e.b.opt.Host.Floats(t.at(host)) }

// arrived tells that what was to come to the host is there.
func (e *encoder) arrived() {
	for _, t := range e.coming {
		if t.coming {
			t.coming, t.ok[host] = false, true
			_ = e.floats(t) // the host forgets what it made of the rows before
		}
	}
	e.coming = e.coming[:0]
}

// Share implements compute.Sharer.
func (e *encoder) Share(x compute.Tensor) {
	t := own(x)
	if !e.b.opt.Experts || e.cur != dev || t.of != nil || t.valid(host) || !t.valid(dev) || t.rows == 0 {
		return
	}
	e.op(dev).Read(e.floats(t), t.at(dev))
	t.coming = true
	e.coming = append(e.coming, t)
}

// ExpertFFN implements compute.Encoder.
func (e *encoder) ExpertFFN(parts compute.Tensor, first int, x *compute.Expert, in compute.Tensor, rows []int32) {
	p, src := own(parts), own(in)
	s := e.cur
	kept := len(x.Up.Data) == 0
	if s == dev && !kept && e.b.opt.Experts && p.of == nil && src.valid(host) && !e.price.upload(x, len(rows)) {
		e.enc[host].ExpertFFN(p.at(host), first, x, src.at(host), rows)
		if len(rows) > 0 {
			e.pending = append(e.pending, part{p, first, len(rows)})
			e.price.queued(x, len(rows))
		}
		return
	}
	if s == dev && !kept && !src.valid(dev) && src.valid(host) {
		s = host // a layer of the host's, whose guesses are about one of the device's
	}
	at := src.reads(s)
	to := p.at(s)
	p.wrote(s) // rows that no expert wrote are read by nobody
	start := time.Now()
	e.enc[s].ExpertFFN(to, first, x, at, rows)
	if s == dev && !kept {
		e.price.copied(x, time.Since(start))
	}
}

// chooser is a device's encoder that chooses experts by itself.
type chooser interface {
	Chooses(r *router.Rule, rows int) bool
	RoutedFFN(sum, scores, x compute.Tensor, r *router.Rule, l *compute.ExpertLayer, factor float32, ids []int32)
}

// Chooses reports whether RoutedFFN can take the place of a choice on the host, with its bits: where a device that can do so computes.
func (e *encoder) Chooses(r *router.Rule, rows int) bool {
	c, ok := e.enc[dev].(chooser)
	return ok && e.cur == dev && c.Chooses(r, rows)
}

// RoutedFFN is the device's: to each row of sum it adds what the experts of l make of the row of x that r chooses by its scores.
func (e *encoder) RoutedFFN(sum, scores, x compute.Tensor, r *router.Rule, l *compute.ExpertLayer, factor float32, ids []int32) {
	c := e.op(dev).(chooser)
	s, y := own(scores).reads(dev), own(x).reads(dev)
	c.RoutedFFN(own(sum).changes(dev), s, y, r, l, factor, ids)
}

// settlePending has the device wait for the experts that the host has queued.
func (e *encoder) settlePending() {
	if len(e.pending) == 0 {
		return
	}
	list := e.pending
	e.pending = nil // Await may run what is recorded
	for _, p := range list {
		x := p.t.at(dev)
		p.t.wrote(dev)
		e.fills = append(e.fills, fill{p, e.guest.Await(x, p.first, p.n)})
	}
	e.pending = list[:0]
}

// run computes the host's experts while the device is at work.
func (e *encoder) run() {
	start := time.Now()
	_ = e.enc[host].Submit()
	if len(e.fills) > 0 {
		e.price.ran(time.Since(start))
	}
	for i := range e.fills {
		f := &e.fills[i]
		cols := f.t.cols
		copy(f.to, e.floats(f.t)[f.first*cols:(f.first+f.n)*cols])
		e.fills[i] = fill{}
	}
	e.fills = e.fills[:0]
}

// op is the encoder of a side, for an operation that comes after all so far.
func (e *encoder) op(s int) compute.Encoder {
	e.settlePending()
	return e.enc[s]
}

// by is the side of an operation with weight w.
func (e *encoder) by(w compute.Weight) (int, compute.Weight) {
	x := ownWeight(w)
	e.cur = x.where()
	return e.cur, x.at(e.cur)
}

// Read implements compute.Encoder.
func (e *encoder) Read(dst []float32, x compute.Tensor) {
	t := own(x)
	s := host
	if t.valid(dev) || !t.valid(host) && e.cur == dev {
		s = dev
	}
	e.op(s).Read(dst, t.at(s))
}

// OnDone implements compute.Encoder.
func (e *encoder) OnDone(d compute.Done) {
	e.settlePending()
	if e.enc[dev] != nil {
		e.enc[dev].OnDone(d)
		return
	}
	e.enc[host].OnDone(d)
}

// Flush implements compute.Encoder.
func (e *encoder) Flush() {
	e.settlePending()
	if e.enc[dev] != nil {
		e.enc[dev].Flush()
	}
	e.enc[host].Flush()
}

// Submit implements compute.Encoder. The device begins, the host computes its experts, and the device goes on.
func (e *encoder) Submit() error {
	e.settlePending()
	if e.enc[dev] != nil {
		if err := e.enc[dev].Submit(); err != nil {
			e.fail(err)
		}
	}
	if err := e.enc[host].Submit(); err != nil {
		e.fail(err)
	}
	err := e.err
	e.err = nil
	if err == nil {
		e.arrived()
	} else {
		e.coming = e.coming[:0]
	}
	return err
}

// Embed implements compute.DenseEncoder.
func (e *encoder) Embed(dst compute.Tensor, w compute.Weight, tokens []int32) {
	s, x := e.by(w)
	e.op(s).Embed(own(dst).writes(s), x, tokens)
}

// RMSNorm implements compute.DenseEncoder.
func (e *encoder) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32) {
	s := e.cur
	if w != nil {
		s, w = e.by(w)
	}
	y := own(x).reads(s)
	e.op(s).RMSNorm(own(dst).writes(s), y, w, eps)
}

// HeadNorm implements compute.DenseEncoder.
func (e *encoder) HeadNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	s := e.cur
	if w != nil {
		s, w = e.by(w)
	}
	e.op(s).HeadNorm(own(x).changes(s), w, dim, eps)
}

// MatMul implements compute.DenseEncoder.
func (e *encoder) MatMul(dst compute.Tensor, w compute.Weight, x compute.Tensor) {
	s, m := e.by(w)
	y := own(x).reads(s)
	e.op(s).MatMul(own(dst).writes(s), m, y)
}

// AddBias implements compute.DenseEncoder.
func (e *encoder) AddBias(x compute.Tensor, w compute.Weight) {
	s, m := e.by(w)
	e.op(s).AddBias(own(x).changes(s), m)
}

// Add implements compute.DenseEncoder.
func (e *encoder) Add(x, y compute.Tensor) {
	z := own(y).reads(e.cur)
	e.op(e.cur).Add(own(x).changes(e.cur), z)
}

// Mul implements compute.DenseEncoder.
func (e *encoder) Mul(x, y compute.Tensor) {
	z := own(y).reads(e.cur)
	e.op(e.cur).Mul(own(x).changes(e.cur), z)
}

// Scale implements compute.DenseEncoder.
func (e *encoder) Scale(x compute.Tensor, f float32) { e.op(e.cur).Scale(own(x).changes(e.cur), f) }

// Clear implements compute.DenseEncoder.
func (e *encoder) Clear(x compute.Tensor) { e.op(e.cur).Clear(own(x).writes(e.cur)) }

// CopyRows implements compute.DenseEncoder.
func (e *encoder) CopyRows(dst, x compute.Tensor, first int) {
	y := own(x).reads(e.cur)
	e.op(e.cur).CopyRows(own(dst).writes(e.cur), y, first)
}

// Activate implements compute.DenseEncoder.
func (e *encoder) Activate(dst, a, b compute.Tensor, act compute.Act) {
	s := e.cur
	x := own(a).reads(s)
	var y compute.Tensor
	if b != nil {
		y = own(b).reads(s)
	}
	e.op(s).Activate(own(dst).writes(s), x, y, act)
}

// GateRows implements compute.DenseEncoder.
func (e *encoder) GateRows(x, g compute.Tensor) {
	y := own(g).reads(e.cur)
	e.op(e.cur).GateRows(own(x).changes(e.cur), y)
}

// Softcap implements compute.DenseEncoder.
func (e *encoder) Softcap(x compute.Tensor, limit float32) {
	e.op(e.cur).Softcap(own(x).changes(e.cur), limit)
}

// RoPE implements compute.DenseEncoder.
func (e *encoder) RoPE(x compute.Tensor, dim, first, n int, pairs compute.Pairing, cos, sin []float32) {
	e.op(e.cur).RoPE(own(x).changes(e.cur), dim, first, n, pairs, cos, sin)
}

// SplitHeads implements compute.DenseEncoder.
func (e *encoder) SplitHeads(q, gate, x compute.Tensor, dim int) {
	s := e.cur
	y := own(x).reads(s)
	e.op(s).SplitHeads(own(q).writes(s), own(gate).writes(s), y, dim)
}

// readsOf is the twin of t on a side; nil stays nil.
func readsOf(t compute.Tensor, s int) compute.Tensor {
	if t == nil {
		return nil
	}
	return own(t).reads(s)
}

// Attention implements compute.DenseEncoder.
func (e *encoder) Attention(dst, q, k, v compute.Tensor, c compute.KV, a compute.AttnSpec) {
	x := ownKV(c)
	var s int
	s, a.Layer = x.at(a.Layer)
	e.cur = s
	a.Sinks = weightAt(a.Sinks, s)
	qs, ks, vs := readsOf(q, s), readsOf(k, s), readsOf(v, s)
	e.op(s).Attention(own(dst).writes(s), qs, ks, vs, x.on[s], a)
}

// WeightedSum implements compute.ExpertEncoder.
func (e *encoder) WeightedSum(x, parts compute.Tensor, index []int32, weights []float32, k int) {
	enc := e.op(e.cur) // first: it brings the rows
	p := own(parts).reads(e.cur)
	enc.WeightedSum(own(x).changes(e.cur), p, index, weights, k)
}

// HeadMatMul implements compute.LatentEncoder.
func (e *encoder) HeadMatMul(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	s, m := e.by(w)
	y := own(x).reads(s)
	e.op(s).HeadMatMul(own(dst).changes(s), to, m, rows, y, from)
}

// HeadMatMulT implements compute.LatentEncoder.
func (e *encoder) HeadMatMulT(dst compute.Tensor, to compute.Part, w compute.Weight, rows compute.HeadRows, x compute.Tensor, from compute.Part) {
	s, m := e.by(w)
	y := own(x).reads(s)
	e.op(s).HeadMatMulT(own(dst).changes(s), to, m, rows, y, from)
}

// CopyPart implements compute.LatentEncoder.
func (e *encoder) CopyPart(dst compute.Tensor, to compute.Part, x compute.Tensor, from compute.Part) {
	y := own(x).reads(e.cur)
	e.op(e.cur).CopyPart(own(dst).changes(e.cur), to, y, from)
}

// PartNorm implements compute.LatentEncoder.
func (e *encoder) PartNorm(x compute.Tensor, p compute.Part, w compute.Weight, eps float32) {
	s, m := e.by(w)
	e.op(s).PartNorm(own(x).changes(s), p, m, eps)
}

// ShortConv implements compute.RecurrentEncoder.
func (e *encoder) ShortConv(dst, x compute.Tensor, r compute.Recurrent, c compute.ConvSpec) {
	z := ownRecurrent(r)
	var s int
	s, c.Layer = z.at(c.Layer)
	e.cur = s
	c.Weight, c.Bias = weightAt(c.Weight, s), weightAt(c.Bias, s)
	y := own(x).reads(s)
	e.op(s).ShortConv(own(dst).writes(s), y, z.on[s], c)
}

// DeltaNet implements compute.RecurrentEncoder.
func (e *encoder) DeltaNet(dst, qkv, alpha, beta compute.Tensor, r compute.Recurrent, d compute.DeltaSpec) {
	z := ownRecurrent(r)
	var s int
	s, d.Layer = z.at(d.Layer)
	e.cur = s
	d.A, d.Dt = weightAt(d.A, s), weightAt(d.Dt, s)
	x, a, b := own(qkv).changes(s), readsOf(alpha, s), readsOf(beta, s)
	e.op(s).DeltaNet(own(dst).writes(s), x, a, b, z.on[s], d)
}

// SplitGroups implements compute.RecurrentEncoder.
func (e *encoder) SplitGroups(qkv, z, x compute.Tensor, groups, key, val int) {
	s := e.cur
	y := own(x).reads(s)
	e.op(s).SplitGroups(own(qkv).writes(s), own(z).writes(s), y, groups, key, val)
}

// Mamba2 implements compute.RecurrentEncoder.
func (e *encoder) Mamba2(dst, xbc, dt compute.Tensor, r compute.Recurrent, m compute.MambaSpec) {
	z := ownRecurrent(r)
	var s int
	s, m.Layer = z.at(m.Layer)
	e.cur = s
	m.A, m.Dt, m.Skip = weightAt(m.A, s), weightAt(m.Dt, s), weightAt(m.Skip, s)
	x, d := own(xbc).changes(s), own(dt).changes(s)
	e.op(s).Mamba2(own(dst).writes(s), x, d, z.on[s], m)
}

// GatedNorm implements compute.RecurrentEncoder.
func (e *encoder) GatedNorm(dst, x, z compute.Tensor, w compute.Weight, dim int, eps float32, act compute.Act) {
	s, m := e.by(w)
	y, g := own(x).reads(s), own(z).reads(s)
	e.op(s).GatedNorm(own(dst).writes(s), y, g, m, dim, eps, act)
}

// GroupNorm implements compute.RecurrentEncoder.
func (e *encoder) GroupNorm(x compute.Tensor, w compute.Weight, dim int, eps float32) {
	s, m := e.by(w)
	e.op(s).GroupNorm(own(x).changes(s), m, dim, eps)
}

// Spread implements compute.StreamEncoder.
func (e *encoder) Spread(dst, x compute.Tensor) {
	y := own(x).reads(e.cur)
	e.op(e.cur).Spread(own(dst).writes(e.cur), y)
}

// Mix implements compute.StreamEncoder.
func (e *encoder) Mix(dst, inject, x compute.Tensor, m *compute.Mixer) {
	s, _ := e.by(m.Norm)
	both := e.mixers[m]
	if both == nil {
		both = new([2]compute.Mixer)
		e.mixers[m] = both
	}
	c := &both[s]
	if c.Norm == nil {
		*c = *m
		c.Norm, c.Down, c.Up, c.Inject = weightAt(m.Norm, s), weightAt(m.Down, s), weightAt(m.Up, s), weightAt(m.Inject, s)
	}
	y := own(x).reads(s)
	var in compute.Tensor
	if inject != nil {
		in = own(inject).writes(s)
	}
	e.op(s).Mix(own(dst).writes(s), in, y, c)
}

// Inject implements compute.StreamEncoder.
func (e *encoder) Inject(x, y, inject compute.Tensor) {
	s := e.cur
	a, b := own(y).reads(s), own(inject).reads(s)
	e.op(s).Inject(own(x).changes(s), a, b)
}

// SparseAttention implements compute.StreamEncoder.
func (e *encoder) SparseAttention(dst, q, k, v, indexQ, indexK compute.Tensor, c compute.KV, spec *compute.SparseSpec) {
	x, i := ownKV(c), ownIndex(spec.Index)
	a := &e.sparse
	*a = *spec
	var s, si int
	s, a.Layer = x.at(spec.Layer)
	si, a.IndexLayer = i.at(spec.IndexLayer)
	if s != si {
		panic(fmt.Sprintf("split: layer %d of a cache and layer %d of its index are on two sides", spec.Layer, spec.IndexLayer))
	}
	e.cur = s
	a.Index, a.Norm, a.Sinks = i.on[s], weightAt(spec.Norm, s), weightAt(spec.Sinks, s)
	qs, ks, vs, iq, ik := readsOf(q, s), readsOf(k, s), readsOf(v, s), readsOf(indexQ, s), readsOf(indexK, s)
	for _, t := range []compute.Tensor{indexQ, indexK} { // may be used up
		if t != nil {
			own(t).wrote(s)
		}
	}
	e.op(s).SparseAttention(own(dst).writes(s), qs, ks, vs, iq, ik, x.on[s], a)
}

// DecodeRows implements compute.StreamEncoder.
func (e *encoder) DecodeRows(dst compute.Tensor, t gguf.Type, rows [][]byte) {
	e.op(e.cur).DecodeRows(own(dst).writes(e.cur), t, rows)
}

// EngramGate implements compute.StreamEncoder.
func (e *encoder) EngramGate(dst, norm, x, key, val compute.Tensor, g *compute.Engram) {
	s, _ := e.by(g.KeyNorm)
	both := e.engrams[g]
	if both == nil {
		both = new([2]compute.Engram)
		e.engrams[g] = both
	}
	c := &both[s]
	if c.KeyNorm == nil {
		*c = *g
		c.KeyNorm, c.QueryNorm, c.ConvNorm = weightAt(g.KeyNorm, s), weightAt(g.QueryNorm, s), weightAt(g.ConvNorm, s)
	}
	y, v, k := own(x).reads(s), own(val).reads(s), own(key).changes(s)
	e.op(s).EngramGate(own(dst).writes(s), own(norm).writes(s), y, k, v, c)
}
