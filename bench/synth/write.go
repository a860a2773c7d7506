package synth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"terrace/internal/host"
	"terrace/quant"
)

// spare is what Write leaves free on a disk.
const spare = 256 << 20

// ErrNoRoom marks a file that the disk cannot take.
var ErrNoRoom = errors.New("no room on the disk")

// CheckRoom fails with ErrNoRoom, and both figures, where the disk of path has no room for what Write writes. What a
// file of that name holds already does not count: it stays until the new one is complete.
func (m *Model) CheckRoom(path string) error {
	free, err := host.DiskFree(filepath.Dir(path))
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // the system does not tell: writing will show
	}
	if err != nil {
		return err
	}
	if free-spare < m.Data {
		return fmt.Errorf("%s: %w: %d bytes are to be written, %d are free, of which %d stay so", path, ErrNoRoom, m.Data, free, int64(spare))
	}
	return nil
}

// forgetFrom is the size from which a file is dropped from the page cache once it is on the disk, so that a measurement
// begins cold.
const forgetFrom = 64 << 20

// Write makes the file at path, through a temporary one beside it, and drops it from the page cache. progress,
// if not nil, hears of bytes written, up to m.Data or a little less. The same options give the same bytes.
func (m *Model) Write(ctx context.Context, path string, progress func(done int64)) (err error) {
	if err := m.CheckRoom(path); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	w := &writer{ctx: ctx, out: out, progress: progress}
	err = m.write(w)
	if err == nil {
		err = out.Chmod(0o644)
	}
	if err == nil {
		err = out.Sync()
	}
	if err == nil && m.Data >= forgetFrom {
		// Advice that a system refuses costs a reader's first measurement, not the file.
		_ = host.Forget(out)
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	return err
}

// writer writes at offsets and tells how far it has come.
type writer struct {
	ctx      context.Context
	out      *os.File
	done     int64
	progress func(done int64)
}

func (w *writer) at(b []byte, off int64) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if _, err := w.out.WriteAt(b, off); err != nil {
		return err
	}
	w.done += int64(len(b))
	if w.progress != nil {
		w.progress(w.done)
	}
	return nil
}

func (m *Model) write(w *writer) error {
	if err := w.out.Truncate(m.Size); err != nil {
		return err
	}
	if err := w.at(m.head, 0); err != nil || m.Options.HeaderOnly {
		return err
	}
	for i := range m.tensors {
		t := &m.tensors[i]
		var err error
		switch {
		case t.part == table:
			err = writeRows(w.out, t.Type, int(t.Dims[0]), m.Options.Seed, m.starts[i], m.rows)
		case t.list != nil:
			b := make([]byte, t.bytes())
			if err = quant.Encode(t.Type, b, t.list); err == nil {
				err = w.at(b, m.starts[i])
			}
		case t.rows != nil:
			err = w.rows(t, m.starts[i])
		default:
			err = w.pattern(t, m.starts[i], newRandom(m.Options.Seed, t.Name))
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
	}
	return nil
}

// rows writes a tensor whose values are given, about a megabyte at a time.
func (w *writer) rows(t *tensor, off int64) error {
	width, count := int(t.Dims[0]), 1
	for _, d := range t.Dims[1:] {
		count *= int(d)
	}
	size := t.Type.RowBytes(width)
	step := max(1, patternBytes/size)
	v, b := make([]float32, step*width), make([]byte, step*size)
	for at := 0; at < count; at += step {
		n := min(step, count-at)
		t.rows(at, v[:n*width])
		if err := quant.Encode(t.Type, b[:n*size], v[:n*width]); err != nil {
			return err
		}
		if err := w.at(b[:n*size], off+int64(at)*int64(size)); err != nil {
			return err
		}
	}
	return nil
}

// pattern writes a tensor of random blocks.
func (w *writer) pattern(t *tensor, off int64, r *random) error {
	left := t.bytes()
	b, err := pattern(t.Type, left/int64(t.Type.BlockBytes()), t.mean, t.sigma, r)
	for err == nil && left > 0 {
		n := min(left, int64(len(b)))
		err = w.at(b[:n], off)
		off, left = off+n, left-n
	}
	return err
}
