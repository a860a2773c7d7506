package chatui

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// paper is a terminal as far as a canvas needs one: rows, of which some go on on the next; when it becomes narrower it breaks those
// that are too long and keeps the cursor at its cell.
type paper struct {
	w, h  int
	rows  []paperRow // all since the start; the last h are the screen
	x, y  int        // y counts from the first row of all
	wraps bool
	fail  error
}

type paperRow struct {
	text []rune
	on   bool // it goes on on the next
}

func (p *paper) Read([]byte) (int, error) { return 0, errors.New("nobody types") }
func (p *paper) Close() error             { return nil }
func (p *paper) Fd() uintptr              { return 0 }
func (p *paper) top() int                 { return max(0, len(p.rows)-p.h) }

func (p *paper) down() {
	if p.y++; p.y == len(p.rows) {
		p.rows = append(p.rows, paperRow{})
	}
}

func (p *paper) Write(b []byte) (int, error) {
	if p.fail != nil {
		return 0, p.fail
	}
	for s := string(b); s != ""; {
		seq, _, n, _ := ansi.DecodeSequence(s, ansi.NormalState, nil)
		s = s[n:]
		row := &p.rows[p.y]
		switch {
		case seq == "\r":
			p.x = 0
		case seq == "\n":
			p.down()
		case seq == ansi.SetModeAutoWrap, seq == ansi.ResetModeAutoWrap:
			p.wraps = seq == ansi.SetModeAutoWrap
		case seq == ansi.EraseLineRight, seq == ansi.EraseScreenBelow:
			row.text, row.on = row.text[:min(p.x, len(row.text))], false
			for i := p.y + 1; i < len(p.rows) && seq == ansi.EraseScreenBelow; i++ {
				p.rows[i] = paperRow{}
			}
		case strings.HasSuffix(seq, "A"):
			var n int
			fmt.Sscanf(seq, "\x1b[%dA", &n)
			p.y = max(p.top(), p.y-max(n, 1))
		case seq[0] == '\x1b':
			return 0, fmt.Errorf("paper does not know %q", seq)
		default:
			if p.x == p.w && p.wraps {
				row.on, p.x = true, 0
				p.down()
				row = &p.rows[p.y]
			}
			at := min(p.x, p.w-1)
			for len(row.text) <= at {
				row.text = append(row.text, ' ')
			}
			row.text[at] = []rune(seq)[0]
			p.x = at + 1
		}
	}
	return len(b), nil
}

// size makes it w columns wide and h rows high.
func (p *paper) size(w, h int) {
	var rows []paperRow
	x, y := p.x, p.y
	for i := 0; i < len(p.rows); {
		var line []rune
		at, last := -1, i // of the cursor in the line
		for ; ; last++ {
			if last == p.y {
				at = len(line) + p.x
			}
			if line = append(line, p.rows[last].text...); !p.rows[last].on {
				break
			}
		}
		if at >= 0 {
			y, x = len(rows)+at/w, at%w
		}
		for len(line) > w {
			rows = append(rows, paperRow{slices.Clone(line[:w]), true})
			line = line[w:]
		}
		rows = append(rows, paperRow{slices.Clone(line), false})
		i = last + 1
	}
	for len(rows) > y+1 && len(rows) > h && len(rows[len(rows)-1].text) == 0 { // what is below the cursor and empty goes first
		rows = rows[:len(rows)-1]
	}
	p.w, p.h, p.rows, p.x, p.y = w, h, rows, x, max(y, len(rows)-h)
}

