package tiers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ratesFor gives falling rates: expert e of every layer is used less than e-1.
func ratesFor(experts [][]Desc) [][]float64 {
	out := make([][]float64, len(experts))
	for l := range experts {
		out[l] = make([]float64, len(experts[l]))
		for e := range out[l] {
			out[l][e] = 1 / float64(1+e)
		}
	}
	return out
}

// settled waits until nothing is being preloaded any more.
func settled(t *testing.T, c *Cache) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		over := c.pre == nil || c.pre.left == 0 && c.pre.flying == 0
		c.mu.Unlock()
		if over {
			return
		}
		if time.Now().After(until) {
			t.Fatal("preloading does not end")
		}
		c.store.Poll()
	}
}

// TestCachePreload: the hottest that fit, less what stays free for demands, are read from every store; a demand for them
// is a hit; nothing was demanded; the policy keeps the hotter ones.
func TestCachePreload(t *testing.T) {
	for _, m := range allStores(t) {
		t.Run(m.name, func(t *testing.T) {
			experts := testExperts(4, 8) // layers 1 to 3 have 8
			c := newCache(t, m, experts, 2, Options{Slots: 16, TopK: 2}, StoreOptions{})
			defer closeCache(t, c)
			if n := c.Preload(ratesFor(experts)); n != 12 {
				t.Fatalf("%d experts to be read, want 12 of 16 slots", n)
			}
			settled(t, c)
			st := c.Stats()
			if st.Resident != 12 || st.Preloads != 12 || st.DemandBytes != 0 || st.GuessBytes != 0 || st.PreloadBytes == 0 || st.Evictions != 0 {
				t.Errorf("%+v", st)
			}
			for l := 1; l < 4; l++ {
				for e := range 8 {
					want := Absent
					if e < 4 {
						want = Resident
					}
					if got := c.Contains(l, e); got != want {
						t.Errorf("expert %d of layer %d is %v, want %v", e, l, got, want)
					}
				}
			}
			if err := fetch(c, 2, []int32{3, 0}); err != nil {
				t.Fatal(err)
			}
			if st := c.Stats(); st.Hits != 2 || st.Misses != 0 || st.MissBytes != 0 {
				t.Errorf("%+v", st)
			}
			// Free room for three of this size at least, then the coldest leave first.
			for _, e := range []int32{4, 5, 6} {
				if err := fetch(c, 1, []int32{e}); err != nil {
					t.Fatal(err)
				}
			}
			if st := c.Stats(); st.Evictions != 0 {
				t.Errorf("%d evictions with free slots", st.Evictions)
			}
			if err := fetch(c, 3, []int32{7}); err != nil {
				t.Fatal(err)
			}
			if c.Contains(3, 0) != Resident || c.Contains(2, 0) != Resident || c.Contains(1, 0) != Resident {
				t.Error("the hottest were evicted")
			}
			if st := c.Stats(); st.Misses != 4 || st.MissBytes == 0 || st.DemandBytes < st.MissBytes {
				t.Errorf("%+v", st)
			}
			if n := c.Preload(ratesFor(experts)); n != 0 {
				t.Errorf("a second preload of %d", n)
			}
		})
	}
}

