package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// deltaCase is a layer with random contents; keys and queries have length one, as in a model.
func deltaCase(rng *rand.Rand, rows, heads, keyHeads, dk, dv int, grouped bool) *DeltaNet {
	ch := 2*keyHeads*dk + heads*dv + rng.IntN(5)
	c := randomFloats(rng, rows*ch, 1)
	for t := range rows {
		for h := range 2 * keyHeads {
			L2Norm(c[t*ch+h*dk:][:dk], 1e-6)
		}
	}
	n := &DeltaNet{Rows: rows, Heads: heads, KeyHeads: keyHeads, KeyDim: dk, ValDim: dv, Grouped: grouped, Q: c, K: c[keyHeads*dk:], V: c[2*keyHeads*dk:], Stride: ch,
		Decay: make([]float32, rows*heads), Beta: make([]float32, rows*heads), Scale: float32(1 / math.Sqrt(float64(dk))),
		State: randomFloats(rng, heads*dk*dv, 0.5), Out: make([]float32, rows*heads*dv)}
	for i := range n.Decay {
		n.Decay[i], n.Beta[i] = float32(math.Exp(-rng.ExpFloat64()/4)), rng.Float32()
	}
	return n
}

// clone copies what Run changes.
func (n *DeltaNet) clone() *DeltaNet {
	m := *n
	m.State, m.Out = append([]float32(nil), n.State...), make([]float32, len(n.Out))
	return &m
}

var deltaShapes = []struct{ heads, keyHeads, dk, dv int }{
	{4, 2, 128, 128}, {6, 2, 64, 64}, {3, 1, 16, 48}, {2, 2, 128, 256}, {4, 2, 24, 20}, {1, 1, 1, 1}, {2, 1, 5, 15}, {2, 1, 7, 145}, {3, 3, 33, 208},
}

// TestDeltaNet compares with float64. The bound follows the order: a column's sums have dk terms, and an error of the state is
// carried on by the next token with at most its decay plus |k|^2 beta <= 2.
func TestDeltaNet(t *testing.T) {
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		rng := rand.New(rand.NewPCG(70, 71))
		for _, c := range deltaShapes {
			if raceOn && c.dk*c.dv > 5000 {
				continue
			}
			for _, grouped := range []bool{false, true} {
				const rows = 5
				n := deltaCase(rng, rows, c.heads, c.keyHeads, c.dk, c.dv, grouped)
				state := make([]float64, len(n.State))
				for i, x := range n.State {
					state[i] = float64(x)
				}
				n.Run(0, c.heads)
				for h := range c.heads {
					key := h % c.keyHeads
					if grouped {
						key = h / (c.heads / c.keyHeads)
					}
					s := state[h*c.dk*c.dv:]
					for r := range rows {
						k, q, v := n.K[r*n.Stride+key*c.dk:][:c.dk], n.Q[r*n.Stride+key*c.dk:][:c.dk], n.V[r*n.Stride+h*c.dv:][:c.dv]
						g, beta := float64(n.Decay[r*c.heads+h]), float64(n.Beta[r*c.heads+h])
						for j := range c.dv {
							sum, mass := 0.0, math.Abs(float64(v[j]))
							for i := range k {
								s[i*c.dv+j] *= g
								sum += s[i*c.dv+j] * float64(k[i])
								mass += math.Abs(s[i*c.dv+j])
							}
							d, o := beta*(float64(v[j])-sum), 0.0
							for i := range k {
								s[i*c.dv+j] += d * float64(k[i])
								o += s[i*c.dv+j] * float64(q[i])
							}
							tol := math.Exp2(-24) * float64(c.dk+8) * mass * math.Pow(2, float64(r+1))
							if got := float64(n.Out[(r*c.heads+h)*c.dv+j]); !(math.Abs(got-o*float64(n.Scale)) <= tol*float64(n.Scale)) {
								t.Fatalf("%s, %+v grouped %t, token %d, head %d, column %d: %g, float64 %g, bound %.3g", l, c, grouped, r, h, j, got, o*float64(n.Scale), tol)
							}
						}
					}
				}
				for i, x := range n.State {
					if !(math.Abs(float64(x)-state[i]) <= math.Exp2(-24)*float64(c.dk+8)*32*8) {
						t.Fatalf("%s, %+v: state %d is %g, float64 %g", l, c, i, x, state[i])
					}
				}
			}
		}
		restore()
	}
}

