//go:build cgo && !novulkan

package vulkan

import (
	"terrace/compute"
	"terrace/kernels"
)

// threads is how many compute a tile, two for each sixteen results.
func (s tileShape) threads() int { return s.rows * s.cols / 8 }

// shared is the bytes of shared memory that a tile takes at most.
func (s tileShape) shared() int { return (s.rows + s.cols) * (17*16 + 3*32) }

// tileLeast is the fewest rows of activations that are worth unpacking weights for all of them at once.
const tileLeast = 9

// tiles reports whether many rows are computed in tiles: not where compiling takes most of the time.
func (e *encoder) tiles() bool {
	n := e.b.opts.tile.rows
	return n > 0 || n == 0 && e.b.dev.c.info.Kind != Software
}

// tile is the shape for a product of jobs with so many rows of activations at most; ok: it can be taken.
func (e *encoder) tile(p *product) (s tileShape, ok bool) {
	k, quantised := kernels.KindOf(p.typ)
	if !quantised || k == kernels.ActF32 || p.most < tileLeast || p.pair || p.inline || !aligned(p.typ, p.jobs) {
		return s, false
	}
	if !e.tiles() {
		return s, false
	}
	if s = e.b.opts.tile; s.rows == 0 {
		// As measured: smaller tiles leave room for several on a processor at once, which is worth more than unpacking less.
		s = tileShape{32, 32, true}
	}
	f := &e.b.dev.c.f
	return s, s.threads() <= int(f.max_invocations) && s.shared() <= int(f.max_shared)
}

// multiplyTiles is multiply of many rows.
func (e *encoder) multiplyTiles(p *product, s tileShape, jobs uint64, count int) {
	shape := uint32(s.rows)
	if s.ahead {
		shape |= 1024
	}
	e.begin(shTiles, [4]uint32{uint32(p.typ), shape, uint32(s.cols), uint32(s.threads())})
	e.products(p, jobs)
	e.dispatch(groups(p.out, s.rows), groups(p.most, s.cols), count)
	e.tiled++
}

// Attention in tiles: rows that meet a block of keys at once, and the fewest that are worth it.
const (
	keyTileRows  = 8
	keyTileLeast = 4
	tileKeyDim   = 256 // most elements of a key and of a value
)

// attendTiles reports whether the attention of n rows goes by shaders/keytiles.comp and valuetiles.comp, and how many query heads the
// latter takes at a time.
func (e *encoder) attendTiles(a *attention, n int) (heads int, ok bool) {
	l := a.l
	if !e.tiles() || n < keyTileLeast || l.Latent || l.KeyDim > tileKeyDim || l.ValDim > tileKeyDim {
		return 0, false
	}
	for heads = 8; a.heads/l.Heads%heads != 0; heads-- {
	}
	return heads, true
}

// keyTiles records the scores of n rows from row r on.
func (e *encoder) keyTiles(a *attention, scores *tensor, r, n, blocks, ld int, where uint64) {
	span := min(a.l.KeyDim, 128) // elements that lie in shared memory at a time
	if (64+16)*(span/4+1)*16 > int(e.b.dev.c.f.max_shared) {
		span = min(span, 64)
	}
	e.in(&a.q.track, &a.at.keys)
	e.out(&scores.track)
	e.begin(shKeyTiles, [4]uint32{uint32(a.kv.shape.K), uint32(a.l.KeyDim), uint32(a.heads / a.l.Heads), uint32(span)})
	e.u64(a.q.at(r), a.at.k.addr(), scores.addr(), where)
	e.u32(uint32(a.heads), uint32(a.l.Window), uint32(a.at.cells), uint32(ld), uint32(n))
	e.f32(a.s.Scale)
	e.dispatch(blocks, a.l.Heads, groups(n, keyTileRows))
	e.tiled++
}

// valueTiles records their softmax and the sums of values. q32 is where their form as int8 shall lie, 0: nowhere.
func (e *encoder) valueTiles(a *attention, scores *tensor, vt compute.KVType, values, sinks uint64, stride, heads, r, n, ld int, where, q32 uint64) {
	e.in(&scores.track, &a.at.keys, &a.at.values)
	e.out(&a.dst.track)
	if q32 > 0 {
		e.out(&a.dst.acts[kernels.Act32].track)
	}
	e.begin(shValueTiles, [4]uint32{uint32(vt), uint32(a.l.ValDim), uint32(heads), uint32(stride)})
	e.u64(a.dst.at(r), values, scores.addr(), sinks, where)
	e.u32(uint32(a.heads), uint32(a.heads/a.l.Heads), uint32(a.l.Window), uint32(a.at.cells), uint32(ld), uint32(r), uint32(a.q.rows), 0)
	e.u64(q32)
	e.dispatch(a.heads/heads, n, 1)
}

// floatTiles reports whether a product with float weights goes by shaders/floattiles.comp.
func (e *encoder) floatTiles(p *product) bool {
	k, _ := kernels.KindOf(p.typ)
	if k != kernels.ActF32 || p.most < tileLeast || p.pair || p.in%4 != 0 || p.stride%8 != 0 || !e.tiles() {
		return false
	}
	for i := range p.jobs { // loads of 16 bytes, or of 8
		if p.jobs[i].w&15 != 0 {
			return false
		}
	}
	return true
}

// multiplyFloatTiles is multiply of many rows with float weights. typ is their type as the shaders number it.
func (e *encoder) multiplyFloatTiles(p *product, typ uint32, jobs uint64, count int) {
	e.begin(shFloatTiles, [4]uint32{typ})
	e.products(p, jobs)
	e.dispatch(groups(p.out, 32), groups(p.most, 16), count)
	e.tiled++
}
