package chatui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// action is what a command asks of whoever shows the conversation.
type action int

const (
	actNone  action = iota
	actReply        // the last message is to be answered
	actEdit         // text is put back into the editor
	actEnd
)

// command is a line that begins with a slash.
type command struct {
	name, args, help string
	run              func(t *talk, arg string) (say string, do action, err error)
	complete         func(t *talk, arg string) []string // whole arguments that begin with arg
}

var commands []command

func init() { // it refers to itself, for /help
	commands = []command{
		{"/help", "", "these commands and the keys", runHelp, nil},
		{"/system", "[TEXT|-]", "the system message: show it, set it, take it away", runSystem, nil},
		{"/save", "NAME", "keep the conversation, and what the model remembers of it", runSave, completeName},
		{"/load", "[NAME]", "go on with a saved conversation; without a name with the last one", runLoad, completeName},
		{"/regen", "", "take the last reply back and ask for another", runRegen, nil},
		{"/undo", "", "take the last message and its reply back", runUndo, nil},
		{"/clear", "", "forget the conversation", runClear, nil},
		{"/stats", "", "what the last reply cost, and where its experts came from", runStats, nil},
		{"/think", "[on|off|auto|show|hide]", "whether the model thinks first; whether its thoughts are shown", runThink, completeWord("on", "off", "auto", "show", "hide")},
		{"/temp", "[N]", "the temperature; 0 always takes the likeliest token", runTemp, nil},
		{"/file", "[PATH|-]", "put a text file before the next message; - takes them away", runFile, completePath},
		{"/bye", "", "leave", func(*talk, string) (string, action, error) { return "", actEnd, nil }, nil},
	}
}

// aliases are other names that people try.
var aliases = map[string]string{"/exit": "/bye", "/quit": "/bye", "/?": "/help", "/new": "/clear"}

// keys are told by /help on a screen.
const keys = `Enter sends; Alt-Enter, Ctrl-J or a \ at the end of a line begins a new line; """ begins and ends a text of many lines.
Up and Down go through what was typed before, Tab completes, Ctrl-O shows or folds the thoughts of the last reply.
Ctrl-C stops a reply; twice at an empty line it leaves, as Ctrl-D does.`

// keysLines are told without one.
const keysLines = `A \ at the end of a line goes on in the next one; """ begins and ends a text of many lines.
Ctrl-C stops a reply; twice at an empty line it leaves, as Ctrl-D does.`

// isCommand tells commands from messages: a slash and a word of letters.
func isCommand(line string) bool {
	if !strings.HasPrefix(line, "/") || strings.Contains(line, "\n") && !strings.HasPrefix(line, "/system ") {
		return false
	}
	word, _, _ := strings.Cut(line, " ")
	return !strings.ContainsAny(word[1:], "/\\.") && len(word) > 1
}

// do runs a command.
func (t *talk) do(line string) (say string, do action, err error) {
	name, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	if a, ok := aliases[name]; ok {
		name = a
	}
	for i := range commands {
		if c := &commands[i]; c.name == name {
			arg = strings.TrimSpace(arg)
			if c.args == "" && arg != "" {
				return "", actNone, fmt.Errorf("%s takes nothing, %q was given", name, arg)
			}
			return c.run(t, arg)
		}
	}
	return "", actNone, fmt.Errorf("unknown command %s; /help lists them", clean(name))
}

// complete is what could stand in place of a line that begins a command, whole lines.
func (t *talk) complete(line string) []string {
	name, arg, has := strings.Cut(line, " ")
	var out []string
	for i := range commands {
		c := &commands[i]
		switch {
		case !has && strings.HasPrefix(c.name, line):
			s := c.name
			if c.args != "" {
				s += " "
			}
			out = append(out, s)
		case has && c.name == name && c.complete != nil:
			for _, a := range c.complete(t, arg) {
				out = append(out, name+" "+a)
			}
		}
	}
	return out
}

func completeWord(words ...string) func(*talk, string) []string {
	return func(_ *talk, arg string) []string {
		return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !strings.HasPrefix(w, arg) })
	}
}

func completeName(t *talk, arg string) []string {
	return slices.DeleteFunc(t.o.names(), func(n string) bool { return !strings.HasPrefix(n, arg) })
}

func completePath(_ *talk, arg string) []string {
	dir, base := filepath.Split(arg)
	at := dir
	if at == "" {
		at = "."
	}
	es, err := os.ReadDir(at)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range es {
		if n := e.Name(); strings.HasPrefix(n, base) && (base != "" || !strings.HasPrefix(n, ".")) && clean(n) == n {
			if e.IsDir() {
				n += string(filepath.Separator)
			}
			out = append(out, dir+n)
		}
	}
	return out
}

func runHelp(t *talk, _ string) (string, action, error) {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, "%-32s %s\n", strings.TrimSpace(c.name+" "+c.args), c.help)
	}
	if t.o.Screen {
		b.WriteString(keys)
	} else {
		b.WriteString(keysLines)
	}
	return b.String(), actNone, nil
}

