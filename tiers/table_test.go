package tiers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fillRow makes the bytes of a row from its number.
func fillRow(row int64, b []byte) {
	x := mix(uint64(row) + 1)
	for i := range b {
		if i%8 == 0 {
			x = mix(x + uint64(i))
		}
		b[i] = byte(x >> (8 * (i % 8)))
	}
}

// writeTable writes a file with a table of rows at an odd offset.
func writeTable(t testing.TB, rows int64, rowBytes int, tail int) TableOptions {
	t.Helper()
	o := TableOptions{Path: filepath.Join(t.TempDir(), "table.gguf"), Tensor: "per_layer_token_embd.weight", Offset: 4096 + 736, RowBytes: rowBytes, Rows: rows}
	b := make([]byte, o.Offset+rows*int64(rowBytes)+int64(tail))
	for r := range rows {
		fillRow(r, b[o.Offset+r*int64(rowBytes):][:rowBytes])
	}
	if err := os.WriteFile(o.Path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return o
}

func openTable(t testing.TB, o TableOptions) *Table {
	t.Helper()
	tab, err := OpenTable(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// get asks for rows and compares each byte.
func get(tab *Table, rows []int64) error {
	b, err := tab.Want(rows)
	if err != nil {
		return err
	}
	defer b.Release()
	got, err := b.Rows(context.Background())
	if err != nil {
		return err
	}
	if len(got) != len(rows) {
		return fmt.Errorf("%d rows, want %d", len(got), len(rows))
	}
	want := make([]byte, tab.o.RowBytes)
	for i, r := range rows {
		fillRow(r, want)
		if !bytes.Equal(got[i], want) {
			return fmt.Errorf("row %d is wrong: %x, want %x", r, got[i], want)
		}
	}
	return nil
}

// TestTableRows: every row alone, all together, backwards and repeated, with rows that cross pages and end with the file.
func TestTableRows(t *testing.T) {
	for _, size := range []int{1, 90, 170, 4096, 5000} {
		for _, tail := range []int{0, 10000} {
			rows := int64(max(60, 100000/size))
			tab := openTable(t, writeTable(t, rows, size, tail))
			var all []int64
			for r := range rows {
				all = append(all, rows-1-r)
			}
			for _, list := range [][]int64{{}, {0}, {rows - 1}, {7, 7, 3, 7}, all, append(all, all...)} {
				if err := get(tab, list); err != nil {
					t.Fatalf("rows of %d bytes: %v", size, err)
				}
			}
			if st := tab.Stats(); st.Rows != 6+3*rows || st.Errors != 0 || st.Bytes == 0 {
				t.Errorf("%+v", st)
			}
		}
	}
}

// TestTableMerges: the rows of neighbouring pages come in few long reads, those far apart in one page each.
func TestTableMerges(t *testing.T) {
	o := writeTable(t, 40000, 100, 0) // 4 MB, 977 pages
	var mu sync.Mutex
	var sizes []int
	o.readAt = func(f *os.File, b []byte, off int64) (int, error) {
		mu.Lock()
		sizes = append(sizes, len(b))
		mu.Unlock()
		return f.ReadAt(b, off)
	}
	tab := openTable(t, o)
	var near []int64
	for r := range int64(1600) { // 160,000 bytes, 40 pages
		near = append(near, 5000+(r*7)%1600)
	}
	if err := get(tab, near); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 3 || sizes[0]+sizes[1]+sizes[2] > 41*tablePage {
		t.Errorf("40 neighbouring pages came in reads of %v bytes, want 3 of up to %d", sizes, runBytes)
	}
	sizes = nil
	if err := get(tab, []int64{20000, 30000, 39000, 20001}); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 3 {
		t.Errorf("three rows far apart came in reads of %v bytes", sizes)
	}
	for _, n := range sizes {
		if n > 2*tablePage {
			t.Errorf("a read of %d bytes for one row", n)
		}
	}
	tab.pages.index.Wait()
	sizes = nil
	if err := get(tab, near); err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 0 || tab.Stats().Hits != 1600 {
		t.Errorf("cached rows were read again: %v, %+v", sizes, tab.Stats())
	}
}

// TestTableRandom reads at random from several goroutines through a cache far too small, then checks that no frame was
// lost and that the budget held.
func TestTableRandom(t *testing.T) {
	o := writeTable(t, 100000, 90, 0) // 9 MB
	o.Depth, o.Budget = 4, 4*runBytes+indexCost+200*pageCost
	tab := openTable(t, o)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 7))
			z := rand.NewZipf(rng, 1.1, 10, uint64(o.Rows-1))
			for range 150 {
				rows := make([]int64, 1+rng.IntN(40))
				for i := range rows {
					rows[i] = int64(mix(z.Uint64()) % uint64(o.Rows))
				}
				if rng.IntN(5) == 0 { // given up
					b, err := tab.Want(rows)
					if err != nil {
						t.Error(err)
						return
					}
					b.Release()
					continue
				}
				if err := get(tab, rows); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	tab.pages.index.Wait()
	st := tab.Stats()
	if st.Hits == 0 || st.Cached > 200*tablePage || st.Cached < 100*tablePage {
		t.Errorf("%+v", st)
	}
	held := map[int32]bool{}
	tab.pages.index.IterValues(func(v int32) bool { held[v] = true; return false })
	tab.pages.mu.Lock()
	defer tab.pages.mu.Unlock()
	if used := len(tab.pages.page) - len(tab.pages.free); used != len(held) {
		t.Errorf("%d frames in use, the index holds %d", used, len(held))
	}
}

// TestTableErrors: the error of the system and a short read name tensor, row, offset and both numbers; others get theirs,
// and a later try works.
func TestTableErrors(t *testing.T) {
	o := writeTable(t, 10000, 90, 0)
	var how atomic.Int32
	bad := int64(5000)
	at := o.Offset + bad*90
	o.readAt = func(f *os.File, b []byte, off int64) (int, error) {
		n, err := f.ReadAt(b, off)
		if off <= at && at < off+int64(len(b)) {
			switch how.Load() {
			case 1:
				return 0, syscall.EIO
			case 2:
				return int(at-off) + 10, nil
			case 3:
				return 0, io.EOF
			}
		}
		return n, err
	}
	tab := openTable(t, o)
	for i := int32(1); i <= 3; i++ {
		how.Store(i)
		err := get(tab, []int64{1, bad, 9999})
		var re *RowError
		if !errors.As(err, &re) {
			t.Fatalf("%v", err)
		}
		got := map[int32]int64{1: 0, 2: 10, 3: 0}[i]
		// A page holds the ends of several rows: the first that is not whole is named.
		if re.Row > bad || re.Row < bad-50 || i == 2 && (re.Row != bad && re.Row != bad-1) || re.Tensor != o.Tensor || re.Wanted != 90 || re.Row == bad && (re.Got != got || re.Offset != at) {
			t.Errorf("%+v", re)
		}
		if i == 1 && !errors.Is(err, syscall.EIO) || i != 1 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		for _, w := range []string{o.Path, o.Tensor, fmt.Sprint(re.Row), fmt.Sprint(re.Offset), "90"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want %q in it", err, w)
			}
		}
		if err := get(tab, []int64{1, 9999}); err != nil {
			t.Errorf("others: %v", err)
		}
	}
	how.Store(0)
	if err := get(tab, []int64{1, bad, 9999}); err != nil {
		t.Errorf("tried again: %v", err)
	}
	if _, err := tab.Want([]int64{10000}); err == nil || !strings.Contains(err.Error(), "row 10000 of 10000") {
		t.Errorf("a row that is not there: %v", err)
	}
	if _, err := tab.Want([]int64{-1}); err == nil {
		t.Error("row -1 is there")
	}
}

// TestTableChanged: rows of a file that was written to or cut are not believed.
func TestTableChanged(t *testing.T) {
	o := writeTable(t, 10000, 90, 0)
	tab := openTable(t, o)
	if err := get(tab, []int64{5}); err != nil {
		t.Fatal(err)
	}
	tab.pages.index.Wait()
	time.Sleep(10 * time.Millisecond)
	if err := os.Truncate(o.Path, 400000); err != nil {
		t.Skip(err)
	}
	for _, r := range []int64{2000, 9999} {
		if err := get(tab, []int64{r}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("row %d", r)) {
			t.Errorf("row %d of a cut file: %v", r, err)
		}
	}
	if err := get(tab, []int64{5}); err != nil {
		t.Errorf("a row in RAM: %v", err)
	}
}

func TestTableRefuses(t *testing.T) {
	good := writeTable(t, 1000, 90, 0)
	for _, x := range []struct {
		change func(o *TableOptions)
		want   string
	}{
		{func(o *TableOptions) { o.Rows = 1001 }, "ends at byte"},
		{func(o *TableOptions) { o.RowBytes = 0 }, "rows of 0 bytes"},
		{func(o *TableOptions) { o.RowBytes = 1 << 20 }, "rows of 1048576 bytes"},
		{func(o *TableOptions) { o.Rows = 0 }, "0 rows"},
		{func(o *TableOptions) { o.Rows = 1 << 62 }, "rows"},
		{func(o *TableOptions) { o.Offset = -1 }, "offset -1"},
		{func(o *TableOptions) { o.Budget = 1000 }, "budget of 1000 bytes"},
		{func(o *TableOptions) { o.Depth = 2000 }, "2000 reads"},
		{func(o *TableOptions) { o.Path += "x" }, good.Path + "x"},
	} {
		o := good
		x.change(&o)
		if tab, err := OpenTable(o); err == nil {
			tab.Close()
			t.Errorf("opened %+v", o)
		} else if !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v: want %q in it", err, x.want)
		}
	}
}

