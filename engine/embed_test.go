package engine

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"sync"
	"testing"

	"terrace/internal/tinymodel"
)

// TestEmbed: a text's vectors are what logits are made of; they are the same in any batch, beside others and alone, and nothing of
// them stays in the cache.
func TestEmbed(t *testing.T) {
	path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Tied: true})
	if err != nil {
		t.Fatal(err)
	}
	paths := families(t, "qwen3next", "gpt-oss", "qwen4exp")
	paths["tied"] = path
	for name, path := range paths {
		text := wave(90, 4)
		var first [4][][]float32
		for _, batch := range []int{256, 16} {
			e, pc := cached(t, Options{Path: path, Batch: batch, Slots: 3}, PromptCacheOptions{})
			s := scheduler(t, e, SchedulerOptions{Slots: 3, Cache: pc})
			ctx := context.Background()
			embed := func(how Pooling) [][]float32 {
				v, err := s.Embed(ctx, text, how)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			before := pc.Stats().Entries
			var got [4][][]float32
			for how := range got {
				got[how] = embed(Pooling(how))
			}
			if n := pc.Stats().Entries; n != before {
				t.Errorf("%s: %d entries in the cache, %d before", name, n, before)
			}
			rows, width := got[PoolNone], e.Model().Config().Embd
			if len(rows) != len(text) || len(rows[0]) != width {
				t.Fatalf("%s: %d vectors of %d", name, len(rows), len(rows[0]))
			}
			mean := make([]float32, width)
			for i := range mean {
				sum := 0.0
				for _, r := range rows {
					sum += float64(r[i])
				}
				mean[i] = float32(sum / float64(len(rows)))
			}
			for how, want := range map[Pooling][]float32{PoolMean: mean, PoolFirst: rows[0], PoolLast: rows[len(rows)-1]} {
				if v := got[how]; len(v) != 1 || !slices.Equal(v[0], want) {
					t.Errorf("%s, pooling %d: not what the vectors of the tokens say", name, how)
				}
			}
			if first[0] == nil {
				first = got
			}
			same := func(what string, how Pooling, v [][]float32) {
				if !slices.EqualFunc(v, first[how], slices.Equal[[]float32]) {
					t.Errorf("%s, %s, pooling %d: other vectors", name, what, how)
				}
			}
			for how := range got {
				same("another batch", Pooling(how), got[how])
			}
			var g sync.WaitGroup
			want, _ := alone(t, e, text, 12)
			for i := range 6 {
				g.Go(func() {
					if i%2 == 0 {
						v, err := s.Embed(ctx, text, Pooling(i/2+1))
						if err != nil {
							t.Error(err)
							return
						}
						same("beside others", Pooling(i/2+1), v)
						return
					}
					r, err := s.Do(ctx, Job{Prompt: text, Max: 12, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
					if err != nil || !slices.Equal(r.Tokens, want) {
						t.Errorf("%s: beside texts that are embedded: %v, %v, want %v", name, err, r.Tokens, want)
					}
				})
			}
			g.Wait()
			if name == "tied" {
				checkTied(t, e, text, rows[len(rows)-1])
			}
			if _, err := s.Embed(ctx, nil, PoolMean); err == nil {
				t.Error("an empty text has a vector")
			}
		}
	}
}

// checkTied makes logits of the last token's vector and the embedding, which is the output matrix too.
func checkTied(t *testing.T, e *Engine, text []int32, v []float32) {
	t.Helper()
	s := session(t, e, nil)
	if _, err := s.Sync(context.Background(), text); err != nil {
		t.Fatal(err)
	}
	logits := s.Logits()
	for i := range e.File().Tensors {
		x := &e.File().Tensors[i]
		if x.Name != "token_embd.weight" {
			continue
		}
		at := x.Extent
		f, err := os.Open(e.File().Shards[at.Shard].Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b := make([]byte, at.Length)
		if _, err := f.ReadAt(b, at.Offset); err != nil {
			t.Fatal(err)
		}
		for id := range logits {
			sum := 0.0
			for k := range v {
				sum += float64(v[k]) * float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*(id*len(v)+k):])))
			}
			if math.Abs(sum-float64(logits[id])) > 1e-4 {
				t.Fatalf("token %d: the vector gives a logit of %g, the model one of %g", id, sum, logits[id])
			}
		}
		return
	}
	t.Fatal("no embedding")
}
