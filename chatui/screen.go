package chatui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/textarea"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"

	"terrace/engine"
)

const (
	// refresh is how often the screen looks at a reply: drawing takes time from the processor that makes it.
	refresh = 100 * time.Millisecond
	// quiet is how often it looks when nothing is asked.
	quiet = time.Second
	// longPaste is what is pasted as one sign, so that the editor stays quick: lines, bytes.
	longPasteLines, longPaste = 200, 16 << 10
	// echoed is how many lines of a message are shown again above its reply.
	echoed = 12
)

// task is what goes on besides typing.
type task int

const (
	idle task = iota
	replying
	commanding
)

// growth is a reply on its way from the goroutine that makes it to the screen.
type growth struct {
	mu               sync.Mutex
	content, thought strings.Builder
	prompt, tokens   int
	first            time.Time
	notes            []string
}

func (g *growth) begin(prompt int) {
	g.mu.Lock()
	g.prompt = prompt
	g.mu.Unlock()
}

func (g *growth) note(text string) {
	g.mu.Lock()
	g.notes = append(g.notes, text)
	g.mu.Unlock()
}

func (g *growth) grow(content, thought string) {
	g.mu.Lock()
	g.content.WriteString(clean(content))
	g.thought.WriteString(clean(thought))
	if g.tokens++; g.tokens == 1 {
		g.first = time.Now()
	}
	g.mu.Unlock()
}

// screen is the conversation on a terminal: what is finished is above, for the terminal to scroll; below is what grows, the editor
// and the status.
type screen struct {
	ctx  context.Context
	t    *talk
	md   *markdown
	ed   textarea.Model
	w, h int

	hist     *history
	at       int    // in hist.lines; their number: the draft
	draft    string // what was being typed
	pastes   []string
	hints    []string // candidates of a completion
	hint     string   // one line below the editor
	lastStop time.Time

	on      *canvas  // nil: nobody looks
	out     []string // lines that are not above yet
	held    []string // lines that wait for the end of a block that has begun above
	afresh  bool     // all is drawn again
	leaving bool

	task    task
	stop    context.CancelCauseFunc
	g       *growth
	started time.Time
	text    string // of the reply so far
	shown   int    // bytes of it that stand above
	reopen  string // what has to come before the rest, for it to be Markdown by itself
	within  bool   // of the block that the rest goes on with, rows stand above
	tried   int    // rows of the rest that did not come apart
	thought string
	told    bool // the thoughts are above
	panel   bool // the thoughts of the last reply are unfolded
	from    int  // first line of them that is shown
	work    sync.WaitGroup
	status  status
}

// Messages of the screen's own.
type (
	tickMsg    struct{}
	logMsg     string
	repliedMsg struct {
		z   outcome
		err error
	}
	commandedMsg struct {
		line, say string
		do        action
		err       error
	}
)

