//go:build cgo && !novulkan

package vulkan

import (
	"testing"
	"unsafe"
)

// TestReplay submits the same commands over other numbers: they are not recorded anew, until a buffer goes that they might name.
func TestReplay(t *testing.T) {
	b := open(t, Options{})
	e := &b.enc
	x := e.tensor(1, 256)
	x.SetRows(1)
	step := func(v float32) (replayed int64) {
		t.Helper()
		before := b.Stats().Replayed
		in, got := make([]float32, 256), make([]float32, 256)
		for i := range in {
			in[i] = v + float32(i)
		}
		e.write(x, unsafe.Slice((*byte)(unsafe.Pointer(&in[0])), 4*len(in)))
		for range 60 {
			e.Scale(x, 2)
			e.Scale(x, 0.5)
		}
		e.Read(got, x)
		if err := e.Submit(); err != nil {
			t.Fatal(err)
		}
		for i := range in {
			if got[i] != in[i] {
				t.Fatalf("element %d is %v, want %v", i, got[i], in[i])
			}
		}
		return b.Stats().Replayed - before
	}
	step(1)
	for i := range 10 {
		if n := step(float32(i)); n != 1 {
			t.Errorf("step %d: %d submissions were not recorded anew", i, n)
		}
	}
	r, err := b.mem.take(largestBlock)
	if err != nil {
		t.Fatal(err)
	}
	b.mem.give(r)
	if n := step(3); n != 0 {
		t.Errorf("%d submissions were not recorded anew though a buffer went", n)
	}
	if n := step(4); n != 1 {
		t.Errorf("%d submissions were not recorded anew", n)
	}
}
