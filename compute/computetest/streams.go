package computetest

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"

	"terrace/compute"
	"terrace/gguf"
)

// normed is each run of dim elements of x by its root mean square, times w, which is repeated.
func normed(x []float64, w []float32, dim int, eps float64) []float64 {
	out := make([]float64, len(x))
	for i := 0; i < len(x); i += dim {
		sum := 0.0
		for _, v := range x[i : i+dim] {
			sum += v * v
		}
		for j := i; j < i+dim; j++ {
			out[j] = x[j] / math.Sqrt(sum/float64(dim)+eps) * float64(w[j%len(w)])
		}
	}
	return out
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// times is the products of rows of x with the rows of w.
func times(w []float32, in int, x []float64) []float64 {
	var out []float64
	for r := 0; r < len(x); r += in {
		for o := 0; o < len(w); o += in {
			sum := 0.0
			for i, v := range x[r : r+in] {
				sum += v * float64(w[o+i])
			}
			out = append(out, sum)
		}
	}
	return out
}

func (s Suite) mix(t *testing.T) {
	e := s.Backend.Encoder()
	const streams, width, rank, eps = 4, 256, 32, 1e-6
	const cols = streams * width
	types, most := []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0, gguf.Q4_0}, 130
	if s.Short {
		types, most = types[1:3], 66
	}
	for _, typ := range types {
		down, dw := Matrix(t, 60, typ, cols, rank)
		up, uw := Matrix(t, 61, typ, rank, cols)
		inject, iw := Matrix(t, 62, typ, cols, streams)
		norm := random(63, cols, 1)
		m := &compute.Mixer{Norm: s.vector(t, norm), Down: s.weight(t, down), Up: s.weight(t, up), Inject: s.weight(t, inject), Streams: streams, Eps: eps}
		x := random(64, most*cols, 1)
		n := normed(widen(x), norm, width, eps)
		lo := times(dw, cols, n)
		for i, v := range lo {
			lo[i] = v / streams * sigmoid(v/streams)
		}
		gate, want := times(uw, rank, lo), make([]float64, most*width)
		for i := range want {
			for c := range streams {
				at := i/width*cols + c*width + i%width
				want[i] += n[at] * sigmoid(gate[at]) / streams
			}
		}
		wantInject := times(iw, cols, n)
		bound, injectBound := 1e-5, 1e-5
		if !s.Exact && !float(typ) {
			bound, injectBound = 0.05, 0.2
		}
		var first, firstInject []float32
		for _, rows := range []int{1, 5, most} {
			d, inj := s.empty(rows, width), s.empty(rows, streams)
			a := s.load(t, x[:rows*cols], cols)
			e.Mix(d, inj, a, m)
			got, gotInject := s.read(t, d), s.read(t, inj)
			what := fmt.Sprintf("Mix with %s of %d rows", typ, rows)
			near(t, what, got, want[:rows*width], func(i int) float64 { return bound * (1 + math.Abs(want[i])) })
			near(t, what+", inject", gotInject, wantInject[:rows*streams], func(i int) float64 { return injectBound * (1 + math.Abs(wantInject[i])) })
			if rows > 1 {
				equal(t, what+": the first row alone", got[:len(first)], first)
				equal(t, what+": the first row alone, inject", gotInject[:len(firstInject)], firstInject)
			}
			first, firstInject = got, gotInject
		}
		bare := *m
		bare.Inject = nil
		d := s.empty(most, width)
		e.Mix(d, nil, s.load(t, x, cols), &bare)
		equal(t, "Mix without inject", s.read(t, d), first)
	}
}

