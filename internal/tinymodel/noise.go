package tinymodel

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// noise draws numbers that look normal, of mean 0 and deviation 1. Each is the sum of four 16-bit uniform integers, so it
// has the same bits on every machine, which functions such as math.Log would not promise.
type noise struct{ src *rand.PCG }

// newNoise starts the numbers of one tensor. They depend on its name, not on which other tensors there are.
func newNoise(seed uint64, tensor string) noise {
	h := fnv.New64a()
	h.Write([]byte(tensor))
	return noise{rand.NewPCG(seed, h.Sum64())}
}

// noiseScale brings the sum of four integers 0..65535 to deviation 1: each has a variance of (2^32-1)/12.
const noiseScale = 1 / 37837.22754

func (n noise) next() float32 {
	u := n.src.Uint64()
	sum := int(u&0xffff) + int(u>>16&0xffff) + int(u>>32&0xffff) + int(u>>48) - 2*65535
	return float32(sum) * noiseScale
}

func sqrt(n int) float32 { return float32(math.Sqrt(float64(n))) }
