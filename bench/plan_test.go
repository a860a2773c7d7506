package bench

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"terrace/plan"
)

// TestPredictions measures the demo model under two budgets, in this process, and goes on from results that are there.
func TestPredictions(t *testing.T) {
	dir := t.TempDir()
	m, err := plan.NamedMachine("cloud-2-cores")
	if err != nil {
		t.Fatal(err)
	}
	cfg := PlanConfig{
		Models: []PlanModel{{Path: tinyMoE, Texts: "../testdata/tiny-moe/heldout.jsonl"}}, Shares: []float64{0.3, 1}, Prompt: 128, Warm: 16, Decode: 16, Reuse: 700, Parts: 2,
		Results: filepath.Join(dir, "results.jsonl"),
		Profile: plan.Profile{Memory: &plan.Memory{Rate: m.Memory, Threads: 2}, Kernels: map[string]float64{"Q4_K": 80e9}},
	}
	runs := 0
	cfg.Run = func(ctx context.Context, c PlanCell, probe PlanProbe) (PlanMeasured, error) {
		if c.Part == 0 {
			runs++
		}
		return MeasureCell(ctx, c, probe)
	}
	r, err := Predictions(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if runs != 2 || len(r.Rows) != 2 {
		t.Fatalf("%d runs, %d rows", runs, len(r.Rows))
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Measured.Decode <= 0 || x.Measured.Prefill <= 0 || x.Decode <= 0 || x.Prefill <= 0 || x.Peak <= 0 || math.IsNaN(x.Decode) {
			t.Errorf("row %+v", x)
		}
		if d := math.Abs(x.HitRate - x.Measured.needed()); d > 0.15 { // sixteen tokens
			t.Errorf("a hit rate of %.3f is predicted, %.3f measured", x.HitRate, x.Measured.HitRate)
		}
	}
	if full := &r.Rows[1]; full.Measured.HitRate != 1 || full.HitRate != 1 || full.Measured.Read != 0 {
		t.Errorf("all experts resident: %+v", full)
	}
	again, err := Predictions(context.Background(), cfg)
	if err != nil || runs != 2 || !reflect.DeepEqual(again.Rows[0].Measured, r.Rows[0].Measured) {
		t.Errorf("results that are there were measured again, or not read: %d runs, %v", runs, err)
	}
	md := again.Markdown()
	if strings.Count(md, "| tiny-moe-Q4_K.gguf |") != 2 || !strings.Contains(md, "fitted to all other cells") {
		t.Errorf("table\n%s", md)
	}
	kept, err := os.ReadFile(cfg.Results)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(kept), `"model":"tiny-moe-Q4_K.gguf","texts":"heldout.jsonl"`) {
		t.Errorf("results name folders: %.200s", kept)
	}
	if err := os.WriteFile(cfg.Results, kept[:len(kept)-20], 0o644); err != nil { // as a crash may leave its last line
		t.Fatal(err)
	}
	var said strings.Builder
	cfg.Progress = func(s string) { said.WriteString(s + "\n") }
	if _, err := Predictions(context.Background(), cfg); err != nil || runs != 3 || !strings.Contains(said.String(), "line 2 of "+cfg.Results) {
		t.Errorf("a damaged line: %d runs in all, %v, said %s", runs, err, said.String())
	}
	if _, err := Predictions(context.Background(), PlanConfig{}); err == nil {
		t.Error("nothing to measure is no error")
	}
}

