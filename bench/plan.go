package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"terrace/engine"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/plan"
)

// PlanModel is a model that predictions are compared on.
type PlanModel struct {
	Path  string
	Texts string // .jsonl or text file with what it reads; "": random tokens, for models without training
}

// PlanConfig asks for predictions beside measurements, for every model under every budget and every cap of the disk.
type PlanConfig struct {
	Models  []PlanModel
	Budgets []int64   // bytes; none: by Shares
	Shares  []float64 // budgets by the share of experts that they hold; none: 0.1, 0.2, 0.35, 0.5, 0.75, 1
	Caps    []float64 // bytes per second that the disk gives; 0: not capped
	Decode  int       // tokens timed; 0: 64
	Warm    int       // decoded before; 0: 48
	Prompt  int       // of the prompt; 0: 512
	Reuse   int       // tokens that a reuse curve is measured on; 0: 4096 of texts, 1024 random ones
	Threads int
	Results string       // file of JSON lines, to which each cell is added: what is there is not measured again
	Dir     string       // where curves are kept; "": beside Results
	Profile plan.Profile // of this machine
	// Run measures a cell in a process of its own; nil: in this one, where peaks are those of all cells before.
	Run      func(context.Context, PlanCell, PlanProbe) (PlanMeasured, error)
	Progress func(string)
	Parts    int  // most processes of a cell; 0: 7
	NoRun    bool // compare what the results hold, measure nothing
}

// PlanRecord is a line of the results.
type PlanRecord struct {
	Cell     PlanCell     `json:"cell"`
	Measured PlanMeasured `json:"measured"`
	When     time.Time    `json:"when"`
	Commit   string       `json:"commit"`
	CPU      string       `json:"cpu"`
}

