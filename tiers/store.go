package tiers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"terrace/internal/host"
)

// ErrClosed is what reads and requests get from a store or cache that was closed.
var ErrClosed = errors.New("closed")

// Priority orders reads: every waiting demand goes before every guess.
type Priority uint8

// The two priorities.
const (
	Demand Priority = iota // a running layer waits for it
	Guess                  // read ahead of need
)

// Read is one expert on its way into a slot. The store owns it from Queue until it calls the sink or Cancel answers true;
// the slot must not be touched in that time. It is reused, so that a read allocates nothing.
type Read struct {
	Desc     *Desc
	Slot     int // the cache's number of the slot
	Dst      []byte
	Priority Priority
	Sink     Sink
	reader   Sink // a verifier took the place of

	layout     *layout
	prev, next *Read
	list       *readList   // the list it waits in
	piece      int         // next piece to issue
	left       int         // pieces neither done nor dropped
	as         [3]Priority // what each piece was issued as
	err        error
	began      atomic.Bool  // a piece was issued
	since      atomic.Int64 // when the first one was: nanoseconds after epoch

	// Of a store with a mirror: who is told at last, which of the two has it, and as what it was queued there.
	home    Sink
	side    uint8
	at      Priority
	counted bool // in the sums of its side
}

// NewRead is a read of d into a slot whose memory is dst: it begins at a multiple of host.IOAlign and holds
// ReadBytes(d) bytes. The cache makes its own; this is for those who use a store without one.
func NewRead(d *Desc, slot int, dst []byte, p Priority, sink Sink) *Read {
	l := layoutOf(d)
	if len(dst) < l.bytes {
		panic(fmt.Sprintf("tiers: %d bytes of memory for a read of %d", len(dst), l.bytes))
	}
	return &Read{Desc: d, Slot: slot, Dst: dst, Priority: p, Sink: sink, layout: &l}
}

// ReadBytes is the memory in bytes that an expert takes in a slot, the whole blocks around its pieces.
func ReadBytes(d *Desc) int {
	l := layoutOf(d)
	return l.bytes
}

// Sink is told once about each read that was queued and not cancelled: nil when the whole expert is in the slot, or the
// error. It is called on a goroutine of the store without any of its locks held.
type Sink interface {
	ReadDone(r *Read, err error)
}

// Store brings whole experts from the model's files into slots, or an error that names file, expert, piece and both
// numbers; never a part. All methods may be called from any goroutine.
type Store interface {
	// Name says which kind of store this is and whether it reads directly, for people.
	Name() string
	// Check refuses a description that cannot be read from this store's files.
	Check(d *Desc) error
	// Queue takes a read. It does not block and does not call the sink.
	Queue(r *Read)
	// Kick starts what may start; call it after Queue or Promote, without locks that the sink takes.
	Kick()
	// Promote makes a queued guess a demand; it goes behind the demands already there.
	Promote(r *Read)
	// Cancel takes back a read that has not begun. False: it has begun (or ended), and the sink is called.
	Cancel(r *Read) bool
	// Poll lets a waiting goroutine help to finish reads; it never blocks.
	Poll()
	// Stats is a snapshot of the counters.
	Stats() StoreStats
	// Close fails what has not begun with ErrClosed, waits for what has, and closes the files.
	Close() error
}

// Attacher is a store that wants to know which memory its reads go to, so that it can register it with the system. Both
// methods are called under the lock that the sink takes.
type Attacher interface {
	// Attach says that a slot's memory is mem, whole pages outside the Go heap, before the first read into it; the slot may
	// have had other memory before. Where the system refuses to register it, reads into the slot go on as without it.
	Attach(slot int, mem []byte)
	// Detach says that the last read into the slot has ended and its memory is about to go back to the system, so that the
	// store must let go of it.
	Detach(slot int)
}

// DefaultDepth is how many pieces a store reads at the same time unless told otherwise.
const DefaultDepth = 8

// StoreOptions configure every store; the zero value is sensible.
type StoreOptions struct {
	Depth      int // pieces read at the same time; DefaultDepth when 0
	GuessDepth int // of these, at most so many for guesses; half when 0

	note string // after the name, for people

	// For tests: what stands in for os.File.ReadAt, what changes the result of an io_uring read, reading through the page
	// cache as on file systems without direct reads, and io_uring without registration.
	readAt     func(f *os.File, b []byte, off int64) (int, error)
	result     func(n int32) int32
	buffered   bool
	noRegister bool
}

// complete fills in defaults and refuses nonsense.
func (o *StoreOptions) complete() error {
	if o.Depth == 0 {
		o.Depth = DefaultDepth
	}
	if o.GuessDepth == 0 {
		o.GuessDepth = max(1, o.Depth/2)
	}
	if o.Depth < 1 || o.Depth > 1024 {
		return fmt.Errorf("expert store: %d reads at a time; it must be 1 to 1024", o.Depth)
	}
	if o.GuessDepth < 1 || o.GuessDepth > o.Depth {
		return fmt.Errorf("expert store: %d guesses of %d reads at a time; it must be 1 to all", o.GuessDepth, o.Depth)
	}
	if o.readAt == nil {
		o.readAt = (*os.File).ReadAt
	}
	return nil
}

