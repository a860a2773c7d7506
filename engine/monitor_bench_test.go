package engine

import (
	"testing"
	"time"

	"terrace/tiers"
)

// BenchmarkMonitor is what seeing costs in a model of 60 layers of 512 experts, 10 of them used by a token: a layer of a decode
// step, and the copy that watchers get ten times a second at most.
func BenchmarkMonitor(b *testing.B) {
	table := make([][]tiers.Desc, 60)
	for l := range table {
		table[l] = make([]tiers.Desc, 512)
		for e := range table[l] {
			table[l][e] = tiers.Desc{ID: tiers.ExpertID{Layer: uint16(l), Expert: uint16(e)}, Pieces: [3]tiers.Piece{{Length: 4096}, {Length: 4096}, {Length: 4096}}}
		}
	}
	st, err := tiers.NewMem(tiers.Mem{Fill: func(*tiers.Desc, int, []byte) error { return nil }}, tiers.StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	c, err := tiers.NewCache(tiers.Options{Store: st, Experts: table, Slots: 1000, TopK: 10})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	m := newMonitor(c, table, 10)
	choices := []int32{1, 50, 99, 148, 197, 246, 295, 344, 393, 442}
	b.Run("layer", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			m.routed(i%60, choices)
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			m.mu.Lock()
			m.publish(time.Now())
			m.mu.Unlock()
		}
	})
}
