package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The kinds of requests of a load.
const (
	kindCompletion = "completion, stream"
	kindPlain      = "completion, plain"
	kindGrown      = "completion of tokens, grown" // a conversation that goes on, as token numbers
	kindChat       = "chat, stream"
	kindChatPlain  = "chat, plain"
	kindSchema     = "chat, schema"
	kindMessages   = "messages, stream"
	kindFresh      = "chat, new schema" // whose answer nobody knows before
)

var loadKinds = []string{kindCompletion, kindPlain, kindGrown, kindChat, kindChatPlain, kindSchema, kindMessages, kindFresh}

// loadCase is a question and the answer that a single client gets.
type loadCase struct {
	kind, path string
	n          int
	body       map[string]any
	stream     bool
	want       loadAnswer
}

// loadAnswer is what came of a request.
type loadAnswer struct {
	text   string
	tokens []int32 // of the native dialect
	finish string
	count  int           // tokens
	first  time.Duration // until the first piece of a stream; 0: none came
}

// differs says how another answer differs; "" if it does not.
func (a *loadAnswer) differs(b loadAnswer) string {
	switch {
	case !slices.Equal(a.tokens, b.tokens):
		n := 0
		for n < len(a.tokens) && n < len(b.tokens) && a.tokens[n] == b.tokens[n] {
			n++
		}
		return fmt.Sprintf("tokens differ from number %d on, of %d and %d", n, len(a.tokens), len(b.tokens))
	case a.text != b.text:
		return fmt.Sprintf("%.60q in place of %.60q", b.text, a.text)
	case a.finish != b.finish || a.count != b.count:
		return fmt.Sprintf("%d tokens that end by %q in place of %d by %q", b.count, b.finish, a.count, a.finish)
	}
	return ""
}

// leaving is when a client goes: after so many events, or so much time.
type leaving struct {
	events int // -1: never
	after  time.Duration
}

var errLeft = errors.New("the client left")

// statusError is an answer that is none.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %.160s", e.status, e.body) }

func isRefusal(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == http.StatusServiceUnavailable
}

// words are what questions are made of: a model need not know them.
var loadWords = strings.Fields("river stone garden winter letter captain silver morning island teacher village thunder copper window harbour candle meadow engine " +
	"history shadow bridge market forest planet doctor kitchen ribbon mountain lantern voyage apple number colour music paper friend water ocean")

// passage is a text of n words that depends on the seed alone.
func passage(seed, n int) string {
	var b strings.Builder
	x := uint32(seed)*2654435761 + 12345
	for i := range n {
		x = x*1664525 + 1013904223
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(loadWords[int(x>>16)%len(loadWords)])
	}
	return b.String()
}

