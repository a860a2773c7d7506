package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
	"terrace/tiers"
)

// DiskConfig says which disk is read and how.
type DiskConfig struct {
	Model  string        // GGUF file whose experts are read; "" makes a file of its own
	Dir    string        // where that file lies
	Size   int64         // of that file, in bytes
	Keep   bool          // leave the file there, and use it again when it has the right size
	Piece  int64         // bytes of one matrix of an expert; a model has its own
	Store  string        // "auto", "uring", "pread" or "mmap"
	Depth  int           // pieces read at once; 0: the store's own choice
	Guess  int           // of these, at most so many for guesses; 0: the store's own choice
	Fio    string        // fio's program; "" compares with nothing
	Pairs  int           // of alternating runs
	Window time.Duration // of one run
	Spend  time.Duration // read at most so long beforehand, so that a burst the disk allows is over
	Log    *slog.Logger
	// Progress, if not nil, is told what is going on, a line at a time.
	Progress func(string)
}

func (c *DiskConfig) check() error {
	if c.Pairs < 1 || c.Window < 50*time.Millisecond {
		return fmt.Errorf("%d pairs of %v: want at least one, of 50 ms or more", c.Pairs, c.Window)
	}
	if c.Model == "" {
		if c.Piece < host.IOAlign || c.Piece > 1<<30 {
			return fmt.Errorf("pieces of %d bytes, want %d bytes to 1 GiB", c.Piece, host.IOAlign)
		}
		if c.Size < 16*c.Piece {
			return fmt.Errorf("a file of %d bytes is too small for random pieces of %d: want at least sixteen", c.Size, c.Piece)
		}
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return nil
}

// DiskPair is one run of each side, in bytes per second.
type DiskPair struct {
	Ours  float64 `json:"ours"`
	Fio   float64 `json:"fio,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
}

// DiskLatency is how long a demanded expert took from queue to memory, in milliseconds.
type DiskLatency struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	N   int     `json:"reads"`
}

// FioDepth is fio's rate at one queue depth.
type FioDepth struct {
	Depth          int     `json:"depth"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// DiskReport is what `bench disk` prints. Rates are bytes per second of experts, the blocks around them not counted.
type DiskReport struct {
	Machine Machine `json:"machine"`
	Commit  string  `json:"commit"`
	Model   string  `json:"model"` // the file
	Device  string  `json:"device"`
	Load    string  `json:"load_average"`

	FileBytes    int64   `json:"file_bytes"`
	PieceBytes   int64   `json:"piece_bytes"`  // mean of an expert's matrices
	ExpertBytes  int64   `json:"expert_bytes"` // mean
	Store        string  `json:"store"`
	Depth        int     `json:"depth"` // pieces at once
	WindowS      float64 `json:"window_s"`
	SpentBytes   int64   `json:"spent_bytes"` // read before the runs
	SpentS       float64 `json:"spent_s"`
	BurstRate    float64 `json:"burst_bytes_per_second"`   // best half second of that
	SettledRate  float64 `json:"settled_bytes_per_second"` // its last
	Unregistered int64   `json:"unregistered_reads"`       // pieces read with io_uring into memory that was not registered

	Ours     Spread  `json:"ours"`
	CPUPerGB float64 `json:"cpu_s_per_gb"` // processor seconds of the whole process per 10^9 bytes; 0 where the system does not tell

	FioVersion  string     `json:"fio_version,omitempty"`
	FioDepths   []FioDepth `json:"fio_depths,omitempty"`
	FioDepth    int        `json:"fio_depth,omitempty"` // the best, used in the pairs
	FioRate     *Spread    `json:"fio,omitempty"`
	FioCPUPerGB float64    `json:"fio_cpu_s_per_gb,omitempty"`
	Ratio       *Spread    `json:"ratio,omitempty"`
	Pairs       []DiskPair `json:"pairs"`

	// One demanded expert at a time, alone and beside guesses that never end; the rate is of both together.
	Alone      DiskLatency `json:"latency_alone"`
	Beside     DiskLatency `json:"latency_beside_guesses"`
	BesideRate float64     `json:"bytes_per_second_beside_guesses"`
}

// Disk reads random experts through a store, and the same sizes with fio in turn.
func Disk(ctx context.Context, c DiskConfig) (r DiskReport, err error) {
	if err := c.check(); err != nil {
		return r, err
	}
	d := &diskBench{c: c}
	paths, err := d.open(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	d.store, err = openStore(c.Store, paths, tiers.StoreOptions{Depth: c.Depth, GuessDepth: c.Guess}, c.Log)
	if err != nil {
		return r, err
	}
	if err := d.attach(); err != nil {
		return r, err
	}
	r = DiskReport{Machine: ThisMachine(), Commit: Commit(), Model: paths[0], Load: LoadAverage(), FileBytes: d.bytes, PieceBytes: d.piece,
		ExpertBytes: d.expert, Depth: c.Depth, WindowS: c.Window.Seconds()}
	if r.Depth == 0 {
		r.Depth = tiers.DefaultDepth
	}
	if r.Device, err = host.Device(paths[0]); err != nil {
		return r, err
	}
	if err := d.spend(ctx, &r); err != nil {
		return r, err
	}
	var fio *fioRunner
	if c.Fio != "" {
		fio = &fioRunner{program: c.Fio, files: paths, block: (d.piece + host.IOAlign - 1) &^ (host.IOAlign - 1), window: c.Window}
		if err := fio.choose(ctx, &r, c.Progress); err != nil {
			return r, err
		}
	}
	if err := d.pairs(ctx, fio, &r); err != nil {
		return r, err
	}
	for _, guesses := range []bool{false, true} {
		l, rate, err := d.latency(ctx, guesses)
		if err != nil {
			return r, err
		}
		if guesses {
			r.Beside, r.BesideRate = l, rate
		} else {
			r.Alone = l
		}
	}
	r.Store, r.Unregistered = d.store.Name(), d.store.Stats().Unregistered
	return r, nil
}

// openStore opens the store with the given name over the files.
func openStore(name string, paths []string, o tiers.StoreOptions, log *slog.Logger) (tiers.Store, error) {
	switch name {
	case "pread":
		return tiers.NewPread(paths, o)
	case "mmap":
		return tiers.NewMmap(paths, o)
	case "uring":
		return tiers.NewUring(paths, o, log)
	}
	return tiers.NewAuto(paths, o, log)
}

// diskExperts is how many experts are asked for at once: a layer's top eight.
const diskExperts = 8

// diskBench is a file with experts in it, a store over it and slots to read into.
type diskBench struct {
	c       DiskConfig
	made    string // the file to be removed
	bytes   int64  // of all files
	piece   int64  // mean bytes of a matrix
	expert  int64  // mean bytes of an expert
	experts []tiers.Desc
	size    int64 // of a made file; its experts are anywhere
	store   tiers.Store
	arena   *tiers.Arena
	slot    int
	rng     *rand.Rand
	done    chan diskDone
}

// diskDone is a read that ended.
type diskDone struct {
	r   *tiers.Read
	err error
}

// open finds or makes the file and its experts.
func (d *diskBench) open(ctx context.Context) (paths []string, err error) {
	d.rng = rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	d.done = make(chan diskDone, 4*diskExperts)
	if d.c.Model == "" {
		path := filepath.Join(d.c.Dir, "terrace-bench-disk.bin")
		d.size, d.bytes, d.piece, d.expert = d.c.Size, d.c.Size, d.c.Piece, 3*d.c.Piece
		d.slot = 3 * int((d.c.Piece+2*host.IOAlign)&^(host.IOAlign-1))
		if fi, err := os.Stat(path); err == nil && fi.Size() == d.size && d.c.Keep {
			return []string{path}, nil
		}
		d.c.Progress(fmt.Sprintf("writing %s", path))
		if !d.c.Keep {
			d.made = path
		}
		if err := writeNoise(ctx, path, d.size); err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		return []string{path}, nil
	}
	f, err := gguf.Open(d.c.Model)
	if err != nil {
		return nil, err
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return nil, err
	}
	var total, pieces int64
	for l, xs := range m.Experts() {
		for i, x := range xs {
			e := tiers.Desc{ID: tiers.ExpertID{Layer: uint16(l), Expert: uint16(i)}}
			for p, w := range []model.Piece{x.Gate, x.Up, x.Down} {
				e.Pieces[p] = tiers.Piece{Shard: w.Shard, Offset: w.Offset, Length: w.Length}
				if w.Length > 0 {
					pieces++
				}
			}
			total += e.Bytes()
			d.slot = max(d.slot, tiers.ReadBytes(&e))
			d.experts = append(d.experts, e)
		}
	}
	if len(d.experts) == 0 {
		return nil, fmt.Errorf("%s has no routed experts to read", d.c.Model)
	}
	d.piece, d.expert = total/pieces, total/int64(len(d.experts))
	for _, s := range f.Shards {
		paths = append(paths, s.Path)
		d.bytes += s.Size
	}
	return paths, nil
}

// writeNoise makes a file of size bytes that no disk can squeeze.
func writeNoise(ctx context.Context, path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	src := rand.NewChaCha8([32]byte{1})
	b := make([]byte, 8<<20)
	for at := int64(0); at < size; at += int64(len(b)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _ = src.Read(b) // never fails
		if _, err := f.Write(b[:min(int64(len(b)), size-at)]); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return errors.Join(host.Forget(f), f.Close())
}

// attach makes the slots.
func (d *diskBench) attach() error {
	var err error
	if d.arena, err = tiers.NewArena(4*diskExperts, d.slot); err != nil {
		return err
	}
	if a, ok := d.store.(tiers.Attacher); ok {
		for i := range 4 * diskExperts {
			a.Attach(i, d.arena.Slot(i))
		}
	}
	return nil
}

func (d *diskBench) close() error {
	var errs []error
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	if d.arena != nil {
		errs = append(errs, d.arena.Free())
	}
	if d.made != "" {
		errs = append(errs, os.Remove(d.made))
	}
	return errors.Join(errs...)
}

// pick is a random expert.
func (d *diskBench) pick() *tiers.Desc {
	if d.experts != nil {
		return &d.experts[d.rng.IntN(len(d.experts))]
	}
	e := &tiers.Desc{}
	for i := range e.Pieces { // tensors begin at multiples of 32 bytes
		e.Pieces[i] = tiers.Piece{Offset: d.rng.Int64N((d.size-d.piece)/32+1) * 32, Length: d.piece}
	}
	return e
}

// ReadDone implements tiers.Sink.
func (d *diskBench) ReadDone(r *tiers.Read, err error) { d.done <- diskDone{r, err} }

func (d *diskBench) queue(slot int, p tiers.Priority) {
	d.store.Queue(tiers.NewRead(d.pick(), slot, d.arena.Slot(slot), p, d))
}

// run reads for a while with the store never idle; bytes are those that came within the time, cpu is -1 where the system
// does not tell, of all bytes.
func (d *diskBench) run(ctx context.Context, window time.Duration) (bytes, all int64, took, cpu time.Duration, err error) {
	before, cpuErr := host.CPUTime()
	start := time.Now()
	for i := range diskExperts {
		d.queue(i, tiers.Demand)
	}
	d.store.Kick()
	for flying := diskExperts; flying > 0; {
		done := <-d.done
		r := done.r
		flying--
		if done.err != nil {
			err = done.err
		} else {
			all += r.Desc.Bytes()
		}
		if now := time.Since(start); now < window {
			if err == nil && ctx.Err() == nil {
				bytes, took = all, now
				d.queue(r.Slot, tiers.Demand)
				d.store.Kick()
				flying++
			}
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	after, _ := host.CPUTime()
	if cpu = after - before; cpuErr != nil {
		cpu = -1
	}
	if took == 0 {
		bytes, took = all, time.Since(start)
	}
	return bytes, all, took, cpu, err
}

// spend reads in half seconds until the rate has fallen and stays, or the time is over.
func (d *diskBench) spend(ctx context.Context, r *DiskReport) error {
	const half = 500 * time.Millisecond
	d.c.Progress(fmt.Sprintf("reading for up to %v so that a burst is over", d.c.Spend))
	start := time.Now()
	var rates []float64
	for time.Since(start)+half/2 < d.c.Spend {
		bytes, all, took, _, err := d.run(ctx, half)
		if err != nil {
			return err
		}
		r.SpentBytes += all
		rates = append(rates, float64(bytes)/took.Seconds())
		r.SettledRate, r.BurstRate = rates[len(rates)-1], slices.Max(rates)
		if n := len(rates); n >= 4 {
			last := rates[n-3:]
			if slices.Max(last) < 0.6*r.BurstRate && slices.Max(last) < 1.1*slices.Min(last) {
				break
			}
		}
	}
	r.SpentS = time.Since(start).Seconds()
	return nil
}

// pairs runs ours and fio in turn, the first of a pair changing from one to the next.
func (d *diskBench) pairs(ctx context.Context, fio *fioRunner, r *DiskReport) error {
	var ours, theirs, ratios []float64
	var bytes int64
	var cpu, fioCPU time.Duration
	var fioBytes int64
	for i := range d.c.Pairs {
		var p DiskPair
		us := func() error {
			n, all, took, used, err := d.run(ctx, d.c.Window)
			if err != nil {
				return err
			}
			p.Ours = float64(n) / took.Seconds()
			bytes += all
			if used < 0 || cpu < 0 {
				cpu = -1
			} else {
				cpu += used
			}
			return nil
		}
		them := func() error {
			if fio == nil {
				return nil
			}
			x, err := fio.run(ctx, r.FioDepth)
			if err != nil {
				return err
			}
			p.Fio = x.rate
			fioBytes += x.bytes
			fioCPU += x.cpu
			return nil
		}
		both := []func() error{us, them}
		if i%2 == 1 {
			both[0], both[1] = them, us
		}
		for _, f := range both {
			if err := f(); err != nil {
				return err
			}
		}
		ours = append(ours, p.Ours)
		if fio != nil {
			p.Ratio = p.Ours / p.Fio
			theirs, ratios = append(theirs, p.Fio), append(ratios, p.Ratio)
		}
		r.Pairs = append(r.Pairs, p)
		d.c.Progress(fmt.Sprintf("pair %d of %d: %.3f GB/s, fio %.3f", i+1, d.c.Pairs, p.Ours/1e9, p.Fio/1e9))
	}
	r.Ours = SpreadOf(ours)
	if cpu > 0 && bytes > 0 {
		r.CPUPerGB = cpu.Seconds() / (float64(bytes) / 1e9)
	}
	if fio != nil {
		f, q := SpreadOf(theirs), SpreadOf(ratios)
		r.FioRate, r.Ratio = &f, &q
		r.FioCPUPerGB = fioCPU.Seconds() / (float64(fioBytes) / 1e9)
	}
	return nil
}

// latency demands one expert after the other, with or without guesses that fill whatever the store gives them.
func (d *diskBench) latency(ctx context.Context, guesses bool) (l DiskLatency, rate float64, err error) {
	const own = 0 // the demand's slot; the guesses have the next ones
	var times []float64
	var bytes int64
	start := time.Now()
	flying := 1
	if guesses {
		for i := range diskExperts {
			d.queue(own+1+i, tiers.Guess)
			flying++
		}
	}
	d.queue(own, tiers.Demand)
	asked := time.Now()
	d.store.Kick()
	for flying > 0 {
		done := <-d.done
		r, now := done.r, time.Now()
		flying--
		if done.err != nil {
			err = done.err
		}
		bytes += r.Desc.Bytes()
		if r.Slot == own {
			times = append(times, now.Sub(asked).Seconds()*1e3)
		}
		if err == nil && ctx.Err() == nil && now.Sub(start) < d.c.Window {
			p := tiers.Guess
			if r.Slot == own {
				p, asked = tiers.Demand, time.Now()
			}
			d.queue(r.Slot, p)
			d.store.Kick()
			flying++
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	rate = float64(bytes) / time.Since(start).Seconds()
	slices.Sort(times)
	n := len(times)
	return DiskLatency{P50: times[n/2], P99: times[min(n-1, n*99/100)], N: n}, rate, err
}
