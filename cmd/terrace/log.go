package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"terrace/internal/host"
)

// logger tells warnings, and with --verbose what is decided: in words to a person at a terminal, else, and for a server, in
// lines of key=value with their time.
func logger(c *cli.Context, e env) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelWarn}
	if c.Bool("verbose") {
		o.Level = slog.LevelInfo
	}
	if f, ok := e.tty.errFile(); ok && host.IsTerminal(f) && c.Command.Name != "serve" {
		return slog.New(newWords(e.err, o.Level))
	}
	return slog.New(slog.NewTextHandler(e.err, o))
}

// words is a slog.Handler for people: "terrace: warning: what happened (why this, limit 5)".
type words struct {
	mu    *sync.Mutex // of w, and of whoever shares it by With
	w     io.Writer
	level slog.Leveler
	known []slog.Attr // by With
	group string      // in front of keys
}

func newWords(w io.Writer, level slog.Leveler) *words {
	return &words{mu: new(sync.Mutex), w: w, level: level}
}

// Enabled implements slog.Handler.
func (h *words) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h *words) WithAttrs(as []slog.Attr) slog.Handler {
	n := *h
	n.known = append(n.known[:len(n.known):len(n.known)], prefixed(h.group, as)...)
	return &n
}

// WithGroup implements slog.Handler.
func (h *words) WithGroup(name string) slog.Handler {
	n := *h
	if name != "" {
		n.group += name + " "
	}
	return &n
}

// prefixed puts a group before keys.
func prefixed(group string, as []slog.Attr) []slog.Attr {
	out := make([]slog.Attr, len(as))
	for i, a := range as {
		out[i] = slog.Attr{Key: group + a.Key, Value: a.Value}
	}
	return out
}

// Handle implements slog.Handler.
func (h *words) Handle(_ context.Context, r slog.Record) error {
	var b bytes.Buffer
	b.WriteString("terrace: ")
	switch {
	case r.Level >= slog.LevelError:
		b.WriteString("error: ")
	case r.Level >= slog.LevelWarn:
		b.WriteString("warning: ")
	}
	b.WriteString(r.Message)
	between := " ("
	add := func(a slog.Attr) {
		v := a.Value.Resolve().String()
		if a.Key == "" || v == "" {
			return
		}
		b.WriteString(between + strings.ReplaceAll(a.Key, "_", " ") + " " + v)
		between = ", "
	}
	for _, a := range h.known {
		add(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		add(prefixed(h.group, []slog.Attr{a})[0])
		return true
	})
	if between == ", " {
		b.WriteByte(')')
	}
	b.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.w.Write(b.Bytes())
	return err
}