// TestDeltaNetLevels: the bits of portable code, all tokens at once or one by one, all heads or each alone.
func TestDeltaNetLevels(t *testing.T) {
	rng := rand.New(rand.NewPCG(72, 73))
	for _, c := range deltaShapes {
		for i, p := range activationPatterns {
			if raceOn && i > 0 {
				break // portable code is slow there
			}
			const rows = 3
			n := deltaCase(rng, rows, c.heads, c.keyHeads, c.dk, c.dv, rng.IntN(2) == 0)
			if p != "random" {
				copy(n.V, patternFloats(rng, p, c.heads*c.dv))
				copy(n.State, patternFloats(rng, p, len(n.State)))
			}
			want := n.clone()
			restore := SetLevel(LevelGeneric)
			want.Run(0, c.heads)
			restore()
			for l := LevelGeneric; l <= best(); l++ {
				restore := SetLevel(l)
				got := n.clone()
				for h := range c.heads {
					for r := range rows {
						one := *got
						one.Rows, one.Q, one.K, one.V = 1, n.Q[r*n.Stride:], n.K[r*n.Stride:], n.V[r*n.Stride:]
						one.Decay, one.Beta = n.Decay[r*c.heads:(r+1)*c.heads], n.Beta[r*c.heads:(r+1)*c.heads]
						one.Out = got.Out[r*c.heads*c.dv : (r+1)*c.heads*c.dv]
						one.Run(h, h+1)
					}
				}
				what := fmt.Sprintf("%s, %+v, %s", l, c, p)
				compareBits(t, what+", out", got.Out, want.Out)
				compareBits(t, what+", state", got.State, want.State)
				got = n.clone()
				got.Run(0, c.heads)
				compareBits(t, what+", out of all", got.Out, want.Out)
				compareBits(t, what+", state of all", got.State, want.State)
				restore()
			}
		}
	}
}

func FuzzDeltaNet(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint8(seed*9), uint8(seed*23), uint8(seed), uint8(seed*3))
	}
	f.Fuzz(func(t *testing.T, seed uint64, dk, dv, rows, pattern uint8) {
		rng := rand.New(rand.NewPCG(seed, 74))
		keyHeads := 1 + int(seed%2)
		heads := keyHeads * (1 + int(seed/2%3))
		n := deltaCase(rng, 1+int(rows%4), heads, keyHeads, 1+int(dk)%130, 1+int(dv), seed%5 == 0)
		copy(n.State, patternFloats(rng, activationPatterns[int(pattern)%len(activationPatterns)], len(n.State)))
		var want *DeltaNet
		for l := LevelGeneric; l <= best(); l++ {
			restore := SetLevel(l)
			got := n.clone()
			got.Run(0, heads)
			restore()
			if want == nil {
				want = got
			}
			compareBits(t, l.String()+" out", got.Out, want.Out)
			compareBits(t, l.String()+" state", got.State, want.State)
		}
	})
}

// convCase is a convolution with random contents.
func convCase(rng *rand.Rand, pattern string, channels, taps, dilation, rows int) *Conv {
	stride := channels + rng.IntN(4)
	back := (taps - 1) * max(dilation, 1)
	v := &Conv{Channels: channels, Taps: taps, Dilation: dilation, Rows: rows, Stride: stride, X: patternFloats(rng, pattern, rows*stride),
		Weight: randomFloats(rng, taps*channels, 1), Out: make([]float32, rows*stride)}
	if back > 0 {
		v.State = patternFloats(rng, pattern, back*channels)
	}
	return v
}

// TestConv compares with float64 and every level with the portable code, with all rows at once and one by one, all channels
// and parts of them; the state must be the last inputs.
func TestConv(t *testing.T) {
	rng := rand.New(rand.NewPCG(75, 76))
	for _, channels := range []int{1, 7, 8, 33, 256} {
		if raceOn && channels > 33 {
			break
		}
		for _, c := range []struct{ taps, dilation, rows int }{{4, 0, 1}, {4, 1, 2}, {4, 1, 9}, {4, 3, 1}, {4, 3, 5}, {4, 3, 20}, {3, 1, 4}, {1, 1, 3}, {2, 2, 5}} {
			for _, p := range []string{"random", "huge", "tiny", "zero", "spikes", "bad"} {
				v := convCase(rng, p, channels, c.taps, c.dilation, c.rows)
				state := append([]float32(nil), v.State...)
				d := max(c.dilation, 1)
				back := (c.taps - 1) * d
				var all []float32 // inputs, the state's first
				for i := range back {
					all = append(all, state[i*channels:(i+1)*channels]...)
				}
				for r := range c.rows {
					all = append(all, v.X[r*v.Stride:][:channels]...)
				}
				var want []float32
				for l := LevelGeneric; l <= best(); l++ {
					restore := SetLevel(l)
					what := fmt.Sprintf("%s, %d channels, %+v, %s", l, channels, c, p)
					for _, cut := range []bool{false, true} {
						copy(v.State, state)
						clear(v.Out)
						if cut {
							for r := range c.rows {
								one := *v
								one.Rows, one.X, one.Out = 1, v.X[r*v.Stride:], v.Out[r*v.Stride:]
								one.Run(channels/3, channels)
								one.Run(0, channels/3)
							}
						} else {
							v.Run(0, channels)
						}
						if want == nil {
							want = append(want, v.Out...)
						}
						compareBits(t, what, v.Out, want)
						compareBits(t, what+", state", v.State, all[len(all)-len(v.State):])
					}
					restore()
				}
				if p != "random" {
					continue
				}
				for r := range c.rows {
					for ch := range channels {
						sum, mass := 0.0, 0.0
						for j := range c.taps {
							x := float64(all[(r+j*d)*channels+ch]) * float64(v.Weight[j*channels+ch])
							sum, mass = sum+x, mass+math.Abs(x)
						}
						y := sum / (1 + math.Exp(-sum))
						if got := float64(want[r*v.Stride+ch]); !(math.Abs(got-y) <= 1.2*mass*float64(c.taps+1)*math.Exp2(-24)+math.Abs(y)*8*math.Exp2(-24)) {
							t.Fatalf("%d channels, %+v: row %d, channel %d is %g, float64 %g", channels, c, r, ch, got, y)
						}
					}
				}
			}
		}
	}
}

