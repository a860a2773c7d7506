package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"terrace/bench"
	"terrace/bench/synth"
	"terrace/engine"
	"terrace/plan"
)

// TestPlanModels holds plans of files with the dimensions of published models, without data, to what is known of these.
func TestPlanModels(t *testing.T) {
	for _, p := range models {
		t.Run(p.family, func(t *testing.T) {
			t.Parallel()
			quant := "q4_k"
			if strings.HasPrefix(p.family, "gpt-oss") {
				quant = "mxfp4"
			}
			f, m := hollow(t, synth.Options{Family: p.family, Quant: quant})
			s, err := engine.ShapeOf(f, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if s.ExpertMin != p.q4 || s.ExpertMax != p.q4 || !printed(t, s.ExpertTotal, p.all4) || s.ExpertTotal != m.Weights.Experts {
				t.Errorf("experts of %d to %d bytes, %d in all; want %d each and %s GiB", s.ExpertMin, s.ExpertMax, s.ExpertTotal, p.q4, p.all4)
			}
			if s.KVPerToken != p.kv || s.StateBytes != p.state {
				t.Errorf("%d bytes a position and %d of state, want %d and %d", s.KVPerToken, s.StateBytes, p.kv, p.state)
			}
			if s.DenseBytes != m.Weights.Dense || s.TableBytes != m.Weights.Table || s.ParamsTotal != m.Weights.Params {
				t.Errorf("dense %d, table %d, %d parameters; the file has %+v", s.DenseBytes, s.TableBytes, s.ParamsTotal, m.Weights)
			}
			var read int64
			for _, x := range s.Traffic {
				read += x.Experts
			}
			if want := p.q4 * int64(s.Touches()); read != want {
				t.Errorf("a token uses %d bytes of experts, want %d", read, want)
			}
			here, err := plan.NamedMachine("laptop-2023")
			if err != nil {
				t.Fatal(err)
			}
			r, err := plan.Make(s, here)
			if err != nil {
				t.Fatal(err)
			}
			last := 0.0
			for _, row := range r.Rows {
				if row.Fits != (row.Budget >= row.Least) || !row.Fits && (row.Reason == "" || row.Decode != 0) {
					t.Errorf("row %+v", row)
				}
				if row.Fits && (row.Decode < last*0.999 || row.Decode <= 0 || row.Prefill <= 0 || row.Unsure <= 0 || math.IsNaN(row.Decode)) {
					t.Errorf("more memory is slower, or a row without speeds: %+v", row)
				}
				last = max(last, row.Decode)
			}
		})
	}
}

// TestPlanPeerTable compares with the residency that strata-mlx publishes for Qwen3.8-Flash-Next. Its reserve is not
// published with it: 7 GiB for everything but the model meets all rows within 6 points. Its IQ3_S file keeps more of the
// dense part in wider types than its Q2_0 file, as the distance of the two columns shows (2.6 GB more beside experts at
// every size): bf16 and q8_0 here. Experts of 2.02 MB stand for its 2.05 MB. Prompts go in
// passes of 512: wider ones take an eighth of the arena where it is small.
func TestPlanPeerTable(t *testing.T) {
	type row struct {
		gib  int64
		want float64 // per cent; negative: does not fit
	}
	for _, c := range []struct {
		name string
		o    synth.Options
		rows []row
	}{
		{"Q2_0", synth.Options{Quant: "q2_0", Dense: "q8_0"}, []row{{16, 9}, {24, 34}, {32, 59}, {36, 72}, {48, 100}, {64, 100}}},
		{"IQ3_S", synth.Options{Quant: "iq3_xxs+iq2_xs+iq4_nl", Dense: "bf16"}, []row{{16, -1}, {24, 18}, {32, 35}, {36, 44}, {48, 69}, {64, 100}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Family = "qwen3.8-flash-next"
			f, _ := hollow(t, c.o)
			s, err := engine.ShapeOf(f, engine.Options{Batch: 512})
			if err != nil {
				t.Fatal(err)
			}
			m, err := plan.NamedMachine("unified-128")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.rows {
				p, err := plan.Make(s, m, plan.Size{RAM: r.gib << 30, Reserve: 7 << 30})
				if err != nil {
					t.Fatal(err)
				}
				got := p.Rows[0]
				t.Logf("%d GiB: %.1f %%, theirs %.0f %%", r.gib, 100*got.Resident, r.want)
				if got.Fits != (r.want >= 0) || got.Fits && math.Abs(100*got.Resident-r.want) > 8 {
					t.Errorf("%d GiB: fits %v, %.1f %% resident, want %.0f %%", r.gib, got.Fits, 100*got.Resident, r.want)
				}
			}
		})
	}
}

// planJSON runs plan --json.
func planJSON(t *testing.T, args ...string) (r planReport) {
	t.Helper()
	code, out, errs := terrace("", append([]string{"plan", "--json"}, args...)...)
	if code != exitOK || errs != "" {
		t.Fatalf("%q: exit %d, %s", args, code, errs)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return r
}

// TestPlanFlagsRun runs models with the flags of plans: they start, with the budget that was planned.
func TestPlanFlagsRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stats.json")
	for _, more := range [][]string{{"-c", "300"}, {"-c", "256", "-ctk", "q8_0", "-ctv", "q4_0", "-b", "64"}, {"-c", "200", "--lookahead", "0"}} {
		r := planJSON(t, append([]string{tinyMoE, "--budget", "1,90M"}, more...)...)
		none, row := r.Rows[0], r.Rows[1]
		if none.Fits || !row.Fits || none.Least >= row.Budget || none.Reason == "" {
			t.Fatalf("rows %+v", r.Rows)
		}
		for _, budget := range []int64{none.Least, row.Budget} {
			r := planJSON(t, append([]string{tinyMoE, "--budget", strconv.FormatInt(budget, 10)}, more...)...)
			args := append([]string{"run", "-m", tinyMoE, "--temp", "0", "--ignore-eos", "-n", "4", "--stats", "json", "--stats-file", file, "Hi"}, strings.Fields(r.Rows[0].Flags)...)
			if code, _, errs := terrace("", args...); code != exitOK {
				t.Fatalf("%q: exit %d, %s", args, code, errs)
			}
			var st engine.Stats
			b, err := os.ReadFile(file)
			if err == nil {
				err = json.Unmarshal(b, &st)
			}
			if err != nil {
				t.Fatal(err)
			}
			if st.RAMBudget != budget || st.ExpertSlots != r.Rows[0].InRAM {
				t.Errorf("%q: %d slots in %d bytes, planned %d in %d", args, st.ExpertSlots, st.RAMBudget, r.Rows[0].InRAM, budget)
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		args := append([]string{"run", "-m", tinyMoE, "--ram", strconv.FormatInt(none.Least-1, 10), "-n", "1", "Hi"}, more...)
		if code, _, errs := terrace("", args...); code != exitNoFit {
			t.Errorf("a byte less than the least of the plan: exit %d, %s", code, errs)
		}
	}
}

func TestPlanCommand(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "big.gguf")
	if code, _, errs := terrace("", "bench", "synth", "qwen3-30b-a3b", "--header-only", "-o", path); code != exitOK {
		t.Fatal(errs)
	}
	code, out, errs := terrace("", "plan", path, "--machine", "laptop-2023", "--ram", "2,8,16", "--vram", "none,12")
	lines := strings.Split(out, "\n")
	if code != exitOK || errs != "" || !strings.Contains(out, "does not fit") || !strings.Contains(out, "terrace run -m "+path+" --ram ") || strings.Contains(out, "\x1b") || !strings.Contains(out, "estimates") {
		t.Fatalf("exit %d, %s%s", code, out, errs)
	}
	if len(lines) < 12 || !strings.Contains(out, "12 points") {
		t.Errorf("table\n%s", out)
	}
	if code, out, errs = terrace("", "plan", path, "--machine", "laptop-2023", "--markdown"); code != exitOK || errs != "" || strings.Count(out, "\n| ") != 10 {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	r := planJSON(t, path, "--machine", "desktop-ddr5-12gb", "--ram", "16", "-np", "4")
	if len(r.Rows) != 2 || r.Rows[0].VRAM != 0 || r.Rows[1].VRAM != 12<<30 || r.Rows[1].Measured || r.Rows[1].InVRAM == 0 || r.Rows[1].Decode <= r.Rows[0].Decode || r.Parallel != 4 {
		t.Errorf("rows %+v", r.Rows)
	}
	one := planJSON(t, path, "--machine", "desktop-ddr5", "--ram", "16", "--reserve", "4G")
	if one.Rows[0].Reserve != 4<<30 || one.Rows[0].Budget != 12<<30 || one.Rows[0].InRAM >= r.Rows[0].InRAM || one.Here == nil || one.Here.RAM != 64<<30 {
		t.Errorf("rows %+v, %+v", one.Rows, one.Here)
	}
	curve := filepath.Join(dir, "curve.json")
	if err := os.WriteFile(curve, []byte(`{"version":1,"source":"mine","policy":"reuse","points":[{"resident":0.5,"hit_rate":0.9}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if own := planJSON(t, path, "--curve", curve, "--ram", "8", "--machine", "laptop-2019"); own.CurveSource != "mine" || own.Rows[0].HitRate == r.Rows[0].HitRate {
		t.Errorf("%q, hit rate %g", own.CurveSource, own.Rows[0].HitRate)
	}
	whole, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.gguf")
	if err := os.WriteFile(cut, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	code, part, errs := terrace("", "plan", cut, "--json", "--budget", "90M", "--machine", "laptop-2023")
	if _, all, _ := terrace("", "plan", tinyMoE, "--json", "--budget", "90M", "--machine", "laptop-2023"); code != exitOK || part != all || !strings.Contains(errs, "its header") {
		t.Errorf("a file that is cut: exit %d, %s%s, whole %s", code, part, errs, all)
	}
	if code, out, _ = terrace("", "plan", "--machine", "list"); code != exitOK || strings.Count(out, "\n") != len(plan.Machines())+1 {
		t.Errorf("exit %d, %s", code, out)
	}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "no machine", []string{path, "--machine", "toaster"}},
		{exitUsage, "--ram", []string{path, "--ram", "8,x"}},
		{exitUsage, "--ram", []string{path, "--ram", "0"}},
		{exitUsage, "--budget", []string{path, "--budget", "8G", "--ram", "8"}},
		{exitUsage, "--reserve", []string{path, "--reserve", "8G", "--ram", "8"}},
		{exitUsage, "want one model", []string{path, path}},
		{exitUsage, "--parallel", []string{path, "--parallel", "0"}},
		{exitUsage, "exclude", []string{path, "--json", "--markdown"}},
		{exitUsage, "context size", []string{path, "-c", "99999999"}},
		{exitFailure, "nowhere", []string{filepath.Join(dir, "nowhere.gguf")}},
	} {
		if code, out, errs := terrace("", append([]string{"plan"}, c.args...)...); code != c.code || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%q: exit %d, %q, %q; want exit %d and %q", c.args, code, out, errs, c.code, c.want)
		}
	}
	if code, out, errs := terrace("", "plan", "--help"); code != exitOK || !strings.Contains(out, "--reserve") || errs != "" {
		t.Errorf("exit %d, %s", code, fmt.Sprint(out, errs))
	}
}

func TestDoctorCommand(t *testing.T) {
	code, out, errs := terrace("", "doctor", tinyMoE, "-c", "128", "--port", "59871")
	if code != exitOK || errs != "" || !strings.Contains(out, "kernels use") || !strings.Contains(out, "qwen3moe, Q4_K") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	code, out, errs = terrace("", "doctor", "--json", "-m", "nowhere.gguf")
	var r doctorReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitFailure || r.State != "fail" || len(r.Findings) < 5 || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit %d, %v, %s%s", code, err, out, errs)
	}
	for _, args := range [][]string{{"a", "b"}, {"--port", "0"}, {"-m", "a", "b"}} {
		if code, _, errs := terrace("", append([]string{"doctor"}, args...)...); code != exitUsage || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %q", args, code, errs)
		}
	}
}

func TestBenchPlanCommand(t *testing.T) {
	cell := fmt.Sprintf(`{"model":%q,"budget":100000000,"ctx":64,"prompt":16,"decode":4,"warm":2,"threads":1}`, tinyMoE)
	const moment = `{"memory":4e10,"mat_vec":8e10,"gemm":1e12}` // as who started it would answer
	code, out, errs := terrace(cell+"\n"+strings.Repeat(moment+"\n", 64), "bench", "plan", "--cell")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var m bench.PlanMeasured
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &m); err != nil || code != exitOK || m.Decode <= 0 {
		t.Fatalf("exit %d, %v, %s%s", code, err, out, errs)
	}
	if n := strings.Count(out, "probe\n"); len(m.Decodes) < 3 || len(m.Prefills) != len(m.Decodes) || n != 2*len(m.Decodes)+1 || len(m.Memory) != n || m.AtDecode.Memory != 4e10 || m.AtPrefill.MatVec != 8e10 {
		t.Errorf("%d probes, %+v", n, m)
	}
	if code, out, errs := terrace(cell+"\n"+moment+"\n", "bench", "plan", "--cell"); code != exitFailure || !strings.Contains(errs, "does not answer") {
		t.Errorf("nobody answers: exit %d, %s%s", code, out, errs)
	}
	for _, args := range [][]string{{"-m", tinyMoE}, {"-m", tinyMoE, "-o", "x", "--shares", "0"}, {"-m", tinyMoE, "-o", "x", "--cap", "fast"}, {"-m", tinyMoE, "-o", "x", "--decode", "0"}, {"-m", tinyMoE, "-o", "x", "--shares", "50", "--budget", "1G"}} {
		if code, _, errs := terrace("", append([]string{"bench", "plan"}, args...)...); code != exitUsage || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %q", args, code, errs)
		}
	}
}
