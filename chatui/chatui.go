// Package chatui is a conversation with a model for a person at a terminal: an editor with history, commands, replies that grow
// as they are made, and what the engine does meanwhile.
//
// It opens no model, reads no environment and owns no standard stream: its caller hands it all of these. What a model is asked
// and how it answers is engine's and chat's.
package chatui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"terrace/engine"
	"terrace/sample"
)

// Options say with whom the conversation is, and where.
type Options struct {
	Engine  *engine.Engine
	Session *engine.Session // used by nobody else
	Params  sample.Params   // for this vocabulary (sample.Params.Vocab and EOG are set)
	System  string          // the system message; "" none
	NoThink bool            // ask the template for no thoughts, until /think
	Max     int             // tokens of a reply at most; 0: as many as the context has room for
	Name    string          // of the model, for people

	HashLogits bool
	// Dir is the folder of saved conversations and of the history; it is made when something is written. Empty: nothing is kept.
	Dir string
	// Load is the name of a saved conversation to begin with; "" none.
	Load string

	In  io.Reader // lines; with Screen a terminal, an *os.File
	Out io.Writer // replies; with Screen a terminal
	Err io.Writer // all else, if there is no Screen
	// Screen asks for the editor and the live view. Without it the conversation goes line by line, with no escape codes.
	Screen  bool
	Colour  bool     // with Screen: colours and other attributes may be used
	Prompt  bool     // without Screen: somebody types, so that it is said when it is their turn
	Environ []string // of the terminal, with Screen: TERM, COLORTERM and so on

	// Interrupts gives a channel that hears of interrupts in place of what would end the program, until release. nil: none are
	// heard.
	Interrupts func() (hear <-chan struct{}, release func())
	// Report is called with the statistics of each reply, which it may complete; what it says is shown. nil: nobody asks.
	Report func(*engine.Stats) (say string, err error)
	// Explain words the statistics of a reply.
	Explain func(*engine.Stats) string

	// Divert has what others write to the standard streams meanwhile go to the screen, a line at a time, until restore. nil: nobody
	// writes there.
	Divert func(to func(line string)) (restore func())
}

func (o *Options) check() {
	switch {
	case o.Engine == nil || o.Session == nil || o.In == nil || o.Out == nil || o.Err == nil && !o.Screen:
		panic("chatui: a conversation needs an engine, a session and streams")
	case o.Explain == nil:
		panic("chatui: Options.Explain is missing: /stats needs it")
	}
}

// Run holds the conversation until its end, or that of ctx, which is an error then.
func Run(ctx context.Context, o Options) error {
	o.check()
	t := newTalk(&o)
	var greeting string
	if o.Load != "" {
		var err error
		if greeting, err = t.load(o.Load); err != nil {
			return err
		}
	}
	if o.Screen {
		in, ok := o.In.(*os.File)
		if !ok {
			panic("chatui: a screen needs an *os.File to read keys from")
		}
		return runScreen(ctx, t, in, greeting)
	}
	return runLines(ctx, t, greeting)
}

// errStopped is the end of a reply that the person did not want more of.
var errStopped = errors.New("stopped")

// clean is text of a model or a file without what a terminal would obey.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, s)
}

// count words a number of things.
func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// sizeText is a size for people, in powers of 1000.
func sizeText(n int64) string {
	f, units := float64(n), []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for f >= 1000 && i < len(units)-1 {
		f /= 1000
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