// meet looks at the server and makes the questions.
func (l *loader) meet(ctx context.Context) error {
	var p struct {
		Alias    string `json:"model_alias"`
		Slots    int    `json:"total_slots"`
		Metrics  bool   `json:"endpoint_metrics"`
		Settings struct {
			Context int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := l.call(ctx, "GET", "/props", nil, &p); err != nil {
		return fmt.Errorf("%s: %w", l.c.URL, err)
	}
	if !p.Metrics {
		return fmt.Errorf("%s: the server answers no GET /metrics: start it with --metrics", l.c.URL)
	}
	r := l.rep
	r.Model, r.Slots, r.Context = p.Alias, p.Slots, p.Settings.Context
	room := r.Context/4 - l.c.Predict // a question, in tokens; a word has four at most
	if room < 16 {
		return fmt.Errorf("%s: a context of %d tokens is too small for questions with answers of %d", l.c.URL, r.Context, l.c.Predict)
	}
	for i := range l.c.Cases {
		words := min(12+i*29%97, room/4)
		shared := passage(1000+i%5, words/2) // some begin alike
		text := shared + " " + passage(i, words-words/2)
		k := &loadCase{n: i, body: map[string]any{"temperature": 0, "cache_prompt": true}}
		chat := []any{map[string]any{"role": "system", "content": shared}, map[string]any{"role": "user", "content": text}}
		switch i % 7 {
		case 0, 1, 2:
			k.path, k.body["prompt"], k.body["n_predict"], k.body["return_tokens"] = "/completion", text, l.c.Predict, true
			k.kind, k.stream = kindCompletion, true
			if i%7 == 1 {
				k.kind, k.stream = kindPlain, false
			}
			if i%7 == 2 {
				k.kind = kindGrown
			}
			k.body["ignore_eos"] = i%2 == 0
		case 3, 4, 5:
			k.path, k.body["messages"], k.body["max_tokens"] = "/v1/chat/completions", chat, l.c.Predict
			k.kind, k.stream = kindChat, true
			if i%7 == 4 {
				k.kind, k.stream = kindChatPlain, false
			}
			if i%7 == 5 {
				k.kind, k.stream = kindSchema, i%2 == 0
				k.body["response_format"] = schemaFormat(i % 3)
			}
			if k.stream {
				k.body["stream_options"] = map[string]any{"include_usage": true}
			}
		default:
			k.kind, k.stream, k.path = kindMessages, true, "/v1/messages"
			k.body["messages"], k.body["max_tokens"] = chat[1:], l.c.Predict
		}
		k.body["stream"] = k.stream
		l.cases = append(l.cases, k)
	}
	for _, k := range loadKinds {
		l.kinds[k] = &LoadKind{Kind: k}
	}
	l.bad = badRequests(r.Context)
	return nil
}

// schemaFormat is a response_format; each n has another.
func schemaFormat(n int) any {
	return map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "s", "schema": map[string]any{
		"type": "object", "additionalProperties": false, "required": []string{"name", fmt.Sprintf("count_%d", n)},
		"properties": map[string]any{"name": map[string]any{"type": "string", "maxLength": 6 + n%7}, fmt.Sprintf("count_%d", n): map[string]any{"type": "integer", "minimum": 0, "maximum": 99}},
	}}}
}

// alone asks every question while nothing else runs and nothing is cached.
func (l *loader) alone(ctx context.Context) error {
	for _, k := range l.cases {
		if k.kind == kindGrown { // the conversation so far, then its answer and more
			got, err := l.ask(ctx, k, nil, false)
			if err != nil {
				return fmt.Errorf("%s %d, alone: %w", k.kind, k.n, err)
			}
			var t struct {
				Tokens []int32 `json:"tokens"`
			}
			if err := l.call(ctx, "POST", "/tokenize", map[string]any{"content": k.body["prompt"], "add_special": true}, &t); err != nil {
				return err
			}
			more := append(append(slices.Clone(t.Tokens), got.tokens...), t.Tokens[:min(5, len(t.Tokens))]...)
			k.body["prompt"] = more
		}
		got, err := l.ask(ctx, k, nil, false)
		if err != nil {
			return fmt.Errorf("%s %d, alone: %w", k.kind, k.n, err)
		}
		k.want = got
	}
	return nil
}

// call sends a request that is not part of the load, and reads its answer; out may be nil.
func (l *loader) call(ctx context.Context, method, path string, body, out any) error {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			return err
		}
	}
	res, err := l.send(ctx, method, path, b)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return &statusError{res.StatusCode, string(text)}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

func (l *loader) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, l.c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if l.c.Key != "" {
		q.Header.Set("Authorization", "Bearer "+l.c.Key)
	}
	return l.http.Do(q)
}

