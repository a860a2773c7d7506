package tiers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// TableOptions say where a table lies and what it may take. Path, RowBytes and Rows are always needed.
type TableOptions struct {
	Path     string
	Tensor   string // its name, for errors
	Offset   int64  // of row 0 in the file, bytes
	RowBytes int
	Rows     int64

	Budget int64 // bytes of cached pages and of buffers for reads under way; 64 MiB when 0
	Depth  int   // reads at the same time; defaultDepth when 0

	// For tests: what stands in for os.File.ReadAt.
	readAt func(f *os.File, b []byte, off int64) (int, error)
}

// Table gives rows of a tensor far larger than RAM, such as an n-gram table, whose row numbers are known before a forward
// pass: they are asked for at its start and waited for where they are needed. Rows are small and lie anywhere, so what is
// read and kept are pages; neighbours are read together, and many reads are under way at once. Several goroutines may
// use a table.
type Table struct {
	o     TableOptions
	file  *os.File
	was   host.Stamp
	first int64 // page of the file's that row 0 begins in
	pages *pageCache

	mu     sync.Mutex
	cond   sync.Cond
	queue  []*tableRun // to be read, oldest first, from place head on
	head   int
	closed bool
	wg     sync.WaitGroup
	bufs   []byte // one of runBytes for each reader

	rows, hits, reads, bytes, failed atomic.Int64
}

// TableStats counts what a table did since it was opened.
type TableStats struct {
	Rows   int64 // asked for
	Hits   int64 // of these, without a read
	Reads  int64 // calls to the system
	Bytes  int64 // read, whole pages
	Errors int64 // reads that failed
	Cached int64 // bytes of pages in RAM now
}

const (
	tablePage = host.IOAlign // bytes that are read and kept together
	runPages  = 16           // pages read in one call, at most
	runBytes  = runPages * tablePage
	minPages  = 64 // a budget that holds less is refused
)

// RowError says which row did not come.
type RowError struct {
	File, Tensor string
	Row, Offset  int64 // the row's number, and where it begins in the file
	Wanted, Got  int64 // bytes of the row
	Err          error // the system's error, or nil when the read came short
}

func (e *RowError) Error() string {
	s := fmt.Sprintf("%s: tensor %q: row %d: wanted %d bytes at offset %d, got %d", e.File, e.Tensor, e.Row, e.Wanted, e.Offset, e.Got)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *RowError) Unwrap() error {
	if e.Err == nil {
		return io.ErrUnexpectedEOF
	}
	return e.Err
}

// defaultDepth is the number of reads at the same time where options do not say.
const defaultDepth = 32

// leastTable is the smallest budget for so many reads at a time.
func leastTable(depth int) int64 { return int64(depth)*runBytes + indexCost + minPages*pageCost }

// TableWhole is a budget that a table of so many bytes fits in whole, with the default depth: more is of no use.
func TableWhole(length int64) int64 {
	if length < 0 || length > 1<<48 {
		length = 1 << 48
	}
	pages := length/tablePage + 2 // it begins and ends inside a page
	return leastTable(defaultDepth) + (pages+max(pages/15, 8)+1)*pageCost
}

// OpenTable opens the file, past the page cache where that is possible, and takes the memory of the budget as it is used.
func OpenTable(o TableOptions) (*Table, error) {
	if o.Budget == 0 {
		o.Budget = 64 << 20
	}
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	if o.readAt == nil {
		o.readAt = (*os.File).ReadAt
	}
	least := leastTable(o.Depth)
	switch {
	case o.RowBytes < 1 || o.RowBytes > runBytes/2:
		return nil, fmt.Errorf("%s: tensor %q: rows of %d bytes, want 1 to %d", o.Path, o.Tensor, o.RowBytes, runBytes/2)
	case o.Rows < 1 || o.Offset < 0 || o.Rows > (1<<62)/int64(o.RowBytes):
		return nil, fmt.Errorf("%s: tensor %q: %d rows at offset %d", o.Path, o.Tensor, o.Rows, o.Offset)
	case o.Depth < 1 || o.Depth > 1024:
		return nil, fmt.Errorf("%s: tensor %q: %d reads at a time, want 1 to 1024", o.Path, o.Tensor, o.Depth)
	case o.Budget < least:
		return nil, fmt.Errorf("%s: tensor %q: a budget of %d bytes, want at least %d for %d reads at a time and %d pages", o.Path, o.Tensor, o.Budget,
			least, o.Depth, minPages)
	}
	t := &Table{o: o, first: o.Offset / tablePage}
	t.cond.L = &t.mu
	f, _, err := host.OpenDirect(o.Path)
	if err != nil {
		return nil, err
	}
	t.file = f
	if t.was, err = host.FileStamp(f); err == nil && o.Offset+o.Rows*int64(o.RowBytes) > t.was.Size {
		err = fmt.Errorf("%s: tensor %q ends at byte %d, the file at %d", o.Path, o.Tensor, o.Offset+o.Rows*int64(o.RowBytes), t.was.Size)
	}
	if err == nil {
		t.bufs, err = host.Alloc(o.Depth * runBytes)
	}
	if err == nil {
		t.pages, err = newPageCache(int((o.Budget - int64(len(t.bufs)) - indexCost) / pageCost))
	}
	if err != nil {
		host.Free(t.bufs)
		f.Close()
		return nil, err
	}
	for i := range o.Depth {
		buf := t.bufs[i*runBytes : (i+1)*runBytes]
		t.wg.Go(func() { t.work(buf) })
	}
	return t, nil
}

