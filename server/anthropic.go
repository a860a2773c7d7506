package server

import (
	"encoding/json"

	"terrace/chat"
)

// messages answers POST /v1/messages, Anthropic's dialect.
func messages(c *call) error {
	q, err := c.anthropicChat(true)
	if err != nil {
		return err
	}
	jobs, err := c.chatJobs(q)
	if err != nil {
		return err
	}
	head := anthropicMessage{ID: newID("msg_"), Type: "message", Role: "assistant", Model: c.m.Alias, Content: []any{}}
	q.p.progress = q.p.stream // tells how much of the prompt was cached, before the first token
	run := c.start(jobs, q.p.stream)
	defer run.stop()
	if q.p.stream {
		return c.anthropicStream(q, run, head)
	}
	rs, err := run.all()
	if err != nil {
		return err
	}
	r := rs[0]
	if r.answer.Reasoning != "" {
		head.Content = append(head.Content, map[string]any{"type": "thinking", "thinking": r.answer.Reasoning, "signature": ""})
	}
	if r.answer.Content != "" {
		head.Content = append(head.Content, map[string]any{"type": "text", "text": r.answer.Content})
	}
	for _, t := range r.answer.Calls {
		head.Content = append(head.Content, map[string]any{"type": "tool_use", "id": t.ID, "name": t.Name, "input": inputObject(t.Arguments)})
	}
	head.end(r)
	return c.json(head)
}

// countMessageTokens answers POST /v1/messages/count_tokens.
func countMessageTokens(c *call) error {
	q, err := c.anthropicChat(false)
	if err != nil {
		return err
	}
	n, err := c.m.promptLength(q)
	if err != nil {
		return err
	}
	return c.json(map[string]int{"input_tokens": n})
}

// inputObject is the arguments of a call as the object that this dialect has. Arguments that are none, which an answer cut
// short leaves, are shown as they are.
func inputObject(arguments string) any {
	if b := json.RawMessage(arguments); json.Valid(b) && kindOf(b) == "object" {
		return b
	}
	if arguments == "" {
		return map[string]any{}
	}
	return map[string]any{"partial_json": arguments}
}

// anthropicMessage is an answer.
type anthropicMessage struct {
	ID           string         `json:"id"`
	Type         string         `json:"type"`
	Role         string         `json:"role"`
	Model        string         `json:"model"`
	Content      []any          `json:"content"`
	StopReason   *string        `json:"stop_reason"`
	StopSequence *string        `json:"stop_sequence"`
	Usage        anthropicUsage `json:"usage"`
	Terrace      *terraceJSON   `json:"terrace,omitempty"`
}

// anthropicUsage counts tokens; Input leaves out those that were cached.
type anthropicUsage struct {
	Input   int `json:"input_tokens"`
	Created int `json:"cache_creation_input_tokens"`
	Read    int `json:"cache_read_input_tokens"`
	Output  int `json:"output_tokens"`
}

// end fills in how an answer ended.
func (m *anthropicMessage) end(r *result) {
	reason := "end_turn"
	switch {
	case r.stop == "limit":
		reason = "max_tokens"
	case r.stop == "word":
		reason = "stop_sequence"
		m.StopSequence = &r.word
	case len(r.answer.Calls) > 0:
		reason = "tool_use"
	}
	m.StopReason, m.Terrace = &reason, remarks(r)
	m.Usage = anthropicUsage{Input: r.prompt - r.timings.CacheN, Read: r.timings.CacheN, Output: r.count}
}

// anthropicMax is the cap where a request names none, as JSON.
const anthropicMax = "4096"

