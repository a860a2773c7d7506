package kernels

import "terrace/internal/fmath"

// Scan is the recurrence of a Mamba-2 layer over Rows tokens of one sequence. Per head, with its state S of StateDim x
// HeadDim:
//
//	d = dt * x;  S = decay*S + b d^T;  out = S^T c + skip*x
//
// Order: every column j of S is by itself. d_j is rounded; S_ij = fma(b_i, d_j, decay*S_ij), the product with decay rounded;
// out_j = fma(S_ij, c_i, out_j) for i in order, from zero; then the product skip*x_j, rounded, is added. So neither the
// vector width nor the cut by heads shows.
type Scan struct {
	Rows              int
	Heads, Groups     int // head h reads b and c of group h/(Heads/Groups)
	StateDim, HeadDim int
	// X has Heads*HeadDim elements a row, B and C have Groups*StateDim; row t begins at element t*Stride of each.
	X, B, C   []float32
	Stride    int
	Decay, Dt []float32 // Rows x Heads
	Skip      []float32 // Heads
	State     []float32 // Heads x StateDim x HeadDim; updated
	Out       []float32 // Rows x Heads x HeadDim
}

// Run computes heads lo <= h < hi, the tokens of a head in order. Calls for different heads may run at the same time.
func (n *Scan) Run(lo, hi int) {
	n.check(lo, hi)
	step := current().scanStep
	size := n.StateDim * n.HeadDim
	for h := lo; h < hi; h++ {
		group := h / (n.Heads / n.Groups)
		s := n.State[h*size : (h+1)*size]
		for t := range n.Rows {
			row := t * n.Stride
			at := t*n.Heads + h
			b := n.B[row+group*n.StateDim:][:n.StateDim]
			c := n.C[row+group*n.StateDim:][:n.StateDim]
			x := n.X[row+h*n.HeadDim:][:n.HeadDim]
			out := n.Out[at*n.HeadDim : (at+1)*n.HeadDim]
			for j, v := range x {
				out[j] = float32(n.Dt[at] * v)
			}
			step(out, s, c, b, n.Decay[at])
			for j, v := range x {
				out[j] += float32(n.Skip[h] * v)
			}
		}
	}
}

func (n *Scan) check(lo, hi int) {
	if n.Rows < 0 || n.Groups < 1 || n.Heads < 1 || n.Heads%n.Groups != 0 || n.StateDim < 1 || n.HeadDim < 1 || lo < 0 || hi > n.Heads {
		panicf("kernels: Scan of heads %d to %d of %d in %d groups of %d by %d, %d rows", lo, hi, n.Heads, n.Groups, n.StateDim, n.HeadDim, n.Rows)
	}
	if len(n.State) != n.Heads*n.StateDim*n.HeadDim || len(n.Skip) != n.Heads {
		panicf("kernels: Scan with a state of %d elements and %d skips, %d heads of %d by %d have %d", len(n.State), len(n.Skip), n.Heads, n.StateDim, n.HeadDim, n.Heads*n.StateDim*n.HeadDim)
	}
	if len(n.Decay) != n.Rows*n.Heads || len(n.Dt) != n.Rows*n.Heads || len(n.Out) != n.Rows*n.Heads*n.HeadDim {
		panicf("kernels: Scan of %d rows of %d heads of %d with %d decays, %d steps and %d results", n.Rows, n.Heads, n.HeadDim, len(n.Decay), len(n.Dt), len(n.Out))
	}
	if last := (n.Rows - 1) * n.Stride; n.Rows > 0 && (n.Stride < 0 || len(n.X) < last+n.Heads*n.HeadDim || len(n.B) < last+n.Groups*n.StateDim || len(n.C) < last+n.Groups*n.StateDim) {
		panicf("kernels: Scan of %d rows at a distance of %d in %d inputs, %d and %d of the groups", n.Rows, n.Stride, len(n.X), len(n.B), len(n.C))
	}
}

func scanStepGeneric(d, s, c, b []float32, decay float32) { scanColumns(d, s, c, b, decay, 0) }

// scanColumns moves the state of a head on by one token, for the columns from the given one on: d holds what enters the
// columns and gets their products with c.
func scanColumns(d, s, c, b []float32, decay float32, from int) {
	n := len(d)
	for j := from; j < n; j += 16 {
		m := min(16, n-j)
		var o [16]float32
		for i, x := range b {
			row := s[i*n+j : i*n+j+m]
			for e, y := range row {
				row[e] = fmath.Fma(x, d[j+e], float32(decay*y))
				o[e] = fmath.Fma(row[e], c[i], o[e])
			}
		}
		copy(d[j:j+m], o[:m])
	}
}

// ScanGates turns the projected time steps of a token (or of several, row by row) into the factors of Scan, heads = len(a):
// dt = softplus(x+bias), decay = exp(a*dt). a is negative, as files have it. softplus is that of DeltaGates.
func ScanGates(decay, dt, x, a, bias []float32) {
	sameLen("ScanGates", len(decay), len(dt), len(x))
	sameLen("ScanGates", len(a), len(bias))
	if len(a) == 0 || len(decay)%len(a) != 0 {
		panicf("kernels: ScanGates of %d factors for %d heads", len(decay), len(a))
	}
	for i := range decay {
		h := i % len(a)
		d := softplus(x[i] + bias[h])
		dt[i], decay[i] = d, fmath.Exp(float32(a[h]*d))
	}
}
