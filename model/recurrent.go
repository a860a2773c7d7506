package model

import (
	"math"

	"terrace/compute"
)

// ssmSizes are the keys ssm.* of a model with gated DeltaNet or Mamba-2.
type ssmSizes struct {
	taps   int // of the convolution
	inner  int // values of all heads
	state  int // elements of a key
	heads  int // value heads
	groups int // key heads
}

// ssm reads them. The heads share inner evenly, and the groups share the heads.
func (b *builder) ssm() ssmSizes {
	s := ssmSizes{
		taps:   b.count("ssm.conv_kernel", 0, 64),
		inner:  b.count("ssm.inner_size", 0, maxWidth),
		state:  b.count("ssm.state_size", 0, 1<<12),
		heads:  b.count("ssm.time_step_rank", 0, maxHeads),
		groups: b.count("ssm.group_count", 0, maxHeads),
	}
	switch {
	case b.err != nil:
	case s.taps < 2:
		b.refuse("metadata key %q is %d, want at least 2", b.key("ssm.conv_kernel"), s.taps)
	case s.inner%s.heads != 0:
		b.refuse("metadata key %q is %d, no multiple of the %d heads of %q", b.key("ssm.inner_size"), s.inner, s.heads, b.key("ssm.time_step_rank"))
	case s.heads%s.groups != 0:
		b.refuse("metadata key %q is %d, no multiple of the %d of %q", b.key("ssm.time_step_rank"), s.heads, s.groups, b.key("ssm.group_count"))
	case int64(s.heads)*int64(s.state)*int64(s.inner/s.heads) > maxWidth*16:
		b.refuse("a state of %d heads of %d by %d elements a layer", s.heads, s.state, s.inner/s.heads)
	}
	return s
}

// taps takes the weight of a convolution, of which a backend makes a copy that suits it.
func (b *builder) taps(to *compute.Weight, name string, taps, channels int) {
	b.matrix(to, name, taps, channels)
	b.m.turned += 4 * int64(taps) * int64(channels)
}

// deltaNet is a gated DeltaNet: projections, a short convolution, the recurrence, a gated norm.
type deltaNet struct {
	in                               residual
	qkv, z, beta, alpha, conv        compute.Weight // alpha is nil where beta has both
	both                             compute.Weight // instead of qkv and z, by key heads; nil: those
	a, dt, norm, out                 compute.Weight
	layer, groups, key, dim          int // of the recurrent state; key heads; elements of a key and of a value
	grouped                          bool
	gate                             compute.Act
	eps, scale                       float32
	bboth                            buffer
	bx, bc, bz, by, bbeta, ba, block buffer
}

// deltaOpts tell the DeltaNets of the families apart.
type deltaOpts struct {
	in      residual    // nil: the norm attn_norm
	joint   bool        // ssm_ba has the betas and alphas of each key head
	grouped bool        // value head h belongs to key head h/(heads/groups), not to h modulo groups
	gate    compute.Act // of the output
}

// deltaNet takes the gated DeltaNet of layer i.
func (b *builder) deltaNet(i int, s ssmSizes, o deltaOpts) *deltaNet {
	c := b.c
	n := &deltaNet{in: o.in, groups: s.groups, key: s.state, dim: s.inner / s.heads, grouped: o.grouped, gate: o.gate, eps: c.Eps, scale: float32(1 / math.Sqrt(float64(s.state)))}
	if n.in == nil {
		n.in = b.norm(i, "attn_norm")
	}
	name := func(s string) string { return tensorName(i, s) }
	ch := 2*s.groups*s.state + s.inner
	if o.joint && b.has(name("ssm_in.weight")) {
		// Older files: of each key head its query, its key, the values and the gates of its value heads.
		b.matrix(&n.both, name("ssm_in.weight"), c.Embd, ch+s.inner)
		n.bboth = b.buffer("ssm in", ch+s.inner, 1)
	} else {
		b.matrix(&n.qkv, name("attn_qkv.weight"), c.Embd, ch)
		b.matrix(&n.z, name("attn_gate.weight"), c.Embd, s.inner)
	}
	b.taps(&n.conv, name("ssm_conv1d.weight"), s.taps, ch)
	b.vector(&n.dt, name("ssm_dt.bias"), s.heads)
	b.vector(&n.a, name("ssm_a"), s.heads)
	n.bbeta = b.buffer("ssm beta", s.heads, 1)
	if o.joint {
		b.matrix(&n.beta, name("ssm_ba.weight"), c.Embd, 2*s.heads)
		n.bbeta = b.buffer("ssm beta+alpha", 2*s.heads, 1)
	} else {
		b.matrix(&n.beta, name("ssm_beta.weight"), c.Embd, s.heads)
		b.matrix(&n.alpha, name("ssm_alpha.weight"), c.Embd, s.heads)
		n.ba = b.buffer("ssm alpha", s.heads, 1)
	}
	b.vector(&n.norm, name("ssm_norm.weight"), n.dim)
	b.matrix(&n.out, name("ssm_out.weight"), s.inner, c.Embd)
	n.layer = b.recurrentLayer(compute.RecurrentLayer{Channels: ch, Back: s.taps - 1, Heads: s.heads, KeyDim: s.state, ValDim: n.dim})
	n.bx, n.bc = b.buffer("conv in", ch, 1), b.buffer("conv out", ch, 1)
	n.bz, n.by, n.block = b.buffer("ssm gate", s.inner, 1), b.buffer("ssm out", s.inner, 1), b.buffer("block", c.Embd, 1)
	return n
}

