package kernels

// Products with many columns go by panels: 16 weight rows are taken apart into bytes with rows in lanes, one chunk of
// their blocks at a time, and the panel is multiplied with all columns before the next chunk. Sums in a block are exact
// int32; each element keeps the float accumulators of the canonical order, 4 or 8, in memory.

const (
	panelRows   = 16
	panelBlocks = 4 // of 256 elements, in a chunk: a panel stays in the first-level cache
	panelCols   = 8 // of the widest tile
)

// gemmUnpack lays out count blocks of 16 rows at distance stride as records of a panel. A block here is the weight type's,
// at least as large as that of the activations: it may make several records.
//
// The blocks stand done bytes after the beginnings of their rows. The next 16 rows are fetched on the way.
type gemmUnpack func(panel, w *byte, stride, done, count int)

// gemmLookup is gemmUnpack for types whose codes are indices into a codebook.
type gemmLookup func(panel, w *byte, stride, done, count int, grid *byte)

// gemmTile adds to the accumulators of a tile of columns, out = in + the products with count blocks of a panel. The
// columns begin at q, d and sums, each row of activations having n elements. Accumulators lie as [block modulo 4 or
// 8][column][16 rows]; the first block has index 0. Codes of runs of 32 are too large by bias.
type gemmTile func(out, in *float32, panel *byte, q *int8, d *float32, sums *int16, n, bias, count int)

// gemmKernel is the panel path of one weight type.
type gemmKernel struct {
	unpack gemmUnpack
	lookup gemmLookup              // in place of unpack
	grid   func() *byte            // the codebook that lookup takes
	tiles  [panelCols + 1]gemmTile // by number of columns; nil where there is none
	join   func(dst *float32, ld int, acc *float32, cols int)
	accs   int // accumulators of an element
	block  int // elements under one activation scale
	record int // bytes of a panel for one block
	bias   int // what makes signed codes unsigned
	min    int // columns from which it is faster than other tiles
}

// gemmScratch is the working memory of panels.
type gemmScratch struct {
	panel []byte
	acc   []float32
	zeros []float32
}

// gemmOf is the panel path for a product, nil where there is none or other tiles are faster.
func (l *level) gemmOf(m *product) *gemmKernel {
	if int(m.t) >= len(l.gemm) || m.r1-m.r0 < panelRows {
		return nil
	}
	k := l.gemm[m.t]
	if k == nil || m.c1-m.c0 < max(2, k.min) {
		return nil
	}
	return k
}

// colBytes is how many bytes of activations go by before the next 16 rows: they stay in the second-level cache.
const colBytes = 384 << 10

// multiply computes a product of at least 16 rows and 2 columns, some columns at a time.
func (k *gemmKernel) multiply(m *product, s *Scratch) {
	all := m.c1 - m.c0
	parts := (all*m.a.N + colBytes - 1) / colBytes
	step := max((all/parts+panelCols-1)&^(panelCols-1), 4*panelCols)
	c0, c1 := m.c0, m.c1
	for c := c0; c < c1; c += step {
		m.c0, m.c1 = c, min(c+step, c1)
		if c1-c < 2 {
			m.c0 = c1 - 2 // again, with the same result
		}
		k.columns(m, s)
	}
}

// columns computes all rows of some columns. What is left of rows or columns after whole tiles is covered by one that
// takes some of them again, with the same results.
func (k *gemmKernel) columns(m *product, s *Scratch) {
	blocks := m.a.N / k.block
	chunk := panelBlocks * 256 / k.block
	widest := panelCols
	for k.tiles[widest] == nil {
		widest /= 2
	}
	tile := k.accs * widest * panelRows
	g := &s.gemm
	g.panel = grow(g.panel, chunk*k.record)
	g.acc = grow(g.acc, ((m.c1-m.c0)/widest+3)*tile) // three tiles at most for what is left
	if len(g.zeros) < tile {
		g.zeros = grow(g.zeros, tile)
		clear(g.zeros)
	}
	for r := m.r0; r < m.r1; r += panelRows {
		r = min(r, m.r1-panelRows)
		for b := 0; b < blocks; b += chunk {
			n := min(chunk, blocks-b)
			k.layOut(m, g, r, b, n)
			for i, c := 0, m.c0; c < m.c1; i++ {
				first, cols := k.cut(c, m)
				acc := &g.acc[i*tile]
				in := acc
				if b == 0 {
					in = &g.zeros[0]
					if n < k.accs { // some are never written
						clear(g.acc[i*tile+n*cols*panelRows : i*tile+k.accs*cols*panelRows])
					}
				}
				at := first*blocks + b
				k.tiles[cols](acc, in, &g.panel[0], &m.a.Q[at*k.block], &m.a.D[at], &m.a.Sums[at*m.a.Kind.sums()], m.a.N, k.bias, n)
				if b+n == blocks {
					k.join(&m.dst[first*m.ld+r], m.ld, acc, cols)
				}
				c = first + cols
			}
		}
	}
}

// layOut fills the panel with n blocks of 16 rows from row r and block b on.
func (k *gemmKernel) layOut(m *product, g *gemmScratch, r, b, n int) {
	bs, size := m.t.BlockSize(), m.t.BlockBytes()
	done := b * k.block / bs * size
	at := r*m.rb + done
	if k.lookup == nil {
		k.unpack(&g.panel[0], &m.w[at], m.rb, done, n*k.block/bs)
		return
	}
	k.lookup(&g.panel[0], &m.w[at], m.rb, done, n*k.block/bs, k.grid())
}

// cut chooses the tile that covers column c and those after it.
func (k *gemmKernel) cut(c int, m *product) (first, cols int) {
	left, all := m.c1-c, m.c1-m.c0
	cols = panelCols
	for cols > 2 && (k.tiles[cols] == nil || cols > all || cols/2 >= left) {
		cols /= 2
	}
	return min(c, m.c1-cols), cols
}

// gemmTable is the panel path by weight type.
type gemmTable [len(weightTable)]*gemmKernel
