package tiers

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestTableBatchAgain: a batch is used again and again, also after it was released while reads were on their way, and a
// used batch whose rows are in RAM allocates nothing.
func TestTableBatchAgain(t *testing.T) {
	o := writeTable(t, 20000, 90, 0)
	o.Depth = 2
	var slow atomic.Bool
	o.readAt = func(f *os.File, b []byte, off int64) (int, error) {
		if slow.Load() {
			time.Sleep(5 * time.Millisecond)
		}
		return f.ReadAt(b, off)
	}
	tab := openTable(t, o)
	b := tab.NewBatch()
	ctx := context.Background()
	whole, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(rows []int64) {
		t.Helper()
		if err := b.Want(rows); err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		got, err := b.Rows(ctx)
		if err != nil || len(got) != len(rows) {
			t.Fatalf("%d rows of %d: %v", len(got), len(rows), err)
		}
		for i, r := range rows {
			if string(got[i]) != string(whole[o.Offset+r*90:][:90]) {
				t.Fatalf("row %d is wrong", r)
			}
		}
	}
	for round := range int64(30) {
		rows := []int64{round, 19999 - round, 7777, 5000 + 100*round, 7777}
		check(rows[:1+round%5])
		slow.Store(true)
		if err := b.Want([]int64{100 * round, 19000 - 300*round, 40 * round, 9000 + 70*round}); err != nil {
			t.Fatal(err)
		}
		if round%3 == 0 {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := b.Rows(gone); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		b.Release()
		slow.Store(false)
	}
	if err := b.Want([]int64{20000}); err == nil {
		t.Error("row 20000 of 20000 was taken")
	}
	if raceOn {
		return
	}
	rows := []int64{1, 2, 3, 4444, 3}
	check(rows)
	tab.pages.index.Wait()
	check(rows)
	if n := testing.AllocsPerRun(100, func() {
		if err := b.Want(rows); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Rows(ctx); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations for rows in RAM", n)
	}
}