func runScreen(ctx context.Context, t *talk, in *os.File, greeting string) error {
	hist, err := newHistory(t.o.Dir)
	s := &screen{ctx: ctx, t: t, md: newMarkdown(t.o.Colour), hist: hist, at: len(hist.lines), w: 80, h: 24}
	s.status.eng = t.eng
	s.ed = s.editor()
	out, ok := t.o.Out.(terminal)
	if !ok {
		panic("chatui: a screen needs an *os.File to draw on")
	}
	s.on = &canvas{terminal: out}
	s.print(s.md.paint(fmt.Sprintf("%s, context of %s. /help lists commands and keys, /bye leaves.", clean(t.o.Name), count(t.context(), "token")), styleFaint))
	if greeting != "" {
		s.print(s.md.paint(greeting, styleFaint))
		s.replay()
	}
	if err != nil {
		s.warn(fmt.Sprintf("the history cannot be read: %v", err))
	}
	opts := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(s.on), tea.WithoutSignalHandler(), tea.WithEnvironment(t.o.Environ), tea.WithFPS(30)}
	if !t.o.Colour {
		opts = append(opts, tea.WithColorProfile(colorprofile.Ascii))
	}
	p := tea.NewProgram(s, opts...)
	if t.o.Divert != nil {
		restore := t.o.Divert(func(line string) { go p.Send(logMsg(line)) })
		defer restore()
	}
	_, err = p.Run()
	if derr := s.on.hide(); err == nil {
		err = derr
	}
	if s.stop != nil {
		s.stop(errStopped)
	}
	s.work.Wait() // the engine may be closed after this
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// editor is the field in which messages are typed.
func (s *screen) editor() textarea.Model {
	ed := textarea.New()
	ed.ShowLineNumbers = false
	ed.Placeholder = "a message, or /help"
	ed.SetPromptFunc(2, func(i textarea.PromptInfo) string {
		if i.LineNumber == 0 {
			return "> "
		}
		return "  "
	})
	ed.DynamicHeight, ed.MinHeight, ed.MaxHeight, ed.MaxContentHeight = true, 1, 8, 1<<20
	ed.EndOfBufferCharacter = ' '
	ed.KeyMap.InsertNewline = key.NewBinding(key.WithKeys("alt+enter", "shift+enter", "ctrl+j"))
	ed.KeyMap.Paste = key.NewBinding() // the terminal pastes
	var st textarea.StyleState
	plain := lipgloss.NewStyle()
	st.Base, st.Text, st.LineNumber, st.CursorLineNumber, st.CursorLine, st.EndOfBuffer, st.Placeholder, st.Prompt, st.Selection =
		plain, plain, plain, plain, plain, plain, plain, plain, plain
	if s.t.o.Colour {
		st.Placeholder, st.Prompt, st.Selection = plain.Faint(true), plain.Bold(true), plain.Reverse(true)
	}
	ed.SetStyles(textarea.Styles{Focused: st, Blurred: st, Cursor: textarea.CursorStyle{Shape: tea.CursorBlock, Blink: true}})
	ed.SetVirtualCursor(false)
	ed.Focus()
	return ed
}

func (s *screen) Init() tea.Cmd { return s.tick() }

func (s *screen) tick() tea.Cmd {
	d := quiet
	if s.task != idle || s.status.warming() {
		d = refresh
	}
	return tea.Tick(d, func(time.Time) tea.Msg { return tickMsg{} })
}

// print puts lines above.
func (s *screen) print(text string) { s.out = append(s.out, wrapAll(text, s.w)...) }

// tell prints what is no part of the reply: between two blocks of it, not within one.
func (s *screen) tell(text string) {
	if s.within {
		s.held = append(s.held, text)
		return
	}
	s.print(text)
}

func (s *screen) warn(text string) { s.tell(s.md.paint(clean(text), styleWarn)) }

func wrapAll(text string, width int) []string {
	var out []string
	for _, l := range strings.Split(text, "\n") {
		if ansi.StringWidth(l) > width {
			out = append(out, wrap(l, width)...)
		} else {
			out = append(out, l)
		}
	}
	return out
}

// replay shows the end of a loaded conversation.
func (s *screen) replay() {
	from := max(0, len(s.t.msgs)-2)
	if from > 0 {
		s.print(s.md.paint(fmt.Sprintf("... %s before", count(from, "message")), styleFaint))
	}
	for _, m := range s.t.msgs[from:] {
		if m.Role == "user" {
			s.echo(m.Content)
		} else {
			s.print(strings.Join(s.md.lines(clean(m.Content), s.w), "\n") + "\n")
		}
	}
}

// echo shows what was said.
func (s *screen) echo(text string) {
	ls := wrapAll(strings.ReplaceAll(clean(text), "\t", "    "), max(s.w-2, 8))
	more := ""
	if n := len(ls) - echoed; n > 1 {
		ls, more = ls[:echoed], "\n"+s.md.paint(fmt.Sprintf("  ... and %s more", count(n, "line")), styleFaint)
	}
	for i := range ls {
		ls[i] = s.md.paint(ls[i], stylePerson)
	}
	s.print("\n" + strings.Join(prefixed(ls, "> ", "  "), "\n") + more + "\n")
}