// TestJoinParts joins processes of one cell: rates are medians of all rounds, counts are per token of all, the peak is the
// median of the processes'.
func TestJoinParts(t *testing.T) {
	part := func(peak int64, hit, guessed float64, read int64, memory float64, rounds ...float64) PlanMeasured {
		at := plan.Moment{Memory: memory, MatVec: 2 * memory, Gemm: 3 * memory}
		return PlanMeasured{Peak: peak, HitRate: hit, Guessed: guessed, Read: read, AtPrefill: at, AtDecode: at, Prefills: rounds, Decodes: rounds, Memory: []float64{memory}}
	}
	parts := []PlanMeasured{part(70, 0.5, 0.1, 100, 30, 10, 11, 50), part(64, 0.8, 0.1, 400, 20, 12), part(66, 0.5, 0.1, 100, 40, 9, 13)}
	m := joinParts(parts)
	if m.Peak != 66 || m.Decode != 11.5 || m.Prefill != 11.5 || math.Abs(m.HitRate-0.55) > 1e-9 || m.Read != 150 || m.AtDecode != (plan.Moment{Memory: 30, MatVec: 60, Gemm: 90}) {
		t.Errorf("%+v", m)
	}
	if len(m.Decodes) != 6 || len(m.Memory) != 3 || len(m.Peaks) != 3 || len(parts[0].Decodes) != 3 {
		t.Errorf("%+v", m)
	}
	if math.Abs(m.needed()-0.45) > 1e-9 {
		t.Errorf("%g of the experts needed no read, want 0.45", m.needed())
	}
	if m := joinParts(parts[:2]); m.Peak != 67 {
		t.Errorf("a peak of %d between 64 and 70, want 67", m.Peak)
	}
	if one := joinParts(parts[:1]); !reflect.DeepEqual(one, parts[0]) {
		t.Errorf("one process: %+v", one)
	}
}

// TestFitPlans finds the costs that made the measurements, from a start that is off.
func TestFitPlans(t *testing.T) {
	m, err := plan.NamedMachine("cloud-2-cores")
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Shape{Arch: "qwen3moe", Layers: 12, ExpertLayers: 12, ExpertsPerLayer: 128, ExpertsPerToken: 8, ExpertTotal: 1536 * 2857000, Context: 1024, Parallel: 1, Batch: 512,
		Fixed:   plan.Budget{Runtime: 60 << 20, Dense: 143e6, Work: 50e6, ArenaMin: 96e6, ArenaMost: 1536 * 2863104, Experts: 1536},
		Traffic: []plan.Traffic{{Type: "Q4_K", Dense: 143e6, Experts: 230e6, DenseParams: 296e6, ExpertsParams: 453e6}}}
	truth := plan.Costs{Efficiency: 0.6, Prefill: 0.7, Layer: 100e-6, Read: 0.4, ReadPrompt: 0.3, Overlap: 0.8, Exposed: 0.1}
	var points []planPoint
	for _, disk := range []float64{0.5e9, 1e9, 2e9} {
		for _, budget := range []int64{900e6, 1500e6, 2500e6, 4800e6} {
			x := m
			x.Disk, x.Burst = disk, disk
			rec := &PlanRecord{Cell: PlanCell{Model: "m", Budget: budget}}
			p, err := newPlanPoint(&s, x, rec)
			if err != nil {
				t.Fatal(err)
			}
			r := p.row(truth)
			if !r.Fits {
				t.Fatal(r.Reason)
			}
			rec.Measured = PlanMeasured{Decode: r.Decode, Prefill: r.Prefill, HitRate: r.HitRate, Peak: r.Parts.Fixed() + plan.Mapped(r.Parts.Arena) - 30<<20}
			points = append(points, p)
		}
	}
	f := fitPlans(points, plan.DefaultCosts, func(i int) bool { return i != 5 })
	r := points[5].row(f.costs)
	want := points[5].cell.Measured
	if math.Abs(r.Decode/want.Decode-1) > 0.03 || math.Abs(r.Prefill/want.Prefill-1) > 0.03 {
		t.Errorf("the cell left out: %.3f and %.1f, want %.3f and %.1f; costs %+v", r.Decode, r.Prefill, want.Decode, want.Prefill, f.costs)
	}
	if got := peakOf(&s, &r, f.taken); math.Abs(float64(got)/float64(want.Peak)-1) > 0.01 {
		t.Errorf("peak %d, want %d", got, want.Peak)
	}
}