func (s Suite) streams(t *testing.T) {
	e := s.Backend.Encoder()
	for _, rows := range []int{1, 40} {
		const streams, width, eps = 4, 96, 1e-6
		const cols = streams * width
		y, inject, x := random(70, rows*width, 1), random(71, rows*streams, 3), random(72, rows*cols, 1)
		d := s.empty(rows, cols)
		e.Spread(d, s.load(t, y, width))
		var want []float32
		for r := range rows {
			for range streams {
				want = append(want, y[r*width:(r+1)*width]...)
			}
		}
		equal(t, "Spread", s.read(t, d), want)

		sum := widen(x)
		for i := range sum {
			r, c, j := i/cols, i%cols/width, i%width
			sum[i] += 2 * sigmoid(float64(inject[r*streams+c])/streams) * float64(y[r*width+j])
		}
		d = s.load(t, x, cols)
		e.Inject(d, s.load(t, y, width), s.load(t, inject, streams))
		near(t, "Inject", s.read(t, d), sum, relative(sum, 1e-6))

		key, val := random(73, rows*cols, 1), random(74, rows*width, 1)
		var norms [3][]float32
		for i := range norms {
			norms[i] = random(uint64(75+i), cols, 1)
		}
		a, n := s.empty(rows, cols), s.empty(rows, cols)
		e.EngramGate(a, n, s.load(t, x, cols), s.load(t, key, cols), s.load(t, val, width),
			&compute.Engram{KeyNorm: s.vector(t, norms[0]), QueryNorm: s.vector(t, norms[1]), ConvNorm: s.vector(t, norms[2]), Streams: streams, Eps: eps})
		k, q := normed(widen(key), norms[0], width, eps), normed(widen(x), norms[1], width, eps)
		out := make([]float64, rows*cols)
		for i := 0; i < len(out); i += width {
			dot := 0.0
			for j := i; j < i+width; j++ {
				dot += k[j] * q[j]
			}
			dot /= math.Sqrt(width)
			gate := sigmoid(math.Copysign(math.Sqrt(max(math.Abs(dot), 1e-6)), dot))
			for j := range width {
				out[i+j] = gate * float64(val[i/cols*width+j])
			}
		}
		near(t, "EngramGate", s.read(t, a), out, relative(out, 1e-5))
		out = normed(out, norms[2], width, eps)
		near(t, "EngramGate's norm", s.read(t, n), out, relative(out, 1e-5))

		const parts = 3
		m, values := Matrix(t, 78, gguf.Q4_0, 32, 20)
		size := m.Type.RowBytes(32)
		var raw [][]byte
		want = nil
		for i := range rows * parts {
			at := i * 7 % 20
			raw = append(raw, m.Data[at*size:(at+1)*size])
			want = append(want, values[at*32:(at+1)*32]...)
		}
		d = s.empty(rows, 32*parts)
		e.DecodeRows(d, m.Type, raw)
		equal(t, "DecodeRows", s.read(t, d), want)
	}
}

// sparseCase is a sequence under block-sparse attention.
type sparseCase struct {
	s                     Suite
	q, k, v, iq, ik, norm []float32
	n, top                int
	kv                    compute.KVType
}

const (
	sparseHeads, sparseKV, sparseDim, sparseVal = 8, 2, 32, 16
	indexHeads, indexDim, indexBlock, indexTurn = 5, 32, 4, 16
	sparseScale, sparseEps                      = 0.21, 1e-6
)

// angle is the rotation of pair j at a position.
func angle(p, j int) (cos, sin float32) {
	b, a := math.Sincos(float64(p) * math.Pow(50, -float64(j)/(indexTurn/2)))
	return float32(a), float32(b)
}

// run feeds the sequence in batches of cut and answers the results of all queries; with batches of 7 those of the last of
// each.
func (c *sparseCase) run(t *testing.T, cut int, dense bool) []float32 {
	b := c.s.Backend
	e := b.Encoder()
	kv, err := b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 1, KeyDim: 32, ValDim: 32}, {Heads: sparseKV, KeyDim: sparseDim, ValDim: sparseVal}},
		Context: c.n + 3, K: c.kv, V: c.kv})
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Free()
	index, err := b.NewIndex(compute.IndexShape{Layers: 3, Dim: indexDim, Block: indexBlock, Context: c.n + 3, Type: compute.IndexType(c.kv)})
	if err != nil {
		t.Fatal(err)
	}
	defer index.Free()
	rows := func(x []float32, cols, from, to int) compute.Tensor { return c.s.load(t, x[from*cols:to*cols], cols) }
	norm := c.s.vector(t, c.norm)
	var all []float32
	for at := 0; at < c.n; at += cut {
		to := min(at+cut, c.n)
		spec := compute.SparseSpec{AttnSpec: compute.AttnSpec{Layer: 1, Scale: sparseScale}, Index: index, IndexLayer: 2, Top: c.top, Norm: norm, Eps: sparseEps}
		for p := at; p < to; p++ {
			spec.Pos = append(spec.Pos, int32(p))
			if p%indexBlock == indexBlock-1 {
				for j := range indexTurn / 2 {
					cos, sin := angle(p-indexBlock+1, j)
					spec.Cos, spec.Sin = append(spec.Cos, cos), append(spec.Sin, sin)
				}
			}
		}
		first := at
		if cut == 7 {
			first = to - 1
		}
		d := c.s.empty(to-first, sparseHeads*sparseVal)
		q, k, v := rows(c.q, sparseHeads*sparseDim, first, to), rows(c.k, sparseKV*sparseDim, at, to), rows(c.v, sparseKV*sparseVal, at, to)
		if dense {
			e.Attention(d, q, k, v, kv, spec.AttnSpec)
		} else {
			e.SparseAttention(d, q, k, v, rows(c.iq, indexHeads*indexDim, first, to), rows(c.ik, indexDim, at, to), kv, &spec)
		}
		all = append(all, c.s.read(t, d)...)
	}
	return all
}

