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
		{tileShape{32, 16, false}, nil, all},
		{tileShape{64, 16, true}, nil, few},
		{tileShape{32, 32, false}, []string{"dot product"}, few},
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
				tiled := b.enc.tiled
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
				if n := b.enc.tiled - tiled; n != 4 {
					t.Errorf("%s, %d elements: %d products in tiles, want 4", typ, in, n)
				}
			}
		}
	}
}

// TestTilesFloats does so with float weights: rows and columns past the end of a tile, and of 64 elements.
func TestTilesFloats(t *testing.T) {
	b := open(t, Options{tile: tileShape{32, 16, false}})
	c, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	w := twin{t: t, same: func(string) bool { return b.Numerics().Fused }}
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16} {
		for _, in := range []int{256, 1036} {
			const out, rows = 75, 43
			tiled := b.enc.tiled
			m, _ := computetest.Matrix(t, 8, typ, in, out)
			w.run(b, c, func(s *lane) {
				a, d := s.load(random(9, rows*in, 1), in), s.empty(rows, out)
				s.MatMul(d, s.weight(m), a)
				s.keep(fmt.Sprintf("%s, %d elements", typ, in), d)
			})
			if b.enc.tiled == tiled {
				t.Errorf("%s, %d elements: no tiles", typ, in)
			}
		}
	}
}

// TestTilesAttend does so with attention: types of caches, heads that share keys by four, by three and not at all, windows and sinks, rows
// that are no whole tile, more positions than a workgroup has scores of at a time.
func TestTilesAttend(t *testing.T) {
	b := open(t, Options{tile: tileShape{32, 16, false}})
	c, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	n := b.Numerics()
	w := twin{t: t, same: func(string) bool { return n.Fused && n.Double }}
	for i, k := range []struct {
		typ               compute.KVType
		heads, group, dim int
		window            int
		sinks             bool
	}{
		{compute.KVF16, 2, 4, 64, 0, false},
		{compute.KVF16, 1, 8, 128, 100, true},
		{compute.KVF32, 2, 3, 80, 0, true},
		{compute.KVQ8_0, 2, 1, 160, 130, false},
	} {
		if testing.Short() && i > 1 {
			break
		}
		tiled := b.enc.tiled
		w.run(b, c, func(s *lane) {
			const rows, later = 401, 45
			wide := k.heads * k.group * k.dim
			kv, err := s.b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: k.heads, KeyDim: k.dim, ValDim: k.dim, Window: k.window}}, Context: rows + later, Slack: rows, K: k.typ, V: k.typ})
			if err != nil {
				t.Fatal(err)
			}
			spec := compute.AttnSpec{Scale: 0.2}
			if k.sinks {
				spec.Sinks = s.vector(random(17, k.heads*k.group, 1))
			}
			for i := range rows {
				spec.Pos = append(spec.Pos, int32(i))
			}
			step := func(name string, n int, seed uint64) {
				d := s.empty(n, wide)
				s.Attention(d, s.load(random(seed, n*wide, 1), wide), s.load(random(seed+1, n*k.heads*k.dim, 1), k.heads*k.dim), s.load(random(seed+2, n*k.heads*k.dim, 1), k.heads*k.dim), kv, spec)
				s.keep(fmt.Sprintf("%s, %s", k.typ, name), d)
			}
			step("from the start", rows, 20)
			spec.Pos = spec.Pos[:0]
			for i := range later {
				spec.Pos = append(spec.Pos, int32(rows+i))
			}
			step("later", later, 30)
		})
		if n := b.enc.tiled - tiled; n != 2 {
			t.Errorf("%s: %d steps in tiles, want 2", k.typ, n)
		}
	}
}
