package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"terrace/gguf"
)

// Windows of a header: the first is enough for most of the directory of a file without a vocabulary, and the largest bounds
// what is read in vain behind the end of a header.
const (
	firstWindow = 1 << 20
	lastWindow  = 4 << 20
	likeMargin  = 128 << 10 // beyond the header of a file like this one
	maxHeader   = 64 << 20  // bytes of one part that are read at most
)

// Header reads the header of a model, of each part if it is split, by ranges of the files: some megabytes, however large
// they are. Parts that the cache has are read there. read is the bytes that came over the network.
func (c *Client) Header(ctx context.Context, m *Model) (f *gguf.File, read int64, err error) {
	if len(m.Files) == 0 {
		return nil, 0, fmt.Errorf("%s: no files", m.Name)
	}
	byPath := map[string]*window{}
	var traffic atomic.Int64
	// Paths in errors and in the file: the repository and the path there, or the address.
	name := func(f File) string {
		if m.elsewhere && f.URL != "" {
			return display(f.URL)
		}
		return m.Name + "/" + f.Path
	}
	c.mu.Lock()
	like := c.headers[m.folder]
	c.mu.Unlock()
	for i, f := range m.Files {
		n := name(f)
		w := &window{ctx: ctx, c: c, f: f, traffic: &traffic, src: &source{address: f.URL, name: n, size: f.Size}}
		byPath[n] = w
		if i == 0 {
			w.like = like
		}
		if p, ok := c.have(m, f); ok {
			w.local = p
		}
	}
	g, err := gguf.OpenFrom(name(m.Files[0]), func(path string) (gguf.Reader, error) {
		w, ok := byPath[path]
		if !ok {
			return nil, fmt.Errorf("%s: not among the %d files of %s: %w", path, len(m.Files), m.Name, ErrNotFound)
		}
		if w.local != "" {
			return openCached(w.local)
		}
		return w, nil
	})
	if err == nil {
		c.mu.Lock()
		c.headers[m.folder] = g.Shards[0].DataStart
		c.mu.Unlock()
	}
	return g, traffic.Load(), err
}

// window is a gguf.Reader of a file on a server. It keeps what it read from the file's beginning on, so that a header is
// read once however often the reader goes back.
type window struct {
	ctx     context.Context
	c       *Client
	f       File
	src     *source
	local   string // where the cache has it
	traffic *atomic.Int64
	buf     []byte
	etag    string
	windows int
	like    int64 // bytes of the header of another quantisation, which differs in the types of tensors alone; 0: not known
}

func (w *window) Size() int64  { return w.f.Size }
func (w *window) Close() error { return nil }

func (w *window) ReadAt(p []byte, off int64) (int, error) {
	end := min(off+int64(len(p)), w.f.Size)
	for int64(len(w.buf)) < end {
		if err := w.more(end); err != nil {
			return 0, err
		}
	}
	if off >= w.f.Size {
		return 0, io.EOF
	}
	n := copy(p, w.buf[off:end])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// more reads the next window: twice as much as the one before, up to a bound.
func (w *window) more(need int64) error {
	if need > maxHeader {
		return fmt.Errorf("%s: the header goes beyond byte %d, over the limit of %d for files on a server", w.src.name, need, maxHeader)
	}
	from := int64(len(w.buf))
	to := min(max(from+min(int64(firstWindow)<<w.windows, lastWindow), need), w.f.Size)
	if w.windows == 0 && w.like > 0 {
		to = min(max(w.like+likeMargin, need), w.f.Size)
	}
	w.windows = min(w.windows+1, 8)
	var f failures
	for int64(len(w.buf)) < to {
		had := len(w.buf)
		err := w.read(to)
		if err == nil {
			continue
		}
		if len(w.buf) > had {
			f = failures{}
		}
		if err = f.next(w.ctx, w.c, err); err != nil {
			return err
		}
	}
	return nil
}

func (w *window) read(to int64) error {
	from := int64(len(w.buf))
	s, err := w.c.open(w.ctx, w.src, from, to)
	if err != nil {
		return err
	}
	defer s.body.Close()
	if w.etag != "" && s.etag != "" && w.etag != s.etag {
		return fmt.Errorf("%s: %w (%q, then %q)", w.src.name, errChanged, w.etag, s.etag)
	}
	w.etag = cmp.Or(s.etag, w.etag)
	want := min(s.n, to-from)
	if cap(w.buf) < int(to) {
		w.buf = append(make([]byte, 0, max(to, min(2*from, w.f.Size, maxHeader))), w.buf...)
	}
	n, err := io.ReadFull(s.body, w.buf[from:from+want])
	w.buf = w.buf[:from+int64(n)]
	w.traffic.Add(int64(n))
	if s.whole {
		w.traffic.Add(from)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", w.src.name, short(err))
	}
	return nil
}

// cachedFile is a gguf.Reader of a file in the cache.
type cachedFile struct {
	*os.File
	size int64
}

func (f cachedFile) Size() int64 { return f.size }

func openCached(path string) (gguf.Reader, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New(path + ": is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return cachedFile{f, st.Size()}, nil
}
