package tiers

import (
	"errors"
	"io"
	"sync"
	"syscall"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// pool is a store whose pieces are read by a fixed number of goroutines.
type pool struct {
	queue
	name   string
	read   func(r *Read, piece int) (n int, err error) // one piece into its place in r.Dst
	begin  func(r *Read)                               // once before the first piece of a read; may be nil
	verify func(d *Desc) error
	end    func() error
	wg     sync.WaitGroup
	once   sync.Once
}

// run starts the workers.
func (p *pool) run() {
	for range p.depth {
		p.wg.Go(p.work)
	}
}

func (p *pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		r, piece, ok := p.take()
		if !ok {
			if p.closed {
				return
			}
			p.cond.Wait()
			continue
		}
		first := p.begin != nil && piece == r.layout.first()
		p.mu.Unlock()
		if first {
			p.begin(r)
		}
		n, err := p.read(r, piece)
		p.mu.Lock()
		if p.finish(r, piece, n, err) {
			p.mu.Unlock()
			r.Sink.ReadDone(r, r.err)
			p.mu.Lock()
		}
	}
}

func (p *pool) Name() string        { return p.name }
func (p *pool) Check(d *Desc) error { return p.verify(d) }
func (p *pool) Kick()               {}
func (p *pool) Poll()               {}

func (p *pool) Close() error {
	var err error
	p.once.Do(func() {
		p.mu.Lock()
		rest := p.shut()
		p.mu.Unlock()
		failAll(rest)
		p.wg.Wait()
		err = p.end()
	})
	return err
}

// NewPread makes the store that works everywhere: o.Depth goroutines read with explicit offsets, past the page cache
// where the file system allows it.
func NewPread(paths []string, o StoreOptions) (Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	fs, err := openFiles(paths, !o.buffered)
	if err != nil {
		return nil, err
	}
	for i := range fs {
		if !fs[i].direct {
			_ = host.NoReadAhead(fs[i].File) // advice only; what is read ahead would stay in the page cache
		}
	}
	name := modeName("pread", fs.direct())
	if o.note != "" {
		name += ", " + o.note
	}
	p := &pool{name: name, verify: fs.check, end: fs.close}
	p.read = func(r *Read, piece int) (int, error) {
		s := &r.layout.spans[piece]
		f := &fs[r.Desc.Pieces[piece].Shard]
		from, b := s.start, r.Dst[s.at:s.at+s.size]
		want := s.want()
		if !f.direct { // no blocks needed: only the piece's own bytes
			from, b, want = from+int64(s.skip), b[s.skip:want], s.length
		}
		n, err := o.readAt(f.File, b, from)
		if fault.On {
			n, err = fault.Read(b, n, err)
		}
		if !f.direct { // the page cache counts as the process's memory
			_ = host.DropCached(f.File, from, int64(len(b))) // advice only
		}
		if n >= want { // what comes after, the end of the file included, is of no interest
			return n, nil
		}
		// Going on after a short direct read at the end of a file is refused as unaligned.
		if errors.Is(err, io.EOF) || n%host.IOAlign != 0 && errors.Is(err, syscall.EINVAL) {
			err = nil
		}
		return n, fs.fail(r, piece, n+s.want()-want, err)
	}
	p.init(&o)
	p.run()
	return p, nil
}
