package plan

import (
	"math"
	"testing"
)

// cut12 is the shape of the 12-layer cut of Qwen3-30B-A3B that bench/results/2026-12-02-lookahead.md measured.
func cut12() Shape {
	return Shape{Path: "cut12.gguf", Arch: "qwen3moe", Layers: 12, ExpertLayers: 12, ExpertsPerLayer: 128, ExpertsPerToken: 8,
		ExpertMin: 2654208, ExpertMax: 3059712, ExpertTotal: 1536 * 2857000, CardDense: 143e6, ExpertParams: 1536 * 4718592, Context: 4096, Parallel: 1, Batch: 512, Lookahead: 2, KeyType: "f16", ValType: "f16",
		Fixed:   Budget{Runtime: 60 << 20, Dense: 143e6, KV: 100e6, Work: 50e6, ArenaMin: 32 * 3e6, ArenaMost: 1536 * 2863104, Experts: 1536},
		Traffic: []Traffic{{Type: "Q4_K", Dense: 100e6, Experts: 178e6, DenseParams: 200e6, ExpertsParams: 355e6}, {Type: "Q6_K", Dense: 43e6, Experts: 52e6, DenseParams: 96e6, ExpertsParams: 98e6}}}
}

// TestDecodeAsMeasured compares the speed model with bench/results/2026-12-02-lookahead.md, lookahead 0: its hit rates are
// given, so that the times alone are judged. Its cells of 75 % and more say themselves that they differ by a factor of two and are left out.
func TestDecodeAsMeasured(t *testing.T) {
	m, err := NamedMachine("cloud-2-cores")
	if err != nil {
		t.Fatal(err)
	}
	s := cut12()
	s.Curve = &Curve{Points: []CurvePoint{{.15, .567}, {.25, .702}, {.5, .883}, {.75, .976}, {.9, .997}, {1, 1}}}
	sum, worst, n := 0.0, 0.0, 0
	for _, c := range []struct {
		disk float64
		want []float64
	}{
		{0.25e9, []float64{2.05, 3.07, 7.32}},
		{0.5e9, []float64{4.15, 6.01, 16.01}},
		{1e9, []float64{7.84, 11.50, 19.54}},
	} {
		m.Disk = c.disk
		for i, share := range []float64{.15, .25, .5} {
			arena := int64(share * float64(s.Fixed.ArenaMost))
			p, err := Make(s, m, Size{Budget: s.Fixed.Fixed() + Mapped(arena) + 1<<20})
			if err != nil {
				t.Fatal(err)
			}
			got := p.Rows[0].Decode
			off := math.Abs(got/c.want[i] - 1)
			if off > 0.25 {
				t.Errorf("%.2f GB/s, %.0f %%: %.2f tokens/s predicted, %.2f measured", c.disk/1e9, 100*share, got, c.want[i])
			}
			sum, worst, n = sum+off, max(worst, off), n+1
		}
	}
	if mean := sum / float64(n); mean > 0.10 {
		t.Errorf("mean error %.3f, want at most 0.10", mean)
	} else {
		t.Logf("mean error %.3f, worst %.3f", mean, worst)
	}
}

// TestFlagshipAsMeasured compares with bench/results/2026-12-02-flagship.md: twelve layers of Qwen3.8-Flash-Next's geometry
// without a cap, which had a burst of 3.4 GB/s; its hit rate is given.
func TestFlagshipAsMeasured(t *testing.T) {
	m, err := NamedMachine("cloud-2-cores")
	if err != nil {
		t.Fatal(err)
	}
	m.Disk = m.Burst
	s := Shape{Path: "flagship", Arch: "qwen4exp", Layers: 12, ExpertLayers: 12, ExpertsPerLayer: 512, ExpertsPerToken: 10, ExpertMin: 1843200, ExpertMax: 1843200, ExpertTotal: 6144 * 1843200, Context: 256,
		Parallel: 1, Batch: 256, KeyType: "f16", ValType: "f16", Curve: &Curve{Points: []CurvePoint{{0.187, 0.70}}},
		Fixed:   Budget{Dense: 2410016640, Runtime: 60e6, ArenaMin: 60e6, ArenaMost: 6144 * 1855488, Experts: 6144},
		Traffic: []Traffic{{Type: "Q8_0", Dense: 1735e6}, {Type: "Q2_0", Experts: 110592000}, {Type: "IQ4_NL", Experts: 110592000}}}
	arena := int64(0.187 * float64(s.Fixed.ArenaMost))
	p, err := Make(s, m, Size{Budget: s.Fixed.Fixed() + Mapped(arena) + 1<<20})
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Rows[0]; r.Decode < 12.4*0.8 || r.Decode > 12.4*1.2 {
		t.Errorf("%.2f tokens/s predicted, 12.4 (10.8 to 14.1) measured: %+v", r.Decode, r.Terms)
	} else {
		t.Logf("%.2f tokens/s predicted, 12.4 (10.8 to 14.1) measured", r.Decode)
	}
}
