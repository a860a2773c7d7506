package main

import (
	"context"
	"io"
	"strings"
	"unicode"
)

// interruptible is standard input whose reads end with the context: a read that waits for a terminal or a pipe would
// otherwise make the program deaf to an interrupt. A read left behind keeps its own buffer.
type interruptible struct {
	ctx  context.Context
	r    io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (r *interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.buf == nil {
		r.buf, r.done = make([]byte, 64<<10), make(chan readResult, 1)
	}
	b := r.buf[:min(len(p), len(r.buf))]
	go func() {
		n, err := r.r.Read(b)
		r.done <- readResult{n, err}
	}()
	select {
	case x := <-r.done:
		return copy(p, b[:x.n]), x.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// watched remembers the first failed write, so that a report cut short by a full disk is not taken for a success.
type watched struct {
	w   io.Writer
	err error
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil && w.err == nil {
		w.err = err
	}
	return n, err
}

// oneLine replaces line ends and other control characters, which a file's names and messages may hold.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
