package model_test

import (
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
)

var fixtures = []string{"qwen3next", "qwen35moe", "qwen35", "lfm2moe", "nemotron_h_moe", "qwen3", "qwen3moe", "qwen3moe-f32", "qwen3moe-kquants", "qwen3moe-legacy", "qwen3moe-iquants",
	"llama", "llama-moe", "qwen2moe", "olmoe", "gpt-oss", "gpt-oss-mxfp4", "glm4moe", "granitemoe", "minimax-m2", "bailingmoe2", "ernie4_5-moe",
	"deepseek2-lite", "deepseek2-v3", "gemma4", "gemma4-small"}

// TestGoldenExact compares float32 activations with llama.cpp's float32 reference.
func TestGoldenExact(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			if raceEnabled && name != "qwen3moe-f32" {
				t.Skip("slow under the race detector")
			}
			g := readGolden(t, name)
			limit := 1e-3 * g.Std
			if name == "deepseek2-lite" {
				limit *= 2 // its 27 layers amplify rounding
			}
			r := newRig(t, unzip(t, "golden", name, "model.drawn.gz"), exact)
			worst := 0.0
			check := func(what string, i int, got, want []float32) {
				t.Helper()
				d := farthest(got, want)
				worst = max(worst, d)
				if !(d <= limit) {
					t.Errorf("%s %d: logits differ by %.3g, limit %.3g", what, i, d, limit)
				}
			}
			got := r.feed(t, g.Prompt.Tokens, 48)
			for _, p := range g.Prompt.Positions {
				check("position", p, got[p], at(g, p))
			}
			for p, want := range g.Prompt.Argmax {
				if a := argmax(got[p]); a != want {
					t.Errorf("position %d: argmax %d, want %d", p, a, want)
				}
			}
			for i, want := range g.Greedy.Logits {
				one := r.feed(t, g.Greedy.Tokens[i:i+1], 1)[0]
				check("greedy step", i, one, want)
				if a := argmax(one); int32(a) != g.Greedy.Tokens[i+1] {
					t.Errorf("greedy step %d: argmax %d, want %d", i, a, g.Greedy.Tokens[i+1])
				}
			}
			r.st.Truncate(0)
			long := r.feed(t, g.Long.Tokens, 512)
			check("long prompt, position", 299, long[299], g.Long.LastLogits)
			judged := 0
			for p, want := range g.Long.Argmax {
				if g.Long.Margin[p] <= 2*limit {
					continue
				}
				judged++
				if a := argmax(long[p]); a != want {
					t.Errorf("long prompt, position %d: argmax %d, want %d (margin %.3g)", p, a, want, g.Long.Margin[p])
				}
			}
			t.Logf("largest difference %.2g, that is %.2g of the deviation; %d argmax judged", worst, worst/g.Std, judged)
			if judged < 250 {
				t.Errorf("only %d positions have a margin above %.3g", judged, 2*limit)
			}
		})
	}
}

// TestGoldenFast judges quantised activations by what llama.cpp's own do to the same files: medians and argmax changes,
// twice each.
func TestGoldenFast(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			if raceEnabled && name != "qwen3moe-f32" {
				t.Skip("slow under the race detector")
			}
			g := readGolden(t, name)
			s := setup{cpu: cpu.Options{Threads: 2}, k: compute.KVF32, v: compute.KVF32}
			data := unzip(t, "golden", name, "model.drawn.gz")
			r := newRig(t, data, s)
			ref := newRig(t, data, exact) // itself within 1e-3 of the reference, at every position
			got, want := r.feed(t, g.Long.Tokens, 512), ref.feed(t, g.Long.Tokens, 512)
			diff := make([]float64, len(got))
			changes := 0
			for p := range got {
				diff[p] = farthest(got[p], want[p])
				if argmax(got[p]) != g.Long.Argmax[p] {
					changes++
				}
			}
			slices.Sort(diff)
			median := diff[len(diff)/2]
			limit, most := 2*noise(g, "activations_long_median_position"), 2*noise(g, "long_argmax_changes_")
			if limit == 0 { // F32 weights: the float path, so the exact limits
				limit = 1e-3 * g.Std
			}
			t.Logf("median difference %.3g (limit %.3g), %d argmax changes (limit %v)", median, limit, changes, most)
			if !(median <= limit) || float64(changes) > max(most, 1) {
				t.Errorf("median difference %.3g (limit %.3g), %d argmax changes (limit %v)", median, limit, changes, most)
			}
		})
	}
}

// noise is the figure of llama.cpp with half-precision or quantised activations whose name contains part.
func noise(g *golden, part string) float64 {
	for _, kind := range []string{"half_precision", "quantised"} {
		for _, key := range []string{kind + "_" + part, part + kind} {
			if v, ok := g.Noise[key]; ok {
				return v
			}
		}
	}
	panic("no noise figure " + part)
}
