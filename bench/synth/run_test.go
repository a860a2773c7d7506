package synth

import (
	"context"
	"math"
	"slices"
	"testing"

	"terrace/engine"
)

// routes runs tokens and answers the experts chosen at each layer, a list for each token.
func routes(t *testing.T, path string, tokens []int32) (chosen map[int][][]int32, logits []float32, err error) {
	t.Helper()
	e, err := engine.Open(engine.Options{Path: path, Context: len(tokens) + 1, Threads: 1})
	if err != nil {
		return nil, nil, err
	}
	defer e.Close()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	chosen = map[int][][]int32{}
	k := e.Model().Config().TopK
	s.OnRoute(func(layer int, ids []int32) {
		for ; len(ids) > 0; ids = ids[k:] {
			chosen[layer] = append(chosen[layer], slices.Clone(ids[:k]))
		}
	})
	if _, err := s.Sync(context.Background(), tokens); err != nil {
		t.Fatal(err)
	}
	return chosen, slices.Clone(s.Logits()), nil
}

func randomTokens(n, vocab int) []int32 {
	r := newRandom(3, "tokens")
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(r.next() % uint64(vocab))
	}
	return list
}

// TestRuns opens a small file of each architecture and runs it: the logits are finite and of a size that a softmax can
// use.
func TestRuns(t *testing.T) {
	for _, f := range smallFamilies() {
		t.Run(f.Arch, func(t *testing.T) {
			o := Options{Quant: "q8_0", Skew: 0.5, Corr: 0.5}
			tokens := randomTokens(40, f.shape.vocab)
			if f.shape.tableWidth != 0 {
				o.Rows = [][]int32{tokens}
			}
			_, logits, err := routes(t, write(t, f, o), tokens)
			if err != nil {
				t.Fatal(err)
			}
			rms := 0.0
			for _, x := range logits {
				rms += float64(x) * float64(x)
			}
			rms = math.Sqrt(rms / float64(len(logits)))
			t.Logf("logits of size %.2f", rms)
			if !(rms > 0.3 && rms < 30) {
				t.Errorf("logits of size %g", rms)
			}
		})
	}
}

// TestSkew compares the share of the most wanted quarter of experts, and how well an expert tells one of the next layer,
// with and without the options for them.
func TestSkew(t *testing.T) {
	f := small(Families()[0])
	f.shape.experts, f.shape.topK = 32, 4
	tokens := randomTokens(500, f.shape.vocab)
	measure := func(o Options) (top, tell float64) {
		o.Quant = "q8_0"
		chosen, _, err := routes(t, write(t, f, o), tokens)
		if err != nil {
			t.Fatal(err)
		}
		last := f.shape.layers - 1 // of which a prompt runs its last token alone
		for layer := range last {
			count := make([]int, f.shape.experts)
			next := make([][]int, f.shape.experts)
			for i := range next {
				next[i] = make([]int, f.shape.experts)
			}
			for i, ids := range chosen[layer] {
				for _, e := range ids {
					count[e]++
					if layer+1 < last {
						for _, x := range chosen[layer+1][i] {
							next[e][x]++
						}
					}
				}
			}
			for _, row := range next {
				tell += float64(slices.Max(row))
			}
			slices.Sort(count)
			for _, n := range count[3*len(count)/4:] {
				top += float64(n)
			}
		}
		all := float64(len(tokens) * f.shape.topK)
		return top / all / float64(last), tell / all / float64(last-1)
	}
	top0, tell0 := measure(Options{})
	top1, _ := measure(Options{Skew: 0.7})
	_, tell2 := measure(Options{Corr: 0.9})
	t.Logf("the top quarter takes %.2f, with skew %.2f; an expert tells another with chance %.2f, with correlation %.2f", top0, top1, tell0, tell2)
	if top0 > 0.45 || top1 < top0+0.15 || tell2 < tell0+0.15 {
		t.Errorf("the top quarter takes %.2f, with skew %.2f; an expert tells another with chance %.2f, with correlation %.2f", top0, top1, tell0, tell2)
	}
}
