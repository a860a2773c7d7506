package server

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// maxPrompts bounds the prompts of one request.
const maxPrompts = 512

// prompts reads the prompt of a completion: a text, token ids, a mix, or several of these.
func (c *call) prompts(f *fields) ([][]int32, bool, error) {
	if !f.has("prompt") {
		return nil, false, invalid("prompt is not given")
	}
	raw := f.m["prompt"]
	if kindOf(raw) != "array" {
		p, err := c.m.prompt(raw, "prompt")
		return [][]int32{p}, false, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, false, invalid("prompt: %s", err)
	}
	several := len(list) > 0
	for _, e := range list {
		if kindOf(e) == "number" {
			several = false
		}
	}
	if !several {
		p, err := c.m.prompt(raw, "prompt")
		return [][]int32{p}, false, err
	}
	if len(list) > maxPrompts {
		return nil, true, invalid("prompt has %d prompts, at most %d are taken", len(list), maxPrompts)
	}
	out := make([][]int32, len(list))
	for i, e := range list {
		var err error
		if out[i], err = c.m.prompt(e, element("prompt", i)); err != nil {
			return nil, true, err
		}
	}
	return out, true, nil
}

// prompt reads one prompt.
func (m *Model) prompt(raw json.RawMessage, at string) ([]int32, error) {
	t := m.Engine.Tokenizer()
	var ids []int32
	switch kindOf(raw) {
	case "string":
		var text string
		json.Unmarshal(raw, &text)
		if err := m.checkText(len(text)); err != nil {
			return nil, err
		}
		ids = t.Encode(nil, text, true, true)
	case "object":
		o, err := object(raw, at)
		if err != nil {
			return nil, err
		}
		if len(o.array("multimodal_data")) > 0 {
			return nil, unsupported("%s has multimodal_data: this model takes text only", at)
		}
		if !o.has("prompt_string") {
			o.fail("%s is not given", o.name("prompt_string"))
		}
		text := o.str("prompt_string", "")
		if o.err != nil {
			return nil, o.err
		}
		if err := m.checkText(len(text)); err != nil {
			return nil, err
		}
		ids = t.Encode(nil, text, true, true)
	case "array":
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, invalid("%s: %s", at, err)
		}
		size := 0 // of all texts, before any is cut into tokens
		for _, e := range list {
			if kindOf(e) == "string" {
				size += len(e)
			}
		}
		if err := m.checkText(size); err != nil {
			return nil, err
		}
		for i, e := range list {
			switch kindOf(e) {
			case "number":
				v, _ := number(e)
				if v < 0 || v >= float64(m.Engine.Model().Config().Vocab) || v != float64(int32(v)) {
					return nil, invalid("Prompt contains invalid tokens: %s is %s, the vocabulary has %d", element(at, i), describe(string(e)), m.Engine.Model().Config().Vocab)
				}
				ids = append(ids, int32(v))
			case "string":
				var text string
				json.Unmarshal(e, &text)
				ids = t.Encode(ids, text, i == 0, true)
			default:
				return nil, invalid("%s is a JSON %s, want a token id or a text", element(at, i), kindOf(e))
			}
		}
	default:
		return nil, invalid("%s is a JSON %s, want a text, token ids or several of them", at, kindOf(raw))
	}
	return ids, m.checkPrompt(ids)
}

