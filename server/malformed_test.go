package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"terrace/plan"
	"terrace/web"
)

// sound are requests that are right, one or more of each route: what mutants are made of.
var sound = []struct{ method, path, body string }{
	{"GET", "/health", ""}, {"GET", "/v1/models", ""}, {"GET", "/props", ""}, {"GET", "/slots?fail_on_no_slot=1", ""}, {"GET", "/metrics", ""},
	{"GET", "/lora-adapters", ""}, {"GET", "/v1/tiers?detail=experts", ""}, {"GET", "/v1/plan?ram=8589934592,17179869184&budget=2147483648", ""},
	{"GET", "/", ""}, {"GET", "/app.js", ""}, {"GET", "/ui.json", ""}, {"OPTIONS", "/v1/chat/completions", ""},
	{"POST", "/completion", `{"prompt":"Hi there","n_predict":4,"temperature":0.7,"top_k":5,"seed":3,"stop":["x","yz"],"n_probs":2,"logit_bias":[[5,1.5],["a",false]],"samplers":["top_k","temperature"],"stream":true,"timings_per_token":true,"return_progress":true}`},
	{"POST", "/completion", `{"prompt":["a",[1,2,3],{"prompt_string":"b"}],"n_predict":3,"response_fields":["content","timings/prompt_n"],"id_slot":-1,"cache_prompt":false,"n":2,"t_max_predict_ms":100,"n_indent":1,"dry_multiplier":0.5,"dry_sequence_breakers":["\n","x"]}`},
	{"POST", "/completion", `{"prompt":"a","n_predict":8,"grammar":"root ::= \"a\" [b-d]{1,3} (x | \"e\")*\nx ::= [0-9]+"}`},
	{"POST", "/completion", `{"prompt":"a","n_predict":20,"json_schema":{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-c]{1,4}$"},"b":{"enum":[1,null,"x"]},"c":{"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":2}},"required":["a"],"$defs":{"n":{"type":"integer","minimum":-3,"maximum":12}}}}`},
	{"POST", "/v1/completions", `{"prompt":[5,6,7],"max_tokens":3,"logprobs":2,"stream":true,"stream_options":{"include_usage":true}}`},
	{"POST", "/v1/chat/completions", `{"messages":[{"role":"system","content":"be short"},{"role":"user","content":[{"type":"text","text":"hello"}]}],"max_tokens":4,"logprobs":true,"top_logprobs":2,"stream":true,"chat_template_kwargs":{"enable_thinking":false},"reasoning_format":"auto"}`},
	{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"x\"}"}}]},{"role":"tool","tool_call_id":"1","content":"sun"}],"tools":[{"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}],"tool_choice":"auto","parallel_tool_calls":true,"max_tokens":6}`},
	{"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"w?"}],"tools":[{"type":"function","function":{"name":"ping","parameters":{"type":"object","properties":{}}}}],"tool_choice":{"type":"function","function":{"name":"ping"}},"max_tokens":30}`},
	{"POST", "/chat/completions", `{"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":"I"}],"continue_final_message":true,"max_tokens":3,"n":2,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"boolean"}}}}`},
	{"POST", "/v1/chat/completions/input_tokens", `{"messages":[{"role":"user","content":"w?"}]}`},
	{"POST", "/v1/chat/completions/control", `{"id":"chatcmpl-x","action":"reasoning_end"}`},
	{"POST", "/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"}],"instructions":"i","max_output_tokens":4,"stream":true,"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}],"reasoning":{"effort":"low"},"text":{"format":{"type":"text"}}}`},
	{"POST", "/v1/responses/input_tokens", `{"input":"hi"}`},
	{"POST", "/v1/messages", `{"model":"m","max_tokens":4,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"tool_result","tool_use_id":"t","content":"x"}]}],"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}],"tool_choice":{"type":"auto"},"stream":true,"stop_sequences":["q"],"thinking":{"type":"enabled","budget_tokens":2}}`},
	{"POST", "/v1/messages/count_tokens", `{"messages":[{"role":"user","content":"hi"}]}`},
	{"POST", "/infill", `{"input_prefix":"a","input_suffix":"b","input_extra":[{"text":"x","filename":"f"}],"prompt":"p","n_predict":2}`},
	{"POST", "/v1/embeddings", `{"input":["a","b"],"encoding_format":"base64"}`}, {"POST", "/embedding", `{"content":"a","embd_normalize":2}`},
	{"POST", "/v1/rerank", `{"query":"a","documents":["b","c"],"top_n":1}`},
	{"POST", "/tokenize", `{"content":["a",5,"b"],"add_special":true,"with_pieces":true}`}, {"POST", "/detokenize", `{"tokens":[1,2,3]}`},
	{"POST", "/apply-template", `{"messages":[{"role":"user","content":"hi"}]}`},
	{"POST", "/slots/0?action=save", `{"filename":"a.bin"}`}, {"POST", "/slots/1?action=restore", `{"filename":"a.bin"}`}, {"POST", "/slots/2?action=erase", ``},
	{"POST", "/props", `{}`}, {"POST", "/lora-adapters", `[]`}, {"POST", "/v1/tiers/budget", `{"ram":"auto"}`},
}

// odd are values that stand where others are wanted.
var odd = []string{
	`null`, `true`, `-1`, `0`, `1e400`, `-1e308`, `1.5`, `2147483648`, `-9223372036854775809`, `18446744073709551616`, `""`, `"\u0000"`, `"\ud800"`, "\"\xff\xfe\"",
	`[]`, `{}`, `[[[[[[]]]]]]`, `{"":{"":{"":null}}}`, `"../../../etc/passwd"`, `"<|im_end|>"`, `"{{ 1 }}"`, `[null]`, `["a",1,{}]`, `NaN`, `"NaN"`, `[0,0,0,0,0,0,0,0]`,
	`"auto"`, `999999999999`, `"🙂🙂"`, `{"type":"object"}`, `{"$ref":"#"}`, `"^(a+)+$"`, `"root ::= root"`, `0.0000001`, `"a.bin\u0000"`, `{"type":"function","function":{"name":"f"}}`,
}

// oddQueries are queries, and values and ends of such, that no route expects.
var oddQueries = []string{
	"", "%zz", "%", "%00", "=", "&&&", ";", "a;b", "+", "-1", "0", "1,,2", ",", "1e10", "0x10", "9223372036854775807", "18446744073709551616", "NaN", "\x80\xff", "%ff%fe", "٣", "\"", "1&ram=2", "1&budget=1&action=save", "save&action=erase",
	strings.Repeat("1,", 80), strings.Repeat("a", 5000), strings.Repeat("&x=1", 2000), "1125899906842624,1125899906842624", "null", "../../x",
}

// tree is a JSON value that keeps its members' order, so that mutants are the same on each run.
type tree struct {
	kind  byte // '{', '[' or 0
	keys  []string
	elems []*tree
	text  string
}

func parseTree(raw json.RawMessage) *tree {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value func() *tree
	value = func() *tree {
		tok, err := d.Token()
		if err != nil {
			panic(err)
		}
		if b, ok := tok.(json.Delim); ok {
			t := &tree{kind: byte(b)}
			for d.More() {
				if b == '{' {
					k, _ := d.Token()
					t.keys = append(t.keys, k.(string))
				}
				t.elems = append(t.elems, value())
			}
			d.Token()
			return t
		}
		b, _ := json.Marshal(tok)
		return &tree{text: string(b)}
	}
	return value()
}

func (t *tree) write(b *strings.Builder) {
	switch t.kind {
	case 0:
		b.WriteString(t.text)
		return
	case '{', '[':
		b.WriteByte(t.kind)
	}
	for i, e := range t.elems {
		if i > 0 {
			b.WriteByte(',')
		}
		if t.kind == '{' {
			k, _ := json.Marshal(t.keys[i])
			b.Write(k)
			b.WriteByte(':')
		}
		e.write(b)
	}
	b.WriteByte(t.kind + 2)
}

func (t *tree) all(list []*tree) []*tree {
	list = append(list, t)
	for _, e := range t.elems {
		list = e.all(list)
	}
	return list
}

// badRequest is a request as it goes over the wire, in parts between which the client waits.
type badRequest struct {
	what  string
	parts []string
	half  bool // the client ends its side after them
	gone  bool // the client leaves after them and reads nothing
}

// malform makes the nth malformed request, always the same one.
func malform(n int, host string) badRequest {
	r := rand.New(rand.NewPCG(uint64(n), 77))
	s := sound[r.IntN(len(sound))]
	method, path, body := s.method, s.path, s.body
	what := "bytes"
	headers := "Host: " + host + "\r\nContent-Type: application/json\r\n"
	length := true
	junk := func(k int) string {
		b := make([]byte, k)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	cut := func(msg string) []string {
		var out []string
		for range r.IntN(4) {
			k := r.IntN(len(msg) + 1)
			out, msg = append(out, msg[:k]), msg[k:]
		}
		return append(out, msg)
	}
	switch kind := r.IntN(20); {
	case kind < 11 && body != "": // the JSON's structure
		what = "structure"
		t := parseTree(json.RawMessage(body))
		for range 1 + r.IntN(3) {
			nodes := t.all(nil)
			x := nodes[r.IntN(len(nodes))]
			switch k := r.IntN(6); {
			case k < 3 || len(x.elems) == 0:
				if x.kind != 0 && k > 0 && x == t {
					continue // the whole body stays an object, mostly
				}
				*x = tree{text: odd[r.IntN(len(odd))]}
			case k == 3:
				i := r.IntN(len(x.elems))
				x.elems = slices.Delete(x.elems, i, i+1)
				if x.kind == '{' {
					x.keys = slices.Delete(x.keys, i, i+1)
				}
			case k == 4: // twice, or under another's name
				i := r.IntN(len(x.elems))
				x.elems = append(x.elems, x.elems[i], &tree{text: odd[r.IntN(len(odd))]})
				if x.kind == '{' {
					x.keys = append(x.keys, x.keys[r.IntN(len(x.keys))], pick("stream", "n_predict", "max_tokens", "tools", "json_schema", "grammar", "stop", "messages", "x"))
				}
			default:
				x.elems[r.IntN(len(x.elems))] = nodes[r.IntN(len(nodes))].copied()
			}
		}
		var b strings.Builder
		t.write(&b)
		body = b.String()
	case kind < 13 && body != "": // the body's bytes
		what = "body"
		b := []byte(body)
		for range 1 + r.IntN(5) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		body = string(b[:len(b)-r.IntN(len(b))*r.IntN(2)])
	case kind < 14 && body != "":
		what = "nesting"
		k := 1 + r.IntN(3000)
		body = pick(strings.Repeat(`{"a":`, k), strings.Repeat("[", k), strings.Repeat(`{"prompt":[`, k), body[:len(body)-1]+`,"json_schema":`+strings.Repeat(`{"not":`, k)+`{}`+strings.Repeat("}", k)+"}")
	case kind < 14 && strings.Contains(path, "?"):
		what = "query"
		base, query, _ := strings.Cut(path, "?")
		pairs := strings.Split(query, "&")
		for range 1 + r.IntN(2) {
			i := r.IntN(len(pairs))
			name, _, _ := strings.Cut(pairs[i], "=")
			x := oddQueries[r.IntN(len(oddQueries))]
			pairs[i] = pick(name+"="+x, name+"="+x, pairs[i]+x, pairs[i]+","+x, name, x, x+"="+x, pairs[i]+"&"+pairs[i])
		}
		path = base + "?" + strings.Join(pairs, "&")
	case kind < 16:
		what = "path"
		path = pick(path+"/", "//"+path, path+"?%zz", path+"?action=%00", "/../.."+path, strings.ToUpper(path), path+"%2f..", "/slots/"+junkPath(r), "/slots/-1?action=save", "/slots/99999999999999999999?action=erase", "/v1"+path, "/"+strings.Repeat("a", r.IntN(9000)), path+"#x", "*", "http://other"+path, "/slots/0?action=save&action=restore")
		method = pick(method, method, "PUT", "DELETE", "HEAD", "PATCH", "TRACE", "get", "CONNECT")
	case kind < 18:
		what = "headers"
		headers = pick("Host: "+host+"\r\nContent-Type: text/plain\r\n", "Host: evil.example\r\nOrigin: http://evil.example\r\n", "Host: "+host+"\r\nOrigin: null\r\n", "Host: "+host+"\r\nOrigin: http://"+host+"@evil.example\r\n",
			"", "Host: a\r\nHost: b\r\n", "Host: "+host+"\r\nX: "+strings.Repeat("y", r.IntN(70000))+"\r\n", "Host: "+host+"\r\n"+strings.Repeat("A: b\r\n", r.IntN(3000)), "Host: "+host+"\r\nExpect: 100-continue\r\n",
			"Host: "+host+"\r\nAuthorization: "+strings.Repeat("z", r.IntN(9000))+"\r\n", "Host: "+host+"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", "Host: "+host+"\r\n folded\r\n", "Host: "+host+"\r\nA\x00: b\r\n", "Host: \x01\r\n", "Host: "+host+"\r\nContent-Encoding: gzip\r\n")
	case kind < 19:
		what = "length"
		length = false
		headers += pick("Content-Length: "+strconv.Itoa(len(body)+1+r.IntN(1000)), "Content-Length: "+strconv.Itoa(r.IntN(len(body)+1)), "Content-Length: -1", "Content-Length: 99999999999999", "Content-Length: 70000000000", "Content-Length: 5\r\nContent-Length: 6",
			"Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4", "Transfer-Encoding: gzip", "Content-Length: 0x10") + "\r\n"
		if strings.Contains(headers, "chunked") && r.IntN(2) == 0 {
			body = pick(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body), fmt.Sprintf("%x\r\n%s", len(body)+5, body), "ffffffffffffffff\r\nx", "-5\r\nabc", fmt.Sprintf("%x;%s\r\n%s\r\n0\r\nT: x\r\n\r\n", len(body), strings.Repeat("e", r.IntN(3000)), body))
		}
	default:
		what = "no HTTP"
		return badRequest{what, []string{pick(junk(1+r.IntN(300)), "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST /completion HTTP/1.1\r\nHost: a\r\n", strings.Repeat("\r\n", 50)+"x\r\n\r\n", "GET /health HTTP/1.0\r\n\r\n")}, true, false}
	}
	if length {
		headers += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	msg := method + " " + path + " HTTP/1.1\r\n" + headers + "\r\n" + body
	return badRequest{what, cut(msg), true, r.IntN(12) == 0}
}

func (t *tree) copied() *tree {
	c := &tree{kind: t.kind, keys: slices.Clone(t.keys), text: t.text}
	for _, e := range t.elems {
		c.elems = append(c.elems, e.copied())
	}
	return c
}

func junkPath(r *rand.Rand) string {
	return []string{"..", "%2e%2e%2f", "0/0", " ", "0x1", "٣", "0%00", "+1", "1e0", "-0"}[r.IntN(10)] + "?action=save"
}

// send sends the request on a connection of its own and checks what comes back; "" if it is what may be.
func (q *badRequest) send(addr string) (class, fault string) {
	c, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return "", err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	for _, p := range q.parts {
		if _, err := io.WriteString(c, p); err != nil {
			break // it has answered already, perhaps
		}
	}
	if q.gone {
		return "gone", ""
	}
	in := bufio.NewReader(c)
	method, _, _ := strings.Cut(strings.Join(q.parts, ""), " ")
	first := make(chan struct{})
	var halved atomic.Bool // the client has ended its side, which stops a stream
	if q.half {            // as soon as there is an answer, or after a moment, there will be nothing more from the client
		time.AfterFunc(300*time.Millisecond, func() {
			select {
			case <-first:
			default:
				halved.Store(true)
				c.(*net.TCPConn).CloseWrite()
			}
		})
	}
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	close(first)
	if err != nil {
		if strings.Contains(err.Error(), "EOF") || strings.Contains(err.Error(), "reset") {
			return "closed", "" // the request was never whole
		}
		return "", "no answer: " + err.Error()
	}
	if res.StatusCode == 100 {
		if res, err = http.ReadResponse(in, &http.Request{Method: method}); err != nil {
			return "closed", ""
		}
	}
	b, err := io.ReadAll(res.Body)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		return "", fmt.Sprintf("%d, body breaks off: %v %.200q", res.StatusCode, err, b)
	}
	class, fault = judge(method, res, b)
	if halved.Load() && strings.HasPrefix(fault, unended) { // its answer began while it was leaving
		return "left", ""
	}
	return class, fault
}

// unended is the fault of a stream that breaks off.
const unended = "a stream ends with "

var kinds = map[int][]string{
	400: {"invalid_request_error", "exceed_context_size_error"}, 401: {"authentication_error"}, 403: {"permission_error"}, 404: {"not_found_error"}, 413: {"invalid_request_error"},
	501: {"not_supported_error"}, 503: {"unavailable_error"}, 431: {"invalid_request_error"}, 505: {"invalid_request_error"}, 417: {"invalid_request_error"},
}

// judge says what an answer is, and what is wrong with it.
func judge(method string, res *http.Response, b []byte) (class, fault string) {
	isError := func(data []byte, status int) string {
		var e struct {
			Error struct {
				Code    int
				Message string
				Type    string
			}
		}
		if err := json.Unmarshal(data, &e); err != nil || e.Error.Code != status || !slices.Contains(kinds[status], e.Error.Type) || e.Error.Message == "" || strings.Contains(e.Error.Message, "internal error") {
			return fmt.Sprintf("%d %.300q is no error object that may be", status, data)
		}
		return ""
	}
	if method == "HEAD" || res.StatusCode == 200 && len(b) == 0 {
		if method != "HEAD" && method != "OPTIONS" {
			return "", "an empty answer"
		}
		return "empty", ""
	}
	if res.StatusCode != 200 {
		return strconv.Itoa(res.StatusCode), isError(b, res.StatusCode)
	}
	kind := res.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/json"):
		if !json.Valid(b) {
			return "", fmt.Sprintf("200 with no JSON: %.200q", b)
		}
	case strings.HasPrefix(kind, "text/event-stream"):
		last := ""
		for _, line := range strings.Split(string(b), "\n") {
			d, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				if line != "" && line != ":" && !strings.HasPrefix(line, "event: ") {
					return "", fmt.Sprintf("line %.200q in a stream", line)
				}
				continue
			}
			if d != "[DONE]" && !json.Valid([]byte(d)) {
				return "", fmt.Sprintf("event %.200q in a stream", d)
			}
			last = d
		}
		ended := last == "[DONE]" || strings.Contains(last, `"stop":true`) || strings.Contains(last, "message_stop") || strings.Contains(last, "response.completed") || strings.Contains(last, `"error":`) ||
			strings.Contains(last, "finish_reason") || strings.HasPrefix(last, "{") && len(last) < 400 // response_fields may leave nothing of it
		if !ended {
			return "", fmt.Sprintf("%s%.300q", unended, last)
		}
		return "stream", ""
	case strings.HasPrefix(kind, "text/plain; version=0.0.4"):
	case strings.HasPrefix(kind, "text/html"), strings.HasPrefix(kind, "text/javascript"): // the page
		if res.Header.Get("Content-Security-Policy") != web.Policy || method != "GET" {
			return "", fmt.Sprintf("%s answers %.100q, policy %q", method, b, res.Header.Get("Content-Security-Policy"))
		}
		return "page", ""
	default:
		return "", fmt.Sprintf("200 of type %q: %.100q", kind, b)
	}
	return "200", ""
}

