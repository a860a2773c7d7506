package chat

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ReasoningFormat says where thoughts go.
type ReasoningFormat int

// The values of reasoning_format.
const (
	ReasoningAuto   ReasoningFormat = iota // into Delta.Reasoning, without their tags
	ReasoningNone                          // they stay in the content, with their tags
	ReasoningLegacy                        // both
)

// ReasoningByName reads auto, deepseek (the same), none and deepseek-legacy.
func ReasoningByName(name string) (ReasoningFormat, error) {
	switch name {
	case "", "auto", "deepseek":
		return ReasoningAuto, nil
	case "none":
		return ReasoningNone, nil
	case "deepseek-legacy":
		return ReasoningLegacy, nil
	}
	return 0, fmt.Errorf("reasoning_format %s is none of auto, deepseek, deepseek-legacy, none", clip(name))
}

// ParseOptions say how an answer is read.
type ParseOptions struct {
	Family    *Family // nil: detected from the template
	Reasoning ReasoningFormat
	// Tools are the definitions, as in Conversation: calls of other names stay content, and their schemas give the types of
	// values that a family writes as bare text. Without tools there are no calls.
	Tools    json.RawMessage
	AnyName  bool // calls of any name are calls, also without Tools
	NoCalls  bool // whatever looks like a call is content
	OneCall  bool // what looks like a call after the first one is content
	Complete bool // a call is given only when it is complete; see Parser
	// Prompt is the rendered prompt, with what the answer continues, if anything: it tells whether the answer begins within
	// thoughts. Only its end is looked at.
	Prompt string
	NewID  func() string // names a call that the model did not name; nil: random
}

// Delta is a piece of an answer; one of its fields is set.
type Delta struct {
	Content   string
	Reasoning string
	Call      *CallDelta
}

// CallDelta is a piece of a tool call. The first one of an Index has ID and Name; Arguments joined are the JSON text of an
// object.
type CallDelta struct {
	Index     int
	ID, Name  string
	Arguments string
}

// Answer is a whole answer.
type Answer struct {
	Content   string
	Reasoning string
	Calls     []ToolCall
}

// Add joins d to the answer.
func (a *Answer) Add(d Delta) {
	a.Content += d.Content
	a.Reasoning += d.Reasoning
	if c := d.Call; c != nil {
		for len(a.Calls) <= c.Index {
			a.Calls = append(a.Calls, ToolCall{})
		}
		call := &a.Calls[c.Index]
		call.ID += c.ID
		call.Name += c.Name
		call.Arguments += c.Arguments
	}
}

// Parser splits an answer into content, thoughts and tool calls while it comes. However its text is cut into pieces, the
// sum of the deltas is the same.
//
// A call that is malformed, or of a tool that does not exist, is content as the model wrote it; nothing is dropped but tags
// and the white space beside them. Where arguments are given as they come, a fault can show after the call has begun: then
// what has been given stays, its arguments end where the fault is, and the rest is content. With ParseOptions.Complete a
// call is given when it is complete, and a faulty one is content from its first character.
//
// A Parser is for one answer and one goroutine.
type Parser struct {
	opts     ParseOptions
	family   Family
	tools    *toolSet
	think    tags
	wrapped  bool
	openers  []opener
	harmony  *harmony
	muted    bool // the prompt is being read
	closed   bool
	tail     string // the beginning of a character
	buf      string // text not yet understood
	raw      []byte // text of a call that was read but not given yet
	mode     mode
	reader   callReader
	opener   string // what began the calls being read
	sink     sink
	any      bool   // visible content has come
	fresh    bool   // no visible content since the last boundary: some markers stand only there
	boundary bool   // thoughts or a call came before
	inside   bool   // between <response> and </response>
	spaces   string // white space of the content that waits for what comes next
	thoughts struct {
		wrote  bool
		spaces string
	}
	out []Delta
}

type mode uint8

const (
	modeContent mode = iota
	modeThoughts
	modeCall
)

// NewParser makes a parser for one answer to a prompt of this template. An error is a fault in opts.Tools.
func (t *Template) NewParser(opts ParseOptions) (*Parser, error) {
	family := Detect(t.source)
	if opts.Family != nil {
		family = *opts.Family
	}
	tools, err := newToolSet(opts.Tools)
	if err != nil {
		return nil, err
	}
	if len(tools.all) == 0 && !opts.AnyName {
		opts.NoCalls = true
	}
	if opts.NewID == nil {
		opts.NewID = func() string { return newID(family) }
	}
	p := &Parser{opts: opts, family: family, tools: tools, think: family.thoughts(t.source), wrapped: family.wrapped(t.source), fresh: true}
	p.sink.p = p
	if family == Harmony {
		p.harmony = &harmony{}
	} else {
		p.openers = family.openers()
	}
	p.prime(t.openTurn(opts.Prompt, p.think))
	return p, nil
}

