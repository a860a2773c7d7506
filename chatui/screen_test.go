package chatui

import (
	"fmt"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// onScreen is a screen without a terminal.
func onScreen(t *testing.T, colour bool) *screen {
	t.Helper()
	k := talking(t, 256, func(o *Options) { o.Screen, o.Colour = true, colour })
	h, err := newHistory(k.o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{ctx: t.Context(), t: k, md: newMarkdown(colour), hist: h}
	s.status.eng = k.eng
	s.ed = s.editor()
	s.Update(tea.WindowSizeMsg{Width: 60, Height: 20})
	t.Cleanup(s.work.Wait)
	return s
}

// press sends keys by their names, and text as it is.
func (s *screen) press(keys ...string) {
	for _, k := range keys {
		m := tea.KeyPressMsg{Text: k}
		switch k {
		case "enter", "tab", "up", "down", "pgdown", "pgup", "esc":
			m = tea.KeyPressMsg{Code: map[string]rune{"enter": tea.KeyEnter, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "esc": tea.KeyEscape}[k]}
		default:
			if c, ok := strings.CutPrefix(k, "ctrl+"); ok {
				m = tea.KeyPressMsg{Code: rune(c[0]), Mod: tea.ModCtrl}
			}
		}
		s.Update(m)
	}
}

// above takes all that was printed.
func (s *screen) above() string {
	var all []string
	all, s.out = s.out, nil
	return strings.Join(all, "\n")
}

func (s *screen) seen(t *testing.T) string {
	t.Helper()
	ls := s.frame()
	v := strings.Join(ls, "\n")
	if len(ls) > s.h {
		t.Errorf("%d lines on a screen of %d:\n%s", len(ls), s.h, v)
	}
	for _, l := range ls {
		if ansi.StringWidth(l) > s.w {
			t.Errorf("%d columns on a screen of %d: %q", ansi.StringWidth(l), s.w, l)
		}
	}
	return v
}

// TestThoughts: they are folded to a count while they come, Ctrl-O shows them; afterwards it unfolds those of the last reply.
func TestThoughts(t *testing.T) {
	s := onScreen(t, true)
	s.above()
	s.task, s.g = replying, &growth{}
	s.g.begin(10)
	for i := range 60 {
		s.g.grow("", fmt.Sprintf("thought number %d\n\n", i))
	}
	s.Update(tickMsg{})
	if v := s.seen(t); !strings.Contains(v, "thinking, 180 words") || strings.Contains(v, "number 59") {
		t.Errorf("folded:\n%s", v)
	}
	s.press("ctrl+o")
	if v := s.seen(t); !strings.Contains(v, "\x1b[2m│ thought number 59") || strings.Contains(v, "number 1\n") {
		t.Errorf("shown:\n%s", v)
	}
	s.press("ctrl+o")
	s.g.grow("# Title\n\nA **bold** word\n\nand", "")
	s.Update(tickMsg{})
	if a := s.above(); !strings.Contains(a, "+ thoughts of 180 words") || !strings.Contains(ansi.Strip(a), "A bold word") || strings.Contains(a, "and") || strings.Contains(a, "number") {
		t.Errorf("above: %q", a)
	}
	if v := s.seen(t); !strings.Contains(v, "and") || strings.Contains(v, "bold") {
		t.Errorf("growing:\n%s", v)
	}
	s.t.thoughts = s.thought
	s.Update(repliedMsg{z: outcome{notes: []string{"a note"}, stopped: true}})
	if a := s.above(); !strings.Contains(a, "and") || !strings.Contains(a, "a note") || !strings.Contains(a, "(stopped)") || s.task != idle {
		t.Errorf("at the end: %q, busy with %d", a, s.task)
	}
	s.press("ctrl+o")
	if v := s.seen(t); !strings.Contains(v, "number 0") || strings.Contains(v, "number 59") || !strings.Contains(v, "PgDn") {
		t.Errorf("unfolded:\n%s", v)
	}
	for range 20 {
		s.press("pgdown")
	}
	if v := s.seen(t); !strings.Contains(v, "number 59") || strings.Contains(v, "number 0\n") {
		t.Errorf("unfolded, at the end:\n%s", v)
	}
	s.Update(tea.WindowSizeMsg{Width: 12, Height: 6})
	s.seen(t)
	s.Update(tea.WindowSizeMsg{Width: 60, Height: 20})
	s.press("ctrl+o")
	if v := s.seen(t); strings.Contains(v, "number") {
		t.Errorf("folded again:\n%s", v)
	}
}

func TestEditor(t *testing.T) {
	s := onScreen(t, false)
	for _, l := range []string{"first", "second"} {
		if err := s.hist.add(l); err != nil {
			t.Fatal(err)
		}
	}
	s.at = len(s.hist.lines)
	s.press("d", "r", "a", "f", "t", "up", "up", "up")
	if v := s.ed.Value(); v != "first" {
		t.Errorf("the oldest line is %q", v)
	}
	s.press("down", "down", "down")
	if v := s.ed.Value(); v != "draft" {
		t.Errorf("the draft is %q", v)
	}
	s.press("ctrl+c")
	if s.ed.Value() != "" || s.leaving {
		t.Errorf("Ctrl-C leaves %q in the editor (leaving: %t)", s.ed.Value(), s.leaving)
	}
	s.press("/", "t", "tab")
	if v := s.seen(t); s.ed.Value() != "/t" || !strings.Contains(v, "/think") || !strings.Contains(v, "/temp") {
		t.Errorf("candidates:\n%s", v)
	}
	s.press("h", "tab")
	if v := s.ed.Value(); v != "/think " {
		t.Errorf("completed to %q", v)
	}
	s.press("ctrl+c")
	s.press("a", `\`, "enter", "b", "ctrl+j", "c")
	if v := s.ed.Value(); v != "a\nb\nc" {
		t.Errorf("three lines are %q", v)
	}
	s.press("ctrl+c")
	long := strings.Repeat("a line\r\n", 1000)
	s.Update(tea.PasteMsg{Content: long})
	s.Update(tea.PasteMsg{Content: "x\ty\rz\x1b[31m"})
	if v := s.ed.Value(); !strings.HasPrefix(v, "[paste 1: 1000 lines, 7.0 kB]x") || !strings.HasSuffix(v, "y\nz[31m") {
		t.Errorf("pasted: %q", v)
	}
	s.seen(t)
	s.task, s.g = replying, &growth{}
	s.press("enter")
	if v := s.seen(t); s.ed.Value() == "" || !strings.Contains(v, "Ctrl-C stops") {
		t.Errorf("sent beside a reply:\n%s", v)
	}
	s.task = idle
	s.above()
	s.press("enter") // the command that makes the reply is not run here
	s.work.Done()
	if m := s.t.msgs; len(m) != 1 || strings.Count(m[0].Content, "a line\n") != 999 || strings.Contains(m[0].Content, "[paste") || s.task != replying {
		t.Errorf("%d messages, busy with %d", len(m), s.task)
	}
	if a := s.above(); !strings.Contains(a, "lines more") || strings.Count(a, "\n") > 20 {
		t.Errorf("shown again: %q", a)
	}
	s.task = idle
	s.press("ctrl+c")
	if s.leaving {
		t.Error("one Ctrl-C leaves")
	}
	s.press("ctrl+c")
	if !s.leaving {
		t.Error("two do not")
	}
}

// TestFrame: the editor with its caret, candidates, the status last.
func TestFrame(t *testing.T) {
	for _, colour := range []bool{false, true} {
		s := onScreen(t, colour)
		s.press("h", "i", "!")
		s.Update(tea.KeyPressMsg{Code: tea.KeyLeft})
		want := map[bool]string{false: "> hi▏!", true: "hi\x1b[0;7m!\x1b[0m"}[colour]
		if ls := s.frame(); len(ls) != 2 || !strings.Contains(ls[0], want) || !strings.HasPrefix(ansi.Strip(ls[1]), "context ") {
			t.Errorf("%q", ls)
		}
		s.press("ctrl+c", "/", "t", "tab")
		if ls := strings.Split(s.seen(t), "\n"); len(ls) != 3 || !strings.Contains(ls[1], "/temp") || !strings.HasPrefix(ansi.Strip(ls[2]), "context ") {
			t.Errorf("with candidates: %q", ls)
		}
	}
}
