package main

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"
)

// TestWords: what a person at a terminal reads, and what is too small to be told.
func TestWords(t *testing.T) {
	var b bytes.Buffer
	l := slog.New(newWords(&b, slog.LevelWarn))
	l.Info("decided")
	l.Warn("the budget is small", "limit", 5, "free_bytes", 7)
	l.With("file", "a.gguf").WithGroup("disk").Error("a read failed", "reason", errors.New("input/output error"), "none", "")
	l.Warn("no more")
	const want = "terrace: warning: the budget is small (limit 5, free bytes 7)\n" +
		"terrace: error: a read failed (file a.gguf, disk reason input/output error)\n" +
		"terrace: warning: no more\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	b.Reset()
	slog.New(newWords(&b, slog.LevelInfo)).Info("decided", "after", time.Second)
	if got := b.String(); got != "terrace: decided (after 1s)\n" {
		t.Error(got)
	}
}
