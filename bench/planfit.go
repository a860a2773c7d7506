package bench

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"terrace/internal/host"
	"terrace/plan"
)

// PlanReport is predictions beside measurements.
type PlanReport struct {
	Machine Machine   `json:"machine"`
	Commit  string    `json:"commit"`
	Profile string    `json:"profile"` // where the rates come from
	Rows    []PlanRow `json:"rows"`

	Costs plan.Costs `json:"engine_costs"` // fitted to all cells

	// Errors by how what the engine costs was known: from the machine's calibration alone, fitted to all other cells, and
	// fitted to the cells of the other models.
	Calibrated PlanErrors `json:"calibrated"`
	LeaveOne   PlanErrors `json:"leave_one_out"`
	LeaveModel PlanErrors `json:"leave_model_out"`
}

// PlanRow is one cell; predictions are those of leaving it out.
type PlanRow struct {
	PlanRecord
	Peak       int64      `json:"predicted_peak"`
	HitRate    float64    `json:"predicted_hit_rate"`
	Decode     float64    `json:"predicted_decode"`
	Prefill    float64    `json:"predicted_prefill"`
	Limit      string     `json:"predicted_bottleneck"`
	Calibrated [2]float64 `json:"calibrated"`      // decode and prefill by the calibration alone
	LeaveModel [2]float64 `json:"leave_model_out"` // the same with the model left out
}

// PlanErrors sums up errors: shares, of hit rates differences.
type PlanErrors struct {
	PeakWorst    float64 `json:"peak_worst"`
	HitWorst     float64 `json:"hit_worst"`
	DecodeMean   float64 `json:"decode_mean"`
	DecodeWorst  float64 `json:"decode_worst"`
	PrefillMean  float64 `json:"prefill_mean"`
	PrefillWorst float64 `json:"prefill_worst"`
}

// fitted is what a fit finds: the engine's costs, and what a process really takes of what is set aside for it.
type fitted struct {
	costs plan.Costs
	taken taken
}

// taken is what a process takes of what is set aside for it: bytes of the run-time reserve, a share of the work space, bytes more
// where it reads experts, and a share of the checkpoints of recurrent states, most of which a short session never makes.
type taken struct{ bytes, work, reads, checkpoints float64 }

// asideOf is what is set aside in a row and may not be taken, and the part of it that is checkpoints.
func asideOf(s *plan.Shape, r *plan.Row) (all, checkpoints int64) {
	checkpoints = int64(r.Parts.Checkpoints) * s.Checkpoint
	return r.Parts.Runtime + r.Parts.Work + checkpoints, checkpoints
}

// of are the bytes by this of a row.
func (t taken) of(s *plan.Shape, r *plan.Row) int64 {
	all, checkpoints := asideOf(s, r)
	n := t.bytes + t.work*float64(r.Parts.Work) + t.checkpoints*float64(checkpoints)
	if r.Parts.Slots < r.Parts.Experts {
		n += t.reads
	}
	return min(max(0, int64(n)), all)
}

// planPoint is a cell ready to be predicted.
type planPoint struct {
	cell  *PlanRecord
	shape *plan.Shape
	// The same on the machine as it was while tokens were decoded, and while prompts were read.
	decode, prefill plan.Plan
}

func newPlanPoint(s *plan.Shape, m plan.Machine, r *PlanRecord) (p planPoint, err error) {
	p = planPoint{cell: r, shape: s}
	if p.decode, err = plan.Make(*s, m.At(r.Measured.AtDecode), plan.Size{Budget: r.Cell.Budget}); err != nil {
		return p, err
	}
	p.prefill, err = plan.Make(*s, m.At(r.Measured.AtPrefill), plan.Size{Budget: r.Cell.Budget})
	return p, err
}

// row is the cell's prediction with these costs.
func (p *planPoint) row(c plan.Costs) plan.Row {
	size := plan.Size{Budget: p.cell.Cell.Budget}
	p.decode.Machine.Engine = c.Or(plan.DefaultCosts)
	p.prefill.Machine.Engine = p.decode.Machine.Engine
	r := p.decode.Row(size)
	r.Prefill = p.prefill.Row(size).Prefill
	return r
}

