package chat

import "strings"

// taggedForm is a way to write calls as parameters between tags, their values as bare text.
type taggedForm struct {
	open, close       string // around the calls
	callOpen, nameEnd string // around a name; both "" where the name stands behind open and ends at white space or a tag
	callClose         string
	paramOpen, keyEnd string
	valueOpen         string // between key and value, if anything
	paramClose        string
	alone             bool // a call may stand without open and close
	newlines          bool // a line break on each side of a value is not part of it
	typed             bool // the key is followed by string="true" or string="false"
}

const dsml = "｜DSML｜"

var taggedForms = map[Family][]*taggedForm{
	CoderXML: {{open: "<tool_call>", close: "</tool_call>", callOpen: "<function=", nameEnd: ">", callClose: "</function>",
		paramOpen: "<parameter=", keyEnd: ">", paramClose: "</parameter>", alone: true, newlines: true}},
	GLM: {{open: "<tool_call>", callOpen: "", callClose: "</tool_call>",
		paramOpen: "<arg_key>", keyEnd: "</arg_key>", valueOpen: "<arg_value>", paramClose: "</arg_value>"}},
	MiniMax: {{open: "<minimax:tool_call>", close: "</minimax:tool_call>", callOpen: `<invoke name="`, nameEnd: `">`, callClose: "</invoke>",
		paramOpen: `<parameter name="`, keyEnd: `">`, paramClose: "</parameter>"}},
	DSML: {dsmlForm("function_calls", ""), dsmlForm("tool_calls", ""), dsmlForm("calls", " ")},
}

// dsmlForm is the form of DeepSeek V3.2, V4 and, with a space before each tag's name, V4.1.
func dsmlForm(section, space string) *taggedForm {
	dsml := dsml + space
	return &taggedForm{open: "<" + dsml + section + ">", close: "</" + dsml + section + ">",
		callOpen: "<" + dsml + `invoke name="`, nameEnd: `">`, callClose: "</" + dsml + "invoke>",
		paramOpen: "<" + dsml + `parameter name="`, keyEnd: `>`, paramClose: "</" + dsml + "parameter>", typed: true}
}

type taggedReader struct {
	form  *taggedForm
	state taggedState
	key   string
	raw   bool            // the value is JSON as it stands
	text  bool            // the value is a string as it stands
	part  strings.Builder // of the value, without an end of it
	some  bool            // a parameter was given
	list  *objectReader
}

type taggedState uint8

const (
	taggedCall  taggedState = iota // a call, or the end of all
	taggedName                     // behind callOpen
	taggedParam                    // a parameter, or the end of the call
	taggedKey                      // behind paramOpen
	taggedOpen                     // before valueOpen
	taggedValue
)

func (t *taggedReader) step(in string, end bool, to *sink) (int, verdict) {
	f := t.form
	if t.list != nil {
		return t.list.step(in, end, to)
	}
	switch t.state {
	case taggedName:
		return t.name(in, end, to)
	case taggedKey:
		i := strings.Index(in, f.keyEnd)
		if i < 0 || i > maxName {
			return 0, tooLong(in, f.keyEnd)
		}
		key := in[:i]
		t.raw, t.text = false, false
		if f.typed {
			name, attr, ok := strings.Cut(key, `"`)
			if !ok {
				return 0, stepBad
			}
			switch strings.TrimSpace(attr) {
			case "":
			case `string="true"`:
				t.text = true
			case `string="false"`:
				t.raw = true
			default:
				return 0, stepBad
			}
			key = name
		}
		if key = strings.TrimSpace(key); key == "" {
			return 0, stepBad
		}
		t.key, t.state = key, taggedValue
		t.part.Reset()
		if f.valueOpen != "" {
			t.state = taggedOpen
		}
		return i + len(f.keyEnd), stepWent
	case taggedValue:
		return t.value(in, end, to)
	}
	ws := leading(in)
	at := in[ws:]
	next := func(want string, state taggedState) (int, verdict) {
		v := match(at, want)
		if v != stepWent {
			return 0, v
		}
		t.state = state
		return ws + len(want), stepWent
	}
	switch t.state {
	case taggedOpen:
		return next(f.valueOpen, taggedValue)
	case taggedParam:
		n, v := next(f.paramOpen, taggedKey)
		if v == stepWent {
			return n, v
		}
		m, w := next(f.callClose, taggedCall)
		if w == stepWent {
			if !t.some {
				to.arguments("{")
			}
			to.arguments("}")
			to.finish()
			t.some = false
			if f.callOpen == "" {
				return m, stepDone
			}
			return m, w
		}
		if v == stepMore || w == stepMore {
			return 0, stepMore
		}
		return 0, stepBad
	}
	if f.alone && at != "" && at[0] == '{' { // the older form, which these models know too
		t.list = &objectReader{closer: f.close}
		return ws, stepWent
	}
	n, v := next(f.callOpen, taggedName)
	if v == stepWent {
		return n, v
	}
	w := match(at, f.close)
	switch {
	case w == stepWent:
		return ws + len(f.close), stepDone
	case (v == stepMore || w == stepMore) && !end:
		return 0, stepMore
	}
	return 0, stepDone
}

// tooLong is for a name that has not ended within in: its end may still come, unless it is longer than names are.
func tooLong(in, end string) verdict {
	if len(in) > maxName+len(end) {
		return stepBad
	}
	return stepMore
}

func (t *taggedReader) name(in string, end bool, to *sink) (int, verdict) {
	f := t.form
	ws, n, size := 0, 0, len(f.nameEnd)
	if f.nameEnd != "" {
		n = strings.Index(in, f.nameEnd)
	} else {
		ws = leading(in)
		if n = strings.IndexAny(in[ws:], "<\n"); n >= 0 {
			n += ws
		}
	}
	if n < 0 || n > maxName {
		return 0, tooLong(in, f.nameEnd)
	}
	if !to.start(strings.TrimSpace(in[ws:n]), "") {
		return 0, stepBad
	}
	t.state, t.some = taggedParam, false
	return n + size, stepWent
}

// value looks for the closing tag that is followed by another tag of the call: texts may speak of such tags.
func (t *taggedReader) value(in string, end bool, to *sink) (int, verdict) {
	f := t.form
	i := strings.Index(in, f.paramClose)
	take := i + 1 // if this is no end
	if i < 0 {
		if take = len(in) - overlap(in, f.paramClose); take == 0 {
			return 0, stepMore
		}
	} else {
		next := in[i+len(f.paramClose):]
		next = next[leading(next):]
		v, w := match(next, f.paramOpen), match(next, f.callClose)
		if v == stepMore || w == stepMore {
			if !end {
				return 0, stepMore
			}
			if next == "" {
				v = stepWent
			}
		}
		if v == stepWent || w == stepWent {
			t.part.WriteString(in[:i])
			value, ok := t.json(t.part.String(), to)
			if !ok {
				return 0, stepBad
			}
			piece := "{"
			if t.some {
				piece = ","
			}
			to.arguments(piece + quoteJSON(t.key) + ":" + value)
			t.some, t.state = true, taggedParam
			return i + len(f.paramClose), stepWent
		}
	}
	t.part.WriteString(in[:take])
	return take, stepWent
}

// json is the value that stands as text between the tags.
func (t *taggedReader) json(text string, to *sink) (string, bool) {
	if t.form.newlines {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "\n"), "\n")
	}
	switch {
	case t.text:
		return quoteJSON(text), true
	case t.raw:
		v, _, ok := asJSON(text)
		return v, ok
	}
	return to.value(t.key, text), true
}
