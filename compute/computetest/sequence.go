package computetest

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/quant"
)

func (s Suite) attention(t *testing.T) {
	e := s.Backend.Encoder()
	for _, c := range []struct {
		kt, vt compute.KVType
		kd, vd int
	}{
		{compute.KVF32, compute.KVF32, 24, 16}, {compute.KVF16, compute.KVF16, 24, 16}, {compute.KVQ8_0, compute.KVQ8_0, 64, 32},
		{compute.KVQ4_0, compute.KVQ4_0, 32, 64}, {compute.KVQ8_0, compute.KVF16, 32, 24}, {compute.KVF32, compute.KVQ4_0, 24, 32},
	} {
		const kvHeads, group, n = 2, 3, 140
		kd, vd, typ := c.kd, c.vd, c.kt.String()+"/"+c.vt.String()
		heads := kvHeads * group
		l := compute.KVLayer{Heads: kvHeads, KeyDim: kd, ValDim: vd}
		shape := compute.KVShape{Layers: []compute.KVLayer{l, l}, Context: n, K: c.kt, V: c.vt}
		q, k, v := random(20, n*heads*kd, 1), random(21, n*kvHeads*kd, 1), random(22, n*kvHeads*vd, 1)
		const scale = 0.2
		ks, vs := stored(t, c.kt, k), stored(t, c.vt, v)
		want := make([]float64, n*heads*vd)
		for p := range n {
			for h := range heads {
				weights, sum, top := make([]float64, p+1), 0.0, math.Inf(-1)
				for i := range weights {
					for j := range kd {
						weights[i] += float64(q[(p*heads+h)*kd+j]) * float64(ks[(i*kvHeads+h/group)*kd+j]) * scale
					}
					top = max(top, weights[i])
				}
				for i := range weights {
					weights[i] = math.Exp(weights[i] - top)
					sum += weights[i]
				}
				for i, w := range weights {
					for j := range vd {
						want[(p*heads+h)*vd+j] += w / sum * float64(vs[(i*kvHeads+h/group)*vd+j])
					}
				}
			}
		}
		var first []float32
		for _, cut := range []int{n, 1, 7} {
			kv, err := s.Backend.NewKV(shape)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*kv.Shape(), shape) {
				t.Fatalf("a cache of shape %+v came back as %+v", shape, *kv.Shape())
			}
			var got []float32
			// Positions from 40 on are written twice: the second time must win, and nothing after it may be read.
			for _, p := range append(starts(0, 60, cut), starts(40, n, cut)...) {
				m := p[1] - p[0]
				pos := make([]int32, m)
				for i := range pos {
					pos[i] = int32(p[0] + i)
				}
				d := s.empty(m, heads*vd)
				other := s.empty(m, heads*vd)
				rows := func(x []float32, cols int) compute.Tensor { return s.load(t, x[p[0]*cols:p[1]*cols], cols) }
				tq, tk, tv := rows(q, heads*kd), rows(k, kvHeads*kd), rows(v, kvHeads*vd)
				e.Attention(other, tq, tk, doubled(s, t, tv), kv, compute.AttnSpec{Layer: 0, Pos: pos, Scale: scale}) // another layer with other values
				e.Attention(d, tq, tk, tv, kv, compute.AttnSpec{Layer: 1, Pos: pos, Scale: scale})
				got = append(got[:min(len(got), p[0]*heads*vd)], s.read(t, d)...)
			}
			near(t, fmt.Sprintf("%s, batches of %d", typ, cut), got, want, relative(want, 2e-5))
			if first == nil {
				first = got
			}
			equal(t, fmt.Sprintf("%s, batches of %d", typ, cut), got, first)
			// Fewer queries than keys: only the last positions are asked for.
			for _, m := range []int{0, 1, 5} {
				pos := make([]int32, n)
				for i := range pos {
					pos[i] = int32(i)
				}
				d := s.empty(m, heads*vd)
				tq := s.empty(0, heads*kd)
				if m > 0 {
					tq = s.load(t, q[(n-m)*heads*kd:], heads*kd)
				}
				e.Attention(d, tq, s.load(t, k, kvHeads*kd), s.load(t, v, kvHeads*vd), kv, compute.AttnSpec{Layer: 1, Pos: pos, Scale: scale})
				equal(t, fmt.Sprintf("%s, the last %d positions", typ, m), s.read(t, d), first[(n-m)*heads*vd:])
			}
			kv.Free()
		}
	}
}

