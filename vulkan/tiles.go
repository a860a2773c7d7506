//go:build cgo && !novulkan

package vulkan

import "terrace/kernels"

// threads is how many compute a tile, two for each sixteen results.
func (s tileShape) threads() int { return s.rows * s.cols / 8 }

// shared is the bytes of shared memory that a tile takes at most.
func (s tileShape) shared() int { return (s.rows + s.cols) * (17*16 + 3*32) }

// tileLeast is the fewest rows of activations that are worth unpacking weights for all of them at once.
const tileLeast = 9

// tile is the shape for a product of jobs with so many rows of activations at most; ok: it can be taken.
func (e *encoder) tile(p *product) (s tileShape, ok bool) {
	k, quantised := kernels.KindOf(p.typ)
	if !quantised || k == kernels.ActF32 || p.most < tileLeast || p.pair || p.inline || !aligned(p.typ, p.jobs) {
		return s, false
	}
	s = e.b.opts.tile
	switch {
	case s.rows < 0:
		return s, false
	case s.rows == 0:
		if e.b.dev.c.info.Kind == Software {
			return s, false // compiling takes the time there
		}
		// As measured: larger tiles unpack less, smaller ones leave room for several on a processor at once, and the rows of experts
		// are few.
		if s = (tileShape{32, 32}); p.at == 0 && len(p.jobs) == 1 && p.most >= 128 {
			s = tileShape{64, 64}
		}
	}
	f := &e.b.dev.c.f
	return s, s.threads() <= int(f.max_invocations) && s.shared() <= int(f.max_shared)
}

// multiplyTiles is multiply of many rows.
func (e *encoder) multiplyTiles(p *product, s tileShape, jobs uint64, count int) {
	e.begin(shTiles, [4]uint32{uint32(p.typ), uint32(s.rows), uint32(s.cols), uint32(s.threads())})
	e.products(p, jobs)
	e.dispatch(groups(p.out, s.rows), groups(p.most, s.cols), count)
	e.stats.Tiled++
}
