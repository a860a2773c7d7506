package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/chat"
	"terrace/engine"
)

const tinyMoE = "../testdata/tiny-moe-Q4_K.gguf"

// serveModel starts a server with a model, that ends with the test.
func serveModel(t testing.TB, o Options, eo engine.Options) (*Server, string) {
	t.Helper()
	if eo.Context == 0 {
		eo.Context = 1024
	}
	eo.Threads, eo.Slots = 2, 2
	e, err := engine.Open(eo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	sc, err := e.NewScheduler(engine.SchedulerOptions{Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		sc.Close(ctx)
	})
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(&Model{Engine: e, Scheduler: sc, Alias: "m"}); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() { s.Close(); h.Close() })
	return s, h.URL
}

// ask sends a request; body may be nil.
func ask(t testing.TB, method, url, body string, headers ...string) (int, []byte, http.Header) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b, res.Header
}

// fetch is ask for a reply of 200 with a JSON object.
func fetch(t testing.TB, method, url, body string) map[string]any {
	t.Helper()
	status, b, _ := ask(t, method, url, body)
	var v map[string]any
	if err := json.Unmarshal(b, &v); status != 200 || err != nil {
		t.Fatalf("%s %s: %d %s", method, url, status, b)
	}
	return v
}

// refused expects a refusal whose message has all the words.
func refused(t testing.TB, method, url, body string, status int, words ...string) map[string]any {
	t.Helper()
	got, b, _ := ask(t, method, url, body)
	var v struct {
		Type  string
		Error map[string]any
	}
	if err := json.Unmarshal(b, &v); err != nil || got != status || v.Error["code"] != float64(status) {
		t.Errorf("%s %s: %d %s, want %d", url, body, got, b, status)
		return nil
	}
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(v.Error["message"]), w) {
			t.Errorf("%s %s: message %q lacks %q", url, body, v.Error["message"], w)
		}
	}
	if anthropic := strings.HasPrefix(v.Type, "error"); anthropic != strings.Contains(url, "/v1/messages") {
		t.Errorf("%s: top type %q", url, v.Type)
	}
	return v.Error
}

// event is one of a stream.
type event struct {
	name string
	data map[string]any
}

// events reads a stream to its end.
func events(t testing.TB, r io.Reader) []event {
	t.Helper()
	var out []event
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	name := ""
	for sc.Scan() {
		line := sc.Text()
		if n, ok := strings.CutPrefix(line, "event: "); ok {
			name = n
		}
		if d, ok := strings.CutPrefix(line, "data: "); ok {
			e := event{name: name}
			if err := json.Unmarshal([]byte(d), &e.data); err != nil {
				t.Fatalf("event %q: %v", d, err)
			}
			out = append(out, e)
			name = ""
		}
	}
	return out
}

func streamed(t testing.TB, url, body string) []event {
	t.Helper()
	status, b, h := ask(t, "POST", url, body)
	if status != 200 || h.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %d %s", url, status, b)
	}
	return events(t, bytes.NewReader(b))
}

