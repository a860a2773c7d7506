// Package tiers keeps a model's routed experts between SSD and RAM: stores bring the bytes of one expert into a slot, the
// cache decides which experts stay in its slots and lends them out.
//
// It knows neither matrices nor routers: an expert is three ranges of bytes with a number, and who will be wanted next is
// guessed elsewhere and handed in as Prefetch.
package tiers

import (
	"fmt"

	"terrace/internal/host"
)

// ExpertID names one routed expert of a model.
type ExpertID struct {
	Layer, Expert uint16
}

func (id ExpertID) String() string { return fmt.Sprintf("expert %d of layer %d", id.Expert, id.Layer) }

// Piece is a range of bytes of one of the model's files. A Length of 0 means that the expert has no such matrix.
type Piece struct {
	Shard          int   // index into the paths a store was made with
	Offset, Length int64 // bytes
}

// Desc says where an expert lies: its gate, up and down matrices, which may be in different files and differ in length.
type Desc struct {
	ID     ExpertID
	Pieces [3]Piece
}

// pieceNames are the names of Desc.Pieces in errors.
var pieceNames = [3]string{"gate", "up", "down"}

// Bytes is the size of the expert without alignment.
func (d *Desc) Bytes() int64 { return d.Pieces[0].Length + d.Pieces[1].Length + d.Pieces[2].Length }

// first is the expert's first piece that has bytes.
func (d *Desc) first() *Piece {
	for i := range d.Pieces {
		if d.Pieces[i].Length > 0 {
			return &d.Pieces[i]
		}
	}
	return &d.Pieces[0]
}

// span is where one piece goes in a slot. Direct reads cover whole blocks, so a piece is read from the block its first
// byte is in to the block its last byte is in:
//
//	file   |    block    |    block    |    block    |
//	piece         [=============================]
//	read   [start .......................... size)
//	       [ skip ][          length            ]
type span struct {
	start  int64 // file offset of the first block
	size   int   // bytes of whole blocks; may reach beyond the end of the file
	at     int   // where the first block goes in the slot
	skip   int   // from the block's first byte to the piece's
	length int   // bytes of the piece
}

// want is how many bytes of the blocks must arrive for the piece to be whole.
func (s *span) want() int { return s.skip + s.length }

// layout is the place of an expert's three pieces in any slot.
type layout struct {
	spans [3]span
	bytes int // of a slot
}

// first is the number of the first piece that has bytes.
func (l *layout) first() int {
	i := 0
	for i < 2 && l.spans[i].length == 0 {
		i++
	}
	return i
}

// layoutOf places the pieces of d one after another.
func layoutOf(d *Desc) layout {
	var l layout
	for i, p := range d.Pieces {
		if p.Length == 0 {
			l.spans[i] = span{at: l.bytes}
			continue
		}
		start := p.Offset &^ (host.IOAlign - 1)
		end := (p.Offset + p.Length + host.IOAlign - 1) &^ (host.IOAlign - 1)
		l.spans[i] = span{start: start, size: int(end - start), at: l.bytes, skip: int(p.Offset - start), length: int(p.Length)}
		l.bytes += int(end - start)
	}
	return l
}

// maxPiece bounds a piece, far above any real matrix, so that sums of aligned sizes cannot overflow an int.
const maxPiece = 1 << 30

// check refuses what layoutOf could not place.
func (d *Desc) check() error {
	if d.Bytes() == 0 {
		return fmt.Errorf("%v has no bytes", d.ID)
	}
	for i, p := range d.Pieces {
		if p.Length < 0 || p.Length > maxPiece {
			return fmt.Errorf("%v, %s: length %d is not between 0 and %d bytes", d.ID, pieceNames[i], p.Length, maxPiece)
		}
		if p.Offset < 0 || p.Offset > 1<<62 {
			return fmt.Errorf("%v, %s: offset %d is not between 0 and 2^62", d.ID, pieceNames[i], p.Offset)
		}
	}
	return nil
}
