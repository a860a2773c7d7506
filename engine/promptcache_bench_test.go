package engine

import (
	"context"
	"testing"

	"terrace/internal/tinymodel"
	"terrace/model"
)

// BenchmarkPromptCache is what 4096 positions of 32 KiB take to be kept, and to be brought back from RAM and from disk, where the
// files may still be in the system's cache.
func BenchmarkPromptCache(b *testing.B) {
	path, remove, err := tinymodel.Temp(tinymodel.Options{Context: 4200, Layers: 8, KVHeads: 4, HeadDim: 256, Hidden: 64, Heads: 4})
	if err != nil {
		b.Fatal(err)
	}
	defer remove()
	const n = 4096
	talk := wave(n+1, 1)
	e, err := Open(Options{Path: path, Context: 4200, CacheRAM: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	state := func() *model.State {
		st, err := e.model.NewState(4200, e.opt.KeyType, e.opt.ValType, 0)
		if err != nil {
			b.Fatal(err)
		}
		return st
	}
	from, to := state(), state()
	defer from.Free()
	defer to.Free()
	if err := from.Adopt(talk[:n], 0, nil); err != nil { // what it holds does not matter here
		b.Fatal(err)
	}
	dir := b.TempDir()
	open := func(dir string) *PromptCache {
		pc, err := e.NewPromptCache(PromptCacheOptions{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		return pc
	}
	bytes := int64(from.RowsSize(n, false))
	b.Run("keep", func(b *testing.B) {
		b.SetBytes(bytes)
		for range b.N {
			b.StopTimer()
			pc := open("")
			b.StartTimer()
			pc.Keep(from, talk[:n], MarkEnd)
			b.StopTimer()
			pc.Close(context.Background())
		}
	})
	restore := func(b *testing.B, pc *PromptCache) {
		if got, err := pc.Restore(context.Background(), to, talk[:to.Pos()], talk); err != nil || got != n {
			b.Fatalf("%d positions, %v", got, err)
		}
	}
	b.Run("restore from RAM", func(b *testing.B) {
		b.SetBytes(bytes)
		pc := open("")
		pc.Keep(from, talk[:n], MarkEnd)
		for range b.N {
			to.Truncate(0)
			restore(b, pc)
		}
		pc.Close(context.Background())
	})
	b.Run("restore from disk", func(b *testing.B) {
		b.SetBytes(bytes)
		pc := open(dir)
		pc.Keep(from, talk[:n], MarkEnd)
		pc.Close(context.Background())
		for range b.N {
			b.StopTimer()
			to.Truncate(0)
			pc := open(dir)
			b.StartTimer()
			restore(b, pc)
			b.StopTimer()
			pc.Close(context.Background())
		}
	})
}
