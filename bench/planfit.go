package bench

import (
	"fmt"
	"math"
	"path/filepath"
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

// fitted is what a fit finds: the engine's costs, and the part of the run-time reserve that a process really takes.
type fitted struct {
	costs plan.Costs
	taken float64
}

// planPoint is a cell ready to be predicted.
type planPoint struct {
	shape   *plan.Shape
	machine plan.Machine
	cell    *PlanRecord
}

func (p *planPoint) row(c plan.Costs) (plan.Row, error) {
	m := p.machine
	m.Engine = c
	x, err := plan.Make(*p.shape, m, plan.Size{Budget: p.cell.Cell.Budget})
	if err != nil {
		return plan.Row{}, err
	}
	return x.Rows[0], nil
}

// comparePlans predicts every cell three ways.
func comparePlans(c *PlanConfig, cases []planCase, list []PlanRecord) (*PlanReport, error) {
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
			points[at] = planPoint{&cases[i].shape, m, r}
			at++
		}
	}
	start := plan.DefaultCosts
	if c.Profile.Engine != nil {
		start = c.Profile.Engine.Or(start)
	}
	rep := &PlanReport{Machine: ThisMachine(), Commit: Commit()}
	if len(points) > 0 {
		rep.Profile = points[0].machine.Source
	}
	all, err := fitPlans(points, start, func(int) bool { return true })
	if err != nil {
		return nil, err
	}
	rep.Costs = all.costs
	byModel := map[string]plan.Costs{}
	for i := range points {
		one, err := fitPlans(points, all.costs, func(k int) bool { return k != i })
		if err != nil {
			return nil, err
		}
		if len(points) == 1 {
			one.costs = start
		}
		name := points[i].cell.Cell.Model
		others, ok := byModel[name]
		if !ok {
			x, err := fitPlans(points, start, func(k int) bool { return points[k].cell.Cell.Model != name })
			if err != nil {
				return nil, err
			}
			others = x.costs
			byModel[name] = others
		}
		out := PlanRow{PlanRecord: *points[i].cell}
		r, err := points[i].row(one.costs)
		if err != nil {
			return nil, err
		}
		if !r.Fits {
			return nil, fmt.Errorf("%s: a budget of %d bytes was measured, and does not fit by the plan: %s", filepath.Base(name), r.Budget, r.Reason)
		}
		out.HitRate, out.Decode, out.Prefill, out.Limit = r.HitRate, r.Decode, r.Prefill, r.Limit
		out.Peak = peakOf(points[i].shape, &r, one.taken)
		for k, costs := range []plan.Costs{start, others} {
			r, err := points[i].row(costs)
			if err != nil {
				return nil, err
			}
			*[]*[2]float64{&out.Calibrated, &out.LeaveModel}[k] = [2]float64{r.Decode, r.Prefill}
		}
		rep.Rows = append(rep.Rows, out)
	}
	rep.LeaveOne = rep.errors(func(r *PlanRow) (float64, float64) { return r.Decode, r.Prefill })
	rep.Calibrated = rep.errors(func(r *PlanRow) (float64, float64) { return r.Calibrated[0], r.Calibrated[1] })
	rep.LeaveModel = rep.errors(func(r *PlanRow) (float64, float64) { return r.LeaveModel[0], r.LeaveModel[1] })
	return rep, nil
}

// peakOf is the most memory that a process will have held: its budget, but for the part of the run-time reserve that it does
// not take.
func peakOf(s *plan.Shape, r *plan.Row, taken float64) int64 {
	b := &r.Parts
	return held(s, r) - int64((1-taken)*float64(b.Runtime+b.Work))
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
		e.HitWorst = max(e.HitWorst, math.Abs(x.HitRate-x.Measured.HitRate))
		e.DecodeMean += off(d, x.Measured.Decode) / n
		e.DecodeWorst = max(e.DecodeWorst, off(d, x.Measured.Decode))
		e.PrefillMean += off(p, x.Measured.Prefill) / n
		e.PrefillWorst = max(e.PrefillWorst, off(p, x.Measured.Prefill))
	}
	return e
}

// fitPlans finds the costs that meet the chosen cells best, beginning at some: a walk along one cost after the other, with
// steps that shrink. Few cells move them little, since leaving where they begin has a price.
func fitPlans(points []planPoint, start plan.Costs, use func(i int) bool) (fitted, error) {
	var chosen []int
	for i := range points {
		if use(i) {
			chosen = append(chosen, i)
		}
	}
	best := fitted{costs: start, taken: 0.5}
	if len(chosen) == 0 {
		return best, nil
	}
	var failed error
	loss := func(c plan.Costs) float64 {
		sum := 0.0
		for _, i := range chosen {
			r, err := points[i].row(c)
			if err != nil {
				failed = err
				return math.Inf(1)
			}
			m := &points[i].cell.Measured
			sum += square(math.Log(r.Decode/m.Decode)) + square(math.Log(r.Prefill/m.Prefill))
		}
		for k, v := range knobs(&c) {
			sum += 0.02 * square(math.Log(*v / *knobs(&start)[k]))
		}
		return sum
	}
	low := loss(best.costs)
	for step := 0.5; step > 0.01 && failed == nil; step /= 2 {
		for moved := true; moved && failed == nil; {
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
	taken, n := 0.0, 0.0
	for _, i := range chosen {
		r, err := points[i].row(best.costs)
		if err != nil {
			return best, err
		}
		if own := float64(r.Parts.Runtime + r.Parts.Work); own > 0 && points[i].cell.Measured.Peak > 0 {
			taken += 1 - float64(held(points[i].shape, &r)-points[i].cell.Measured.Peak)/own
			n++
		}
	}
	if n > 0 {
		best.taken = taken / n
	}
	return best, failed
}

func square(v float64) float64 { return v * v }

// knobs are the costs that are fitted, and bounds what any machine can show.
func knobs(c *plan.Costs) [9]*float64 {
	return [9]*float64{&c.Efficiency, &c.Prefill, &c.Layer, &c.Read, &c.ReadPrompt, &c.Held, &c.Overlap, &c.Exposed, &c.Row}
}

var bounds = [9][2]float64{{0.1, 2}, {0.1, 2}, {1e-6, 1e-3}, {0.01, 4}, {0.01, 4}, {0.01, 4}, {0.05, 0.98}, {0.01, 0.6}, {0.01, 10}}

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
	p("Predicted, each with the cell left out, and measured:")
	p("")
	p("| model | budget | cap | peak GB | hit rate | decode/s | prefill/s | limit |")
	p("|---|---|---|---|---|---|---|---|")
	for i := range r.Rows {
		x := &r.Rows[i]
		limit := "none"
		if x.Cell.Cap > 0 {
			limit = fmt.Sprintf("%.2f GB/s", x.Cell.Cap/1e9)
		}
		p("| %s | %.3f GB | %s | %.3f, %.3f | %.3f, %.3f | %.2f, %.2f (%+.0f %%) | %.0f, %.0f (%+.0f %%) | %s |", filepath.Base(x.Cell.Model), float64(x.Cell.Budget)/1e9, limit,
			float64(x.Peak)/1e9, float64(x.Measured.Peak)/1e9, x.HitRate, x.Measured.HitRate, x.Decode, x.Measured.Decode, 100*(x.Decode/x.Measured.Decode-1),
			x.Prefill, x.Measured.Prefill, 100*(x.Prefill/x.Measured.Prefill-1), x.Limit)
	}
	return b.String()
}
