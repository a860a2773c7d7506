package cpu

import (
	"fmt"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/gguf"
)

// ramp is a tensor of rows rows with some values.
func ramp(b *Backend, rows, cols int) compute.Tensor {
	t := b.NewTensor(rows, cols)
	t.SetRows(rows)
	for i := range own(t).all() {
		own(t).data[i] = float32(i*7919%1009)/504.5 - 1
	}
	return t
}

// BenchmarkMix is a mixer of Qwen3.8-Flash-Next's sizes, in Q8_0, as in decoding and in a prompt.
func BenchmarkMix(b *testing.B) {
	be := open(b, Options{Threads: 2})
	const streams, width, rank = 4, 2560, 320
	w := func(seed uint64, typ gguf.Type, in, out int) compute.Weight {
		m, _ := computetest.Matrix(b, seed, typ, in, out)
		x, err := be.NewWeight(m)
		if err != nil {
			b.Fatal(err)
		}
		return x
	}
	m := &compute.Mixer{Norm: w(1, gguf.F32, streams*width, 1), Down: w(2, gguf.Q8_0, streams*width, rank), Up: w(3, gguf.Q8_0, rank, streams*width),
		Inject: w(4, gguf.F32, streams*width, streams), Streams: streams, Eps: 1e-6}
	for _, rows := range []int{1, 64} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			x, d, inj := ramp(be, rows, streams*width), ramp(be, rows, width), ramp(be, rows, streams)
			b.SetBytes(int64(2 * streams * width * rank * 34 / 32))
			for b.Loop() {
				be.enc.Mix(d, inj, x, m)
				be.enc.Inject(x, d, inj)
			}
		})
	}
}

// BenchmarkSparseAttention is one query of Qwen3.8-Flash-Next over 2,051 positions, the best of a long context.
func BenchmarkSparseAttention(b *testing.B) {
	be := open(b, Options{Threads: 2})
	norm, err := be.NewWeight(compute.Matrix{Type: gguf.F16, In: 128, Out: 1, Data: make([]byte, 256)})
	if err != nil {
		b.Fatal(err)
	}
	for i := range own2(norm) {
		own2(norm)[i] = 1
	}
	for _, n := range []int{2048, 8192, 32768, 131072} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			kv, err := be.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 2, KeyDim: 256, ValDim: 256}}, Context: n})
			if err != nil {
				b.Fatal(err)
			}
			defer kv.Free()
			idx, err := be.NewIndex(compute.IndexShape{Layers: 1, Dim: 128, Block: 4, Context: n})
			if err != nil {
				b.Fatal(err)
			}
			defer idx.Free()
			for i := range idx.(*index).mem {
				idx.(*index).mem[i] = byte(i*31%251) & 0x3b
			}
			q, k, v, d := ramp(be, 1, 6144), ramp(be, 1, 512), ramp(be, 1, 512), ramp(be, 1, 6144)
			iq, ik := ramp(be, 1, 512), ramp(be, 1, 128)
			s := &compute.SparseSpec{AttnSpec: compute.AttnSpec{Pos: []int32{int32(n - 2)}, Scale: 0.06}, Index: idx, Top: 512, Norm: norm, Eps: 1e-6}
			for _, tail := range []int32{2, 3} { // whole blocks; a block that is cut
				s.Pos[0] = int32(n) - tail
				b.Run(fmt.Sprint("tail ", (s.Pos[0]+1)%4), func(b *testing.B) {
					for b.Loop() {
						be.enc.SparseAttention(d, q, k, v, iq, ik, kv, s)
					}
				})
			}
		})
	}
}

func own2(w compute.Weight) []float32 { return ownWeight(w).vec }