// stored is x as a cache of type kt keeps it.
func stored(t testing.TB, kt compute.KVType, x []float32) []float32 {
	typ := map[compute.KVType]gguf.Type{compute.KVF32: gguf.F32, compute.KVF16: gguf.F16, compute.KVQ8_0: gguf.Q8_0, compute.KVQ4_0: gguf.Q4_0}[kt]
	b, y := make([]byte, typ.RowBytes(len(x))), make([]float32, len(x))
	if err := quant.Encode(typ, b, x); err != nil {
		t.Fatal(err)
	}
	if err := quant.Decode(typ, y, b); err != nil {
		t.Fatal(err)
	}
	return y
}

// doubled is v doubled.
func doubled(s Suite, t testing.TB, v compute.Tensor) compute.Tensor {
	x := s.read(t, v)
	for i := range x {
		x[i] *= 2
	}
	return s.load(t, x, v.Cols())
}

// starts cuts positions from..to into batches.
func starts(from, to, cut int) (out [][2]int) {
	for ; from < to; from += cut {
		out = append(out, [2]int{from, min(from+cut, to)})
	}
	return out
}

// experts makes experts whose matrices have the given types.
func experts(t testing.TB, n, embd, ff int, gate, up, down gguf.Type) []compute.Expert {
	out := make([]compute.Expert, n)
	for i := range out {
		seed := uint64(100 + 10*i)
		out[i].Gate, _ = Matrix(t, seed, gate, embd, ff)
		out[i].Up, _ = Matrix(t, seed+1, up, embd, ff)
		out[i].Down, _ = Matrix(t, seed+2, down, ff, embd)
	}
	return out
}

func (s Suite) expertFFN(t *testing.T) {
	e := s.Backend.Encoder()
	const embd, ff, rows = 256, 256, 6
	mixes := [][3]gguf.Type{{gguf.Q4_K, gguf.Q8_0, gguf.Q6_K}, {gguf.Q8_0, gguf.Q8_0, gguf.Q4_K}, {gguf.F16, gguf.Q4_K, gguf.F32}}
	for _, typ := range s.types() {
		mixes = append(mixes, [3]gguf.Type{typ, typ, typ})
	}
	for _, mix := range mixes {
		what := fmt.Sprint(mix)
		xs := experts(t, 3, embd, ff, mix[0], mix[1], mix[2])
		x := s.load(t, random(30, rows*embd, 1), embd)
		// The same by dense operations, all rows at once.
		want := make([][]float32, len(xs))
		for i := range xs {
			g, u, d := s.empty(rows, ff), s.empty(rows, ff), s.empty(rows, embd)
			e.MatMul(g, s.weight(t, xs[i].Gate), x)
			e.MatMul(u, s.weight(t, xs[i].Up), x)
			e.Activate(g, g, u, compute.SiLU)
			e.MatMul(d, s.weight(t, xs[i].Down), g)
			want[i] = s.read(t, d)
		}
		calls := []struct {
			expert, first int
			in            []int32
		}{
			{1, 0, []int32{4}}, {0, 1, []int32{0, 2, 3, 5}}, {2, 5, []int32{5}}, {2, 6, nil}, {1, 6, []int32{1, 2}}, {0, 8, []int32{0, 1, 3, 4, 5}},
		}
		for _, flush := range []int{0, 2} {
			parts := s.empty(13, embd)
			var rowsOut []float32
			for i, c := range calls {
				e.ExpertFFN(parts, c.first, &xs[c.expert], x, c.in)
				if flush > 0 && i%flush == 0 {
					e.Flush()
				}
				for _, r := range c.in {
					rowsOut = append(rowsOut, want[c.expert][int(r)*embd:(int(r)+1)*embd]...)
				}
			}
			equal(t, fmt.Sprintf("%s, flushed every %d", what, flush), s.read(t, parts), rowsOut)
		}
	}
}