// newID is a name for a call; Mistral's templates take nine letters only.
func newID(f Family) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	id := make([]byte, 9)
	if f != Mistral {
		id = make([]byte, 24)
	}
	for i := range id {
		id[i] = letters[rand.IntN(len(letters))]
	}
	if f != Mistral {
		return "call_" + string(id)
	}
	return string(id)
}

// Parse reads a whole answer.
func (t *Template) Parse(answer string, opts ParseOptions) (Answer, error) {
	p, err := t.NewParser(opts)
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	for _, d := range append(p.Feed(answer), p.Close()...) {
		a.Add(d)
	}
	return a, nil
}

// Family tells how the answer is read.
func (p *Parser) Family() Family { return p.family }

// Calls is the number of calls given so far.
func (p *Parser) Calls() int { return p.sink.index }

// ReasoningEnd is the text that ends thoughts, for whoever must cut them short.
func (p *Parser) ReasoningEnd() string {
	if p.harmony != nil {
		return "<|end|>" + markStart + "assistant" + markChannel + "final" + markMessage
	}
	return p.think.close
}

// InReasoning tells whether the text so far ends within thoughts.
func (p *Parser) InReasoning() bool {
	if p.harmony != nil {
		return p.harmony.state == harmonyBody && p.harmony.kind == bodyThoughts
	}
	return p.mode == modeThoughts
}

// InCall tells whether the text so far ends within what may be a call.
func (p *Parser) InCall() bool {
	if p.harmony != nil {
		return p.harmony.state == harmonyBody && p.harmony.kind == bodyCall
	}
	return p.mode == modeCall
}

// Feed takes the next piece of the answer, cut anywhere, and gives what it made certain.
func (p *Parser) Feed(text string) []Delta {
	if p.closed {
		panic("chat: Feed after Close: a Parser reads one answer")
	}
	p.tail += text
	n := len(p.tail) - unfinished(p.tail)
	p.buf += p.tail[:n]
	p.tail = p.tail[n:]
	p.run(false)
	return p.take()
}

// Close tells that the answer has ended and gives the rest of it.
func (p *Parser) Close() []Delta {
	if p.closed {
		return nil
	}
	p.closed = true
	p.buf += p.tail
	p.tail = ""
	p.run(true)
	if !p.fresh || !p.boundary {
		p.write(p.spaces)
	}
	return p.take()
}

