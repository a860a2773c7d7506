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

// TestTiles compares products of many rows with the CPU's bits: types of both kinds of blocks, rows and columns past the end of a
// tile, more and fewer blocks than there are accumulators, experts of unequal shares, with and without the device's dot product.
func TestTiles(t *testing.T) {
	c, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	always := twin{t: t, same: func(string) bool { return true }}
	all := []gguf.Type{gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.MXFP4, gguf.NVFP4, gguf.Q5_1, gguf.Q2_K, gguf.IQ2S}
	few := all[:5]
	whole := open(t, Options{}).Info().Kind != Software
	cases := []struct {
		shape tileShape
		mask  []string
		types []gguf.Type
	}{
		{tileShape{32, 16}, nil, all},
		{tileShape{64, 16}, nil, few},
		{tileShape{32, 32}, []string{"dot product"}, few},
	}
	if !whole { // compiling takes the time there
		cases[0].types = []gguf.Type{gguf.Q8_0, gguf.Q4_K, gguf.Q6_K, gguf.MXFP4}
		cases[1].types = []gguf.Type{gguf.Q4_K}
		cases[2].types = nil
	}
	for _, k := range cases {
		b := open(t, Options{Mask: k.mask, tile: k.shape})
		for _, typ := range k.types {
			for _, in := range []int{768, 2304} {
				const out, ff, rows = 75, 512, 43
				m, _ := computetest.Matrix(t, 1, typ, in, out)
				var x [3]compute.Expert // of unequal shares
				for i := range x {
					x[i].Gate, _ = computetest.Matrix(t, uint64(10*i+2), typ, in, ff)
					x[i].Up, _ = computetest.Matrix(t, uint64(10*i+3), typ, in, ff)
					x[i].Down, _ = computetest.Matrix(t, uint64(10*i+4), typ, ff, 90)
					x[i].GateBias, x[i].DownBias = random(5, ff, 1), random(6, 90, 1)
				}
				tiled := b.Stats().Tiled
				always.run(b, c, func(s *lane) {
					a, d, p := s.load(random(7, rows*in, 2), in), s.empty(rows, out), s.empty(60, 90)
					s.MatMul(d, s.weight(m), a)
					s.keep(fmt.Sprintf("%s, %d elements", typ, in), d)
					s.Clear(p)
					first := 0
					for i, n := range []int{2, 17, 35} {
						var mine []int32
						for k := range n {
							mine = append(mine, int32((7*k+i)%rows))
						}
						s.ExpertFFN(p, first, &x[i], a, mine)
						first += n
					}
					s.keep(fmt.Sprintf("experts of %s, %d elements", typ, in), p)
				})
				if n := b.Stats().Tiled - tiled; n != 4 {
					t.Errorf("%s, %d elements: %d products in tiles, want 4", typ, in, n)
				}
			}
		}
	}
}
