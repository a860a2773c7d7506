package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"terrace/gguf"
	"terrace/internal/tinymodel"
)

// TestResizeKeepsLogits changes the expert arena at random during prompts and decode of models with one and with two
// sizes of experts: the logits must be those of an arena left alone.
func TestResizeKeepsLogits(t *testing.T) {
	mixed, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: 4, Experts: 16, TopK: 3, Hidden: 256, ExpertFFN: 256, Gate: gguf.Q4_K, Up: gguf.Q6_K, Down: gguf.Q8_0, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{mixed, tinyMoE} {
		run := func(o Options, during func(*Engine, func() bool)) ([]float32, Stats) {
			t.Helper()
			o.Path, o.Context, o.Batch, o.Threads = path, 256, 48, 2
			e, end := opened(t, o)
			defer end()
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var over atomic.Bool
			var wg sync.WaitGroup
			if during != nil {
				wg.Go(func() { during(e, over.Load) })
			}
			m := s.Measure()
			prompt := make([]int32, 75)
			for i := range prompt {
				prompt[i] = int32(3 + i*7%200)
			}
			if _, err := s.Sync(context.Background(), prompt); err != nil {
				t.Error(err)
			}
			var all []float32
			for i := range int32(15) {
				if err := s.Eval(context.Background(), 3+i*11%200); err != nil {
					t.Error(err)
					break
				}
				all = append(all, s.Logits()[:64]...)
			}
			over.Store(true)
			wg.Wait()
			return all, m.End()
		}
		want, _ := run(Options{ExpertRAM: ExpertBudget{Percent: 100}}, nil)
		resizes := 0
		for _, ahead := range []int{0, 2} {
			got, st := run(Options{ExpertRAM: ExpertBudget{Percent: 60}, Lookahead: ahead}, func(e *Engine, over func() bool) {
				rng := rand.New(rand.NewPCG(1, uint64(ahead)))
				least, most := e.cache.MinBytes(), e.cache.MaxBytes()
				for !over() {
					e.cache.Resize(least + rng.Int64N(most-least+1))
					resizes++
					time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
				}
			})
			if !slices.Equal(got, want) {
				t.Errorf("%s, lookahead %d: other logits", path, ahead)
			}
			if b := st.PrefetchBytes; (b.Issued > 0) != (ahead > 0) || b.Issued < b.Used+b.Late+b.Wasted+b.Cancelled {
				t.Errorf("lookahead %d: %+v", ahead, b)
			}
		}
		if resizes < 10 {
			t.Errorf("%d resizes only", resizes)
		}
	}
}

// TestPrefillReads counts the reads of long prompts: each batch may read the experts that are not resident, once.
func TestPrefillReads(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("long prompts, to count reads")
	}
	const layers, n, topK = 6, 32, 4
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Layers: layers, Experts: n, TopK: topK, Context: 2304, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, percent := range []float64{25, 50, 95} {
		for _, c := range []struct{ tokens, batch int }{{512, 512}, {2048, 512}} {
			e := mustOpen(t, Options{Path: path, Context: 2304, Batch: c.batch, ExpertRAM: ExpertBudget{Percent: percent}, Lookahead: 2, Threads: 2})
			s, err := e.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			touched := map[[2]int]bool{}
			s.OnRoute(func(layer int, choices []int32) {
				for _, id := range choices {
					touched[[2]int{layer, int(id)}] = true
				}
			})
			rng := rand.New(rand.NewPCG(3, 4))
			for _, state := range []string{"cold", "warm"} {
				prompt := make([]int32, c.tokens)
				for i := range prompt {
					prompt[i] = int32(rng.IntN(e.Model().Config().Vocab))
				}
				s.Reset()
				clear(touched)
				before := e.cache.Stats()
				if _, err := s.Sync(ctx, prompt); err != nil {
					t.Fatal(err)
				}
				after := e.cache.Stats()
				bytes := after.DemandBytes + after.GuessBytes - before.DemandBytes - before.GuessBytes
				each := e.cache.MaxBytes() / int64(layers*n)
				ratio := float64(bytes) / float64(each) / float64(len(touched))
				// A batch reads what the arena lacks, and a little more, since what it has just read takes slots too; the
				// first may find the arena empty. The last layer of a prompt's last batch wants one token's experts only, as
				// decoding does, after which the policy holds that layer's others for less.
				lack := max(0, 1-float64(after.Slots)/float64(len(touched))) * 1.25
				bound := 1.02 + lack*float64(c.tokens/c.batch-1)
				if state == "warm" {
					bound = 0.03 + lack*float64(c.tokens/c.batch)
				}
				t.Logf("%2.0f %%, %4d tokens in batches of %4d, %s: %.3f of the %d experts touched", percent, c.tokens, c.batch, state, ratio, len(touched))
				if ratio > bound {
					t.Errorf("%.0f %%, %d tokens, batch %d, %s: %.3f times the experts touched were read, want at most %.3f", percent, c.tokens, c.batch, state, ratio, bound)
				}
			}
			s.Close()
		}
	}
}
