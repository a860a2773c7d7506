package kernels

import "terrace/internal/fmath"

// DeltaNet is the recurrence of a gated DeltaNet layer over Rows tokens of one sequence. Per head, with its state S of
// KeyDim x ValDim:
//
//	t = decay * (S^T k);  d = beta * (v - t);  S = decay*S + k d^T;  out = scale * (S^T q)
//
// Order: every column j of S is by itself. t_j = fma(S_ij, k_i, t_j) for i in order, from zero; then d_j with its products
// and the difference rounded one by one; S_ij = fma(k_i, d_j, decay*S_ij), the product with decay rounded; out_j =
// fma(S_ij, q_i, out_j) for i in order, from zero; out_j times scale. So neither the vector width nor the cut by heads shows.
type DeltaNet struct {
	Rows            int
	Heads, KeyHeads int // value heads; heads of queries and keys, a divisor
	KeyDim, ValDim  int
	// Grouped: head h reads key head h/(Heads/KeyHeads) (qwen3next); otherwise h%KeyHeads (qwen35moe, qwen4exp).
	Grouped bool
	// Q and K have KeyHeads*KeyDim elements a row and V has Heads*ValDim; row t begins at element t*Stride of each.
	Q, K, V     []float32
	Stride      int
	Decay, Beta []float32 // Rows x Heads
	Scale       float32
	State       []float32 // Heads x KeyDim x ValDim; updated
	Out         []float32 // Rows x Heads x ValDim
}

// Run computes heads lo <= h < hi, the tokens of a head in order. Calls for different heads may run at the same time.
func (n *DeltaNet) Run(lo, hi int) {
	n.check(lo, hi)
	step := current().deltaStep
	size := n.KeyDim * n.ValDim
	for h := lo; h < hi; h++ {
		key := h % n.KeyHeads
		if n.Grouped {
			key = h / (n.Heads / n.KeyHeads)
		}
		s := n.State[h*size : (h+1)*size]
		for t := range n.Rows {
			row := t * n.Stride
			at := t*n.Heads + h
			k := n.K[row+key*n.KeyDim:][:n.KeyDim]
			q := n.Q[row+key*n.KeyDim:][:n.KeyDim]
			v := n.V[row+h*n.ValDim:][:n.ValDim]
			step(n.Out[at*n.ValDim:(at+1)*n.ValDim], s, q, k, v, n.Decay[at], n.Beta[at], n.Scale)
		}
	}
}

func (n *DeltaNet) check(lo, hi int) {
	if n.Rows < 0 || n.KeyHeads < 1 || n.Heads < 1 || n.Heads%n.KeyHeads != 0 || n.KeyDim < 1 || n.ValDim < 1 || lo < 0 || hi > n.Heads {
		panicf("kernels: DeltaNet of heads %d to %d of %d with %d key heads of %d by %d, %d rows", lo, hi, n.Heads, n.KeyHeads, n.KeyDim, n.ValDim, n.Rows)
	}
	if len(n.State) != n.Heads*n.KeyDim*n.ValDim {
		panicf("kernels: DeltaNet with a state of %d elements, %d heads of %d by %d have %d", len(n.State), n.Heads, n.KeyDim, n.ValDim, n.Heads*n.KeyDim*n.ValDim)
	}
	if len(n.Decay) != n.Rows*n.Heads || len(n.Beta) != n.Rows*n.Heads || len(n.Out) != n.Rows*n.Heads*n.ValDim {
		panicf("kernels: DeltaNet of %d rows of %d heads of %d with %d decays, %d betas and %d results", n.Rows, n.Heads, n.ValDim, len(n.Decay), len(n.Beta), len(n.Out))
	}
	if last := (n.Rows - 1) * n.Stride; n.Rows > 0 && (n.Stride < 0 || len(n.Q) < last+n.KeyHeads*n.KeyDim || len(n.K) < last+n.KeyHeads*n.KeyDim || len(n.V) < last+n.Heads*n.ValDim) {
		panicf("kernels: DeltaNet of %d rows at a distance of %d in %d queries, %d keys and %d values", n.Rows, n.Stride, len(n.Q), len(n.K), len(n.V))
	}
}

func deltaStepGeneric(out, s, q, k, v []float32, decay, beta, scale float32) {
	deltaColumns(out, s, q, k, v, decay, beta, scale, 0)
}

// deltaColumns is one step of a head for the columns from the given one on, some at a time.
func deltaColumns(out, s, q, k, v []float32, decay, beta, scale float32, from int) {
	dv := len(v)
	for j := from; j < dv; j += 16 {
		n := min(16, dv-j)
		var t, o [16]float32
		for i, x := range k {
			for c, y := range s[i*dv+j : i*dv+j+n] {
				t[c] = fmath.Fma(y, x, t[c])
			}
		}
		for c := range n {
			d := v[j+c] - float32(decay*t[c])
			t[c] = float32(beta * d)
		}
		for i, x := range k {
			row := s[i*dv+j : i*dv+j+n]
			for c, y := range row {
				row[c] = fmath.Fma(x, t[c], float32(decay*y))
				o[c] = fmath.Fma(row[c], q[i], o[c])
			}
		}
		for c := range n {
			out[j+c] = float32(o[c] * scale)
		}
	}
}

