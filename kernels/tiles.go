package kernels

// matrixKernel multiplies weight rows with activations in int8. nb is the number of activation blocks a row.
//
// As rows: count groups of 4 rows at distance stride bytes (Q8_0: count rows), one column; results side by side in dst.
// As columns: count rows at distance stride, 4 columns of activations one after the other; column c's results at
// dst+c*ld floats.
type matrixKernel func(dst *float32, ld int, w *byte, stride int, q *int8, d *float32, sums *int16, nb, count int)

// floatKernel does the same for float weights and activations; n is the length of a row.
type floatKernel func(dst *float32, ld int, w *byte, stride int, x *float32, n, count int)

// tiles are the vector kernels of one weight type.
type tiles struct {
	rows, cols   matrixKernel // quantised types
	rowsF, colsF floatKernel  // float types
	single       bool         // rows takes single rows, not groups of 4
	least        int          // rows need so many activation blocks
	order        actOrder     // of the activations that rows takes; nil for the ordinary one
}

// actOrder writes nb blocks of 256 activations in another order, some twice: at most 512 bytes a block.
type actOrder func(dst, q *int8, nb int)

// serve reports whether rows of n elements are long enough for these kernels.
func (k *tiles) serve(n, block int) bool { return n >= k.least*block }

// tileBytes is how many bytes of weights go through all columns before the next rows: they stay in the second-level
// cache, and no call into assembly, where a goroutine cannot be stopped, takes longer than a fraction of a millisecond.
const tileBytes = 128 << 10

// multiply cuts a product into tiles: 4 columns by any number of rows, and what columns are left one by one.
func (k *tiles) multiply(m *product, s *Scratch) {
	step := max(tileBytes/m.rb&^3, 4)
	for r := m.r0; r < m.r1; r += step {
		e := min(r+step, m.r1)
		c := m.c0
		fours := k.cols != nil || k.colsF != nil
		for ; fours && m.c1-c >= 4; c += 4 {
			k.tile4(m, r, e, c)
		}
		if left := m.c1 - c; fours && left > 1 && m.c1-m.c0 >= 4 {
			k.tile4(m, r, e, m.c1-4) // some columns twice, with the same results
			continue
		}
		for ; c < m.c1; c++ {
			k.column(m, s, r, e, c)
		}
	}
}

// tile4 multiplies rows [r,e) with columns c..c+3.
func (k *tiles) tile4(m *product, r, e, c int) {
	a, dst, w := m.a, &m.dst[c*m.ld+r], &m.w[r*m.rb]
	if k.colsF != nil {
		k.colsF(dst, m.ld, w, m.rb, &a.F[c*a.N], a.N, e-r)
		return
	}
	nb := a.N / a.Kind.block()
	k.cols(dst, m.ld, w, m.rb, &a.Q[c*a.N], &a.D[c*nb], &a.Sums[c*nb*a.Kind.sums()], nb, e-r)
}

// column multiplies rows [r,e) with column c. Rows go in fours; a rest takes some rows twice, and less than four rows
// go alone, each as four times itself.
func (k *tiles) column(m *product, s *Scratch, r, e, c int) {
	q := k.codes(m, s, c)
	if k.single {
		k.group(m, q, &m.dst[c*m.ld+r], r, c, m.rb, e-r)
		return
	}
	if n := (e - r) / 4; n > 0 {
		k.group(m, q, &m.dst[c*m.ld+r], r, c, m.rb, n)
		if r+4*n < e {
			k.group(m, q, &m.dst[c*m.ld+e-4], e-4, c, m.rb, 1)
		}
		return
	}
	for ; r < e; r++ {
		k.group(m, q, &s.tail[0], r, c, 0, 1)
		m.dst[c*m.ld+r] = s.tail[0]
	}
}

// codes is column c's activations as k takes them, nil where they are float32.
func (k *tiles) codes(m *product, s *Scratch, c int) *int8 {
	a := m.a
	if k.rowsF != nil {
		return nil
	}
	q := &a.Q[c*a.N]
	if k.order == nil {
		return q
	}
	s.ordered = grow(s.ordered, 2*a.N)
	k.order(&s.ordered[0], q, a.N/256)
	return &s.ordered[0]
}

func (k *tiles) group(m *product, q *int8, dst *float32, r, c, stride, count int) {
	a, w := m.a, &m.w[r*m.rb]
	if k.rowsF != nil {
		k.rowsF(dst, 0, w, stride, &a.F[c*a.N], a.N, count)
		return
	}
	nb := a.N / a.Kind.block()
	k.rows(dst, 0, w, stride, q, &a.D[c*nb], &a.Sums[c*nb*a.Kind.sums()], nb, count)
}
