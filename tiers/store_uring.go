package tiers

import (
	"log/slog"
	"os"
	"sync"
	"syscall"

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
// uring.ErrUnavailable. Each read pins its own pages.
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
		fs.close()
		return nil, err
	}
	return s, nil
}

func (s *uringStore) Name() string {
	return modeName("uring", s.fs.direct())
}

func (s *uringStore) Check(d *Desc) error { return s.fs.check(d) }

// Kick implements Store.
func (s *uringStore) Kick() {
	s.mu.Lock()
	any := false
	for {
		r, piece, ok := s.take()
		if !ok {
			break
		}
		tag := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		f := &s.ops[tag]
		*f = flight{r: r, piece: piece, file: r.Desc.Pieces[piece].Shard}
		if !s.fs[f.file].direct { // no blocks needed: begin at the piece's own first byte
			f.got = r.layout.spans[piece].skip
		}
		s.submit(tag)
		any = true
	}
	s.mu.Unlock()
	if any {
		s.ring.Flush()
	}
}

// submit queues what a flight still needs.
func (s *uringStore) submit(tag uint64) {
	f := &s.ops[tag]
	sp := &f.r.layout.spans[f.piece]
	end := sp.size
	if !s.fs[f.file].direct {
		end = sp.want()
	}
	s.ring.Read(f.file, sp.start+int64(f.got), f.r.Dst[sp.at+f.got:sp.at+end], -1, tag)
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
