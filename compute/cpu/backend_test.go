package cpu

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"terrace/compute"
	"terrace/compute/computetest"
	"terrace/gguf"
)

func open(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestSuite(t *testing.T) {
	for _, threads := range []int{1, 3} {
		for _, exact := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d threads, exact %t", threads, exact), func(t *testing.T) {
				computetest.Suite{Backend: open(t, Options{Threads: threads, Exact: exact}), Exact: exact, Short: threads == 1 || raceEnabled}.Run(t)
			})
		}
	}
}

// step is a small network that uses every operation; rows of tokens are fed in batches of cut.
type step struct {
	b                                  *Backend
	x, h, q, k, v, att, proj, scores   compute.Tensor
	parts                              compute.Tensor
	embd, norm, wq, wk, wv, wo, router compute.Weight
	experts                            []compute.Expert
	kv                                 compute.KV
	cos, sin, weights                  []float32
	pos, index                         []int32
	out                                []float32
}

const (
	stepEmbd, stepHeads, stepDim, stepFF, stepExperts, stepTop = 256, 8, 32, 256, 6, 3
)

func newStep(t testing.TB, b *Backend) *step {
	t.Helper()
	s := &step{b: b}
	w := func(seed uint64, typ gguf.Type, in, out int) compute.Weight {
		m, _ := computetest.Matrix(t, seed, typ, in, out)
		x, err := b.NewWeight(m)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	s.embd, s.norm = w(1, gguf.Q6_K, stepEmbd, 64), w(2, gguf.F32, stepEmbd, 1)
	s.wq, s.wk = w(3, gguf.Q4_K, stepEmbd, stepHeads*stepDim), w(4, gguf.Q8_0, stepEmbd, 2*stepDim)
	s.wv, s.wo = w(5, gguf.F16, stepEmbd, 2*stepDim), w(6, gguf.Q5_K, stepHeads*stepDim, stepEmbd)
	s.router = w(7, gguf.F32, stepEmbd, stepExperts)
	for i := range stepExperts {
		g, _ := computetest.Matrix(t, uint64(10+i), gguf.Q4_K, stepEmbd, stepFF)
		u, _ := computetest.Matrix(t, uint64(20+i), gguf.Q5_0, stepEmbd, stepFF)
		d, _ := computetest.Matrix(t, uint64(30+i), gguf.Q6_K, stepFF, stepEmbd)
		s.experts = append(s.experts, compute.Expert{Gate: g, Up: u, Down: d})
	}
	kv, err := b.NewKV(compute.KVShape{Layers: []compute.KVLayer{{Heads: 2, KeyDim: stepDim, ValDim: stepDim}}, Context: 256})
	if err != nil {
		t.Fatal(err)
	}
	s.kv = kv
	const most = 64
	s.x, s.h, s.proj = b.NewTensor(most, stepEmbd), b.NewTensor(most, stepEmbd), b.NewTensor(most, stepEmbd)
	s.q, s.att = b.NewTensor(most, stepHeads*stepDim), b.NewTensor(most, stepHeads*stepDim)
	s.k, s.v = b.NewTensor(most, 2*stepDim), b.NewTensor(most, 2*stepDim)
	s.scores, s.parts = b.NewTensor(most, stepExperts), b.NewTensor(most*stepTop, stepEmbd)
	s.cos, s.sin = make([]float32, most*stepDim/2), make([]float32, most*stepDim/2)
	s.pos, s.index, s.weights = make([]int32, most), make([]int32, most*stepTop), make([]float32, most*stepTop)
	s.out = make([]float32, most*stepEmbd)
	return s
}

// run feeds tokens from position at on; the results lie in s.out. Row p goes to experts p, p+1 and p+3 modulo their
// number.
func (s *step) run(tokens []int32, at int, in [][]int32) []float32 {
	e, n := s.b.Encoder(), len(tokens)
	for _, t := range []compute.Tensor{s.x, s.h, s.q, s.k, s.v, s.att, s.proj, s.scores} {
		t.SetRows(n)
	}
	s.parts.SetRows(n * stepTop)
	for i := range n {
		s.pos[i] = int32(at + i)
		for j := range stepDim / 2 {
			b, a := math.Sincos(float64(at+i) * math.Pow(100, -float64(j)/16))
			s.cos[i*stepDim/2+j], s.sin[i*stepDim/2+j] = float32(a), float32(b)
		}
	}
	cos, sin := s.cos[:n*stepDim/2], s.sin[:n*stepDim/2]
	e.Embed(s.x, s.embd, tokens)
	e.RMSNorm(s.h, s.x, s.norm, 1e-5)
	e.MatMul(s.q, s.wq, s.h)
	e.MatMul(s.k, s.wk, s.h)
	e.MatMul(s.v, s.wv, s.h)
	e.RoPE(s.q, stepDim, 0, stepDim, compute.Neox, cos, sin)
	e.RoPE(s.k, stepDim, 0, stepDim, compute.Neox, cos, sin)
	e.Attention(s.att, s.q, s.k, s.v, s.kv, compute.AttnSpec{Pos: s.pos[:n], Scale: 0.2})
	e.MatMul(s.proj, s.wo, s.att)
	e.Add(s.x, s.proj)
	e.RMSNorm(s.h, s.x, s.norm, 1e-5)
	e.MatMul(s.scores, s.router, s.h)
	first := 0
	for id := range s.experts {
		rows := in[id][:0]
		for i := range n {
			for r, d := range [stepTop]int{0, 1, 3} {
				if (at+i+d)%stepExperts == id {
					s.index[i*stepTop+r] = int32(first + len(rows))
					s.weights[i*stepTop+r] = 0.1 * float32(r+1)
					rows = append(rows, int32(i))
				}
			}
		}
		in[id] = rows
		e.ExpertFFN(s.parts, first, &s.experts[id], s.h, rows)
		first += len(rows)
	}
	e.WeightedSum(s.x, s.parts, s.index[:n*stepTop], s.weights[:n*stepTop], stepTop)
	out := s.out[:n*stepEmbd]
	e.Read(out, s.x)
	if err := e.Submit(); err != nil {
		panic(err)
	}
	return out
}

func lists() [][]int32 {
	in := make([][]int32, stepExperts)
	for i := range in {
		in[i] = make([]int32, 0, 64)
	}
	return in
}

// TestSameBits: neither threads nor the cut into batches show in a result.
func TestSameBits(t *testing.T) {
	tokens := make([]int32, 70)
	for i := range tokens {
		tokens[i] = int32(i * 37 % 64)
	}
	for _, exact := range []bool{false, true} {
		var want []float32
		for _, threads := range []int{1, 2, 3} {
			s := newStep(t, open(t, Options{Threads: threads, Exact: exact}))
			for _, cut := range []int{64, 1, 7} {
				var got []float32
				for at := 0; at < len(tokens); at += cut {
					got = append(got, s.run(tokens[at:min(at+cut, len(tokens))], at, lists())...)
				}
				if want == nil {
					want = got
					continue
				}
				for i := range want {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("exact %t, %d threads, batches of %d: row %d, element %d is %v, want the bits of %v", exact, threads, cut, i/stepEmbd, i%stepEmbd, got[i], want[i])
					}
				}
			}
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	for _, threads := range []int{1, 3} {
		s := newStep(t, open(t, Options{Threads: threads}))
		in := lists()
		one := []int32{5}
		at := 0
		n := testing.AllocsPerRun(100, func() {
			s.run(one, at, in)
			at++
		})
		if n != 0 && !raceEnabled {
			t.Errorf("%d threads: %v allocations a step, want 0", threads, n)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{Threads: -1}, {Threads: maxThreads + 1}, {Alloc: func(int) ([]byte, error) { return nil, nil }}} {
		if b, err := New(o); err == nil {
			b.Close()
			t.Errorf("New(%+v) gave no error", o)
		}
	}
}

func TestKVMemory(t *testing.T) {
	var held [][]byte
	full := false
	o := Options{Threads: 1,
		Alloc: func(n int) ([]byte, error) {
			if full {
				return nil, errors.New("no room")
			}
			full = true
			b := make([]byte, n)
			held = append(held, b)
			return b, nil
		},
		Free: func(b []byte) error {
			if len(held) == 0 || &b[0] != &held[0][0] {
				return errors.New("not mine")
			}
			held = held[1:]
			return nil
		}}
	l := compute.KVLayer{Heads: 3, KeyDim: 8, ValDim: 4}
	shape := compute.KVShape{Layers: []compute.KVLayer{l, l}, Context: 10, K: compute.KVF16, V: compute.KVF32}
	_, err := open(t, o).NewKV(shape)
	if err == nil || !strings.Contains(err.Error(), "values of 10 positions (960 bytes): no room") {
		t.Errorf("error %v, want the refusal of 960 bytes", err)
	}
	if len(held) != 0 {
		t.Error("the keys were not given back")
	}
}
