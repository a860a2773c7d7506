package chatui

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
	"terrace/tokenizer"
)

// talk is a conversation: its messages, its settings, and which tokens the session evaluated for them.
type talk struct {
	o      *Options
	eng    *engine.Engine
	s      *engine.Session
	params sample.Params
	system string
	think  *bool // nil: as the template likes
	show   map[int32]bool

	msgs  []chat.Message // user and assistant in turn
	skip  int            // messages at the beginning that the context has no room for
	marks []mark
	files []file // to be put before the next message

	last     *engine.Stats // of the latest reply
	thoughts string        // of the latest reply
	again    int64         // replies asked for again, which shall differ
	folded   bool          // thoughts are counted, not shown
}

// mark is a text that the session has evaluated, and the tokens it did so with: a reply, cut into tokens anew, may give others
// than the model chose, and all behind them would be evaluated again.
type mark struct {
	text string
	ids  []int32
}

// maxMarks is how many are kept: those of the last two replies.
const maxMarks = 4

type file struct{ name, text string }

func newTalk(o *Options) *talk {
	t := &talk{o: o, eng: o.Engine, s: o.Session, params: o.Params, system: o.System, folded: true, show: map[int32]bool{}}
	if o.NoThink {
		off := false
		t.think = &off
	}
	tok := t.eng.Tokenizer()
	for _, text := range chat.Detect(t.eng.Template().Source()).Markers() {
		if id, ok := tok.Lookup(text); ok && !tok.IsEOG(id) {
			t.show[id] = true
		}
	}
	return t
}

// clear forgets the messages, not the settings.
func (t *talk) clear() {
	t.msgs, t.skip, t.marks, t.files, t.last, t.thoughts = nil, 0, nil, nil, nil, ""
}

// context is the number of positions a conversation may have.
func (t *talk) context() int { return t.eng.Options().Context }

// say appends what a person says, behind the files that were attached.
func (t *talk) say(text string) {
	var b strings.Builder
	for _, f := range t.files {
		fence := "```"
		for strings.Contains(f.text, fence) {
			fence += "`"
		}
		fmt.Fprintf(&b, "%s:\n%s\n%s\n%s\n\n", f.name, fence, strings.TrimRight(f.text, "\n"), fence)
	}
	t.files = nil
	b.WriteString(text)
	t.msgs = append(t.msgs, chat.Message{Role: "user", Content: b.String()})
}

// takeBack removes the last reply, if the last message is one, and answers whether a message is left to be answered.
func (t *talk) takeBack() bool {
	if n := len(t.msgs); n > 0 && t.msgs[n-1].Role == "assistant" {
		t.msgs = t.msgs[:n-1]
	}
	return len(t.msgs) > 0
}

// undo removes the last message and its reply, and gives the message.
func (t *talk) undo() (string, bool) {
	t.takeBack()
	n := len(t.msgs)
	if n == 0 {
		return "", false
	}
	text := t.msgs[n-1].Content
	t.msgs = t.msgs[:n-1]
	t.skip = min(t.skip, len(t.msgs))
	return text, true
}

