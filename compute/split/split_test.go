//go:build cgo && !novulkan

package split_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/compute/cpu"
	"terrace/compute/split"
	"terrace/gguf"
	"terrace/vulkan"
)

func open(t *testing.T, o split.Options, v vulkan.Options) (*split.Backend, *vulkan.Backend) {
	t.Helper()
	c, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	d, err := vulkan.New(v)
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.Device = c, d
	b := split.New(o)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, d
}

// turns puts every other weight, and a state's first layers, on the host, so that tensors go to and fro.
type turns struct {
	*split.Backend
	n *int
}

func (b turns) NewWeight(m compute.Matrix) (compute.Weight, error) {
	*b.n++
	b.Layer(*b.n % 2)
	return b.Backend.NewWeight(m)
}

// TestSuite is the suite of backends, with operations in turn on both sides; TERRACE_EXACT=whole also has all on the device, whose own
// tests do so too.
func TestSuite(t *testing.T) {
	cache := t.TempDir() + "/pipelines"
	for name, first := range map[string]int{"device": 0, "turns": 1} {
		t.Run(name, func(t *testing.T) {
			if first == 0 && os.Getenv("TERRACE_EXACT") != "whole" {
				t.Skip("TERRACE_EXACT=whole runs it")
			}
			n := 0
			one := func(int) (kv, rec, idx int) { return 1, 1, 1 }
			b, _ := open(t, split.Options{First: first, States: one, Experts: true}, vulkan.Options{Memory: 256 << 20, CacheFile: cache})
			computetest.Suite{Backend: turns{b, &n}, Short: true}.Run(t)
		})
	}
}

// layer is a step like a model's: experts of which some are kept, summed.
type layer struct {
	t       *testing.T
	b       compute.Backend
	norm    compute.Weight
	router  compute.Weight
	x, h    compute.Tensor
	seen    compute.Tensor
	parts   compute.Tensor
	experts []*compute.Expert
}

const width, ff, count = 256, 128, 12

func newLayer(t *testing.T, b compute.Backend) *layer {
	l := &layer{t: t, b: b}
	w := func(seed uint64, typ gguf.Type, in, out int) compute.Weight {
		m, _ := computetest.Matrix(t, seed, typ, in, out)
		x, err := b.NewWeight(m)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	l.norm, l.router = w(1, gguf.F32, width, 1), w(2, gguf.F32, width, count)
	embd := w(3, gguf.F32, width, 40)
	l.x, l.h, l.seen, l.parts = b.NewTensor(32, width), b.NewTensor(32, width), b.NewTensor(32, count), b.NewTensor(32*4, width)
	l.x.SetRows(32)
	e := b.Encoder()
	ids := make([]int32, 32)
	for i := range ids {
		ids[i] = int32(i)
	}
	e.Embed(l.x, embd, ids)
	for k := range uint64(count) {
		x := &compute.Expert{Key: k + 1}
		x.Gate, _ = computetest.Matrix(t, 10+3*k, gguf.Q4_K, width, ff*2)
		x.Up, _ = computetest.Matrix(t, 11+3*k, gguf.Q4_K, width, ff*2)
		x.Down, _ = computetest.Matrix(t, 12+3*k, gguf.Q8_0, ff*2, width)
		l.experts = append(l.experts, x)
	}
	return l
}

// step runs the layer for some rows, each with four experts of its own choice.
func (l *layer) step(rows int, seed uint64) (out []float32, err error) {
	e := l.b.Encoder()
	k, _ := l.b.(compute.Keeper)
	l.x.SetRows(rows)
	l.h.SetRows(rows)
	l.seen.SetRows(rows)
	l.parts.SetRows(4 * rows)
	e.RMSNorm(l.h, l.x, l.norm, 1e-6)
	e.MatMul(l.seen, l.router, l.h)
	scores := make([]float32, rows*count)
	e.Read(scores, l.seen)
	if s, ok := e.(compute.Sharer); ok {
		s.Share(l.h)
	}
	if err := e.Submit(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	users := map[int][]int32{} // rows by expert
	index, weights, at := make([]int32, 4*rows), make([]float32, 4*rows), int32(0)
	place := map[[2]int]int32{}
	chosen := make([][]int, rows)
	for i := range rows {
		chosen[i] = r.Perm(count)[:4]
		for _, x := range chosen[i] {
			users[x] = append(users[x], int32(i))
		}
	}
	var held []uint64
	for _, x := range r.Perm(count) {
		in := users[x]
		if len(in) == 0 {
			continue
		}
		ex := l.experts[x]
		if k != nil && k.Hold(ex.Key) {
			held = append(held, ex.Key)
			y := *ex
			y.Gate.Data, y.Up.Data, y.Down.Data = nil, nil, nil
			ex = &y
		}
		e.ExpertFFN(l.parts, int(at), ex, l.h, in)
		for j, row := range in {
			place[[2]int{int(row), x}] = at + int32(j)
		}
		at += int32(len(in))
	}
	for i := range rows {
		for j, x := range chosen[i] {
			index[4*i+j], weights[4*i+j] = place[[2]int{i, x}], scores[i*count+x]
		}
	}
	e.WeightedSum(l.x, l.parts, index, weights, 4)
	out = make([]float32, rows*width)
	e.Read(out, l.x)
	err = e.Submit()
	for _, key := range held {
		k.Release(key)
	}
	return out, err
}

// same compares bits; numbers too small for a device may be zero (Numerics).
func same(t *testing.T, what string, got, want []float32, exact bool) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (exact || math.Abs(float64(got[i]-want[i])) > 0x1p-125) {
			t.Fatalf("%s: result %d is %v, the CPU's is %v", what, i, got[i], want[i])
		}
	}
}

