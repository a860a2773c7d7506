package kernels

// ropePairs holds, by Level, the rotation of as many pairs as a vector kernel takes; it returns how many it did.
var ropePairs [8]func(lo, hi, cos, sin []float32) int

// RopeNeox rotates one head in place: the pairs (x[j], x[j+h]) by the angles with the cosines cos[j] and sines sin[j],
// h = len(cos) = len(sin), 2h <= len(x); elements from 2h on stay. Products and sums are rounded one by one.
func RopeNeox(x, cos, sin []float32) {
	h := len(cos)
	sameLen("RopeNeox", h, len(sin))
	if len(x) < 2*h {
		panicf("kernels: RopeNeox of %d pairs in a head of %d", h, len(x))
	}
	lo, hi := x[:h], x[h:2*h]
	done := 0
	if f := ropePairs[current().id]; f != nil {
		done = f(lo, hi, cos, sin)
	}
	for j := done; j < h; j++ {
		c, s := cos[j], sin[j]
		a, b := lo[j], hi[j]
		lo[j] = float32(a*c) - float32(b*s)
		hi[j] = float32(a*s) + float32(b*c)
	}
}

// RopeNorm is RopeNeox for the pairs (x[2j], x[2j+1]).
func RopeNorm(x, cos, sin []float32) {
	h := len(cos)
	sameLen("RopeNorm", h, len(sin))
	if len(x) < 2*h {
		panicf("kernels: RopeNorm of %d pairs in a head of %d", h, len(x))
	}
	for j, c := range cos {
		s, a, b := sin[j], x[2*j], x[2*j+1]
		x[2*j] = float32(a*c) - float32(b*s)
		x[2*j+1] = float32(a*s) + float32(b*c)
	}
}