// text is all that was ever written and not erased, with rows that go on joined.
func (p *paper) text() string {
	var b strings.Builder
	for _, r := range p.rows {
		b.WriteString(string(r.text))
		if !r.on {
			b.WriteByte('\n')
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// TestCanvas: whatever a terminal does to long rows, and while frames for its former width still come, a frame leaves nothing behind.
func TestCanvas(t *testing.T) {
	for _, late := range []int{0, 1, 2} { // frames for the former width that come after a change
		p := &paper{w: 90, h: 24, rows: make([]paperRow, 1), wraps: true}
		c := &canvas{terminal: p}
		want, step := "", 0
		frame := func(w, n int) []string {
			step++
			var rows []string
			for i := range n {
				rows = append(rows, strings.Repeat(string(rune('a'+i)), w-step%3))
			}
			return append(rows, strings.Repeat("-", w))
		}
		draw := func(w, n int, afresh bool) {
			t.Helper()
			above := fmt.Sprintf("line %d", step)
			want += above + "\n"
			if err := c.draw([]string{above}, frame(w, n), afresh); err != nil {
				t.Fatal(err)
			}
			if err := c.draw(nil, frame(w, max(1, n-1)), false); err != nil {
				t.Fatal(err)
			}
		}
		before := 90
		for i, w := range []int{90, 50, 70, 40, 39, 30, 80, 44} {
			p.size(w, 24-i)
			for range late {
				draw(before, 3, false)
			}
			draw(w, 1+i%4, true)
			draw(w, 3, false)
			before = w
		}
		if got := p.text(); strings.Count(got, "-") != 44 || strings.Count(got, "line") != strings.Count(want, "line") {
			t.Errorf("%d late: there stands\n%s\nwant\n%s and a frame", late, got, want)
		}
		if err := c.hide(); err != nil || p.text() != strings.TrimRight(want, "\n") {
			t.Errorf("%d late, hidden: %v, there stands\n%s\nwant\n%s", late, err, p.text(), want)
		}
		if err := c.draw([]string{"unseen"}, []string{"x"}, true); err != nil || strings.Contains(p.text(), "unseen") {
			t.Errorf("a hidden canvas draws: %v", err)
		}
		c.show()
		p.fail = errors.New("gone")
		if err := c.draw(nil, []string{"x"}, true); !errors.Is(err, p.fail) {
			t.Errorf("a terminal that is gone: %v", err)
		}
	}
}

// TestStanding: a reply that grows is the same lines in the end as one that is there at once, and little of it is not above.
func TestStanding(t *testing.T) {
	long := strings.Repeat("Some words of a long paragraph, 1984. - and so on. ", 12)
	for name, x := range map[string]struct {
		text string
		live int // rows that are not above, at most
	}{
		"paragraph": {long + "\n\n" + long, 2},
		"emphasis":  {"A **bold** word and `code`. " + long + "\n\n*" + long + "*", 40},
		"code":      {"Look:\n\n```go\n" + strings.Repeat("x := 1 * 2\n\n", 30) + "```\n\nThat is all.", 3},
		"list":      {strings.Repeat("- one more item of a list that is somewhat long and goes over two rows\n", 20) + "\nEnd", 5},
		"loose":     {"1. first\n\n2. second\n\n3. third\n\nEnd", 8},
		"table":     {"| a | b |\n|---|---|\n" + strings.Repeat("| 1 | 2 |\n", 20) + "\nEnd", 40},
		"stray":     {"2 * 3 is " + long, 40},
	} {
		for _, colour := range []bool{false, true} {
			s := onScreen(t, colour)
			s.above()
			s.task, s.g = replying, &growth{}
			most := 0
			var got []string
			for i := range len(x.text) {
				s.g.grow(x.text[i:i+1], "")
				s.Update(tickMsg{})
				most = max(most, len(s.md.lines(s.rest(), s.w)))
				s.seen(t)
				if i == len(x.text)/2 {
					s.Update(logMsg("a line of the log"))
				}
			}
			s.Update(repliedMsg{})
			for _, l := range strings.Split(s.above(), "\n") {
				if l = ansi.Strip(l); l != "" && l != "a line of the log" {
					got = append(got, l)
				}
			}
			var want []string
			for _, l := range s.md.lines(x.text, s.w) {
				if l = ansi.Strip(l); l != "" {
					want = append(want, l)
				}
			}
			if !slices.Equal(got, want) || most > x.live {
				t.Errorf("%s, colour %t, at most %d rows live, want %d:\n%s\nwant\n%s", name, colour, most, x.live, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	s := onScreen(t, false)
	s.above()
	s.task, s.g = replying, &growth{}
	s.g.grow(long, "")
	s.Update(tickMsg{})
	s.Update(logMsg("a line of the log"))
	s.g.grow("\n\nNext\n\n", "")
	s.Update(tickMsg{})
	a := s.above()
	if i, j := strings.Index(a, "the log"), strings.LastIndex(a, "so on."); i < j || i < 0 {
		t.Errorf("the log's line is within a paragraph, or nowhere:\n%s", a)
	}
}
