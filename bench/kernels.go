package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/kernels"
	"terrace/quant"
)

// KernelsConfig says which matrix products are measured. Zero values mean the defaults given.
type KernelsConfig struct {
	Types   []gguf.Type    // all that can be multiplied
	Rows    int            // rows of a matrix: 768
	Cols    []int          // elements of a row: 2048
	Batches []int          // columns of products beside the single one: none
	Level   *kernels.Level // the best of this machine
	Threads int            // 1
	Bytes   int            // weights a thread streams, far more than its caches: 256 MiB
	Repeats int            // 9
}

// KernelsReport holds what was measured and on what.
type KernelsReport struct {
	Machine    Machine         `json:"machine"`
	Commit     string          `json:"commit"`
	Load       string          `json:"load_average"`
	Huge       bool            `json:"huge_pages"` // were asked for under the weights
	Level      string          `json:"level"`
	Threads    int             `json:"threads"`
	Bytes      int             `json:"bytes_a_thread"`
	Repeats    int             `json:"repeats"`
	ThreadTime bool            `json:"thread_cpu_time"` // CPU columns are known
	Results    []KernelsResult `json:"results"`
}

// KernelsResult is one type and shape. Rates are sums over the threads, medians over the repeats. "CPU" rates count the
// time the threads ran, so that other programs on the machine do not show, but for the memory traffic they make.
type KernelsResult struct {
	Type string `json:"type"`
	Rows int    `json:"rows"`
	Cols int    `json:"cols"`
	// One column: bytes of weights a second, the read loop's over the same bytes just before, and the median of their
	// ratios.
	GBs      float64 `json:"gb_s"`
	ReadGBs  float64 `json:"read_gb_s"`
	Share    float64 `json:"share"`
	CPUGBs   float64 `json:"cpu_gb_s,omitempty"`
	CPURead  float64 `json:"cpu_read_gb_s,omitempty"`
	CPUShare float64 `json:"cpu_share,omitempty"`
	// Many columns: 1e9 operations a second, two for each multiply-add.
	Batches []KernelsBatch `json:"batches,omitempty"`
}

// KernelsBatch is the rate of products with many columns.
type KernelsBatch struct {
	Batch   int     `json:"batch"`
	GOPs    float64 `json:"gop_s"`
	CPUGOPs float64 `json:"cpu_gop_s,omitempty"`
}

// errKernels marks a config that cannot be measured.
var errKernels = errors.New("kernels bench")