// comparePlans predicts every cell three ways.
func comparePlans(c *PlanConfig, cases []planCase, list []PlanRecord) (*PlanReport, error) {
	rep := &PlanReport{Machine: ThisMachine(), Commit: Commit()}
	points := make([]planPoint, len(list))
	at := 0
	for i := range cases {
		for range cases[i].cells {
			r := &list[at]
			m := c.Profile.Machine(deviceOf(cases[i].Path), 0, r.Cell.Threads)
			m.Measured = true // what is not is said by Source
			if r.Cell.Cap > 0 {
				m.Burst = max(m.Burst, m.Disk, r.Cell.Cap)
				m.Disk = r.Cell.Cap
			}
			var err error
			if points[at], err = newPlanPoint(&cases[i].shape, m, r); err != nil {
				return nil, err
			}
			rep.Profile = m.Source
			at++
		}
	}
	start := plan.DefaultCosts
	if c.Profile.Engine != nil {
		start = c.Profile.Engine.Or(start)
	}
	all := fitPlans(points, start, func(int) bool { return true })
	rep.Costs = all.costs
	byModel := map[string]plan.Costs{}
	for i := range points {
		one := fitPlans(points, all.costs, func(k int) bool { return k != i })
		if len(points) == 1 {
			one.costs = start
		}
		name := points[i].cell.Cell.Model
		others, ok := byModel[name]
		if !ok {
			others = fitPlans(points, start, func(k int) bool { return points[k].cell.Cell.Model != name }).costs
			byModel[name] = others
		}
		out := PlanRow{PlanRecord: *points[i].cell}
		r := points[i].row(one.costs)
		if !r.Fits {
			return nil, fmt.Errorf("%s: a budget of %d bytes was measured, and does not fit by the plan: %s", filepath.Base(name), r.Budget, r.Reason)
		}
		out.HitRate, out.Decode, out.Prefill, out.Limit = r.HitRate, r.Decode, r.Prefill, r.Limit
		out.Peak = peakOf(points[i].shape, &r, one.taken)
		for k, costs := range []plan.Costs{start, others} {
			r := points[i].row(costs)
			*[]*[2]float64{&out.Calibrated, &out.LeaveModel}[k] = [2]float64{r.Decode, r.Prefill}
		}
		rep.Rows = append(rep.Rows, out)
	}
	rep.LeaveOne = rep.errors(func(r *PlanRow) (float64, float64) { return r.Decode, r.Prefill })
	rep.Calibrated = rep.errors(func(r *PlanRow) (float64, float64) { return r.Calibrated[0], r.Calibrated[1] })
	rep.LeaveModel = rep.errors(func(r *PlanRow) (float64, float64) { return r.LeaveModel[0], r.LeaveModel[1] })
	return rep, nil
}

// peakOf is the most memory that a process will have held: its budget, but for the part of what is set aside that it does not
// take.
func peakOf(s *plan.Shape, r *plan.Row, t taken) int64 {
	all, _ := asideOf(s, r)
	return held(s, r) - all + t.of(s, r)
}

// held is the budget's parts as far as they are touched. Slots are as large as their largest expert with the blocks around
// it; where every expert has one of its own, only its own pages are.
func held(s *plan.Shape, r *plan.Row) int64 {
	b := &r.Parts
	arena := b.Arena
	if b.Slots >= b.Experts {
		arena = min(arena, s.ExpertTotal+3*host.IOAlign*int64(b.Experts))
	}
	return b.Fixed() + plan.Mapped(arena)
}

func (r *PlanReport) errors(speeds func(*PlanRow) (decode, prefill float64)) PlanErrors {
	var e PlanErrors
	n := float64(len(r.Rows))
	for i := range r.Rows {
		x := &r.Rows[i]
		d, p := speeds(x)
		off := func(v, want float64) float64 { return math.Abs(v/want - 1) }
		e.PeakWorst = max(e.PeakWorst, off(float64(x.Peak), float64(x.Measured.Peak)))
		e.HitWorst = max(e.HitWorst, math.Abs(x.HitRate-x.Measured.needed()))
		e.DecodeMean += off(d, x.Measured.Decode) / n
		e.DecodeWorst = max(e.DecodeWorst, off(d, x.Measured.Decode))
		e.PrefillMean += off(p, x.Measured.Prefill) / n
		e.PrefillWorst = max(e.PrefillWorst, off(p, x.Measured.Prefill))
	}
	return e
}

// fitPlans finds the costs that meet the chosen cells best, beginning at some: a walk along one cost after the other, with
// steps that shrink. Few cells move them little, since leaving where they begin has a price.
func fitPlans(points []planPoint, start plan.Costs, use func(i int) bool) fitted {
	var chosen []int
	for i := range points {
		if use(i) {
			chosen = append(chosen, i)
		}
	}
	best := fitted{costs: start, taken: fitTaken(points, chosen)}
	if len(chosen) == 0 {
		return best
	}
	loss := func(c plan.Costs) float64 {
		sum := 0.0
		for _, i := range chosen {
			r := points[i].row(c)
			m := &points[i].cell.Measured
			sum += square(math.Log(r.Decode/m.Decode)) + square(math.Log(r.Prefill/m.Prefill))
		}
		for k, v := range knobs(&c) {
			sum += 0.02 * square(math.Log(*v / *knobs(&start)[k]))
		}
		return sum
	}
	low := loss(best.costs)
	for step := 0.5; step > 0.01; step /= 2 {
		for moved := true; moved; {
			moved = false
			for k := range knobs(&best.costs) {
				for _, by := range []float64{1 + step, 1 / (1 + step)} {
					c := best.costs
					v := knobs(&c)[k]
					*v = min(max(*v*by, bounds[k][0]), bounds[k][1])
					if l := loss(c); l < low-1e-9 {
						best.costs, low, moved = c, l, true
					}
				}
			}
		}
	}
	return best
}