// recorded is a call whose stream goes into a buffer.
func recorded() (*call, *httptest.ResponseRecorder) {
	w := httptest.NewRecorder()
	c := &call{w: w, rc: http.NewResponseController(w), m: &Model{Alias: "m"}, s: &Server{}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c, w
}

// script is an answer that thinks, speaks and calls twice.
var script = []chat.Delta{
	{Reasoning: "h"}, {Reasoning: "m"}, {Content: "So"}, {Content: ":"},
	{Call: &chat.CallDelta{Index: 0, ID: "c0", Name: "f", Arguments: `{"a`}}, {Call: &chat.CallDelta{Index: 0, Arguments: `":1}`}},
	{Call: &chat.CallDelta{Index: 1, ID: "c1", Name: "g"}},
}

func names(es []event) string {
	var n []string
	for _, e := range es {
		n = append(n, e.name)
	}
	return strings.Join(n, " ")
}

func TestResponseItems(t *testing.T) {
	c, w := recorded()
	o := &responseItems{c: c, q: &chatRequest{p: &params{}}, head: responseJSON{ID: "resp_1", Output: []any{}}, events: c.stream(-1)}
	for _, d := range script {
		o.add(d, nil)
	}
	final := o.finish(&result{prompt: 7, count: 5, stop: "eos", timings: timings{CacheN: 3}})
	if o.err != nil {
		t.Fatal(o.err)
	}
	es := events(t, w.Body)
	want := "response.output_item.added response.reasoning_text.delta response.reasoning_text.delta response.reasoning_text.done response.output_item.done " +
		"response.output_item.added response.content_part.added response.output_text.delta response.output_text.delta response.output_text.done response.content_part.done response.output_item.done " +
		"response.output_item.added response.function_call_arguments.delta response.function_call_arguments.delta response.function_call_arguments.done response.output_item.done " +
		"response.output_item.added response.function_call_arguments.done response.output_item.done"
	if got := names(es); got != want {
		t.Errorf("events\n%s, want\n%s", got, want)
	}
	for i, e := range es {
		if e.data["sequence_number"] != float64(i) || e.data["type"] != e.name {
			t.Errorf("event %d: %v", i, e)
		}
	}
	b, err := json.Marshal(final)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Status string
		Output []struct {
			Type, ID, Name, Arguments string
			CallID                    string `json:"call_id"`
			Content                   []struct{ Type, Text string }
		}
		Incomplete any `json:"incomplete_details"`
		Usage      struct {
			Input   int `json:"input_tokens"`
			Output  int `json:"output_tokens"`
			Total   int `json:"total_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	x := v.Output
	if len(x) != 4 || x[0].Type != "reasoning" || x[0].Content[0].Text != "hm" || x[1].Type != "message" || x[1].Content[0].Text != "So:" ||
		x[2].CallID != "c0" || x[2].Arguments != `{"a":1}` || x[3].Name != "g" || x[3].Arguments != "{}" || !strings.HasPrefix(x[3].ID, "fc_") {
		t.Errorf("output %s", b)
	}
	if v.Status != "completed" || v.Incomplete != nil || v.Usage.Input != 7 || v.Usage.Total != 12 || v.Usage.Details.Cached != 3 {
		t.Errorf("%s", b)
	}
}

func TestAnthropicBlocks(t *testing.T) {
	c, w := recorded()
	b := blocks{e: c.stream(-1)}
	for _, d := range script {
		b.add(d)
	}
	b.close()
	es := events(t, w.Body)
	var got []string
	for _, e := range es {
		s := fmt.Sprintf("%s %v", strings.TrimPrefix(e.name, "content_block_"), e.data["index"])
		if d, ok := e.data["delta"].(map[string]any); ok {
			s = fmt.Sprintf("%s %v%v%v%v", d["type"], d["thinking"], d["text"], d["partial_json"], d["signature"])
		}
		if k, ok := e.data["content_block"].(map[string]any); ok {
			s += fmt.Sprintf(" %s %v %v", k["type"], k["name"], k["input"])
		}
		got = append(got, strings.ReplaceAll(s, "<nil>", ""))
	}
	want := []string{
		"start 0 thinking  ", "thinking_delta h", "thinking_delta m", "signature_delta ", "stop 0", "start 1 text  ", "text_delta So", "text_delta :", "stop 1",
		"start 2 tool_use f map[]", `input_json_delta {"a`, `input_json_delta ":1}`, "stop 2", "start 3 tool_use g map[]", "stop 3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
}

func parsed(t *testing.T, body string) *fields {
	t.Helper()
	f, err := parseObject([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestResponsesInput(t *testing.T) {
	f := parsed(t, `{"instructions":"Be brief.","input":[
		{"role":"developer","content":"Really."},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Time?"}]},
		{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"A clock."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Let me see.","annotations":[]}]},
		{"type":"function_call","id":"fc_1","call_id":"c1","name":"clock","arguments":"{\"z\":1}"},
		{"type":"function_call","call_id":"c2","name":"date","arguments":""},
		{"type":"function_call_output","call_id":"c1","output":"12:00"},
		{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"May"},{"type":"input_text","text":"1"}]},
		{"type":"reasoning","summary":[{"type":"summary_text","text":"Noon."}]},
		{"role":"assistant","content":"Noon."},
		{"role":"user","content":"Thanks."}]}`)
	got, err := f.responsesInput()
	if err != nil {
		t.Fatal(err)
	}
	text := func(s string) []chat.ContentPart { return []chat.ContentPart{{Type: "text", Text: s}} }
	want := []chat.Message{
		{Role: "system", Content: "Be brief.\n\nReally."}, {Role: "user", Parts: text("Time?")},
		{Role: "assistant", Reasoning: "A clock.", Parts: text("Let me see."), ToolCalls: []chat.ToolCall{{ID: "c1", Name: "clock", Arguments: `{"z":1}`}, {ID: "c2", Name: "date", Arguments: "{}"}}},
		{Role: "tool", ToolCallID: "c1", Name: "clock", Content: "12:00"}, {Role: "tool", ToolCallID: "c2", Name: "date", Content: "May\n1"},
		{Role: "assistant", Reasoning: "Noon.", Content: "Noon."}, {Role: "user", Content: "Thanks."},
	}
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("%s, want\n%s", a, b)
	}
	for body, word := range map[string]string{
		`{}`:                                     "input is not given",
		`{"input":[]}`:                           "input is empty",
		`{"input":[{"type":"web_search_call"}]}`: "input[0].type",
		`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`:                "text only",
		`{"input":[{"role":"tool","content":"x"}]}`:                                     "input[0].role",
		`{"input":[{"type":"function_call","call_id":"c","arguments":"{}"}]}`:           "input[0].name is not given",
		`{"input":[{"type":"function_call_output","call_id":"c"}]}`:                     "input[0].output is not given",
		`{"input":[{"type":"function_call_output","output":[{"type":"input_image"}]}]}`: "text only",
		`{"input":7}`:                                      "input",
		`{"input":"a","instructions":["x"]}`:               "instructions",
		`{"input":[{"role":"user"}]}`:                      "input[0].content is not given",
		`{"input":[{"role":"user","content":"a"},"text"]}`: "input[1]",
	} {
		if _, err := parsed(t, body).responsesInput(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", body, err, word)
		}
	}
}

func TestAnthropicMessages(t *testing.T) {
	f := parsed(t, `{"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Now."}],"messages":[
		{"role":"user","content":"Pick."},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"I pick."},{"type":"tool_use","id":"t1","name":"pick","input":{"size":"s"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"done"}]},{"type":"tool_result","tool_use_id":"t2","is_error":true},{"type":"text","text":"And?"},{"type":"document","source":{"type":"text","data":"doc"}}]}]}`)
	got, err := f.anthropicMessages()
	if err != nil {
		t.Fatal(err)
	}
	want := []chat.Message{
		{Role: "system", Content: "Be brief.\nNow."}, {Role: "user", Content: "Pick."},
		{Role: "assistant", Reasoning: "Hm.", Parts: []chat.ContentPart{{Type: "text", Text: "I pick."}}, ToolCalls: []chat.ToolCall{{ID: "t1", Name: "pick", Arguments: `{"size":"s"}`}}},
		{Role: "tool", ToolCallID: "t1", Name: "pick", Content: "done"}, {Role: "tool", ToolCallID: "t2", Content: "error"},
		{Role: "user", Parts: []chat.ContentPart{{Type: "text", Text: "And?"}, {Type: "text", Text: "doc"}}},
	}
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("%s, want\n%s", a, b)
	}
	for body, word := range map[string]string{
		`{"messages":[{"role":"tool","content":"x"}]}`:                                             "messages[0].role",
		`{"messages":[{"role":"user"}]}`:                                                           "messages[0].content",
		`{"messages":[{"role":"user","content":[{"type":"image"}]}]}`:                              "text only",
		`{"messages":[{"role":"user","content":[{"type":"tool_use","name":"f"}]}]}`:                "messages[0].content[0].type",
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"x"}]}]}`:             "name is not given",
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":1}]}]}`: "input",
		`{"messages":{}}`: "messages",
		`{"messages":[{"role":"user","content":"a"}],"system":3}`: "system",
	} {
		if _, err := parsed(t, body).anthropicMessages(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", body, err, word)
		}
	}
}