func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmds []tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.w, s.h = max(msg.Width, 10), max(msg.Height, 4)
		s.ed.MaxHeight = max(1, min(10, s.h/3))
		s.ed.SetWidth(s.w)
		s.afresh, s.tried = true, 0
	case tea.ResumeMsg:
		s.on.show()
		s.afresh = true
	case tickMsg:
		s.grown()
		s.status.look(s)
		cmds = append(cmds, s.tick())
	case logMsg:
		s.grown() // what was said before it
		s.tell(s.md.paint(clean(string(msg)), styleFaint))
	case repliedMsg:
		s.replied(msg.z, msg.err)
	case commandedMsg:
		cmds = append(cmds, s.commanded(msg))
	case tea.PasteMsg:
		cmds = append(cmds, s.paste(msg.Content))
	case tea.KeyPressMsg:
		cmds = append(cmds, s.key(msg))
	default:
		var cmd tea.Cmd
		s.ed, cmd = s.ed.Update(msg)
		cmds = append(cmds, cmd)
	}
	if s.leaving && s.task == idle {
		cmds = append(cmds, tea.Quit)
	}
	return s, tea.Batch(cmds...)
}

// grown takes what has come of the reply, and sends above what of it will not change.
func (s *screen) grown() {
	if s.task != replying {
		return
	}
	s.g.mu.Lock()
	s.text, s.thought = s.g.content.String(), s.g.thought.String()
	notes := s.g.notes
	s.g.notes = nil
	s.g.mu.Unlock()
	for _, n := range notes {
		s.warn(n + "\n")
	}
	if s.thought != "" && s.text != "" {
		s.tellThought()
	}
	if n := settled(s.rest()); n > 0 {
		s.printReply(n)
	}
	rest := s.rest()
	if rows := s.md.lines(rest, s.w); len(rows) > max(1, s.tried) {
		n, reopen := s.md.standing(rest, rows, s.w)
		if s.tried = len(rows); n > 0 {
			s.print(strings.Join(s.md.lines(rest[:n], s.w), "\n"))
			s.taken(n)
			s.reopen, s.within = reopen, true
		}
	}
}

// rest is what of the reply is not above.
func (s *screen) rest() string { return s.reopen + s.text[s.shown:] }

// taken counts the first n bytes of the rest as being above.
func (s *screen) taken(n int) {
	s.shown += n - len(s.reopen)
	s.reopen, s.tried = "", 0
}

// printReply sends the next n bytes of the rest above, which end a block.
func (s *screen) printReply(n int) {
	block := s.rest()[:n]
	if rows := s.md.lines(block, s.w); len(rows) > 0 {
		s.print(strings.Join(rows, "\n") + "\n")
	} else if s.within {
		s.print("")
	}
	s.taken(n)
	s.within = false
	for _, text := range s.held {
		s.print(text)
	}
	s.held = nil
}

// tellThought puts the thoughts above once, or how many they were.
func (s *screen) tellThought() {
	if s.told || strings.TrimSpace(s.thought) == "" {
		return
	}
	s.told = true
	if s.t.folded {
		s.print(s.md.paint(fmt.Sprintf("+ thoughts of %s, Ctrl-O shows them", count(len(strings.Fields(s.thought)), "word")), styleFaint) + "\n")
		return
	}
	s.print(strings.Join(s.faint(s.thought, s.w), "\n") + "\n")
}

// faint is text that is beside the point, on lines.
func (s *screen) faint(text string, width int) []string {
	ls := wrapAll(strings.ReplaceAll(strings.TrimSpace(text), "\t", "    "), max(width-2, 8))
	for i := range ls {
		ls[i] = s.md.paint("│ "+ls[i], styleFaint)
	}
	return ls
}