// want computes query p in float64, with keys of float32. cut tells that a part of a block was taken, which one is not told
// here.
func (c *sparseCase) want(p int) (out []float64, cut bool) {
	turned := func(pos int, x []float64) []float64 {
		for j := range indexTurn / 2 {
			cos, sin := angle(pos, j)
			u, v := x[j], x[j+indexTurn/2]
			x[j], x[j+indexTurn/2] = u*float64(cos)-v*float64(sin), u*float64(sin)+v*float64(cos)
		}
		return x
	}
	whole := (p + 1) / indexBlock
	scores, order := make([]float64, whole), make([]int, whole)
	for b := range whole {
		mean := make([]float64, indexDim)
		for i := range indexBlock * indexDim {
			mean[i%indexDim] += float64(c.ik[b*indexBlock*indexDim+i]) / indexBlock
		}
		key := turned(b*indexBlock, normed(mean, c.norm, indexDim, sparseEps))
		for h := range indexHeads {
			dot := 0.0
			for i, x := range key {
				dot += x * float64(c.iq[(p*indexHeads+h)*indexDim+i])
			}
			scores[b] += max(dot, 0)
		}
		order[b] = b
	}
	sort.SliceStable(order, func(i, j int) bool { return scores[order[i]] > scores[order[j]] })
	tail := (p + 1) % indexBlock
	var at []int
	for i, b := range order {
		n := min(indexBlock, (c.top-i)*indexBlock+indexBlock-1-tail)
		for i := range n {
			at = append(at, b*indexBlock+i)
		}
		if n < indexBlock {
			cut = n > 0
			break
		}
	}
	for i := whole * indexBlock; i <= p; i++ {
		at = append(at, i)
	}
	out = make([]float64, sparseHeads*sparseVal)
	for h := range sparseHeads {
		g := h / (sparseHeads / sparseKV)
		sum := 0.0
		for _, i := range at {
			dot := 0.0
			for j := range sparseDim {
				dot += float64(c.q[(p*sparseHeads+h)*sparseDim+j]) * float64(c.k[(i*sparseKV+g)*sparseDim+j])
			}
			w := math.Exp(dot * sparseScale)
			sum += w
			for j := range sparseVal {
				out[h*sparseVal+j] += w * float64(c.v[(i*sparseKV+g)*sparseVal+j])
			}
		}
		for j := range sparseVal {
			out[h*sparseVal+j] /= sum
		}
	}
	return out, cut
}

func (s Suite) sparse(t *testing.T) {
	n := 275
	tops := []int{1, 9, n}
	if s.Short {
		n, tops = 90, []int{9, 90}
	}
	c := &sparseCase{s: s, n: n, q: random(80, n*sparseHeads*sparseDim, 1), k: random(81, n*sparseKV*sparseDim, 1), v: random(82, n*sparseKV*sparseVal, 1),
		iq: random(83, n*indexHeads*indexDim, 1), ik: random(84, n*indexDim, 1), norm: random(85, indexDim, 1)}
	for _, kv := range []compute.KVType{compute.KVF32, compute.KVF16} {
		for _, top := range tops {
			c.top, c.kv = top, kv
			whole := c.run(t, n, false)
			what := fmt.Sprintf("SparseAttention over the best %d blocks of %s", top, kv)
			if kv == compute.KVF32 {
				for p := range n {
					want, cut := c.want(p)
					if cut { // kernels has the test of that
						continue
					}
					near(t, fmt.Sprintf("%s, position %d", what, p), whole[p*len(want):(p+1)*len(want)], want, func(int) float64 { return 1e-4 })
				}
			}
			equal(t, what+", one by one", c.run(t, 1, false), whole)
			equal(t, what+", by 60", c.run(t, 60, false), whole)
			cols := sparseHeads * sparseVal
			var last []float32
			for p := range n {
				if p%7 == 6 || p == n-1 {
					last = append(last, whole[p*cols:(p+1)*cols]...)
				}
			}
			equal(t, what+", by 7 with the last query of each", c.run(t, 7, false), last)
			if dense := c.run(t, n, true); top == n {
				equal(t, "SparseAttention over all blocks", whole, dense)
			} else if slices.Equal(whole, dense) {
				t.Errorf("%s is dense attention", what)
			}
		}
	}
	for _, h := range []compute.IndexShape{{}, {Layers: 1, Dim: 32, Block: 1, Context: 8}, {Layers: 1, Dim: 32, Block: 4, Context: 8, Type: compute.KVQ8_0},
		{Layers: 1 << 20, Dim: 1 << 20, Block: 4, Context: 1 << 30}} {
		if x, err := s.Backend.NewIndex(h); err == nil {
			x.Free()
			t.Errorf("an index of %+v was made", h)
		}
	}
}
