package cpu

import (
	"terrace/internal/invariant"
	"terrace/kernels"
)

// Poison makes keys and values of the positions from first to end NaN, until they are written anew: for builds with the tag
// "invariants", whose sequences call it when they go back. The last position that was written is end-1. In a ring, the cells of
// these positions are those that hold them: what came before lies in others.
func (c *kv) Poison(first, end int) {
	for l := range c.shape.Layers {
		x := &c.shape.Layers[l]
		for h := range x.Heads {
			poisonRows(c.keys(l, h), first, end, c.at[l].cells)
			if !x.Latent {
				poisonRows(c.values(l, h), first, end, c.at[l].cells)
			}
		}
	}
}

func poisonRows(r kernels.KVRun, first, end, cells int) {
	for p := max(first, end-cells); p < end; p++ {
		i := p % cells
		invariant.Poison(r.Data[i*r.Stride : (i+1)*r.Stride])
	}
}

// Poison does the same for the keys of the blocks and positions from first to end.
func (x *index) Poison(first, end int) {
	b := x.shape.Block
	for l := range x.shape.Layers {
		blocks, parts := x.blocks(l), x.parts(l)
		invariant.Poison(blocks.Data[first/b*blocks.Stride : end/b*blocks.Stride])
		invariant.Poison(parts.Data[(first-first/b)*parts.Stride : (end-end/b)*parts.Stride])
	}
}