// replied ends a reply.
func (s *screen) replied(z outcome, err error) {
	s.grown()
	s.status.tiers = s.t.eng.Tiers()
	s.tellThought()
	s.printReply(len(s.rest()))
	if z.stopped {
		s.print(s.md.paint("(stopped)", styleFaint) + "\n")
	}
	for _, n := range z.notes {
		s.warn(n)
	}
	if z.report != "" {
		s.print(clean(strings.TrimRight(z.report, "\n")))
	}
	if err != nil {
		hint := ""
		if errors.Is(err, engine.ErrPrompt) {
			hint = "; -c N makes the context larger"
		}
		s.warn(err.Error() + hint + ". The message is taken back; Up brings it into the editor.")
	}
	s.task, s.stop = idle, nil
	s.text, s.shown = "", 0
	s.status.look(s)
}

// reply has the last message answered.
func (s *screen) reply() tea.Cmd {
	ctx, stop := context.WithCancelCause(s.ctx)
	g := &growth{}
	s.task, s.stop, s.g, s.started = replying, stop, g, time.Now()
	s.text, s.shown, s.thought, s.told, s.panel = "", 0, "", false, false
	s.work.Add(1)
	return func() tea.Msg {
		defer s.work.Done()
		defer stop(nil)
		z, err := s.t.reply(ctx, g)
		return repliedMsg{z, err}
	}
}

// enter sends what was typed.
func (s *screen) enter() tea.Cmd {
	text := s.ed.Value()
	if open, ok := strings.CutPrefix(strings.TrimSpace(text), `"""`); ok {
		body, closed := strings.CutSuffix(open, `"""`)
		if !closed {
			s.ed.InsertString("\n")
			return nil
		}
		text = strings.Trim(body, "\n")
	} else if strings.HasSuffix(text, `\`) {
		s.ed.SetValue(strings.TrimSuffix(text, `\`) + "\n")
		return nil
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	if s.task != idle {
		s.hint = "Ctrl-C stops the reply"
		return nil
	}
	for i, p := range s.pastes {
		text = strings.ReplaceAll(text, pasteSign(i, p), p)
	}
	s.pastes = nil
	if err := s.hist.add(text); err != nil {
		s.warn(fmt.Sprintf("the history is not kept: %v", err))
	}
	s.at, s.draft = len(s.hist.lines), ""
	s.ed.Reset()
	if isCommand(text) {
		s.print(s.md.paint("> "+clean(text), stylePerson))
		s.task = commanding
		s.work.Add(1)
		return func() tea.Msg {
			defer s.work.Done()
			say, do, err := s.t.do(text)
			return commandedMsg{text, say, do, err}
		}
	}
	s.t.say(text)
	s.echo(s.t.msgs[len(s.t.msgs)-1].Content)
	return s.reply()
}

func (s *screen) commanded(m commandedMsg) tea.Cmd {
	s.task = idle
	if m.err != nil {
		s.warn(m.err.Error() + "\n")
		return nil
	}
	switch m.do {
	case actEnd:
		s.leaving = true
		return nil
	case actEdit:
		s.ed.SetValue(strings.ReplaceAll(clean(m.say), "\t", "    "))
		m.say = "taken back; it is in the editor"
	}
	if m.say != "" {
		s.print(s.md.paint(clean(m.say), styleFaint) + "\n")
	}
	if strings.HasPrefix(m.line, "/load") {
		s.panel = false
		s.replay()
	}
	s.status.look(s)
	if m.do == actReply {
		return s.reply()
	}
	return nil
}

// pasteSign stands in the editor for a long paste.
func pasteSign(i int, text string) string {
	return fmt.Sprintf("[paste %d: %s, %s]", i+1, count(1+strings.Count(text, "\n"), "line"), sizeText(int64(len(text))))
}

func (s *screen) paste(text string) tea.Cmd {
	text = clean(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n"))
	if strings.Count(text, "\n") >= longPasteLines || len(text) > longPaste {
		text = strings.TrimRight(text, "\n")
		s.pastes = append(s.pastes, text)
		text = pasteSign(len(s.pastes)-1, text)
	}
	s.hints, s.hint = nil, ""
	var cmd tea.Cmd
	s.ed, cmd = s.ed.Update(tea.PasteMsg{Content: text})
	return cmd
}
