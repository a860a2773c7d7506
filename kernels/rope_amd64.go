//go:build amd64 && !noasm

package kernels

func init() { ropePairs[LevelAVX2], ropePairs[LevelAVX512] = ropeVector, ropeVector }

func ropeVector(lo, hi, cos, sin []float32) int {
	n := min(len(lo)&^7, callElems)
	if n > 0 {
		ropeAVX2(&lo[0], &hi[0], &cos[0], &sin[0], n)
	}
	return n
}
