package chatui

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"terrace/engine"
)

// View draws the live part. It is a canvas's work: the program that asks for the view is left in the belief that there is none.
func (s *screen) View() tea.View {
	if s.on != nil {
		if err := s.on.draw(s.out, s.frame(), s.afresh); err != nil && !s.leaving {
			s.leaving = true
		}
		s.out, s.afresh = nil, false
	}
	return tea.View{}
}

// frame is the live part: what grows, the editor, hints, the status. It never has more lines than the terminal.
func (s *screen) frame() []string {
	if s.leaving && s.task == idle {
		return nil
	}
	var below []string
	switch {
	case s.hint != "":
		below = append(below, s.md.paint(ansi.Truncate(s.hint, s.w, ""), styleFaint))
	case len(s.hints) > 0:
		below = append(below, s.md.paint(ansi.Truncate(strings.Join(s.hints, "  "), s.w, "..."), styleFaint))
	}
	field := strings.Split(s.ed.View(), "\n")
	line := s.md.paint(ansi.Truncate(s.status.text(s), s.w, "..."), styleFaint)
	room := s.h - len(field) - len(below) - 1
	var live []string
	switch {
	case s.task == replying:
		live = s.growing(room)
	case s.panel:
		live = s.panelLines()
	}
	if len(live) > max(room, 0) {
		live = live[len(live)-max(room, 0):]
	}
	if c := s.ed.Cursor(); c != nil && c.Y < len(field) {
		field[c.Y] = s.md.caret(field[c.Y], c.X, s.w)
	}
	return append(append(append(live, field...), below...), line)
}

// growing is what of the reply is not above yet, its end where there is no room for all: half of what there is, since a terminal that
// becomes narrower makes more rows of it, and what it pushes off the screen nobody can erase.
func (s *screen) growing(room int) []string {
	room = (room + 1) / 2
	rest := s.rest()
	if strings.TrimSpace(rest) == "" {
		if s.told || s.text != "" || strings.TrimSpace(s.thought) == "" {
			if s.panel {
				return append(s.panelLines(), "")
			}
			return nil
		}
		if s.t.folded {
			say := fmt.Sprintf("+ thinking, %s so far; Ctrl-O shows it", count(len(strings.Fields(s.thought)), "word"))
			return []string{s.md.paint(ansi.Truncate(say, s.w, ""), styleFaint), ""}
		}
		ls := s.faint(s.thought, s.w)
		if n := len(ls) - max(room-1, 1); n > 0 {
			ls = ls[n:]
		}
		return append(ls, "")
	}
	ls := s.md.lines(rest, s.w)
	return append(ls[max(0, len(ls)-max(room-1, 1)):], "")
}

// panelHeight is how many lines of unfolded thoughts are shown at once.
func (s *screen) panelHeight() int { return max(1, min(s.h/2, s.h-s.ed.Height()-4)) }

// panelLines are unfolded thoughts.
func (s *screen) panelLines() []string {
	ls := s.faint(s.thoughts(), s.w)
	n := s.panelHeight()
	s.from = max(0, min(s.from, len(ls)-n))
	if len(ls) <= n {
		return ls
	}
	end := min(s.from+n, len(ls))
	return append(append([]string(nil), ls[s.from:end]...),
		s.md.paint(ansi.Truncate(fmt.Sprintf("lines %d to %d of %d: PgUp, PgDn, Ctrl-O", s.from+1, end, len(ls)), s.w, ""), styleFaint))
}

// status is what the line below the editor tells.
type status struct {
	eng    *engine.Engine
	tiers  engine.Tiers
	at     time.Time // when it was looked at
	pre    engine.PreloadProgress
	first  engine.PreloadProgress // when it was looked at first
	since  time.Time
	held   int // positions that the last reply left
	lately engine.Stats
	any    bool // lately is a reply's
}

