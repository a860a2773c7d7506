package chatui

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"terrace/internal/host"
)

// What is kept of what was typed.
const (
	historyLines = 1000
	historyLine  = 64 << 10 // bytes of one; longer ones are not kept
)

// history is what was typed, the latest last. Its file has a JSON string a line.
type history struct {
	path  string // "": it is not kept
	lines []string
}

func newHistory(dir string) (*history, error) {
	h := &history{}
	if dir == "" {
		return h, nil
	}
	h.path = filepath.Join(dir, "history.jsonl")
	return h, h.read()
}

// read takes what the file has. Lines that are none are passed over.
func (h *history) read() error {
	f, err := os.Open(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	h.lines = h.lines[:0]
	in := bufio.NewScanner(f)
	in.Buffer(nil, 8*historyLine)
	for in.Scan() {
		var s string
		if json.Unmarshal(in.Bytes(), &s) == nil && s != "" {
			h.lines = append(h.lines, s)
		}
	}
	if n := len(h.lines) - historyLines; n > 0 {
		h.lines = append(h.lines[:0], h.lines[n:]...)
	}
	return in.Err()
}

// add appends a line and writes the file anew, with what other programs appended to it meanwhile.
func (h *history) add(line string) error {
	if line == "" || len(line) > historyLine {
		return nil
	}
	put := func() {
		if n := len(h.lines); n == 0 || h.lines[n-1] != line {
			h.lines = append(h.lines, line)
		}
		if n := len(h.lines) - historyLines; n > 0 {
			h.lines = append(h.lines[:0], h.lines[n:]...)
		}
	}
	if h.path == "" {
		put()
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.path), 0o700); err != nil {
		put()
		return err
	}
	unlock, err := host.LockFile(h.path+".lock", 5*time.Second)
	if err != nil {
		put()
		return err
	}
	defer unlock()
	err = h.read()
	put()
	if err != nil {
		return fmt.Errorf("%s: %w", h.path, err)
	}
	var b []byte
	for _, s := range h.lines {
		j, err := json.Marshal(s)
		if err != nil {
			return err
		}
		b = append(append(b, j...), '\n')
	}
	if err := host.ReplaceFile(h.path, b); err != nil {
		return err
	}
	return os.Chmod(h.path, 0o600) // what was said to a model is nobody else's
}