func TestL2Norm(t *testing.T) {
	rng := rand.New(rand.NewPCG(77, 78))
	for _, n := range []int{1, 3, 8, 31, 128, 1000} {
		for _, p := range activationPatterns {
			x := patternFloats(rng, p, n)
			var want []float32
			for l := LevelGeneric; l <= best(); l++ {
				restore := SetLevel(l)
				y := append([]float32(nil), x...)
				L2Norm(y, 1e-6)
				restore()
				if want == nil {
					want = y
				}
				compareBits(t, fmt.Sprintf("L2Norm of %d, %s, on %s", n, p, l), y, want)
			}
			if p == "random" || p == "spikes" {
				sum := 0.0
				for _, v := range x {
					sum += float64(v) * float64(v)
				}
				for i, v := range x {
					if y := float64(v) / math.Sqrt(sum+1e-6); !(math.Abs(float64(want[i])-y) <= math.Abs(y)*math.Exp2(-22)) {
						t.Fatalf("L2Norm of %d: element %d is %g, float64 %g", n, i, want[i], y)
					}
				}
			}
		}
	}
}

func TestDeltaGates(t *testing.T) {
	rng := rand.New(rand.NewPCG(79, 80))
	const heads, rows = 16, 40
	alpha, b, dt, a := randomFloats(rng, heads*rows, 6), randomFloats(rng, heads*rows, 6), randomFloats(rng, heads, 2), make([]float32, heads)
	for i := range a {
		a[i] = -16 * rng.Float32()
	}
	alpha[0], alpha[1], alpha[2] = 30, -90, 19.99-dt[2]
	decay, beta := make([]float32, heads*rows), make([]float32, heads*rows)
	DeltaGates(decay, beta, alpha, b, a, dt)
	for i := range decay {
		x := float64(alpha[i] + dt[i%heads])
		g := float64(a[i%heads]) * math.Log1p(math.Exp(x))
		if x > 20 {
			g = float64(a[i%heads]) * x
		}
		if d := math.Abs(float64(decay[i]) - math.Exp(g)); d > math.Exp(g)*(math.Abs(g)+4)*math.Exp2(-22)+1e-37 {
			t.Errorf("decay of %g is %g, float64 %g", x, decay[i], math.Exp(g))
		}
		if y := 1 / (1 + math.Exp(-float64(b[i]))); math.Abs(float64(beta[i])-y) > y*math.Exp2(-21) {
			t.Errorf("beta of %g is %g, float64 %g", b[i], beta[i], y)
		}
	}
}

// BenchmarkDeltaNet steps layers whose states are far larger than the caches: bytes of state read (as many are written), beside
// the read loop over the same memory.
func BenchmarkDeltaNet(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	const heads, dim = 48, 128
	n := deltaCase(rng, 1, heads, 16, dim, dim, false)
	size := heads * dim * dim
	layers := make([]float32, 40*size) // 126 MB
	for i := range layers {
		layers[i] = n.State[i%size]
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&layers[0])), 4*len(layers))
	rate := func(b *testing.B, f func(layer int)) {
		layer := 0
		d := fastest(b, func() { f(layer % 40); layer++ })
		b.ReportMetric(float64(4*size)/d.Seconds()/1e9, "GB/s")
	}
	b.Run("read loop", func(b *testing.B) {
		rate(b, func(l int) { ReadLoop(raw[l*4*size : (l+1)*4*size]) })
	})
	for l := LevelAVX2; l <= best(); l++ {
		b.Run(l.String(), func(b *testing.B) {
			defer SetLevel(l)()
			rate(b, func(l int) {
				n.State = layers[l*size : (l+1)*size]
				n.Run(0, heads)
			})
		})
		b.Run(l.String()+"/in cache", func(b *testing.B) {
			defer SetLevel(l)()
			n.State = layers[:size]
			d := fastest(b, func() { n.Run(0, 4) })
			b.ReportMetric(float64(4*size)/12/d.Seconds()/1e9, "GB/s")
		})
	}
}

func BenchmarkConv(b *testing.B) {
	v := convCase(rand.New(rand.NewPCG(6, 6)), "random", 10240, 4, 1, 1)
	for l := LevelGeneric; l <= best(); l++ {
		b.Run(l.String(), func(b *testing.B) {
			defer SetLevel(l)()
			b.ReportMetric(float64(fastest(b, func() { v.Run(0, v.Channels) }).Nanoseconds())/1e3, "µs")
		})
	}
}
