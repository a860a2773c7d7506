package chat

import "strings"

// harmony reads gpt-oss's channels: header, <|message|>, body, an end marker, and so on.
type harmony struct {
	state  harmonyState
	kind   bodyKind
	header string // as it stands, with its markers
	scan   jsonScan
	args   bool // within the arguments of a call
}

type harmonyState uint8

const (
	harmonyHeader harmonyState = iota
	harmonyBody
	harmonyBetween // behind an end marker
)

type bodyKind uint8

const (
	bodyContent bodyKind = iota
	bodyThoughts
	bodyCall
)

const (
	markStart     = "<|start|>"
	markChannel   = "<|channel|>"
	markConstrain = "<|constrain|>"
	markMessage   = "<|message|>"
)

// bodyEnds end a body; the last two begin what follows and stay.
var bodyEnds = []string{"<|end|>", "<|call|>", "<|return|>", markStart, markChannel}

// primed puts the machine where the prompt's open turn leaves it.
func (h *harmony) primed(p *Parser) {
	if h.state != harmonyBody { // a header that is not complete: the answer goes on behind it
		h.state, h.header = harmonyHeader, strings.TrimPrefix(p.buf, markStart)
	}
	if h.kind == bodyCall {
		h.kind = bodyContent
	}
}

func (h *harmony) run(p *Parser, end bool) {
	for {
		went := false
		switch h.state {
		case harmonyHeader:
			went = h.readHeader(p, end)
		case harmonyBody:
			if h.kind == bodyCall {
				went = h.readCall(p, end)
			} else {
				went = h.readBody(p, end)
			}
		default:
			went = h.readBetween(p, end)
		}
		if !went {
			return
		}
	}
}

// readHeader reads up to <|message|>; text that is no header is content.
func (h *harmony) readHeader(p *Parser, end bool) bool {
	if p.buf == "" {
		return false
	}
	i := strings.Index(p.buf, markMessage)
	head := p.buf
	if i >= 0 {
		head = p.buf[:i]
	}
	limit := 2 * maxName
	if i < 0 { // part of the marker may have come
		limit += len(markMessage)
	}
	ok := len(head) <= limit && isHeader(h.header+head, i >= 0)
	if ok && i < 0 {
		if !end {
			return false
		}
		ok = false
	}
	if !ok {
		h.state, h.kind, h.header = harmonyBody, bodyContent, ""
		// What begins a header would end the body at once: it goes out here.
		for _, m := range []string{markChannel, markStart} {
			if strings.HasPrefix(p.buf, m) {
				p.content(m)
				p.buf = p.buf[len(m):]
			}
		}
		return true
	}
	h.header += p.buf[:i+len(markMessage)]
	p.buf = p.buf[i+len(markMessage):]
	h.begin(p)
	return true
}

// isHeader tells whether s is a header without its <|message|>, or if it is not whole, may become one: words, a recipient,
// a channel and a data type.
func isHeader(s string, whole bool) bool {
	s = strings.TrimPrefix(s, markStart)
	rest := s
	for _, m := range []string{markChannel, markConstrain} {
		rest = strings.ReplaceAll(rest, m, " ")
	}
	if !whole {
		for _, m := range []string{markChannel, markConstrain, markMessage, markStart} {
			if n := overlap(rest, m); n > 0 {
				rest = rest[:len(rest)-n]
				break
			}
		}
	}
	for _, c := range rest {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(" _.-=:", c) {
			return false
		}
	}
	if words := strings.TrimLeft(s, " "); !strings.HasPrefix(words, markChannel) && !strings.HasPrefix(words, "to=") &&
		!strings.HasPrefix(words, "assistant") && !strings.HasPrefix(words, markConstrain) && words != "" {
		if whole {
			return false
		}
		for _, m := range []string{markChannel, markConstrain, markMessage, markStart, "to=", "assistant"} {
			if strings.HasPrefix(m, words) {
				return true
			}
		}
		return false
	}
	return true
}

