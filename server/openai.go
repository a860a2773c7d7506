package server

import (
	"crypto/rand"
	"encoding/json"
	"math"
	"strings"
	"time"

	"terrace/chat"
)

func random(b []byte) { rand.Read(b) }

// messages reads OpenAI's conversation.
func (f *fields) messages() ([]chat.Message, error) {
	if !f.has("messages") {
		return nil, invalid("messages is not given")
	}
	list := f.array("messages")
	if f.err != nil {
		return nil, f.err
	}
	out := make([]chat.Message, 0, len(list))
	for i, raw := range list {
		o, err := object(raw, element("messages", i))
		if err != nil {
			return nil, err
		}
		m, err := message(o)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	if n := len(out); n > 1 && out[n-1].Role == "assistant" && out[n-2].Role == "assistant" {
		return nil, invalid("the last two messages are both the assistant's: at most one answer can be continued")
	}
	return out, nil
}

func message(o *fields) (chat.Message, error) {
	m := chat.Message{Role: o.str("role", ""), ToolCallID: o.str("tool_call_id", ""), Name: o.str("name", "")}
	m.Reasoning = o.str("reasoning_content", o.str("reasoning", ""))
	switch m.Role {
	case "system", "developer", "user", "assistant", "tool":
	case "":
		o.fail("%s is not given", o.name("role"))
	default:
		o.fail("%s is %.40q, want system, developer, user, assistant or tool", o.name("role"), m.Role)
	}
	switch kindOf(o.raw("content")) {
	case "nothing":
	case "string":
		m.Content = o.str("content", "")
	case "array":
		parts := o.array("content")
		for i, raw := range parts {
			p, err := object(raw, element(o.name("content"), i))
			if err != nil {
				return m, err
			}
			switch kind := p.str("type", ""); kind {
			case "text", "input_text", "output_text":
				if !p.has("text") {
					p.fail("%s is not given", p.name("text"))
				}
				m.Parts = append(m.Parts, chat.ContentPart{Type: "text", Text: p.str("text", "")})
			case "refusal":
				m.Parts = append(m.Parts, chat.ContentPart{Type: "text", Text: p.str("refusal", "")})
			case "image_url", "input_image", "input_audio", "video_url", "file":
				p.fail("%s is %q: this model takes text only", p.name("type"), kind)
			default:
				p.fail("%s is %.40q, want text", p.name("type"), kind)
			}
			if p.err != nil {
				return m, p.err
			}
		}
	default:
		o.wrong("content", "a string or an array of parts")
	}
	for i, raw := range o.array("tool_calls") {
		t, err := toolCall(raw, element(o.name("tool_calls"), i))
		if err != nil {
			return m, err
		}
		m.ToolCalls = append(m.ToolCalls, t)
	}
	if o.err == nil && !o.has("content") && (m.Role != "assistant" || len(m.ToolCalls) == 0 && m.Reasoning == "") {
		if m.Role == "assistant" {
			o.fail("%s of the assistant has neither content nor tool_calls", o.at)
		} else {
			o.fail("%s is not given", o.name("content"))
		}
	}
	return m, o.err
}

// toolCall reads a call of an earlier answer.
func toolCall(raw json.RawMessage, at string) (chat.ToolCall, error) {
	var t chat.ToolCall
	o, err := object(raw, at)
	if err != nil {
		return t, err
	}
	t.ID = o.str("id", "")
	fn := o.object("function")
	if fn == nil {
		o.fail("%s is not given", o.name("function"))
		return t, o.err
	}
	t.Name = fn.str("name", "")
	if t.Name == "" {
		fn.fail("%s is not given", fn.name("name"))
	}
	switch kindOf(fn.raw("arguments")) {
	case "nothing":
		t.Arguments = "{}"
	case "string":
		if t.Arguments = fn.str("arguments", ""); strings.TrimSpace(t.Arguments) == "" {
			t.Arguments = "{}"
		}
	default:
		t.Arguments = string(fn.raw("arguments"))
	}
	if o.err == nil {
		o.err = fn.err
	}
	return t, o.err
}

// openaiChat reads the body of /v1/chat/completions.
func (c *call) openaiChat() (*chatRequest, error) {
	f, err := c.fields()
	if err != nil {
		return nil, err
	}
	messages, err := f.messages()
	if err != nil {
		return nil, err
	}
	p, err := c.params(f, true)
	if err != nil {
		return nil, err
	}
	q := c.chatRequest(p)
	q.conv.Messages = messages
	q.tools(f)
	q.toolChoice(f)
	q.parallel = f.boolean("parallel_tool_calls", q.parallel)
	if q.active() && p.grammar != "" {
		f.fail("grammar cannot be used with tools")
	}
	if q.active() && p.probs > 0 && p.stream && f.boolean("logprobs", false) {
		f.fail("logprobs cannot be streamed with tools")
	}
	q.responseFormat(f)
	if err := c.kwargs(q, f.raw("chat_template_kwargs")); err != nil {
		return nil, err
	}
	q.thinking(f)
	q.generationPrompt(f)
	return q, f.err
}

// responseFormat reads what the answer's text shall be.
func (q *chatRequest) responseFormat(f *fields) {
	o := f.object("response_format")
	if o == nil {
		return
	}
	switch kind := o.str("type", ""); kind {
	case "text":
		return
	case "json_object":
		q.p.schema = json.RawMessage(`{"type":"object"}`)
		if o.has("schema") {
			o.object("schema")
			q.p.schema = o.raw("schema")
		}
	case "json_schema":
		s := o.object("json_schema")
		if s == nil {
			o.fail("%s is not given", o.name("json_schema"))
			break
		}
		if q.p.schema = s.raw("schema"); q.p.schema == nil {
			q.p.schema = json.RawMessage(`{"type":"object"}`)
		}
	default:
		o.fail("%s is %.40q, want text, json_object or json_schema", o.name("type"), kind)
	}
	if q.p.grammar != "" {
		o.fail("Cannot use both json_schema and grammar")
	}
	if f.err == nil {
		f.err = o.err
	}
}

// thinking reads what is said about thoughts.
func (q *chatRequest) thinking(f *fields) {
	if f.has("reasoning_format") {
		format, err := chat.ReasoningByName(f.str("reasoning_format", ""))
		if err != nil {
			f.fail("%s", err)
		}
		q.format = format
	}
	if e := f.str("reasoning_effort", ""); e == "none" {
		q.noThink()
	} else if e != "" {
		q.conv.ReasoningEffort = e
	}
	if k := f.first("reasoning_budget_tokens", "thinking_budget_tokens"); k != "" {
		if q.budget = f.integer(k, -1); q.budget < -1 {
			f.fail("%s is %d, want -1 or more", k, q.budget)
		} else if q.budget == -1 {
			q.budget = math.MaxInt // asked for: no limit
		}
	}
	q.control = f.boolean("reasoning_control", false)
}

// generationPrompt reads whether the answer is a turn of its own or goes on with the last one.
func (q *chatRequest) generationPrompt(f *fields) {
	q.conv.AddGenerationPrompt = f.boolean("add_generation_prompt", true)
	on, given := true, f.has("continue_final_message")
	if given {
		switch kindOf(f.m["continue_final_message"]) {
		case "string":
			on = f.str("continue_final_message", "") != ""
		default:
			on = f.boolean("continue_final_message", true)
		}
	}
	if given && on && f.has("add_generation_prompt") && q.conv.AddGenerationPrompt {
		f.fail("add_generation_prompt and continue_final_message are both true, want one of them")
	}
	last := len(q.conv.Messages) - 1
	continues := last >= 0 && q.conv.Messages[last].Role == "assistant" && len(q.conv.Messages[last].ToolCalls) == 0
	if given && on && !continues {
		f.fail("continue_final_message is given, and the last message is no text of the assistant's")
	}
	q.conv.Continue = on && continues
}

// Parts of OpenAI's replies.
type (
	usageJSON struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Of *completionDetails `json:"completion_tokens_details,omitempty"` // of chats
	}
	completionDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	}
	callJSON struct {
		Index    *int   `json:"index,omitempty"`
		ID       string `json:"id,omitempty"`
		Type     string `json:"type,omitempty"`
		Function struct {
			Name      string `json:"name,omitempty"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	logprobsJSON struct {
		Content []any `json:"content"`
	}
	messageJSON struct {
		Role      string     `json:"role"`
		Content   *string    `json:"content"`
		Reasoning string     `json:"reasoning_content,omitempty"`
		Calls     []callJSON `json:"tool_calls,omitempty"`
	}
	choiceJSON struct {
		Index    int            `json:"index"`
		Message  *messageJSON   `json:"message,omitempty"`
		Text     *string        `json:"text,omitempty"`
		Delta    map[string]any `json:"delta,omitzero"`
		Logprobs *logprobsJSON  `json:"logprobs,omitempty"`
		Finish   *string        `json:"finish_reason"`
	}
	replyJSON struct {
		ID          string       `json:"id"`
		Object      string       `json:"object"`
		Created     int64        `json:"created"`
		Model       string       `json:"model"`
		Fingerprint string       `json:"system_fingerprint"`
		Choices     []choiceJSON `json:"choices"`
		Usage       *usageJSON   `json:"usage,omitempty"`
		Timings     *timings     `json:"timings,omitempty"`
		Progress    *progress    `json:"prompt_progress,omitempty"`
		Terrace     *terraceJSON `json:"terrace,omitempty"`
		Verbose     any          `json:"__verbose,omitempty"`
	}
)

// replyHead is what all chunks of a reply have alike.
func (c *call) replyHead(object string) replyJSON {
	return replyJSON{
		ID: newID("chatcmpl-"), Object: object, Created: time.Now().Unix(), Model: c.m.Alias, Fingerprint: c.s.fingerprint(), Choices: []choiceJSON{},
	}
}

// usage counts the tokens of answers to one prompt each; answers to the same prompt count it once.
func usage(rs []*result, n int) *usageJSON {
	var u usageJSON
	for i, r := range rs {
		if n <= 1 || i%n == 0 {
			u.Prompt += r.prompt
			u.Details.Cached += r.timings.CacheN
		}
		u.Completion += r.count
		if r.chatty {
			if u.Of == nil {
				u.Of = &completionDetails{}
			}
			u.Of.Reasoning += r.thoughts
		}
	}
	u.Total = u.Prompt + u.Completion
	return &u
}

// finishReason is OpenAI's word for the end of an answer.
func (r *result) finishReason() string {
	switch {
	case r.stop == "limit":
		return "length"
	case len(r.answer.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

// logprobs is OpenAI's object of them; nil if there are none.
func (m *Model) logprobs(p *params, probs []tokenProb) *logprobsJSON {
	if p.probs == 0 || len(probs) == 0 {
		return nil
	}
	return &logprobsJSON{Content: m.showProbs(probs, p.postProbs)}
}

// chatCompletions answers POST /v1/chat/completions.
func chatCompletions(c *call) error {
	q, err := c.openaiChat()
	if err != nil {
		return err
	}
	jobs, err := c.chatJobs(q)
	if err != nil {
		return err
	}
	head := c.replyHead("chat.completion")
	defer c.s.watch(head.ID, jobs)()
	run := c.start(jobs, q.p.stream)
	defer run.stop()
	if q.p.stream {
		head.Object = "chat.completion.chunk"
		return c.chatStream(q, run, head)
	}
	rs, err := run.all()
	if err != nil {
		return err
	}
	for _, r := range rs {
		content := r.answer.Content
		msg := &messageJSON{Role: "assistant", Content: &content, Reasoning: r.answer.Reasoning}
		for _, t := range r.answer.Calls {
			v := callJSON{ID: t.ID, Type: "function"}
			v.Function.Name, v.Function.Arguments = t.Name, t.Arguments
			msg.Calls = append(msg.Calls, v)
		}
		finish := r.finishReason()
		head.Choices = append(head.Choices, choiceJSON{Index: r.index, Message: msg, Finish: &finish, Logprobs: c.m.logprobs(q.p, r.probs)})
	}
	head.Usage, head.Timings, head.Terrace = usage(rs, q.p.n), &rs[0].timings, remarks(rs...)
	if q.p.verbose {
		head.Verbose = c.m.completionJSON(rs[0], q.p, jobs[0])
	}
	return c.json(head)
}

// chatStream sends a chat's answers as they come.
func (c *call) chatStream(q *chatRequest, run *running, head replyJSON) error {
	e := c.stream(q.p.ping)
	n := run.left
	begun, rs := make([]bool, n), make([]*result, n)
	probs := make([][]tokenProb, n) // of tokens whose text was not sent yet
	done := 0
	chunk := func(index int, delta map[string]any) replyJSON {
		v := head
		v.Choices = []choiceJSON{{Index: index, Delta: delta}}
		return v
	}
	err := run.each(func(p *piece) error {
		if !begun[p.index] {
			begun[p.index] = true
			if err := e.send("", chunk(p.index, map[string]any{"role": "assistant", "content": nil})); err != nil {
				return err
			}
		}
		if p.progress != nil {
			v := chunk(p.index, map[string]any{})
			v.Progress = p.progress
			return e.send("", v)
		}
		probs[p.index] = append(probs[p.index], p.probs...)
		for _, d := range p.deltas {
			v := chunk(p.index, deltaJSON(d))
			v.Timings = p.timings
			if d.Content != "" {
				v.Choices[0].Logprobs, probs[p.index] = c.m.logprobs(q.p, probs[p.index]), nil
			}
			if err := e.send("", v); err != nil {
				return err
			}
		}
		if p.final == nil {
			return nil
		}
		done++
		rs[p.index] = p.final
		finish := p.final.finishReason()
		v := chunk(p.index, map[string]any{})
		v.Choices[0].Finish, v.Choices[0].Logprobs = &finish, c.m.logprobs(q.p, probs[p.index])
		v.Terrace = remarks(p.final)
		if done == n && !q.p.usage {
			v.Timings = &p.final.timings
		}
		return e.send("", v)
	})
	if err != nil {
		return err
	}
	if q.p.usage {
		head.Choices, head.Usage, head.Timings = []choiceJSON{}, usage(rs, q.p.n), &rs[0].timings
		if err := e.send("", head); err != nil {
			return err
		}
	}
	return e.done()
}

// deltaJSON is a piece of an answer in OpenAI's stream.
func deltaJSON(d chat.Delta) map[string]any {
	switch {
	case d.Call != nil:
		v := callJSON{Index: &d.Call.Index, ID: d.Call.ID}
		if d.Call.ID != "" {
			v.Type = "function"
		}
		v.Function.Name, v.Function.Arguments = d.Call.Name, d.Call.Arguments
		return map[string]any{"tool_calls": []callJSON{v}}
	case d.Reasoning != "":
		return map[string]any{"reasoning_content": d.Reasoning}
	}
	return map[string]any{"content": d.Content}
}
