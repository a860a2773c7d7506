package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// verdict is the outcome of a reader's step.
type verdict uint8

const (
	stepMore verdict = iota // the text is too short to tell
	stepWent                // n bytes are understood, go on
	stepDone                // n bytes are understood, and with them the calls end
	stepBad                 // this is no call
)

// callReader reads calls behind their opener. A step looks at the text that is not understood yet, takes the next few bytes
// of it and tells the sink what they are. What it does must not depend on where the text was cut: if more text could
// change the outcome, the step is stepMore, which end rules out.
type callReader interface {
	step(in string, end bool, to *sink) (n int, v verdict)
}

// sink takes calls from a reader and gives them to the parser, at once or when they are complete.
type sink struct {
	p     *Parser
	index int  // of the next call to begin
	open  bool // a call has begun
	given bool // something was given since the parser looked
	id    string
	name  string
	held  strings.Builder // arguments, if calls are given when complete
}

// start begins a call; false if there can be no such call.
func (s *sink) start(name, id string) bool {
	o := &s.p.opts
	if name == "" || o.NoCalls || o.OneCall && s.index > 0 || !o.AnyName && s.p.tools.all[name] == nil {
		return false
	}
	if s.open {
		panic("chat: a call begins within another")
	}
	if id == "" {
		id = o.NewID()
	}
	s.open, s.id, s.name = true, id, name
	s.held.Reset()
	if !o.Complete {
		s.give(CallDelta{Index: s.index, ID: id, Name: name})
	}
	return true
}

// arguments adds a piece of the call's JSON.
func (s *sink) arguments(piece string) {
	if piece == "" {
		return
	}
	if s.p.opts.Complete {
		s.held.WriteString(piece)
		return
	}
	s.give(CallDelta{Index: s.index, Arguments: piece})
}

// finish ends the call.
func (s *sink) finish() {
	if s.p.opts.Complete {
		s.give(CallDelta{Index: s.index, ID: s.id, Name: s.name, Arguments: s.held.String()})
	}
	s.open = false
	s.index++
}

// drop forgets a call that turned out faulty; of what was given of it, its index stays.
func (s *sink) drop() {
	if s.open && !s.p.opts.Complete {
		s.index++
	}
	s.open = false
}

func (s *sink) give(d CallDelta) {
	s.given = true
	s.p.give(Delta{Call: &d})
}

// value writes a value that a family gives as bare text: as JSON of the type that the tool's schema asks for.
func (s *sink) value(key, text string) string {
	return s.p.tools.all[s.name].value(key, text)
}

// toolSet is what a parser knows of the tools.
type toolSet struct {
	all map[string]*toolTypes
}

// toolTypes has the JSON types that each parameter of a tool may have, as letters of asJSON; "" if anything goes.
type toolTypes struct {
	params map[string]string
}

func newToolSet(definitions json.RawMessage) (*toolSet, error) {
	set := &toolSet{all: map[string]*toolTypes{}}
	if len(strings.TrimSpace(string(definitions))) == 0 {
		return set, nil
	}
	type function struct {
		Name       string
		Parameters json.RawMessage
	}
	var tools []struct {
		Function *function
		function
	}
	if err := json.Unmarshal(definitions, &tools); err != nil {
		return nil, oneLine("tools: %v", err)
	}
	for i, t := range tools {
		f := t.function
		if t.Function != nil {
			f = *t.Function
		}
		if f.Name == "" {
			return nil, fmt.Errorf("tools: definition %d has no name", i)
		}
		var schema map[string]any
		if len(f.Parameters) > 0 {
			if err := json.Unmarshal(f.Parameters, &schema); err != nil {
				return nil, oneLine("tools: parameters of %s: %v", clip(f.Name), err)
			}
		}
		types := &toolTypes{params: map[string]string{}}
		props, _ := schema["properties"].(map[string]any)
		for name, p := range props {
			letters := map[byte]bool{}
			if typeLetters(p, schema, letters, 0) != nil {
				continue
			}
			for _, c := range []byte(`{["0tn`) {
				if letters[c] {
					types.params[name] += string(c)
				}
			}
		}
		set.all[f.Name] = types
	}
	return set, nil
}