// render makes the prompt of the messages that are not skipped. ids is nil if the text cannot fit the context, whatever its
// tokens are; n then is the least number of them.
func (t *talk) render() (ids []int32, text string, n int, err error) {
	conv := chat.Conversation{Messages: t.msgs[t.skip:], AddGenerationPrompt: true, EnableThinking: t.think}
	if t.system != "" {
		conv.Messages = append([]chat.Message{{Role: "system", Content: t.system}}, conv.Messages...)
	}
	parts, err := t.eng.Template().Render(conv)
	if err != nil {
		return nil, "", 0, err
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	text = b.String()
	tok := t.eng.Tokenizer()
	if least := tok.MinTokens(len(text)); least > t.context() {
		return nil, text, least, nil
	}
	var known *mark
	for i := range t.marks {
		if m := &t.marks[i]; strings.HasPrefix(text, m.text) && (known == nil || len(m.text) > len(known.text)) {
			known = m
		}
	}
	at := 0
	if known != nil {
		ids, at = append(ids, known.ids...), len(known.text)
	}
	var rest []tokenizer.Part
	for _, p := range parts {
		cut := min(at, len(p.Text))
		at -= cut
		if cut < len(p.Text) {
			rest = append(rest, tokenizer.Part{Text: p.Text[cut:], Special: !p.User})
		}
	}
	ids = tok.EncodeParts(ids, rest, known == nil)
	return ids, text, len(ids), nil
}

// prompt is render within the context: where it has no room for a reply, the oldest messages are left out, from then on, down to
// half of it, so that the next turns begin alike. dropped is how many were left out now.
func (t *talk) prompt() (ids []int32, text string, dropped int, err error) {
	was, most := t.skip, t.context()
	limit := most - min(most/8, 256)
	for {
		var n int
		if ids, text, n, err = t.render(); err != nil {
			t.skip = was
			return nil, "", 0, err
		}
		if ids != nil && n <= limit {
			return ids, text, t.skip - was, nil
		}
		next := t.skip + 1
		for next < len(t.msgs) && t.msgs[next].Role != "user" {
			next++
		}
		if next >= len(t.msgs) { // the last message stands alone
			if ids != nil && n < most {
				return ids, text, t.skip - was, nil
			}
			t.skip = was
			return nil, "", 0, &engine.PromptTooLong{Tokens: n, Context: most}
		}
		t.skip, limit = next, most/2
	}
}

// keep notes that the session has evaluated ids for text.
func (t *talk) keep(text string, ids []int32) {
	t.marks = append(t.marks, mark{text, append([]int32(nil), ids...)})
	if n := len(t.marks) - maxMarks; n > 0 {
		t.marks = append(t.marks[:0], t.marks[n:]...)
	}
}

// watcher hears of a reply, from the goroutine that makes it.
type watcher interface {
	note(text string)             // to be said before the reply
	begin(prompt int)             // so many tokens are the prompt
	grow(content, thought string) // a token came; both may be empty
}

// outcome is what is to be said about a reply besides itself.
type outcome struct {
	notes   []string
	report  string // what Options.Report said
	stopped bool
	empty   bool // nothing came: the message is taken back
}

// reply has the model answer the last message. w hears of it as it comes. The end of ctx stops the reply; what came until then
// stays. After an error the message has no reply and is taken back.
func (t *talk) reply(ctx context.Context, w watcher) (z outcome, err error) {
	ids, text, dropped, err := t.prompt()
	if err != nil {
		t.msgs = t.msgs[:len(t.msgs)-1]
		return z, err
	}
	w.begin(len(ids))
	if dropped > 0 {
		w.note(fmt.Sprintf("the context of %d tokens is full: the %s so far are left out from here on; -c N makes it larger", t.context(), oldest(dropped)))
	}
	params := t.params
	if params.Seed >= 0 {
		params.Seed += t.again
	}
	sm, err := sample.New(params)
	if err != nil {
		t.msgs = t.msgs[:len(t.msgs)-1]
		return z, err
	}
	for _, id := range ids {
		sm.Accept(id)
	}
	parser, err := t.eng.Template().NewParser(chat.ParseOptions{NoCalls: true, Prompt: text})
	if err != nil {
		t.msgs = t.msgs[:len(t.msgs)-1]
		return z, err
	}
	var a chat.Answer
	take := func(ds []chat.Delta) (content, thought string) {
		for _, d := range ds {
			a.Add(d)
			content += d.Content
			thought += d.Reasoning
		}
		return content, thought
	}
	res, err := t.s.Generate(ctx, engine.Request{
		Prompt: ids, Max: t.o.Max, Sampler: sm, HashLogits: t.o.HashLogits, Show: t.show, IgnoreEOS: params.IgnoreEOS,
		Emit: func(piece []byte) error {
			w.grow(take(parser.Feed(string(piece))))
			return nil
		},
	})
	if content, thought := take(parser.Close()); content != "" || thought != "" {
		w.grow(content, thought)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		z.stopped, err = true, nil
	}
	if err != nil || a.Content == "" && a.Reasoning == "" && z.stopped {
		z.empty = true
		t.msgs = t.msgs[:len(t.msgs)-1]
		return z, err
	}
	t.last, t.thoughts = &res.Stats, a.Reasoning
	t.msgs = append(t.msgs, chat.Message{Role: "assistant", Content: a.Content, Reasoning: a.Reasoning})
	t.keep(text, ids)
	stream := t.eng.Tokenizer().NewStream(true)
	raw := strings.Builder{}
	for _, id := range res.Tokens {
		raw.Write(stream.Push(id))
	}
	raw.Write(stream.Flush())
	t.keep(text+raw.String(), append(append([]int32(nil), ids...), res.Tokens...))
	switch {
	case res.Finish == engine.FinishLength && t.s.Pos() >= t.context():
		z.notes = append(z.notes, fmt.Sprintf("the context of %d tokens is full and the reply is cut; the next message leaves out the oldest ones, -c N makes the context larger", t.context()))
	case res.Finish == engine.FinishLength:
		z.notes = append(z.notes, fmt.Sprintf("the reply is cut at %s, as -n says", count(t.o.Max, "token")))
	}
	if t.o.Report != nil {
		if z.report, err = t.o.Report(t.last); err != nil {
			return z, err
		}
	}
	if t.o.Dir != "" {
		if _, err := t.save(lastName, false); err != nil {
			z.notes = append(z.notes, fmt.Sprintf("the conversation is not kept: %v", err))
		}
	}
	return z, nil
}

func oldest(n int) string {
	if n == 1 {
		return "oldest message"
	}
	return fmt.Sprintf("%d oldest messages", n)
}
