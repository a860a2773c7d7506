package chatui

import (
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// key does what a key asks for; what is none of the screen's goes to the editor.
func (s *screen) key(msg tea.KeyPressMsg) tea.Cmd {
	k := msg.String()
	hints := s.hints
	s.hints, s.hint = nil, ""
	switch k {
	case "ctrl+c":
		return s.interrupt()
	case "esc":
		if s.task == replying {
			s.stop(errStopped)
		}
		return nil
	case "ctrl+d":
		if s.ed.Length() == 0 && s.task == idle {
			s.leaving = true
			return nil
		}
	case "ctrl+z":
		_ = s.on.hide() // where it fails the next drawing says so
		return tea.Suspend
	case "ctrl+l":
		return tea.ClearScreen
	case "ctrl+o":
		s.fold()
		return nil
	case "pgup", "pgdown":
		if s.panel {
			s.from += map[string]int{"pgup": -s.panelHeight(), "pgdown": s.panelHeight()}[k]
			return nil
		}
	case "tab":
		s.completion(hints)
		return nil
	case "enter":
		return s.enter()
	case "up", "ctrl+p":
		if s.ed.Line() == 0 && s.ed.LineInfo().RowOffset == 0 {
			s.recall(s.at - 1)
			return nil
		}
	case "down", "ctrl+n":
		if i := s.ed.LineInfo(); s.ed.Line() == s.ed.LineCount()-1 && i.RowOffset >= i.Height-1 {
			s.recall(s.at + 1)
			return nil
		}
	}
	var cmd tea.Cmd
	s.ed, cmd = s.ed.Update(msg)
	return cmd
}

// interrupt is Ctrl-C.
func (s *screen) interrupt() tea.Cmd {
	switch {
	case s.task == replying:
		s.stop(errStopped)
		s.hint = "stopping"
	case s.task == commanding:
		s.hint = "the command is not done yet"
	case s.ed.Length() > 0:
		s.ed.Reset()
		s.pastes = nil
		s.at = len(s.hist.lines)
	case time.Since(s.lastStop) < twice:
		s.leaving = true
	default:
		s.lastStop = time.Now()
		s.hint = "Ctrl-C again, Ctrl-D or /bye leaves"
	}
	return nil
}

// fold shows or hides thoughts: those of the reply that is being made, or of the last one.
func (s *screen) fold() {
	if s.task == replying && !s.told {
		s.t.folded = !s.t.folded
		return
	}
	if s.task == idle && strings.TrimSpace(s.t.thoughts) == "" {
		s.hint = "the last reply has no thoughts"
		return
	}
	s.panel, s.from = !s.panel, 0
}

// thoughts are those that fold is about.
func (s *screen) thoughts() string {
	if s.task == idle {
		return s.t.thoughts
	}
	return s.thought
}

// recall puts a line of the history into the editor.
func (s *screen) recall(at int) {
	n := len(s.hist.lines)
	if at < 0 || at > n || at == s.at {
		return
	}
	if s.at == n {
		s.draft = s.ed.Value()
	}
	s.at = at
	if at == n {
		s.ed.SetValue(s.draft)
	} else {
		s.ed.SetValue(strings.ReplaceAll(s.hist.lines[at], "\t", "    "))
	}
	s.ed.MoveToEnd()
}

// completion goes as far as all candidates agree, then lists them. A second one takes the first.
func (s *screen) completion(before []string) {
	line := s.ed.Value()
	if !strings.HasPrefix(line, "/") || strings.Contains(line, "\n") || s.task == commanding {
		return
	}
	all := s.t.complete(line)
	if len(all) == 0 {
		s.hint = "nothing begins like that"
		return
	}
	to := all[0]
	for _, c := range all[1:] {
		n := 0
		for n < len(to) && n < len(c) && to[n] == c[n] {
			n++
		}
		to = to[:n]
	}
	if len(to) > len(line) {
		s.ed.SetValue(strings.ToValidUTF8(to, ""))
		s.ed.MoveToEnd()
		if len(all) == 1 {
			return
		}
	} else if len(all) > 1 && len(before) > 0 {
		s.ed.SetValue(all[0])
		s.ed.MoveToEnd()
		return
	}
	if len(all) > 1 {
		s.hints = all
	}
}