// ask sends a question and reads its answer, or leaves.
func (l *loader) ask(ctx context.Context, k *loadCase, leave *leaving, cached bool) (a loadAnswer, err error) {
	body := k.body
	if !cached {
		body = map[string]any{}
		for n, v := range k.body {
			body[n] = v
		}
		body["cache_prompt"] = false
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if leave != nil {
		t := time.AfterFunc(leave.after, func() { cancel(errLeft) })
		defer t.Stop()
	}
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errLeft) {
			err = errLeft
		}
	}()
	start := time.Now()
	res, err := l.send(ctx, "POST", k.path, raw)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || !k.stream {
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return a, err
		}
		if res.StatusCode != http.StatusOK {
			return a, &statusError{res.StatusCode, string(text)}
		}
		return a, a.piece(k, text)
	}
	ended := false
	events := 0
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		data, ok := bytes.CutPrefix(in.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			ended = true
			continue
		}
		before := a.count + len(a.text) + len(a.tokens)
		if err := a.piece(k, data); err != nil {
			return a, err
		}
		if a.first == 0 && (a.count+len(a.text)+len(a.tokens) > before) {
			a.first = time.Since(start)
		}
		ended = ended || k.path != "/v1/chat/completions" && a.finish != ""
		if events++; leave != nil && events == leave.events {
			cancel(errLeft)
			return a, errLeft
		}
	}
	if err := in.Err(); err != nil {
		return a, err
	}
	if !ended {
		return a, fmt.Errorf("the stream broke off after %d events", events)
	}
	return a, nil
}

