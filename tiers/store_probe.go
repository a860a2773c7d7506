package tiers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"terrace/internal/host"
)

// ProbeOptions say what is read to learn about a disk, and how much at most.
type ProbeOptions struct {
	Paths   []string
	Experts [][]Desc      // some of which are read
	Time    time.Duration // in all; 3 s when 0
	Bytes   int64         // in all; 4 GB when 0
	Store   StoreOptions
	Log     *slog.Logger
}

// ProbeStore is what one store did after the burst.
type ProbeStore struct {
	Name     string  // "uring" or "pread"
	Rate     float64 // bytes per second
	CPUPerGB float64 // processor seconds per 10^9 bytes; 0 where the system does not tell
}

// ProbeResult is what was learned. Rates are bytes per second.
type ProbeResult struct {
	Burst     float64 // best half second
	Sustained float64 // the last, when the rate had settled or the time was over
	Settled   bool
	Stores    []ProbeStore
	Best      string // of them
	Depth     int    // reads at once
	Piece     int64  // mean bytes of a read
	Bytes     int64  // read in all
	Took      time.Duration
}

// probeReads is how many experts are under way at once: more than a store reads.
const probeReads = 8

// probeAlike is how far apart two rates may be and still be called equal; disks vary more than stores do.
const probeAlike = 0.1

// Probe reads random experts past the disk's burst, then compares the stores that read past the page cache. A burst longer
// than the probe passes for the sustained rate. Experts that lie in holes of a file, which no disk reads, are left out; where
// there are no others it fails. The mmap store takes no part: its pages are not in the budget.
func Probe(ctx context.Context, o ProbeOptions) (ProbeResult, error) {
	if o.Time == 0 {
		o.Time = 3 * time.Second
	}
	if o.Bytes == 0 {
		o.Bytes = 4e9
	}
	p := &probe{o: o, rng: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)), ended: make(chan probeEnd, probeReads)}
	res, err := p.run(ctx)
	for i := range p.stores {
		err = errors.Join(err, p.stores[i].store.Close())
	}
	if p.arena != nil {
		err = errors.Join(err, p.arena.Free())
	}
	if err != nil {
		return res, fmt.Errorf("disk probe: %w", err)
	}
	return res, nil
}

type probe struct {
	o      ProbeOptions
	rng    *rand.Rand
	all    []*Desc
	arena  *Arena
	stores []probed
	ended  chan probeEnd
	bytes  int64
}

// probeEnd is a read that is over.
type probeEnd struct {
	r   *Read
	err error
}

// probed is a store and what it did in the comparison.
type probed struct {
	name  string
	store Store
	bytes int64
	took  time.Duration
	cpu   time.Duration
}

func (p *probe) open() error {
	files := make([]*os.File, len(p.o.Paths))
	for i, path := range p.o.Paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	most, holes := 0, 0
	for _, layer := range p.o.Experts {
		for i := range layer {
			d := &layer[i]
			if err := d.check(); err != nil {
				return err
			}
			if !onDisk(files, d) {
				holes++
				continue
			}
			p.all = append(p.all, d)
			most = max(most, ReadBytes(d))
		}
	}
	if len(p.all) == 0 && holes > 0 {
		return fmt.Errorf("%s: all %d experts lie in holes of the file, no disk reads them", p.o.Paths[0], holes)
	}
	if len(p.all) == 0 {
		return errors.New("no experts to read")
	}
	s, err := NewUring(p.o.Paths, p.o.Store, p.o.Log)
	if err == nil {
		p.stores = append(p.stores, probed{name: "uring", store: s})
	} else if p.o.Log != nil {
		p.o.Log.Info("io_uring takes no part in the disk probe", "reason", err)
	}
	if s, err = NewPread(p.o.Paths, p.o.Store); err != nil {
		return err
	}
	p.stores = append(p.stores, probed{name: "pread", store: s})
	if p.arena, err = NewArena(probeReads, most); err != nil {
		return err
	}
	for i := range p.stores {
		if a, ok := p.stores[i].store.(Attacher); ok {
			for slot := range probeReads {
				a.Attach(slot, p.arena.Slot(slot))
			}
		}
	}
	return nil
}

