package computetest

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// state makes a recurrent state of one layer beside another, so that a layer's place shows.
func (s Suite) state(t testing.TB, l compute.RecurrentLayer, slots int) compute.Recurrent {
	t.Helper()
	r, err := s.Backend.NewRecurrent(compute.RecurrentShape{Layers: []compute.RecurrentLayer{{Channels: 5, Back: 2}, l}}, slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Free)
	return r
}

// recur feeds n rows in batches of several sizes, each batch once in vain and once for good, and compares with want. step
// records the rows p[0] to p[1] and answers their results.
func (s Suite) recur(t *testing.T, what string, l compute.RecurrentLayer, n int, want []float64, step func(r compute.Recurrent, p [2]int) compute.Tensor) {
	var first []float32
	for _, cut := range []int{n, 1, 7} {
		r := s.state(t, l, 1)
		var got []float32
		for _, p := range starts(0, n, cut) {
			s.read(t, step(r, p)) // a step that is not committed leaves no trace
			got = append(got, s.read(t, step(r, p))...)
			r.Commit()
		}
		near(t, fmt.Sprintf("%s, batches of %d", what, cut), got, want, relative(want, 3e-5))
		if first == nil {
			first = got
		}
		equal(t, fmt.Sprintf("%s, batches of %d", what, cut), got, first)
		// Back to what was saved, and to the start.
		r.Save(0)
		after := s.read(t, step(r, [2]int{0, 3}))
		r.Commit()
		r.Clear()
		equal(t, what+" from the start", s.read(t, step(r, [2]int{0, 3})), first[:len(after)])
		r.Restore(0)
		equal(t, what+" after Restore", s.read(t, step(r, [2]int{0, 3})), after)
		r.Free()
	}
	// What a step captures on its way is what shorter steps end with.
	whole, size := s.state(t, l, 0), 0
	size = int(whole.Shape().Bytes())
	var at []compute.Capture
	for _, rows := range []int{5, 1, n - 1, n} {
		at = append(at, compute.Capture{Rows: rows, Dst: make([]byte, size)})
	}
	whole.Capture(at)
	s.read(t, step(whole, [2]int{0, 2})) // in vain: it has not so many rows
	equal(t, what+" captured", s.read(t, step(whole, [2]int{0, n})), first)
	whole.Commit()
	own := 4 * 5 * 2 // the layer beside it takes no part
	for _, c := range at {
		short, want := s.state(t, l, 0), make([]byte, size)
		s.read(t, step(short, [2]int{0, c.Rows}))
		short.Commit()
		short.CopyOut(want)
		if !bytes.Equal(c.Dst[own:], want[own:]) {
			t.Errorf("%s: the state captured after %d of %d rows is another than after %d rows", what, c.Rows, n, c.Rows)
		}
	}
	held := bytes.Clone(at[0].Dst)
	s.read(t, step(whole, [2]int{0, n}))
	if !bytes.Equal(at[0].Dst, held) {
		t.Errorf("%s: captured after Commit", what)
	}
}

// gate makes a layer's factors: negative decays and biases.
func (s Suite) gates(t testing.TB, heads int) (a, dt []float32, wa, wdt compute.Weight) {
	a, dt = random(60, heads, 1), random(61, heads, 1)
	for i := range a {
		a[i] = -float32(math.Abs(float64(a[i]))) - 0.1
	}
	return a, dt, s.vector(t, a), s.vector(t, dt)
}

func softplus(x float64) float64 { return math.Log1p(math.Exp(x)) }
func sigmoid(x float64) float64  { return 1 / (1 + math.Exp(-x)) }