// fitTaken finds what processes take of what is set aside: least squares of the peaks' relative errors.
func fitTaken(points []planPoint, chosen []int) taken {
	const unit = 1e8    // bytes
	var a [4][5]float64 // normal equations
	for _, i := range chosen {
		r := &points[i].decode.Rows[0]
		peak := float64(points[i].cell.Measured.Peak)
		if !r.Fits || peak <= 0 {
			continue
		}
		reads := 0.0
		if r.Parts.Slots < r.Parts.Experts {
			reads = 1
		}
		all, checkpoints := asideOf(points[i].shape, r)
		row := [5]float64{1, float64(r.Parts.Work) / unit, reads, float64(checkpoints) / unit, (peak - float64(held(points[i].shape, r)-all)) / unit}
		for j := range a {
			for k := range row {
				a[j][k] += row[j] * row[k] * square(unit/peak)
			}
		}
	}
	if a[0][0] == 0 {
		return taken{work: 0.5}
	}
	// What the cells do not tell apart, such as one work space alone, is held near zero.
	for j := range a {
		a[j][j] += 1e-6 * a[0][0]
	}
	for j := range a {
		for k := range a {
			if k == j {
				continue
			}
			f := a[k][j] / a[j][j]
			for l := j; l < len(a[k]); l++ {
				a[k][l] -= f * a[j][l]
			}
		}
	}
	x := func(j int) float64 { return a[j][len(a)] / a[j][j] }
	return taken{bytes: unit * x(0), work: x(1), reads: unit * x(2), checkpoints: x(3)}
}

func square(v float64) float64 { return v * v }

// knobs are the costs that are fitted, and bounds what any machine can show.
func knobs(c *plan.Costs) [12]*float64 {
	return [12]*float64{&c.Efficiency, &c.Prefill, &c.Layer, &c.Read, &c.ReadPrompt, &c.Held, &c.Overlap, &c.Exposed, &c.Latency, &c.Row, &c.Ask, &c.PromptAsk}
}

var bounds = [12][2]float64{{0.1, 2}, {0.1, 2}, {1e-6, 1e-3}, {0.01, 4}, {0.01, 4}, {0.01, 4}, {0.05, 0.98}, {0.01, 0.6}, {1e-6, 2e-3}, {0.01, 10}, {1e-6, 1e-3}, {1e-6, 2e-3}}

// Markdown is the report as a table.
func (r *PlanReport) Markdown() string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("%s, %d cores; rates %s; commit %s", r.Machine.CPU, r.Machine.Cores, r.Profile, r.Commit)
	p("")
	p("| costs of the engine | peak, worst | hit rate, worst | decode, mean | worst | prefill, mean | worst |")
	p("|---|---|---|---|---|---|---|")
	for _, x := range []struct {
		name string
		e    PlanErrors
	}{{"fitted to all other cells", r.LeaveOne}, {"fitted to the other models", r.LeaveModel}, {"the calibration's", r.Calibrated}} {
		p("| %s | %.1f %% | %.1f points | %.1f %% | %.1f %% | %.1f %% | %.1f %% |", x.name, 100*x.e.PeakWorst, 100*x.e.HitWorst, 100*x.e.DecodeMean, 100*x.e.DecodeWorst, 100*x.e.PrefillMean, 100*x.e.PrefillWorst)
	}
	p("")
	p("Predicted, each with the cell left out, and measured. Predictions use the memory bandwidth and the kernels' rates of the moment in which the cell was measured; memory is that while it decoded, the range that of all moments; measured speeds are medians of so many rounds, with the lowest and the highest.")
	p("")
	p("| model | budget | cap | memory GB/s | peak GB | hit rate | decode/s | prefill/s | rounds | limit |")
	p("|---|---|---|---|---|---|---|---|---|---|")
	for i := range r.Rows {
		x := &r.Rows[i]
		limit := "none"
		if x.Cell.Cap > 0 {
			limit = fmt.Sprintf("%.2f GB/s", x.Cell.Cap/1e9)
		}
		m := &x.Measured
		p("| %s | %.3f GB | %s | %.1f (%s) | %.3f, %.3f (%+.1f %%) | %.3f, %.3f | %.2f, %.2f (%+.0f %%; %s) | %.0f, %.0f (%+.0f %%; %s) | %d | %s |", filepath.Base(x.Cell.Model), float64(x.Cell.Budget)/1e9, limit,
			m.AtDecode.Memory/1e9, between(m.Memory, 1e9), float64(x.Peak)/1e9, float64(m.Peak)/1e9, 100*(float64(x.Peak)/float64(m.Peak)-1), x.HitRate, m.needed(),
			x.Decode, m.Decode, 100*(x.Decode/m.Decode-1), between(m.Decodes, 1), x.Prefill, m.Prefill, 100*(x.Prefill/m.Prefill-1), between(m.Prefills, 1), len(m.Decodes), x.Limit)
	}
	return b.String()
}

// between is the range of some figures in units.
func between(v []float64, unit float64) string {
	if len(v) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g to %.3g", slices.Min(v)/unit, slices.Max(v)/unit)
}