// TestTableClose: batches under way end, with rows or with an error; nothing is left running.
func TestTableClose(t *testing.T) {
	o := writeTable(t, 10000, 90, 0)
	o.Depth = 1
	gate := make(chan struct{})
	o.readAt = func(f *os.File, b []byte, off int64) (int, error) { <-gate; return f.ReadAt(b, off) }
	before := runtime.NumGoroutine()
	tab, err := OpenTable(o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := tab.Want([]int64{1, 3000, 6000})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Rows(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(gate) })
	if err := tab.Close(); err != nil {
		t.Error(err)
	}
	if _, err := b.Rows(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := tab.Want([]int64{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
	if err := tab.Close(); err != nil {
		t.Error(err)
	}
	for until := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// TestTableMemory: what the index takes of the Go heap is within what a page is said to cost.
func TestTableMemory(t *testing.T) {
	const frames = 20000
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c, err := newPageCache(frames)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	page := make([]byte, tablePage)
	for i := range int64(2 * frames) {
		binary.LittleEndian.PutUint64(page, uint64(i))
		c.put(i, page)
		if i%1000 == 0 {
			c.index.Wait()
		}
	}
	c.index.Wait()
	if took := heap() - before; took > indexCost+frames*(pageCost-tablePage) {
		t.Errorf("%d bytes of the Go heap for %d frames, counted are %d", took, frames, indexCost+frames*(pageCost-tablePage))
	} else {
		t.Logf("%d bytes of the Go heap for %d frames: %.0f each", took, frames, float64(took)/frames)
	}
	if c.bytes() > frames*tablePage || c.bytes() < frames/2*tablePage {
		t.Errorf("%d bytes of pages", c.bytes())
	}
	runtime.KeepAlive(c)
}
