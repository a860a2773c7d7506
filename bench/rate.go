package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/klauspost/cpuid/v2"

	"terrace/bench/synth"
	"terrace/engine"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/kernels"
	"terrace/model"
	"terrace/plan"
	"terrace/tiers"
	"terrace/vulkan"
)

// RateConfig says what of this machine is measured for plans.
type RateConfig struct {
	Threads  int    // 0: physical cores
	Model    string // whose disk is measured, by its experts; "": by those of a file made for it in Dir
	Dir      string // where files for the measurement are made and removed again
	DiskTime time.Duration
	Bytes    int64 // of each thread's part of the memory measurement; 0: 128 MiB
	Layers   int   // of the trial model; 0: 3
	Tokens   int   // that a trial decodes; 0: 48
	Log      *slog.Logger
	Progress func(string)

	// What tests make smaller: a file that is there in place of the trial's, the time of one kernel's run, the prompt.
	trialModel string
	window     time.Duration
	prompt     int
}

// RateReport is what was measured.
type RateReport struct {
	Machine  Machine      `json:"machine"`
	Commit   string       `json:"commit"`
	Load     string       `json:"load_average"`
	Seconds  float64      `json:"seconds"`
	Profile  plan.Profile `json:"profile"`
	Device   string       `json:"device"` // of the disk; "" where the system does not tell
	Trial    Trial        `json:"trial"`
	Measured bool         `json:"gpu_measured"` // there is a card, and it was
	Card     string       `json:"gpu,omitempty"`
}

// Trial is a model of a published geometry that was decoded with all experts resident and with a quarter of them.
type Trial struct {
	Family       string  `json:"family"`
	Layers       int     `json:"layers"`
	Resident     float64 `json:"decode_resident"` // tokens per second
	Starved      float64 `json:"decode_starved"`
	Prefill      float64 `json:"prefill_resident"`
	StarvedBytes int64   `json:"starved_bytes_per_token"`
	StarvedWait  float64 `json:"starved_wait_ms"` // a token
	StarvedBusy  float64 `json:"starved_disk_ms"` // a token, that the disk was at work
}

// trialFamily is the geometry of trials: experts of 3.5 MB, a small vocabulary, no state.
const trialFamily = "olmoe-1b-7b"

// rateTypes are the types whose products with batches are measured; others follow the reference in proportion.
var rateTypes = []gguf.Type{gguf.Q4_K, gguf.Q6_K, gguf.Q8_0, gguf.IQ4NL, gguf.Q3_K, gguf.MXFP4}

