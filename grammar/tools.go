package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"terrace/chat"
)

// ToolOptions say what a model may call.
type ToolOptions struct {
	Required   bool   // nothing but calls, after thoughts; else calls are free to come or not
	Only       string // the one function that may be called; "": any
	Parallel   bool   // several calls
	InThoughts bool   // the prompt ends within thoughts, see chat.Parser.InReasoning
	NoThoughts bool   // there are to be none
	Compact    bool   // as in SchemaOptions
}

// ForTools makes the grammar of an answer that may or must call functions, in the spelling of a template's family.
// definitions are OpenAI's, as in chat.Conversation; the arguments obey the parameters' schemas.
//
// If calls are not required, the answer is free until it begins a call, and what follows is a call whose name and arguments
// are right; after the calls it ends. The markers that begin a call may be control tokens or text, cut into tokens in any
// way. If they are required, nothing can be sampled after the thoughts but one call or, with Parallel, several.
//
// Errors name the tool, and for its schema the path.
func ForTools(t *chat.Template, f chat.Family, definitions json.RawMessage, o ToolOptions) (*Grammar, error) {
	w := &writer{syntax: t.Syntax(f), family: f, any: -1}
	w.open, w.close, w.anywhere = t.Thoughts(f)
	for _, m := range f.Markers() {
		if m != "" {
			w.markers = append(w.markers, m)
		}
	}
	if w.open != "" {
		w.markers = append(w.markers, w.thoughtMarks()...)
	}
	calls, err := w.tools(definitions, o)
	if err != nil {
		return nil, err
	}
	thinks := !o.NoThoughts && (t.Caps().Thinking || o.InThoughts)
	root := calls.free(w, o, thinks)
	if o.Required {
		root = w.afterThoughts(calls.whole(w, "", o.Parallel), thinks, o.InThoughts)
	}
	return w.finish(root)
}

// ForToolsOr makes the grammar of an answer that either calls functions or is a visible text of g; thoughts may come before
// both. Options and errors are those of ForTools, but for Required.
func ForToolsOr(t *chat.Template, f chat.Family, definitions json.RawMessage, g *Grammar, o ToolOptions) (*Grammar, error) {
	w := &writer{syntax: t.Syntax(f), family: f, any: -1, rules: slices.Clone(g.rules)}
	w.open, w.close, w.anywhere = t.Thoughts(f)
	for _, m := range f.Markers() {
		if m != "" {
			w.markers = append(w.markers, m)
		}
	}
	if w.open != "" {
		w.markers = append(w.markers, w.thoughtMarks()...)
	}
	calls, err := w.tools(definitions, o)
	if err != nil {
		return nil, err
	}
	body := alt(calls.whole(w, "", o.Parallel), w.visible(g.root))
	return w.finish(w.afterThoughts(body, !o.NoThoughts && (t.Caps().Thinking || o.InThoughts), o.InThoughts))
}

// visible is a text of a rule where the family has what can be seen.
func (w *writer) visible(rule int) *node {
	body := &node{kind: kRef, ref: rule}
	if w.family == chat.Harmony {
		return seq(mark("<|channel|>"), text("final"), opt(seq(text(" "), mark("<|constrain|>"), text("json"))), mark("<|message|>"), body)
	}
	return body
}

// ForAnswer makes the grammar of an answer whose visible text is one of g: thoughts may come before, where the model has
// them. InThoughts and NoThoughts count of the options.
func ForAnswer(t *chat.Template, f chat.Family, g *Grammar, o ToolOptions) (*Grammar, error) {
	w := &writer{family: f, any: -1, rules: slices.Clone(g.rules)}
	w.open, w.close, w.anywhere = t.Thoughts(f)
	w.markers = append(f.Markers(), w.thoughtMarks()...)
	body := w.visible(g.root)
	thinks := !o.NoThoughts && (t.Caps().Thinking || o.InThoughts)
	return w.finish(w.afterThoughts(body, thinks, o.InThoughts))
}

// writer makes the nodes of a family's answers.
type writer struct {
	syntax      chat.Syntax
	family      chat.Family
	markers     []string
	open, close string // around thoughts
	anywhere    bool
	rules       []rule
	any         int
}

// thoughtMarks are the tags of thoughts that look like control tokens.
func (w *writer) thoughtMarks() []string {
	var all []string
	for _, s := range []string{w.open, w.close} {
		if strings.HasPrefix(s, "<") && strings.HasSuffix(s, ">") || strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
			all = append(all, s)
		}
	}
	return all
}

