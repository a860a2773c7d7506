package server

import (
	"encoding/json"
	"time"

	"terrace/chat"
)

// createResponse answers POST /v1/responses, OpenAI's newer dialect. The server keeps no conversations: each request brings its own.
func createResponse(c *call) error {
	q, f, err := c.responsesChat()
	if err != nil {
		return err
	}
	jobs, err := c.chatJobs(q)
	if err != nil {
		return err
	}
	out := &responseItems{c: c, q: q, head: c.responseHead(q, f)}
	run := c.start(jobs, q.p.stream)
	defer run.stop()
	if q.p.stream {
		return out.stream(run)
	}
	rs, err := run.all()
	if err != nil {
		return err
	}
	out.add(chat.Delta{Reasoning: rs[0].answer.Reasoning}, nil)
	out.add(chat.Delta{Content: rs[0].answer.Content}, rs[0].probs)
	for i, t := range rs[0].answer.Calls {
		out.add(chat.Delta{Call: &chat.CallDelta{Index: i, ID: t.ID, Name: t.Name, Arguments: t.Arguments}}, nil)
	}
	return c.json(out.finish(rs[0]))
}

// responsesInputTokens answers POST /v1/responses/input_tokens.
func responsesInputTokens(c *call) error {
	q, _, err := c.responsesChat()
	if err != nil {
		return err
	}
	return c.countTokens(q)
}

// responsesChat reads the body.
func (c *call) responsesChat() (*chatRequest, *fields, error) {
	f, err := c.fields()
	if err != nil {
		return nil, nil, err
	}
	if f.str("previous_response_id", "") != "" {
		f.fail("previous_response_id is given: the server keeps no responses, send the whole conversation as input")
	}
	if f.has("conversation") {
		f.fail("conversation is given: the server keeps none, send the whole conversation as input")
	}
	if f.boolean("background", false) {
		f.fail("background is true: the server keeps no responses to be asked for later")
	}
	messages, err := f.responsesInput()
	if err != nil {
		return nil, nil, err
	}
	g := &fields{m: map[string]json.RawMessage{}} // the request in the words of the chat dialect
	for k, v := range f.m {
		g.m[k] = v
	}
	g.rename("max_output_tokens", "max_tokens")
	delete(g.m, "n")
	if f.has("top_logprobs") && f.integer("top_logprobs", 0) > 0 {
		g.m["logprobs"] = json.RawMessage("true")
	} else if delete(g.m, "top_logprobs"); f.wantsLogprobs() {
		g.m["logprobs"], g.m["top_logprobs"] = json.RawMessage("true"), json.RawMessage("1")
	}
	if t := f.object("text"); t != nil {
		g.m["response_format"] = t.format()
		if t.err != nil {
			f.fail("%s", t.err)
		}
	}
	if r := f.object("reasoning"); r != nil && r.has("effort") {
		g.m["reasoning_effort"] = r.m["effort"]
	}
	if f.err != nil {
		return nil, nil, f.err
	}
	p, err := c.params(g, true)
	if err != nil {
		return nil, nil, err
	}
	q := c.chatRequest(p)
	q.conv.Messages = messages
	tools, err := flatTools(f)
	if err != nil {
		return nil, nil, err
	}
	if tools != nil {
		q.conv.Tools = tools
	}
	q.toolChoice(g)
	q.parallel = g.boolean("parallel_tool_calls", q.parallel)
	if q.active() && p.grammar != "" {
		g.fail("grammar cannot be used with tools")
	}
	q.responseFormat(g)
	if err := c.kwargs(q, g.raw("chat_template_kwargs")); err != nil {
		return nil, nil, err
	}
	q.thinking(g)
	q.generationPrompt(g)
	return q, f, g.err
}

// rename gives a member another name, if it is there.
func (f *fields) rename(from, to string) {
	if f.has(from) {
		f.m[to] = f.m[from]
		delete(f.m, from)
	}
}

