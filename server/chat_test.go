package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func user(text string) []m { return []m{{"role": "user", "content": text}} }

// choice is the first choice of a reply.
func (r reply) choice(t *testing.T) map[string]any {
	t.Helper()
	list, _ := r.json["choices"].([]any)
	if len(list) == 0 {
		t.Fatalf("no choice in %s", r.body)
	}
	return list[0].(map[string]any)
}

func (r reply) message(t *testing.T) map[string]any {
	t.Helper()
	return r.choice(t)["message"].(map[string]any)
}

// A stop string that tokens cut, text that is held back for one, and whole characters, through grammars that leave no choice.
func TestForcedTexts(t *testing.T) {
	h := newHost(t, Options{})
	for _, c := range []struct {
		text, stop string
		want       string
		kind       string
	}{
		{"alpha beta gamma delta", "ta gam", "alpha be", "word"},
		{"alpha beta gamma", "gammas", "alpha beta gamma", "eos"},
		{"naïve – 東京 🙂🚀 ok", "京 🙂🚀 no", "naïve – 東京 🙂🚀 ok", "eos"},
		{"naïve – 東京 🙂🚀 ok", "🚀", "naïve – 東京 🙂", "word"},
		{"line\nline", "\n", "line", "word"},
	} {
		grammar, _ := json.Marshal(c.text)
		body := m{"prompt": "x", "n_predict": 100, "grammar": "root ::= " + string(grammar), "stop": []string{c.stop, "zzz"}}
		r := h.ok("/completion", body)
		if r.json["content"] != c.want || r.json["stop_type"] != c.kind {
			t.Errorf("%q: %s", c.text, r.body)
		}
		text := ""
		for _, e := range h.events("/completion", body) {
			var v struct{ Content string }
			json.Unmarshal([]byte(e), &v)
			if strings.Contains(v.Content, "\uFFFD") || !utf8.ValidString(v.Content) {
				t.Errorf("half a character in %q", v.Content)
			}
			text += v.Content
		}
		if text != c.want {
			t.Errorf("%q: the stream gives %q", c.text, text)
		}
		chat := m{"messages": user("x"), "max_tokens": 100, "grammar": body["grammar"], "stop": c.stop}
		if got := h.ok("/v1/chat/completions", chat).message(t)["content"]; got != c.want {
			t.Errorf("%q: chat gives %q", c.text, got)
		}
	}
	// The cap comes while text is held back.
	body := m{"prompt": "x", "n_predict": 5, "grammar": `root ::= "` + strings.Repeat("ab", 20) + `"`, "stop": strings.Repeat("ab", 30)}
	whole := h.ok("/completion", body).json["content"].(string)
	text := ""
	for _, e := range h.events("/completion", body) {
		var v struct{ Content string }
		json.Unmarshal([]byte(e), &v)
		text += v.Content
	}
	if whole == "" || text != whole {
		t.Errorf("whole %q, streamed %q", whole, text)
	}
}

