package tiers

import (
	"bytes"
	"testing"
	"time"

	"terrace/internal/host"
)

// The memory of slots in use is there before they are touched, that of a run which gave a slot back is left alone, and what
// lies in slots that are in use is not changed.
func TestWarm(t *testing.T) {
	if !host.CanPopulate {
		t.Skip("the system cannot give memory before it is touched")
	}
	const slots, size = 40, 3 << 20
	z := sizesOf([]int64{size}, []int{slots})
	a, err := newArena(&z, []int32{slots})
	if err != nil {
		t.Fatal(err)
	}
	a.warm = newWarmer(a.runs)
	if a.warm == nil {
		t.Fatal("an arena of slots side by side has no warmer")
	}
	if err := a.commit(0); err != nil {
		t.Fatal(err)
	}
	copy(a.Slot(0), "weights")
	next := func() int {
		a.warm.mu.Lock()
		defer a.warm.mu.Unlock()
		return a.warm.runs[0].next
	}
	want := (size + warmAhead) / huge * huge
	for begin := time.Now(); next() < want; time.Sleep(time.Millisecond) {
		if a.warm.runs[0].off.Load() {
			t.Skip("the kernel cannot give memory before it is touched (Linux 5.14)")
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d of %d bytes touched after a minute", next(), want)
		}
	}
	if got := next(); got > want+huge {
		t.Errorf("%d bytes touched, want %d", got, want)
	}
	if !bytes.HasPrefix(a.Slot(0), []byte("weights")) {
		t.Errorf("a slot's bytes changed: %q", a.Slot(0)[:8])
	}
	var back []byte
	a.warm.retreat(func(b []byte) error { back = b; return nil })
	if from := (size + huge - 1) / huge * huge; len(back) != next()-from || &back[0] != &a.warm.runs[0].mem[from] {
		t.Errorf("%d bytes went back, want those from %d to %d", len(back), from, next())
	}
	if err := a.release(5); err != nil {
		t.Fatal(err)
	}
	was := next()
	if err := a.commit(20); err != nil {
		t.Fatal(err)
	}
	a.warm.used(0, 30*size)
	time.Sleep(20 * time.Millisecond)
	if next() != was {
		t.Errorf("%d bytes touched of a run that gave a slot back, %d before", next(), was)
	}
	if err := a.Free(); err != nil {
		t.Fatal(err)
	}
}

// A slot beyond those in use from the start takes memory that another class gives up, so nothing may be touched ahead then.
func TestWarmEndsWithTrade(t *testing.T) {
	if !host.CanPopulate {
		t.Skip("the system cannot give memory before it is touched")
	}
	for _, size := range []int64{3 << 20, 64 << 10} {
		z := sizesOf([]int64{size, 2 * size}, []int{200, 200})
		a, err := newArena(&z, []int32{100, 100})
		if err != nil {
			t.Fatal(err)
		}
		a.warm = newWarmer(a.runs)
		for _, i := range []int32{0, 200} {
			if err := a.commit(i); err != nil {
				t.Fatal(err)
			}
		}
		if a.warm.over {
			t.Errorf("slots of %d bytes: over before a trade", size)
		}
		if err := a.commit(150); err != nil {
			t.Fatal(err)
		}
		for i := range a.warm.runs {
			if r := &a.warm.runs[i]; !a.warm.over || !r.off.Load() {
				t.Errorf("slots of %d bytes, run %d: memory is touched ahead after a trade", size, i)
			}
		}
		if err := a.Free(); err != nil {
			t.Fatal(err)
		}
	}
}