// Rates measures memory, kernels, the disk and what an engine adds. It takes some twenty seconds.
func Rates(ctx context.Context, c RateConfig) (*RateReport, error) {
	start := time.Now()
	if c.Threads == 0 {
		c.Threads = host.PhysicalCores()
	}
	if c.Bytes == 0 {
		c.Bytes = 128 << 20
	}
	if c.Layers == 0 {
		c.Layers = 3
	}
	if c.Tokens == 0 {
		c.Tokens = 48
	}
	if c.window == 0 {
		c.window = 5 * time.Millisecond
	}
	if c.prompt == 0 {
		c.prompt = 512
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	r := &RateReport{Machine: ThisMachine(), Commit: Commit(), Load: LoadAverage()}
	p := &r.Profile
	now := time.Now().UTC().Truncate(time.Second)
	c.Progress("memory and kernels")
	rate, err := memoryRate(ctx, c.Threads, int(c.Bytes))
	if err != nil {
		return nil, err
	}
	p.Memory = &plan.Memory{Measured: now, Rate: rate, Threads: c.Threads, Cache: int64(max(0, cpuid.CPU.Cache.L3))}
	if p.Memory.Cache == 0 { // as inside many virtual machines
		if p.Memory.Cache, err = cacheSize(ctx, c.Threads, int(c.Bytes), rate); err != nil {
			return nil, err
		}
	}
	p.Path = kernels.Features()
	if p.Kernels, p.Gemm, err = kernelRates(ctx, c.Threads, c.window); err != nil {
		return nil, err
	}
	c.Progress("graphics card")
	if err := c.card(ctx, r); err != nil {
		return nil, err
	}
	path := c.trialModel
	if path == "" {
		if path, err = c.trialFile(ctx); err != nil {
			return nil, err
		}
		defer os.Remove(path)
	}
	c.Progress("disk")
	if err := c.disk(ctx, r, path); err != nil {
		return nil, err
	}
	c.Progress("decoding a trial model")
	if err := c.trial(ctx, r, path); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

// card measures the graphics card that would be used. There need not be one, and a driver that computes on the CPU is none.
func (c *RateConfig) card(ctx context.Context, r *RateReport) error {
	if !host.MayHaveGPU() {
		return nil
	}
	all, err := vulkan.Devices()
	if err != nil {
		return nil // none of use: doctor says why
	}
	best := 0
	for i := range all {
		if d := &all[i]; d.Usable() && d.Kind > vulkan.Software && (best == 0 || d.Kind > all[best-1].Kind) {
			best = d.Number
		}
	}
	if best == 0 {
		return nil
	}
	x, err := Card(ctx, vulkan.Options{Device: best, Log: c.Log})
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		c.Progress(fmt.Sprintf("the graphics card was not measured: %v", err))
		return nil
	}
	r.Profile.GPUs = map[string]plan.CardRates{x.Name: x.Rates}
	r.Measured, r.Card = true, x.Name
	return nil
}

// memoryRate is what all threads together read, bytes per second: the median of some passes.
func memoryRate(ctx context.Context, threads, bytes int) (float64, error) {
	m, err := newMemoryReader(threads, bytes)
	if err != nil {
		return 0, err
	}
	defer m.close()
	return m.rate(ctx, 15)
}

// memoryReader measures what all threads together read.
type memoryReader struct {
	bytes int // of a thread
	lanes []*kernelsLane
}

// newMemoryReader takes bytes for each thread and touches them; they are held until close.
func newMemoryReader(threads, bytes int) (*memoryReader, error) {
	m := &memoryReader{bytes: bytes}
	for range threads {
		w, err := host.Alloc(bytes)
		if err != nil {
			m.close()
			return nil, fmt.Errorf("%d bytes to measure memory: %w", bytes, err)
		}
		_ = host.AdviseHuge(w) // only an advice
		for at := 0; at < len(w); at += 64 {
			w[at] = byte(at >> 6)
		}
		m.lanes = append(m.lanes, &kernelsLane{w: w})
	}
	return m, nil
}

func (m *memoryReader) close() {
	for _, l := range m.lanes {
		_ = host.Free(l.w)
	}
	m.lanes = nil
}

// rate is the median of so many passes, bytes per second; the first does not count.
func (m *memoryReader) rate(ctx context.Context, passes int) (float64, error) {
	const pass = 32 << 20 // bytes of a lane that are long enough to be timed
	again := max(1, pass/m.bytes)
	var rates []float64
	for range passes {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		wall, _ := together(m.lanes, func(l *kernelsLane) {
			for range again {
				for b := l.w; len(b) > 0; {
					n := min(len(b), 1<<20)
					l.sum += kernels.ReadLoop(b[:n])
					b = b[n:]
				}
			}
		})
		rates = append(rates, float64(again*len(m.lanes)*m.bytes)/wall)
	}
	return median(rates[1:]), nil
}

// cacheSize finds the processor's last cache by reading more and more: as much as all threads together read over and over at
// a rate well above memory's, at most what memory was measured with. 0: memory is no slower.
func cacheSize(ctx context.Context, threads, most int, memory float64) (int64, error) {
	const above = 1.4
	size := 0
	for n := 256 << 10; n*threads <= most; n *= 2 {
		rate, err := memoryRate(ctx, threads, n)
		if err != nil {
			return 0, err
		}
		if rate < above*memory {
			break
		}
		size = n * threads
	}
	return int64(size), nil
}

// Matrices that kernels are measured with: one that stays in the cache, and one for batches.
const (
	vecRows, vecCols   = 64, 1024
	gemmRows, gemmCols = 768, 2048
)

// kernelRates measures mat-vecs over weights that stay in the cache, bytes per second, and products with batches.
func kernelRates(ctx context.Context, threads int, window time.Duration) (map[string]float64, []plan.Gemm, error) {
	const rows, cols, wide, columns = vecRows, vecCols, gemmRows, gemmCols
	out := map[string]float64{}
	for t := gguf.Type(0); t < 256; t++ {
		if _, ok := kernels.KindOf(t); !ok || !t.Known() {
			continue
		}
		v, err := kernelRate(ctx, t, threads, window, rows, cols, 1)
		if err != nil {
			return nil, nil, err
		}
		out[t.String()] = v
	}
	var gemm []plan.Gemm
	for _, t := range rateTypes {
		for _, b := range []int{16, 128} {
			v, err := kernelRate(ctx, t, threads, window, wide, columns, b)
			if err != nil {
				return nil, nil, err
			}
			gemm = append(gemm, plan.Gemm{Type: t.String(), Rows: b, Rate: gemmRate(t, v, b)})
		}
	}
	return out, gemm, nil
}

// gemmRate makes operations a second of weight bytes a second of products with so many columns.
func gemmRate(t gguf.Type, bytes float64, columns int) float64 {
	return bytes / float64(t.RowBytes(gemmCols)) * gemmCols * 2 * float64(columns)
}

// kernelRate is weight bytes per second of one matrix for each thread: the best of some short runs, since what others do
// can only make it slower.
func kernelRate(ctx context.Context, t gguf.Type, threads int, window time.Duration, rows, cols, batch int) (float64, error) {
	unit, err := kernelsUnit(t, cols) // zeros would be denormal scales in some types
	if err != nil {
		return 0, err
	}
	kind, _ := kernels.KindOf(t)
	lanes := make([]*kernelsLane, threads)
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	for i := range lanes {
		l := &kernelsLane{w: make([]byte, rows*t.RowBytes(cols)), dst: make([]float32, rows*batch), a: map[int]*kernels.Act{batch: new(kernels.Act)}}
		for at := 0; at < len(l.w); {
			at += copy(l.w[at:], unit)
		}
		a := l.a[batch]
		a.Reset(kind, batch, cols)
		for b := range batch {
			a.Set(b, x)
		}
		lanes[i] = l
	}
	done := make([]float64, threads) // matrices, by lane; a lane writes its own
	best := 0.0
	for range 4 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		clear(done)
		index := map[*kernelsLane]int{}
		for i, l := range lanes {
			index[l] = i
		}
		together(lanes, func(l *kernelsLane) {
			n, start := 0.0, time.Now()
			for time.Since(start) < window {
				kernels.MatMul(l.dst, rows, t, l.w, l.a[batch], 0, rows, 0, batch, &l.scratch)
				n++
			}
			done[index[l]] = n * float64(len(l.w)) / time.Since(start).Seconds()
		})
		sum := 0.0
		for _, v := range done {
			sum += v
		}
		best = max(best, sum)
	}
	return best, nil
}