// textJobs makes the completions of prompts that are text: each prompt p.n times.
func (c *call) textJobs(p *params, prompts [][]int32) ([]*job, error) {
	l, err := c.textLimits(p)
	if err != nil {
		return nil, err
	}
	if err := p.checkProbs(len(prompts)*p.n, c.m.Context); err != nil {
		return nil, err
	}
	var jobs []*job
	for _, prompt := range prompts {
		for range p.n {
			j := &job{p: p, index: len(jobs), prompt: prompt}
			if err := c.choose(j, l); err != nil {
				return nil, err
			}
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// completion answers POST /completion and /completions.
func completion(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	prompts, several, err := c.prompts(f)
	if err != nil {
		return err
	}
	p, err := c.params(f, false)
	if err != nil {
		return err
	}
	return c.complete(p, prompts, several)
}

// complete answers in the native form: /completion's and /infill's.
func (c *call) complete(p *params, prompts [][]int32, several bool) error {
	jobs, err := c.textJobs(p, prompts)
	if err != nil {
		return err
	}
	run := c.start(jobs, p.stream)
	defer run.stop()
	if !p.stream {
		rs, err := run.all()
		if err != nil {
			return err
		}
		if !several && len(rs) == 1 {
			return c.json(p.trim(c.m.completionJSON(rs[0], p, jobs[0])))
		}
		list := make([]any, len(rs))
		for i, r := range rs {
			list[i] = p.trim(c.m.completionJSON(r, p, jobs[i]))
		}
		return c.json(list)
	}
	e := c.stream(p.ping)
	return run.each(func(q *piece) error { return e.send("", c.m.chunkJSON(q, p, jobs[q.index])) })
}

// chunkJSON is an event of the native stream.
func (m *Model) chunkJSON(q *piece, p *params, j *job) map[string]any {
	if q.final != nil {
		o := m.completionJSON(q.final, p, j)
		o["content"], o["tokens"] = q.text, ids(q.tokens)
		if p.probs > 0 {
			delete(o, "completion_probabilities")
			if len(q.probs) > 0 {
				o["completion_probabilities"] = m.showProbs(q.probs, p.postProbs)
			}
		}
		return p.trim(o)
	}
	o := map[string]any{
		"index": q.index, "content": q.text, "tokens": ids(q.tokens), "stop": false, "id_slot": q.slot, "tokens_predicted": q.count,
		"tokens_evaluated": len(j.prompt),
	}
	if q.timings != nil {
		o["timings"] = q.timings
	}
	if q.progress != nil {
		o["prompt_progress"] = q.progress
	}
	if len(q.probs) > 0 {
		o["completion_probabilities"] = m.showProbs(q.probs, p.postProbs)
	}
	return o
}

// completionJSON is the whole native reply.
func (m *Model) completionJSON(r *result, p *params, j *job) map[string]any {
	tokens := []int32{}
	if p.tokens {
		tokens = ids(r.tokens)
	}
	o := map[string]any{
		"index": r.index, "content": r.text, "tokens": tokens, "id_slot": r.slot, "stop": true, "model": m.Alias, "tokens_predicted": r.count,
		"tokens_evaluated": r.prompt, "tokens_cached": r.held, "generation_settings": p.settings(r.seed), "prompt": m.promptText(j.prompt),
		"has_new_line": r.newline, "truncated": r.truncated, "stop_type": r.stop, "stopping_word": r.word, "timings": r.timings,
	}
	if p.probs > 0 {
		o["completion_probabilities"] = m.showProbs(r.probs, p.postProbs)
	}
	if t := remarks(r); t != nil {
		o["terrace"] = t
	}
	return o
}

// promptText is a prompt as text, control tokens included.
func (m *Model) promptText(ids []int32) string {
	return strings.ToValidUTF8(string(m.Engine.Tokenizer().Decode(ids, true)), "\uFFFD")
}

// ids is a list that is never null.
func ids(list []int32) []int32 {
	if list == nil {
		return []int32{}
	}
	return list
}

// trim keeps the fields of a reply that the request asked for; "a/b" names a field within a field and keeps that name.
func (p *params) trim(o map[string]any) map[string]any {
	if len(p.fields) == 0 {
		return o
	}
	out := map[string]any{}
	for _, path := range p.fields {
		at := any(o)
		for _, key := range strings.Split(path, "/") {
			m, ok := asMap(at)
			if !ok {
				at = nil
				break
			}
			if at, ok = m[key]; !ok {
				at = nil
				break
			}
		}
		if at != nil {
			out[path] = at
		}
	}
	return out
}

// asMap is a value of a reply as the JSON object it is written as.
func asMap(v any) (map[string]any, bool) {
	if m, ok := v.(map[string]any); ok {
		return m, true
	}
	b, err := json.Marshal(v)
	if err != nil || kindOf(b) != "object" {
		return nil, false
	}
	var m map[string]any
	return m, json.Unmarshal(b, &m) == nil
}

// showProbs are tokens with their alternatives as replies have them.
func (m *Model) showProbs(probs []tokenProb, post bool) []any {
	value, list := "logprob", "top_logprobs"
	if post {
		value, list = "prob", "top_probs"
	}
	one := func(id int32, v float64) map[string]any {
		b := m.bytes(id)
		raw := make([]int, len(b))
		for i := range b {
			raw[i] = int(b[i])
		}
		return map[string]any{"id": id, "token": soundPrefix(b), "bytes": raw, value: v}
	}
	out := make([]any, len(probs))
	for i, p := range probs {
		o := one(p.id, p.value)
		top := make([]any, len(p.top))
		for k, t := range p.top {
			top[k] = one(t.id, t.value)
		}
		o[list] = top
		out[i] = o
	}
	return out
}

// bytes are those of a token; a control token is shown by its spelling.
func (m *Model) bytes(id int32) []byte {
	t := m.Engine.Tokenizer()
	if t.IsControl(id) {
		return []byte(t.Text(id))
	}
	return t.Piece(id)
}

// soundPrefix is the longest beginning of b that is valid UTF-8.
func soundPrefix(b []byte) string {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return string(b[:i])
		}
		i += n
	}
	return string(b)
}

// textChoice is a choice of /v1/completions.
type textChoice struct {
	Index    int           `json:"index"`
	Text     string        `json:"text"`
	Logprobs *logprobsJSON `json:"logprobs"`
	Finish   *string       `json:"finish_reason"`
}

// textReply is a reply, or a chunk, of /v1/completions.
type textReply struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Fingerprint string       `json:"system_fingerprint"`
	Choices     []textChoice `json:"choices"`
	Usage       *usageJSON   `json:"usage,omitempty"`
	Timings     *timings     `json:"timings,omitempty"`
	Progress    *progress    `json:"prompt_progress,omitempty"`
	Terrace     *terraceJSON `json:"terrace,omitempty"`
	Verbose     any          `json:"__verbose,omitempty"`
}

