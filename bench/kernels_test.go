package bench

import (
	"context"
	"testing"

	"terrace/gguf"
	"terrace/kernels"
)

func TestRunKernels(t *testing.T) {
	before := kernels.Features()
	generic := kernels.LevelGeneric
	for _, level := range []*kernels.Level{nil, &generic} {
		c := KernelsConfig{Types: []gguf.Type{gguf.Q8_0, gguf.IQ3S}, Rows: 16, Cols: []int{256, 512}, Batches: []int{3}, Level: level, Threads: 2, Bytes: 1 << 16, Repeats: 3}
		r, err := RunKernels(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Results) != 4 || r.Machine.System == "" || r.Threads != 2 || level != nil && r.Level != "generic" {
			t.Fatalf("report %+v", r)
		}
		for _, x := range r.Results {
			if !(x.GBs > 0 && x.ReadGBs > 0 && x.Share > 0) || len(x.Batches) != 1 || !(x.Batches[0].GOPs > 0) || r.ThreadTime != (x.CPUShare > 0) {
				t.Errorf("result %+v", x)
			}
		}
	}
	if kernels.Features() != before {
		t.Errorf("the level stays at %s, was %s", kernels.Features(), before)
	}
}

func TestRunKernelsRefusals(t *testing.T) {
	for name, c := range map[string]KernelsConfig{
		"type":    {Types: []gguf.Type{gguf.I8}},
		"rows":    {Rows: -1},
		"cols":    {Cols: []int{100}},
		"bytes":   {Bytes: 1000},
		"batches": {Batches: []int{0}},
	} {
		if _, err := RunKernels(context.Background(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := RunKernels(ctx, KernelsConfig{Types: []gguf.Type{gguf.Q8_0}, Bytes: 4 << 20, Repeats: 1}); err == nil {
		t.Error("a cancelled context: no error")
	}
}
