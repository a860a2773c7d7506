//go:build (amd64 || arm64) && !noasm

package kernels

import "terrace/internal/fmath"

// attendRuns is attendRunsGeneric with the heads inside the walk over blocks.
func (k *attendKernels) attendRuns(m *attention, s *Scratch) {
	kd, vd := len(m.q)/m.heads, len(m.out)/m.heads
	quads := 0
	if k.four != nil && kd%16 == 0 && vd%16 == 0 {
		quads = m.heads / headsAtOnce
	}
	single := quads * headsAtOnce // the first head that goes alone
	s.scores = grow(s.scores, quads*quadScores+(m.heads-single)*singleScores)
	if cap(s.heads.folds) < m.heads {
		s.heads.folds = make([]fold, m.heads)
	}
	s.heads.folds = s.heads.folds[:m.heads]
	folds := s.heads.folds
	clear(folds)
	clear(m.out)
	four := func(g int) []float32 { return s.scores[g*quadScores : (g+1)*quadScores] }
	one := func(h int) []float32 {
		return s.scores[quads*quadScores+(h-single)*singleScores:][:singleScores]
	}
	c := &s.pieces
	for *c = (pieces{}); c.next(s.runs); {
		for _, x := range c.list[:c.count] {
			keys := k.rows(s, m.kt, m.k, m.kstride, kd, x.first, x.n)
			for g := range quads {
				k.scores4(four(g)[headsAtOnce*x.at:], &keys, &m.q[g*headsAtOnce*kd], kd, x.n)
			}
			for h := single; h < m.heads; h++ {
				k.scores1(s, one(h)[x.at:], &keys, &m.q[h*kd], kd, x.n)
			}
		}
		for g := range quads {
			k.fold4(m, s, four(g), g*headsAtOnce, vd, c.total)
		}
		for h := single; h < m.heads; h++ {
			k.fold1(m, s, one(h), h, vd, c.total)
		}
		for _, x := range c.list[:c.count] {
			values := k.rows(s, m.vt, m.v, m.vstride, vd, x.first, x.n)
			for g := range quads {
				k.four.values[values.t](&m.out[g*headsAtOnce*vd], &four(g)[headsAtOnce*x.at], values.at(0), values.stride, x.n, vd, &s.heads.sums[0])
			}
			for h := single; h < m.heads; h++ {
				k.addValues(s, m.out[h*vd:(h+1)*vd], one(h)[x.at:x.at+x.n], &values)
			}
		}
	}
	for h := range folds {
		k.multiply(m.out[h*vd:(h+1)*vd], fmath.Recip(folds[h].sum))
	}
}

// singleScores is the room for the scores of a head that goes alone, padded to whole vectors.
const singleScores = attendBlock

// scores4 sets p[4*i+j] to the product of key i < n with the j-th of four queries; it may write the places of three more keys.
func (k *attendKernels) scores4(p []float32, keys *kvRows, q *float32, kd, n int) {
	scores := k.four.scores[keys.t]
	if n < 4 {
		for j := range n { // each as four times itself; the next ones overwrite the copies
			scores(&p[headsAtOnce*j], keys.at(j), 0, q, kd, 1)
		}
		return
	}
	scores(&p[0], keys.at(0), keys.stride, q, kd, n/4)
	if n%4 != 0 {
		scores(&p[headsAtOnce*(n-4)], keys.at(n-4), keys.stride, q, kd, 1)
	}
}

// scores1 sets p[i] to the product of key i < n with one query.
func (k *attendKernels) scores1(s *Scratch, p []float32, keys *kvRows, q *float32, kd, n int) {
	scores := k.scores[keys.t]
	if n < 4 {
		for j := range n {
			scores(&s.tail[0], 0, keys.at(j), 0, q, kd, 1)
			p[j] = s.tail[0]
		}
		return
	}
	scores(&p[0], 0, keys.at(0), keys.stride, q, kd, n/4)
	if n%4 != 0 {
		scores(&p[n-4], 0, keys.at(n-4), keys.stride, q, kd, 1)
	}
}

// fold4 turns n keys' scores of the four heads from h on into weights, not yet divided by their sum. Sums go through the
// keys in order whatever the pieces are.
func (k *attendKernels) fold4(m *attention, s *Scratch, p []float32, h, vd, n int) {
	whole := (n + 3) &^ 3
	for j := n; j < whole; j++ {
		copy(p[headsAtOnce*j:headsAtOnce*(j+1)], p[:headsAtOnce]) // keeps the largest
	}
	top := &s.heads.top
	k.four.scaleMax(&p[0], headsAtOnce*whole, m.scale, &top[0])
	for j := range top {
		f := &s.heads.folds[h+j]
		if factor := f.next(top[j]); factor != 1 {
			k.multiply(m.out[(h+j)*vd:(h+j+1)*vd], factor)
		}
		top[j] = f.max
	}
	k.four.expSub(&p[0], headsAtOnce*whole, &top[0])
	var a, b, c, d float32
	for i := 0; i < headsAtOnce*n; i += headsAtOnce {
		x := (*[headsAtOnce]float32)(p[i:])
		a, b, c, d = a+x[0], b+x[1], c+x[2], d+x[3]
	}
	for j, sum := range [headsAtOnce]float32{a, b, c, d} {
		s.heads.folds[h+j].sum += sum
	}
}

// fold1 does the same for one head.
func (k *attendKernels) fold1(m *attention, s *Scratch, p []float32, h, vd, n int) {
	whole := (n + 7) &^ 7
	for j := n; j < whole; j++ {
		p[j] = p[0]
	}
	f := &s.heads.folds[h]
	if factor := f.next(k.scaleMax(&p[0], whole, m.scale)); factor != 1 {
		k.multiply(m.out[h*vd:(h+1)*vd], factor)
	}
	k.expSub(&p[0], whole, f.max)
	sum := float32(0)
	for _, w := range p[:n] {
		sum += w
	}
	f.sum += sum
}

// indexScores is indexGeneric, a block of keys at a time.
func (k *attendKernels) indexScores(m *attention, s *Scratch) {
	d := len(m.q) / m.heads
	quads := 0
	if k.four != nil && d%16 == 0 {
		quads = m.heads / headsAtOnce
	}
	s.scores = grow(s.scores, quadScores)
	p := s.scores
	for i := 0; i < len(m.out); i += attendBlock {
		n := min(attendBlock, len(m.out)-i)
		out := m.out[i : i+n]
		clear(out)
		keys := k.rows(s, m.kt, m.k, m.kstride, d, i, n)
		for g := range quads {
			k.scores4(p, &keys, &m.q[g*headsAtOnce*d], d, n)
			for j := range out {
				x, sum := (*[headsAtOnce]float32)(p[headsAtOnce*j:]), out[j]
				for _, y := range x {
					if y > 0 {
						sum += y
					}
				}
				out[j] = sum
			}
		}
		for h := quads * headsAtOnce; h < m.heads; h++ {
			k.scores1(s, p, &keys, &m.q[h*d], d, n)
			for j := range out {
				if y := p[j]; y > 0 {
					out[j] += y
				}
			}
		}
	}
}
