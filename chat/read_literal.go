package chat

import (
	"strings"
)

// literal turns a value in Python's or Gemma's spelling into JSON, token by token. Its zero value expects a value.
type literal struct {
	gemma bool
	state literalState
	stack []byte // the closing brackets to come
	comma bool   // owed before the next item
	quote string // of the string being read, "" between tokens
	part  strings.Builder
}

type literalState uint8

const (
	literalValue literalState = iota
	literalKey                // or the closing bracket
	literalColon
	literalItem // a value or the closing bracket
	literalNext // a comma or the closing bracket
)

const gemmaQuote = `<|"|>`

// step takes one token or a part of a string; json is what it adds. stepDone tells that the value ends with it.
func (l *literal) step(in string, end bool) (n int, json string, v verdict) {
	if l.quote != "" {
		return l.text(in)
	}
	ws := leading(in)
	at := in[ws:]
	if at == "" {
		return 0, "", stepMore
	}
	if len(l.stack) > 0 && at[0] == l.stack[len(l.stack)-1] && l.state != literalColon && l.state != literalValue {
		l.stack = l.stack[:len(l.stack)-1]
		json = "]"
		if at[0] == '}' {
			json = "}"
		}
		l.comma = false
		return ws + 1, json, l.after()
	}
	switch l.state {
	case literalColon:
		if at[0] != ':' {
			return 0, "", stepBad
		}
		l.state = literalValue
		return ws + 1, ":", stepWent
	case literalNext:
		if at[0] != ',' {
			return 0, "", stepBad
		}
		l.comma = true
		if l.state = literalItem; l.stack[len(l.stack)-1] == '}' {
			l.state = literalKey
		}
		return ws + 1, "", stepWent
	case literalKey:
		n, json, v = l.key(at, end)
		if v == stepWent {
			l.state = literalColon
		}
	default:
		n, json, v = l.value(at, end)
	}
	if v == stepWent || v == stepDone {
		n += ws
		if l.comma {
			json = "," + json
			l.comma = false
		}
	}
	return n, json, v
}

// after is behind a whole value.
func (l *literal) after() verdict {
	l.state = literalNext
	if len(l.stack) == 0 {
		return stepDone
	}
	return stepWent
}

func (l *literal) value(at string, end bool) (int, string, verdict) {
	if i := strings.IndexByte("{[(", at[0]); i >= 0 && (i < 2 || !l.gemma) {
		if len(l.stack) == scanDepth {
			return 0, "", stepBad
		}
		l.stack = append(l.stack, "}])"[i])
		if l.state = literalItem; i == 0 {
			l.state = literalKey
		}
		return 1, "{[["[i : i+1], stepWent
	}
	n, s, v := l.begin(at, end)
	switch {
	case v == stepWent && l.quote == "":
		return n, s, l.after()
	case v == stepWent:
		l.state = literalNext // once the string ends
		return n, "", v
	case v == stepMore || at[0] == '"':
		return 0, "", v
	}
	stop := ",]}) \t\r\n"
	if l.gemma {
		stop = ",]}"
	}
	n = strings.IndexAny(at, stop)
	if n < 0 || n > 16*maxName {
		if len(at) > 16*maxName {
			return 0, "", stepBad
		}
		return 0, "", stepMore
	}
	word := strings.TrimSpace(at[:n])
	switch word {
	case "True":
		word = "true"
	case "False":
		word = "false"
	case "None":
		word = "null"
	case "":
		return 0, "", stepBad
	}
	json, _, ok := asJSON(word)
	if !ok && !l.gemma {
		return 0, "", stepBad
	}
	if !ok {
		json = quoteJSON(word)
	}
	return n, json, l.after()
}

func (l *literal) key(at string, end bool) (int, string, verdict) {
	n, s, v := l.begin(at, end)
	switch {
	case v == stepWent:
		return n, s, v
	case v == stepMore || !l.gemma || at[0] == '"':
		return 0, "", v
	}
	if n = strings.IndexByte(at, ':'); n < 0 || n > maxName {
		return 0, "", tooLong(at, ":")
	}
	if s = strings.TrimSpace(at[:n]); s == "" {
		return 0, "", stepBad
	}
	return n, quoteJSON(s), stepWent
}

// begin reads the opening quote of a string, or for Gemma a whole JSON string; stepBad if there is none.
func (l *literal) begin(at string, end bool) (int, string, verdict) {
	l.part.Reset()
	if l.gemma {
		if at[0] == '"' {
			n, s, v := jsonString(at)
			return n, quoteJSON(s), v
		}
		v := match(at, gemmaQuote)
		if v == stepWent {
			l.quote = gemmaQuote
		}
		return len(gemmaQuote), "", v
	}
	q := at[:1]
	if q != `"` && q != "'" {
		return 0, "", stepBad
	}
	if triple := strings.Repeat(q, 3); strings.HasPrefix(at, triple) {
		q = triple
	} else if strings.HasPrefix(triple, at) && !end {
		return 0, "", stepMore
	}
	l.quote = q
	return len(q), "", stepWent
}

// text reads on in a string. Where it was a key, the state says already that a colon follows, else whether it ends all.
func (l *literal) text(in string) (int, string, verdict) {
	i, found := 0, false
	for i < len(in) && !found {
		switch {
		case in[i] == '\\' && !l.gemma:
			if i+1 == len(in) {
				return l.partly(in[:i])
			}
			i += 2
		case strings.HasPrefix(in[i:], l.quote):
			found = true
		case strings.HasPrefix(l.quote, in[i:]):
			return l.partly(in[:i])
		default:
			i++
		}
	}
	if !found {
		return l.partly(in[:i])
	}
	l.part.WriteString(in[:i])
	s := l.part.String()
	if !l.gemma {
		s = unescape(s)
	}
	i += len(l.quote)
	l.quote = ""
	if l.state == literalColon {
		return i, quoteJSON(s), stepWent
	}
	return i, quoteJSON(s), l.after()
}

