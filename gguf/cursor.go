package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// cursor walks a file's header through a small buffer. The first error sticks: later reads answer zero, so that a record
// can be read field by field and checked once.
type cursor struct {
	r    io.ReaderAt
	name string // of the file, for errors
	size int64  // bytes of the file
	pos  int64  // offset of the next byte
	buf  []byte // the bytes of the file from lo
	lo   int64
	err  error

	// What is being read, for errors.
	what  string // "header", "metadata pair", "tensor"
	index int    // of the pair or tensor, -1 in the header
	owner string // its key or name, once known
}

// maxHeader bounds the bytes before the tensor data, and with them the memory that a header can claim. The largest known
// headers (vocabularies of 262 thousand tokens and 514 thousand merges) take about 20 MB.
const maxHeader = 512 << 20

const bufferSize = 64 << 10

func newCursor(r io.ReaderAt, size int64, name string) *cursor {
	return &cursor{r: r, name: name, size: size, buf: make([]byte, 0, min(size, bufferSize)), what: "header", index: -1}
}

// left is the number of bytes from the cursor to the end of the file.
func (c *cursor) left() uint64 { return uint64(c.size - c.pos) }

// place says what is being read, and where.
func (c *cursor) place() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", c.name, c.what)
	if c.index >= 0 {
		fmt.Fprintf(&b, " %d", c.index)
	}
	if c.owner != "" {
		fmt.Fprintf(&b, " %q", short(c.owner))
	}
	fmt.Fprintf(&b, " at byte %d", c.pos)
	return b.String()
}

func (c *cursor) corrupt(format string, args ...any) {
	if c.err == nil {
		c.err = corrupt("%s: %s", c.place(), fmt.Sprintf(format, args...))
	}
}

func (c *cursor) unsupported(format string, args ...any) {
	if c.err == nil {
		c.err = unsupported("%s: %s", c.place(), fmt.Sprintf(format, args...))
	}
}

// has checks that n more bytes are in the file and within the bound on headers.
func (c *cursor) has(n uint64, field string) bool {
	if c.err != nil {
		return false
	}
	if n > c.left() {
		c.corrupt("%s needs %d bytes, but only %d of the file's %d remain", field, n, c.left(), c.size)
		return false
	}
	if end := uint64(c.pos) + n; end > maxHeader {
		c.corrupt("%s would end at byte %d, but a header may have at most %d bytes", field, end, maxHeader)
		return false
	}
	return true
}

// take answers the next n bytes, n at most bufferSize; they are valid until the next read. nil after an error.
func (c *cursor) take(n int, field string) []byte {
	if !c.has(uint64(n), field) {
		return nil
	}
	if c.pos < c.lo || c.pos+int64(n) > c.lo+int64(len(c.buf)) {
		c.lo = c.pos
		c.buf = c.buf[:min(int64(cap(c.buf)), c.size-c.pos)]
		if m, err := c.r.ReadAt(c.buf, c.pos); m < len(c.buf) {
			c.buf = c.buf[:0]
			if err == nil || errors.Is(err, io.EOF) {
				c.corrupt("the file ended at byte %d while being read, although its size was %d", c.lo+int64(m), c.size)
			} else {
				c.err = fmt.Errorf("%s: %w", c.place(), err)
			}
			return nil
		}
	}
	b := c.buf[c.pos-c.lo:][:n]
	c.pos += int64(n)
	return b
}

func (c *cursor) u32(field string) uint32 {
	if b := c.take(4, field); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(field string) uint64 {
	if b := c.take(8, field); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// length reads a string's length and checks it against what remains and against limit.
func (c *cursor) length(field string, limit uint64) uint64 {
	n := c.u64(field)
	if n > limit {
		c.corrupt("%s has %d bytes, over the limit of %d", field, n, limit)
	}
	if !c.has(n, field) {
		return 0
	}
	return n
}

// str reads a string with its length.
func (c *cursor) str(field string, limit uint64) string {
	n := c.length(field, limit)
	if n == 0 {
		return ""
	}
	return c.raw(n, field)
}

// raw reads n bytes as a string.
func (c *cursor) raw(n uint64, field string) string {
	if !c.has(n, field) {
		return ""
	}
	var b strings.Builder
	b.Grow(int(n))
	c.appendTo(&b, n, field)
	return b.String()
}

// appendTo copies the next n bytes to b.
func (c *cursor) appendTo(b *strings.Builder, n uint64, field string) {
	for n > 0 && c.err == nil {
		m := min(n, uint64(cap(c.buf)))
		b.Write(c.take(int(m), field))
		n -= m
	}
}

// short cuts s to a length that fits one line of text.
func short(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}