func (n *deltaNet) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	n.in.enter(w, w.h, w.x)
	x, z, beta := w.rows(n.bx, rows), w.rows(n.bz, rows), w.rows(n.bbeta, rows)
	if n.both != nil {
		both := w.rows(n.bboth, rows)
		e.MatMul(both, n.both, w.h)
		e.SplitGroups(x, z, both, n.groups, n.key, z.Cols()/n.groups)
	} else {
		e.MatMul(x, n.qkv, w.h)
		e.MatMul(z, n.z, w.h)
	}
	e.MatMul(beta, n.beta, w.h)
	var alpha compute.Tensor
	if n.alpha != nil {
		alpha = w.rows(n.ba, rows)
		e.MatMul(alpha, n.alpha, w.h)
	}
	conv, y := w.rows(n.bc, rows), w.rows(n.by, rows)
	w.conv(conv, x, compute.ConvSpec{Layer: n.layer, Weight: n.conv, SiLU: true})
	spec := compute.DeltaSpec{Layer: n.layer, KeyHeads: n.groups, Grouped: n.grouped, A: n.a, Dt: n.dt, Eps: n.eps, Scale: n.scale}
	for i := range w.seqs {
		s := &w.seqs[i]
		e.DeltaNet(w.all(0, y, s), w.all(1, conv, s), w.all(2, alpha, s), w.all(3, beta, s), s.st.rec, spec)
	}
	e.GatedNorm(y, y, z, n.norm, n.dim, n.eps, n.gate)
	out := w.rows(n.block, rows)
	e.MatMul(out, n.out, y)
	n.in.leave(w, out)
	return nil
}

// shortConv is the gated short convolution of lfm2: out(c * conv(b*x)), where one projection gives b, c and x.
type shortConv struct {
	in                    residual
	b, c, x, conv, out    compute.Weight
	layer                 int
	bb, bc, bx, by, block buffer
}

// shortConv takes the convolution of layer i, of so many taps.
func (b *builder) shortConv(i, taps int) *shortConv {
	n := b.c.Embd
	s := &shortConv{in: b.norm(i, "attn_norm")}
	name := func(s string) string { return tensorName(i, "shortconv."+s+".weight") }
	if t := b.find(name("in_proj"), n, 3*n); t != nil {
		at := b.add(t)
		b.m.binds = append(b.m.binds, bind{tensor: at, rows: n, to: &s.b}, bind{tensor: at, first: n, rows: n, to: &s.c}, bind{tensor: at, first: 2 * n, rows: n, to: &s.x})
	}
	b.taps(&s.conv, name("conv"), taps, n)
	b.matrix(&s.out, name("out_proj"), n, n)
	s.layer = b.recurrentLayer(compute.RecurrentLayer{Channels: n, Back: taps - 1})
	s.bb, s.bc, s.bx = b.buffer("conv b", n, 1), b.buffer("conv c", n, 1), b.buffer("conv in", n, 1)
	s.by, s.block = b.buffer("conv out", n, 1), b.buffer("block", n, 1)
	return s
}

