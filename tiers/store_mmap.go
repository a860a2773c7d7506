package tiers

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	mmap "github.com/edsrzf/mmap-go"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// NewMmap makes the store that copies from mappings of the files. It costs many times the processor time of direct reads
// and falls behind when memory is short, because the page cache then drops pages before they are copied; it is for file
// systems without direct reads and for comparison. What was copied is dropped from mapping and page cache: both count as the
// process's memory, and would grow to the size of the file. A file that shrinks under the mapping gives an error, not a signal.
func NewMmap(paths []string, o StoreOptions) (Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	fs, err := openFiles(paths, false)
	if err != nil {
		return nil, err
	}
	m := &mapped{fs: fs, maps: make([]mmap.MMap, len(fs))}
	for i := range fs {
		if fs[i].size == 0 {
			continue // nothing to map, and no piece can be in it
		}
		if m.maps[i], err = mmap.Map(fs[i].File, mmap.RDONLY, 0); err != nil {
			m.close()
			return nil, fmt.Errorf("%s: map %d bytes: %w", fs[i].path, fs[i].size, err)
		}
		// Advice only: without it reading ahead wastes bandwidth, nothing breaks.
		_ = host.AdviseRandom(m.maps[i])
	}
	p := &pool{name: "mmap", verify: fs.check, end: m.close, begin: m.willNeed, read: m.read}
	p.init(&o)
	p.run()
	return p, nil
}

type mapped struct {
	fs   fileSet
	maps []mmap.MMap
}

// read copies one piece. The size is looked up before, because a fault is dear, and after, because the end of a file
// that shrank within its last page reads as zeros without a fault.
func (m *mapped) read(r *Read, piece int) (n int, err error) {
	p, s := &r.Desc.Pieces[piece], &r.layout.spans[piece]
	f := &m.fs[p.Shard]
	if err := m.there(f, r, piece); err != nil {
		return 0, err
	}
	if fault.On {
		if n, err := fault.Read(nil, s.length, nil); errors.Is(err, io.EOF) {
			return 0, m.fs.fail(r, piece, s.skip+n, nil)
		} else if err != nil {
			return 0, m.fs.fail(r, piece, 0, err)
		}
	}
	if err := copyMapped(r.Dst[s.at+s.skip:s.at+s.want()], m.maps[p.Shard][p.Offset:p.Offset+p.Length]); err != nil {
		if short := m.there(f, r, piece); short != nil {
			return 0, short
		}
		return 0, m.fs.fail(r, piece, 0, err)
	}
	m.drop(f, p)
	if err := m.there(f, r, piece); err != nil {
		return 0, err
	}
	return s.length, nil
}

// drop gives back the pages of a piece. Those at its ends may belong to a neighbour that is being copied, which reads them
// again then.
func (m *mapped) drop(f *file, p *Piece) {
	if p.Length == 0 {
		return
	}
	page := int64(host.PageSize())
	from := p.Offset / page * page
	to := min((p.Offset+p.Length+page-1)/page*page, int64(len(m.maps[p.Shard])))
	_ = host.DropMapped(m.maps[p.Shard][from:to]) // advice only, both: memory is held longer without it
	_ = host.DropCached(f.File, p.Offset, p.Length)
}

// there checks that the file still reaches to the end of the piece.
func (m *mapped) there(f *file, r *Read, piece int) error {
	p := &r.Desc.Pieces[piece]
	size, err := host.FileSize(f.File)
	if err != nil {
		return m.fs.fail(r, piece, 0, err)
	}
	if got := size - p.Offset; got < p.Length {
		return m.fs.fail(r, piece, r.layout.spans[piece].skip+int(max(0, got)), nil)
	}
	return nil
}

// errFault is what a copy from a page that cannot be read gives.
var errFault = errors.New("the mapped page cannot be read")

// copyMapped copies and turns a fault (SIGBUS) into an error.
func copyMapped(dst, src []byte) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if x := recover(); x != nil {
			if _, fault := x.(interface{ Addr() uintptr }); !fault {
				panic(x)
			}
			err = errFault
		}
	}()
	copy(dst, src)
	return nil
}

// willNeed asks the system to start reading all pieces of an expert.
func (m *mapped) willNeed(r *Read) {
	for _, p := range r.Desc.Pieces {
		if p.Length == 0 {
			continue
		}
		page := int64(host.PageSize())
		from := p.Offset / page * page
		_ = host.AdviseWillNeed(m.maps[p.Shard][from : p.Offset+p.Length]) // advice only
	}
}

func (m *mapped) close() error {
	var err error
	for i := range m.maps {
		if m.maps[i] != nil {
			err = errors.Join(err, m.maps[i].Unmap())
		}
	}
	return errors.Join(err, m.fs.close())
}
