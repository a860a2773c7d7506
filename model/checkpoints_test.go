package model

import (
	"slices"
	"testing"
)

func TestCheckpoints(t *testing.T) {
	c := make(checkpoints, 3)
	if _, _, ok := c.best(100); ok {
		t.Error("a checkpoint was found where none was made")
	}
	for _, pos := range []int{100, 200, 300} {
		slot, ok := c.take(pos)
		if !ok || c[slot] != pos {
			t.Fatalf("position %d: slot %d, %t, %v", pos, slot, ok, c)
		}
	}
	if _, ok := c.take(200); ok {
		t.Error("a position got two checkpoints")
	}
	for _, x := range []struct {
		n, pos int
	}{{99, 0}, {100, 100}, {250, 200}, {1000, 300}} {
		slot, pos, ok := c.best(x.n)
		if pos != x.pos || ok != (x.pos > 0) || ok && c[slot] != pos {
			t.Errorf("best before %d: slot %d at %d, %t, want %d of %v", x.n, slot, pos, ok, x.pos, c)
		}
	}
	// 300 has the closest neighbours: 200 and 310.
	c.take(310)
	if got := slices.Sorted(slices.Values(c)); !slices.Equal(got, []int{100, 200, 310}) {
		t.Errorf("after a fourth checkpoint: %v", got)
	}
	c.cut(200)
	if got := slices.Sorted(slices.Values(c)); !slices.Equal(got, []int{0, 100, 200}) {
		t.Errorf("cut at 200: %v", got)
	}
	if slot, ok := c.take(250); !ok || c[slot] != 250 {
		t.Errorf("a free slot was not taken: %v", c)
	}
	if slot, ok := (checkpoints{}).take(5); ok {
		t.Errorf("slot %d of none was taken", slot)
	}
}