// TestPreloadOrder: file order within a layer, the layer ahead of the pass first, never more at once than the window, and
// a demand overtakes it.
func TestPreloadOrder(t *testing.T) {
	experts := testExperts(4, 8)
	writeModel(t, experts, 1) // gives offsets: the last expert first
	var mu sync.Mutex
	var order []ExpertID
	var under atomic.Int32
	gate := make(chan struct{})
	s, err := NewMem(Mem{Fill: func(d *Desc, piece int, dst []byte) error {
		if piece == 2 {
			mu.Lock()
			order = append(order, d.ID)
			mu.Unlock()
		}
		under.Add(1)
		<-gate
		under.Add(-1)
		return fillPiece(d, piece, dst)
	}}, StoreOptions{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 24, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	if n := c.Preload(ratesFor(experts)); n != 24 {
		t.Fatalf("%d to be read, want all 24", n)
	}
	for under.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	r, err := c.Begin(2, []int32{5})
	if err != nil {
		t.Fatal(err)
	}
	if n := c.v.where[2][5]; n < 0 {
		t.Fatal("no slot for the demand")
	}
	close(gate)
	if _, ok, err := r.Next(context.Background(), true); !ok || err != nil {
		t.Fatal(ok, err)
	}
	r.Close()
	settled(t, c)
	mu.Lock()
	defer mu.Unlock()
	if len(order) != 24 {
		t.Fatalf("%d experts read, want 24: %v", len(order), order)
	}
	// Depth 1: after the one piece that had begun the demand is read, then the window, then the layer ahead of the pass.
	if order[0] != (ExpertID{2, 5}) {
		t.Errorf("begins with %v, want the demand, expert 5 of layer 2", order[0])
	}
	for i := range 4 {
		if order[1+i] != (ExpertID{1, uint16(7 - i)}) {
			t.Errorf("the window is %v, want layer 1 in file order", order[1:5])
			break
		}
	}
	for i := range 8 {
		if order[5+i] != (ExpertID{3, uint16(7 - i)}) {
			t.Errorf("after a pass at layer 2: %v, want layer 3 from its end", order[5:13])
			break
		}
	}
}

// TestPreloadErrors: a read that fails is no error for anybody; who needs the expert asks again.
func TestPreloadErrors(t *testing.T) {
	experts := testExperts(3, 8)
	var bad atomic.Bool
	bad.Store(true)
	s, err := NewMem(Mem{Fill: func(d *Desc, piece int, dst []byte) error {
		if bad.Load() && d.ID.Expert%2 == 0 {
			return errors.New("broken")
		}
		return fillPiece(d, piece, dst)
	}}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: s, Experts: experts, Slots: 16, TopK: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	c.Preload(ratesFor(experts))
	settled(t, c)
	if st := c.Stats(); st.Preloads != 8 || st.Resident != 8 || st.ReadErrors == 0 {
		t.Errorf("%+v", st)
	}
	bad.Store(false)
	if err := fetch(c, 1, []int32{0, 1, 2, 3}); err != nil {
		t.Error(err)
	}
}

// TestPreloadStress: preloading beside demands, guesses, given-up requests and a closing cache keeps the tables whole.
func TestPreloadStress(t *testing.T) {
	experts := testExperts(5, 16)
	for seed := range uint64(6) {
		s, err := NewMem(Mem{Fill: fillPiece, Delay: 20 * time.Microsecond}, StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCache(Options{Store: s, Experts: experts, Slots: 16 + int(seed)*8, TopK: 4, Lookahead: 1, Guesses: 4})
		if err != nil {
			t.Fatal(err)
		}
		c.Preload(ratesFor(experts))
		rng := rand.New(rand.NewPCG(seed, 1))
		for i := range 60 {
			layer := 1 + i%4
			ids := rng.Perm(16)
			n := []int{4, 4, 12}[rng.IntN(3)]
			list := make([]int32, n)
			for j := range list {
				list[j] = int32(ids[j])
			}
			c.Settle(layer, list)
			if rng.IntN(4) == 0 { // given up at once
				r, err := c.Begin(layer, list)
				if err != nil {
					t.Fatal(err)
				}
				r.Close()
			} else if err := fetch(c, layer, list); err != nil {
				t.Fatal(err)
			}
			c.Prefetch(1+(layer)%4, list[:4])
			c.mu.Lock()
			err := c.v.check()
			flying := 0
			for _, e := range c.pre.early {
				if e {
					flying++
				}
			}
			if err == nil && flying != c.pre.flying {
				err = fmt.Errorf("%d preloads marked, %d counted", flying, c.pre.flying)
			}
			c.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
		}
		closeCache(t, c)
	}
}