// anthropicChat reads the body. Without generate only what the prompt is made of counts.
func (c *call) anthropicChat(generate bool) (*chatRequest, error) {
	f, err := c.fields()
	if err != nil {
		return nil, err
	}
	if !f.has("messages") {
		return nil, invalid("messages is not given")
	}
	ms, err := f.anthropicMessages()
	if err != nil {
		return nil, err
	}
	g := &fields{m: map[string]json.RawMessage{}} // the request in the words of the chat dialect
	for k, v := range f.m {
		g.m[k] = v
	}
	delete(g.m, "n")
	g.rename("stop_sequences", "stop")
	if generate && g.first("max_tokens", "n_predict") == "" {
		g.m["max_tokens"] = json.RawMessage(anthropicMax)
	}
	p, err := c.params(g, true)
	if err != nil {
		return nil, err
	}
	p.probs = 0 // this dialect has no place for them
	q := c.chatRequest(p)
	q.conv.Messages = ms
	tools, err := anthropicTools(f)
	if err != nil {
		return nil, err
	}
	if tools != nil {
		q.conv.Tools = tools
	}
	q.anthropicChoice(f)
	if q.active() && p.grammar != "" {
		f.fail("grammar cannot be used with tools")
	}
	q.anthropicFormat(f)
	if err := c.kwargs(q, f.raw("chat_template_kwargs")); err != nil {
		return nil, err
	}
	q.anthropicThinking(f)
	q.generationPrompt(&fields{})
	return q, f.err
}

// anthropicMessages reads system and messages as a conversation.
func (f *fields) anthropicMessages() ([]chat.Message, error) {
	var out []chat.Message
	switch kindOf(f.raw("system")) {
	case "nothing":
	case "string":
		out = append(out, chat.Message{Role: "system", Content: f.str("system", "")})
	default:
		if text := f.texts("system", "text"); text != "" {
			out = append(out, chat.Message{Role: "system", Content: text})
		}
	}
	names := map[string]string{} // of functions, by call
	for i, raw := range f.array("messages") {
		o, err := object(raw, element("messages", i))
		if err != nil {
			return nil, err
		}
		role := o.str("role", "")
		switch {
		case o.err != nil:
		case role != "user" && role != "assistant" && role != "system":
			o.fail("%s is %.40q, want user or assistant", o.name("role"), role)
		case kindOf(o.raw("content")) == "string":
			out = append(out, chat.Message{Role: role, Content: o.str("content", "")})
		case kindOf(o.raw("content")) != "array":
			o.fail("%s is a JSON %s, want a string or an array of blocks", o.name("content"), kindOf(o.raw("content")))
		default:
			ms, err := o.anthropicBlocks(role, names)
			if err != nil {
				return nil, err
			}
			out = append(out, ms...)
		}
		if o.err != nil {
			return nil, o.err
		}
	}
	return systemFirst(out), f.err
}

// anthropicBlocks reads a message of blocks; results of calls become messages of their own.
func (o *fields) anthropicBlocks(role string, names map[string]string) ([]chat.Message, error) {
	var out []chat.Message
	m := chat.Message{Role: role}
	flush := func() {
		if m.Parts != nil || m.Reasoning != "" || m.ToolCalls != nil {
			out = append(out, m)
		}
		m = chat.Message{Role: role}
	}
	for i, raw := range o.array("content") {
		b, err := object(raw, element(o.name("content"), i))
		if err != nil {
			return nil, err
		}
		switch kind := b.str("type", ""); {
		case b.err != nil:
		case kind == "text":
			m.Parts = append(m.Parts, chat.ContentPart{Type: "text", Text: b.str("text", "")})
		case kind == "thinking" && role == "assistant":
			m.Reasoning += b.str("thinking", "")
		case kind == "redacted_thinking" && role == "assistant":
		case kind == "tool_use" && role == "assistant":
			t := chat.ToolCall{ID: b.str("id", ""), Name: b.str("name", ""), Arguments: "{}"}
			if t.Name == "" {
				b.fail("%s is not given", b.name("name"))
			}
			if b.object("input") != nil {
				t.Arguments = string(b.raw("input"))
			}
			names[t.ID] = t.Name
			m.ToolCalls = append(m.ToolCalls, t)
		case kind == "tool_result" && role == "user":
			flush()
			r := chat.Message{Role: "tool", ToolCallID: b.str("tool_use_id", "")}
			r.Name = names[r.ToolCallID]
			if k := kindOf(b.raw("content")); k == "array" {
				r.Content = b.texts("content", "text")
			} else if k != "nothing" {
				r.Content = b.str("content", "")
			}
			if b.boolean("is_error", false) && r.Content == "" {
				r.Content = "error"
			}
			out = append(out, r)
		case kind == "document" && role == "user":
			if s := b.object("source"); s != nil && s.str("type", "") == "text" {
				m.Parts = append(m.Parts, chat.ContentPart{Type: "text", Text: s.str("data", "")})
			} else {
				b.fail("%s is \"document\" without a text: this model takes text only", b.name("type"))
			}
		case kind == "image" || kind == "document":
			b.fail("%s is %q: this model takes text only", b.name("type"), kind)
		default:
			b.fail("%s is %.40q, which a message of the role %s cannot have", b.name("type"), kind, role)
		}
		if b.err != nil {
			return nil, b.err
		}
	}
	flush()
	if out == nil {
		out = append(out, chat.Message{Role: role})
	}
	return out, o.err
}

