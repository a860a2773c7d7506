//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/compute/cpu"
	"terrace/gguf"
)

// TestVec compares products of single rows with the CPU's bits: shapes of workgroups, rows shorter and longer than one takes at a
// time, activations quantised before and on the way, with and without the device's integer dot product.
func TestVec(t *testing.T) {
	c, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	always := twin{t: t, same: func(string) bool { return true }}
	cases := []struct {
		shape vecShape
		mask  []string
		in    []int
		types []gguf.Type
	}{
		{vecShape{32, 2, false}, nil, []int{768}, []gguf.Type{gguf.Q4_K, gguf.Q5_K, gguf.Q6_K}},
		{vecShape{32, 2, false}, nil, []int{800}, []gguf.Type{gguf.MXFP4}},
		{vecShape{32, 2, false}, nil, []int{2560}, []gguf.Type{gguf.Q8_0}},
		{vecShape{64, 4, false}, []string{"dot product"}, []int{768}, []gguf.Type{gguf.Q4_K}},
		// Rows that begin anywhere, several rounds of which the last is short.
		{vecShape{64, 4, false}, nil, []int{1280}, []gguf.Type{gguf.Q6_K}},
		{vecShape{32, 2, false}, nil, []int{4608}, []gguf.Type{gguf.Q6_K}},
		{vecShape{32, 1, false}, []string{"dot product"}, []int{768}, []gguf.Type{gguf.Q6_K}},
		// Blocks that begin at every byte of a word, steps that some or all accumulators have, fewer blocks than accumulators.
		{vecShape{64, 1, true}, nil, []int{800, 1376, 96}, []gguf.Type{gguf.MXFP4}},
		{vecShape{32, 2, true}, nil, []int{2880}, []gguf.Type{gguf.MXFP4}},
		{vecShape{32, 4, true}, []string{"dot product"}, []int{768}, []gguf.Type{gguf.MXFP4}},
	}
	for _, k := range cases {
		b := open(t, Options{Mask: k.mask, shape: k.shape})
		for _, typ := range k.types {
			for _, in := range k.in {
				const out, ff = 37, 256
				m, _ := computetest.Matrix(t, 1, typ, in, out)
				var x compute.Expert
				x.Gate, _ = computetest.Matrix(t, 2, typ, in, ff)
				x.Up, _ = computetest.Matrix(t, 3, typ, in, ff)
				x.Down, _ = computetest.Matrix(t, 4, typ, ff, 90)
				x.GateBias, x.DownBias = random(5, ff, 1), random(6, 90, 1)
				always.run(b, c, func(s *lane) {
					a := s.load(random(7, 3*in, 2), in)
					y, d := s.empty(1, in), s.empty(1, out)
					s.CopyRows(y, a, 1)
					w := s.weight(m)
					for _, when := range []string{"on the way", "before"} { // the first product leaves no quantised row behind
						if g, ok := s.Encoder.(*encoder); ok && when == "before" {
							g.act(own(y), g.b.kind(typ))
						}
						s.Clear(d)
						s.MatMul(d, w, y)
						s.keep(fmt.Sprintf("%s, %d elements, quantised %s", typ, in, when), d)
					}
					p := s.empty(2, 90)
					s.ExpertFFN(p, 0, &x, a, []int32{2})
					if g, ok := s.Encoder.(*encoder); ok {
						g.act(own(a), g.b.kind(typ))
					}
					s.ExpertFFN(p, 1, &x, a, []int32{0})
					s.keep(fmt.Sprintf("experts of %s, %d elements", typ, in), p)
				})
			}
		}
	}
}

// TestSingle meets one row with float weights, a workgroup a row of the matrix where these are few and lie well.
func TestSingle(t *testing.T) {
	f := newFusing(t, Options{})
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16} {
		for _, in := range []int{8, 100, 1000, 2048, 5128} {
			for _, out := range []int{1, 70} {
				m, _ := computetest.Matrix(t, uint64(in+out), typ, in, out)
				f.run(f.b, f.c, func(s *lane) {
					d := s.empty(1, out)
					s.MatMul(d, s.weight(m), s.load(random(9, in, 1), in))
					s.keep(fmt.Sprintf("%s of %d x %d", typ, out, in), d)
				})
			}
		}
		if f.b.pipe.code[shSingle] == nil {
			t.Errorf("%s: no matrix was met by rows", typ)
		}
	}
}
