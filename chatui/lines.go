package chatui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"terrace/engine"
)

// longestLine bounds a line that is read without a screen.
const longestLine = 64 << 20

// twice is how soon a second interrupt has to follow.
const twice = 2 * time.Second

// lineView is the conversation a line at a time, for pipes and for terminals that can do no more.
type lineView struct {
	t       *talk
	wrote   bool // the reply has begun
	thought int  // bytes of thoughts
	ended   bool // with a line end
	failed  error
	eager   *bufio.Writer
}

func (v *lineView) begin(int) {}

func (v *lineView) note(text string) { fmt.Fprintf(v.t.o.Err, "terrace: %s\n", text) }

func (v *lineView) grow(content, thought string) {
	o := v.t.o
	if thought != "" {
		v.thought += len(thought)
		if !v.t.folded {
			fmt.Fprint(o.Err, clean(thought))
		}
	}
	if content == "" {
		return
	}
	if !v.wrote && v.thought > 0 {
		if v.t.folded {
			fmt.Fprintf(o.Err, "(thoughts of %s; /think show shows them)\n", sizeText(int64(v.thought)))
		} else {
			fmt.Fprint(o.Err, "\n\n")
		}
	}
	v.wrote, v.ended = true, strings.HasSuffix(content, "\n")
	if _, err := v.eager.WriteString(clean(content)); err != nil && v.failed == nil {
		v.failed = fmt.Errorf("standard output: %w", err)
	}
	if err := v.eager.Flush(); err != nil && v.failed == nil {
		v.failed = fmt.Errorf("standard output: %w", err)
	}
}

// readLines hands over lines until In or ctx ends; the channel is closed then and err says why.
func readLines(ctx context.Context, r io.Reader) (lines <-chan string, err func() error) {
	out := make(chan string)
	in := bufio.NewScanner(r)
	in.Buffer(nil, longestLine)
	go func() {
		defer close(out)
		for in.Scan() {
			select {
			case out <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, in.Err
}

func runLines(ctx context.Context, t *talk, greeting string) error {
	o := t.o
	note := func(format string, a ...any) { fmt.Fprintf(o.Err, format+"\n", a...) }
	var hear <-chan struct{}
	if o.Prompt && o.Interrupts != nil {
		var release func()
		hear, release = o.Interrupts()
		defer release()
	}
	if o.Prompt {
		note("%s, context of %s. /help lists the commands, /bye or Ctrl-D leaves.", clean(o.Name), count(t.context(), "token"))
	}
	if greeting != "" {
		note("%s", greeting)
	}
	reading, end := context.WithCancel(ctx)
	defer end()
	lines, readErr := readLines(reading, o.In)
	var last time.Time // of an interrupt at an empty line
	var text []string  // a message of several lines
	block := false     // between """ and """
	for {
		if o.Prompt {
			fmt.Fprint(o.Err, map[bool]string{true: "... ", false: "> "}[len(text) > 0 || block])
		}
		var line string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hear:
			if len(text) == 0 && !block && time.Since(last) < twice {
				note("")
				return nil
			}
			last = time.Now()
			text, block = nil, false
			note("\nCtrl-C again, Ctrl-D or /bye leaves.")
			continue
		case l, ok := <-lines:
			if !ok {
				if o.Prompt {
					note("")
				}
				if err := readErr(); err != nil {
					return fmt.Errorf("standard input: %w", err)
				}
				if len(text) == 0 {
					return nil
				}
				l, block = `"""`, true // the end of the input ends the text
			}
			line = strings.TrimSuffix(l, "\r")
		}
		last = time.Time{}
		switch trimmed := strings.TrimSpace(line); {
		case block:
			if body, ok := strings.CutSuffix(strings.TrimRight(line, " \t"), `"""`); ok {
				block = false
				if body != "" {
					text = append(text, body)
				}
				break
			}
			text = append(text, line)
			continue
		case len(text) == 0 && strings.HasPrefix(trimmed, `"""`):
			body := trimmed[3:]
			if one, ok := strings.CutSuffix(body, `"""`); ok && len(body) >= 3 {
				text = append(text, one)
				break
			}
			block = true
			if body != "" {
				text = append(text, body)
			}
			continue
		case strings.HasSuffix(line, `\`):
			text = append(text, strings.TrimSuffix(line, `\`))
			continue
		default:
			text = append(text, line)
		}
		message := strings.TrimSpace(strings.Join(text, "\n"))
		text = nil
		if message == "" {
			continue
		}
		if end, err := t.lineTurn(ctx, message, hear); end || err != nil {
			return err
		}
	}
}

// lineTurn does what a line asks for. end tells that the person leaves.
func (t *talk) lineTurn(ctx context.Context, line string, hear <-chan struct{}) (end bool, err error) {
	o := t.o
	note := func(format string, a ...any) { fmt.Fprintf(o.Err, format+"\n", a...) }
	do := actReply
	if isCommand(line) {
		var say string
		if say, do, err = t.do(line); err != nil {
			if !o.Prompt {
				return true, err
			}
			note("%s", err)
			return false, nil
		}
		if do == actEdit {
			say = "taken back: " + say
		}
		if say != "" {
			note("%s", clean(say))
		}
	} else {
		t.say(line)
	}
	switch do {
	case actEnd:
		return true, nil
	case actNone, actEdit:
		return false, nil
	}
	replying, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan struct{})
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		select {
		case <-hear:
			stop(errStopped)
		case <-done:
		}
	}()
	v := &lineView{t: t, eager: bufio.NewWriter(o.Out)}
	z, err := t.reply(replying, v)
	close(done)
	<-heard
	if v.wrote && !v.ended {
		fmt.Fprintln(o.Out)
	}
	if ctx.Err() != nil {
		return true, ctx.Err()
	}
	if v.failed != nil {
		return true, v.failed
	}
	if z.stopped {
		note("(stopped)")
	}
	for _, n := range z.notes {
		note("terrace: %s", n)
	}
	if z.report != "" {
		fmt.Fprint(o.Err, z.report)
	}
	if err != nil && o.Prompt && errors.Is(err, engine.ErrPrompt) {
		note("terrace: %s; the message is taken back, -c N makes the context larger", clean(err.Error()))
		return false, nil
	}
	return err != nil, err
}