// TestMalformedRequests: an error object or a right answer for each of 20,000 malformed requests (600 but for
// TERRACE_EXACT=whole), over real connections; and between them what is right is answered as before.
func TestMalformedRequests(t *testing.T) {
	n := 600
	if os.Getenv("TERRACE_EXACT") == "whole" {
		n = 20000
	}
	s, err := New(Options{SaveSlots: true, Metrics: true, Props: true, Embed: true, Rerank: true, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	model := openModel(t)
	model.Planner = planner{e: model.Engine, here: plan.Size{RAM: 8 << 30}}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln, func(context.Context) (*Model, error) { return model, nil }) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if n, b := s.gate.load(); n != 0 || b != 0 {
			t.Errorf("%d requests and %d bytes are still held at the end", n, b)
		}
	}()
	h := &host{T: t, s: s, url: "http://" + addr}
	for h.call("GET", "/health", nil).status != 200 {
		time.Sleep(5 * time.Millisecond)
	}
	control := func() string {
		return fmt.Sprint(h.ok("/completion", m{"prompt": "The sun", "n_predict": 12, "temperature": 0, "seed": 1, "cache_prompt": false}).json["content"])
	}
	want := control()
	classes := map[string]int{}
	type done struct {
		i            int
		what         string
		class, fault string
		took         time.Duration
	}
	const clients = 6
	work, results := make(chan int), make(chan done, clients)
	for range clients {
		go func() {
			for i := range work {
				q := malform(i, addr)
				start := time.Now()
				class, fault := q.send(addr)
				results <- done{i, q.what, class, fault, time.Since(start)}
			}
		}()
	}
	go func() {
		for i := range n {
			work <- i
		}
		close(work)
	}()
	faults := 0
	for k := range n {
		d := <-results
		classes[d.class]++
		if d.fault != "" || d.took > 30*time.Second {
			if faults++; faults <= 20 {
				q := malform(d.i, addr)
				t.Errorf("request %d (%s) after %v: %s\n%.1500q", d.i, d.what, d.took, d.fault, strings.Join(q.parts, ""))
			}
		}
		if k%500 == 499 {
			if got := control(); got != want {
				t.Fatalf("after %d requests a right one is answered %q, want %q", k+1, got, want)
			}
		}
	}
	if got := control(); got != want {
		t.Errorf("at the end a right request is answered %q, want %q", got, want)
	}
	files, err := os.ReadDir(shared.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := checkFileName(f.Name()); err != nil || !f.Type().IsRegular() {
			t.Errorf("file %q beside the slots: %v", f.Name(), err)
		}
	}
	if classes["page"] == 0 {
		t.Error("no request led to the page")
	}
	t.Logf("%d requests, %d faults: %v", n, faults, classes)
}