// begin is behind a whole header.
func (h *harmony) begin(p *Parser) {
	h.state = harmonyBody
	recipient, channel := "", ""
	words := strings.Fields(strings.NewReplacer(markStart, " ", markChannel, " channel=", markConstrain, " type=", markMessage, " ").Replace(h.header))
	for _, w := range words {
		if r, ok := strings.CutPrefix(w, "to="); ok {
			recipient = r
		}
		if c, ok := strings.CutPrefix(w, "channel="); ok {
			channel = c
		}
	}
	name := strings.TrimPrefix(recipient, "functions.")
	switch {
	case recipient != "" && recipient != "user" && recipient != "assistant" && recipient != "all":
		if p.sink.start(name, "") {
			h.kind, h.scan, h.args = bodyCall, jsonScan{}, true
			p.raw = []byte(h.header)
			if p.sink.given {
				p.raw, p.sink.given = nil, false
				p.cut()
			}
			return
		}
		h.kind = bodyContent
		p.content(h.header) // a call that is none stays as it is
	case channel == "analysis":
		h.kind = bodyThoughts
		p.thoughts.wrote, p.thoughts.spaces = false, ""
		if p.opts.Reasoning == ReasoningAuto {
			p.cut()
		} else {
			p.content(h.header)
		}
	default:
		h.kind = bodyContent
	}
	h.header = ""
}

// readBody reads thoughts or content up to an end marker.
func (h *harmony) readBody(p *Parser, end bool) bool {
	if p.buf == "" {
		return false
	}
	at, found, keep := len(p.buf), "", 0
	for _, m := range bodyEnds {
		if i := strings.Index(p.buf, m); i >= 0 {
			if i < at {
				at, found = i, m
			}
		} else {
			keep = max(keep, overlap(p.buf, m))
		}
	}
	if found == "" && !end {
		at -= keep
	}
	if h.kind == bodyThoughts {
		p.reason(p.buf[:at])
	} else {
		p.content(p.buf[:at])
	}
	p.buf = p.buf[at:]
	if found == "" {
		return false
	}
	h.endBody(p, found)
	return true
}

// endBody takes the marker that buf begins with.
func (h *harmony) endBody(p *Parser, marker string) {
	if marker != markStart && marker != markChannel {
		p.buf = p.buf[len(marker):]
	}
	if h.kind == bodyThoughts {
		if p.opts.Reasoning == ReasoningAuto {
			p.cut()
		} else {
			p.content("<|end|>")
		}
	}
	h.state, h.kind, h.header = harmonyBetween, bodyContent, ""
}

// readBetween looks for the next header; other text is content.
func (h *harmony) readBetween(p *Parser, end bool) bool {
	ws := leading(p.buf)
	at := p.buf[ws:]
	if at == "" {
		if end {
			p.buf = ""
		}
		return false
	}
	more := false
	for _, m := range bodyEnds {
		switch match(at, m) {
		case stepWent:
			p.buf = at
			if m == markStart || m == markChannel {
				h.state = harmonyHeader
			} else {
				p.buf = at[len(m):]
			}
			return true
		case stepMore:
			more = true
		}
	}
	if more && !end {
		return false
	}
	h.state, h.kind = harmonyBody, bodyContent
	return true
}

// readCall reads the arguments and the end marker of a call.
func (h *harmony) readCall(p *Parser, end bool) bool {
	if h.args {
		ws := 0
		if h.scan.fresh() {
			if ws = leading(p.buf); ws < len(p.buf) && p.buf[ws] != '{' {
				h.bad(p)
				return true
			}
		}
		var b strings.Builder
		n, done, ok := 0, false, true
		if ws < len(p.buf) {
			n, done, ok = h.scan.scan(p.buf[ws:], &b)
			n += ws
		}
		p.sink.arguments(b.String())
		p.raw = append(p.raw, p.buf[:n]...)
		p.buf = p.buf[n:]
		if done {
			p.sink.finish()
			h.args = false
		}
		if p.sink.given {
			p.raw, p.sink.given = p.raw[:0], false
			p.cut()
		}
		switch {
		case n > 0:
			return true
		case !ok || end:
			h.bad(p)
			return true
		}
		return false
	}
	ws := leading(p.buf)
	at := p.buf[ws:]
	if at == "" {
		if end {
			p.buf = ""
		}
		return false
	}
	more := false
	for _, m := range bodyEnds {
		switch match(at, m) {
		case stepWent:
			p.buf = at
			h.endBody(p, m)
			return true
		case stepMore:
			more = true
		}
	}
	if more && !end {
		return false
	}
	h.kind = bodyContent
	return true
}

// bad makes a call content: its header, unless the call has been given, and what follows.
func (h *harmony) bad(p *Parser) {
	p.sink.drop()
	h.kind = bodyContent
	p.content(string(p.raw))
	p.raw, h.header = nil, ""
}