func (s *shortConv) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	s.in.enter(w, w.h, w.x)
	b, c, x, y := w.rows(s.bb, rows), w.rows(s.bc, rows), w.rows(s.bx, rows), w.rows(s.by, rows)
	e.MatMul(b, s.b, w.h)
	e.MatMul(x, s.x, w.h)
	e.MatMul(c, s.c, w.h)
	e.Mul(x, b)
	w.conv(y, x, compute.ConvSpec{Layer: s.layer, Weight: s.conv})
	e.Mul(y, c)
	out := w.rows(s.block, rows)
	e.MatMul(out, s.out, y)
	s.in.leave(w, out)
	return nil
}

// mamba2 is a Mamba-2 layer: one projection gives a gate, the inputs of a short convolution and the time steps; then the scan,
// the gate, and a norm over each group.
type mamba2 struct {
	in                         residual
	z, xbc, step, conv, bias   compute.Weight
	a, dt, skip, norm, out     compute.Weight
	layer, groups, group       int // of the recurrent state; groups of heads, and their elements
	eps                        float32
	bx, bc, bz, bdt, by, block buffer
}

// mamba2 takes the Mamba-2 part of layer i.
func (b *builder) mamba2(i int, s ssmSizes) *mamba2 {
	c := b.c
	m := &mamba2{in: b.norm(i, "attn_norm"), groups: s.groups, group: s.inner / s.groups, eps: c.Eps}
	name := func(s string) string { return tensorName(i, s) }
	ch := s.inner + 2*s.groups*s.state
	if t := b.find(name("ssm_in.weight"), c.Embd, s.inner+ch+s.heads); t != nil {
		at := b.add(t)
		b.m.binds = append(b.m.binds, bind{tensor: at, rows: s.inner, to: &m.z}, bind{tensor: at, first: s.inner, rows: ch, to: &m.xbc},
			bind{tensor: at, first: s.inner + ch, rows: s.heads, to: &m.step})
	}
	b.taps(&m.conv, name("ssm_conv1d.weight"), s.taps, ch)
	b.vector(&m.bias, name("ssm_conv1d.bias"), ch)
	b.vector(&m.dt, name("ssm_dt.bias"), s.heads)
	b.flat(&m.a, name("ssm_a"), 1, s.heads)
	b.flat(&m.skip, name("ssm_d"), 1, s.heads)
	b.flat(&m.norm, name("ssm_norm.weight"), m.group, s.groups)
	b.matrix(&m.out, name("ssm_out.weight"), s.inner, c.Embd)
	m.layer = b.recurrentLayer(compute.RecurrentLayer{Channels: ch, Back: s.taps - 1, Heads: s.heads, KeyDim: s.state, ValDim: s.inner / s.heads})
	m.bx, m.bc, m.bz = b.buffer("conv in", ch, 1), b.buffer("conv out", ch, 1), b.buffer("ssm gate", s.inner, 1)
	m.bdt, m.by, m.block = b.buffer("ssm step", s.heads, 1), b.buffer("ssm out", s.inner, 1), b.buffer("block", c.Embd, 1)
	return m
}

func (m *mamba2) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	m.in.enter(w, w.h, w.x)
	x, z, dt := w.rows(m.bx, rows), w.rows(m.bz, rows), w.rows(m.bdt, rows)
	e.MatMul(z, m.z, w.h)
	e.MatMul(x, m.xbc, w.h)
	e.MatMul(dt, m.step, w.h)
	conv, y := w.rows(m.bc, rows), w.rows(m.by, rows)
	w.conv(conv, x, compute.ConvSpec{Layer: m.layer, Weight: m.conv, Bias: m.bias, SiLU: true})
	spec := compute.MambaSpec{Layer: m.layer, Groups: m.groups, A: m.a, Dt: m.dt, Skip: m.skip}
	for i := range w.seqs {
		s := &w.seqs[i]
		e.Mamba2(w.all(0, y, s), w.all(1, conv, s), w.all(2, dt, s), s.st.rec, spec)
	}
	e.Activate(y, z, y, compute.SiLU)
	e.GroupNorm(y, m.norm, m.group, m.eps)
	out := w.rows(m.block, rows)
	e.MatMul(out, m.out, y)
	m.in.leave(w, out)
	return nil
}
