package promptstore

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"terrace/internal/fault"
)

// A slot file holds one whole sequence: a head and entries as the store has them, each continuing the one before it, the
// snapshot last. The head, little-endian: "TRSLOTS\n", version, number of entries (32 bits each), bytes of the file (64 bits),
// CRC-32C of these, 0.
const (
	slotMagic   = "TRSLOTS\n"
	slotVersion = 1
	slotHead    = 32
	maxSlotHead = 1 << 22 // entries
)

// SlotWriter makes a slot file.
type SlotWriter struct {
	path, temp string
	f          *os.File
	w          *bufio.Writer
	space      [32]byte
	tokens     []int32
	last       head // the latest entry of rows
	entries    int
	bytes      int64
}

// CreateSlot begins a file at path for a sequence of tokens; until Commit nothing is to be seen there.
func CreateSlot(path, space string, tokens []int32) (*SlotWriter, error) {
	sweepSlots(filepath.Dir(path))
	f, err := os.CreateTemp(filepath.Dir(path), slotTemp+"*"+tempExt)
	if err != nil {
		return nil, err
	}
	w := &SlotWriter{path: path, temp: f.Name(), f: f, w: bufio.NewWriterSize(f, 1<<16), space: sha256.Sum256([]byte(space)), tokens: tokens, bytes: slotHead}
	if _, err := w.w.Write(make([]byte, slotHead)); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return w, nil
}

// slotTemp begins the names of files that are not finished.
const slotTemp = ".slot-"

// abandoned is the age from which on an unfinished file is of a process that was killed while it wrote.
const abandoned = time.Hour

// sweepSlots deletes what killed processes left in dir.
func sweepSlots(dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return // creating a file there will say why
	}
	for _, f := range list {
		if !strings.HasPrefix(f.Name(), slotTemp) || !strings.HasSuffix(f.Name(), tempExt) {
			continue
		}
		if st, err := f.Info(); err == nil && time.Since(st.ModTime()) > abandoned {
			os.Remove(filepath.Join(dir, f.Name()))
		}
	}
}

// Rows adds the rows of n positions, those behind what was added before.
func (w *SlotWriter) Rows(n int, windowed bool, data []byte) error {
	from := w.last.End
	h := head{Kind: Rows, Windowed: windowed, Start: from, End: from + n, Tokens: w.tokens[from : from+n]}
	if err := w.add(&h, data); err != nil {
		return err
	}
	w.last = h
	return nil
}

// Snapshot adds the snapshot at the end of the tokens; all their rows have been added.
func (w *SlotWriter) Snapshot(data []byte) error {
	return w.add(&head{Kind: Snapshot, Class: Turn, Start: w.last.End, End: w.last.End}, data)
}

func (w *SlotWriter) add(h *head, data []byte) error {
	h.Space, h.Parent, h.Size, h.Sum = w.space, w.last.ID, int64(len(data)), crc32.Checksum(data, castagnoli)
	h.ID = h.id()
	w.entries++
	w.bytes += fileSize(h)
	if fault.On {
		if err := fault.Write(len(data)); err != nil {
			return err
		}
	}
	if _, err := w.w.Write(h.encode()); err != nil {
		return err
	}
	_, err := w.w.Write(data)
	return err
}

// Commit puts the file in its place and answers its size. After an error there is none.
func (w *SlotWriter) Commit() (bytes int64, err error) {
	if w.last.End != len(w.tokens) || w.entries > maxSlotHead {
		return 0, errors.Join(fmt.Errorf("%s: %d of %d tokens in %d entries", w.path, w.last.End, len(w.tokens), w.entries), w.Abort())
	}
	b := make([]byte, slotHead)
	copy(b, slotMagic)
	binary.LittleEndian.PutUint32(b[8:], slotVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(w.entries))
	binary.LittleEndian.PutUint64(b[16:], uint64(w.bytes))
	binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
	err = w.w.Flush()
	if err == nil {
		_, err = w.f.WriteAt(b, 0)
	}
	if err == nil {
		err = w.f.Chmod(0o600)
	}
	if err == nil {
		err = w.f.Sync()
	}
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(w.temp, w.path)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(w.temp))
	}
	if dir, derr := os.Open(filepath.Dir(w.path)); derr == nil {
		_ = dir.Sync()
		dir.Close()
	}
	return w.bytes, nil
}

// Abort gives the file up.
func (w *SlotWriter) Abort() error {
	w.f.Close()
	return os.Remove(w.temp)
}