var errAnyType = errors.New("any type")

// typeLetters gathers the types that a schema allows; errAnyType if it does not say.
func typeLetters(schema any, root map[string]any, out map[byte]bool, depth int) error {
	m, ok := schema.(map[string]any)
	if !ok || depth > 8 {
		return errAnyType
	}
	if ref, ok := m["$ref"].(string); ok {
		path, ok := strings.CutPrefix(ref, "#/")
		if !ok {
			return errAnyType
		}
		var at any = root
		for _, step := range strings.Split(path, "/") {
			next, _ := at.(map[string]any)
			at = next[step]
		}
		return typeLetters(at, root, out, depth+1)
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if list, ok := m[word].([]any); ok {
			for _, s := range list {
				if err := typeLetters(s, root, out, depth+1); err != nil {
					return err
				}
			}
			return nil
		}
	}
	add := func(t any) error {
		name, _ := t.(string)
		letter := map[string]byte{"object": '{', "array": '[', "string": '"', "number": '0', "integer": '0', "boolean": 't', "null": 'n'}[name]
		if letter == 0 {
			return errAnyType
		}
		out[letter] = true
		return nil
	}
	if list, ok := m["type"].([]any); ok {
		for _, t := range list {
			if err := add(t); err != nil {
				return err
			}
		}
		return nil
	}
	if list, ok := m["enum"].([]any); ok && m["type"] == nil {
		for _, v := range list {
			name := "null"
			switch v.(type) {
			case string:
				name = "string"
			case float64:
				name = "number"
			case bool:
				name = "boolean"
			case map[string]any:
				name = "object"
			case []any:
				name = "array"
			}
			_ = add(name)
		}
		return nil
	}
	return add(m["type"])
}

// value makes JSON of text: a string where the schema wants only that, else what it reads as, else a string.
func (t *toolTypes) value(key, text string) string {
	types := ""
	if t != nil {
		types = t.params[key]
	}
	if types != `"` {
		trimmed := strings.TrimSpace(text)
		switch trimmed { // Python's spellings
		case "True":
			trimmed = "true"
		case "False":
			trimmed = "false"
		case "None":
			trimmed = "null"
		}
		v, kind, ok := asJSON(trimmed)
		// A quoted string is one only where the schema rules out that the quotes are meant.
		if ok && (types == "" && kind != '"' || types != "" && (strings.IndexByte(types, kind) >= 0 && kind != '"' || !strings.Contains(types, `"`))) {
			return v
		}
	}
	return quoteJSON(text)
}

// quoteJSON writes s as a JSON string with nothing escaped that need not be.
func quoteJSON(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ':
			b.WriteString(escapeControl(c))
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// leading is the number of bytes of white space that in begins with.
func leading(in string) int { return len(in) - len(strings.TrimLeft(in, " \t\r\n")) }

// match compares the beginning of in with want: stepWent if it is there, stepMore if more text is needed, else stepBad.
func match(in, want string) verdict {
	switch {
	case strings.HasPrefix(in, want):
		return stepWent
	case strings.HasPrefix(want, in):
		return stepMore
	}
	return stepBad
}

// jsonString reads the JSON string that in begins with and gives its value.
func jsonString(in string) (n int, value string, v verdict) {
	if in == "" {
		return 0, "", stepMore
	}
	if in[0] != '"' {
		return 0, "", stepBad
	}
	var s jsonScan
	var b strings.Builder
	n, done, ok := s.scan(in, &b)
	switch {
	case !ok:
		return 0, "", stepBad
	case !done:
		return 0, "", stepMore
	}
	if json.Unmarshal([]byte(b.String()), &value) != nil {
		return 0, "", stepBad
	}
	return n, value, stepWent
}