// DeltaGates turns the projections of a token (or of several, row by row) into the factors of DeltaNet, heads = len(a):
// decay = exp(a * softplus(alpha+dt)), beta = sigmoid(b). a is negative, as files have it. Every operation is rounded to
// float32 by itself, but for the logarithm in softplus(x) = ln(1+exp(x)), which is float64's; above 20 softplus(x) is x.
func DeltaGates(decay, beta, alpha, b, a, dt []float32) {
	sameLen("DeltaGates", len(decay), len(beta), len(alpha), len(b))
	sameLen("DeltaGates", len(a), len(dt))
	if len(a) == 0 || len(decay)%len(a) != 0 {
		panicf("kernels: DeltaGates of %d factors for %d heads", len(decay), len(a))
	}
	for i := range decay {
		h := i % len(a)
		decay[i] = fmath.Exp(float32(a[h] * softplus(alpha[i]+dt[h])))
		beta[i] = fmath.Sigmoid(b[i])
	}
}

func softplus(x float32) float32 {
	if x > 20 || x != x {
		return x
	}
	return float32(fmath.Log(1 + float64(fmath.Exp(x))))
}

// L2Norm divides x by its length: x = x * scale with scale = 1/sqrt(sum(x^2)+eps). Squares are exact in float64 and summed
// as RMSNorm does; the scale is rounded to float32 once.
func L2Norm(x []float32, eps float32) {
	if len(x) > 0 {
		current().l2Norm(x, eps)
	}
}

func l2NormGeneric(x []float32, eps float32) {
	var acc [8]float64
	for i, v := range x {
		acc[i&7] += float64(float64(v) * float64(v))
	}
	scale := normScale(join8f64(&acc), 1, eps)
	for i, v := range x {
		x[i] = float32(v * scale)
	}
}

// Conv is a causal depthwise convolution over the rows of a sequence, followed by silu: channel c of output t is
// silu(sum over j < Taps of Weight[j][c] * input(t-(Taps-1-j)*Dilation)[c] + Bias[c]). Inputs before the first row come from
// State.
//
// Order: products are added by fma in the order of the taps, the oldest input first, from zero; then the bias, where there is
// one; silu is fmath's.
type Conv struct {
	Channels, Taps int
	Dilation       int // 0: 1
	Rows           int
	// X holds the inputs and Out gets the results; row t of each begins at element t*Stride. They must not overlap.
	X, Out []float32
	Stride int
	Weight []float32 // Taps x Channels: a file's [Channels x Taps] transposed
	Bias   []float32 // Channels, or nil
	Linear bool      // without silu
	State  []float32 // (Taps-1)*Dilation x Channels: the inputs before the first row, the oldest first; updated
}

// Run computes channels lo <= c < hi and moves their state on. Calls for different channels may run at the same time.
func (v *Conv) Run(lo, hi int) {
	d := max(v.Dilation, 1)
	back := (v.Taps - 1) * d
	v.check(back, lo, hi)
	if lo == hi || v.Rows == 0 {
		return
	}
	// input is row t of the sequence, the rows before the first from the state.
	input := func(t int) []float32 {
		if t < 0 {
			return v.State[(back+t)*v.Channels+lo : (back+t)*v.Channels+hi]
		}
		return v.X[t*v.Stride+lo : t*v.Stride+hi]
	}
	conv4 := current().conv4
	for t := range v.Rows {
		out := v.Out[t*v.Stride+lo : t*v.Stride+hi]
		if v.Taps == 4 && v.Bias == nil && !v.Linear {
			conv4(out, input(t-3*d), input(t-2*d), input(t-d), input(t), v.Weight[lo:], v.Channels)
			continue
		}
		clear(out)
		for j := range v.Taps {
			w := v.Weight[j*v.Channels+lo : j*v.Channels+hi]
			for c, x := range input(t - (v.Taps-1-j)*d) {
				out[c] = fmath.Fma(w[c], x, out[c])
			}
		}
		if v.Bias != nil {
			for c, b := range v.Bias[lo:hi] {
				out[c] += b
			}
		}
		if !v.Linear {
			for c, x := range out {
				out[c] = fmath.Silu(x)
			}
		}
	}
	for i := range back { // ascending: what is read lies at or behind what is written
		copy(v.State[i*v.Channels+lo:i*v.Channels+hi], input(v.Rows+i-back))
	}
}

// conv4Generic is four taps of one row: x0 is the oldest input, the weights of tap j are w[j*ld:].
func conv4Generic(out, x0, x1, x2, x3, w []float32, ld int) {
	for c := range out {
		sum := fmath.Fma(w[c], x0[c], 0)
		sum = fmath.Fma(w[ld+c], x1[c], sum)
		sum = fmath.Fma(w[2*ld+c], x2[c], sum)
		out[c] = fmath.Silu(fmath.Fma(w[3*ld+c], x3[c], sum))
	}
}

func (v *Conv) check(back, lo, hi int) {
	if v.Channels < 1 || v.Taps < 1 || v.Dilation < 0 || v.Rows < 0 || lo < 0 || hi < lo || hi > v.Channels {
		panicf("kernels: Conv of channels %d to %d of %d, %d taps, dilation %d, %d rows", lo, hi, v.Channels, v.Taps, v.Dilation, v.Rows)
	}
	if len(v.Weight) != v.Taps*v.Channels || len(v.State) != back*v.Channels || v.Bias != nil && len(v.Bias) != v.Channels {
		panicf("kernels: Conv of %d taps over %d channels with %d weights, %d biases and a state of %d elements, want %d", v.Taps, v.Channels, len(v.Weight), len(v.Bias), len(v.State), back*v.Channels)
	}
	if need := (v.Rows-1)*v.Stride + v.Channels; v.Rows > 0 && (v.Stride < v.Channels || len(v.X) < need || len(v.Out) < need) {
		panicf("kernels: Conv of %d rows at a distance of %d in %d inputs and %d results", v.Rows, v.Stride, len(v.X), len(v.Out))
	}
}