func runSystem(t *talk, arg string) (string, action, error) {
	switch arg {
	case "":
		if t.system == "" {
			return "there is no system message", actNone, nil
		}
		return "system message: " + t.system, actNone, nil
	case "-":
		t.system = ""
		return "the system message is taken away", actNone, nil
	}
	t.system = arg
	return "the system message is set", actNone, nil
}

func runSave(t *talk, arg string) (string, action, error) {
	say, err := t.save(arg, true)
	return say, actNone, err
}

func runLoad(t *talk, arg string) (string, action, error) {
	say, err := t.load(arg)
	return say, actNone, err
}

func runRegen(t *talk, _ string) (string, action, error) {
	if !t.takeBack() {
		return "", actNone, errors.New("there is no message to be answered again")
	}
	t.again++
	if t.params.Temp == 0 {
		return "at temperature 0 the reply will be the same; /temp N changes it", actReply, nil
	}
	return "", actReply, nil
}

func runUndo(t *talk, _ string) (string, action, error) {
	text, ok := t.undo()
	if !ok {
		return "", actNone, errors.New("there is no message to take back")
	}
	return text, actEdit, nil
}

func runClear(t *talk, _ string) (string, action, error) {
	t.clear()
	return "the conversation is forgotten", actNone, nil
}

func runStats(t *talk, _ string) (string, action, error) {
	if t.last == nil {
		return "", actNone, errors.New("there are no statistics before the first reply")
	}
	t.s.Bound(t.last)
	return strings.Trim(t.o.Explain(t.last), "\n"), actNone, nil
}

func runThink(t *talk, arg string) (string, action, error) {
	set := func(v bool) { t.think = &v }
	switch arg {
	case "":
		how := "as the model's template likes"
		if t.think != nil {
			how = map[bool]string{true: "asked for", false: "asked not to come"}[*t.think]
		}
		return fmt.Sprintf("thoughts are %s, and %s", how, map[bool]string{true: "folded (/think show)", false: "shown (/think hide)"}[t.folded]), actNone, nil
	case "on":
		set(true)
	case "off":
		set(false)
	case "auto":
		t.think = nil
	case "show", "hide":
		t.folded = arg == "hide"
		return map[bool]string{true: "thoughts are folded from here on", false: "thoughts are shown from here on"}[t.folded], actNone, nil
	default:
		return "", actNone, fmt.Errorf("/think is %q, want on, off, auto, show or hide", arg)
	}
	if !t.eng.Template().Caps().Thinking {
		return "", actNone, errors.New("the model's template knows no thinking: this changes nothing")
	}
	return "thinking is " + arg + " from the next message on", actNone, nil
}

func runTemp(t *talk, arg string) (string, action, error) {
	if arg == "" {
		return fmt.Sprintf("the temperature is %g", t.params.Temp), actNone, nil
	}
	v, err := strconv.ParseFloat(arg, 32)
	if err != nil || !(v >= 0) {
		return "", actNone, fmt.Errorf("/temp is %q, want a number of at least 0", arg)
	}
	p := t.params
	p.Temp = float32(v)
	if err := p.Validate(); err != nil {
		return "", actNone, err
	}
	t.params = p
	return fmt.Sprintf("the temperature is %g from the next reply on", p.Temp), actNone, nil
}

func runFile(t *talk, arg string) (string, action, error) {
	switch arg {
	case "":
		if len(t.files) == 0 {
			return "no file is attached", actNone, nil
		}
		var names []string
		for _, f := range t.files {
			names = append(names, f.name)
		}
		return "before the next message: " + strings.Join(names, ", "), actNone, nil
	case "-":
		n := len(t.files)
		t.files = nil
		return count(n, "file") + " taken away", actNone, nil
	}
	x, err := os.Open(arg)
	if err != nil {
		return "", actNone, err
	}
	defer x.Close()
	if st, err := x.Stat(); err != nil {
		return "", actNone, err
	} else if !st.Mode().IsRegular() {
		return "", actNone, fmt.Errorf("%s is no file", arg)
	}
	most := int64(min(t.eng.MaxText(), 64<<20))
	b, err := io.ReadAll(io.LimitReader(x, most+1))
	switch {
	case err != nil:
		return "", actNone, err
	case int64(len(b)) > most:
		return "", actNone, fmt.Errorf("%s has more than %d bytes, which the context of %d tokens cannot hold", arg, most, t.context())
	case !utf8.Valid(b):
		return "", actNone, fmt.Errorf("%s is no text in UTF-8", arg)
	}
	t.files = append(t.files, file{filepath.Base(arg), string(b)})
	return fmt.Sprintf("%s (%s) goes before the next message", clean(filepath.Base(arg)), sizeText(int64(len(b)))), actNone, nil
}
