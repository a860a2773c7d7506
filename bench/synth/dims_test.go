package synth

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestParameters holds every family to its published number of parameters, in billions as printed.
func TestParameters(t *testing.T) {
	published := map[string]string{
		"qwen3-30b-a3b": "30.5", "qwen3-235b-a22b": "235", "qwen3-next-80b-a3b": "79.7", "qwen3.5-35b-a3b": "34.7", "qwen3.5-122b-a10b": "122", "qwen3.5-397b-a17b": "396",
		"qwen3.8-flash-next": "176.943899520", "gpt-oss-20b": "20.9", "gpt-oss-120b": "116.8", "glm-4.5-air": "106.9", "glm-4.6": "353", "glm-4.7-flash": "29.9",
		"deepseek-v2-lite": "15.7", "deepseek-v3": "671", "mixtral-8x7b": "46.7", "olmoe-1b-7b": "6.9", "qwen1.5-moe-a2.7b": "14.3", "gemma-4-26b-a4b": "25.2",
		"minimax-m2": "229", "granite-3.1-3b-a800m": "3.3", "ernie-4.5-21b-a3b": "21.8", "lfm2.5-8b-a1b": "8.3", "nemotron-3-nano-30b-a3b": "31.6", "ling-mini-2.0": "16.3",
	}
	for _, f := range Families() {
		m, err := New(Options{Family: f.Name, HeaderOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		want := published[f.Name]
		delete(published, f.Name)
		if !printed(float64(m.Weights.Params)/1e9, want) {
			t.Errorf("%s has %d parameters, published are %s billion", f.Name, m.Weights.Params, want)
		}
		if m.Weights.ExpertMin != m.Weights.ExpertMax || m.Weights.Experts != m.Weights.ExpertMax*int64(m.Weights.ExpertLayers*m.Weights.PerLayer) {
			t.Errorf("%s: %+v do not add up", f.Name, m.Weights)
		}
	}
	if len(published) > 0 {
		t.Errorf("no family for %v", published)
	}
}

// printed reports whether x rounds to the digits of s.
func printed(x float64, s string) bool {
	var v float64
	if _, err := fmt.Sscan(s, &v); err != nil {
		return false
	}
	unit := 1.0
	if _, fraction, ok := strings.Cut(s, "."); ok {
		unit = math.Pow10(-len(fraction))
	}
	return math.Abs(x-v) <= unit/2
}

// TestMixes holds the flagship's experts to the sizes of its published builds.
func TestMixes(t *testing.T) {
	f, err := family("qwen3.8-flash-next")
	if err != nil {
		t.Fatal(err)
	}
	f.shape.vocab, f.shape.eos = 700, 600 // a large vocabulary takes most of the time
	for quant, want := range map[string][2]int64{
		"q4_k": {2969600, 2969600}, "q4_k+iq4_nl": {2764800, 2764800}, "q2_k": {1996800, 1996800}, "q2_0": {1382400, 1382400}, "iq3_s+iq4_nl": {2329600, 2329600},
		"Q8_0": {5222400, 5222400}, "iq4_nl": {2764800, 2764800}, "ud-q4_k_xl": {3072000, 3993600}, "q4_k+q4_k+q5_1": {3072000, 3072000},
	} {
		m, err := newModel(f, Options{Layers: 5, Quant: quant, HeaderOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if w := m.Weights; w.ExpertMin != want[0] || w.ExpertMax != want[1] {
			t.Errorf("%s: experts of %d to %d bytes, want %d to %d", quant, w.ExpertMin, w.ExpertMax, want[0], want[1])
		}
	}
	m, err := New(Options{Family: "qwen3-30b-a3b", Quant: "q4_k_m", HeaderOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if w := m.Weights; w.ExpertMin != 2654208 || w.ExpertMax != 3059712 {
		t.Errorf("q4_k_m: experts of %d to %d bytes", w.ExpertMin, w.ExpertMax)
	}
}