func (s Suite) recurrent(t *testing.T) {
	const n = 40
	e := s.Backend.Encoder()
	for _, c := range []struct {
		taps, dilation, channels int
		bias, silu               bool
		typ                      gguf.Type
	}{{4, 1, 1500, false, true, gguf.F32}, {4, 3, 70, false, true, gguf.F16}, {3, 0, 96, false, false, gguf.F32}, {4, 1, 40, true, true, gguf.F32}} {
		m, w := Matrix(t, 50, c.typ, c.taps, c.channels)
		x, bias := random(51, n*c.channels, 1), random(52, c.channels, 1)
		d := max(c.dilation, 1)
		want := make([]float64, len(x))
		for i := range want {
			p, ch := i/c.channels, i%c.channels
			for j := range c.taps {
				if at := p - (c.taps-1-j)*d; at >= 0 {
					want[i] += float64(w[ch*c.taps+j]) * float64(x[at*c.channels+ch])
				}
			}
			if c.bias {
				want[i] += float64(bias[ch])
			}
			if c.silu {
				want[i] *= sigmoid(want[i])
			}
		}
		spec := compute.ConvSpec{Layer: 1, Weight: s.weight(t, m), Dilation: c.dilation, SiLU: c.silu}
		if c.bias {
			spec.Bias = s.vector(t, bias)
		}
		s.recur(t, fmt.Sprintf("ShortConv %+v", c), compute.RecurrentLayer{Channels: c.channels, Back: (c.taps - 1) * d}, n, want, func(r compute.Recurrent, p [2]int) compute.Tensor {
			out := s.empty(p[1]-p[0], c.channels)
			e.ShortConv(out, s.load(t, x[p[0]*c.channels:p[1]*c.channels], c.channels), r, spec)
			return out
		})
	}
	s.deltaNet(t, n)
	s.mamba2(t, n)
	s.gatedNorms(t)
	s.splitGroups(t)
	for _, bad := range []compute.RecurrentLayer{{}, {Channels: 3}, {Channels: 3, Back: 2, Heads: 2, KeyDim: 4}, {Heads: 1 << 30, KeyDim: 1 << 20, ValDim: 1 << 20}} {
		if r, err := s.Backend.NewRecurrent(compute.RecurrentShape{Layers: []compute.RecurrentLayer{bad}}, 0); err == nil {
			t.Errorf("a state of %+v was made", bad)
			r.Free()
		}
	}
}

func (s Suite) deltaNet(t *testing.T, n int) {
	e := s.Backend.Encoder()
	const heads, keys, dk, dv, eps, scale = 6, 3, 32, 40, 1e-6, 0.25
	const ch, of = 2*keys*dk + heads*dv, heads / keys
	a, dt, wa, wdt := s.gates(t, heads)
	x, alpha, beta := random(53, n*ch, 1), random(54, n*heads, 1), random(55, n*heads, 1)
	joint := make([]float32, 2*n*heads)
	for i := range alpha {
		r, h := i/heads, i%heads
		joint[2*r*heads+h/of*2*of+h%of] = beta[i]
		joint[2*r*heads+h/of*2*of+of+h%of] = alpha[i]
	}
	for _, grouped := range []bool{false, true} {
		want := make([]float64, n*heads*dv)
		for h := range heads {
			kh := h % keys
			if grouped {
				kh = h / of
			}
			st := make([]float64, dk*dv)
			unit := func(from []float32) []float64 {
				sum, out := 0.0, make([]float64, dk)
				for _, v := range from[:dk] {
					sum += float64(v) * float64(v)
				}
				for i, v := range from[:dk] {
					out[i] = float64(v) / math.Sqrt(sum+eps)
				}
				return out
			}
			for r := range n {
				row := x[r*ch:]
				q, k, v := unit(row[kh*dk:]), unit(row[(keys+kh)*dk:]), row[2*keys*dk+h*dv:]
				g := math.Exp(float64(a[h]) * softplus(float64(alpha[r*heads+h])+float64(dt[h])))
				b := sigmoid(float64(beta[r*heads+h]))
				for j := range dv {
					sum, out := 0.0, 0.0
					for i := range dk {
						st[i*dv+j] *= g
						sum += st[i*dv+j] * k[i]
					}
					for i := range dk {
						st[i*dv+j] += k[i] * b * (float64(v[j]) - sum)
						out += st[i*dv+j] * q[i]
					}
					want[(r*heads+h)*dv+j] = out * scale
				}
			}
		}
		spec := compute.DeltaSpec{Layer: 1, KeyHeads: keys, Grouped: grouped, A: wa, Dt: wdt, Eps: eps, Scale: scale}
		l := compute.RecurrentLayer{Channels: ch, Back: 3, Heads: heads, KeyDim: dk, ValDim: dv}
		for _, both := range []bool{false, true} {
			s.recur(t, fmt.Sprintf("DeltaNet, grouped %t, joint %t", grouped, both), l, n, want, func(r compute.Recurrent, p [2]int) compute.Tensor {
				out := s.empty(p[1]-p[0], heads*dv)
				qkv := s.load(t, x[p[0]*ch:p[1]*ch], ch)
				if both {
					e.DeltaNet(out, qkv, nil, s.load(t, joint[p[0]*2*heads:p[1]*2*heads], 2*heads), r, spec)
				} else {
					e.DeltaNet(out, qkv, s.load(t, alpha[p[0]*heads:p[1]*heads], heads), s.load(t, beta[p[0]*heads:p[1]*heads], heads), r, spec)
				}
				return out
			})
		}
	}
}