// StoreStats counts what a store did since it was made.
type StoreStats struct {
	DemandBytes int64 // read for demands, whole blocks
	GuessBytes  int64 // read for guesses, whole blocks
	Reads       int64 // pieces
	Errors      int64 // pieces that failed
	// Unregistered pieces were read by a store that is an Attacher into memory that the system would not register.
	Unregistered int64
	Busy         time.Duration // time with at least one piece being read
	// MirrorBytes, part of the bytes above, came from a mirror, which failed in MirrorErrors reads.
	MirrorBytes, MirrorErrors int64
}

// BytesPerSecond is the rate while anything was being read; 0 when nothing was.
func (s StoreStats) BytesPerSecond() float64 {
	if s.Busy <= 0 {
		return 0
	}
	return float64(s.DemandBytes+s.GuessBytes) / s.Busy.Seconds()
}

// ReadError says which bytes of which expert did not come.
type ReadError struct {
	File         string
	ID           ExpertID
	Piece        string // gate, up or down
	Offset       int64  // of the piece, bytes
	Wanted, Got  int64  // bytes of the piece
	Size, WasLen int64  // of the file now and when it was opened, when the read came short; else 0
	Err          error  // the system's error, or nil when the read came short
}

func (e *ReadError) Error() string {
	s := fmt.Sprintf("%s: %v, %s: wanted %d bytes at offset %d, got %d", e.File, e.ID, e.Piece, e.Wanted, e.Offset, e.Got)
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	return s + fmt.Sprintf("; the file has %d bytes now and had %d when it was opened", e.Size, e.WasLen)
}

func (e *ReadError) Unwrap() error {
	if e.Err == nil {
		return io.ErrUnexpectedEOF
	}
	return e.Err
}

// file is one of a store's open files.
type file struct {
	*os.File
	path   string
	size   int64 // when opened
	direct bool
}

// fileSet holds the files of a model for one store.
type fileSet []file

// openFiles opens each path, past the page cache if direct is asked for and possible.
func openFiles(paths []string, direct bool) (fileSet, error) {
	if len(paths) == 0 {
		return nil, errors.New("expert store: no model file named")
	}
	var fs fileSet
	for _, p := range paths {
		var f file
		var err error
		f.path = p
		if direct {
			f.File, f.direct, err = host.OpenDirect(p)
		} else {
			f.File, err = os.Open(p)
		}
		if err != nil {
			fs.close()
			return nil, err
		}
		fs = append(fs, f)
		fi, err := f.Stat()
		if err == nil && fi.IsDir() {
			err = fmt.Errorf("%s is a directory", p)
		}
		if err != nil {
			fs.close()
			return nil, err
		}
		fs[len(fs)-1].size = fi.Size()
	}
	return fs, nil
}

func (fs fileSet) close() error {
	var err error
	for i := range fs {
		err = errors.Join(err, fs[i].Close())
	}
	return err
}

// direct says whether all files are read past the page cache.
func (fs fileSet) direct() bool {
	for i := range fs {
		if !fs[i].direct {
			return false
		}
	}
	return true
}

// check refuses pieces that lie outside the files.
func (fs fileSet) check(d *Desc) error {
	if err := d.check(); err != nil {
		return err
	}
	for i, p := range d.Pieces {
		if p.Length == 0 {
			continue
		}
		if p.Shard < 0 || p.Shard >= len(fs) {
			return fmt.Errorf("%v, %s: in file number %d of %d", d.ID, pieceNames[i], p.Shard, len(fs))
		}
		if f := &fs[p.Shard]; p.Offset+p.Length > f.size {
			return fmt.Errorf("%s: %v, %s: ends at byte %d, the file at %d", f.path, d.ID, pieceNames[i], p.Offset+p.Length, f.size)
		}
	}
	return nil
}

// fail makes the error of a piece of which got bytes, counted from the first block, arrived. err nil means the file ended.
func (fs fileSet) fail(r *Read, piece, got int, err error) error {
	p, s := &r.Desc.Pieces[piece], &r.layout.spans[piece]
	f := &fs[p.Shard]
	e := &ReadError{File: f.path, ID: r.Desc.ID, Piece: pieceNames[piece], Offset: p.Offset, Wanted: p.Length, Got: int64(min(max(0, got-s.skip), s.length)), Err: err}
	if err == nil {
		e.WasLen = f.size
		fi, serr := f.Stat()
		if serr != nil {
			e.Err = serr
		} else {
			e.Size = fi.Size()
		}
	}
	return e
}

// modeName is a store's name with how it reads.
func modeName(kind string, direct bool) string {
	if direct {
		return kind + " (direct)"
	}
	return kind + " (through the page cache)"
}
