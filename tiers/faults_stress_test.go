package tiers

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// sickDisk makes reads slow now and then and fail now and then, and with io_uring come short, until it is well.
type sickDisk struct {
	well   atomic.Bool
	failed atomic.Int64
}

// fails decides about one read, and may take its time.
func (d *sickDisk) fails() bool {
	if d.well.Load() {
		return false
	}
	switch rand.IntN(60) {
	case 0:
		d.failed.Add(1)
		return true
	case 1, 2:
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
	}
	return false
}

func (d *sickDisk) options() StoreOptions {
	return StoreOptions{
		Depth: 3, GuessDepth: 1,
		readAt: func(f *os.File, b []byte, off int64) (int, error) {
			if d.fails() {
				return 0, syscall.EIO
			}
			return f.ReadAt(b, off)
		},
		result: func(n int32) int32 {
			switch {
			case n <= 0:
			case d.fails():
				return -int32(syscall.EIO)
			case rand.IntN(20) == 0 && !d.well.Load():
				if n = n / 2 / 4096 * 4096; n == 0 { // whole blocks, so that a direct read can go on
					return -int32(syscall.EINTR)
				}
			}
			return n
		},
	}
}

// TestStressFaults runs more sequences than fit side by side over the smallest cache there may be, on a sick disk. Every
// request must end, with its experts or with the disk's error; afterwards all experts must still be readable.
func TestStressFaults(t *testing.T) {
	const layers, n, k, guesses = 5, 12, 3, 3
	turns := 15
	if raceOn || testing.Short() {
		turns = 4
	}
	for i, m := range fileStores(t) {
		if m.name == "mmap" {
			continue // it copies: there is no read to disturb
		}
		t.Run(m.name, func(t *testing.T) {
			d := &sickDisk{}
			c := newCache(t, m, testExperts(layers, n), 2, Options{Slots: MinSlots(k, 2, guesses), TopK: k, Lookahead: 2, Guesses: guesses, Policy: Policy(i % 2)}, d.options())
			defer closeCache(t, c)
			watch := time.AfterFunc(time.Minute, func() {
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
				panic("tiers: the requests do not end")
			})
			defer watch.Stop()
			var wg sync.WaitGroup
			var told atomic.Int64
			for g := range 10 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), uint64(i)))
					for range turns {
						for l := 1; l < layers; l++ {
							for a := 1; a <= 2 && l+a < layers; a++ {
								c.Prefetch(l+a, distinct(rng, guesses, n))
							}
							count := k
							if g%4 == 0 {
								count = 1 + rng.IntN(n)
							}
							want := distinct(rng, count, n)
							c.Settle(l, want)
							if err := stressRequest(c, rng, l, want, k); errors.Is(err, syscall.EIO) {
								told.Add(1)
							} else if err != nil {
								t.Error(err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			if d.failed.Load() == 0 || told.Load() == 0 {
				t.Errorf("%d reads failed, %d requests were told", d.failed.Load(), told.Load())
			}
			d.well.Store(true)
			rng := rand.New(rand.NewPCG(7, 7))
			for l := 1; l < layers; l++ {
				c.Settle(l, nil)
				// Guesses whose reads began on the sick disk may still fail a request that joins them.
				err := fetch(c, l, distinct(rng, n, n))
				for try := 0; errors.Is(err, syscall.EIO) && try < n; try++ {
					err = fetch(c, l, distinct(rng, n, n))
				}
				if err != nil {
					t.Error(err)
				}
			}
			checkCache(t, c)
		})
	}
}
