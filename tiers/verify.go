package tiers

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// ChangedError says that a model file is no longer what it was when it was opened, so that what was just read of it may
// belong to another model.
type ChangedError struct {
	File          string
	ID            ExpertID
	Piece         string // gate, up or down: the first of the expert's in this file
	Offset        int64  // of the piece, bytes
	Size, WasSize int64
	Time, WasTime time.Time // of the last change
}

func (e *ChangedError) Error() string {
	s := fmt.Sprintf("%s: %v, %s at offset %d: the file was changed while it was in use: ", e.File, e.ID, e.Piece, e.Offset)
	if e.Size != e.WasSize {
		s += fmt.Sprintf("it has %d bytes now and had %d", e.Size, e.WasSize)
	} else {
		s += fmt.Sprintf("last written at %s, when it was opened at %s", e.Time.Format(time.RFC3339Nano), e.WasTime.Format(time.RFC3339Nano))
	}
	return s
}

// SumError says that an expert's bytes are not those its checksum was made of.
type SumError struct {
	File        string
	ID          ExpertID
	Piece       string
	Offset      int64  // of the piece, bytes
	Sum, Wanted uint32 // CRC-32C of what was read, and of when the checksums were made
}

func (e *SumError) Error() string {
	return fmt.Sprintf("%s: %v, %s at offset %d: checksum %08x, wanted %08x: the file is damaged, or its checksums are those of another", e.File, e.ID, e.Piece, e.Offset, e.Sum, e.Wanted)
}

// verifier is a store whose reads are looked at before anybody gets their bytes.
type verifier struct {
	Store
	files []watched
	sums  *Sums
	seen  [][]atomic.Bool // [layer][expert]: compared with its checksum
	bytes atomic.Int64    // compared
	nanos atomic.Int64    // that took
	once  sync.Once
}

// watched is a file of the model with what it was when it was opened.
type watched struct {
	*os.File
	path string
	was  host.Stamp
}

// NewVerify wraps a store of the same files so that a file which is written to or cut while it is in use fails the reads
// that end afterwards with a ChangedError, instead of giving a wrong expert. It holds the files open itself: a new file
// under the old name is no change, the old one stays what it is. That costs one call to the system for each expert read.
// sizes are the sizes that the headers were read with; nil is not compared.
//
// With sums, the first read of each expert is compared with its checksums too: a SumError.
//
// The store is taken over: Close closes it. After an error it remains the caller's.
func NewVerify(s Store, paths []string, sizes []int64, sums *Sums) (Store, error) {
	v := &verifier{Store: s, sums: sums}
	for i, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return nil, errors.Join(err, v.closeFiles())
		}
		w := watched{File: f, path: p}
		w.was, err = host.FileStamp(f)
		if err == nil && sizes != nil && w.was.Size != sizes[i] {
			err = fmt.Errorf("%s: it has %d bytes now and had %d when its header was read", p, w.was.Size, sizes[i])
		}
		v.files = append(v.files, w)
		if err != nil {
			return nil, errors.Join(err, v.closeFiles())
		}
	}
	if sums != nil {
		v.seen = make([][]atomic.Bool, len(sums.Pieces))
		for l := range v.seen {
			v.seen[l] = make([]atomic.Bool, len(sums.Pieces[l]))
		}
	}
	return v, nil
}

func (v *verifier) closeFiles() error {
	var err error
	for i := range v.files {
		err = errors.Join(err, v.files[i].Close())
	}
	return err
}

// Check implements Store.
func (v *verifier) Check(d *Desc) error {
	if err := v.Store.Check(d); err != nil {
		return err
	}
	for i, p := range d.Pieces {
		if p.Length > 0 && p.Shard >= len(v.files) {
			return fmt.Errorf("%v, %s: in file number %d of %d", d.ID, pieceNames[i], p.Shard, len(v.files))
		}
	}
	if v.sums != nil && (int(d.ID.Layer) >= len(v.seen) || int(d.ID.Expert) >= len(v.seen[d.ID.Layer])) {
		return fmt.Errorf("%v: there is no checksum of it", d.ID)
	}
	return nil
}

// Queue implements Store.
func (v *verifier) Queue(r *Read) {
	r.reader, r.Sink = r.Sink, v
	v.Store.Queue(r)
}

// Cancel implements Store.
func (v *verifier) Cancel(r *Read) bool {
	if !v.Store.Cancel(r) {
		return false
	}
	r.Sink, r.reader = r.reader, nil
	return true
}

// ReadDone implements Sink.
func (v *verifier) ReadDone(r *Read, err error) {
	if err == nil {
		err = v.unchanged(r.Desc)
	}
	if err == nil && v.sums != nil {
		err = v.compare(r)
	}
	sink := r.reader
	r.Sink, r.reader = sink, nil
	sink.ReadDone(r, err)
}

// unchanged asks, after the bytes have come, whether the files are still what they were: a change before the read ended
// is seen.
func (v *verifier) unchanged(d *Desc) error {
	asked := -1
	for i, p := range d.Pieces {
		if p.Length == 0 || p.Shard == asked {
			continue
		}
		asked = p.Shard
		w := &v.files[p.Shard]
		now, err := host.FileStamp(w.File)
		if err != nil {
			return fmt.Errorf("%s: %v, %s at offset %d: %w", w.path, d.ID, pieceNames[i], p.Offset, err)
		}
		if now != w.was {
			return &ChangedError{File: w.path, ID: d.ID, Piece: pieceNames[i], Offset: p.Offset, Size: now.Size, WasSize: w.was.Size,
				Time: time.Unix(0, now.Time), WasTime: time.Unix(0, w.was.Time)}
		}
	}
	return nil
}

// compare looks at the bytes of an expert that is here for the first time.
func (v *verifier) compare(r *Read) error {
	d := r.Desc
	seen := &v.seen[d.ID.Layer][d.ID.Expert]
	if seen.Load() {
		return nil
	}
	start := fault.Now()
	for i := range d.Pieces {
		s := &r.layout.spans[i]
		if s.length == 0 {
			continue
		}
		b := r.Dst[s.at+s.skip : s.at+s.want()]
		if fault.On {
			fault.Wrong(b)
		}
		if got, want := sumOf(b), v.sums.Pieces[d.ID.Layer][d.ID.Expert][i]; got != want {
			return &SumError{File: v.files[d.Pieces[i].Shard].path, ID: d.ID, Piece: pieceNames[i], Offset: d.Pieces[i].Offset, Sum: got, Wanted: want}
		}
		v.bytes.Add(int64(len(b)))
	}
	v.nanos.Add(fault.Since(start).Nanoseconds())
	seen.Store(true)
	return nil
}

// Close implements Store.
func (v *verifier) Close() error {
	err := v.Store.Close()
	v.once.Do(func() { err = errors.Join(err, v.closeFiles()) })
	return err
}

// Attach implements Attacher for a store that does.
func (v *verifier) Attach(slot int, mem []byte) {
	if a, ok := v.Store.(Attacher); ok {
		a.Attach(slot, mem)
	}
}

// Detach implements Attacher for a store that does.
func (v *verifier) Detach(slot int) {
	if a, ok := v.Store.(Attacher); ok {
		a.Detach(slot)
	}
}