func (c *KernelsConfig) defaults() error {
	if len(c.Types) == 0 {
		for t := gguf.Type(0); t < 64; t++ {
			if _, ok := kernels.KindOf(t); ok {
				c.Types = append(c.Types, t)
			}
		}
	}
	for _, d := range []struct {
		v    *int
		name string
		def  int
	}{{&c.Rows, "rows", 768}, {&c.Threads, "threads", 1}, {&c.Bytes, "bytes", 256 << 20}, {&c.Repeats, "repeats", 9}} {
		if *d.v < 0 {
			return fmt.Errorf("%w: %s is %d", errKernels, d.name, *d.v)
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if len(c.Cols) == 0 {
		c.Cols = []int{2048}
	}
	for _, t := range c.Types {
		if _, ok := kernels.KindOf(t); !ok {
			return fmt.Errorf("%w: no product with weights of %s", errKernels, t)
		}
		for _, n := range c.Cols {
			if n <= 0 || n%256 != 0 {
				return fmt.Errorf("%w: rows of %d elements, want a multiple of 256", errKernels, n)
			}
			if need := c.Rows * t.RowBytes(n); need > c.Bytes {
				return fmt.Errorf("%w: %d bytes for one matrix of %s, %d bytes of weights a thread", errKernels, need, t, c.Bytes)
			}
		}
	}
	for _, b := range c.Batches {
		if b < 1 {
			return fmt.Errorf("%w: a batch of %d", errKernels, b)
		}
	}
	return nil
}

// RunKernels measures matrix products: bytes of weights a second with one column, beside a loop that only reads the same
// bytes, in turn; operations a second with more. It sets the process's kernel level while it runs.
func RunKernels(ctx context.Context, c KernelsConfig) (*KernelsReport, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	if c.Level != nil {
		defer kernels.SetLevel(*c.Level)()
	}
	r := &KernelsReport{Machine: ThisMachine(), Commit: Commit(), Load: LoadAverage(), Level: kernels.Features(), Threads: c.Threads, Bytes: c.Bytes, Repeats: c.Repeats}
	_, r.ThreadTime = threadTime()
	weights := make([][]byte, c.Threads)
	for i := range weights {
		w, err := host.Alloc(c.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: %d bytes of weights: %w", errKernels, c.Bytes, err)
		}
		defer host.Free(w)
		r.Huge = host.AdviseHuge(w) == nil
		weights[i] = w
	}
	for _, t := range c.Types {
		for _, n := range c.Cols {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			res, err := kernelsResult(ctx, &c, t, n, weights, r.ThreadTime)
			if err != nil {
				return nil, err
			}
			r.Results = append(r.Results, *res)
		}
	}
	return r, nil
}

// kernelsUnit makes rows of weights with ordinary contents.
func kernelsUnit(t gguf.Type, n int) ([]byte, error) {
	const rows = 16
	rng := rand.New(rand.NewPCG(uint64(t), uint64(n)))
	x := make([]float32, rows*n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * 0.02)
	}
	w := make([]byte, t.RowBytes(rows*n))
	return w, quant.Encode(t, w, x)
}

// lane is one thread's part of a measurement.
type kernelsLane struct {
	w       []byte
	a       map[int]*kernels.Act // by number of columns
	dst     []float32
	scratch kernels.Scratch
	sum     uint64
}

func kernelsResult(ctx context.Context, c *KernelsConfig, t gguf.Type, n int, weights [][]byte, cpu bool) (*KernelsResult, error) {
	unit, err := kernelsUnit(t, n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errKernels, err)
	}
	matrix := c.Rows * t.RowBytes(n)
	count := c.Bytes / matrix
	kind, _ := kernels.KindOf(t)
	lanes := make([]*kernelsLane, len(weights))
	rng := rand.New(rand.NewPCG(7, 7))
	columns := append([]int{1}, c.Batches...)
	for i, w := range weights {
		l := &kernelsLane{w: w[:count*matrix], a: map[int]*kernels.Act{}, dst: make([]float32, c.Rows*slices.Max(columns))}
		for at := 0; at < len(l.w); {
			at += copy(l.w[at:], unit)
		}
		for _, b := range columns {
			a := new(kernels.Act)
			a.Reset(kind, b, n)
			x := make([]float32, n)
			for col := range b {
				for j := range x {
					x[j] = float32(rng.NormFloat64())
				}
				a.Set(col, x)
			}
			l.a[b] = a
		}
		lanes[i] = l
	}
	product := func(l *kernelsLane, m, batch int) {
		kernels.MatMul(l.dst, c.Rows, t, l.w[m*matrix:(m+1)*matrix], l.a[batch], 0, c.Rows, 0, batch, &l.scratch)
	}
	read := func(l *kernelsLane) {
		for b := l.w; len(b) > 0; {
			n := min(len(b), 1<<20)
			l.sum += kernels.ReadLoop(b[:n])
			b = b[n:]
		}
	}
	vec := func(l *kernelsLane) {
		for m := range count {
			product(l, m, 1)
		}
	}
	out := &KernelsResult{Type: t.String(), Rows: c.Rows, Cols: n}
	bytes := float64(len(lanes)*count*matrix) / 1e9
	var mine, theirs, share, cpuMine, cpuTheirs, cpuShare []float64
	for rep := range c.Repeats + 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rw, rc := together(lanes, read)
		kw, kc := together(lanes, vec)
		if rep == 0 {
			continue // warms pages and buffers
		}
		mine, theirs, share = append(mine, bytes/kw), append(theirs, bytes/rw), append(share, rw/kw)
		cpuMine, cpuTheirs, cpuShare = append(cpuMine, bytes/kc), append(cpuTheirs, bytes/rc), append(cpuShare, rc/kc)
	}
	out.GBs, out.ReadGBs, out.Share = median(mine), median(theirs), median(share)
	if cpu {
		out.CPUGBs, out.CPURead, out.CPUShare = median(cpuMine), median(cpuTheirs), median(cpuShare)
	}
	for _, b := range c.Batches {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// Whole matrices, at least one and at most about 4e9 operations a repeat.
		ops := 2 * float64(c.Rows) * float64(n) * float64(b)
		ms := max(1, min(count, int(1e9/ops)))
		var wall, own []float64
		for rep := range max(3, c.Repeats/3) + 1 {
			w, cc := together(lanes, func(l *kernelsLane) {
				for m := range ms {
					product(l, m, b)
				}
			})
			if rep > 0 {
				total := ops * float64(ms*len(lanes)) / 1e9
				wall, own = append(wall, total/w), append(own, total/cc)
			}
		}
		res := KernelsBatch{Batch: b, GOPs: median(wall)}
		if cpu {
			res.CPUGOPs = median(own)
		}
		out.Batches = append(out.Batches, res)
	}
	return out, nil
}

// together runs f for all lanes at once, each on a thread of its own. wall is the time of the slowest; cpu the mean time
// that the threads ran.
func together(lanes []*kernelsLane, f func(l *kernelsLane)) (wall, cpu float64) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	times := make([]time.Duration, len(lanes))
	for i, l := range lanes {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-start
			before, _ := threadTime()
			f(l)
			after, _ := threadTime()
			times[i] = after - before
		})
	}
	ready.Wait()
	t := time.Now()
	close(start)
	done.Wait()
	wall = time.Since(t).Seconds()
	for _, d := range times {
		cpu += d.Seconds() / float64(len(times))
	}
	return wall, cpu
}

func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	return (x[len(x)/2] + x[(len(x)-1)/2]) / 2
}