// openaiCompletion answers POST /v1/completions.
func openaiCompletion(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	prompts, _, err := c.prompts(f)
	if err != nil {
		return err
	}
	p, err := c.params(f, false)
	if err != nil {
		return err
	}
	jobs, err := c.textJobs(p, prompts)
	if err != nil {
		return err
	}
	h := c.replyHead("text_completion")
	head := textReply{ID: h.ID, Object: h.Object, Created: h.Created, Model: h.Model, Fingerprint: h.Fingerprint}
	run := c.start(jobs, p.stream)
	defer run.stop()
	if !p.stream {
		rs, err := run.all()
		if err != nil {
			return err
		}
		for _, r := range rs {
			finish := r.finishReason()
			head.Choices = append(head.Choices, textChoice{r.index, r.text, c.m.logprobs(p, r.probs), &finish})
		}
		head.Usage, head.Timings, head.Terrace = usage(rs, p.n), &rs[0].timings, remarks(rs...)
		if p.verbose {
			head.Verbose = c.m.completionJSON(rs[0], p, jobs[0])
		}
		return c.json(head)
	}
	e := c.stream(p.ping)
	rs := make([]*result, len(jobs))
	left := len(jobs)
	err = run.each(func(q *piece) error {
		v := head
		ch := textChoice{Index: q.index, Text: q.text, Logprobs: c.m.logprobs(p, q.probs)}
		v.Timings, v.Progress = q.timings, q.progress
		if q.final != nil {
			finish := q.final.finishReason()
			ch.Finish = &finish
			rs[q.index], v.Terrace = q.final, remarks(q.final)
			if left--; left == 0 {
				v.Usage, v.Timings = usage(rs, p.n), &q.final.timings
			}
		}
		v.Choices = []textChoice{ch}
		return e.send("", v)
	})
	if err != nil {
		return err
	}
	return e.done()
}