// wantsLogprobs tells whether include asks for them.
func (f *fields) wantsLogprobs() bool {
	for _, s := range f.array("include") {
		if string(s) == `"message.output_text.logprobs"` {
			return true
		}
	}
	return false
}

// format makes a response_format of text.format.
func (t *fields) format() json.RawMessage {
	o := t.object("format")
	if o == nil {
		return json.RawMessage(`{"type":"text"}`)
	}
	if o.str("type", "") == "json_schema" && !o.has("json_schema") {
		if !o.has("schema") {
			o.fail("%s is not given", o.name("schema"))
		}
		if t.err = o.err; t.err != nil {
			return nil
		}
		b, err := json.Marshal(map[string]any{"type": "json_schema", "json_schema": map[string]any{"schema": o.raw("schema")}})
		if err != nil {
			t.err = err
		}
		return b
	}
	return t.raw("format")
}

// flatTools makes OpenAI's chat definitions of flat ones. Tools that the client does not run itself (a web search, say) are
// skipped: nothing here could run them.
func flatTools(f *fields) (json.RawMessage, error) {
	var out []any
	for i, raw := range f.array("tools") {
		o, err := object(raw, element("tools", i))
		if err != nil {
			return nil, err
		}
		if o.str("type", "") != "function" {
			if o.err != nil {
				return nil, o.err
			}
			continue
		}
		if in := o.object("function"); in != nil { // the chat dialect's form
			o = in
		}
		if o.str("name", "") == "" {
			o.fail("%s is not given", o.name("name"))
		}
		fn := map[string]any{"name": o.str("name", ""), "parameters": json.RawMessage(`{}`)}
		if o.has("description") {
			fn["description"] = o.str("description", "")
		}
		if o.object("parameters") != nil {
			fn["parameters"] = o.raw("parameters")
		}
		if o.has("strict") {
			fn["strict"] = o.boolean("strict", false)
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

// responsesInput reads instructions and input as a conversation.
func (f *fields) responsesInput() ([]chat.Message, error) {
	var out []chat.Message
	if s := f.str("instructions", ""); s != "" {
		out = append(out, chat.Message{Role: "system", Content: s})
	}
	if f.err != nil {
		return nil, f.err
	}
	switch kindOf(f.raw("input")) {
	case "nothing":
		return nil, invalid("input is not given")
	case "string":
		return append(out, chat.Message{Role: "user", Content: f.str("input", "")}), f.err
	}
	names := map[string]string{} // of functions, by call
	for i, raw := range f.array("input") {
		o, err := object(raw, element("input", i))
		if err != nil {
			return nil, err
		}
		kind := o.str("type", "")
		if kind == "" && o.has("role") {
			kind = "message"
		}
		switch kind {
		case "message":
			m, err := message(o)
			if err != nil {
				return nil, err
			}
			switch {
			case m.Role == "tool":
				o.fail("%s is \"tool\", want user, assistant, system or developer", o.name("role"))
			case m.Role == "assistant":
				assistant(&out, func(a *chat.Message) bool {
					if a.Content != "" || a.Parts != nil || len(a.ToolCalls) > 0 {
						return false
					}
					a.Content, a.Parts = m.Content, m.Parts
					return true
				})
			default:
				out = append(out, m)
			}
		case "function_call":
			t := chat.ToolCall{ID: o.str("call_id", o.str("id", "")), Name: o.str("name", ""), Arguments: o.str("arguments", "{}")}
			if t.Name == "" {
				o.fail("%s is not given", o.name("name"))
			}
			if t.Arguments == "" {
				t.Arguments = "{}"
			}
			names[t.ID] = t.Name
			assistant(&out, func(a *chat.Message) bool {
				a.ToolCalls = append(a.ToolCalls, t)
				return true
			})
		case "function_call_output":
			m := chat.Message{Role: "tool", ToolCallID: o.str("call_id", "")}
			m.Name = names[m.ToolCallID]
			m.Content = o.output("output")
			out = append(out, m)
		case "reasoning":
			text := o.texts("content", "reasoning_text")
			if text == "" {
				text = o.texts("summary", "summary_text")
			}
			if text != "" {
				assistant(&out, func(a *chat.Message) bool {
					if a.Reasoning != "" || a.Content != "" || a.Parts != nil || len(a.ToolCalls) > 0 {
						return false
					}
					a.Reasoning = text
					return true
				})
			}
		default:
			o.fail("%s is %.40q, want message, function_call, function_call_output or reasoning", o.name("type"), kind)
		}
		if o.err != nil {
			return nil, o.err
		}
	}
	if f.err == nil && len(out) == 0 {
		f.fail("input is empty, want at least one item")
	}
	return systemFirst(out), f.err
}

// assistant adds to the assistant's turn that ends the conversation, or to a new one where there is none or put refuses it.
func assistant(out *[]chat.Message, put func(*chat.Message) bool) {
	if n := len(*out); n > 0 && (*out)[n-1].Role == "assistant" && put(&(*out)[n-1]) {
		return
	}
	m := chat.Message{Role: "assistant"}
	put(&m)
	*out = append(*out, m)
}

// systemFirst joins the messages for the model with which a conversation begins: many templates take one only.
func systemFirst(ms []chat.Message) []chat.Message {
	n := 0
	for n < len(ms) && (ms[n].Role == "system" || ms[n].Role == "developer") {
		n++
	}
	if n < 2 {
		return ms
	}
	text := ""
	for i := range ms[:n] {
		part := ms[i].Content
		for _, p := range ms[i].Parts {
			if part != "" {
				part += "\n"
			}
			part += p.Text
		}
		if text != "" && part != "" {
			text += "\n\n"
		}
		text += part
	}
	return append([]chat.Message{{Role: "system", Content: text}}, ms[n:]...)
}

// output reads a result of a call: a text, or parts of it.
func (o *fields) output(key string) string {
	if kindOf(o.raw(key)) != "array" {
		if !o.has(key) {
			o.fail("%s is not given", o.name(key))
		}
		return o.str(key, "")
	}
	return o.texts(key, "input_text")
}

// texts joins the texts of parts of one type.
func (o *fields) texts(key, kind string) string {
	text := ""
	for i, raw := range o.array(key) {
		p, err := object(raw, element(o.name(key), i))
		if err != nil {
			o.fail("%s", err)
			return ""
		}
		if k := p.str("type", kind); k != kind && k != "text" {
			p.fail("%s is %.40q, want %s: this model takes text only", p.name("type"), k, kind)
		}
		if text != "" {
			text += "\n"
		}
		text += p.str("text", "")
		if p.err != nil {
			o.fail("%s", p.err)
			return ""
		}
	}
	return text
}

// responseJSON is a response. Fields that OpenAI's has and that mean nothing here have its neutral values, because clients
// check their types.
type responseJSON struct {
	ID         string          `json:"id"`
	Object     string          `json:"object"`
	Created    int64           `json:"created_at"`
	Completed  *int64          `json:"completed_at"`
	Status     string          `json:"status"`
	Background bool            `json:"background"`
	Error      any             `json:"error"`
	Incomplete any             `json:"incomplete_details"`
	System     *string         `json:"instructions"`
	Max        *int            `json:"max_output_tokens"`
	Model      string          `json:"model"`
	Output     []any           `json:"output"`
	Parallel   bool            `json:"parallel_tool_calls"`
	Previous   *string         `json:"previous_response_id"`
	Reasoning  map[string]any  `json:"reasoning"`
	Store      bool            `json:"store"`
	Temp       float64         `json:"temperature"`
	Text       json.RawMessage `json:"text"`
	Choice     json.RawMessage `json:"tool_choice"`
	Tools      json.RawMessage `json:"tools"`
	TopP       float64         `json:"top_p"`
	Truncation string          `json:"truncation"`
	Metadata   json.RawMessage `json:"metadata"`
	Usage      *responseUsage  `json:"usage"`
	Timings    *timings        `json:"timings,omitempty"`
	Terrace    *terraceJSON    `json:"terrace,omitempty"`
}

type responseUsage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

func (c *call) responseHead(q *chatRequest, f *fields) responseJSON {
	given := func(key, def string) json.RawMessage {
		if f.has(key) {
			return f.m[key]
		}
		return json.RawMessage(def)
	}
	r := responseJSON{
		ID: newID("resp_"), Object: "response", Created: time.Now().Unix(), Status: "in_progress", Model: c.m.Alias, Output: []any{},
		Parallel: q.parallel, Reasoning: map[string]any{"effort": nil, "summary": nil}, Temp: shown(q.p.sample.Temp), TopP: shown(q.p.sample.TopP),
		Text: given("text", `{"format":{"type":"text"}}`), Choice: given("tool_choice", `"auto"`), Tools: given("tools", `[]`),
		Truncation: "disabled", Metadata: given("metadata", `{}`),
	}
	if s := f.str("instructions", ""); s != "" {
		r.System = &s
	}
	if q.p.predict >= 0 {
		n := q.p.predict
		r.Max = &n
	}
	if q.conv.ReasoningEffort != "" {
		r.Reasoning["effort"] = q.conv.ReasoningEffort
	}
	return r
}

// responseItems makes the output items of an answer as it comes, and tells a stream of them.
type responseItems struct {
	c      *call
	q      *chatRequest
	head   responseJSON
	events *stream // nil: a plain reply
	number int     // of the next event
	err    error   // of the stream

	kind  itemKind // of the item that is open
	id    string
	text  string // of the open item: content, thoughts or arguments
	call  chat.ToolCall
	index int // of the call
	probs []tokenProb
}

type itemKind uint8

const (
	itemNone itemKind = iota
	itemReasoning
	itemMessage
	itemCall
)

// send sends an event; its fields come in pairs of name and value.
func (o *responseItems) send(name string, pairs ...any) {
	if o.events == nil || o.err != nil {
		return
	}
	v := map[string]any{"type": name, "sequence_number": o.number}
	for i := 0; i < len(pairs); i += 2 {
		v[pairs[i].(string)] = pairs[i+1]
	}
	o.number++
	o.err = o.events.send(name, v)
}

// item is the open item as JSON.
func (o *responseItems) item(status string) map[string]any {
	switch o.kind {
	case itemReasoning:
		return map[string]any{"type": "reasoning", "id": o.id, "summary": []any{}, "content": []any{o.part()}, "encrypted_content": "", "status": status}
	case itemMessage:
		v := map[string]any{"type": "message", "id": o.id, "role": "assistant", "status": status, "content": []any{}}
		if status == "completed" {
			v["content"] = []any{o.part()}
		}
		return v
	}
	return map[string]any{"type": "function_call", "id": o.id, "call_id": o.call.ID, "name": o.call.Name, "arguments": o.text, "status": status}
}

// part is the one content part of the open item.
func (o *responseItems) part() map[string]any {
	if o.kind == itemReasoning {
		return map[string]any{"type": "reasoning_text", "text": o.text}
	}
	return map[string]any{"type": "output_text", "text": o.text, "annotations": []any{}, "logprobs": o.logprobs(o.probs)}
}

func (o *responseItems) logprobs(probs []tokenProb) []any {
	if l := o.c.m.logprobs(o.q.p, probs); l != nil {
		return l.Content
	}
	return []any{}
}

// add takes the next piece of the answer, with what is known of the tokens of its content.
func (o *responseItems) add(d chat.Delta, probs []tokenProb) {
	kind := itemMessage
	switch {
	case d.Call != nil:
		kind = itemCall
	case d.Reasoning != "":
		kind = itemReasoning
	case d.Content == "":
		return
	}
	if kind != o.kind || kind == itemCall && d.Call.Index != o.index {
		o.close()
		o.open(kind, d)
	}
	at := []any{"item_id", o.id, "output_index", len(o.head.Output)}
	switch kind {
	case itemReasoning:
		o.text += d.Reasoning
		o.send("response.reasoning_text.delta", append(at, "content_index", 0, "delta", d.Reasoning)...)
	case itemMessage:
		o.text += d.Content
		o.probs = append(o.probs, probs...)
		o.send("response.output_text.delta", append(at, "content_index", 0, "delta", d.Content, "logprobs", o.logprobs(probs))...)
	case itemCall:
		o.text += d.Call.Arguments
		if d.Call.Arguments != "" {
			o.send("response.function_call_arguments.delta", append(at, "delta", d.Call.Arguments)...)
		}
	}
}

// open begins an item.
func (o *responseItems) open(kind itemKind, d chat.Delta) {
	o.kind, o.text, o.probs = kind, "", nil
	switch kind {
	case itemReasoning:
		o.id = newID("rs_")
	case itemMessage:
		o.id = newID("msg_")
	case itemCall:
		o.id, o.index = newID("fc_"), d.Call.Index
		o.call = chat.ToolCall{ID: d.Call.ID, Name: d.Call.Name}
	}
	n := len(o.head.Output)
	o.send("response.output_item.added", "output_index", n, "item", o.item("in_progress"))
	if kind == itemMessage {
		o.send("response.content_part.added", "item_id", o.id, "output_index", n, "content_index", 0, "part", o.part())
	}
}

// close ends the open item.
func (o *responseItems) close() {
	if o.kind == itemNone {
		return
	}
	at := []any{"item_id", o.id, "output_index", len(o.head.Output)}
	switch o.kind {
	case itemReasoning:
		o.send("response.reasoning_text.done", append(at, "content_index", 0, "text", o.text)...)
	case itemMessage:
		o.send("response.output_text.done", append(at, "content_index", 0, "text", o.text, "logprobs", o.logprobs(o.probs))...)
		o.send("response.content_part.done", append(at, "content_index", 0, "part", o.part())...)
	case itemCall:
		if o.text == "" {
			o.text = "{}"
		}
		o.send("response.function_call_arguments.done", append(at, "name", o.call.Name, "arguments", o.text)...)
	}
	v := o.item("completed")
	o.send("response.output_item.done", "output_index", len(o.head.Output), "item", v)
	o.head.Output = append(o.head.Output, v)
	o.kind = itemNone
}

// finish ends the answer and returns the response. An answer that was cut by its limit is completed too, as in llama-server,
// and says so in incomplete_details.
func (o *responseItems) finish(r *result) responseJSON {
	o.close()
	now := time.Now().Unix()
	o.head.Status, o.head.Completed = "completed", &now
	if r.stop == "limit" {
		o.head.Incomplete = map[string]string{"reason": "max_output_tokens"}
	}
	u := &responseUsage{Input: r.prompt, Output: r.count, Total: r.prompt + r.count}
	u.InputDetails.Cached, u.OutputDetails.Reasoning = r.timings.CacheN, r.thoughts
	o.head.Usage, o.head.Timings, o.head.Terrace = u, &r.timings, remarks(r)
	return o.head
}

// stream sends the answer as it comes.
func (o *responseItems) stream(run *running) error {
	o.events = o.c.stream(o.q.p.ping)
	begun := false
	var probs []tokenProb // of tokens whose text was not sent yet
	return run.each(func(p *piece) error {
		if !begun {
			begun = true
			o.send("response.created", "response", o.head)
			o.send("response.in_progress", "response", o.head)
		}
		probs = append(probs, p.probs...)
		for _, d := range p.deltas {
			if d.Content != "" {
				o.add(d, probs)
				probs = nil
			} else {
				o.add(d, nil)
			}
		}
		if p.final != nil {
			r := o.finish(p.final)
			o.send("response.completed", "response", r)
		}
		return o.err
	})
}