func (s Suite) weightedSum(t *testing.T) {
	e := s.Backend.Encoder()
	for _, rows := range []int{1, 33} {
		const k, cols = 3, 700
		x, p := random(40, rows*cols, 1), random(41, rows*k*cols, 1)
		weights := random(42, rows*k, 1)
		index := make([]int32, rows*k)
		for i := range index {
			index[i] = int32((i*7 + 5) % len(index)) // a permutation: 7 does not divide 3 or 99
		}
		if sorted := slices.Sorted(slices.Values(index)); int(sorted[len(sorted)-1]) != len(index)-1 || len(slices.Compact(sorted)) != len(index) {
			t.Fatal("index is no permutation")
		}
		want := make([]float64, len(x))
		exactly := make([]float32, len(x))
		for i := range want {
			r, c := i/cols, i%cols
			sum, sum32 := 0.0, float32(0)
			for j := range k {
				v, w := p[int(index[r*k+j])*cols+c], weights[r*k+j]
				sum += float64(v) * float64(w)
				sum32 += float32(v * w)
			}
			want[i] = float64(x[i]) + sum
			exactly[i] = x[i] + sum32
		}
		a := s.load(t, x, cols)
		e.WeightedSum(a, s.load(t, p, cols), index, weights, k)
		got := s.read(t, a)
		near(t, "WeightedSum", got, want, relative(want, 1e-6))
		equal(t, "WeightedSum in the order of the contract", got, exactly)
	}
}

// told counts Done.
type told struct{ n int }

func (d *told) Done() { d.n++ }

func (s Suite) onDone(t *testing.T) {
	d := &told{}
	s.Backend.Encoder().OnDone(d)
	if err := s.Backend.Encoder().Submit(); err != nil {
		t.Fatal(err)
	}
	if d.n != 1 {
		t.Errorf("Done was told %d times, want 1", d.n)
	}
}

func (s Suite) refuses(t *testing.T) {
	if s.Backend.Supports(gguf.I32) {
		t.Error("I32 is said to be supported")
	}
	good := compute.Matrix{Type: gguf.Q8_0, In: 64, Out: 3, Data: make([]byte, 2*34*3)}
	for what, change := range map[string]func(m *compute.Matrix){
		"type":   func(m *compute.Matrix) { m.Type = gguf.I32 },
		"length": func(m *compute.Matrix) { m.Data = m.Data[1:] },
		"rows":   func(m *compute.Matrix) { m.Out = 4 },
		"block":  func(m *compute.Matrix) { m.In, m.Out = 33, 6 },
		"zero":   func(m *compute.Matrix) { m.Out, m.Data = 0, nil },
	} {
		m := good
		change(&m)
		if w, err := s.Backend.NewWeight(m); err == nil {
			t.Errorf("a weight with wrong %s was taken: %v", what, w)
		}
	}
	if _, err := s.Backend.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 1, KeyDim: 8, ValDim: 8}}}); err == nil {
		t.Error("a KV cache of 0 positions was made")
	}
	for _, c := range []struct{ k, v compute.KVType }{{compute.KVQ8_0, compute.KVF16}, {compute.KVF16, compute.KVQ4_0}} {
		_, err := s.Backend.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 1, KeyDim: 48, ValDim: 48}}, Context: 8, K: c.k, V: c.v})
		if err == nil || !strings.Contains(err.Error(), "48") || !strings.Contains(err.Error(), "32") {
			t.Errorf("a cache of heads of 48 elements as %s and %s: %v", c.k, c.v, err)
		}
	}
	if _, err := s.Backend.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 1 << 20, KeyDim: 1 << 20, ValDim: 8}}, Context: 1 << 30}); err == nil {
		t.Error("a KV cache of 2^70 elements was made")
	}
}