// Batch asks for rows and holds them: rows on their way, then rows. It serves one caller and one question at a time, and
// may be used again after Release; its memory stays, so that a batch used before allocates nothing.
type Batch struct {
	t       *Table
	want    []int64
	data    []byte // the rows, one after the other
	rows    [][]byte
	missing []part
	runs    []tableRun
	lent    bool // between Want and Release

	left atomic.Int32  // runs that are not over
	over chan struct{} // gets one element when left becomes 0
	here bool          // it was taken
	mu   sync.Mutex
	err  error // the first
}

// part is a piece of a row in one page: a row crosses into the next page now and then.
type part struct {
	page int64 // counted from Table.first
	row  int32 // place in Batch.want
}

// tableRun is neighbouring pages that are read in one call, with what a batch wants of them.
type tableRun struct {
	b     *Batch
	page  int64
	pages int
	parts []part
}

// cut gives the overlap of the i-th row wanted with a page: where it lies in the page and in the row.
func (b *Batch) cut(i int32, page int64) (inPage, inRow, n int) {
	t := b.t
	row := t.o.Offset + b.want[i]*int64(t.o.RowBytes)
	start := (t.first + page) * tablePage
	from, to := max(row, start), min(row+int64(t.o.RowBytes), start+tablePage)
	return int(from - start), int(from - row), int(to - from)
}

// NewBatch makes an empty batch.
func (t *Table) NewBatch() *Batch { return &Batch{t: t, over: make(chan struct{}, 1), here: true} }

// Want asks for rows with a batch of its own.
func (t *Table) Want(rows []int64) (*Batch, error) {
	b := t.NewBatch()
	return b, b.Want(rows)
}

// Want starts to bring rows, in any order, with repeats as they come, and returns at once: what is cached is copied, the
// rest is read in the order of the file. After a batch was released early it first waits for the reads that had begun.
func (b *Batch) Want(rows []int64) error {
	t, size := b.t, b.t.o.RowBytes
	if b.lent {
		panic("tiers: Want of a batch that was not released")
	}
	if !b.here {
		<-b.over
		b.here = true
	}
	for _, r := range rows {
		if r < 0 || r >= t.o.Rows {
			return fmt.Errorf("%s: tensor %q: row %d of %d", t.o.Path, t.o.Tensor, r, t.o.Rows)
		}
	}
	b.err, b.lent = nil, true
	b.want = append(b.want[:0], rows...)
	if n := len(rows) * size; n > len(b.data) {
		b.data, b.rows = make([]byte, n), make([][]byte, len(rows))
		for i := range b.rows {
			b.rows[i] = b.data[i*size : (i+1)*size : (i+1)*size]
		}
	}
	b.missing, b.runs = b.missing[:0], b.runs[:0]
	for i, r := range rows {
		first := (t.o.Offset+r*int64(size))/tablePage - t.first
		last := (t.o.Offset+(r+1)*int64(size)-1)/tablePage - t.first
		n := len(b.missing)
		for p := first; p <= last; p++ {
			inPage, inRow, length := b.cut(int32(i), p)
			if !t.pages.copy(p, inPage, b.rows[i][inRow:inRow+length]) {
				b.missing = append(b.missing, part{p, int32(i)})
			}
		}
		if len(b.missing) == n {
			t.hits.Add(1)
		}
	}
	t.rows.Add(int64(len(rows)))
	if len(b.missing) == 0 {
		return nil
	}
	slices.SortFunc(b.missing, func(a, b part) int {
		if a.page != b.page {
			return int(min(max(a.page-b.page, -1), 1))
		}
		return int(a.row - b.row)
	})
	for i, p := range b.missing {
		if n := len(b.runs); n > 0 {
			if r := &b.runs[n-1]; p.page <= r.page+int64(r.pages) && p.page < r.page+runPages {
				r.pages = int(p.page-r.page) + 1
				r.parts = b.missing[i-len(r.parts) : i+1]
				continue
			}
		}
		b.runs = append(b.runs, tableRun{b: b, page: p.page, pages: 1, parts: b.missing[i : i+1]})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		b.lent = false
		return fmt.Errorf("%s: tensor %q: %w", t.o.Path, t.o.Tensor, ErrClosed)
	}
	b.here = false
	b.left.Store(int32(len(b.runs)))
	for i := range b.runs {
		t.queue = append(t.queue, &b.runs[i])
	}
	for range min(len(b.runs), t.o.Depth) {
		t.cond.Signal()
	}
	return nil
}

