package engine

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"terrace/gguf"
	"terrace/kernels"
	"terrace/quant"
)

// rates are this machine's limits, measured once an engine when a bound is asked for.
type rates struct {
	memory float64               // bytes per second that all threads read from memory
	kernel map[gguf.Type]float64 // weight bytes per second that all threads' mat-vecs take from cache
}

const (
	rateTime  = 4 * time.Millisecond // of one measurement
	rateTries = 5                    // measurements; the best counts, the others were disturbed
	rateRows  = 64                   // of the kernel's sample; with rateCols it stays in the second-level cache
	rateCols  = 1024
	rateChunk = 1 << 20

	rateMapped = 32 << 20 // read instead of dense weights that are mapped
)

// rates measures read bandwidth over the dense weights (a small model's lie in the last-level cache, as they do when it runs) and the rate of each weight type's mat-vec.
func (e *Engine) rates() rates {
	r := rates{kernel: map[gguf.Type]float64{}}
	n := e.opt.Threads
	buf := e.dense.mem
	if len(buf) == 0 { // mapped: what the system has dropped would measure the disk
		buf = make([]byte, min(e.dense.bytes, rateMapped))
		for i := range buf { // every page a page of its own
			buf[i] = byte(i)
		}
	}
	r.memory = e.inParallel(n, func(worker int) float64 {
		part := buf[len(buf)/n*worker : len(buf)/n*(worker+1)]
		var done int
		for start := time.Now(); time.Since(start) < rateTime; {
			for at := 0; at < len(part); at += rateChunk {
				c := part[at:min(at+rateChunk, len(part))]
				touch(c)
				done += len(c)
			}
		}
		return float64(done)
	})
	for _, t := range e.tokenTraffic() {
		if _, ok := kernels.KindOf(t.typ); !ok {
			continue
		}
		r.kernel[t.typ] = e.inParallel(n, func(int) float64 {
			w := rateWeights(t.typ)
			x, dst := make([]float32, rateCols), make([]float32, rateRows)
			for i := range x {
				x[i] = float32(i%7) - 3
			}
			kind, _ := kernels.KindOf(t.typ)
			if e.opt.Exact {
				kind = kernels.ActF32
			}
			var a kernels.Act
			var s kernels.Scratch
			a.Reset(kind, 1, rateCols)
			a.Set(0, x)
			var done int
			for start := time.Now(); time.Since(start) < rateTime; {
				kernels.MatMul(dst, rateRows, t.typ, w, &a, 0, rateRows, 0, 1, &s)
				done += len(w)
			}
			return float64(done)
		})
	}
	return r
}

// rateWeights is the kernel's sample: ordinary numbers, since zeros are denormal scales in some types, which are slow.
func rateWeights(t gguf.Type) []byte {
	w, x := make([]byte, t.RowBytes(rateCols)*rateRows), make([]float32, rateCols)
	for i := range x {
		x[i] = (float32(i%13) - 6) / 64
	}
	row := w[:t.RowBytes(rateCols)]
	if err := quant.Encode(t, row, x); err != nil {
		return w // zeros, then: only a bound becomes too low
	}
	for at := len(row); at < len(w); {
		at += copy(w[at:], row)
	}
	return w
}

// inParallel runs f on n goroutines, a few times, and returns the largest sum of what they did per second.
func (e *Engine) inParallel(n int, f func(worker int) float64) float64 {
	best := 0.0
	for range rateTries {
		best = max(best, e.inParallelOnce(n, f))
	}
	return best
}

func (e *Engine) inParallelOnce(n int, f func(worker int) float64) float64 {
	var wg sync.WaitGroup
	sum := make([]float64, n)
	start := time.Now()
	for i := range n {
		wg.Go(func() { sum[i] = f(i) })
	}
	wg.Wait()
	total := 0.0
	for _, v := range sum {
		total += v
	}
	return total / time.Since(start).Seconds()
}

// touched keeps the compiler from dropping touch's loads.
var touched atomic.Uint64

// touch reads every byte of b, eight at a time.
func touch(b []byte) {
	var s0, s1, s2, s3 uint64
	for len(b) >= 64 {
		s0 += binary.LittleEndian.Uint64(b) + binary.LittleEndian.Uint64(b[32:])
		s1 += binary.LittleEndian.Uint64(b[8:]) + binary.LittleEndian.Uint64(b[40:])
		s2 += binary.LittleEndian.Uint64(b[16:]) + binary.LittleEndian.Uint64(b[48:])
		s3 += binary.LittleEndian.Uint64(b[24:]) + binary.LittleEndian.Uint64(b[56:])
		b = b[64:]
	}
	touched.Store(s0 + s1 + s2 + s3)
}