// look asks the engine.
func (z *status) look(s *screen) {
	now := time.Now()
	z.pre = z.eng.Preloading()
	if z.since.IsZero() {
		z.since, z.first = now, z.pre
	}
	if s.task == replying && now.Sub(z.at) >= 3*refresh {
		z.at, z.tiers = now, z.eng.Tiers()
	}
	if s.task == idle {
		z.held = s.t.s.Pos()
		if z.any = s.t.last != nil; z.any {
			z.lately = *s.t.last
		}
	}
}

// warming tells that hot experts are still being read.
func (z *status) warming() bool { return z.pre.Done < z.pre.Total }

// text is the line. Its most telling part comes first, since a narrow terminal cuts the rest.
func (z *status) text(s *screen) string {
	var parts []string
	add := func(format string, a ...any) { parts = append(parts, fmt.Sprintf(format, a...)) }
	most := s.t.context()
	used := func(n int) { add("context %d/%d (%d %%)", n, most, 100*n/most) }
	switch {
	case s.task == commanding:
		add("working on it")
	case s.task == replying:
		s.g.mu.Lock()
		prompt, tokens, first := s.g.prompt, s.g.tokens, s.g.first
		s.g.mu.Unlock()
		if tokens == 0 {
			add("reading the message, %.0f s", time.Since(s.started).Seconds())
		} else if d := time.Since(first).Seconds(); tokens > 1 && d > 0 {
			add("%.1f tokens/s", float64(tokens-1)/d)
		}
		used(prompt + tokens)
		if c := &z.tiers.Recent.Cache; c.Touches > 0 {
			share := func(n int64) float64 { return 100 * float64(n) / float64(c.Touches) }
			add("experts: RAM %.0f %%, on their way %.0f %%, disk %.0f %%", share(c.Hits), share(c.InFlight), share(c.Misses))
			add("disk %.0f MB/s", c.BytesPerSecond()/1e6)
		}
		if l := limitWord(z.tiers.Limit.Code); l != "" {
			add("limit: %s", l)
		}
	default:
		if z.any {
			st := &z.lately
			if st.PredictedPerSecond > 0 {
				add("%.1f tokens/s", st.PredictedPerSecond)
			}
			used(z.held)
			if st.Touches > 0 {
				share := func(n int64) float64 { return 100 * float64(n) / float64(st.Touches) }
				vram := ""
				if st.HitsVRAM > 0 {
					vram = fmt.Sprintf("VRAM %.0f %%, ", share(st.HitsVRAM))
				}
				add("experts: %sRAM %.0f %%, on their way %.0f %%, disk %.0f %%", vram, share(st.HitsRAM), share(st.HitsInflight), share(st.Misses))
				add("disk %.0f MB/s", st.DiskBytesPerSecond/1e6)
			}
			if l := limitWord(z.tiers.Limit.Code); l != "" {
				add("limit: %s", l)
			}
		} else {
			used(z.held)
		}
	}
	if z.warming() {
		p := fmt.Sprintf("reading hot experts %d %%", 100*z.pre.Done/max(z.pre.Total, 1))
		if d := time.Since(z.since); z.pre.Done > z.first.Done && d > time.Second {
			left := float64(z.pre.Total-z.pre.Done) / float64(z.pre.Done-z.first.Done) * d.Seconds()
			p += fmt.Sprintf(", %.0f s left", left)
		}
		parts = append(parts, p)
	}
	if s.task == idle { // a command may be changing the files
		if n := len(s.t.files); n > 0 {
			add("%s attached", count(n, "file"))
		}
	}
	return strings.Join(parts, " | ")
}

// limitWord names what holds the work back, "" where nothing does.
func limitWord(c engine.LimitCode) string {
	switch c {
	case engine.LimitDisk:
		return "the disk"
	case engine.LimitMemory:
		return "memory bandwidth"
	case engine.LimitCompute:
		return "arithmetic"
	case engine.LimitProcessor:
		return "processor and memory"
	}
	return ""
}