// TestExperts runs layers with no, some and all experts on the device: the CPU's bits, one submit and one wait a layer.
func TestExperts(t *testing.T) {
	c, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b, d := open(t, split.Options{Experts: true}, vulkan.Options{Memory: 256 << 20})
	d.SetTier(16 << 20)
	l, ref := newLayer(t, b), newLayer(t, c)
	exact := d.Numerics().Subnormals
	seed := uint64(0)
	for _, kept := range []int{0, 5, count} {
		for _, x := range l.experts[:kept] {
			if err := b.Put(x); err != nil {
				t.Fatal(err)
			}
		}
		for _, rows := range []int{1, 1, 1, 9, 32, 2} {
			seed++
			before := d.Stats()
			got, err := l.step(rows, seed)
			if err != nil {
				t.Fatal(err)
			}
			want, err := ref.step(rows, seed)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "experts", got, want, exact)
			after := d.Stats()
			if n := after.Submits - before.Submits; n > 2 || after.Waits-before.Waits > 2 {
				t.Errorf("%d kept, %d rows: %d submits and %d waits for a layer and its end", kept, rows, n, after.Waits-before.Waits)
			}
		}
	}
	if d.Stats().Hits == 0 {
		t.Error("the device computed none")
	}
}

// TestLoseAndTake loses the device in the middle of a layer: an error that says so; then the host goes on, and a device again.
func TestLoseAndTake(t *testing.T) {
	c, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	f := &vulkan.Fault{}
	b, d := open(t, split.Options{Experts: true}, vulkan.Options{Memory: 256 << 20, Fault: f})
	d.SetTier(16 << 20)
	l, ref := newLayer(t, b), newLayer(t, c)
	for _, x := range l.experts[:4] {
		if err := b.Put(x); err != nil {
			t.Fatal(err)
		}
	}
	f.Lose.Store(f.Submitted() + 2)
	if _, err := l.step(3, 1); !errors.Is(err, vulkan.ErrLost) {
		t.Fatalf("a lost device: %v", err)
	}
	if err := b.Lose(); err != nil {
		t.Fatal(err)
	}
	again := func(what string) {
		t.Helper()
		*l, *ref = *newLayer(t, b), *newLayer(t, c)
		for seed := range uint64(3) {
			got, err := l.step(5, seed)
			if err != nil {
				t.Fatal(err)
			}
			want, err := ref.step(5, seed)
			if err != nil {
				t.Fatal(err)
			}
			same(t, what, got, want, false)
		}
	}
	again("without a device")
	if b.Hold(1) {
		t.Error("an expert is held without a device")
	}
	n, err := vulkan.New(vulkan.Options{Memory: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Take(n); err != nil {
		t.Fatal(err)
	}
	before := n.Stats()
	again("with a device again")
	if n.Stats().Dispatches == before.Dispatches {
		t.Error("the device that came back computes nothing")
	}
}