// piece adds an event, or a whole reply, to an answer.
func (a *loadAnswer) piece(k *loadCase, data []byte) error {
	var v struct {
		Error     json.RawMessage `json:"error"`
		Content   json.RawMessage `json:"content"`
		Tokens    []int32         `json:"tokens"`
		Stop      bool            `json:"stop"`
		StopType  string          `json:"stop_type"`
		Predicted int             `json:"tokens_predicted"`
		Choices   []struct {
			Delta, Message struct {
				Content   string `json:"content"`
				Reasoning string `json:"reasoning_content"`
			}
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage struct {
			Completion int `json:"completion_tokens"`
			Output     int `json:"output_tokens"`
		} `json:"usage"`
		Type  string `json:"type"`
		Delta struct {
			Text     string `json:"text"`
			Thinking string `json:"thinking"`
			Stop     string `json:"stop_reason"`
		} `json:"delta"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return fmt.Errorf("%.100q is no JSON: %w", data, err)
	}
	if v.Error != nil {
		return fmt.Errorf("an error in a stream: %.200s", v.Error)
	}
	switch k.path {
	case "/completion":
		var text string
		if err := json.Unmarshal(v.Content, &text); err != nil {
			return err
		}
		a.text += text
		if k.stream && v.Stop { // the last event repeats none of the tokens
			a.count, a.finish = v.Predicted, v.StopType
		} else if !k.stream {
			a.count, a.finish, a.tokens = v.Predicted, v.StopType, v.Tokens
			return nil
		}
		a.tokens = append(a.tokens, v.Tokens...)
	case "/v1/messages":
		a.text += v.Delta.Thinking + v.Delta.Text
		if v.Delta.Stop != "" {
			a.finish, a.count = v.Delta.Stop, v.Usage.Output
		}
	default:
		for _, c := range v.Choices {
			a.text += c.Delta.Reasoning + c.Message.Reasoning + c.Delta.Content + c.Message.Content
			if c.Finish != "" {
				a.finish = c.Finish
			}
		}
		if v.Usage.Completion > 0 {
			a.count = v.Usage.Completion
		}
	}
	return nil
}

// badRequest is one that no server can answer.
type badRequest struct {
	method, path, body string
	want               int
}

func badRequests(context int) []badRequest {
	post := func(path, body string) badRequest { return badRequest{"POST", path, body, http.StatusBadRequest} }
	return []badRequest{
		post("/completion", `{"prompt":"a`), post("/completion", `[1,2]`), post("/completion", ``), post("/completion", `{}`),
		post("/completion", `{"prompt":"a","temperature":"hot"}`), post("/completion", `{"prompt":[1,2,999999999]}`), post("/completion", `{"prompt":"a","grammar":"root ::= ("}`),
		post("/completion", `{"prompt":"a","n_predict":-7}`), post("/completion", `{"prompt":"a","id_slot":100000}`), post("/completion", strings.Repeat(`{"a":`, 300)),
		post("/completion", `{"prompt":"`+strings.Repeat("all the king's horses and all the king's men ", context)+`"}`),
		post("/v1/chat/completions", `{"messages":"hello"}`), post("/v1/chat/completions", `{"messages":[{"role":"wizard","content":"a"}]}`),
		post("/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"no such type"}}}}`),
		post("/v1/messages", `{"max_tokens":5}`), post("/v1/responses", `{"input":7}`), post("/v1/completions", "\x00\xff\xfe"),
		{"GET", "/no/such/route", "", http.StatusNotFound}, {"GET", "/completion", "", http.StatusNotFound},
	}
}

// sendBad sends something that must be refused, or breaks off within a body.
func (l *loader) sendBad(ctx context.Context, r randomInt) {
	i := r.IntN(len(l.bad) + 2)
	verdict := &l.rep.Bad.Refused
	if i >= len(l.bad) {
		if err := l.breakOff(i%2 == 0); err != nil {
			l.fault("a connection that breaks off: %v", err)
		}
		verdict = &l.rep.Bad.Broken
	} else {
		b := l.bad[i]
		res, err := l.send(ctx, b.method, b.path, []byte(b.body))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.fault("%s %s %.40q: %v", b.method, b.path, b.body, err)
			verdict = &l.rep.Bad.Wrong
		} else {
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != b.want && res.StatusCode != http.StatusServiceUnavailable {
				l.fault("%s %s %.40q: status %d, want %d: %.100s", b.method, b.path, b.body, res.StatusCode, b.want, text)
				verdict = &l.rep.Bad.Wrong
			}
		}
	}
	l.mu.Lock()
	l.rep.Bad.Requests++
	*verdict++
	l.mu.Unlock()
}

type randomInt interface{ IntN(n int) int }

// breakOff opens a connection and leaves within a body, or sends what is no HTTP.
func (l *loader) breakOff(noHTTP bool) error {
	u, err := url.Parse(l.c.URL)
	if err != nil {
		return err
	}
	if u.Scheme != "http" {
		return nil
	}
	c, err := net.DialTimeout("tcp", u.Host, 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	text := "POST /completion HTTP/1.1\r\nHost: " + u.Host + "\r\nContent-Length: 100000\r\n\r\n{\"prompt\":\"half of"
	if noHTTP {
		text = "\x16\x03\x01 this is no HTTP at all\r\n\r\n"
	}
	_, err = io.WriteString(c, text)
	return err
}

// sendFresh asks for an answer of a schema that was never sent before.
func (l *loader) sendFresh(ctx context.Context, r randomInt) {
	n := int(l.fresh.Add(1)) + 1000
	k := &loadCase{kind: kindFresh, path: "/v1/chat/completions", body: map[string]any{
		"messages": []any{map[string]any{"role": "user", "content": passage(n, 10)}}, "max_tokens": 4 + r.IntN(l.c.Predict), "response_format": schemaFormat(n), "temperature": 0.9, "seed": n,
	}}
	start := time.Now()
	got, err := l.ask(ctx, k, nil, true)
	if ctx.Err() != nil {
		return
	}
	broken := err == nil && got.finish == "stop" && !json.Valid([]byte(got.text))
	l.mu.Lock()
	x := l.kinds[kindFresh]
	x.Requests++
	switch {
	case isRefusal(err):
		x.Refused++
	case err != nil:
		x.Errors++
	case broken:
		x.Wrong++
	default:
		x.Same++ // as far as anybody can tell
		x.whole = append(x.whole, time.Since(start).Seconds()*1e3)
	}
	l.mu.Unlock()
	if broken {
		l.fault("%s: %.100q is no JSON", kindFresh, got.text)
	}
	if err != nil && !isRefusal(err) {
		l.fault("%s: %v", kindFresh, err)
	}
}
