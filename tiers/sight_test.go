package tiers

import (
	"context"
	"math"
	"testing"
)

// TestNearIsWhatMoreWouldBuy: the misses that a cache says a larger one would not have had are about those that the larger
// one does not have, on the demo model's trace.
func TestNearIsWhatMoreWouldBuy(t *testing.T) {
	passes := demoTrace(t, 0)
	for _, x := range []struct{ slots, more int }{{51, 13}, {51, 51}, {89, 26}, {128, 13}, {128, 64}, {128, 128}} {
		small := NewSim(SimConfig{Bytes: alike(8, 32), Slots: x.slots, TopK: 4})
		v := small.m.v
		v.leavers.room = int64(x.more) * v.layer(0)
		large := NewSim(SimConfig{Bytes: alike(8, 32), Slots: x.slots + x.more, TopK: 4})
		for _, p := range passes {
			small.Pass(p)
			large.Pass(p)
		}
		was, is := small.Result(), large.Result()
		gain := is.HitRate() - was.HitRate()
		said := float64(v.n.near) / float64(was.Touches)
		t.Logf("%d slots and %d more: hit rate %.3f, gain %.3f, said %.3f", x.slots, x.more, was.HitRate(), gain, said)
		if math.Abs(said-gain) > 0.02 {
			t.Errorf("%d slots and %d more: a gain of %.3f, said to be %.3f", x.slots, x.more, gain, said)
		}
	}
}

func TestSight(t *testing.T) {
	experts := testExperts(3, 6)
	st, err := NewMem(Mem{Fill: fillPiece}, StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(Options{Store: st, Experts: experts, Slots: 8, TopK: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Count() != 12 {
		t.Fatalf("%d experts", c.Count())
	}
	use := func(layer int, ids ...int32) {
		t.Helper()
		r, err := c.Begin(layer, ids)
		if err != nil {
			t.Fatal(err)
		}
		for range ids {
			if _, _, err := r.Next(context.Background(), true); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
	use(1, 0, 3)
	use(2, 5, 1)
	use(1, 3, 2)
	ls := c.Layers(nil)
	if len(ls) != 3 || ls[0] != (LayerStats{}) {
		t.Fatalf("%+v", ls)
	}
	var bytes, res int64
	for e := range experts[1] {
		bytes += experts[1][e].Bytes()
		if e == 0 || e == 2 || e == 3 {
			res += experts[1][e].Bytes()
		}
	}
	if want := (LayerStats{Experts: 6, Resident: 3, Bytes: bytes, ResidentBytes: res, Touches: 4, Hits: 1, Misses: 3}); ls[1] != want {
		t.Errorf("layer 1: %+v, want %+v", ls[1], want)
	}
	if ls[2].Resident != 2 || ls[2].Misses != 2 {
		t.Errorf("layer 2: %+v", ls[2])
	}
	places, uses := make([]byte, c.Count()), make([]float32, c.Count())
	c.Places(places)
	c.Uses(uses)
	for i, p := range places {
		here := i == 0 || i == 2 || i == 3 || i == 6+1 || i == 6+5
		if here != (p == byte(Resident)) || !here && p != byte(Absent) {
			t.Errorf("expert %d has place %#x", i, p)
		}
	}
	if !(uses[3] > uses[0] && uses[0] > uses[1] && uses[1] >= 0 && uses[3] <= 1) {
		t.Errorf("uses %v", uses[:6])
	}
	all := c.Stats()
	var sum LayerStats
	for _, l := range ls {
		sum.Touches, sum.Hits, sum.Misses = sum.Touches+l.Touches, sum.Hits+l.Hits, sum.Misses+l.Misses
	}
	if sum.Touches != all.Touches || sum.Hits != all.Hits || sum.Misses != all.Misses {
		t.Errorf("layers sum to %+v, the cache counts %+v", sum, all)
	}
	if _, err := c.Pin([]ExpertID{{1, 3}}); err != nil {
		t.Fatal(err)
	}
	if c.Places(places); places[3] != byte(Resident)|PlacePinned {
		t.Errorf("a pinned expert has place %#x", places[3])
	}
	if n := testing.AllocsPerRun(10, func() { c.Places(places); c.Uses(uses) }); n != 0 && !raceOn {
		t.Errorf("%g allocations", n)
	}
}
