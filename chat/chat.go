// Package chat turns a conversation into the prompt text a model was trained on, by the model's own Jinja template, so
// that no text from a user can become a control token, and reads the answer: what of it is thought, what a tool call, what
// content (see Parser).
//
// It does not tokenize, and it does not make a model write anything: see Syntax for what a grammar must allow.
//
// # Templates
//
// A template behaves as in transformers: Jinja2 with trim_blocks, lstrip_blocks, loop controls, generation blocks and
// Python's values. The engine is github.com/ardanlabs/jinja; a template is first rewritten so that the engine resolves
// names, scopes and control flow only, and every operation is a function of this package (see translator). What that
// gains: Python's printing, JSON and white space rules exactly, a bound on work and memory whatever the template says, and
// the origin of each character. Not supported, each an error when the template is compiled: recursive loops, * in calls, ** outside dict() and namespace(), include, import, block, with and autoescape. Known
// differences from Python: a tuple is a list (and prints as one), upper() of a letter that has no single capital leaves it,
// integers past 64 bits can be printed and compared but not calculated with.
//
// # Input stays text
//
// Characters that came from the conversation are known through the whole render (see disguise). Where the result would
// spell one of Options.Special with the help of such a character, Render cuts it there into a part of its own with User
// set: the tokenizer must tokenize each part apart and look for control tokens only where User is false. This holds for
// contents, reasoning, names, tool definitions and calls, results and the template's extra arguments, also when the
// template joins, splits, trims, upper-cases or JSON-encodes them. Roles are trusted, because some templates build tokens
// of them; Render takes only the known ones. Limits: texts that the model file itself supplies (its template, its BOS and
// EOS) are trusted; a template that interprets input character by character, comparing and then writing out letters of its
// own, could launder it; and of a token's text only exact spellings count, as in the tokenizer.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ardanlabs/jinja"
)

// Options are what a template needs to know of its model.
type Options struct {
	BOS, EOS string   // texts of the tokens, "" if the model has none
	Special  []string // texts of all control tokens
}

// Template is a compiled chat template, safe for concurrent use.
type Template struct {
	// Fallback is true if the model brought no template and ChatML is used in its place.
	Fallback bool

	engine   *jinja.Template
	used     map[string]bool
	private  map[rune]bool // private-use characters in the template
	specials *specials
	opts     Options
	source   string

	probe, heads sync.Once
	caps         Caps
	head         string // of an assistant's turn
}

// Caps tells what a template does with a conversation, found by rendering small ones.
type Caps struct {
	System        bool // shows a system message
	Tools         bool // shows tool definitions
	ToolCalls     bool // shows calls in an assistant's message
	ParallelCalls bool // shows several calls of one message
	StringCalls   bool // needs the arguments of a call as a string; else they are an object
	TypedContent  bool // needs content as a list of parts; else it is a string
	Thinking      bool // knows thoughts: their tags, or a channel for them
}

// Message is one turn of a conversation.
type Message struct {
	Role       string // system, developer, user, assistant or tool
	Content    string
	Parts      []ContentPart // in place of Content
	Reasoning  string        // an assistant's thinking
	ToolCalls  []ToolCall    // of an assistant
	ToolCallID string        // the call that a tool message answers
	Name       string        // of the tool or speaker, may be empty
}

// ContentPart is a piece of a message's content. Type is "text".
type ContentPart struct {
	Type, Text string
}

// ToolCall is a call that an assistant made.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // JSON text
}

// Conversation is what Render makes a prompt of.
type Conversation struct {
	Messages            []Message
	Tools               json.RawMessage // JSON array of definitions, OpenAI's shape; empty if there are none
	AddGenerationPrompt bool            // end with the head of an assistant's turn
	EnableThinking      *bool           // nil: true
	ReasoningEffort     string          // "" if not asked for
	Kwargs              json.RawMessage // JSON object of further template variables
	Now                 time.Time       // for strftime_now; zero: the time of the render
	// Continue leaves the turn of the last message, an assistant's, open: the answer goes on from its text. It implies
	// AddGenerationPrompt.
	Continue bool

	open *Message // the turn to continue, taken off Messages
}

