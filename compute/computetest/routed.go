package computetest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// chooser is an encoder that chooses experts by itself, as model has it.
type chooser interface {
	Chooses(r *router.Rule, rows int) bool
	RoutedFFN(sum, scores, x compute.Tensor, r *router.Rule, l *compute.ExpertLayer, factor float32, ids []int32)
}

// Routed tests a device that keeps whole layers and chooses their experts: the choices are router.Rule's, on ties, in groups, with
// biases and scores that cannot be compared, and the sums have the bits of ExpertFFN and WeightedSum. The backend has room for
// a few MB of experts.
func (s Suite) Routed(t *testing.T) {
	slots := s.Backend.(interface {
		compute.Slots
		compute.LayerKeeper
	})
	e := s.Backend.Encoder()
	c := e.(chooser)
	const in, out, ff = 256, 320, 256
	bias := func(n int) []float32 { return random(uint64(n), n, 0.3) }
	q4, q8 := gguf.Q4_K, gguf.Q8_0
	cases := []struct {
		name   string
		rule   router.Rule
		typ    [3]gguf.Type
		act    compute.Act
		biases bool
		factor float32
		change func(scores []float32)
	}{
		{name: "softmax", rule: router.Rule{Experts: 9, K: 4, Gating: router.Softmax}, typ: [3]gguf.Type{q4, q4, q4}},
		{name: "normalised, scaled", rule: router.Rule{Experts: 9, K: 4, Gating: router.Softmax, Normalize: true, Scale: 2.5}, typ: [3]gguf.Type{q4, q4, gguf.Q6_K}, factor: 0.37},
		{name: "ties", rule: router.Rule{Experts: 9, K: 4, Gating: router.Softmax}, typ: [3]gguf.Type{q8, q8, q8},
			change: func(x []float32) {
				for i := range x {
					x[i] = float32(i % 3)
				}
			}},
		{name: "all equal", rule: router.Rule{Experts: 9, K: 9, Gating: router.Sigmoid, Normalize: true}, typ: [3]gguf.Type{q8, q8, q8},
			change: func(x []float32) { clear(x) }},
		{name: "groups, bias, scales", typ: [3]gguf.Type{q8, q4, q8},
			rule: router.Rule{Experts: 12, K: 4, Gating: router.Sigmoid, Bias: bias(12), Groups: 4, GroupsUsed: 2, Normalize: true, Scale: 1.5, ExpertScale: bias(12)}},
		{name: "groups tied", typ: [3]gguf.Type{q8, q8, q8}, rule: router.Rule{Experts: 12, K: 3, Gating: router.Softmax, Groups: 4, GroupsUsed: 2},
			change: func(x []float32) {
				for i := range x {
					x[i] = float32(i % 3)
				}
			}},
		{name: "chosen scores, biases", rule: router.Rule{Experts: 9, K: 3, Gating: router.SoftmaxWeight}, typ: [3]gguf.Type{gguf.MXFP4, gguf.MXFP4, gguf.MXFP4},
			act: compute.SwiGLUOAI, biases: true, change: func(x []float32) { x[4] = float32(math.Inf(-1)) }},
		{name: "no gate", rule: router.Rule{Experts: 9, K: 2, Gating: router.Softmax}, typ: [3]gguf.Type{q8, q8, q8}, act: compute.ReLU2},
		{name: "not a number", rule: router.Rule{Experts: 9, K: 2, Gating: router.Softmax}, typ: [3]gguf.Type{q8, q8, q8},
			change: func(x []float32) { x[8] = float32(math.NaN()) }},
		{name: "infinite", rule: router.Rule{Experts: 9, K: 2, Gating: router.SoftmaxWeight}, typ: [3]gguf.Type{q8, q8, q8},
			change: func(x []float32) { x[3] = float32(math.Inf(1)) }},
		{name: "nothing to compare", rule: router.Rule{Experts: 9, K: 2, Gating: router.SoftmaxWeight}, typ: [3]gguf.Type{q8, q8, q8},
			change: func(x []float32) {
				for i := range x {
					x[i] = float32(math.Inf(-1))
				}
			}},
	}
	var scratch router.Scratch
	for at := range cases {
		k := &cases[at]
		r := &k.rule
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		if k.factor == 0 {
			k.factor = 1
		}
		if !c.Chooses(r, 45) {
			t.Fatalf("%s: the device does not choose", k.name)
		}
		l := compute.ExpertLayer{N: r.Experts}
		l.Key, l.Act = uint64(at)<<32|1, k.act
		shape := func(typ gguf.Type, in, out int) compute.Matrix { return compute.Matrix{Type: typ, In: in, Out: out} }
		l.Up, l.Down = shape(k.typ[1], in, ff), shape(k.typ[2], ff, out)
		if k.act != compute.ReLU2 {
			l.Gate = shape(k.typ[0], in, ff)
		}
		if k.biases {
			l.GateBias, l.UpBias, l.DownBias = bias(r.Experts*ff), bias(r.Experts*ff + 1)[1:], bias(r.Experts*out)
		}
		if slots.HoldLayer(l.Key, l.N) {
			t.Fatalf("%s: a layer is kept that nobody brought", k.name)
		}
		experts := make([]compute.Expert, r.Experts)
		for i := range experts {
			x := &experts[i]
			x.Act, x.Key = k.act, l.Key+uint64(i)
			if k.act != compute.ReLU2 {
				x.Gate, _ = Matrix(t, uint64(100*at+3*i), k.typ[0], in, ff)
			}
			x.Up, _ = Matrix(t, uint64(100*at+3*i+1), k.typ[1], in, ff)
			x.Down, _ = Matrix(t, uint64(100*at+3*i+2), k.typ[2], ff, out)
			if err := slots.Put(x); err != nil {
				t.Fatal(err)
			}
			if k.biases {
				x.GateBias, x.UpBias, x.DownBias = l.GateBias[i*ff:(i+1)*ff], l.UpBias[i*ff:(i+1)*ff], l.DownBias[i*out:(i+1)*out]
			}
		}
		if !slots.HoldLayer(l.Key, l.N) {
			t.Fatalf("%s: the layer is not kept", k.name)
		}
		if slots.Drop(l.Key + 2) {
			t.Fatalf("%s: an expert of a held layer was dropped", k.name)
		}
		for _, rows := range []int{1, 3, 45} { // 45 share experts
			what := fmt.Sprintf("%s, %d rows", k.name, rows)
			x, base, scores := random(uint64(90+at), rows*in, 1), random(91, rows*out, 1), random(uint64(92+at), rows*r.Experts, 2)
			if k.change != nil {
				k.change(scores[:r.Experts])
			}
			want, ids, weights, bad := s.load(t, base, out), make([]int32, rows*r.K), make([]float32, rows*r.K), 0
			for i := range rows {
				a, b := i*r.K, (i+1)*r.K
				if err := r.TopK(scores[i*r.Experts:(i+1)*r.Experts], ids[a:b], weights[a:b], &scratch); err != nil {
					bad++
					for j := a; j < b; j++ {
						ids[j] = -1
					}
				}
			}
			tx := s.load(t, x, in)
			if bad == 0 {
				parts, index := s.empty(len(ids), out), make([]int32, len(ids))
				for j, id := range ids {
					e.ExpertFFN(parts, j, &experts[id], tx, []int32{int32(j / r.K)})
					index[j] = int32(j)
					weights[j] = float32(weights[j] * k.factor)
				}
				e.WeightedSum(want, parts, index, weights, r.K)
			}
			got, chosen := s.load(t, base, out), make([]int32, len(ids))
			c.RoutedFFN(got, s.load(t, scores, r.Experts), tx, r, &l, k.factor, chosen)
			y := s.read(t, got)
			if !slices.Equal(chosen, ids) {
				t.Errorf("%s: the device chose %v, the rule %v", what, chosen, ids)
				continue
			}
			if bad == 0 {
				equal(t, what, y, s.read(t, want))
			}
		}
		slots.ReleaseLayer(l.Key)
		// An expert that went and came back lies elsewhere.
		if !slots.Drop(l.Key+1) || slots.HoldLayer(l.Key, l.N) {
			t.Errorf("%s: a layer is whole without one of its experts, or it could not go", k.name)
		}
	}
}
