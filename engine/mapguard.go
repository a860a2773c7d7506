package engine

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"terrace/gguf"
	"terrace/internal/host"
)

// ErrMapped is wrapped when weights that are mapped cannot be read any more, or are not what they were.
var ErrMapped = errors.New("a mapped model file was changed while it was in use")

// mapGuard implements model.Guard for dense weights that are mapped: it keeps the files open and knows what they were.
type mapGuard struct {
	d     *dense
	paths []string
	files []*os.File // nil where nothing is mapped
	was   []host.Stamp
}

// newMapGuard looks at the files that d maps.
func newMapGuard(d *dense, f *gguf.File) (*mapGuard, error) {
	g := &mapGuard{d: d, paths: make([]string, len(f.Shards)), files: make([]*os.File, len(f.Shards)), was: make([]host.Stamp, len(f.Shards))}
	for i := range f.Shards {
		if g.paths[i] = f.Shards[i].Path; d.maps[i] == nil {
			continue
		}
		x, err := os.Open(g.paths[i])
		if err == nil {
			g.files[i] = x
			g.was[i], err = host.FileStamp(x)
		}
		if err == nil && g.was[i].Size != f.Shards[i].Size {
			err = fmt.Errorf("%s: the file has %d bytes now and had %d when its header was read", g.paths[i], g.was[i].Size, f.Shards[i].Size)
		}
		if err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

func (g *mapGuard) close() {
	for _, x := range g.files {
		if x != nil {
			x.Close()
		}
	}
}

// Fault implements model.Guard.
func (g *mapGuard) Fault(addr uintptr) error {
	for i, m := range g.d.maps {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData([]byte(m))))
		if m == nil || addr < begin || addr-begin >= uintptr(len(m)) {
			continue
		}
		name := g.tensor(addr)
		now, err := host.FileStamp(g.files[i])
		switch {
		case err != nil:
			return fmt.Errorf("%s: tensor %s, byte %d: %w: %w", g.paths[i], name, addr-begin, ErrMapped, err)
		case now.Size != g.was[i].Size:
			return fmt.Errorf("%s: tensor %s, byte %d: %w: the file has %d bytes now and had %d", g.paths[i], name, addr-begin, ErrMapped, now.Size, g.was[i].Size)
		}
		return fmt.Errorf("%s: tensor %s: byte %d of the mapped file cannot be read", g.paths[i], name, addr-begin)
	}
	return nil
}

// tensor is the name of the one that an address lies in, or of the nearest before it: vector loads reach over the end.
func (g *mapGuard) tensor(addr uintptr) string {
	best, from := "(none)", uintptr(0)
	for name, b := range g.d.views {
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); at <= addr && at >= from {
			best, from = name, at
		}
	}
	return best
}

// Check implements model.Guard. The end of a file that shrank within its last page reads as zeros, without a fault.
func (g *mapGuard) Check() error {
	for i, x := range g.files {
		if x == nil {
			continue
		}
		now, err := host.FileStamp(x)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", g.paths[i], err)
		case now.Size != g.was[i].Size:
			return fmt.Errorf("%s: %w: the file has %d bytes now and had %d", g.paths[i], ErrMapped, now.Size, g.was[i].Size)
		case now != g.was[i]:
			return fmt.Errorf("%s: %w: it was written to", g.paths[i], ErrMapped)
		}
	}
	return nil
}