// anthropicTools makes OpenAI's definitions of Anthropic's. Tools that the client does not run itself are skipped.
func anthropicTools(f *fields) (json.RawMessage, error) {
	var out []any
	for i, raw := range f.array("tools") {
		o, err := object(raw, element("tools", i))
		if err != nil {
			return nil, err
		}
		if kind := o.str("type", "custom"); kind != "custom" && !o.has("input_schema") {
			if o.err != nil {
				return nil, o.err
			}
			continue
		}
		if o.str("name", "") == "" {
			o.fail("%s is not given", o.name("name"))
		}
		fn := map[string]any{"name": o.str("name", ""), "parameters": json.RawMessage(`{}`)}
		if o.has("description") {
			fn["description"] = o.str("description", "")
		}
		if o.object("input_schema") != nil {
			fn["parameters"] = o.raw("input_schema")
		}
		if o.err != nil {
			return nil, o.err
		}
		out = append(out, map[string]any{"type": "function", "function": fn})
	}
	if f.err != nil || out == nil {
		return nil, f.err
	}
	return json.Marshal(out)
}

// anthropicChoice reads tool_choice.
func (q *chatRequest) anthropicChoice(f *fields) {
	o := f.object("tool_choice")
	if o == nil {
		return
	}
	switch kind := o.str("type", ""); kind {
	case "auto":
	case "none":
		q.choice = chooseNone
	case "any":
		if o.err == nil {
			o.err = q.force("")
		}
	case "tool":
		name := o.str("name", "")
		if name == "" {
			o.fail("%s is not given", o.name("name"))
		}
		if o.err == nil {
			o.err = q.force(name)
		}
	default:
		o.fail("%s is %.40q, want auto, any, tool or none", o.name("type"), kind)
	}
	if o.boolean("disable_parallel_tool_use", false) {
		q.parallel = false
	}
	if f.err == nil {
		f.err = o.err
	}
}

// anthropicFormat reads what the answer's text shall be: output_config.format, or output_format as it was called before.
func (q *chatRequest) anthropicFormat(f *fields) {
	in := f
	if o := f.object("output_config"); o != nil {
		in = o
		if o.has("effort") {
			q.conv.ReasoningEffort = o.str("effort", "")
		}
		o.rename("format", "output_format")
	}
	o := in.object("output_format")
	if o != nil {
		if kind := o.str("type", ""); kind != "json_schema" {
			o.fail("%s is %.40q, want json_schema", o.name("type"), kind)
		}
		if !o.has("schema") {
			o.fail("%s is not given", o.name("schema"))
		}
		if q.p.grammar != "" {
			o.fail("Cannot use both json_schema and grammar")
		}
		q.p.schema = o.raw("schema")
		if in.err == nil {
			in.err = o.err
		}
	}
	if f.err == nil {
		f.err = in.err
	}
}