// unfinished is the number of bytes at the end of s that begin a character.
func unfinished(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if c := s[len(s)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

func (p *Parser) take() []Delta {
	out := p.out
	p.out = nil
	return out
}

// prime reads what of the answer's turn stands in the prompt.
func (p *Parser) prime(turn string) {
	if turn == "" {
		return
	}
	p.muted = true
	p.Feed(turn)
	p.muted = false
	if p.harmony != nil {
		p.harmony.primed(p)
	} else if p.mode == modeCall {
		p.mode, p.reader = modeContent, nil
	}
	p.sink = sink{p: p}
	p.buf, p.tail, p.raw, p.spaces, p.thoughts.spaces = "", "", nil, "", ""
	if p.InReasoning() && p.opts.Reasoning == ReasoningLegacy && p.harmony == nil {
		p.content(p.think.open)
	}
}

// run understands as much of buf as it can; at the end everything.
func (p *Parser) run(end bool) {
	if p.harmony != nil {
		p.harmony.run(p, end)
		return
	}
	for {
		var went bool
		switch p.mode {
		case modeContent:
			went = p.readContent(end)
		case modeThoughts:
			went = p.readThoughts(end)
		default:
			went = p.readCall(end)
		}
		if !went {
			return
		}
	}
}

// readContent reads up to the next marker.
func (p *Parser) readContent(end bool) bool {
	if p.buf == "" {
		return false
	}
	blank := len(p.buf) - len(strings.TrimLeftFunc(p.buf, unicode.IsSpace))
	at, keep := len(p.buf), 0
	var found string
	var open *opener
	try := func(marker string, onlyFirst bool, o *opener) {
		if onlyFirst {
			if !p.fresh {
				return
			}
			if rest := p.buf[blank:]; strings.HasPrefix(rest, marker) {
				if blank < at {
					at, found, open = blank, marker, o
				}
			} else if strings.HasPrefix(marker, rest) {
				keep = max(keep, len(rest))
			}
			return
		}
		if i := strings.Index(p.buf, marker); i >= 0 {
			if i < at {
				at, found, open = i, marker, o
			}
			return
		}
		keep = max(keep, overlap(p.buf, marker))
	}
	try(p.think.open, !p.think.anywhere, nil)
	if p.wrapped && !p.inside && p.boundary {
		try("<response>", true, nil)
	}
	if p.inside {
		try("</response>", false, nil)
	}
	if !p.opts.NoCalls && !(p.opts.OneCall && p.sink.index > 0) {
		for i := range p.openers {
			try(p.openers[i].text, p.openers[i].atStart, &p.openers[i])
		}
	}
	if found == "" {
		if end {
			keep = 0
		}
		p.content(p.buf[:len(p.buf)-keep])
		p.buf = p.buf[len(p.buf)-keep:]
		return false
	}
	p.content(p.buf[:at])
	p.buf = p.buf[at+len(found):]
	switch {
	case open != nil:
		p.mode, p.reader, p.opener, p.raw = modeCall, open.read(), found, []byte(found)
	case found == p.think.open:
		p.mode = modeThoughts
		p.thoughts.wrote, p.thoughts.spaces = false, ""
		p.tag(found)
	case found == "<response>":
		p.inside = true
		p.cut()
	default:
		p.inside = false
		p.cut()
	}
	return true
}

// tag marks the beginning or end of thoughts.
func (p *Parser) tag(text string) {
	if p.opts.Reasoning == ReasoningAuto {
		p.cut()
		return
	}
	p.content(text)
	p.fresh = true
}

// overlap is the length of the longest end of s that is a beginning of marker but not all of it.
func overlap(s, marker string) int {
	for n := min(len(s), len(marker)-1); n > 0; n-- {
		if strings.HasSuffix(s, marker[:n]) {
			return n
		}
	}
	return 0
}

// readThoughts reads up to the closing tag.
func (p *Parser) readThoughts(end bool) bool {
	if p.buf == "" {
		return false
	}
	at := strings.Index(p.buf, p.think.close)
	if at < 0 {
		keep := overlap(p.buf, p.think.close)
		if end {
			keep = 0
		}
		p.reason(p.buf[:len(p.buf)-keep])
		p.buf = p.buf[len(p.buf)-keep:]
		return false
	}
	p.reason(p.buf[:at])
	p.buf = p.buf[at+len(p.think.close):]
	p.mode = modeContent
	p.tag(p.think.close)
	return true
}

// readCall lets the reader take a step.
func (p *Parser) readCall(end bool) bool {
	n, v := p.reader.step(p.buf, end, &p.sink)
	if v == stepMore && end {
		v = stepBad
	}
	if v == stepMore {
		return false
	}
	p.raw = append(p.raw, p.buf[:n]...)
	p.buf = p.buf[n:]
	if p.sink.given {
		p.raw, p.opener, p.sink.given = p.raw[:0], "", false
		p.cut()
	}
	if v == stepDone && p.opener != "" {
		v = stepBad // no call between the markers
	}
	switch v {
	case stepDone:
		p.mode, p.reader, p.raw = modeContent, nil, nil
	case stepBad:
		// The text is content again, from behind what began the calls on: there may be sound ones in it.
		p.sink.drop()
		p.mode, p.reader = modeContent, nil
		p.content(p.opener)
		p.buf = strings.TrimPrefix(string(p.raw), p.opener) + p.buf
		p.raw = nil
	}
	return true
}

// cut marks a boundary of content: white space beside it goes, unless it stands between two texts.
func (p *Parser) cut() {
	p.boundary, p.fresh = true, true
	if !p.any {
		p.spaces = ""
	}
}

// content gives text, but holds white space until it is known what follows.
func (p *Parser) content(text string) {
	if text == "" {
		return
	}
	text = p.spaces + text
	body := strings.TrimRightFunc(text, unicode.IsSpace)
	p.spaces = text[len(body):]
	if body == "" {
		return
	}
	if !p.any && p.boundary {
		body = strings.TrimLeftFunc(body, unicode.IsSpace)
	}
	p.any, p.fresh = true, false
	p.write(body)
}

// reason gives thoughts without white space at their ends.
func (p *Parser) reason(text string) {
	if p.opts.Reasoning != ReasoningAuto {
		p.content(text)
	}
	if p.opts.Reasoning == ReasoningNone {
		return
	}
	text = p.thoughts.spaces + text
	body := strings.TrimRightFunc(text, unicode.IsSpace)
	p.thoughts.spaces = text[len(body):]
	if !p.thoughts.wrote {
		body = strings.TrimLeftFunc(body, unicode.IsSpace)
	}
	if body == "" {
		return
	}
	p.thoughts.wrote = true
	p.give(Delta{Reasoning: body})
}

func (p *Parser) write(text string) {
	if text != "" {
		p.give(Delta{Content: text})
	}
}

// give adds a delta, joined to the last one if that is of the same kind.
func (p *Parser) give(d Delta) {
	if p.muted {
		return
	}
	if n := len(p.out); n > 0 {
		last := &p.out[n-1]
		switch {
		case d.Call == nil && last.Call == nil && (d.Reasoning == "") == (last.Reasoning == "") && (d.Content == "") == (last.Content == ""):
			last.Content += d.Content
			last.Reasoning += d.Reasoning
			return
		case d.Call != nil && last.Call != nil && d.Call.Index == last.Call.Index:
			last.Call.Arguments += d.Call.Arguments
			return
		}
	}
	p.out = append(p.out, d)
}