// Part is a piece of a prompt. User marks text from the conversation that would otherwise be taken for a control token.
type Part struct {
	Text string
	User bool
}

var roles = []string{"system", "developer", "user", "assistant", "tool"}

// New compiles source. An error names what is wrong with the template and where.
func New(source string, opts Options) (t *Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, oneLine("chat template: the engine failed: %v", p)
		}
	}()
	out, used, private, err := translate(unguarded(source))
	if err != nil {
		return nil, oneLine("chat template: %v", err)
	}
	engine, err := jinja.Compile(out)
	if err != nil {
		return nil, oneLine("chat template: the engine refuses it: %v", err)
	}
	return &Template{engine: engine, used: used, private: private, specials: newSpecials(opts.Special), opts: opts, source: source}, nil
}

// ChatML is the template used for a model that brings none.
const ChatML = `{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// Default compiles the model's own template, or ChatML with Fallback set if source is empty.
func Default(source string, opts Options) (*Template, error) {
	if strings.TrimSpace(source) != "" {
		return New(source, opts)
	}
	t, err := New(ChatML, opts)
	if err != nil {
		return nil, err
	}
	t.Fallback = true
	return t, nil
}

// Source returns the template's text.
func (t *Template) Source() string { return t.source }

// Caps tells what the template can do; the first call renders a few small conversations.
func (t *Template) Caps() Caps {
	t.probe.Do(t.probeCaps)
	return t.caps
}

// Render makes the prompt. Its parts joined are what the template gives; an empty prompt has no parts.
// Errors tell a fault of the conversation by message and field, or what the template refused.
func (t *Template) Render(conv Conversation) ([]Part, error) {
	if err := check(conv); err != nil {
		return nil, err
	}
	caps := t.Caps()
	conv.Messages = slices.Clone(conv.Messages)
	for i := range conv.Messages {
		if m := &conv.Messages[i]; m.Role == "developer" && !strings.Contains(t.source, "developer") {
			m.Role = "system"
		}
	}
	if conv.Continue {
		last := conv.Messages[len(conv.Messages)-1]
		conv.Messages, conv.open, conv.AddGenerationPrompt = conv.Messages[:len(conv.Messages)-1], &last, true
		if last.Reasoning == "" { // a prompt that opens thoughts would make thoughts of the text
			off := false
			conv.EnableThinking = &off
		}
	}
	if !caps.System {
		conv.Messages = mergeSystem(conv.Messages)
	}
	d, out, err := t.render(conv, caps, baseSteps)
	if err != nil && len(conv.Tools) > 0 {
		// Some templates fail on a tool without a description or parameters, which a request may leave out.
		if tools, ok := fillTools(conv.Tools); ok {
			conv.Tools = tools
			if d2, out2, err2 := t.render(conv, caps, baseSteps); err2 == nil {
				d, out, err = d2, out2, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return t.specials.parts(d, out), nil
}

// oneLine makes an error of one line and bounded length.
func oneLine(format string, args ...any) error {
	s := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if r := []rune(s); len(r) > 300 {
		s = string(r[:300]) + "..."
	}
	return errors.New(s)
}

func check(conv Conversation) error {
	if len(conv.Messages) == 0 {
		return errors.New("conversation has no messages")
	}
	for i, m := range conv.Messages {
		if !slices.Contains(roles, m.Role) {
			return fmt.Errorf("message %d: role %s is none of %s", i, clip(m.Role), strings.Join(roles, ", "))
		}
		for _, p := range m.Parts {
			if p.Type != "text" {
				return fmt.Errorf("message %d: content part of type %s, only text is supported", i, clip(p.Type))
			}
		}
		if m.Role != "assistant" && len(m.ToolCalls) > 0 {
			return fmt.Errorf("message %d: tool calls in a message of role %s", i, m.Role)
		}
	}
	if last := conv.Messages[len(conv.Messages)-1]; conv.Continue {
		switch {
		case last.Role != "assistant":
			return fmt.Errorf("message %d: role %s, only a last message of an assistant can be continued", len(conv.Messages)-1, last.Role)
		case len(last.ToolCalls) > 0:
			return fmt.Errorf("message %d: a message with tool calls cannot be continued", len(conv.Messages)-1)
		case len(conv.Messages) == 1:
			return errors.New("message 0: there is nothing before the message to continue")
		}
	}
	return nil
}

// mergeSystem moves system messages into the user message that follows them.
func mergeSystem(msgs []Message) []Message {
	var out []Message
	pending := ""
	for _, m := range msgs {
		switch {
		case m.Role == "system":
			pending += m.text() + "\n\n"
			continue
		case m.Role == "user" && pending != "":
			m.Content, m.Parts = pending+m.text(), nil
			pending = ""
		}
		out = append(out, m)
	}
	if pending != "" {
		out = append(out, Message{Role: "user", Content: strings.TrimSuffix(pending, "\n\n")})
	}
	return out
}

// text is the content as one string; parts are joined by newlines.
func (m *Message) text() string {
	if m.Parts == nil {
		return m.Content
	}
	all := make([]string, len(m.Parts))
	for i, p := range m.Parts {
		all[i] = p.Text
	}
	return strings.Join(all, "\n")
}

// render runs the template and returns disguised text.
func (t *Template) render(conv Conversation, caps Caps, steps int64) (d *disguise, out string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = oneLine("chat template: the engine failed: %v", p)
		}
	}()
	taken := map[rune]bool{}
	for r := range t.private {
		taken[r] = true
	}
	size := 0
	note := func(s string) {
		size += len(s)
		if plainASCII(s) {
			return
		}
		for _, r := range s {
			if isPrivate(r) {
				taken[r] = true
			}
		}
	}
	note(t.opts.BOS)
	note(t.opts.EOS)
	eachText(conv, note)
	if d, err = newDisguise(t.specials.alphabet, taken); err != nil {
		return nil, "", err
	}
	r := &run{disguise: d, steps: steps + 16*int64(size), bytes: 16*steps + 64*int64(size), now: conv.Now, namespaces: map[*jinja.Dict]bool{}}
	if r.now.IsZero() {
		r.now = time.Now()
	}
	vars, err := t.variables(conv, caps, d)
	if err != nil {
		return nil, "", err
	}
	r.bind(t.used, vars)
	out, err = t.engine.RenderValues(vars)
	if err != nil {
		if r.err != nil {
			err = r.err
		}
		return nil, "", oneLine("chat template: %s", r.showAll(err.Error()))
	}
	if conv.open != nil {
		out += t.openText(conv.open, d, d.showAll(out))
	}
	return d, out, nil
}

// eachText visits every text of the conversation.
func eachText(conv Conversation, visit func(string)) {
	if conv.open != nil {
		visit(conv.open.text())
		visit(conv.open.Reasoning)
	}
	for _, m := range conv.Messages {
		visit(m.Content)
		for _, p := range m.Parts {
			visit(p.Text)
		}
		visit(m.Reasoning)
		visit(m.ToolCallID)
		visit(m.Name)
		for _, c := range m.ToolCalls {
			visit(c.ID)
			visit(c.Name)
			visitJSON([]byte(c.Arguments), visit)
		}
	}
	visit(conv.ReasoningEffort)
	visitJSON(conv.Tools, visit)
	visitJSON(conv.Kwargs, visit)
}

// visitJSON visits the text itself and, should it be JSON, its strings: escapes in them make characters that the text
// does not show.
func visitJSON(text []byte, visit func(string)) {
	visit(string(text))
	if strings.Contains(string(text), `\u`) {
		_, _ = decodeJSON(text, func(s string) string { visit(s); return s }) // broken JSON is reported where it is used
	}
}

// variables gives the template's names their values; texts of the conversation are disguised.
func (t *Template) variables(conv Conversation, caps Caps, d *disguise) (map[string]Value, error) {
	vars := map[string]Value{}
	think := conv.EnableThinking == nil || *conv.EnableThinking
	vars["enable_thinking"] = jinja.NewBool(think)
	if conv.ReasoningEffort != "" {
		vars["reasoning_effort"] = jinja.NewString(d.hideAll(conv.ReasoningEffort))
	}
	if len(conv.Kwargs) > 0 {
		kw, err := decodeJSON(conv.Kwargs, d.hideAll)
		if err != nil {
			return nil, oneLine("chat_template_kwargs: %v", err)
		}
		if !kw.IsDict() {
			return nil, fmt.Errorf("chat_template_kwargs: %s, not a dict", kindOf(kw))
		}
		for _, k := range kw.AsDict().Keys {
			name, v := d.showAll(k), kw.AsDict().Data[k]
			if _, ok := globalTable[name]; ok || strings.HasPrefix(name, "__") ||
				slices.Contains([]string{"messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "loop", "namespace", "dict"}, name) {
				return nil, fmt.Errorf("chat_template_kwargs: %s cannot be set there", clip(name))
			}
			if name == "enable_thinking" && !v.IsBool() {
				return nil, fmt.Errorf("chat_template_kwargs: enable_thinking is %s, not a boolean", kindOf(v))
			}
			vars[name] = v
		}
	}
	vars["bos_token"] = jinja.NewString(t.opts.BOS)
	vars["eos_token"] = jinja.NewString(t.opts.EOS)
	vars["add_generation_prompt"] = jinja.NewBool(conv.AddGenerationPrompt)
	if len(conv.Tools) > 0 {
		tools, err := decodeJSON(conv.Tools, d.hideAll)
		if err != nil {
			return nil, oneLine("tools: %v", err)
		}
		if !tools.IsList() && !tools.IsNone() {
			return nil, fmt.Errorf("tools: %s, not a list", kindOf(tools))
		}
		if tools.IsTruthy() {
			vars["tools"] = tools
		}
	}
	var msgs []Value
	for i := range conv.Messages {
		m, err := message(&conv.Messages[i], caps, d)
		if err != nil {
			return nil, oneLine("message %d: %v", i, err)
		}
		t.fit(&conv.Messages[i], m.AsDict(), d)
		msgs = append(msgs, m)
	}
	vars["messages"] = jinja.NewList(msgs)
	return vars, nil
}

func message(m *Message, caps Caps, d *disguise) (Value, error) {
	out := jinja.NewDict()
	set := func(k string, v Value) { out.AsDict().Set(k, v) }
	text := func(k, s string) {
		if s != "" {
			set(k, jinja.NewString(d.hideAll(s)))
		}
	}
	set("role", jinja.NewString(m.Role))
	content := jinja.NewString(d.hideAll(m.text()))
	if caps.TypedContent {
		parts := m.Parts
		if parts == nil {
			parts = []ContentPart{{Type: "text", Text: m.Content}}
		}
		var items []Value
		for _, p := range parts {
			part := jinja.NewDict()
			part.AsDict().Set("type", jinja.NewString("text"))
			part.AsDict().Set("text", jinja.NewString(d.hideAll(p.Text)))
			items = append(items, part)
		}
		content = jinja.NewList(items)
	}
	set("content", content)
	text("reasoning_content", m.Reasoning)
	text("name", m.Name)
	text("tool_call_id", m.ToolCallID)
	var calls []Value
	for i, c := range m.ToolCalls {
		args := jinja.NewString(d.hideAll(c.Arguments))
		if !caps.StringCalls {
			src := c.Arguments
			if strings.TrimSpace(src) == "" {
				src = "{}"
			}
			var err error
			if args, err = decodeJSON([]byte(src), d.hideAll); err != nil {
				return Value{}, fmt.Errorf("arguments of tool call %d: %w", i, err)
			}
		}
		fn := jinja.NewDict()
		fn.AsDict().Set("name", jinja.NewString(d.hideAll(c.Name)))
		fn.AsDict().Set("arguments", args)
		call := jinja.NewDict()
		if c.ID != "" {
			call.AsDict().Set("id", jinja.NewString(d.hideAll(c.ID)))
		}
		call.AsDict().Set("type", jinja.NewString("function"))
		call.AsDict().Set("function", fn)
		calls = append(calls, call)
	}
	if len(calls) > 0 {
		set("tool_calls", jinja.NewList(calls))
	}
	return out, nil
}

// probeCaps renders conversations with a needle in them.
func (t *Template) probeCaps() {
	const needle = "qXneedleXq"
	shows := func(conv Conversation, caps Caps) bool {
		conv.Now = time.Unix(0, 0).UTC()
		d, out, err := t.render(conv, caps, baseSteps/16)
		// A list that is printed as it stands is not understood.
		return err == nil && strings.Contains(d.showAll(out), needle) && !strings.Contains(d.showAll(out), "'type'")
	}
	user := Message{Role: "user", Content: "hello"}
	asked := []Message{{Role: "user", Content: needle}}
	t.caps.TypedContent = !shows(Conversation{Messages: asked}, Caps{}) && shows(Conversation{Messages: asked}, Caps{TypedContent: true})
	c := t.caps
	t.caps.System = shows(Conversation{Messages: []Message{{Role: "system", Content: needle}, user}}, c)
	t.caps.Tools = shows(Conversation{Messages: []Message{user}, Tools: json.RawMessage(
		`[{"type":"function","function":{"name":"` + needle + `","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string","description":"d"}},"required":["a"]}}}]`)}, c)
	called := Conversation{Messages: []Message{user, {Role: "assistant", ToolCalls: []ToolCall{{ID: "call12345", Name: "f", Arguments: `{"a":"` + needle + `"}`}}}}}
	t.caps.ToolCalls = shows(called, c)
	if !t.caps.ToolCalls {
		c.StringCalls = true
		t.caps.ToolCalls = shows(called, c)
		t.caps.StringCalls = t.caps.ToolCalls
	}
	if t.caps.ToolCalls {
		first := ToolCall{ID: "call12344", Name: "f", Arguments: `{"a":"b"}`}
		m := &called.Messages[1]
		m.ToolCalls = []ToolCall{first, m.ToolCalls[0]}
		t.caps.ParallelCalls = shows(called, c)
	}
	family := Detect(t.source)
	tags := family.thoughts(t.source)
	t.caps.Thinking = family == Harmony || strings.Contains(t.source, strings.TrimSpace(tags.open)) || strings.Contains(t.source, tags.close)
}

// openTurn is what an answer to prompt continues: the end of the prompt, from behind the head of the assistant's turn on.
// Where the template shows no such head, it is the opening tag of thoughts, should the prompt end with it.
func (t *Template) openTurn(prompt string, think tags) string {
	if prompt == "" {
		return ""
	}
	t.heads.Do(t.findHead)
	head := t.head
	for _, tag := range []string{think.open, think.close} {
		head, _, _ = strings.Cut(head, tag)
	}
	if head = strings.TrimRight(head, " \t\r\n"); head != "" {
		if i := strings.LastIndex(prompt, head); i >= 0 {
			return strings.TrimLeft(prompt[i+len(head):], " \t\r\n")
		}
	}
	if strings.HasSuffix(strings.TrimRight(prompt, " \t\r\n"), strings.TrimSpace(think.open)) {
		return think.open
	}
	return ""
}

// findHead takes for the head what add_generation_prompt adds to a prompt.
func (t *Template) findHead() {
	conv := Conversation{Messages: []Message{{Role: "user", Content: "hello"}}, Now: time.Unix(0, 0).UTC()}
	d, without, err := t.render(conv, t.Caps(), baseSteps/16)
	if err != nil {
		return
	}
	without = d.showAll(without)
	conv.AddGenerationPrompt = true
	if d, with, err := t.render(conv, t.Caps(), baseSteps/16); err == nil {
		if head, ok := strings.CutPrefix(d.showAll(with), without); ok {
			t.head = head
		}
	}
}
