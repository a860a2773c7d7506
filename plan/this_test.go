package plan

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestUnmeasuredMachine(t *testing.T) {
	var p Profile
	m := p.Machine("", 16<<30, 8)
	if m.Measured || m.check() != nil || m.Error < 0.3 || !strings.Contains(m.Source, "kernels") || !strings.Contains(m.Source, "memory") || !strings.Contains(m.Source, "disk") {
		t.Errorf("nothing was measured: %+v", m)
	}
	p = Profile{Memory: &Memory{Measured: time.Now(), Rate: 40e9, Threads: 8}, Kernels: map[string]float64{"Q4_K": 160e9}, Disks: map[string]Disk{"d": {Sustained: 2e9, Burst: 3e9, Settled: true, Store: "uring"}}}
	m = p.Machine("d", 16<<30, 8)
	if !m.Measured || m.matVec("Q4_K") != 160e9 || math.Abs(m.matVec("Q6_K")/reference.MatVec["Q6_K"]-2) > 1e-9 || m.burst() != 3e9 {
		t.Errorf("machine %+v", m)
	}
}

func TestMachines(t *testing.T) {
	if len(Machines()) < 5 {
		t.Fatalf("%d machines", len(Machines()))
	}
	for _, m := range Machines() {
		if err := m.check(); err != nil {
			t.Error(err)
		}
		if m.Measured || m.Error < 0.1 || m.RAM == 0 || m.Source == "" {
			t.Errorf("a machine that nobody measured: %+v", m)
		}
		if n, err := NamedMachine(strings.ToUpper(m.Name)); err != nil || n.Name != m.Name {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	if _, err := NamedMachine("toaster"); err == nil || !strings.Contains(err.Error(), "laptop-2023") {
		t.Errorf("%v", err)
	}
}

// TestDefaultCurves: each ships with a source and an uncertainty, rises, and stands for its architectures.
func TestDefaultCurves(t *testing.T) {
	for _, arch := range []string{"qwen3moe", "qwen4exp", "qwen35moe", "glm4moe", "olmoe", "never heard of"} {
		c := DefaultCurve(arch)
		if !strings.HasPrefix(c.Source, "default") || c.Uncertainty <= 0 || c.HitRate(1) != 1 || c.HitRate(0.3) <= c.HitRate(0.1) || c.HitRate(0) != 0 {
			t.Errorf("%s: %+v", arch, c)
		}
	}
	if DefaultCurve("qwen4exp").Source == DefaultCurve("qwen3moe").Source {
		t.Error("qwen4exp has no curve of its own")
	}
	// What the curves were drawn through.
	for _, c := range []struct {
		arch            string
		share, low, top float64
	}{{"qwen4exp", 0.0625, 0.538, 0.638}, {"qwen35moe", 0.21, 0.64, 0.75}, {"glm4moe", 0.175, 0.54, 0.72}, {"qwen3next", 0.44, 0.75, 0.85}, {"olmoe", 0.375, 0.684, 0.841}} {
		if h := DefaultCurve(c.arch).HitRate(c.share); h < c.low || h > c.top {
			t.Errorf("%s at %g: %.3f, published %.3f to %.3f", c.arch, c.share, h, c.low, c.top)
		}
	}
}

func TestCurveFromHeat(t *testing.T) {
	hot := make([]float64, 64)
	for e := range hot {
		hot[e] = 100 / float64(e+1)
	}
	c := CurveFromHeat("x", 4, [][]float64{nil, hot, hot})
	if c == nil || c.check() != nil || c.Layers != 2 || c.HitRate(0.25) < 0.6 || c.HitRate(1) != 1 {
		t.Fatalf("%+v", c)
	}
	if CurveFromHeat("x", 4, [][]float64{hot, make([]float64, 64)}) != nil {
		t.Error("a layer of which nothing is known gives a curve")
	}
	if CurveFromHeat("x", 4, nil) != nil {
		t.Error("no heat gives a curve")
	}
}

// TestFitCosts finds the costs that a trial shows.
func TestFitCosts(t *testing.T) {
	m, err := NamedMachine("cloud-2-cores")
	if err != nil {
		t.Fatal(err)
	}
	s := cut12()
	s.RowOps = 4e6
	truth := Costs{Efficiency: 0.65, Prefill: 0.55, Read: 0.3, ReadPrompt: 0.2, Overlap: 0.5}.Or(DefaultCosts)
	m.Engine = truth
	full := s.Fixed
	full.Slots = full.Experts
	p := Plan{Machine: m, shape: s, curve: DefaultCurve(s.Arch)}
	all := p.decode(placed{ram: full}, hits{all: 1})
	few := p.decode(placed{ram: full}, hits{all: 0.7})
	rows := float64(s.Batch)
	work := all.Token + truth.Read*float64(few.Read)/1e9 + float64(s.ExpertLayers)*truth.Ask
	got, err := FitCosts(s, m, Trial{Decode: 1 / all.Token, Prefill: p.prefill(placed{ram: full}), Starved: 1 / (work + few.Wait), Bytes: float64(few.Read), Wait: few.Wait, Busy: few.Wait + truth.Overlap*work,
		Prompt: rows / (rows/p.prefill(placed{ram: full}) + 0.2*3 + 3e9/s.MeanExpert()*truth.PromptAsk), Read: 3e9})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what      string
		got, want float64
	}{{"efficiency", got.Efficiency, truth.Efficiency}, {"prefill", got.Prefill, truth.Prefill}, {"read", got.Read, truth.Read}, {"overlap", got.Overlap, truth.Overlap}, {"prompt's read", got.ReadPrompt, truth.ReadPrompt}} {
		if math.Abs(x.got-x.want) > 0.03*x.want {
			t.Errorf("%s %.4f, want %.4f", x.what, x.got, x.want)
		}
	}
	if _, err := FitCosts(s, m, Trial{}); err == nil {
		t.Error("a trial of nothing")
	}
}

// TestRows: more memory is never slower, one more GB is worth what it says, and cards help.
func TestRows(t *testing.T) {
	m, err := NamedMachine("laptop-2023")
	if err != nil {
		t.Fatal(err)
	}
	s := cut12()
	p, err := Make(s, m, Size{Budget: 100e6}, Size{Budget: 1e9}, Size{Budget: 2e9}, Size{Budget: 3e9}, Size{Budget: 8e9}, Size{Budget: 2e9, VRAM: 4 << 30}, Size{Budget: 2e9, VRAM: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r := p.Rows
	if r[0].Fits || r[0].Reason == "" || r[0].Least <= 100e6 {
		t.Errorf("%+v", r[0])
	}
	for i := 2; i < 5; i++ {
		if r[i].Decode < r[i-1].Decode || r[i].HitRate < r[i-1].HitRate || r[i].Read > r[i-1].Read || r[i].Prefill < r[i-1].Prefill {
			t.Errorf("more memory is worse: %+v, then %+v", r[i-1], r[i])
		}
	}
	if got := r[2].Decode - r[1].Decode; math.Abs(got-r[1].NextGB) > 1e-9 {
		t.Errorf("one more GB adds %g, and is said to add %g", got, r[1].NextGB)
	}
	if r[4].Resident != 1 || r[4].HitRate != 1 || r[4].Read != 0 || r[4].NextGB != 0 {
		t.Errorf("everything fits: %+v", r[4])
	}
	if r[5].Decode <= r[2].Decode || r[5].InVRAM == 0 || r[5].Measured || r[6].InVRAM != 0 || r[6].Reason == "" || r[6].Decode != r[2].Decode {
		t.Errorf("cards: %+v, %+v", r[5], r[6])
	}
	dense := Shape{Path: "d", Arch: "qwen3", Layers: 28, Context: 4096, Parallel: 1, Batch: 512, KeyType: "f16", ValType: "f16", Fixed: Budget{Dense: 1e9, Runtime: 50e6},
		Traffic: []Traffic{{Type: "Q8_0", Dense: 1e9, DenseParams: 940e6}}}
	if p, err = Make(dense, m); err != nil || p.Rows[0].Decode <= 0 || p.Rows[0].Total != 0 || math.IsNaN(p.Rows[0].Prefill) || p.Rows[0].Read != 0 {
		t.Errorf("a dense model: %v, %+v", err, p.Rows)
	}
	m.Disk = 0
	if _, err := Make(s, m); err == nil {
		t.Error("a disk that gives nothing")
	}
}
