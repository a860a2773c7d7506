package promptstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// Piece is a part of a prefix: rows of N positions from First on, of which Lo to Hi-1 are the prefix's.
type Piece struct {
	Data     []byte
	First, N int
	Lo, Hi   int
	Windowed bool
}

// Pieces calls f with the rows of the positions from from on, in order. The bytes are valid during the call and must not be
// changed. It ends with the first error: one of f, of ctx, or of an entry that was found damaged, which is taken out of the
// store. Entries that lie on disk alone are read, checked, and kept in RAM as far as there is room.
func (p *Prefix) Pieces(ctx context.Context, from int, f func(Piece) error) error {
	for _, t := range p.path {
		if t.hi <= from {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := p.s.lend(t.e, func(b []byte) error {
			return f(Piece{b, t.e.Start, t.e.End - t.e.Start, max(t.lo, from), t.hi, t.e.Windowed})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Snapshot calls f with the snapshot at the prefix's end, as Pieces does with rows.
func (p *Prefix) Snapshot(f func(b []byte) error) error { return p.s.lend(p.snap, f) }

// lend calls f with the payload of e, which is pinned.
func (s *Store) lend(e *entry, f func(b []byte) error) error {
	s.mu.Lock()
	if buf := e.buf; buf != nil {
		s.mu.Unlock()
		return f(buf)
	}
	if e.gone {
		s.mu.Unlock()
		return fs.ErrNotExist
	}
	room := s.reserve(taken(e.Size))
	s.mu.Unlock()
	if !room { // one at a time, beyond the budget
		s.transit.Lock()
		defer s.transit.Unlock()
	}
	buf, err := makeBuf(e.Size)
	if err == nil {
		if err = s.disk.fetch(&e.head, buf); err != nil {
			freeBuf(buf)
		}
	}
	s.mu.Lock()
	if err != nil {
		if room {
			s.ram -= taken(e.Size)
		}
		if errors.Is(err, ErrDamaged) || errors.Is(err, os.ErrNotExist) {
			s.stats.Damaged++
			s.log.Warn("an entry of the prompt store is ignored", "reason", err)
			if !e.gone {
				s.remove(e)
			}
		}
		s.mu.Unlock()
		return err
	}
	s.stats.Loaded += e.Size
	if !room {
		s.mu.Unlock()
		defer freeBuf(buf)
		return f(buf)
	}
	if e.buf == nil && !e.gone {
		e.buf = buf
		s.mu.Unlock()
		return f(buf)
	}
	s.mu.Unlock() // somebody else brought it meanwhile, or it has gone
	err = f(buf)
	s.mu.Lock()
	s.ram -= taken(e.Size)
	s.mu.Unlock()
	freeBuf(buf)
	return err
}
