package model_test

import (
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
)

// TestGoldenQuantisedKV runs the fixture whose heads are whole blocks and whose weights meet float32 activations, so that
// nothing but the cache differs: the largest difference of a position's logits from those over a float16 cache, in deviations
// of the logits. Measured medians are in the table (random weights amplify; the largest of 4-bit codes' steps is 127/8 of 8-bit
// codes', and so are these); the limits are half as much again.
func TestGoldenQuantisedKV(t *testing.T) {
	g := readGolden(t, "qwen3")
	data := unzip(t, "golden", "qwen3", "model.drawn.gz")
	tokens := g.Long.Tokens[:120]
	run := func(k, v compute.KVType, cut, threads int) [][]float32 {
		return newRig(t, data, setup{cpu: cpu.Options{Threads: threads}, k: k, v: v}).feed(t, tokens, cut)
	}
	want := run(compute.KVF16, compute.KVF16, 512, 2)
	for _, c := range []struct {
		k, v   compute.KVType
		median float64
	}{
		{compute.KVQ8_0, compute.KVQ8_0, 0.043}, {compute.KVQ8_0, compute.KVF16, 0.035}, {compute.KVF16, compute.KVQ8_0, 0.028},
		{compute.KVQ4_0, compute.KVQ4_0, 0.68}, {compute.KVF32, compute.KVQ4_0, 0.45},
	} {
		got := run(c.k, c.v, 512, 2)
		diff := make([]float64, len(got))
		for p := range got {
			diff[p] = farthest(got[p], want[p]) / g.Std
		}
		slices.Sort(diff)
		median := diff[len(diff)/2]
		t.Logf("keys %s, values %s: median %.3g, worst %.3g", c.k, c.v, median, diff[len(diff)-1])
		if !(median <= 1.5*c.median) || median == 0 {
			t.Errorf("keys %s, values %s: logits differ by %.3g deviations in the median, want above 0 and at most %.3g", c.k, c.v, median, 1.5*c.median)
		}
		for _, cut := range []int{1, 13} {
			if row, col, same := sameBits(got, run(c.k, c.v, cut, 1)); !same {
				t.Errorf("keys %s, values %s: batches of %d change logit %d of position %d", c.k, c.v, cut, col, row)
			}
		}
	}
}
