package cpu

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// tally counts how often each item ran and checks that a worker's number is in range.
type tally struct {
	n       []atomic.Int32
	threads int
	bad     atomic.Int32
	slow    time.Duration
	sum     []int64 // by worker, unsynchronised: the race detector watches it
}

func (y *tally) do(worker, item int) {
	if worker < 0 || worker >= y.threads {
		y.bad.Add(1)
		return
	}
	y.n[item].Add(1)
	y.sum[worker*16] += int64(item)
	if y.slow > 0 && item%7 == 0 {
		time.Sleep(y.slow)
	}
}

func TestPoolRunsEachItemOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, threads := range []int{1, 2, 3, 8} {
		p := newPool(threads)
		y := &tally{n: make([]atomic.Int32, 200), threads: threads, sum: make([]int64, threads*16)}
		want := int64(0)
		rounds := 3000
		for round := range rounds {
			items := rng.IntN(len(y.n)) + 1
			y.slow = 0
			if round%500 == 0 {
				y.slow = 100 * time.Microsecond // workers fall asleep and wake inside a region
			}
			if round%300 == 0 {
				time.Sleep(2 * spinTime)
			}
			p.run(y, items)
			for i := range y.n {
				w := int32(0)
				if i < items {
					w = 1
				}
				if got := y.n[i].Swap(0); got != w {
					t.Fatalf("%d threads, round %d: item %d ran %d times, want %d", threads, round, i, got, w)
				}
			}
			want += int64(items) * int64(items-1) / 2
		}
		got := int64(0)
		for w := range threads {
			got += y.sum[w*16]
		}
		if got != want || y.bad.Load() != 0 {
			t.Errorf("%d threads: items sum to %d, want %d; %d bad worker numbers", threads, got, want, y.bad.Load())
		}
		p.close()
		p.close()
	}
}

func TestPoolParks(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPool(3)
	defer p.close()
	y := &tally{n: make([]atomic.Int32, 64), threads: 3, sum: make([]int64, 3*16)}
	for range 3 {
		p.run(y, 64)
		for end := time.Now().Add(5 * time.Second); !p.idle(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("workers are still awake 5 s after the last region")
			}
		}
	}
}

// boom fails in one item.
type boom struct{}

func (boom) do(_, item int) {
	if item == 5 {
		panic("item five")
	}
}

func TestPoolPanicReachesCaller(t *testing.T) {
	p := newPool(2)
	defer p.close()
	for range 50 {
		func() {
			defer func() {
				if r := recover(); r != "item five" {
					t.Fatalf("recovered %v, want the item's panic", r)
				}
			}()
			p.run(boom{}, 9)
			t.Fatal("run returned")
		}()
	}
	y := &tally{n: make([]atomic.Int32, 64), threads: 2, sum: make([]int64, 2*16)}
	p.run(y, 64) // the pool is usable afterwards
}

func TestPoolAllocatesNothing(t *testing.T) {
	p := newPool(2)
	defer p.close()
	y := &tally{n: make([]atomic.Int32, 64), threads: 2, sum: make([]int64, 2*16)}
	if n := testing.AllocsPerRun(200, func() { p.run(y, 64) }); n != 0 && !raceEnabled {
		t.Errorf("%v allocations a region, want 0", n)
	}
}

func BenchmarkRegion(b *testing.B) {
	p := newPool(2)
	defer p.close()
	y := &tally{n: make([]atomic.Int32, 2), threads: 2, sum: make([]int64, 2*16)}
	for b.Loop() {
		p.run(y, 2)
	}
}
