package tiers

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/internal/uring"
)

// uringStore reads with io_uring: whoever queues a read hands it to the kernel at once, and the ring's goroutine, or a
// waiting request through Poll, picks up what is done and starts what is next.
type uringStore struct {
	queue
	fs   fileSet
	ring *uring.Ring
	log  *slog.Logger
	once sync.Once

	result func(n int32) int32 // StoreOptions.result

	ops  []flight // under way, by tag
	free []uint64 // tags
	told bool     // the log knows that memory is not registered
}

// flight is a piece under way.
type flight struct {
	r     *Read
	piece int
	file  int // number of the piece's file
	got   int // bytes in place, counted from the first block
	moved int // bytes the kernel moved, for the statistics
	again int // times the kernel moved to try again
}

// NewUring makes the store for Linux with io_uring; elsewhere, and where it is forbidden, the error wraps
// uring.ErrUnavailable. It is an Attacher: attached slots are registered with the kernel when they are first read into, as
// far as the limit of locked memory allows; reads into others pin their own pages. log, which may be nil, is told which.
func NewUring(paths []string, o StoreOptions, log *slog.Logger) (Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	fs, err := openFiles(paths, !o.buffered)
	if err != nil {
		return nil, err
	}
	s := &uringStore{fs: fs, log: log, result: o.result, ops: make([]flight, o.Depth)}
	files := make([]*os.File, len(fs))
	for i := range fs {
		files[i] = fs[i].File
	}
	for i := range s.ops {
		s.free = append(s.free, uint64(i))
	}
	s.init(&o)
	s.ring, err = uring.Open(uring.Options{Entries: o.Depth, Files: files, Complete: s.complete, Batch: s.Kick, NoRegister: o.noRegister})
	if err != nil {
		return nil, errors.Join(err, fs.close())
	}
	if log != nil {
		f, err := s.ring.Registers()
		log.Info("io_uring", "registered_files", f, "table_of_buffers", err == nil, "reason", err)
	}
	return s, nil
}

// Attach implements Attacher.
func (s *uringStore) Attach(slot int, mem []byte) { s.ring.Attach(slot, mem) }

// Detach implements Attacher.
func (s *uringStore) Detach(slot int) { s.ring.Detach(slot) }

// Name implements Store. What it says about buffers may change when slots are first read into.
func (s *uringStore) Name() string {
	n := modeName("uring", s.fs.direct())
	if _, err := s.ring.Registers(); err != nil {
		return n + ", buffers not all registered: " + err.Error()
	}
	return n + ", registered buffers"
}

func (s *uringStore) Check(d *Desc) error { return s.fs.check(d) }

// Kick implements Store. Memory that a read is the first to go to is made present by the ring's Read, which takes a
// millisecond, so the lock is not held then: the piece is ours from take on.
func (s *uringStore) Kick() {
	issued, unknown := 0, 0
	s.mu.Lock()
	for {
		r, piece, ok := s.take()
		if !ok {
			break
		}
		tag := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.mu.Unlock()
		f := &s.ops[tag]
		*f = flight{r: r, piece: piece, file: r.Desc.Pieces[piece].Shard}
		if !s.fs[f.file].direct { // no blocks needed: begin at the piece's own first byte
			f.got = r.layout.spans[piece].skip
		}
		if !s.submit(tag) {
			unknown++
		}
		issued++
		s.mu.Lock()
	}
	if unknown > 0 {
		s.unregistered(unknown)
	}
	s.mu.Unlock()
	if issued > 0 {
		s.ring.Flush()
	}
}

// submit queues what a flight still needs and says whether the kernel knows the memory.
func (s *uringStore) submit(tag uint64) (registered bool) {
	f := &s.ops[tag]
	sp := &f.r.layout.spans[f.piece]
	end := sp.size
	if !s.fs[f.file].direct {
		end = sp.want()
	}
	return s.ring.Read(f.file, sp.start+int64(f.got), f.r.Dst[sp.at+f.got:sp.at+end], f.r.Slot, tag)
}

// unregistered counts reads into memory that the kernel does not know and says so once; with the lock.
func (s *uringStore) unregistered(n int) {
	s.stats.Unregistered += int64(n)
	if !s.told && s.log != nil {
		s.told = true
		_, err := s.ring.Registers()
		s.log.Info("io_uring reads into memory that is not registered, which costs more processor time", "reason", err)
	}
}

// retries bounds how often a read is handed in again that the kernel neither did nor refused.
const retries = 100

// complete takes one completion: a piece is whole, goes on after a short read, or failed.
func (s *uringStore) complete(tag uint64, n int32) {
	f := &s.ops[tag]
	sp := &f.r.layout.spans[f.piece]
	if s.result != nil {
		n = s.result(n)
	}
	if fault.On && n >= 0 {
		n = s.spoilt(f, n)
	}
	var err error
	switch {
	case n < 0:
		errno := syscall.Errno(-n)
		if (errno == syscall.EINTR || errno == syscall.EAGAIN) && f.again < retries {
			f.again++
			s.submit(tag)
			s.ring.Flush()
			return
		}
		err = s.fs.fail(f.r, f.piece, f.got, errno)
	default:
		f.got += int(n)
		f.moved += int(n)
		if f.got >= sp.want() { // what comes after, the end of the file included, is of no interest
			break
		}
		// A direct read can go on only from a whole block; another end is the end of the file.
		if n > 0 && (!s.fs[f.file].direct || f.got%host.IOAlign == 0) {
			s.submit(tag)
			s.ring.Flush()
			return
		}
		err = s.fs.fail(f.r, f.piece, f.got, nil)
	}
	s.mu.Lock()
	r, piece, moved := f.r, f.piece, f.moved
	f.r = nil
	s.free = append(s.free, tag)
	over := s.finish(r, piece, moved, err)
	if s.closed && s.flying == 0 {
		s.cond.Broadcast()
	}
	s.mu.Unlock()
	if over {
		r.Sink.ReadDone(r, r.err)
	}
}

// spoilt is what a build with faults makes of a completion that moved n bytes.
func (s *uringStore) spoilt(f *flight, n int32) int32 {
	m, err := fault.Read(nil, int(n), nil)
	switch {
	case errors.Is(err, io.EOF):
		if s.fs[f.file].direct {
			m = m / host.IOAlign * host.IOAlign
		}
		return int32(m)
	case err != nil:
		return -int32(syscall.EIO)
	}
	return n
}

func (s *uringStore) Poll() { s.ring.Poll() }

func (s *uringStore) Close() error {
	var err error
	s.once.Do(func() {
		s.mu.Lock()
		rest := s.shut()
		s.mu.Unlock()
		failAll(rest)
		s.mu.Lock()
		for s.flying > 0 {
			s.cond.Wait()
		}
		s.mu.Unlock()
		err = s.ring.Close()
		if cerr := s.fs.close(); err == nil {
			err = cerr
		}
	})
	return err
}

// NewAuto makes the io_uring store or, where that is unavailable, the pread store, whose name and log then say why.
func NewAuto(paths []string, o StoreOptions, log *slog.Logger) (Store, error) {
	s, err := NewUring(paths, o, log)
	if !errors.Is(err, uring.ErrUnavailable) {
		return s, err
	}
	if log != nil {
		log.Info("reading with pread", "reason", err)
	}
	o.note = err.Error()
	return NewPread(paths, o)
}
