package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
	"terrace/tokenizer"
)

// chatRequest is what every chat dialect becomes: a conversation, and how its answer is made and read.
type chatRequest struct {
	conv     chat.Conversation // with the tools that the model shall see
	p        *params
	format   chat.ReasoningFormat
	budget   int    // tokens of thinking before its end is forced; -1: see thoughts
	control  bool   // the client may end the thinking while it goes on
	choice   choice // of conv.Tools
	name     string // the function that chooseNamed means
	parallel bool   // several calls in one answer are allowed
}

// choice says whether an answer calls functions.
type choice uint8

const (
	chooseAuto     choice = iota // the model decides
	chooseNone                   // none, whatever the model writes
	chooseRequired               // at least one
	chooseNamed                  // one of a certain name
)

// active tells whether calls can come of the request.
func (q *chatRequest) active() bool { return len(q.conv.Tools) > 0 && q.choice != chooseNone }

// chatRequest is a request with the server's defaults for the thinking of models; p are its settings.
func (c *call) chatRequest(p *params) *chatRequest {
	o := &c.s.opt.Chat
	q := &chatRequest{p: p, format: o.Reasoning, budget: -1, parallel: c.m.Engine.Template().Caps().ParallelCalls}
	if o.Budget != nil {
		q.budget = *o.Budget
	}
	if o.NoThink || q.budget == 0 {
		q.noThink()
	}
	q.conv.AddGenerationPrompt = true
	return q
}

func (q *chatRequest) noThink() {
	off := false
	q.conv.EnableThinking = &off
}

