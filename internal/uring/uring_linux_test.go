package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"terrace/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// blocks writes a file of n blocks, each filled with its number, and opens it directly.
func blocks(t *testing.T, n int) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "f")
	var b []byte
	for i := range n {
		b = append(b, bytes.Repeat([]byte{byte(i)}, host.IOAlign)...)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	f, _, err := host.OpenDirect(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func alloc(t *testing.T, n int) []byte {
	t.Helper()
	b, err := host.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Free(b) })
	return b
}

// open makes a ring or skips where the system forbids it.
func open(t *testing.T, o Options) *Ring {
	t.Helper()
	r, err := Open(o)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRead keeps a ring full from several goroutines, with and without registration, attaching and detaching memory on
// the way, and checks every byte.
func TestRead(t *testing.T) {
	const n, each, goroutines = 64, 300, 4
	f := blocks(t, n)
	for _, register := range []bool{true, false} {
		var results [goroutines]chan int32
		for i := range results {
			results[i] = make(chan int32, 1)
		}
		var batches atomic.Int64
		r := open(t, Options{Entries: goroutines, Files: []*os.File{f}, NoRegister: !register,
			Complete: func(tag uint64, n int32) { results[tag] <- n }, Batch: func() { batches.Add(1) }})
		if files, err := r.Registers(); files != register || (err == nil) != register {
			t.Errorf("registered files: %v, memory: %v, want %v", files, err, register)
		}
		var wg sync.WaitGroup
		var known atomic.Int64
		for g := range goroutines {
			mem := alloc(t, host.IOAlign)
			wg.Go(func() {
				b := mem
				for i := range each {
					switch {
					case i%50 == 0:
						r.Attach(g, b)
					case i%50 == 40: // other memory behind the same number next time
						r.Detach(g)
						b = alloc(t, host.IOAlign)
					}
					block := (i*7 + g*13) % n
					if r.Read(0, int64(block*host.IOAlign), b, g, uint64(g)) {
						known.Add(1)
					}
					r.Flush()
					if i%2 == 0 {
						r.Poll()
					}
					if got := <-results[g]; got != host.IOAlign {
						t.Errorf("read of block %d: %d", block, got)
						return
					}
					if b[0] != byte(block) || b[len(b)-1] != byte(block) {
						t.Errorf("block %d holds %d and %d", block, b[0], b[len(b)-1])
						return
					}
				}
			})
		}
		wg.Wait()
		if want := int64(goroutines * each * 4 / 5); register && known.Load() != want || !register && known.Load() != 0 {
			t.Errorf("%d reads into registered memory, want %d", known.Load(), want)
		}
		if batches.Load() == 0 {
			t.Error("no batch was announced")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		r.Poll() // harmless after Close
		if err := r.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}
}

// TestEnds reads at and behind the end of a file, and from what cannot be read.
func TestEnds(t *testing.T) {
	f := blocks(t, 3)
	if err := unix.Truncate(f.Name(), 2*host.IOAlign+100); err != nil {
		t.Fatal(err)
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	defer pw.Close()
	mem := alloc(t, 2*host.IOAlign)
	result := make(chan int32, 1)
	r := open(t, Options{Entries: 1, Files: []*os.File{f, pw}, Complete: func(_ uint64, n int32) { result <- n }})
	defer r.Close()
	for _, tt := range []struct {
		file int
		off  int64
		want int32
	}{{0, host.IOAlign, host.IOAlign + 100}, {0, 2 * host.IOAlign, 100}, {0, 4 * host.IOAlign, 0}, {1, 0, -int32(unix.EBADF)}} {
		r.Read(tt.file, tt.off, mem, -1, 1)
		r.Flush()
		if got := <-result; got != tt.want {
			t.Errorf("file %d at %d: %d, want %d", tt.file, tt.off, got, tt.want)
		}
	}
}

// TestCloseWaits: Close returns when what was queued has been completed.
func TestCloseWaits(t *testing.T) {
	f := blocks(t, 8)
	mem := alloc(t, 8*host.IOAlign)
	var done atomic.Int64
	r := open(t, Options{Entries: 8, Files: []*os.File{f}, Complete: func(uint64, int32) {
		time.Sleep(time.Millisecond)
		done.Add(1)
	}})
	for i := range 8 {
		r.Read(0, int64(i*host.IOAlign), mem[i*host.IOAlign:][:host.IOAlign], -1, uint64(i))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if done.Load() != 8 {
		t.Errorf("%d of 8 reads were completed before Close returned", done.Load())
	}
}

// TestAttachLimits: what the kernel's table cannot hold is read all the same, and said; slots may have any number.
func TestAttachLimits(t *testing.T) {
	f := blocks(t, 2)
	mem := alloc(t, host.IOAlign)
	result := make(chan int32, 1)
	r := open(t, Options{Entries: 1, Files: []*os.File{f}, Complete: func(_ uint64, n int32) { result <- n }})
	defer r.Close()
	read := func(slot int) (known bool) {
		mem[0] = 77
		known = r.Read(0, host.IOAlign, mem, slot, 1)
		r.Flush()
		if got := <-result; got != host.IOAlign || mem[0] != 1 {
			t.Errorf("slot %d: %d bytes, the first %d", slot, got, mem[0])
		}
		return known
	}
	const first = 3 * Slots
	for i := range Slots {
		r.Attach(first+i, mem)
	}
	if !read(first) || !read(first+Slots-1) {
		t.Error("a slot within the table was not registered")
	}
	if _, err := r.Registers(); err != nil {
		t.Error(err)
	}
	r.Attach(0, mem)
	if read(0) {
		t.Error("one slot more than the table has was registered")
	}
	if _, err := r.Registers(); err == nil {
		t.Error("nothing was said about it")
	}
	r.Detach(first)
	if read(first) {
		t.Error("a detached slot counts as registered")
	}
	r.Detach(0)
	r.Attach(0, mem)
	if !read(0) {
		t.Error("a place that came back is not used")
	}
	r.Detach(1) // of no effect
	for _, bad := range []func(){func() { r.Attach(0, mem) }, func() { r.Attach(1, nil) }, func() { r.Read(0, 0, alloc(t, host.IOAlign), 0, 1) }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a broken contract went unnoticed")
				}
			}()
			bad()
		}()
	}
}

func BenchmarkRead(b *testing.B) {
	name := filepath.Join(b.TempDir(), "f")
	if err := os.WriteFile(name, make([]byte, host.IOAlign), 0o644); err != nil {
		b.Fatal(err)
	}
	f, _, err := host.OpenDirect(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	mem, err := host.Alloc(host.IOAlign)
	if err != nil {
		b.Fatal(err)
	}
	defer host.Free(mem)
	result := make(chan int32, 1)
	r, err := Open(Options{Entries: 1, Files: []*os.File{f}, Complete: func(_ uint64, n int32) { result <- n }})
	if err != nil {
		b.Skip(err)
	}
	defer r.Close()
	b.ReportAllocs()
	for b.Loop() {
		r.Read(0, 0, mem, -1, 1)
		r.Flush()
		<-result
	}
}
