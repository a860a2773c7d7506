package chatui

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// history is what was typed, the latest last. Its file has a head and then a JSON string a line.
type history struct {
	path    string // "": it is not kept
	lines   []string
	damaged int // lines of the file that are none
}

// historyHead is the file's first line; files without it are of the version before, which had none.
type historyHead struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

const (
	historyFormat  = "terrace chat history"
	historyVersion = 1
	mostHistory    = 64 << 20 // bytes of a file
)

// errNewHistory is why a file of a later version is left alone.
var errNewHistory = errors.New("it is of a newer program")

func newHistory(dir string) (*history, error) {
	h := &history{}
	if dir == "" {
		return h, nil
	}
	h.path = filepath.Join(dir, "history.jsonl")
	err := h.read()
	if err == nil && h.damaged > 0 {
		err = fmt.Errorf("%s: %d lines are damaged and left out", h.path, h.damaged)
	}
	return h, err
}

// read takes what the file has. Lines that are none are counted and passed over.
func (h *history) read() error {
	f, err := os.Open(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	h.lines, h.damaged = h.lines[:0], 0
	in := bufio.NewReader(io.LimitReader(f, mostHistory))
	for n := 0; ; n++ {
		b, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		var s string
		var head historyHead
		switch {
		case len(b) == 0:
		case n == 0 && json.Unmarshal(b, &head) == nil && head.Format == historyFormat:
			if head.Version > historyVersion {
				return fmt.Errorf("%s: %w: version %d, this one knows %d", h.path, errNewHistory, head.Version, historyVersion)
			}
		case json.Unmarshal(b, &s) == nil && s != "" && len(s) <= historyLine:
			h.lines = append(h.lines, s)
		default:
			h.damaged++
		}
		if err == io.EOF {
			break
		}
	}
	if n := len(h.lines) - historyLines; n > 0 {
		h.lines = append(h.lines[:0], h.lines[n:]...)
	}
	return nil
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
	b, err := json.Marshal(historyHead{historyFormat, historyVersion})
	if err != nil {
		return err
	}
	b = append(b, '\n')
	for _, s := range h.lines {
		j, err := json.Marshal(s)
		if err != nil {
			return err
		}
		b = append(append(b, j...), '\n')
	}
	return host.ReplacePrivate(h.path, b) // what was said to a model is nobody else's
}