// SlotReader reads a slot file.
type SlotReader struct {
	Tokens  []int32
	Bytes   int64 // of the file
	Largest int64 // of a payload
	Ends    bool  // with a snapshot
	path    string
	f       *os.File
	heads   []head
}

// OpenSlot reads the heads of the file at path. Errors name it; those that wrap ErrDamaged say that it is not what
// SlotWriter makes for this space.
func OpenSlot(path, space string) (*SlotReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &SlotReader{path: path, f: f}
	if err := r.read(sha256.Sum256([]byte(space))); err != nil {
		f.Close()
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Close closes the file.
func (r *SlotReader) Close() error { return r.f.Close() }

func (r *SlotReader) read(space [32]byte) error {
	st, err := r.f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, slotHead, maxHead)
	if n, err := io.ReadFull(r.f, b); err != nil {
		return fmt.Errorf("%w: %d bytes, a slot file has at least %d", ErrDamaged, n, slotHead)
	}
	le := binary.LittleEndian
	entries := le.Uint32(b[12:])
	r.Bytes = int64(le.Uint64(b[16:]))
	switch {
	case string(b[:8]) != slotMagic:
		return fmt.Errorf("%w: it is no slot file", ErrDamaged)
	case le.Uint32(b[8:]) != slotVersion:
		return fmt.Errorf("%w: version %d, want %d", ErrDamaged, le.Uint32(b[8:]), slotVersion)
	case crc32.Checksum(b[:24], castagnoli) != le.Uint32(b[24:]) || le.Uint32(b[28:]) != 0:
		return fmt.Errorf("%w: the checksum of its head is wrong", ErrDamaged)
	case !st.Mode().IsRegular() || st.Size() != r.Bytes:
		return fmt.Errorf("%w: it has %d bytes, its head says %d", ErrDamaged, st.Size(), r.Bytes)
	case entries > maxSlotHead || int64(entries)*headBytes > r.Bytes:
		return fmt.Errorf("%w: %d entries in %d bytes", ErrDamaged, entries, r.Bytes)
	}
	at := int64(slotHead)
	var last head
	for i := range int(entries) {
		b = b[:maxHead]
		n, err := r.f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		h, err := decodeHead(b[:n])
		switch {
		case err != nil:
			return fmt.Errorf("entry %d: %w", i, err)
		case h.Space != space:
			return fmt.Errorf("%w: it was saved from another model, or with other settings of it", ErrDamaged)
		case r.Ends || h.Start != last.End || h.Parent != last.ID || h.Size > r.Bytes-at-int64(h.encoded()):
			return fmt.Errorf("%w: entry %d, of positions %d to %d and %d bytes, does not continue position %d", ErrDamaged, i, h.Start, h.End, h.Size, last.End)
		}
		r.Largest = max(r.Largest, h.Size)
		at += fileSize(&h)
		if h.Kind == Snapshot {
			r.Ends = true
		} else {
			r.Tokens = append(r.Tokens, h.Tokens...)
			last = h
		}
		r.heads = append(r.heads, h)
	}
	if at != r.Bytes || entries == 0 {
		return fmt.Errorf("%w: %d entries end at byte %d of %d", ErrDamaged, entries, at, r.Bytes)
	}
	return nil
}

// Each calls rows with the pieces in order, then snapshot with the snapshot if there is one, each checked. buf has at least
// Largest bytes; what is handed out lies in it.
func (r *SlotReader) Each(buf []byte, rows func(p Piece) error, snapshot func(b []byte) error) error {
	at := int64(slotHead)
	for i := range r.heads {
		h := &r.heads[i]
		b := buf[:h.Size]
		if _, err := r.f.ReadAt(b, at+int64(h.encoded())); err != nil {
			return fmt.Errorf("%s: entry %d: %w", r.path, i, err)
		}
		at += fileSize(h)
		if sum := crc32.Checksum(b, castagnoli); sum != h.Sum {
			return fmt.Errorf("%s: entry %d: %w: the payload's checksum is %08x, its head says %08x", r.path, i, ErrDamaged, sum, h.Sum)
		}
		err := error(nil)
		if h.Kind == Rows {
			err = rows(Piece{b, h.Start, h.End - h.Start, h.Start, h.End, h.Windowed})
		} else {
			err = snapshot(b)
		}
		if err != nil {
			return fmt.Errorf("%s: entry %d: %w", r.path, i, err)
		}
	}
	return nil
}