func (w *writer) finish(root *node) (*Grammar, error) {
	w.rules = append(w.rules, rule{"answer", root})
	g, err := finish(w.rules, len(w.rules)-1)
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	return g, nil
}

// pieces cuts a text into markers and what stands between them.
func (w *writer) pieces(s string) []*node {
	var out []*node
	for s != "" {
		at, found := len(s), ""
		for _, m := range w.markers {
			if i := strings.Index(s, m); m != "" && i >= 0 && (i < at || i == at && len(m) > len(found)) {
				at, found = i, m
			}
		}
		if at > 0 {
			out = append(out, text(s[:at]))
		}
		if found != "" {
			out = append(out, mark(found))
		}
		s = s[at+len(found):]
	}
	return out
}

func (w *writer) lit(s string) *node { return seq(w.pieces(s)...) }

// gap is white space that may stand before what counts.
var gap = repeat(chars(setOf(" \n")), 0, 4)

// afterThoughts is body after the thoughts, if there are any.
func (w *writer) afterThoughts(body *node, thinks, within bool) *node {
	if w.family == chat.Harmony {
		next := seq(mark("<|start|>"), text("assistant"), body)
		exits := []exit{{pieces: w.pieces("<|end|>"), then: next}}
		for _, m := range []string{"<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>"} { // each would end the thoughts
			exits = append(exits, exit{pieces: []*node{mark(m)}, then: never})
		}
		thoughts := &node{kind: kFree, free: &free{loose: true, exits: exits}}
		switch {
		case within:
			return thoughts
		case thinks:
			return alt(body, seq(mark("<|channel|>"), text("analysis"), mark("<|message|>"), thoughts))
		}
		return body
	}
	body = seq(gap, body)
	thoughts := w.thoughts(body, false)
	switch {
	case within:
		return thoughts
	case thinks:
		return alt(body, seq(gap, w.lit(w.open), thoughts))
	}
	return body
}

// thoughts are free text up to the closing tag, then what comes after; ends tells whether the answer may end within.
func (w *writer) thoughts(then *node, ends bool) *node {
	return &node{kind: kFree, free: &free{loose: true, ends: ends, exits: []exit{{pieces: w.pieces(w.close), then: then}}}}
}

// calls are the functions that may be called.
type calls struct {
	names []string
	args  []*node
}

// free is an answer in which calls may come.
func (c *calls) free(w *writer, o ToolOptions, thinks bool) *node {
	if w.family == chat.Harmony {
		rest := c.whole(w, w.syntax.Open, o.Parallel)
		return &node{kind: kFree, free: &free{loose: true, ends: true, exits: []exit{
			{pieces: w.pieces("<|channel|>commentary to=functions."), then: rest},
			{pieces: w.pieces("<|start|>assistant to=functions."), then: rest},
			{pieces: w.pieces("to=functions."), first: true, then: rest}}[:exitCount(o)]}}
	}
	s := w.syntax
	var exits []exit
	for _, trigger := range s.Triggers {
		if s.TriggersOnlyFirst && strings.HasPrefix(s.Open, trigger) {
			exits = append(exits, exit{pieces: w.pieces(s.Open), first: true, then: c.whole(w, s.Begin+s.Open, o.Parallel)})
			continue
		}
		full := s.Begin + s.Open
		if i := strings.Index(full, trigger); i >= 0 {
			exits = append(exits, exit{pieces: w.pieces(trigger), then: c.whole(w, full[:i+len(trigger)], o.Parallel)})
		}
	}
	later := &node{kind: kFree, free: &free{loose: true, ends: true, exits: exits}}
	if o.InThoughts {
		return w.thoughts(later, true)
	}
	if thinks && w.open != "" {
		exits = append(exits[:len(exits):len(exits)], exit{pieces: w.pieces(w.open), first: !w.anywhere, then: w.thoughts(later, true)})
	}
	return &node{kind: kFree, free: &free{loose: true, ends: true, exits: exits}}
}

// exitCount leaves out the header at the beginning of the answer, if it begins within thoughts.
func exitCount(o ToolOptions) int {
	if o.InThoughts {
		return 2
	}
	return 3
}

// whole are the calls from behind begun on, which is the beginning of what stands before the first name.
func (c *calls) whole(w *writer, begun string, parallel bool) *node {
	s := w.syntax
	var named []*node
	for i, n := range c.names {
		parts := []*node{text(n)}
		if s.Number != "" {
			parts = append(parts, text(s.Number), digits(1, 2))
		}
		if w.family == chat.Harmony {
			kind := seq(mark("<|constrain|>"), text("json"))
			parts = append(parts, opt(seq(mark("<|channel|>"), text("commentary"))), opt(alt(text(" json"), kind, seq(text(" "), kind))), mark("<|message|>"))
		} else {
			parts = append(parts, w.lit(s.Sep))
		}
		named = append(named, seq(append(parts, c.args[i], w.lit(s.Close))...))
	}
	call := alt(named...)
	more := empty
	if parallel && !s.Single {
		more = repeat(seq(w.lit(s.Between+s.Open), call), 0, -1)
	}
	return seq(w.lit((s.Begin + s.Open)[len(begun):]), call, more, w.lit(s.End))
}

