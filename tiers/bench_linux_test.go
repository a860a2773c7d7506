package tiers

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRandomExperts reads random experts of three pieces of 0.9 MB through the cache, eight a layer, nearly all of
// them missing: bytes per second of the whole path and processor seconds per GB.
func BenchmarkRandomExperts(b *testing.B) {
	const experts, piece, topK = 128, 900_000, 8
	name := filepath.Join(b.TempDir(), "model")
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	block := make([]byte, 3*piece)
	layer := make([]Desc, experts)
	for e := range layer {
		layer[e].ID.Expert = uint16(e)
		for p := range layer[e].Pieces { // by matrix, as GGUF stacks them
			layer[e].Pieces[p] = Piece{0, int64(p*experts+e)*piece + 32, piece}
		}
		if _, err := f.WriteAt(block, int64(e)*3*piece); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := f.WriteAt(block[:32], experts*3*piece); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	f.Close()
	for _, m := range fileStores(b) {
		b.Run(m.name, func(b *testing.B) {
			s, err := m.make([]string{name}, StoreOptions{})
			if err != nil {
				b.Fatal(err)
			}
			c, err := NewCache(Options{Store: s, Experts: [][]Desc{layer}, Slots: 2 * topK, TopK: topK, Policy: LRU})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			rng := rand.New(rand.NewPCG(1, 1))
			seconds := func() float64 {
				var u unix.Rusage
				if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
					b.Fatal(err)
				}
				return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
			}
			b.ResetTimer()
			start := seconds()
			for b.Loop() {
				r, err := c.Begin(0, distinct(rng, topK, experts))
				if err != nil {
					b.Fatal(err)
				}
				for {
					l, ok, err := r.Next(context.Background(), true)
					if err != nil {
						b.Fatal(err)
					}
					if !ok {
						break
					}
					l.Release()
				}
				r.Close()
			}
			used := seconds() - start
			st := c.Stats()
			gb := float64(st.DemandBytes) / 1e9
			b.ReportMetric(gb/b.Elapsed().Seconds(), "GB/s")
			b.ReportMetric(used/gb, "cpu-s/GB")
			b.ReportMetric(st.BytesPerSecond()/1e9, "GB/s-busy")
		})
	}
}