func (s Suite) mamba2(t *testing.T, n int) {
	e := s.Backend.Encoder()
	const heads, groups, states, dim = 6, 2, 16, 24
	const ch = heads*dim + 2*groups*states
	a, dt, wa, wdt := s.gates(t, heads)
	x, steps, skip := random(56, n*ch, 1), random(57, n*heads, 1), random(58, heads, 1)
	want := make([]float64, n*heads*dim)
	for h := range heads {
		g := h / (heads / groups)
		st := make([]float64, states*dim)
		for r := range n {
			in, key, query := x[r*ch+h*dim:], x[r*ch+heads*dim+g*states:], x[r*ch+heads*dim+(groups+g)*states:]
			d := softplus(float64(steps[r*heads+h]) + float64(dt[h]))
			decay := math.Exp(float64(a[h]) * d)
			for j := range dim {
				out := 0.0
				for i := range states {
					st[i*dim+j] = decay*st[i*dim+j] + float64(key[i])*d*float64(in[j])
					out += st[i*dim+j] * float64(query[i])
				}
				want[(r*heads+h)*dim+j] = out + float64(skip[h])*float64(in[j])
			}
		}
	}
	spec := compute.MambaSpec{Layer: 1, Groups: groups, A: wa, Dt: wdt, Skip: s.vector(t, skip)}
	s.recur(t, "Mamba2", compute.RecurrentLayer{Heads: heads, KeyDim: states, ValDim: dim}, n, want, func(r compute.Recurrent, p [2]int) compute.Tensor {
		out := s.empty(p[1]-p[0], heads*dim)
		e.Mamba2(out, s.load(t, x[p[0]*ch:p[1]*ch], ch), s.load(t, steps[p[0]*heads:p[1]*heads], heads), r, spec)
		return out
	})
}

func (s Suite) gatedNorms(t *testing.T) {
	e := s.Backend.Encoder()
	const dim, heads, eps = 48, 5, 1e-5
	const cols = dim * heads
	for _, rows := range []int{1, 30} {
		x, z, w := random(62, rows*cols, 2), random(63, rows*cols, 2), random(64, cols, 1)
		norm := func(i int) float64 {
			sum := 0.0
			for _, v := range x[i/dim*dim : i/dim*dim+dim] {
				sum += float64(v) * float64(v)
			}
			return float64(x[i]) / math.Sqrt(sum/dim+eps)
		}
		for _, act := range []compute.Act{compute.SiLU, compute.Sigmoid} {
			want := make([]float64, len(x))
			for i := range want {
				g := sigmoid(float64(z[i]))
				if act == compute.SiLU {
					g *= float64(z[i])
				}
				want[i] = norm(i) * float64(w[i%dim]) * g
			}
			d, a := s.empty(rows, cols), s.load(t, x, cols)
			e.GatedNorm(d, a, s.load(t, z, cols), s.vector(t, w[:dim]), dim, eps, act)
			near(t, "GatedNorm", s.read(t, d), want, relative(want, 2e-6))
			e.GatedNorm(a, a, s.load(t, z, cols), s.vector(t, w[:dim]), dim, eps, act)
			equal(t, "GatedNorm in place", s.read(t, a), s.read(t, d))
		}
		want := make([]float64, len(x))
		for i := range want {
			want[i] = norm(i) * float64(w[i%cols])
		}
		a := s.load(t, x, cols)
		e.GroupNorm(a, s.vector(t, w), dim, eps)
		near(t, "GroupNorm", s.read(t, a), want, relative(want, 2e-6))
	}
}

func (s Suite) splitGroups(t *testing.T) {
	const rows, groups, key, val = 70, 3, 32, 50
	const cols, ch = 2 * groups * (key + val), groups * (2*key + val)
	x := random(65, rows*cols, 1)
	var wantQKV, wantZ []float32
	for r := range rows {
		part := func(from, n int) (all []float32) {
			for g := range groups {
				at := r*cols + g*2*(key+val) + from
				all = append(all, x[at:at+n]...)
			}
			return all
		}
		wantQKV = append(append(append(wantQKV, part(0, key)...), part(key, key)...), part(2*key, val)...)
		wantZ = append(wantZ, part(2*key+val, val)...)
	}
	qkv, z := s.empty(rows, ch), s.empty(rows, groups*val)
	s.Backend.Encoder().SplitGroups(qkv, z, s.load(t, x, cols), groups, key, val)
	equal(t, "SplitGroups, queries, keys and values", s.read(t, qkv), wantQKV)
	equal(t, "SplitGroups, gates", s.read(t, z), wantZ)
}
