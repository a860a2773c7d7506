package chatui

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"
)

// terminal is what a canvas draws on: an *os.File that is one.
type terminal interface {
	io.ReadWriteCloser
	Fd() uintptr
}

// canvas is the end of a terminal's text: a frame of rows that is drawn again and again, and lines that are put above it for good.
//
// Between two drawings the cursor rests, hidden, on the frame's first cell. A terminal that becomes narrower breaks rows in two and
// moves all of them, but it keeps the cursor at the cell where it was; so everything of the frame is at the cursor or below it,
// whatever a terminal does with long rows and however many frames for the former width are still on their way, and erasing from
// there on leaves nothing behind. A cursor further down would have to know how many rows there are above it by now, which differs
// from terminal to terminal.
type canvas struct {
	terminal
	mu     sync.Mutex
	rows   []string // the frame as it stands there
	hidden bool     // somebody else has the terminal
	err    error    // the first that a drawing met
}

// Write is for the program that reads keys: it sets modes and, of a frame that it believes to be empty, erases from the cursor on.
func (c *canvas) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.terminal.Write(p)
	if err == nil && len(c.rows) > 0 {
		c.put(nil, c.rows, true)
	}
	return n, err
}

// draw puts lines above the frame and makes the frame rows, each of them at most as wide as the terminal and complete in its
// attributes; afresh where the terminal may have moved what stood there.
func (c *canvas) draw(above, rows []string, afresh bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hidden {
		c.put(above, rows, afresh)
	}
	return c.err
}

// hide takes the frame away and shows the cursor, until show.
func (c *canvas) hide() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(nil, nil, true)
	c.hidden = true
	return c.err
}

func (c *canvas) show() {
	c.mu.Lock()
	c.hidden = false
	c.mu.Unlock()
}

func (c *canvas) put(above, rows []string, afresh bool) {
	afresh = afresh || len(above) > 0
	same := len(rows) == len(c.rows)
	for i := range rows {
		same = same && rows[i] == c.rows[i]
	}
	if same && !afresh {
		return
	}
	var b strings.Builder
	b.WriteByte('\r')
	if afresh {
		b.WriteString(ansi.EraseScreenBelow)
	}
	for _, l := range above {
		b.WriteString(l + "\r\n") // where it is too long after all the terminal breaks it: nothing is lost
	}
	b.WriteString(ansi.ResetModeAutoWrap) // a row of the frame is one row, or the way back up would be longer
	down := 0
	for i, row := range rows {
		if i > 0 {
			b.WriteString("\r\n")
			down++
		}
		if afresh || i >= len(c.rows) || row != c.rows[i] {
			b.WriteString(ansi.EraseLineRight + row)
		}
	}
	if !afresh && len(c.rows) > len(rows) {
		if len(rows) > 0 {
			b.WriteString("\r\n")
			down++
		}
		b.WriteString(ansi.EraseScreenBelow)
	}
	if down > 0 {
		b.WriteString(ansi.CursorUp(down))
	}
	b.WriteString("\r" + ansi.SetModeAutoWrap)
	if _, err := io.WriteString(c.terminal, b.String()); err != nil && c.err == nil {
		c.err = fmt.Errorf("the terminal: %w", err)
	}
	c.rows = append(c.rows[:0], rows...)
}

// caret marks the cell of a row at column x, since the terminal's own cursor is elsewhere: by its attributes, or where there may be
// none by a bar before it.
func (m *markdown) caret(row string, x, width int) string {
	left, rest := ansi.Truncate(row, x, ""), ansi.TruncateLeft(row, x, "")
	if short := x - ansi.StringWidth(left); short > 0 {
		left += strings.Repeat(" ", short)
	}
	if !m.colour {
		return ansi.Truncate(left+"▏"+rest, width, "")
	}
	cell, n := " ", 1
	for w := 1; w <= 2; w++ {
		if s := ansi.Strip(ansi.Cut(row, x, x+w)); s != "" {
			cell, n = s, ansi.StringWidth(s)
			break
		}
	}
	return left + "\x1b[0;7m" + cell + "\x1b[0m" + ansi.TruncateLeft(row, x+n, "")
}
