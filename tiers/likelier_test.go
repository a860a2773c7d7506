package tiers

import (
	"fmt"
	"testing"
)

// TestPrefetchOver: a guess takes a free slot whatever its chance, and no slot of an expert that its layer wants at least
// as often.
func TestPrefetchOver(t *testing.T) {
	experts := testExperts(4, 8) // layers 1 to 3 have 8
	c := newCache(t, allStores(t)[0], experts, 2, Options{Slots: 8, TopK: 2}, StoreOptions{})
	defer closeCache(t, c)
	use := make([]float32, 8)
	for e := range use {
		use[e] = 0.6
	}
	for l := 1; l < 4; l++ {
		if err := c.seed(l, use); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.PrefetchOver(1, 0, 0.1); n != 1 {
		t.Fatalf("%d reads with free slots, want 1", n)
	}
	settled := func() {
		for c.Pending() > 0 {
			c.store.Poll()
		}
	}
	settled()
	c.Settle(1, nil)
	for l := 1; l < 4; l++ {
		for e := int32(0); e < 6; e += 2 {
			if err := fetch(c, l, []int32{e, e + 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if free := c.v.slack() + c.v.room.free; free >= c.v.layer(2) {
		t.Fatalf("%d bytes are free, so nobody has to go", free)
	}
	own, any := c.v.victim(c.v.classOf[2])
	if own < 0 {
		own = any
	}
	score := c.v.scoreOf(own)
	if score <= 0.05 || score >= 0.95 {
		t.Fatalf("the victim's score is %g", score)
	}
	if n := c.PrefetchOver(2, 7, float32(score)-0.04); n != 0 || c.Contains(2, 7) != Absent {
		t.Errorf("a guess of chance %g took the slot of an expert used %g times a turn", score-0.04, score)
	}
	if n := c.PrefetchOver(2, 7, float32(score)+0.04); n != 1 {
		t.Errorf("a guess of chance %g took no slot of an expert used %g times a turn", score+0.04, score)
	}
	settled()
	if n := c.PrefetchOver(9, 0, 1); n != 0 {
		t.Error("a guess for layer 9 of 4")
	}
}

// seed is the part of Preload that reads nothing.
func (c *Cache) seed(layer int, use []float32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.valid(layer, nil); err != nil {
		return err
	}
	if len(use) != len(c.experts[layer]) {
		return fmt.Errorf("expert cache: uses of %d experts for layer %d, which has %d", len(use), layer, len(c.experts[layer]))
	}
	for e, u := range use {
		if !(u >= 0 && u <= 1) {
			return fmt.Errorf("expert cache: %v is said to be used %g times a visit, want 0 to 1", ExpertID{uint16(layer), uint16(e)}, u)
		}
	}
	c.v.policy.seed(layer, use)
	c.v.reheapLayer(layer)
	return nil
}
