//go:build amd64 && !noasm

package kernels

import (
	"terrace/compute"
	"terrace/internal/fmath"
)

func init() { attendHeads4[LevelAVX512] = attendHeadsAVX512 }

// attendHeadsAVX512 is the attention of four heads over one reading of the keys and values. Scores lie key by key, the four
// heads side by side.
func attendHeadsAVX512(m *attention, s *Scratch) bool {
	kd, vd := len(m.q)/headsAtOnce, len(m.out)/headsAtOnce
	if kd%16 != 0 || vd%16 != 0 {
		return false
	}
	// A call with fewer than four keys writes some places behind the last key.
	s.scores = grow(s.scores, headsAtOnce*(attendBlock+headsAtOnce))
	p := s.scores
	clear(m.out)
	var f [headsAtOnce]fold
	var top, sums [headsAtOnce]float32
	for i := 0; i < m.n; {
		nb := m.blockEnd(i)
		if nb >= 4 {
			m.scores4(p, i, m.kstride, nb/4)
			if nb%4 != 0 {
				m.scores4(p[headsAtOnce*(nb-4):], i+nb-4, m.kstride, 1)
			}
		} else {
			for j := range nb { // each as four times itself; the next ones overwrite the copies
				m.scores4(p[headsAtOnce*j:], i+j, 0, 1)
			}
		}
		whole := (nb + 3) &^ 3
		for j := nb; j < whole; j++ {
			copy(p[headsAtOnce*j:headsAtOnce*(j+1)], p[:headsAtOnce]) // keeps the largest
		}
		scaleMax4AVX512(&p[0], headsAtOnce*whole, m.scale, &top[0])
		for h := range f {
			if factor := f[h].next(top[h]); factor != 1 {
				scaleAVX2(&m.out[h*vd], vd, factor)
			}
			top[h] = f[h].max
		}
		expSub4AVX512(&p[0], headsAtOnce*whole, &top[0])
		if v := &m.v[i*m.vstride]; m.vt == compute.KVF32 {
			values4F32AVX512(&m.out[0], &p[0], v, m.vstride, nb, vd, &sums[0])
		} else {
			values4F16AVX512(&m.out[0], &p[0], v, m.vstride, nb, vd, &sums[0])
		}
		for h := range f {
			f[h].sum += sums[h]
		}
		i += nb
	}
	for h := range f {
		scaleAVX2(&m.out[h*vd], vd, fmath.Recip(f[h].sum))
	}
	return true
}

// scores4 sets p to the products of the four queries with groups of four keys, the first of them key i.
func (m *attention) scores4(p []float32, i, stride, groups int) {
	if k := &m.k[i*m.kstride]; m.kt == compute.KVF32 {
		scores4F32AVX512(&p[0], k, stride, &m.q[0], len(m.q)/headsAtOnce, groups)
	} else {
		scores4F16AVX512(&p[0], k, stride, &m.q[0], len(m.q)/headsAtOnce, groups)
	}
}