func (l *literal) partly(s string) (int, string, verdict) {
	if s == "" {
		return 0, "", stepMore
	}
	l.part.WriteString(s)
	return len(s), "", stepWent
}

// gemmaReader reads call:NAME{KEY:VALUE,...} and the closing marker.
type gemmaReader struct {
	state uint8 // 0: call:, 1: the name, 2: the arguments, 3: the closing marker
	args  literal
}

func (g *gemmaReader) step(in string, end bool, to *sink) (int, verdict) {
	ws := leading(in)
	switch g.state {
	case 0:
		v := match(in[ws:], "call:")
		if v != stepWent {
			return 0, v
		}
		g.state = 1
		return ws + len("call:"), v
	case 1:
		i := strings.IndexByte(in, '{')
		if i < 0 || i > maxName {
			return 0, tooLong(in, "{")
		}
		if !to.start(strings.TrimSpace(in[:i]), "") {
			return 0, stepBad
		}
		g.state, g.args = 2, literal{gemma: true}
		return i, stepWent
	case 2:
		n, json, v := g.args.step(in, end)
		to.arguments(json)
		if v == stepDone {
			to.finish()
			g.state = 3
			v = stepWent
		}
		return n, v
	}
	v := match(in[ws:], "<tool_call|>")
	if v == stepWent {
		return ws + len("<tool_call|>"), stepDone
	}
	if v == stepMore && !end {
		return 0, v
	}
	return 0, stepDone
}

// pythonReader reads calls in Python's spelling, [NAME(KEY=VALUE, ...), ...], or JSON ones in their place.
type pythonReader struct {
	tag   bool // behind <|python_tag|>: no list, no closing marker
	state pythonState
	list  bool
	json  *objectReader
	arg   literal
	some  bool
}

type pythonState uint8

const (
	pythonBegin    pythonState = iota
	pythonFirst                // behind [
	pythonName                 // a name and (
	pythonParam                // KEY= or )
	pythonValue                // within a value
	pythonComma                // , or )
	pythonAfter                // behind a call
	pythonAfterAll             // behind ]
)

const pythonClose = "<|tool_call_end|>"

func (p *pythonReader) step(in string, end bool, to *sink) (int, verdict) {
	if p.json != nil {
		return p.json.step(in, end, to)
	}
	if p.state == pythonValue {
		n, json, v := p.arg.step(in, end)
		to.arguments(json)
		if v == stepDone {
			p.state = pythonComma
			v = stepWent
		}
		return n, v
	}
	ws := leading(in)
	at := in[ws:]
	if at == "" {
		if end && p.state >= pythonAfter {
			return 0, stepDone
		}
		return 0, stepMore
	}
	c := at[0]
	switch p.state {
	case pythonBegin, pythonFirst:
		p.json = &objectReader{closer: pythonClose}
		if p.tag {
			p.json.closer = ""
		}
		switch {
		case c == '{' && p.state == pythonFirst:
			p.json.array, p.json.state = true, objectNext
			return ws, stepWent
		case c == '{':
			return ws, stepWent
		}
		p.json = nil
		if c == '[' && p.state == pythonBegin && !p.tag {
			p.list, p.state = true, pythonFirst
			return ws + 1, stepWent
		}
		p.state = pythonName
		return ws, stepWent
	case pythonName:
		i := strings.IndexByte(at, '(')
		if i < 0 || i > maxName {
			return 0, tooLong(at, "(")
		}
		name := strings.TrimSpace(at[:i])
		if p.tag {
			name = strings.TrimSuffix(name, ".call")
		}
		if !to.start(name, "") {
			return 0, stepBad
		}
		p.state, p.some = pythonParam, false
		return ws + i + 1, stepWent
	case pythonParam:
		if c == ')' {
			return p.endCall(ws+1, to)
		}
		i := strings.IndexByte(at, '=')
		if i < 0 || i > maxName {
			return 0, tooLong(at, "=")
		}
		key := strings.TrimSpace(at[:i])
		if key == "" || strings.ContainsAny(key, "'\"()[]{}, \n") {
			return 0, stepBad
		}
		piece := "{"
		if p.some {
			piece = ","
		}
		to.arguments(piece + quoteJSON(key) + ":")
		p.some, p.state, p.arg = true, pythonValue, literal{}
		return ws + i + 1, stepWent
	case pythonComma:
		switch c {
		case ',':
			p.state = pythonParam
			return ws + 1, stepWent
		case ')':
			return p.endCall(ws+1, to)
		}
		return 0, stepBad
	case pythonAfter:
		if p.list {
			switch c {
			case ',':
				p.state = pythonName
				return ws + 1, stepWent
			case ']':
				p.state = pythonAfterAll
				return ws + 1, stepWent
			}
			return 0, stepBad
		}
	}
	if p.tag {
		return 0, stepDone
	}
	switch v := match(at, pythonClose); {
	case v == stepWent:
		return ws + len(pythonClose), stepDone
	case v == stepMore && !end:
		return 0, stepMore
	}
	return 0, stepDone
}

func (p *pythonReader) endCall(n int, to *sink) (int, verdict) {
	if !p.some {
		to.arguments("{")
	}
	to.arguments("}")
	to.finish()
	p.state = pythonAfter
	return n, stepWent
}