// kwargs hands further variables to the template: the server's, and a request's over them. enable_thinking is a switch of
// the conversation.
func (c *call) kwargs(q *chatRequest, raw json.RawMessage) error {
	all := map[string]json.RawMessage{}
	for i, r := range []json.RawMessage{c.s.opt.Chat.Kwargs, raw} {
		if len(r) == 0 {
			continue
		}
		o, err := object(r, "chat_template_kwargs")
		if err != nil {
			return err
		}
		if o.has("enable_thinking") {
			on := o.boolean("enable_thinking", true)
			if o.err != nil {
				return o.err
			}
			if i == 1 || q.conv.EnableThinking == nil {
				q.conv.EnableThinking = &on
			}
		}
		delete(o.m, "enable_thinking")
		maps.Copy(all, o.m)
	}
	if len(all) == 0 {
		return nil
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	q.conv.Kwargs = b
	return nil
}

// rendered is a conversation as the model gets it.
type rendered struct {
	text   string
	tokens []int32
}

// render makes the prompt of a conversation. Text of messages never becomes a control token.
func (m *Model) render(conv chat.Conversation) (rendered, error) {
	if len(conv.Messages) == 0 {
		return rendered{}, invalid("messages is empty, want at least one message")
	}
	parts, err := m.Engine.Template().Render(conv)
	if err != nil {
		return rendered{}, invalid("%s", err)
	}
	var r rendered
	var b strings.Builder
	tp := make([]tokenizer.Part, len(parts))
	for i, p := range parts {
		tp[i] = tokenizer.Part{Text: p.Text, Special: !p.User}
		b.WriteString(p.Text)
	}
	r.text = b.String()
	if err := m.checkText(len(r.text)); err != nil {
		return r, err
	}
	r.tokens = m.Engine.Tokenizer().EncodeParts(nil, tp, true)
	return r, m.checkPrompt(r.tokens)
}

// exactBelow is how long a text may be that cannot fit the context and is still cut into tokens to tell their number. A
// longer one would take many times its size in memory, for a number.
const exactBelow = 1 << 20

// checkText refuses a text of n bytes that has too many tokens whatever it is.
func (m *Model) checkText(n int) error {
	if least := m.Engine.Tokenizer().MinTokens(n); n > exactBelow && least >= m.Context {
		return tooLong(least, m.Context)
	}
	return nil
}

// checkPrompt refuses a prompt that leaves no room for an answer.
func (m *Model) checkPrompt(tokens []int32) error {
	if len(tokens) >= m.Context {
		return tooLong(len(tokens), m.Context)
	}
	return nil
}

// chatJobs makes the completions of a chat.
func (c *call) chatJobs(q *chatRequest) ([]*job, error) {
	r, err := c.m.render(q.conv)
	if err != nil {
		return nil, err
	}
	if err := q.p.checkProbs(q.p.n, c.m.Context); err != nil {
		return nil, err
	}
	t := c.m.Engine.Template()
	var l limits
	budget := q.thoughts()
	jobs := make([]*job, q.p.n)
	for i := range jobs {
		parser, err := t.NewParser(chat.ParseOptions{
			Reasoning: q.format, Tools: q.conv.Tools, NoCalls: !q.active(), OneCall: !q.parallel, Prompt: r.text,
		})
		if err != nil {
			return nil, invalid("%s", err)
		}
		if i == 0 {
			if l, err = c.constraints(q, parser); err != nil {
				return nil, err
			}
		}
		j := &job{p: q.p, index: i, prompt: r.tokens, parser: parser, stops: parser.Family().Stops(), show: c.m.marks(parser.Family())}
		if budget >= 0 || q.control {
			j.think = &thinker{budget: budget, tok: c.m.Engine.Tokenizer()}
		}
		if err := c.choose(j, l); err != nil {
			return nil, err
		}
		jobs[i] = j
	}
	return jobs, nil
}

// thoughts is how many tokens the thinking of an answer may take, -1 for any number. An answer that must have a certain form
// and a certain length keeps half of its length for that form, where the request says nothing else: cut off within its
// thoughts it would be of no form at all.
func (q *chatRequest) thoughts() int {
	bound := q.p.schema != nil || q.p.grammar != "" || q.active() && (q.choice == chooseRequired || q.choice == chooseNamed)
	if q.budget < 0 && bound && q.p.predict >= 0 {
		return q.p.predict / 2
	}
	return q.budget
}

// marks are the control tokens that a parser of a family must see.
func (m *Model) marks(f chat.Family) map[int32]bool {
	t := m.Engine.Tokenizer()
	show := map[int32]bool{}
	for _, text := range f.Markers() {
		if id, ok := t.Lookup(text); ok && !t.IsEOG(id) {
			show[id] = true
		}
	}
	return show
}

// choose makes what picks a job's tokens: the sampler of its settings, within limits.
func (c *call) choose(j *job, l limits) error {
	sp := j.p.sample
	if sp.Seed >= 0 {
		sp.Seed += int64(j.index)
	}
	if sp.DryMultiplier != 0 {
		sp.DryBreakers = c.m.breakers(j.p.breakers)
	}
	if j.p.postProbs {
		sp.Probs = j.p.probs
	}
	s, err := sample.New(sp)
	if err != nil {
		return invalid("%s", err)
	}
	for _, id := range j.prompt {
		s.Accept(id)
	}
	j.seed = s.Seed()
	if j.chooser, err = l.over(s); err != nil {
		return err
	}
	if j.think != nil {
		j.think.inner = j.chooser
		j.chooser = j.think
	}
	return nil
}

// thinker ends thoughts that take too many tokens, or when it is told to: it picks the tokens of the end tag.
type thinker struct {
	inner  engine.Chooser
	tok    *tokenizer.Tokenizer
	a      *answer // whose parser knows where the answer is
	budget int     // -1: no limit
	used   int
	asked  atomic.Bool // by the client
	forced []int32     // tokens to pick next

	forcing bool // the last token was one of them
}

// Next implements engine.Chooser.
func (t *thinker) Next(logits []float32) (int32, error) {
	if len(t.forced) == 0 && t.a.parser.InReasoning() && (t.asked.Load() || t.budget >= 0 && t.used >= t.budget) {
		t.forced = t.tok.Encode(nil, t.a.parser.ReasoningEnd(), false, true)
	}
	if g, ok := t.inner.(interface{ Allows(id int32) bool }); ok && len(t.forced) > 0 && !g.Allows(t.forced[0]) {
		t.forced = nil // a character is to be completed first, or a call must come
	}
	if t.forcing = len(t.forced) > 0; t.forcing {
		return t.forced[0], nil
	}
	return t.inner.Next(logits)
}

// Accept implements engine.Chooser.
func (t *thinker) Accept(id int32) {
	if len(t.forced) > 0 {
		t.forced = t.forced[1:]
	} else if t.a.parser.InReasoning() {
		t.used++
	}
	t.inner.Accept(id)
}

// Probs are those of the last choice.
func (t *thinker) Probs() []sample.Prob {
	if p, ok := t.inner.(interface{ Probs() []sample.Prob }); ok && !t.forcing {
		return p.Probs()
	}
	return nil
}

// endThinking makes the thoughts of an answer end, if it is within them.
func (t *thinker) endThinking() { t.asked.Store(true) }

// tools reads OpenAI's definitions of functions.
func (q *chatRequest) tools(f *fields) {
	list := f.array("tools")
	for i, raw := range list {
		at := element("tools", i)
		o, err := object(raw, at)
		if err != nil {
			f.fail("%s", err)
			return
		}
		if kind := o.str("type", ""); kind != "function" && o.err == nil {
			o.fail("%s.type is %.40q, want \"function\"", at, kind)
		}
		fn := o.object("function")
		if fn == nil {
			o.fail("%s.function is not given", at)
		} else if fn.str("name", "") == "" {
			o.err = fn.err
			o.fail("%s.function.name is not given", at)
		} else if fn.object("parameters"); fn.err != nil {
			o.err = fn.err
		}
		if o.err != nil {
			f.fail("%s", o.err)
			return
		}
	}
	if len(list) > 0 && f.err == nil {
		q.conv.Tools = f.raw("tools")
	}
}

// toolNames lists the functions of the request.
func (q *chatRequest) toolNames() []string {
	var tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(q.conv.Tools, &tools) != nil {
		return nil
	}
	names := make([]string, len(tools))
	for i := range tools {
		names[i] = tools[i].Function.Name
	}
	return names
}

// force asks for calls; name is "" for any function.
func (q *chatRequest) force(name string) error {
	names := q.toolNames()
	if len(names) == 0 {
		return invalid("a tool call is required, and there are no tools")
	}
	q.choice = chooseRequired
	if name != "" {
		if !slices.Contains(names, name) {
			return invalid("tool_choice names the function %.60q, which is not among the tools", name)
		}
		q.choice, q.name = chooseNamed, name
	}
	return nil
}

// toolChoice reads OpenAI's tool_choice.
func (q *chatRequest) toolChoice(f *fields) {
	if !f.has("tool_choice") {
		return
	}
	if kindOf(f.m["tool_choice"]) != "object" {
		q.mode(f, f.str("tool_choice", "auto"))
		return
	}
	o := f.object("tool_choice")
	var name string
	switch kind := o.str("type", ""); kind {
	case "function":
		name = o.str("name", "")
		if fn := o.object("function"); fn != nil {
			name = fn.str("name", "")
		}
	case "allowed_tools": // a choice among some of the tools: the others are not shown
		q.allow(f, o)
		return
	default:
		f.fail("tool_choice.type is %.40q, want \"function\"", kind)
	}
	if name == "" {
		f.fail("tool_choice.function.name is not given")
	}
	if f.err == nil {
		f.err = q.force(name)
	}
}

func (q *chatRequest) mode(f *fields, mode string) {
	switch mode {
	case "auto":
	case "none":
		q.choice = chooseNone
	case "required", "any":
		if f.err == nil && len(q.conv.Tools) > 0 {
			f.err = q.force("")
		}
	default:
		f.fail("tool_choice is %.40q, want auto, none, required or a function", mode)
	}
}

// allow keeps the tools that a choice of the type allowed_tools names.
func (q *chatRequest) allow(f, o *fields) {
	if in := o.object("allowed_tools"); in != nil {
		o = in
	}
	keep := map[string]bool{}
	for _, raw := range o.array("tools") {
		var t struct {
			Name     string `json:"name"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if json.Unmarshal(raw, &t) == nil {
			keep[t.Name+t.Function.Name] = true
		}
	}
	var all, some []json.RawMessage
	json.Unmarshal(q.conv.Tools, &all)
	names := q.toolNames()
	for i, raw := range all {
		if i < len(names) && keep[names[i]] {
			some = append(some, raw)
		}
	}
	if len(some) == 0 {
		f.fail("tool_choice allows none of the tools")
		return
	}
	q.conv.Tools, _ = json.Marshal(some)
	q.mode(f, o.str("mode", "auto"))
}

// newID makes an identifier with a prefix, as the dialects have them.
func newID(prefix string) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	var b [24]byte
	random(b[:])
	for i := range b {
		b[i] = digits[int(b[i])%len(digits)]
	}
	return prefix + string(b[:])
}

// describe is for messages about a value of a request.
func describe(v any) string { return fmt.Sprintf("%.60v", v) }