// onDisk says whether no part of an expert is in a hole. A part of a file that does not exist is for the read to tell.
func onDisk(files []*os.File, d *Desc) bool {
	for _, p := range d.Pieces {
		if p.Length > 0 && p.Shard >= 0 && p.Shard < len(files) && !host.HasData(files[p.Shard], p.Offset, p.Length) {
			return false
		}
	}
	return true
}

// ReadDone implements Sink.
func (p *probe) ReadDone(r *Read, err error) { p.ended <- probeEnd{r, err} }

// window reads with a store for a while, at most limit bytes, and gives the bytes and the time they took.
func (p *probe) window(ctx context.Context, s Store, d time.Duration, limit int64) (bytes int64, took time.Duration, err error) {
	start := time.Now()
	queue := func(slot int) {
		s.Queue(NewRead(p.all[p.rng.IntN(len(p.all))], slot, p.arena.Slot(slot), Demand, p))
	}
	for slot := range probeReads {
		queue(slot)
	}
	s.Kick()
	for flying := probeReads; flying > 0; flying-- {
		end := <-p.ended
		if end.err != nil {
			err = end.err
			continue
		}
		r := end.r
		bytes += r.Desc.Bytes()
		took = time.Since(start)
		if err == nil && took < d && bytes < limit && ctx.Err() == nil {
			queue(r.Slot)
			s.Kick()
			flying++
		}
	}
	p.bytes += bytes
	if err == nil {
		err = ctx.Err()
	}
	return bytes, took, err
}

func (p *probe) run(ctx context.Context) (res ProbeResult, err error) {
	start := time.Now()
	if err := p.open(); err != nil {
		return res, err
	}
	// A third of the time and of the bytes is kept for the comparison.
	const half = 500 * time.Millisecond
	var rates []float64
	for n := 0; !res.Settled && (n == 0 || time.Since(start)+half <= p.o.Time*2/3 && p.bytes < p.o.Bytes*2/3); n++ {
		bytes, took, err := p.window(ctx, p.stores[0].store, min(half, p.o.Time/3), max(1, p.o.Bytes*2/3-p.bytes))
		if err != nil {
			return res, err
		}
		rates = append(rates, float64(bytes)/took.Seconds())
		res.Settled = n >= 2 && sameRate(rates[n], rates[n-1])
	}
	res.Burst, res.Sustained = slices.Max(rates), rates[len(rates)-1]
	left, bytes := max(p.o.Time-time.Since(start), p.o.Time/3), max(p.o.Bytes-p.bytes, p.o.Bytes/3)
	turns := 2 * len(p.stores)
	for turn := range turns {
		s := &p.stores[(turn+turn/len(p.stores))%len(p.stores)] // the first of a round is the last of the one before
		before, _ := host.CPUTime()
		n, took, err := p.window(ctx, s.store, left/time.Duration(turns), max(1, bytes/int64(turns)))
		if err != nil {
			return res, err
		}
		after, _ := host.CPUTime() // zeros where it is not known
		s.bytes, s.took, s.cpu = s.bytes+n, s.took+took, s.cpu+after-before
	}
	for i := range p.stores {
		s := &p.stores[i]
		res.Stores = append(res.Stores, ProbeStore{s.name, float64(s.bytes) / s.took.Seconds(), s.cpu.Seconds() / (float64(s.bytes) / 1e9)})
	}
	res.Best = bestStore(res.Stores)
	if res.Depth = p.o.Store.Depth; res.Depth == 0 {
		res.Depth = DefaultDepth
	}
	st := p.stores[0].store.Stats()
	res.Piece = st.DemandBytes / max(1, st.Reads)
	res.Bytes, res.Took = p.bytes, time.Since(start)
	return res, nil
}

// sameRate says that two rates differ by no more than disks do from moment to moment.
func sameRate(a, b float64) bool { return min(a, b) >= (1-probeAlike)*max(a, b) }

// bestStore is the fastest; among those alike, the one that costs the least processor time.
func bestStore(s []ProbeStore) string {
	fastest := slices.MaxFunc(s, func(a, b ProbeStore) int { return cmp.Compare(a.Rate, b.Rate) })
	best := fastest
	for _, x := range s {
		if sameRate(x.Rate, fastest.Rate) && x.CPUPerGB < best.CPUPerGB {
			best = x
		}
	}
	return best.Name
}