// trialFile writes the trial model.
func (c *RateConfig) trialFile(ctx context.Context) (string, error) {
	m, err := synth.New(synth.Options{Family: trialFamily, Layers: c.Layers, Quant: "q4_k_m", Skew: 0.6, Corr: 0.3, Embd: "q4_k", Head: "q6_k", Dense: "q8_0"})
	if err != nil {
		return "", err
	}
	c.Progress(fmt.Sprintf("writing a trial model of %d MB in %s", m.Data/1e6, c.Dir))
	f, err := os.CreateTemp(c.Dir, "terrace-trial-*.gguf")
	if err != nil {
		return "", err
	}
	path := f.Name()
	if err = f.Close(); err == nil {
		err = m.Write(ctx, path, nil)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// disk measures the disk under the model, or under the trial's file.
func (c *RateConfig) disk(ctx context.Context, r *RateReport, trial string) error {
	path := trial
	if c.Model != "" {
		path = c.Model
	}
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return err
	}
	if m.Footprint().Experts == 0 {
		return fmt.Errorf("%s has no routed experts to read", path)
	}
	o := tiers.ProbeOptions{Experts: make([][]tiers.Desc, len(m.Experts())), Time: c.DiskTime, Log: c.Log}
	for l, xs := range m.Experts() {
		for i, x := range xs {
			d := tiers.Desc{ID: tiers.ExpertID{Layer: uint16(l), Expert: uint16(i)}}
			for p, w := range []model.Piece{x.Gate, x.Up, x.Down} {
				d.Pieces[p] = tiers.Piece{Shard: w.Shard, Offset: w.Offset, Length: w.Length}
			}
			o.Experts[l] = append(o.Experts[l], d)
		}
	}
	for _, s := range f.Shards {
		o.Paths = append(o.Paths, s.Path)
	}
	p, err := tiers.Probe(ctx, o)
	if err != nil {
		return err
	}
	d := plan.Disk{Measured: time.Now().UTC().Truncate(time.Second), Burst: p.Burst, Sustained: p.Sustained, Settled: p.Settled, Piece: p.Piece, Depth: p.Depth, Store: p.Best}
	for _, s := range p.Stores {
		d.Stores = append(d.Stores, plan.Store{Name: s.Name, Rate: s.Rate, CPUPerGB: s.CPUPerGB})
	}
	if r.Device, err = host.Device(path); err != nil {
		r.Device = "" // a system without such names
	}
	r.Profile.Disks = map[string]plan.Disk{r.Device: d}
	return nil
}

// trial decodes the trial model with all and with a quarter of its experts, and finds what an engine takes beyond the sums
// of rates.
func (c *RateConfig) trial(ctx context.Context, r *RateReport, path string) error {
	t := &r.Trial
	t.Family, t.Layers = trialFamily, c.Layers
	o := engine.Options{Path: path, Threads: c.Threads, Context: c.prompt + c.Tokens + 64, Batch: c.prompt, Lookahead: 0, ExpertRAM: engine.ExpertBudget{Percent: 100}, Log: c.Log}
	full, shape, err := c.trialRun(ctx, o, c.prompt)
	if err != nil {
		return err
	}
	o.ExpertRAM.Percent = 25
	few, _, err := c.trialRun(ctx, o, c.prompt)
	if err != nil {
		return err
	}
	n := float64(c.Tokens)
	t.Resident, t.Prefill, t.Starved = full.decode, full.prefill, few.decode
	t.StarvedBytes = int64(float64(few.stats.BytesRead) / n)
	t.StarvedWait = few.stats.ReadWaitMS / n
	t.StarvedBusy = busyMS(&few.stats) / n
	costs, err := plan.FitCosts(*shape, r.Profile.Machine(r.Device, 0, c.Threads), plan.Trial{
		Decode: full.decode, Prefill: full.prefill, Starved: few.decode, Bytes: float64(t.StarvedBytes), Wait: t.StarvedWait / 1e3, Busy: t.StarvedBusy / 1e3,
		Prompt: few.prefill, Read: float64(few.prompt.BytesRead), Waited: few.prompt.ReadWaitMS / 1e3})
	r.Profile.Engine = &costs
	return err
}

// trialResult is one arena's speeds.
type trialResult struct {
	decode, prefill float64
	stats, prompt   engine.Stats
}

func (c *RateConfig) trialRun(ctx context.Context, o engine.Options, prompt int) (*trialResult, *plan.Shape, error) {
	r, err := openRunner(ctx, SpeedConfig{Engine: o, Prompt: prompt, Decode: c.Tokens, Depth: 16})
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	x := &trialResult{}
	for range 3 { // the best: others can only disturb
		if prompt > 0 {
			v, err := r.prefill(ctx)
			if err != nil {
				return nil, nil, err
			}
			if v > x.prefill {
				x.prefill, x.prompt = v, r.stats
			}
		}
		v, err := r.decode(ctx)
		if err != nil {
			return nil, nil, err
		}
		if v > x.decode {
			x.decode, x.stats = v, r.stats
		}
	}
	s, err := engine.ShapeOf(r.e.File(), o)
	return x, &s, err
}

// SaveRates adds a report to a machine profile.
func SaveRates(path string, r *RateReport) error {
	return plan.UpdateProfile(path, func(p *plan.Profile) {
		for k, d := range r.Profile.Disks {
			if k != "" {
				p.Disks[k] = d
			}
		}
		for k, g := range r.Profile.GPUs {
			if p.GPUs == nil {
				p.GPUs = map[string]plan.CardRates{}
			}
			p.GPUs[k] = g
		}
		p.Memory, p.Kernels, p.Gemm, p.Engine, p.Path = r.Profile.Memory, r.Profile.Kernels, r.Profile.Gemm, r.Profile.Engine, r.Profile.Path
	})
}