// TestDialects has the three chat dialects answer alike, whole and streamed.
func TestDialects(t *testing.T) {
	_, url := serveModel(t, Options{}, engine.Options{Path: tinyMoE})
	const q = "What is the capital of France?"
	chatBody := `{"temperature":0,"max_tokens":40,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"` + q + `"}]}`
	v := fetch(t, "POST", url+"/v1/chat/completions", chatBody)
	want := v["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)["content"].(string)
	if !strings.Contains(want, "Paris") {
		t.Fatalf("the chat says %q", want)
	}
	responses := `{"temperature":0,"max_output_tokens":40,"instructions":"Be brief.","input":"` + q + `"`
	r := fetch(t, "POST", url+"/v1/responses", responses+"}")
	if got := r["output"].([]any)[0].(map[string]any)["content"].([]any)[0].(map[string]any)["text"]; got != want {
		t.Errorf("Responses say %q, want %q", got, want)
	}
	text := ""
	es := streamed(t, url+"/v1/responses", responses+`,"stream":true}`)
	for _, e := range es {
		if e.name == "response.output_text.delta" {
			text += e.data["delta"].(string)
		}
	}
	if text != want || es[0].name != "response.created" || es[1].name != "response.in_progress" || es[len(es)-1].name != "response.completed" {
		t.Errorf("the stream of Responses says %q: %s", text, names(es))
	}
	messages := `{"temperature":0,"max_tokens":40,"system":"Be brief.","messages":[{"role":"user","content":"` + q + `"}]`
	m := fetch(t, "POST", url+"/v1/messages", messages+"}")
	if got := m["content"].([]any)[0].(map[string]any)["text"]; got != want || m["stop_reason"] != "end_turn" || m["stop_sequence"] != nil {
		t.Errorf("Messages say %v", m)
	}
	text = ""
	es = streamed(t, url+"/v1/messages", messages+`,"stream":true}`)
	for _, e := range es {
		if d, ok := e.data["delta"].(map[string]any); ok && d["type"] == "text_delta" {
			text += d["text"].(string)
		}
	}
	if text != want || es[0].name != "message_start" || es[len(es)-1].name != "message_stop" {
		t.Errorf("the stream of Messages says %q: %s", text, names(es))
	}
	// The prompt was there already: all but its last token is cached, and not counted as input.
	n := int(fetch(t, "POST", url+"/v1/messages/count_tokens", messages+"}")["input_tokens"].(float64))
	start := es[0].data["message"].(map[string]any)["usage"].(map[string]any)
	if in, read := start["input_tokens"].(float64), start["cache_read_input_tokens"].(float64); in < 1 || int(in+read) != n || read < 1 {
		t.Errorf("usage at the start %v, the prompt has %d tokens", start, n)
	}
	if k := int(fetch(t, "POST", url+"/v1/responses/input_tokens", responses+"}")["input_tokens"].(float64)); k != n {
		t.Errorf("%d tokens for Responses, %d for Messages", k, n)
	}
	stop := fetch(t, "POST", url+"/v1/messages", messages+`,"stop_sequences":["Paris"]}`)
	if stop["stop_reason"] != "stop_sequence" || stop["stop_sequence"] != "Paris" {
		t.Errorf("a stop sequence: %v", stop)
	}
	if short := fetch(t, "POST", url+"/v1/messages", strings.Replace(messages, "40", "2", 1)+"}"); short["stop_reason"] != "max_tokens" {
		t.Errorf("two tokens: %v", short)
	}
	if short := fetch(t, "POST", url+"/v1/responses", strings.Replace(responses, "40", "2", 1)+"}"); short["status"] != "completed" || fmt.Sprint(short["incomplete_details"]) != "map[reason:max_output_tokens]" {
		t.Errorf("two tokens: %v", short)
	}
}

func TestDialectsRefuse(t *testing.T) {
	_, url := serveModel(t, Options{}, engine.Options{Path: randomModel})
	msg := `"messages":[{"role":"user","content":"a"}]`
	tool := `"tools":[{"name":"f","input_schema":{"type":"object"}}]`
	for _, c := range []struct{ path, body, word string }{
		{"/v1/responses", `{"input":"a","previous_response_id":"resp_1"}`, "previous_response_id"},
		{"/v1/responses", `{"input":"a","background":true}`, "background"},
		{"/v1/responses", `{"input":"a","max_output_tokens":-5}`, "-5"},
		{"/v1/responses", `{"input":"a","temperature":"hot"}`, "temperature"},
		{"/v1/responses", `{"input":"a","text":{"format":{"type":"xml"}}}`, "xml"},
		{"/v1/responses", `{"input":"a","text":{"format":{"type":"json_schema","name":"x"}}}`, "schema is not given"},
		{"/v1/responses", `{"input":"a","tools":[{"type":"function"}]}`, "name is not given"},
		{"/v1/responses", `{"input":"a","tools":[{"type":"function","name":"f","parameters":[]}]}`, "parameters"},
		{"/v1/responses", `{"input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"}}`, `"g"`},
		{"/v1/responses", `{"input":"a"`, "JSON"},
		{"/v1/messages", `{}`, "messages is not given"},
		{"/v1/messages", `{` + msg + `,"tool_choice":{"type":"any"}}`, "no tools"},
		{"/v1/messages", `{` + msg + `,` + tool + `,"tool_choice":{"type":"tool","name":"g"}}`, `"g"`},
		{"/v1/messages", `{` + msg + `,` + tool + `,"tool_choice":{"type":"maybe"}}`, "maybe"},
		{"/v1/messages", `{` + msg + `,"tools":[{"input_schema":{}}]}`, "name"},
		{"/v1/messages", `{` + msg + `,"thinking":{"type":"enabled","budget_tokens":-2}}`, "-2"},
		{"/v1/messages", `{` + msg + `,"thinking":{"type":"deep"}}`, "deep"},
		{"/v1/messages", `{` + msg + `,"output_config":{"format":{"type":"xml"}}}`, "xml"},
		{"/v1/messages", `{` + msg + `,"output_format":{"type":"json_schema"}}`, "schema is not given"},
		{"/v1/messages", `{` + msg + `,"stop_sequences":[1]}`, "stop"},
		{"/infill", `{"input_suffix":"a"}`, "input_prefix"},
		{"/infill", `{"input_prefix":"a","input_suffix":7}`, "input_suffix"},
		{"/infill", `{"input_prefix":"a","input_suffix":"b","input_extra":"x"}`, "input_extra"},
		{"/infill", `{"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":"x"}]}`, "input_extra[0].text"},
	} {
		refused(t, "POST", url+c.path, c.body, 400, c.word)
	}
	long, err := json.Marshal(strings.Repeat("long ", 2000))
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{"", `,"stream":true`} { // the first result is an error: a plain reply
		e := refused(t, "POST", url+"/v1/responses", `{"input":`+string(long)+stream+`}`, 400)
		if e["type"] != "exceed_context_size_error" || e["n_ctx"] != float64(1024) || e["n_prompt_tokens"].(float64) <= 1024 {
			t.Errorf("%v", e)
		}
		refused(t, "POST", url+"/v1/messages", `{"messages":[{"role":"user","content":`+string(long)+`}]`+stream+`}`, 400)
	}
	if v := fetch(t, "POST", url+"/v1/messages/count_tokens", `{"messages":[{"role":"user","content":`+string(long)+`}]}`); v["input_tokens"].(float64) < 2000 {
		t.Errorf("a long prompt has %v", v)
	}
	for _, path := range []string{"/v1/embeddings", "/embeddings", "/embedding", "/rerank", "/v1/reranking", "/metrics"} {
		method := "POST"
		if path == "/metrics" {
			method = "GET"
		}
		if e := refused(t, method, url+path, `{"input":"a"}`, 501); e["type"] != "not_supported_error" {
			t.Errorf("%s: %v", path, e)
		}
	}
}

func TestInfill(t *testing.T) {
	s, url := serveModel(t, Options{}, engine.Options{Path: randomModel})
	m := s.model.Load()
	show := func(ids []int32, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m.promptText(ids)
	}
	bos := ""
	if tok := m.Engine.Tokenizer(); tok.AddBOS() {
		bos = tok.Text(tok.BOS())
	}
	extras := []extra{{"a.go", "package a\n"}, {"b.go", "<|fim_middle|>"}}
	if got, want := show(m.gap("pre", "suf", "p", nil, 8, false)), bos+"<|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>p"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := show(m.gap("pre", "suf", "", nil, 8, true)), bos+"<|fim_suffix|>suf<|fim_prefix|>pre<|fim_middle|>"; got != want {
		t.Errorf("suffix first: %q, want %q", got, want)
	}
	got := show(m.gap("pre", "suf", "", extras, 8, false))
	front := ""
	if fim := m.Engine.Tokenizer().FIM(); fim.Repo >= 0 && fim.File >= 0 {
		sep := m.Engine.Tokenizer().Text(fim.File)
		front = m.Engine.Tokenizer().Text(fim.Repo) + "project\n" + sep + "a.go\npackage a\n" + sep + "b.go\n<|fim_middle|>" + sep + "filename\n"
	} else if fim.File < 0 {
		front = "package a\n<|fim_middle|>"
	}
	if want := front + bos + "<|fim_prefix|>pre<|fim_suffix|>suf<|fim_middle|>"; got != want {
		t.Errorf("with other files: %q, want %q", got, want)
	}
	// Text of the user's never is a token of the vocabulary's marks.
	ids, err := m.gap("<|fim_suffix|>", "x", "", extras, 8, false)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, id := range ids {
		if fim := m.Engine.Tokenizer().FIM(); id == fim.Prefix || id == fim.Suffix || id == fim.Middle {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d marks in the prompt, want 3", n)
	}
	// What is too long is cut: the end of the prefix and the beginning of the suffix stay.
	ids, err = m.gap(strings.Repeat("a ", 5000)+"END", "BEGIN"+strings.Repeat(" z", 5000), "", []extra{{"x", strings.Repeat("other ", 3000)}}, 16, false)
	if err != nil {
		t.Fatal(err)
	}
	if text := m.promptText(ids); len(ids) >= m.Context-32 || !strings.Contains(text, "END<|fim_suffix|>BEGIN") {
		t.Errorf("%d tokens of %d, %.80q", len(ids), m.Context, text[max(0, len(text)-200):])
	}
	body := `{"input_prefix":"func f() {","input_suffix":"}","n_predict":4,"temperature":0,"input_extra":[{"text":"x"}]`
	v := fetch(t, "POST", url+"/infill", body+"}")
	text := ""
	for _, e := range streamed(t, url+"/infill", body+`,"stream":true}`) {
		text += e.data["content"].(string)
	}
	if v["stop"] != true || v["content"] != text || v["tokens_predicted"].(float64) < 1 {
		t.Errorf("%v, streamed %q", v, text)
	}
	_, url = serveModel(t, Options{}, engine.Options{Path: tinyMoE})
	refused(t, "POST", url+"/infill", body+"}", 501, "no tokens for filling a gap")
}

func TestNormalize(t *testing.T) {
	for how, want := range map[int][]float32{-1: {3, -4}, 0: {24570, -32760}, 1: {3. / 7, -4. / 7}, 2: {0.6, -0.8}} {
		v := []float32{3, -4}
		if normalize(v, how); !slices.Equal(v, want) {
			t.Errorf("%d: %v, want %v", how, v, want)
		}
	}
	zero := []float32{0, 0}
	if normalize(zero, 2); zero[0] != 0 {
		t.Errorf("zeros became %v", zero)
	}
	if got := base64Floats([]float32{1, -2}); got != "AACAPwAAAMA=" {
		t.Errorf("base64 %q", got)
	}
}
