//go:build cgo && !novulkan

package vulkan

import (
	"errors"
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/gguf"
)

// expert makes a small one.
func expert(t testing.TB, key uint64) *compute.Expert {
	x := &compute.Expert{Key: key}
	x.Gate, _ = computetest.Matrix(t, 3*key, gguf.Q8_0, 256, 128)
	x.Up, _ = computetest.Matrix(t, 3*key+1, gguf.Q8_0, 256, 128)
	x.Down, _ = computetest.Matrix(t, 3*key+2, gguf.Q8_0, 128, 256)
	return x
}

// without is x as who knows that it is kept has it.
func without(x *compute.Expert) *compute.Expert {
	y := *x
	y.Gate.Data, y.Up.Data, y.Down.Data = nil, nil, nil
	return &y
}

// TestTier puts experts on the device and lets them go: the same results, room that comes back, nothing that is held leaves.
func TestTier(t *testing.T) {
	b := open(t, Options{Memory: 64 << 20})
	var xs []*compute.Expert
	for k := range uint64(24) {
		xs = append(xs, expert(t, k+1))
	}
	run := func(x *compute.Expert) []float32 {
		e := b.Encoder()
		s := lane{Encoder: e, t: t, b: b}
		in, p := s.load(random(1, 256, 1), 256), s.empty(1, 256)
		e.ExpertFFN(p, 0, x, in, []int32{0})
		out := make([]float32, 256)
		e.Read(out, p)
		if err := e.Submit(); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if err := b.Put(xs[0]); !errors.Is(err, compute.ErrNoRoom) || b.Hold(xs[0].Key) {
		t.Fatalf("an expert without a tier: %v", err)
	}
	const room = 2 << 20
	b.SetTier(room)
	kept := 0
	for _, x := range xs {
		err := b.Put(x)
		if err == nil {
			kept++
		} else if !errors.Is(err, compute.ErrNoRoom) {
			t.Fatal(err)
		}
	}
	n := b.Tier()
	if kept != n.Experts || kept < 15 || kept == len(xs) || n.Bytes > room || n.Segments < 2 {
		t.Errorf("%d were kept: %+v", kept, n)
	}
	for _, x := range xs[:3] {
		want := run(x)
		if !b.Hold(x.Key) {
			t.Fatalf("expert %d is not there", x.Key)
		}
		if got := run(without(x)); !slices.Equal(got, want) {
			t.Errorf("expert %d computes something else where it is kept", x.Key)
		}
	}
	if b.Drop(xs[0].Key) {
		t.Error("one that is held was dropped")
	}
	b.Release(xs[0].Key)
	if !b.Drop(xs[0].Key) || b.Keeps(xs[0].Key) || b.Put(xs[20]) != nil {
		t.Error("one that nobody holds was not dropped, or left no room")
	}
	// Segments with what is held stay; the others go, those first that are wanted least.
	b.SetWorth(func(key uint64) float64 { return float64(key) })
	if held := b.SetTier(0); held == 0 || held >= n.Bytes {
		t.Errorf("%d bytes of %d are held while two experts are", held, n.Bytes)
	}
	b.Release(xs[1].Key)
	b.Release(xs[2].Key)
	if held := b.SetTier(0); held != 0 || b.Tier().Experts != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// TestTierRefused has the device refuse segments and everything else in turn: the tier is smaller, what must be there has its place.
func TestTierRefused(t *testing.T) {
	f := &Fault{}
	b := open(t, Options{Memory: 64 << 20, Fault: f})
	b.SetTier(8 << 20)
	put := func(from, to uint64) (kept int) {
		for k := from; k < to; k++ {
			if err := b.Put(expert(t, k)); err == nil {
				kept++
			} else if !errors.Is(err, compute.ErrNoRoom) {
				t.Fatal(err)
			}
		}
		return kept
	}
	first := put(1, 12)
	f.Refuse.Store(f.Allocated() + 1)
	second := put(12, 60)
	if n := b.Tier(); first != 11 || second >= 40 || n.Shrinks != 1 || n.Target != n.Bytes || n.Experts != first+second {
		t.Errorf("%d and %d were kept: %+v", first, second, n)
	}
	// A cache that is refused gets its memory from the tier.
	f.Refuse.Store(f.Allocated() + 1)
	f.Refusals.Store(2)
	before := b.Tier()
	kv, err := b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 8, KeyDim: 128, ValDim: 128}}, Context: 1 << 13})
	if err != nil {
		t.Fatal(err)
	}
	kv.Free()
	if n := b.Tier(); n.Bytes >= before.Bytes || n.Target > n.Bytes {
		t.Errorf("%+v, it was %+v", n, before)
	}
}

// TestGuest has the host compute rows while the device is at work: they are where they belong before what follows reads them.
func TestGuest(t *testing.T) {
	b := open(t, Options{})
	e := &b.enc
	s := lane{Encoder: e, t: t, b: b}
	for range 20 {
		ran := 0
		var rows [][]float32
		e.OnRun(func() {
			ran++
			for i, r := range rows {
				for k := range r {
					r[k] = float32(100*i + k)
				}
			}
			rows = rows[:0]
		})
		x := s.load(random(1, 4*64, 1), 64)
		p := s.empty(6, 64)
		e.Clear(p)
		rows = append(rows, e.Await(p, 1, 2), e.Await(p, 5, 1))
		e.WeightedSum(x, p, []int32{0, 1, 2, 5}, []float32{1, 1, 1, 1}, 1)
		got := make([]float32, 4*64)
		e.Read(got, x)
		if err := e.Submit(); err != nil {
			t.Fatal(err)
		}
		if ran != 1 {
			t.Fatalf("the host's part ran %d times", ran)
		}
		base := random(1, 4*64, 1)
		for k := range 64 {
			for i, plus := range []float32{0, float32(k), float32(64 + k), float32(100 + k)} {
				if want := base[64*i+k] + plus; got[64*i+k] != want {
					t.Fatalf("row %d, element %d is %v, want %v", i, k, got[64*i+k], want)
				}
			}
		}
		e.OnRun(nil)
	}
	if st := b.Stats(); st.Submits != st.Waits {
		t.Errorf("%d submits for %d waits", st.Submits, st.Waits)
	}
}

// TestLost loses the device: an error that says so, and none of the calls hangs.
func TestLost(t *testing.T) {
	f := &Fault{}
	b := open(t, Options{Memory: 64 << 20, Fault: f})
	b.SetTier(8 << 20)
	e := &b.enc
	s := lane{Encoder: e, t: t, b: b}
	x, p := s.load(random(1, 64, 1), 64), s.empty(1, 64)
	filled := false
	e.OnRun(func() { filled = true })
	e.Await(p, 0, 1)
	e.Add(x, p)
	f.Lose.Store(f.Submitted() + 1)
	if err := e.Submit(); !errors.Is(err, ErrLost) || !filled {
		t.Errorf("a lost device: %v; the host's part was done: %t", err, filled)
	}
	if err := b.Put(expert(t, 1)); !errors.Is(err, ErrLost) || b.Keeps(1) {
		t.Errorf("an expert for a lost device: %v", err)
	}
	if err := e.Submit(); err != nil {
		t.Errorf("nothing, submitted: %v", err)
	}
	e.Add(x, p)
	if err := e.Submit(); !errors.Is(err, ErrLost) {
		t.Errorf("later: %v", err)
	}
}
