package synth

import (
	"encoding/binary"
	"hash/fnv"
	"math"
)

// random is a small generator of good mixing (splitmix64), seeded by a number and a name, so that a tensor's bytes do
// not depend on which others exist.
type random struct{ state uint64 }

func newRandom(seed uint64, name string) *random {
	h := fnv.New64a()
	h.Write([]byte(name))
	r := &random{h.Sum64() ^ (seed+1)*0x9e3779b97f4a7c15}
	r.next()
	return r
}

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill makes every byte of b random.
func (r *random) fill(b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.next())
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.next())
		copy(b, last[:])
	}
}

// unit is uniform in [0, 1).
func (r *random) unit() float64 { return float64(r.next()>>11) / (1 << 53) }

// normal has mean 0 and deviation 1.
func (r *random) normal() float64 {
	return math.Sqrt(-2*math.Log(1-r.unit())) * math.Cos(2*math.Pi*r.unit())
}

// shuffled is the numbers from 0 to n-1 in random order.
func (r *random) shuffled(n int) []int {
	p := make([]int, n)
	for i := range p {
		j := int(r.next() % uint64(i+1))
		p[i], p[j] = p[j], i
	}
	return p
}