func (c *PlanConfig) complete() error {
	if len(c.Models) == 0 || c.Results == "" {
		return errors.New("neither models nor a file for results, want both")
	}
	if c.Decode == 0 {
		c.Decode = 64
	}
	if c.Warm == 0 {
		c.Warm = 48
	}
	if c.Prompt == 0 {
		c.Prompt = 512
	}
	if c.Threads == 0 {
		c.Threads = host.PhysicalCores()
	}
	if len(c.Shares) == 0 {
		c.Shares = []float64{0.1, 0.2, 0.35, 0.5, 0.75, 1}
	}
	if len(c.Caps) == 0 {
		c.Caps = []float64{0}
	}
	if c.Dir == "" {
		c.Dir = filepath.Dir(c.Results)
	}
	if c.Run == nil {
		c.Run = MeasureCell
	}
	if c.Parts == 0 {
		c.Parts = planParts
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	for _, s := range c.Shares {
		if !(s > 0 && s <= 1) {
			return fmt.Errorf("a share of %g of the experts, want above 0 and at most 1", s)
		}
	}
	return nil
}

// planCase is a model with what is known of it before it runs.
type planCase struct {
	PlanModel
	shape plan.Shape
	cells []PlanCell
}

// Predictions measures what is missing in the results and compares all of them with what was predicted.
func Predictions(ctx context.Context, c PlanConfig) (*PlanReport, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	var cases []planCase
	for _, m := range c.Models {
		x, err := c.prepare(ctx, m)
		if err != nil {
			return nil, err
		}
		cases = append(cases, *x)
	}
	have, err := readPlanRecords(c.Results, c.Progress)
	if err != nil {
		return nil, err
	}
	probe := moments{threads: c.Threads}
	defer probe.close()
	var list []PlanRecord
	missing := 0
	for i := range cases {
		x := &cases[i]
		if c.NoRun {
			cells := slices.DeleteFunc(slices.Clone(x.cells), func(cell PlanCell) bool { _, ok := have[cell.key()]; return !ok })
			missing += len(x.cells) - len(cells)
			x.cells = cells
		}
		for _, cell := range x.cells {
			r, ok := have[cell.key()]
			if !ok {
				m, err := c.measure(ctx, cell, probe.now)
				if err != nil {
					return nil, fmt.Errorf("%s, budget %d, cap %.0f: %w", filepath.Base(cell.Model), cell.Budget, cell.Cap, err)
				}
				r = PlanRecord{Cell: cell, Measured: m, When: time.Now().UTC().Truncate(time.Second), Commit: Commit(), CPU: ThisMachine().CPU}
				if err := appendPlanRecord(c.Results, &r); err != nil {
					return nil, err
				}
				c.Progress(fmt.Sprintf("%s, budget %.2f GB, cap %.2f GB/s: decode %.2f, prefill %.0f tokens/s, hit rate %.3f, peak %.2f GB", filepath.Base(cell.Model), float64(cell.Budget)/1e9, cell.Cap/1e9,
					m.Decode, m.Prefill, m.needed(), float64(m.Peak)/1e9))
			}
			r.Cell.Model = cell.Model
			list = append(list, r)
		}
	}
	if missing > 0 {
		c.Progress(fmt.Sprintf("%d cells were not measured: the comparison is without them", missing))
	}
	return comparePlans(&c, cases, list)
}

// prepare reads a model's header, lays out its cells, and measures its reuse curve on other tokens than the cells use,
// where that was not done before.
func (c *PlanConfig) prepare(ctx context.Context, m PlanModel) (*planCase, error) {
	f, err := gguf.Open(m.Path)
	if err != nil {
		return nil, err
	}
	x := &planCase{PlanModel: m}
	tokens := c.Prompt + c.Warm + c.Decode
	if x.shape, err = engine.ShapeOf(f, engine.Options{Context: tokens, Threads: c.Threads, Lookahead: engine.LookaheadAuto}); err != nil {
		return nil, err
	}
	if x.shape.Fixed.Experts == 0 {
		return nil, fmt.Errorf("%s has no routed experts to stream", m.Path)
	}
	if x.shape.Curve = engine.CurveOf(f, c.Dir, nil); x.shape.Curve == nil || x.shape.Curve.Policy == "most used" {
		c.Progress(filepath.Base(m.Path) + ": reuse curve")
		cfg := ReuseConfig{Engine: engine.Options{Path: m.Path, Threads: c.Threads}, Dir: c.Dir, Tokens: c.Reuse}
		if m.Texts != "" {
			texts, err := ReadTexts(m.Texts)
			if err != nil {
				return nil, err
			}
			if cfg.Texts = texts[:len(texts)/2]; len(cfg.Texts) == 0 { // the other half is for the cells
				return nil, fmt.Errorf("%s: %d text, want at least 2", m.Texts, len(texts))
			}
		}
		if cfg.Tokens == 0 && m.Texts == "" {
			cfg.Tokens = 1024
		}
		if x.shape.Curve, err = Reuse(ctx, cfg); err != nil {
			return nil, err
		}
	}
	budgets := c.Budgets
	if len(budgets) == 0 {
		for _, s := range c.Shares {
			fixed := x.shape.Fixed
			fixed.Promise(x.shape.Least(), x.shape.Checkpoint)
			arena := max(int64(s*float64(fixed.ArenaMost)), fixed.ArenaMin)
			budget := fixed.Fixed() + plan.Mapped(arena)
			fixed = x.shape.Fixed // checkpoints follow the budget
			fixed.Promise(budget, x.shape.Checkpoint)
			budgets = append(budgets, max(fixed.Fixed()+plan.Mapped(arena), x.shape.Least()))
		}
	}
	for _, limit := range c.Caps {
		for _, b := range budgets {
			x.cells = append(x.cells, PlanCell{Model: m.Path, Texts: m.Texts, Budget: b, Cap: limit, Context: tokens, Prompt: c.Prompt, Decode: c.Decode, Warm: c.Warm, Threads: c.Threads})
		}
	}
	return x, nil
}

// readPlanRecords reads what was measured before; a damaged line, and one of a program that did not look
// at memory beside it, is passed over with a message.
func readPlanRecords(path string, tell func(string)) (map[string]PlanRecord, error) {
	out := map[string]PlanRecord{}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var r PlanRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			tell(fmt.Sprintf("line %d of %s is passed over, and its cell measured again: %v", n, path, err)) // a crash may have cut it off
			continue
		}
		if r.Measured.AtDecode.Memory <= 0 || r.Measured.AtPrefill.Memory <= 0 {
			tell(fmt.Sprintf("line %d of %s is passed over, and its cell measured again: it does not tell how fast memory was at that moment", n, path))
			continue
		}
		out[r.Cell.key()] = r
	}
	return out, lines.Err()
}

// appendPlanRecord adds a line; what a crash leaves of one is at most the last.
func appendPlanRecord(path string, r *PlanRecord) error {
	kept := *r // without folders, which are nobody else's
	kept.Cell.Model = filepath.Base(kept.Cell.Model)
	if kept.Cell.Texts != "" {
		kept.Cell.Texts = filepath.Base(kept.Cell.Texts)
	}
	b, err := json.Marshal(&kept)
	if err != nil {
		return err
	}
	f, err := host.AppendLines(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(b, '\n')); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// deviceOf is the name of a file's disk in a machine profile, "" where the system does not tell.
func deviceOf(path string) string {
	d, err := host.Device(path)
	if err != nil {
		return ""
	}
	return d
}