func TestCompletionFields(t *testing.T) {
	h := newHost(t, Options{Defaults: Defaults{}})
	greedy := func(more m) m {
		b := m{"prompt": "The river runs past", "n_predict": 12, "temperature": 0, "cache_prompt": false, "ignore_eos": true}
		for k, v := range more {
			b[k] = v
		}
		return b
	}
	r := h.ok("/completion", greedy(m{"return_tokens": true, "n_probs": 3})).json
	tm := r["timings"].(map[string]any)
	if len(r["tokens"].([]any)) != 12 || r["tokens_predicted"] != 12.0 || tm["predicted_n"] != 12.0 || tm["cache_n"] != 0.0 || tm["prompt_n"] != r["tokens_evaluated"] || r["truncated"] != false {
		t.Errorf("%v", r)
	}
	if probs := r["completion_probabilities"].([]any); len(probs) != 12 {
		t.Errorf("%d entries of 12 tokens", len(probs))
	} else {
		for i, p := range probs {
			p := p.(map[string]any)
			top := p["top_logprobs"].([]any)[0].(map[string]any)
			if p["id"] != r["tokens"].([]any)[i] || len(p["top_logprobs"].([]any)) != 3 || top["logprob"].(float64) < p["logprob"].(float64) {
				t.Errorf("%v", p)
			}
		}
	}
	post := h.ok("/completion", greedy(m{"n_probs": 3, "post_sampling_probs": true, "temperature": 1.5, "seed": 3})).json
	for _, p := range post["completion_probabilities"].([]any) {
		p := p.(map[string]any)
		sum := 0.0
		for _, q := range p["top_probs"].([]any) {
			sum += q.(map[string]any)["prob"].(float64)
		}
		if v := p["prob"].(float64); v <= 0 || v > 1 || sum > 1.0001 || p["logprob"] != nil {
			t.Errorf("%v", p)
		}
	}
	// Completions of one prompt differ by their seeds, and each can be had alone.
	many := h.call("POST", "/completion", greedy(m{"n_cmpl": 3, "temperature": 1.5, "seed": 40}))
	var list []map[string]any
	if err := json.Unmarshal([]byte(many.body), &list); err != nil || len(list) != 3 {
		t.Fatalf("%s", many.body)
	}
	for i, v := range list {
		alone := h.ok("/completion", greedy(m{"temperature": 1.5, "seed": 40 + i})).json
		if v["index"] != float64(i) || v["content"] != alone["content"] || v["generation_settings"].(map[string]any)["seed"] != float64(40+i) {
			t.Errorf("%d: %q, alone %q", i, v["content"], alone["content"])
		}
	}
	if list[0]["content"] == list[1]["content"] {
		t.Error("two seeds give one text")
	}
	// The window is full: no error.
	long := make([]int, slotContext-10)
	full := h.ok("/completion", m{"prompt": long, "n_predict": -1, "ignore_eos": true}).json
	if full["truncated"] != true || full["stop_type"] != "limit" || full["tokens_predicted"].(float64) < 10 {
		t.Errorf("%v %v %v", full["truncated"], full["stop_type"], full["tokens_predicted"])
	}
	if r := h.ok("/completion", m{"prompt": "", "n_predict": 2}).json; r["content"] == nil || r["stop"] != true {
		t.Errorf("an empty prompt: %v", r)
	}
	if r := h.ok("/completion", m{"prompt": "a", "n_predict": 0}).json; r["tokens_predicted"] != 0.0 || r["content"] != "" {
		t.Errorf("no tokens: %v", r)
	}
	// A time limit ends the text once it has a newline, and not before.
	lines := m{"prompt": "a", "n_predict": 400, "t_max_predict_ms": 1, "grammar": `root ::= "\n" [a-z]{300}`}
	if r := h.ok("/completion", lines).json; r["stop_type"] != "limit" || len(r["content"].(string)) > 200 {
		t.Errorf("%v %q", r["stop_type"], r["content"])
	}
	lines["grammar"] = `root ::= [a-z]{300}`
	if r := h.ok("/completion", lines).json; r["stop_type"] != "eos" || len(r["content"].(string)) != 300 {
		t.Errorf("%v %q", r["stop_type"], r["content"])
	}
	indent := h.ok("/completion", m{"prompt": "a", "n_predict": 100, "n_indent": 2, "grammar": `root ::= "x\n  y\nz and so on"`}).json
	if indent["content"] != "x\n  y\n" || indent["stop_type"] != "limit" {
		t.Errorf("%q by %v", indent["content"], indent["stop_type"])
	}
	// Progress of a long prompt.
	seen := 0
	for _, e := range h.events("/completion", m{"prompt": long, "n_predict": 1, "return_progress": true, "cache_prompt": false}) {
		var v struct {
			P *struct{ Total, Cache, Processed int } `json:"prompt_progress"`
		}
		json.Unmarshal([]byte(e), &v)
		if v.P != nil {
			if seen++; v.P.Total != len(long) || v.P.Processed > v.P.Total || v.P.Cache > v.P.Processed {
				t.Errorf("%s", e)
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d reports of progress", seen)
	}
}

// thinking is a chat whose answer begins within thoughts, which random weights never end.
func thinking(more m) m {
	b := m{"messages": []m{{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "reasoning_content": "Let me see"}}, "max_tokens": 60, "ignore_eos": true, "seed": 5}
	for k, v := range more {
		b[k] = v
	}
	return b
}

func TestThoughts(t *testing.T) {
	h := newHost(t, Options{})
	open := h.ok("/v1/chat/completions", thinking(nil)).message(t)
	if open["reasoning_content"] == nil || open["content"] != "" {
		t.Errorf("%v", open)
	}
	capped := h.ok("/v1/chat/completions", thinking(m{"reasoning_budget_tokens": 5})).message(t)
	if capped["content"] == "" || len(fmt.Sprint(capped["reasoning_content"])) >= len(fmt.Sprint(open["reasoning_content"])) {
		t.Errorf("with a budget of 5: %v", capped)
	}
	plain := h.ok("/v1/chat/completions", thinking(m{"reasoning_budget_tokens": 5, "reasoning_format": "none"})).message(t)
	if plain["reasoning_content"] != nil || !strings.Contains(fmt.Sprint(plain["content"]), "</think>") {
		t.Errorf("reasoning_format none: %v", plain)
	}
	// Thoughts, then a text of the schema, then a call: nothing else can come.
	schema := thinking(m{"reasoning_budget_tokens": 4, "max_tokens": 300, "ignore_eos": false, "response_format": m{"type": "json_schema", "json_schema": m{"name": "p", "schema": petSchema}}})
	r := h.ok("/v1/chat/completions", schema)
	checkPet(t, fmt.Sprint(r.message(t)["content"]))
	if r.message(t)["reasoning_content"] == nil {
		t.Errorf("%s", r.body)
	}
	call := thinking(m{"reasoning_budget_tokens": 4, "max_tokens": 300, "ignore_eos": false, "tool_choice": "required", "tools": []m{{"type": "function", "function": m{"name": "keep", "parameters": petSchema}}}})
	r = h.ok("/v1/chat/completions", call)
	calls, _ := r.message(t)["tool_calls"].([]any)
	if len(calls) == 0 || r.message(t)["reasoning_content"] == nil || r.choice(t)["finish_reason"] != "tool_calls" {
		t.Fatalf("%s", r.body)
	}
	checkPet(t, fmt.Sprint(calls[0].(map[string]any)["function"].(map[string]any)["arguments"]))
}

// An answer of a certain form and a certain length gets to its form: without a budget its thoughts take half of the length.
// Nothing else is cut short, nor is this where the request asks for thoughts without end.
func TestThoughtsLeaveRoom(t *testing.T) {
	h := newHost(t, Options{})
	yes := m{"type": "object", "properties": m{"yes": m{"const": true}}, "required": []string{"yes"}, "additionalProperties": false}
	format := m{"type": "json_object", "schema": yes}
	tool := []m{{"type": "function", "function": m{"name": "keep", "parameters": yes}}}
	for seed := range 8 {
		b := m{"seed": seed, "max_tokens": 240, "ignore_eos": false}
		b["response_format"] = format
		r := h.ok("/v1/chat/completions", thinking(b))
		if text := strings.Join(strings.Fields(fmt.Sprint(r.message(t)["content"])), ""); text != `{"yes":true}` || r.message(t)["reasoning_content"] == nil {
			t.Errorf("seed %d: %s", seed, r.body)
		}
		b["reasoning_budget_tokens"] = -1
		if r := h.ok("/v1/chat/completions", thinking(b)); r.message(t)["content"] != "" || r.choice(t)["finish_reason"] != "length" {
			t.Errorf("seed %d, thoughts without end: %s", seed, r.body)
		}
		delete(b, "reasoning_budget_tokens")
		delete(b, "response_format")
		b["tools"] = tool
		if r := h.ok("/v1/chat/completions", thinking(b)); r.message(t)["content"] != "" || r.choice(t)["finish_reason"] != "length" {
			t.Errorf("seed %d, a call may come: %s", seed, r.body)
		}
		b["tool_choice"] = "required"
		if r := h.ok("/v1/chat/completions", thinking(b)); r.choice(t)["finish_reason"] != "tool_calls" && r.choice(t)["finish_reason"] != "length" || r.message(t)["tool_calls"] == nil {
			t.Errorf("seed %d, a call must come: %s", seed, r.body)
		}
	}
}

// A raw grammar is about what can be seen: thoughts that the prompt has begun come before it, and their budget ends them. Usage says
// how many tokens they were.
func TestGrammarBehindThoughts(t *testing.T) {
	h := newHost(t, Options{})
	thoughts := func(r reply) float64 {
		t.Helper()
		u := r.json["usage"].(m)
		n := u["completion_tokens_details"].(m)["reasoning_tokens"].(float64)
		if n > u["completion_tokens"].(float64) {
			t.Errorf("%v", u)
		}
		return n
	}
	r := h.ok("/v1/chat/completions", thinking(m{"reasoning_budget_tokens": 4, "max_tokens": 200, "ignore_eos": false, "grammar": `root ::= "yes" | "no"`}))
	content, end := fmt.Sprint(r.message(t)["content"]), 0.0
	if content != "yes" && content != "no" || r.message(t)["reasoning_content"] == nil {
		t.Errorf("%s", r.body)
	}
	if end = thoughts(r) - 4; end < 1 || end > 20 { // the closing tag's
		t.Errorf("%g tokens of thoughts", thoughts(r))
	}
	raw := h.ok("/v1/chat/completions", thinking(m{"max_tokens": 30, "ignore_eos": false, "reasoning_format": "none", "grammar": `root ::= [a-c]+ "."`}))
	if s := fmt.Sprint(raw.message(t)["content"]); strings.Trim(s, "abc.") != "" {
		t.Errorf("as it is: %q", s)
	}
	if n := thoughts(h.ok("/v1/chat/completions", thinking(nil))); n != 60 {
		t.Errorf("%g tokens of thoughts, want all 60", n)
	}
	if n := thoughts(h.ok("/v1/chat/completions", m{"messages": []m{{"role": "user", "content": "x"}}, "chat_template_kwargs": m{"enable_thinking": false}, "max_tokens": 9})); n != 0 {
		t.Errorf("%g tokens of thoughts without any", n)
	}
	var last m
	for _, e := range h.events("/v1/chat/completions", thinking(m{"stream_options": m{"include_usage": true}})) {
		var v m
		if json.Unmarshal([]byte(e), &v) == nil && v["usage"] != nil {
			last = v
		}
	}
	if n := thoughts(reply{json: last}); n != 60 {
		t.Errorf("%g tokens of thoughts in a stream, want all 60", n)
	}
}

// TestStrictTools: a tool whose schema cannot be held is called loosely, unless it asks to be strict.
func TestStrictTools(t *testing.T) {
	h := newHost(t, Options{})
	tool := func(strict bool) m {
		return m{"messages": []m{{"role": "user", "content": "x"}}, "max_tokens": 300, "seed": 3, "tool_choice": "required", "chat_template_kwargs": m{"enable_thinking": false}, "tools": []m{
			{"type": "function", "function": m{"name": "f", "strict": strict, "parameters": m{"type": "object", "properties": m{"a": m{"not": m{"type": "string"}}}}}}}}
	}
	h.ok("/v1/chat/completions", tool(false))
	if say := h.call("POST", "/v1/chat/completions", tool(true)).wantError(t, 400, "invalid_request_error"); !strings.Contains(say, `"f"`) || !strings.Contains(say, "not") {
		t.Errorf("%q", say)
	}
}

// TestGrammarsBounded: however many schemas clients send, what is kept of them stays within its bound.
func TestGrammarsBounded(t *testing.T) {
	const most = 400 << 10
	h := newHost(t, Options{MaxGrammars: most, Metrics: true})
	l := &h.s.model.Load().limits
	seen := int64(0)
	for i := range 40 {
		props := m{}
		for k := range 12 {
			props[fmt.Sprintf("field_%d_%d", i, k)] = m{"type": "string", "maxLength": 3}
		}
		h.ok("/v1/chat/completions", m{"messages": []m{{"role": "user", "content": "x"}}, "max_tokens": 6, "response_format": m{"type": "json_schema", "json_schema": m{"name": "p", "schema": m{"type": "object", "properties": props}}}})
		n := l.bytes()
		if seen = max(seen, n); n > most/2 {
			t.Fatalf("%d bytes are kept, at most %d may be", n, most/2)
		}
	}
	if seen == 0 {
		t.Error("nothing was ever kept")
	}
	if text := h.call("GET", "/metrics", nil).body; !strings.Contains(text, "terrace_grammar_bytes ") {
		t.Error("no metric tells of grammars")
	}
}

// The client may end the thinking while it goes on.
func TestControl(t *testing.T) {
	h := newHost(t, Options{})
	res, err := http.DefaultClient.Do(h.request("POST", "/v1/chat/completions", thinking(m{"stream": true, "max_tokens": 1500, "reasoning_control": true})))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewScanner(res.Body)
	asked, content := false, false
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v struct {
			ID      string
			Choices []struct{ Delta map[string]any }
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatal(err)
		}
		if !asked && v.Choices[0].Delta["reasoning_content"] != nil {
			asked = true
			if r := h.ok("/v1/chat/completions/control", m{"id": v.ID, "action": "reasoning_end"}); r.json["success"] != true {
				t.Errorf("%s", r.body)
			}
		}
		if c, _ := v.Choices[0].Delta["content"].(string); c != "" {
			content = true
		}
	}
	if !asked || !content {
		t.Errorf("thoughts were seen: %v, text after them: %v", asked, content)
	}
	if r := h.ok("/v1/chat/completions/control", m{"id": "chatcmpl-gone", "action": "reasoning_end"}); r.json["success"] != false {
		t.Errorf("%s", r.body)
	}
	h.call("POST", "/v1/chat/completions/control", m{"id": "x", "action": "dance"}).wantError(t, 400, "invalid_request_error")
}

func TestChatRefuses(t *testing.T) {
	h := newHost(t, Options{})
	tools := []m{{"type": "function", "function": m{"name": "f"}}}
	for name, body := range map[string]m{
		"no messages":     {},
		"a string":        {"messages": "x"},
		"empty":           {"messages": []m{}},
		"no content":      {"messages": []m{{"role": "user"}}},
		"null content":    {"messages": []m{{"role": "user", "content": nil}}},
		"number":          {"messages": []m{{"role": "user", "content": 7}}},
		"part":            {"messages": []m{{"role": "user", "content": []m{{"type": "hologram"}}}}},
		"picture":         {"messages": []m{{"role": "user", "content": []m{{"type": "image_url", "image_url": m{"url": "x"}}}}}},
		"role":            {"messages": []m{{"role": "wizard", "content": "x"}}},
		"no role":         {"messages": []m{{"content": "x"}}},
		"assistant":       {"messages": []m{{"role": "assistant"}}},
		"two assistants":  {"messages": []m{{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}}},
		"top_logprobs":    {"messages": user("x"), "top_logprobs": 3},
		"format":          {"messages": user("x"), "response_format": m{"type": "telepathy"}},
		"no schema":       {"messages": user("x"), "response_format": m{"type": "json_schema"}},
		"bad schema":      {"messages": user("x"), "response_format": m{"type": "json_schema", "json_schema": m{"schema": m{"type": "no-such"}}}},
		"two constraints": {"messages": user("x"), "grammar": `root ::= "a"`, "json_schema": m{"type": "object"}},
		"grammar+tools":   {"messages": user("x"), "grammar": `root ::= "a"`, "tools": tools},
		"logprobs+tools":  {"messages": user("x"), "logprobs": true, "stream": true, "tools": tools},
		"tool type":       {"messages": user("x"), "tools": []m{{"type": "oracle", "function": m{"name": "x"}}}},
		"no tool type":    {"messages": user("x"), "tools": []m{{"function": m{"name": "x"}}}},
		"no function":     {"messages": user("x"), "tools": []m{{"type": "function"}}},
		"choice":          {"messages": user("x"), "tools": tools, "tool_choice": "perhaps"},
		"other function":  {"messages": user("x"), "tools": tools, "tool_choice": m{"type": "function", "function": m{"name": "g"}}},
		"thinking":        {"messages": user("x"), "chat_template_kwargs": m{"enable_thinking": "no"}},
		"kwargs":          {"messages": user("x"), "chat_template_kwargs": 3},
		"reasoning":       {"messages": user("x"), "reasoning_format": "loud"},
		"both":            {"messages": user("x"), "add_generation_prompt": true, "continue_final_message": true},
		"continue user":   {"messages": user("x"), "continue_final_message": true},
		"n":               {"messages": user("x"), "n": 5},
	} {
		body["max_tokens"] = 1
		r := h.call("POST", "/v1/chat/completions", body)
		if r.status != 400 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
			continue
		}
		r.wantError(t, 400, "invalid_request_error")
		body["stream"] = true
		h.call("POST", "/v1/chat/completions", body).wantError(t, 400, "invalid_request_error")
	}
	for name, body := range map[string]m{
		"nulls":       {"messages": user("x"), "tools": nil, "stop": nil, "response_format": nil, "tool_choice": nil, "chat_template_kwargs": nil},
		"no tools":    {"messages": user("x"), "tools": []m{}, "tool_choice": "auto"},
		"text format": {"messages": user("x"), "response_format": m{"type": "text"}},
		"none":        {"messages": user("x"), "tools": tools, "tool_choice": "none", "grammar": `root ::= "a"`},
		"loose":       {"messages": user("x"), "tools": []m{{"type": "function", "function": m{"name": "f", "parameters": m{"type": "object", "not": m{"required": []string{"x"}}}}}}},
		"effort":      {"messages": user("x"), "reasoning_effort": "none", "user": "me", "store": true, "metadata": m{"a": 1}},
		"continue":    {"messages": append(user("x"), m{"role": "assistant", "content": "one,"}), "continue_final_message": true},
	} {
		body["max_tokens"] = 2
		if r := h.call("POST", "/v1/chat/completions", body); r.status != 200 {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
}

// With tools to call at will and a schema for the text, the answer is a call or a text of the schema, whatever the weights.
func TestCallsOrText(t *testing.T) {
	h := newHost(t, Options{})
	saw := map[bool]int{}
	for seed := range 12 {
		r := h.ok("/v1/chat/completions", m{
			"messages": user("x"), "seed": seed, "max_tokens": 500, "temperature": 2, "top_k": 0, "min_p": 0, "top_p": 1, "chat_template_kwargs": m{"enable_thinking": false},
			"response_format": m{"type": "json_schema", "json_schema": m{"name": "t", "schema": m{"enum": []string{"yes", "no"}}}},
			"tools":           []m{{"type": "function", "function": m{"name": "keep", "parameters": petSchema}}},
		})
		calls, _ := r.message(t)["tool_calls"].([]any)
		for _, c := range calls {
			checkPet(t, fmt.Sprint(c.(map[string]any)["function"].(map[string]any)["arguments"]))
		}
		if len(calls) == 0 && !regexp.MustCompile(`^"(yes|no)"$`).MatchString(fmt.Sprint(r.message(t)["content"])) {
			t.Errorf("%s", r.body)
		}
		saw[len(calls) > 0]++
	}
	if saw[true] == 0 || saw[false] == 0 {
		t.Errorf("calls and texts: %v", saw)
	}
}

func TestTokens(t *testing.T) {
	h := newHost(t, Options{})
	for _, text := range []string{"plain words, 42!", " leading", "Füße 東京 🙂", "tab\tnew\nline", "", "<|im_start|>"} {
		r := h.ok("/tokenize", m{"content": text})
		if back := h.ok("/detokenize", m{"tokens": r.json["tokens"]}).json["content"]; back != text {
			t.Errorf("%q comes back as %q", text, back)
		}
	}
	pieces := h.ok("/tokenize", m{"content": "a🙂", "with_pieces": true}).json["tokens"].([]any)
	var b []byte
	for _, p := range pieces {
		switch v := p.(map[string]any)["piece"].(type) {
		case string:
			b = append(b, v...)
		case []any:
			for _, x := range v {
				b = append(b, byte(x.(float64)))
			}
		}
	}
	if string(b) != "a🙂" {
		t.Errorf("pieces %v", pieces)
	}
	mixed := h.ok("/tokenize", m{"content": []any{"ab", 5, "c"}}).json["tokens"].([]any)
	if len(mixed) < 3 {
		t.Errorf("%v", mixed)
	}
	h.call("POST", "/tokenize", m{"content": 3}).wantError(t, 400, "invalid_request_error")
	h.call("POST", "/detokenize", m{"tokens": []any{1, 1e9}}).wantError(t, 400, "invalid_request_error")
	h.call("POST", "/detokenize", m{"tokens": "x"}).wantError(t, 400, "invalid_request_error")
	r := h.ok("/apply-template", m{"messages": []m{{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one, two,"}}})
	if p := r.json["prompt"].(string); !strings.HasSuffix(p, "one, two,") {
		t.Errorf("%q", p)
	}
	n := h.ok("/v1/chat/completions/input_tokens", m{"messages": user("Count.")}).json
	if got := h.ok("/v1/chat/completions", m{"messages": user("Count."), "max_tokens": 1}).json["usage"].(map[string]any)["prompt_tokens"]; n["input_tokens"] != got {
		t.Errorf("%v tokens are counted, %v used", n, got)
	}
}

func TestSlots(t *testing.T) {
	h := newHost(t, Options{SaveSlots: true})
	prompt := strings.Repeat("Once there was a clockmaker. ", 6)
	a := h.ok("/completion", m{"prompt": prompt, "n_predict": 4, "temperature": 0, "id_slot": 3, "cache_prompt": false, "top_k": 17, "ignore_eos": true}).json
	for _, s := range h.slots() {
		if s["id"] == 3.0 && (s["params"].(map[string]any)["top_k"] != 17.0 || s["n_prompt_tokens"] != a["tokens_evaluated"] || s["is_processing"] != false) {
			t.Errorf("%v", s)
		}
	}
	save := h.ok("/slots/3?action=save", m{"filename": "t.bin"}).json
	if save["n_saved"].(float64) < a["tokens_evaluated"].(float64) || save["n_written"].(float64) <= 0 {
		t.Errorf("%v", save)
	}
	if e := h.ok("/slots/3?action=erase", m{}).json; e["n_erased"] != save["n_saved"] {
		t.Errorf("%v", e)
	}
	if r := h.ok("/slots/3?action=restore", m{"filename": "t.bin"}).json; r["n_restored"] != save["n_saved"] || r["n_read"] != save["n_written"] {
		t.Errorf("%v", r)
	}
	b := h.ok("/completion", m{"prompt": prompt + "And then", "n_predict": 1, "id_slot": 3}).json
	if b["timings"].(map[string]any)["cache_n"].(float64) < a["tokens_evaluated"].(float64)-8 {
		t.Errorf("%v", b["timings"])
	}
	for path, body := range map[string]any{
		"/slots/3?action=dance": m{}, "/slots/abc?action=erase": m{}, "/slots/4?action=erase": m{}, "/slots/-1?action=erase": m{}, "/slots/0": m{},
		"/slots/0?action=save": m{"filename": "../x"}, "/slots/1?action=save": m{}, "/slots/0?action=restore": m{"filename": "never.bin"},
	} {
		h.call("POST", path, body).wantError(t, 400, "invalid_request_error")
	}
	off := newHost(t, Options{NoSlots: true})
	off.call("POST", "/slots/0?action=erase", m{}).wantError(t, 501, "not_supported_error")
	off.call("GET", "/slots", nil).wantError(t, 501, "not_supported_error")
	off.call("POST", "/props", m{}).wantError(t, 501, "not_supported_error")
	off.call("POST", "/lora-adapters", m{"id": 0}).wantError(t, 400, "invalid_request_error")
	if r := off.call("POST", "/lora-adapters", "[]"); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func (h *host) slots() (out []map[string]any) {
	h.Helper()
	if err := json.Unmarshal([]byte(h.call("GET", "/slots", nil).body), &out); err != nil {
		h.Fatal(err)
	}
	return out
}

// Eight chats at once over four slots: each gets its own text, and a greedy one the text that it gets alone.
func TestTogether(t *testing.T) {
	h := newHost(t, Options{})
	body := func(i int) m {
		return m{"prompt": fmt.Sprintf("Item %d of the list is", i), "n_predict": 24, "temperature": 0, "ignore_eos": true, "cache_prompt": false}
	}
	var alone [8]any
	for i := range alone {
		alone[i] = h.ok("/completion", body(i)).json["content"]
	}
	type answer struct {
		i    int
		text any
	}
	got := make(chan answer)
	for i := range alone {
		go func() { got <- answer{i, h.call("POST", "/completion", body(i)).json["content"]} }()
	}
	for range alone {
		select {
		case a := <-got:
			if a.text != alone[a.i] {
				t.Errorf("%d: %q together, %q alone", a.i, a.text, alone[a.i])
			}
		case <-time.After(30 * time.Second):
			t.Fatal("an answer is missing")
		}
	}
}