// Rows waits for all rows and gives them in the order they were asked for; they are valid until Release. An error names
// tensor, row and offset.
func (b *Batch) Rows(ctx context.Context) ([][]byte, error) {
	if !b.lent {
		panic("tiers: rows of a batch that was released")
	}
	if !b.here {
		select {
		case <-b.over:
		default:
			select {
			case <-b.over:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		b.here = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	return b.rows[:len(b.want)], nil
}

// Release ends the question; what it still waits for and has not begun is not read. The rows must not be used afterwards.
func (b *Batch) Release() {
	if !b.lent {
		return
	}
	b.lent = false
	if b.here {
		return
	}
	t := b.t
	t.mu.Lock()
	n := len(t.queue)
	rest := slices.DeleteFunc(t.queue[t.head:], func(r *tableRun) bool { return r.b == b })
	t.queue = t.queue[:t.head+len(rest)]
	n -= len(t.queue)
	t.mu.Unlock()
	b.end(n, nil)
}

// end tells that n runs are over.
func (b *Batch) end(n int, err error) {
	if err != nil {
		b.mu.Lock()
		if b.err == nil {
			b.err = err
		}
		b.mu.Unlock()
	}
	if n > 0 && b.left.Add(int32(-n)) == 0 {
		b.over <- struct{}{}
	}
}

// work reads runs into buf until the table is closed.
func (t *Table) work(buf []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if t.closed {
			return
		}
		if t.head == len(t.queue) {
			t.queue, t.head = t.queue[:0], 0
			t.cond.Wait()
			continue
		}
		r := t.queue[t.head]
		t.head++
		t.mu.Unlock()
		err := t.read(r, buf)
		if err != nil {
			t.failed.Add(1)
		}
		r.b.end(1, err)
		t.mu.Lock()
	}
}

// read brings a run, copies what its batch wants of it, and keeps its pages.
func (t *Table) read(r *tableRun, buf []byte) error {
	buf = buf[:r.pages*tablePage]
	at := (t.first + r.page) * tablePage
	n, err := t.o.readAt(t.file, buf, at)
	if fault.On {
		n, err = fault.Read(buf, n, err)
	}
	t.reads.Add(1)
	t.bytes.Add(int64(n))
	if errors.Is(err, io.EOF) || n%host.IOAlign != 0 && errors.Is(err, syscall.EINVAL) { // the file's last block, as in NewPread
		err = nil
	}
	for _, p := range r.parts {
		inPage, inRow, length := r.b.cut(p.row, p.page)
		from := int(p.page-r.page)*tablePage + inPage
		if from+length > n {
			row := r.b.want[p.row]
			return &RowError{File: t.o.Path, Tensor: t.o.Tensor, Row: row, Offset: t.o.Offset + row*int64(t.o.RowBytes), Wanted: int64(t.o.RowBytes),
				Got: int64(inRow + min(max(0, n-from), length)), Err: err}
		}
	}
	if now, err := host.FileStamp(t.file); err != nil || now != t.was {
		row := r.b.want[r.parts[0].row]
		if err == nil {
			err = fmt.Errorf("the file was changed while it was in use: it has %d bytes and had %d", now.Size, t.was.Size)
		}
		return &RowError{File: t.o.Path, Tensor: t.o.Tensor, Row: row, Offset: t.o.Offset + row*int64(t.o.RowBytes), Wanted: int64(t.o.RowBytes), Err: err}
	}
	for _, p := range r.parts {
		inPage, inRow, length := r.b.cut(p.row, p.page)
		from := int(p.page-r.page)*tablePage + inPage
		size := t.o.RowBytes
		copy(r.b.data[int(p.row)*size+inRow:], buf[from:from+length])
	}
	// Of the table's last page the file may hold a part only; its rows are all in that part.
	end := t.o.Offset + t.o.Rows*int64(t.o.RowBytes)
	for i := range r.pages {
		if from := i * tablePage; min(at+int64(from)+tablePage, end) <= at+int64(n) {
			t.pages.put(r.page+int64(i), buf[from:from+tablePage])
		}
	}
	return nil
}

// Stats is a snapshot of the counters.
func (t *Table) Stats() TableStats {
	return TableStats{Rows: t.rows.Load(), Hits: t.hits.Load(), Reads: t.reads.Load(), Bytes: t.bytes.Load(), Errors: t.failed.Load(), Cached: t.pages.bytes()}
}

// Close fails the batches that wait, waits for reads under way and frees the memory. Rows already given stay valid.
func (t *Table) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	rest := t.queue[t.head:]
	t.queue, t.head = nil, 0
	t.cond.Broadcast()
	t.mu.Unlock()
	for _, r := range rest {
		r.b.end(1, fmt.Errorf("%s: tensor %q: %w", t.o.Path, t.o.Tensor, ErrClosed))
	}
	t.wg.Wait()
	return errors.Join(t.pages.close(), host.Free(t.bufs), t.file.Close())
}