// tools reads the definitions.
func (w *writer) tools(definitions json.RawMessage, o ToolOptions) (*calls, error) {
	doc, err := readValue(definitions)
	if err != nil {
		return nil, fmt.Errorf("tools: %s", oneLine(err))
	}
	if doc.kind != '[' {
		return nil, fmt.Errorf("tools: %s, not an array of definitions", doc.show())
	}
	types, err := chat.ParameterTypes(definitions)
	if err != nil {
		return nil, err
	}
	c := &calls{}
	for i, d := range doc.items {
		if fn := d.get("function"); fn != nil && fn.kind == '{' {
			d = fn
		}
		name := d.get("name")
		if name == nil || name.kind != '"' || !plainName(name.text) {
			return nil, fmt.Errorf("tools: definition %d has no name that a call can be written with", i)
		}
		if o.Only != "" && name.text != o.Only || slices.Contains(c.names, name.text) {
			continue
		}
		n, err := w.arguments(d.get("parameters"), types[name.text], o)
		if err != nil {
			var se *SchemaError
			if errors.As(err, &se) {
				return nil, fmt.Errorf("tools: parameters of %s: %s: %s", name.text, se.Path, se.Text)
			}
			return nil, fmt.Errorf("tools: parameters of %s: %w", name.text, err)
		}
		c.names, c.args = append(c.names, name.text), append(c.args, n)
	}
	if len(c.names) == 0 {
		if o.Only != "" {
			return nil, fmt.Errorf("tools: there is no function %.60q to call", o.Only)
		}
		return nil, fmt.Errorf("tools: there is no function to call")
	}
	return c, nil
}

// arguments makes the arguments of one function; letters are what the parser reads its parameters as.
func (w *writer) arguments(params *value, letters map[string]string, o ToolOptions) (*node, error) {
	none := &value{kind: '{', keys: []string{"additionalProperties"}, items: []*value{{kind: 't'}}}
	if params == nil || params.kind == 'n' {
		params = none
	}
	in := []piece{{&value{kind: '{', keys: []string{"type"}, items: []*value{{kind: '"', text: "object"}}}, "#", nil}, {params, "#", nil}}
	if params.kind == '{' && bare(params) {
		in = append(in, piece{none, "#", nil})
	}
	b := newBuilder(params, o.Compact)
	b.rules, b.any = w.rules, w.any
	s := w.syntax
	switch s.Arguments {
	case chat.ArgumentsGemma:
		b.style, b.space, b.colon = styleGemma, empty, text(":")
	case chat.ArgumentsPython:
		b.style = stylePython
		b.call = &callStyle{comma: text(", "), param: empty, equals: text("="), letters: letters}
	case chat.ArgumentsTagged:
		core := strings.TrimSpace(s.ParamEnd)
		lead, trail, _ := strings.Cut(s.ParamEnd, core)
		b.avoid = true
		b.style, b.stop, b.stopNode = styleRaw, core, w.lit(s.ParamEnd)
		b.stopExits = []exit{{pieces: w.pieces(lead + core), then: text(trail)}}
		if lead != "" {
			b.stopExits = append(b.stopExits, exit{pieces: w.pieces(core), then: never})
		}
		b.textSep, b.jsonSep = w.lit(s.TextSep), w.lit(s.JSONSep)
		b.call = &callStyle{comma: empty, param: w.lit(s.Param), equals: empty, letters: letters, told: s.TextSep != s.JSONSep}
	}
	n, err := b.schema(in, 0)
	if err != nil {
		return nil, err
	}
	if n.kind == kNever {
		return nil, b.reason("#")
	}
	w.rules, w.any = b.rules, b.any
	return n, nil
}

// bare tells whether a schema of parameters names none and asks for none.
func bare(s *value) bool {
	for i, k := range s.keys {
		switch k {
		case "additionalProperties", "unevaluatedProperties", "required", "$ref", "allOf", "anyOf", "oneOf", "minProperties":
			return false
		case "properties":
			if len(s.items[i].keys) > 0 {
				return false
			}
		}
	}
	return true
}
