package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// scanCase is a layer with random contents.
func scanCase(rng *rand.Rand, rows, heads, groups, states, dim int) *Scan {
	ch := heads*dim + 2*groups*states + rng.IntN(5)
	x := randomFloats(rng, rows*ch, 1)
	n := &Scan{Rows: rows, Heads: heads, Groups: groups, StateDim: states, HeadDim: dim, X: x, B: x[heads*dim:], C: x[heads*dim+groups*states:], Stride: ch,
		Decay: make([]float32, rows*heads), Dt: make([]float32, rows*heads), Skip: randomFloats(rng, heads, 1),
		State: randomFloats(rng, heads*states*dim, 0.5), Out: make([]float32, rows*heads*dim)}
	for i := range n.Decay {
		n.Decay[i], n.Dt[i] = float32(math.Exp(-rng.ExpFloat64()/4)), rng.Float32()
	}
	return n
}

func (n *Scan) clone() *Scan {
	m := *n
	m.State, m.Out = append([]float32(nil), n.State...), make([]float32, len(n.Out))
	return &m
}

var scanShapes = []struct{ heads, groups, states, dim int }{
	{4, 2, 128, 64}, {6, 2, 32, 16}, {3, 1, 16, 48}, {2, 2, 24, 20}, {1, 1, 1, 1}, {2, 1, 7, 145}, {3, 3, 33, 208}, {2, 1, 64, 256},
}

// TestScan compares with float64: a state adds one term a token, a result has as many terms as the state has rows.
func TestScan(t *testing.T) {
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		rng := rand.New(rand.NewPCG(90, 91))
		for _, c := range scanShapes {
			if raceOn && c.states*c.dim > 5000 {
				continue
			}
			const rows = 5
			n := scanCase(rng, rows, c.heads, c.groups, c.states, c.dim)
			s := make([]float64, len(n.State))
			for i, x := range n.State {
				s[i] = float64(x)
			}
			n.Run(0, c.heads)
			for h := range c.heads {
				g := h / (c.heads / c.groups)
				for r := range rows {
					b, cc, x := n.B[r*n.Stride+g*c.states:], n.C[r*n.Stride+g*c.states:], n.X[r*n.Stride+h*c.dim:]
					decay, dt := float64(n.Decay[r*c.heads+h]), float64(n.Dt[r*c.heads+h])
					for j := range c.dim {
						out, mass := 0.0, 0.0
						for i := range c.states {
							at := (h*c.states+i)*c.dim + j
							in := float64(b[i]) * dt * float64(x[j])
							s[at] = decay*s[at] + in
							out += s[at] * float64(cc[i])
							mass += (math.Abs(s[at]) + math.Abs(in)) * math.Abs(float64(cc[i]))
						}
						skip := float64(n.Skip[h]) * float64(x[j])
						tol := math.Exp2(-24) * (float64(c.states+8+4*r)*mass*4 + 2*math.Abs(skip))
						if got := float64(n.Out[(r*c.heads+h)*c.dim+j]); !(math.Abs(got-out-skip) <= tol) {
							t.Fatalf("%s, %+v, token %d, head %d, column %d: %g, float64 %g, bound %.3g", l, c, r, h, j, got, out+skip, tol)
						}
					}
				}
			}
		}
		restore()
	}
}

// TestScanLevels: the bits of portable code, all tokens at once or one by one, all heads or each alone.
func TestScanLevels(t *testing.T) {
	rng := rand.New(rand.NewPCG(92, 93))
	for _, c := range scanShapes {
		for i, p := range activationPatterns {
			if raceOn && i > 0 {
				break
			}
			const rows = 3
			n := scanCase(rng, rows, c.heads, c.groups, c.states, c.dim)
			if p != "random" {
				copy(n.X, patternFloats(rng, p, c.heads*c.dim))
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
						one.Rows, one.X, one.B, one.C = 1, n.X[r*n.Stride:], n.B[r*n.Stride:], n.C[r*n.Stride:]
						one.Decay, one.Dt = n.Decay[r*c.heads:(r+1)*c.heads], n.Dt[r*c.heads:(r+1)*c.heads]
						one.Out = got.Out[r*c.heads*c.dim : (r+1)*c.heads*c.dim]
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

func TestScanGates(t *testing.T) {
	rng := rand.New(rand.NewPCG(94, 95))
	const heads, rows = 16, 40
	x, bias, a := randomFloats(rng, heads*rows, 6), randomFloats(rng, heads, 2), make([]float32, heads)
	for i := range a {
		a[i] = -16 * rng.Float32()
	}
	x[0], x[1] = 40, -90
	decay, dt := make([]float32, heads*rows), make([]float32, heads*rows)
	ScanGates(decay, dt, x, a, bias)
	for i := range decay {
		v := float64(x[i] + bias[i%heads])
		sp := math.Log1p(math.Exp(v))
		if v > 20 {
			sp = v
		}
		if !(math.Abs(float64(dt[i])-sp) <= sp*math.Exp2(-21)+1e-7) {
			t.Errorf("step of %g is %g, float64 %g", v, dt[i], sp)
		}
		g := float64(a[i%heads]) * float64(dt[i])
		if d := math.Abs(float64(decay[i]) - math.Exp(g)); d > math.Exp(g)*(math.Abs(g)+4)*math.Exp2(-22)+1e-37 {
			t.Errorf("decay of %g is %g, float64 %g", v, decay[i], math.Exp(g))
		}
	}
}

// TestConvPlain: without silu, with a bias and with both, against the sums in the order of the contract.
func TestConvPlain(t *testing.T) {
	rng := rand.New(rand.NewPCG(96, 97))
	for _, taps := range []int{3, 4} {
		for _, bias := range []bool{false, true} {
			for _, linear := range []bool{false, true} {
				const channels, rows = 37, 6
				v := convCase(rng, "random", channels, taps, 1, rows)
				v.Linear = linear
				if bias {
					v.Bias = randomFloats(rng, channels, 1)
				}
				state := append([]float32(nil), v.State...)
				at := func(r, c int) float64 {
					if r < 0 {
						return float64(state[(taps-1+r)*channels+c])
					}
					return float64(v.X[r*v.Stride+c])
				}
				for l := LevelGeneric; l <= best(); l++ {
					restore := SetLevel(l)
					copy(v.State, state)
					v.Run(20, channels)
					v.Run(0, 20)
					restore()
					for r := range rows {
						for c := range channels {
							sum, mass := 0.0, 0.0
							for j := range taps {
								x := at(r-taps+1+j, c) * float64(v.Weight[j*channels+c])
								sum, mass = sum+x, mass+math.Abs(x)
							}
							if bias {
								sum += float64(v.Bias[c])
								mass += math.Abs(float64(v.Bias[c]))
							}
							if !linear {
								sum /= 1 + math.Exp(-sum)
							}
							if got := float64(v.Out[r*v.Stride+c]); !(math.Abs(got-sum) <= 1.2*mass*float64(taps+2)*math.Exp2(-23)) {
								t.Fatalf("%s, %d taps, bias %t, linear %t: row %d, channel %d is %g, float64 %g", l, taps, bias, linear, r, c, got, sum)
							}
						}
					}
				}
			}
		}
	}
}
