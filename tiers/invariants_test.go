//go:build invariants

package tiers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"terrace/internal/invariant"
)

// TestInvariantsFail: each check of this build fails where what it checks does not hold.
func TestInvariantsFail(t *testing.T) {
	mem := maker{"mem", func(_ []string, o StoreOptions) (Store, error) { return NewMem(Mem{Fill: fillPiece}, o) }}
	c := newCache(t, mem, testExperts(2, 12), 1, Options{Slots: 8, TopK: 4}, StoreOptions{})
	defer closeCache(t, c)
	fails := func(name, want string, f func()) {
		t.Helper()
		defer func() {
			got := fmt.Sprint(recover())
			c.mu.TryLock() // what fails may hold it
			c.mu.Unlock()
			if !strings.Contains(got, "tiers: ") || !strings.Contains(got, want) {
				t.Errorf("%s: %s", name, got)
			}
		}()
		f()
	}
	lend := func(experts ...int32) (*Request, Lease) {
		t.Helper()
		r, err := c.Begin(1, experts)
		if err != nil {
			t.Fatal(err)
		}
		l, ok, err := r.Next(context.Background(), true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return r, l
	}

	// A lease that comes back a second time.
	r, l := lend(0)
	l.Release()
	fails("a lease released twice", "twice", l.Release)
	r.Close()

	// An expert that its user has changed: it does not come back, and goes to nobody.
	r, l = lend(1)
	b := l.Views()[1]
	b[7] ^= 1
	fails("a changed expert comes back", "expert 1 of layer 1 was changed", l.Release)
	b[7] ^= 1
	l.Release()
	b[0] ^= 1
	fails("a changed expert is lent", "expert 1 of layer 1 was changed", func() {
		r, err := c.Begin(1, []int32{1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { b[0] ^= 1; c.mu.Unlock(); r.Close(); c.mu.Lock() }()
		r.Next(context.Background(), true)
	})
	r.Close()

	// What has left is poison for those who read it later; who writes there is found by the next read into the slot.
	r, l = lend(2)
	old, slot := l.Views()[1], l.slot
	r.Close()
	c.mu.Lock()
	c.v.vacate(slot)
	if !invariant.Poisoned(old) {
		t.Error("the memory of an expert that has left can be read")
	}
	old[5] = 0
	fails("a freed slot was written", fmt.Sprintf("slot %d was written", slot), func() { c.untouched(slot) })
	c.mu.Lock()
	old[5] = 0xff
	c.v.putFree(slot)
	c.unlock()

	// A read that says it ended well and did not fill its slot.
	r, l = lend(0)
	v := l.Views()[2]
	was := append([]byte(nil), v...)
	invariant.Poison(v[len(v)/2:])
	c.mu.Lock()
	fails("half a read", "but not all of it", func() { c.arrived(l.slot) })
	copy(v, was)
	r.Close()

	// Tables that do not agree.
	c.mu.Lock()
	c.v.ready++
	fails("wrong tables", "invariant", c.consistent)
	c.v.ready--
}