// anthropicThinking reads thinking. Without it the model does as it likes.
func (q *chatRequest) anthropicThinking(f *fields) {
	o := f.object("thinking")
	if o == nil {
		return
	}
	switch kind := o.str("type", ""); kind {
	case "enabled":
		if o.has("budget_tokens") {
			if q.budget = o.integer("budget_tokens", -1); q.budget < 0 {
				o.fail("%s is %d, want 0 or more", o.name("budget_tokens"), q.budget)
			}
		}
		q.think()
	case "adaptive":
		q.think()
	case "disabled":
		q.noThink()
	default:
		o.fail("%s is %.40q, want enabled, disabled or adaptive", o.name("type"), kind)
	}
	if f.err == nil {
		f.err = o.err
	}
}

// think asks the template for thinking, unless the request said otherwise.
func (q *chatRequest) think() {
	if q.conv.EnableThinking == nil {
		on := true
		q.conv.EnableThinking = &on
	}
}

// anthropicStream sends an answer as it comes.
func (c *call) anthropicStream(q *chatRequest, run *running, head anthropicMessage) error {
	e := c.stream(q.p.ping)
	b := blocks{e: e}
	begun := false
	return run.each(func(p *piece) error {
		if p.progress != nil {
			head.Usage.Input, head.Usage.Read = p.progress.Total-p.progress.Cache, p.progress.Cache
			return nil
		}
		if !begun {
			begun = true
			if p.final != nil {
				head.Usage.Input, head.Usage.Read = p.final.prompt-p.final.timings.CacheN, p.final.timings.CacheN
			}
			b.send("message_start", map[string]any{"message": head})
		}
		for _, d := range p.deltas {
			b.add(d)
		}
		if p.final != nil {
			b.close()
			head.end(p.final)
			end := map[string]any{"delta": map[string]any{"stop_reason": head.StopReason, "stop_sequence": head.StopSequence}, "usage": head.Usage}
			if head.Terrace != nil {
				end["terrace"] = head.Terrace
			}
			b.send("message_delta", end)
			b.send("message_stop", map[string]any{})
		}
		return b.err
	})
}

// blocks tells a stream of the content blocks of an answer.
type blocks struct {
	e     *stream
	err   error
	index int
	kind  itemKind
	call  int // index of the open call
}

func (b *blocks) send(name string, v map[string]any) {
	if b.err == nil {
		v["type"] = name
		b.err = b.e.send(name, v)
	}
}

// add sends the next piece of the answer.
func (b *blocks) add(d chat.Delta) {
	switch {
	case d.Call != nil:
		if b.kind != itemCall || d.Call.Index != b.call {
			b.open(itemCall, map[string]any{"type": "tool_use", "id": d.Call.ID, "name": d.Call.Name, "input": map[string]any{}})
			b.call = d.Call.Index
		}
		if d.Call.Arguments != "" {
			b.delta("input_json_delta", "partial_json", d.Call.Arguments)
		}
	case d.Reasoning != "":
		if b.kind != itemReasoning {
			b.open(itemReasoning, map[string]any{"type": "thinking", "thinking": "", "signature": ""})
		}
		b.delta("thinking_delta", "thinking", d.Reasoning)
	case d.Content != "":
		if b.kind != itemMessage {
			b.open(itemMessage, map[string]any{"type": "text", "text": ""})
		}
		b.delta("text_delta", "text", d.Content)
	}
}

func (b *blocks) open(kind itemKind, block map[string]any) {
	b.close()
	b.kind = kind
	b.send("content_block_start", map[string]any{"index": b.index, "content_block": block})
}

func (b *blocks) delta(kind, field, text string) {
	b.send("content_block_delta", map[string]any{"index": b.index, "delta": map[string]any{"type": kind, field: text}})
}

// close ends the open block.
func (b *blocks) close() {
	if b.kind == itemNone {
		return
	}
	if b.kind == itemReasoning {
		b.delta("signature_delta", "signature", "")
	}
	b.send("content_block_stop", map[string]any{"index": b.index})
	b.index++
	b.kind = itemNone
}
