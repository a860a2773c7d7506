package kernels

import "terrace/compute"

// headsAtOnce is how many query heads a vector kernel of attention takes at a time.
const headsAtOnce = 4

// attendHeads4 holds, by Level, the attention of headsAtOnce query heads that share keys and values; nil where heads go one
// by one. It reports false for shapes it does not know.
var attendHeads4 [8]func(m *attention, s *Scratch) bool

// AttendHeads is Attend for heads query heads that read the same keys and values: q holds their len(q)/heads elements
// each, out their results, one head after the other. Each head gets the bits that Attend gives it.
func AttendHeads(out, q []float32, heads int, kt, vt compute.KVType, k, v []byte, kstride, vstride, first, n int, scale float32, s *Scratch) {
	if heads < 1 || len(q)%heads != 0 || len(out)%heads != 0 {
		panicf("kernels: attention of %d heads with %d elements of queries and %d of results", heads, len(q), len(out))
	}
	kd, vd := len(q)/heads, len(out)/heads
	many := attendHeads4[current().id]
	for h := 0; h < heads; {
		if many != nil && heads-h >= headsAtOnce {
			checkAttention(vd, kd, kt, vt, k, v, kstride, vstride, first, n)
			s.attn = attention{out: out[h*vd : (h+headsAtOnce)*vd], q: q[h*kd : (h+headsAtOnce)*kd], kt: kt, vt: vt, k: k, v: v,
				kstride: kstride, vstride: vstride, first: first, n: n, scale: scale}
			done := many(&s.attn, s)
			s.attn = attention{}
			if done {
				h += headsAtOnce
				continue
			}
			many = nil
		}
		Attend(out[h*vd:(h+1)*vd], q[h*kd:(h+1)*kd], kt, vt, k, v, kstride, vstride, first, n, scale, s)
		h++
	}
}
