package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"terrace/engine"
)

const (
	randomModel = "../testdata/protocol-random/protocol-random.gguf"
	slotContext = 2048
)

// shared is the model of all tests of the room, opened by the first that needs it.
var shared struct {
	eng   *engine.Engine
	sched *engine.Scheduler
	dir   string // of saved slots
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.sched != nil {
		shared.sched.Close(context.Background())
		shared.eng.Close()
		os.RemoveAll(shared.dir)
	}
	http.DefaultClient.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func openModel(t testing.TB) *Model {
	t.Helper()
	if shared.eng == nil {
		var err error
		if shared.eng, err = engine.Open(engine.Options{Path: randomModel, Context: slotContext, Slots: 4, RAM: 1 << 30}); err != nil {
			t.Fatal(err)
		}
		if shared.dir, err = os.MkdirTemp("", "terrace-slots-*"); err != nil {
			t.Fatal(err)
		}
		if shared.sched, err = shared.eng.NewScheduler(engine.SchedulerOptions{Slots: 4, SaveDir: shared.dir}); err != nil {
			t.Fatal(err)
		}
	}
	return &Model{Engine: shared.eng, Scheduler: shared.sched, Alias: "random"}
}

// host is a server under test.
type host struct {
	*testing.T
	s   *Server
	url string
	key string
}

func newHost(t *testing.T, o Options) *host {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(openModel(t)); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		h.Close()
		if n, b := s.gate.load(); n != 0 || b != 0 {
			t.Errorf("%d requests and %d bytes are still held at the end", n, b)
		}
	})
	out := &host{T: t, s: s, url: h.URL}
	if len(o.Keys) > 0 {
		out.key = o.Keys[0]
	}
	return out
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   string
	json   map[string]any
}

func (h *host) request(method, path string, body any, edit ...func(*http.Request)) *http.Request {
	h.Helper()
	var b io.Reader
	switch v := body.(type) {
	case nil:
	case string:
		b = strings.NewReader(v)
	default:
		j, err := json.Marshal(v)
		if err != nil {
			h.Fatal(err)
		}
		b = bytes.NewReader(j)
	}
	r, err := http.NewRequest(method, h.url+path, b)
	if err != nil {
		h.Fatal(err)
	}
	if h.key != "" {
		r.Header.Set("Authorization", "Bearer "+h.key)
	}
	for _, e := range edit {
		e(r)
	}
	return r
}

func (h *host) call(method, path string, body any, edit ...func(*http.Request)) reply {
	h.Helper()
	res, err := http.DefaultClient.Do(h.request(method, path, body, edit...))
	if err != nil {
		h.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		h.Fatal(err)
	}
	out := reply{status: res.StatusCode, header: res.Header, body: string(b)}
	json.Unmarshal(b, &out.json)
	return out
}

// ok posts and wants a 200.
func (h *host) ok(path string, body any) reply {
	h.Helper()
	r := h.call("POST", path, body)
	if r.status != 200 {
		h.Fatalf("%s: %d %s", path, r.status, r.body)
	}
	return r
}

// wantError checks an error object and gives its message.
func (r reply) wantError(t *testing.T, status int, kind string) string {
	t.Helper()
	e, _ := r.json["error"].(map[string]any)
	if r.status != status || e["type"] != kind || e["code"] != float64(status) || !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
		t.Fatalf("got %d %s, want %d %s", r.status, r.body, status, kind)
	}
	return fmt.Sprint(e["message"])
}

type m = map[string]any

// events reads a stream to its end: the data of each event.
func (h *host) events(path string, body m) []string {
	h.Helper()
	body["stream"] = true
	res, err := http.DefaultClient.Do(h.request("POST", path, body))
	if err != nil {
		h.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.ContentLength != -1 {
		b, _ := io.ReadAll(res.Body)
		h.Fatalf("%s: %d %s %d %s", path, res.StatusCode, res.Header, res.ContentLength, b)
	}
	var out []string
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if d, ok := strings.CutPrefix(in.Text(), "data: "); ok {
			out = append(out, d)
		} else if in.Text() != "" && in.Text() != ":" && !strings.HasPrefix(in.Text(), "event: ") {
			h.Fatalf("line %q in a stream", in.Text())
		}
	}
	return out
}

func TestLoading(t *testing.T) {
	s, err := New(Options{Keys: []string{"k"}, Prefix: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	gate, served := make(chan *Model), make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, ln, func(context.Context) (*Model, error) { return <-gate, nil })
	}()
	h := &host{T: t, s: s, url: "http://" + ln.Addr().String() + "/x", key: "k"}
	for _, path := range []string{"/health", "/v1/health", "/v1/models", "/props"} {
		if msg := h.call("GET", path, nil).wantError(t, 503, "unavailable_error"); msg != "Loading model" {
			t.Errorf("%s says %q", path, msg)
		}
	}
	h.call("POST", "/v1/chat/completions", m{}).wantError(t, 503, "unavailable_error")
	h.call("POST", "/completion", m{}, func(r *http.Request) { r.Header.Del("Authorization") }).wantError(t, 401, "authentication_error")
	gate <- openModel(t)
	for until := time.Now().Add(5 * time.Second); h.call("GET", "/health", nil).status != 200; {
		if time.Now().After(until) {
			t.Fatal("never ready")
		}
		time.Sleep(5 * time.Millisecond)
	}

	// A stream that runs when the server is told to stop ends with an error, and Serve returns.
	res, err := http.DefaultClient.Do(h.request("POST", "/completion", m{"prompt": "a", "n_predict": -1, "ignore_eos": true, "stream": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatal(line, err)
	}
	start := time.Now()
	stop()
	rest, err := io.ReadAll(in)
	if err != nil || !strings.Contains(string(rest), `"unavailable_error"`) {
		t.Errorf("the stream ends with %.200q, %v", rest[max(0, len(rest)-200):], err)
	}
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve does not return")
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("shutdown took %s", d)
	}
	if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		t.Error("the socket is still open")
	}
}

func TestLoadFails(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	want := engine.ErrDoesNotFit
	if err := s.Serve(t.Context(), ln, func(context.Context) (*Model, error) { return nil, want }); err != want {
		t.Errorf("Serve says %v, want %v", err, want)
	}
}

func TestKeys(t *testing.T) {
	h := newHost(t, Options{Keys: []string{"one", "two"}})
	with := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("Authorization")
			if name != "" {
				r.Header.Set(name, value)
			}
		}
	}
	for _, c := range []struct {
		edit func(*http.Request)
		ok   bool
	}{
		{with("", ""), false}, {with("Authorization", "Bearer one"), true}, {with("Authorization", "Bearer two"), true},
		{with("Authorization", "two"), true}, {with("X-Api-Key", "one"), true}, {with("Authorization", "Bearer three"), false},
		{with("Authorization", "Bearer "), false}, {with("X-Api-Key", ""), false}, {with("X-Api-Key", "onetwo"), false},
		{func(r *http.Request) { // Authorization counts where both are given
			r.Header.Set("Authorization", "Bearer no")
			r.Header.Set("X-Api-Key", "one")
		}, false},
	} {
		r := h.call("GET", "/props", nil, c.edit)
		if c.ok && r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		} else if !c.ok {
			if msg := r.wantError(t, 401, "authentication_error"); msg != "Invalid API Key" {
				t.Error(msg)
			}
		}
	}
	for method, routes := range map[string][]string{
		"GET":  {"/v1/models", "/models", "/props", "/slots", "/lora-adapters", "/no/such"},
		"POST": {"/v1/chat/completions", "/completion", "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/slots/0", "/props"},
	} {
		for _, path := range routes {
			h.call(method, path, nil, with("", "")).wantError(t, 401, "authentication_error")
		}
	}
	for _, path := range []string{"/health", "/v1/health"} {
		if r := h.call("GET", path, nil, with("", "")); r.status != 200 {
			t.Errorf("%s needs a key: %d", path, r.status)
		}
	}
	if r := h.call("OPTIONS", "/v1/chat/completions", nil, with("", "")); r.status != 200 || r.body != "" {
		t.Errorf("OPTIONS: %d %q", r.status, r.body)
	}
}

func TestCORS(t *testing.T) {
	origin := func(r *http.Request) { r.Header.Set("Origin", "http://ui.example") }
	for _, c := range []struct {
		cors  CORS
		allow string
		creds string
	}{
		{CORS{}, "http://ui.example", "true"},
		{CORS{Origins: []string{"*"}, NoCredentials: true}, "*", ""},
		{CORS{Origins: []string{"http://ui.example"}}, "http://ui.example", "true"},
		{CORS{Origins: []string{"http://other.example"}}, "", "true"},
	} {
		h := newHost(t, Options{CORS: c.cors})
		for _, method := range []string{"GET", "OPTIONS"} {
			r := h.call(method, "/health", nil, origin)
			if r.header.Get("Access-Control-Allow-Origin") != c.allow || r.header.Get("Access-Control-Allow-Credentials") != c.creds {
				t.Errorf("%+v: %s", c.cors, r.header)
			}
			if method == "OPTIONS" && (!strings.Contains(r.header.Get("Access-Control-Allow-Methods"), "POST") || r.header.Get("Access-Control-Allow-Headers") != "*") {
				t.Errorf("%+v: %s", c.cors, r.header)
			}
		}
	}
}

// Without a key no web page may change the server's state, also not by a name of its own that leads here.
func TestSteering(t *testing.T) {
	h := newHost(t, Options{SaveSlots: true, Props: true})
	port := h.url[strings.LastIndexByte(h.url, ':'):]
	set := func(host, origin string) func(*http.Request) {
		return func(r *http.Request) {
			if host != "" {
				r.Host = host
			}
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
		}
	}
	for _, c := range []struct {
		host, origin string
		ok           bool
	}{
		{"", "", true}, {"localhost" + port, "", true}, {"127.0.0.2" + port, "", true}, {"[::1]" + port, "", true}, {"localhost", "", true},
		{"", h.url, true}, {"localhost" + port, "http://localhost" + port, true},
		{"evil.example" + port, "", false}, {"evil.example" + port, "http://evil.example" + port, false}, {"192.168.1.2", "", false},
		{"127.0.0.1.evil.example", "", false}, {"", "http://evil.example", false}, {"", "null", false}, {"localhost" + port, h.url, false},
		{"", "http://127.0.0.1:1", false}, {"", "https://" + strings.TrimPrefix(h.url, "http://"), false},
	} {
		for _, path := range []string{"/props", "/slots/1?action=erase"} {
			r := h.call("POST", path, m{}, set(c.host, c.origin))
			if c.ok && r.status != 200 {
				t.Errorf("%s host %q origin %q: %d %s", path, c.host, c.origin, r.status, r.body)
			} else if !c.ok {
				r.wantError(t, 403, "permission_error")
			}
		}
		if r := h.call("GET", "/props", nil, set(c.host, c.origin)); r.status != 200 {
			t.Errorf("reading is refused: %d", r.status)
		}
	}
	keyed := newHost(t, Options{Props: true, Keys: []string{"k"}})
	if r := keyed.call("POST", "/props", m{}, set("evil.example", "http://evil.example")); r.status != 200 {
		t.Errorf("with a key: %d %s", r.status, r.body)
	}
}

func TestTransport(t *testing.T) {
	h := newHost(t, Options{MaxBody: 1 << 16})
	h.call("GET", "/no/such/route", nil).wantError(t, 404, "not_found_error")
	h.call("GET", "/completion", nil).wantError(t, 404, "not_found_error")
	h.call("DELETE", "/props", nil).wantError(t, 404, "not_found_error")
	if r := h.call("HEAD", "/health", nil); r.status != 200 || r.body != "" {
		t.Errorf("HEAD: %d %q", r.status, r.body)
	}
	for body, say := range map[string]string{
		`{"prompt": "a"`: "JSON", "not json": "JSON", "": "no body", "[1]": "array", "null": "null", `"a"`: "string",
		`{"prompt":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "nests deeper",
	} {
		for _, path := range []string{"/completion", "/v1/chat/completions", "/tokenize"} {
			if msg := h.call("POST", path, body).wantError(t, 400, "invalid_request_error"); !strings.Contains(msg, say) {
				t.Errorf("%s %.40q: %s", path, body, msg)
			}
		}
	}
	big := `{"prompt":"` + strings.Repeat("a", 1<<16) + `"}`
	h.call("POST", "/completion", big).wantError(t, 413, "invalid_request_error")
	h.call("POST", "/completion", io.MultiReader(strings.NewReader(big)), func(r *http.Request) { // of unknown length
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(big)), -1
	}).wantError(t, 413, "invalid_request_error")
	for field, bad := range map[string]any{
		"temperature": "hot", "n_predict": "many", "top_k": m{}, "stream": "yes", "stop": 3, "seed": "x", "samplers": 4, "logit_bias": "x",
		"cache_prompt": 1, "n_probs": "a", "id_slot": "0", "response_fields": "content", "stream_options": 1, "grammar": 5, "ignore_eos": "no",
	} {
		if msg := h.call("POST", "/completion", m{"prompt": "a", "n_predict": 1, field: bad}).wantError(t, 400, "invalid_request_error"); !strings.Contains(msg, field) {
			t.Errorf("the message about %s does not name it: %s", field, msg)
		}
	}
	for field, bad := range map[string]any{"n_predict": -2, "id_slot": 4, "n": 5, "n_cmpl": 0, "repeat_last_n": -2, "n_keep": -2} {
		h.call("POST", "/completion", m{"prompt": "a", "n_predict": 1, field: bad}).wantError(t, 400, "invalid_request_error")
	}
	for _, prompt := range []any{nil, true, m{}, []any{1, 2, 999999999}, []any{1, 1.5}, []any{-1}} {
		h.call("POST", "/completion", m{"prompt": prompt, "n_predict": 1}).wantError(t, 400, "invalid_request_error")
	}
	// Clamped or without effect, not refused.
	h.ok("/completion", m{"prompt": "a", "n_predict": 1, "top_p": 7, "min_p": -1, "temperature": 1e300, "top_k": -3, "seed": 4294967295, "user": "x", "stop": nil, "logit_bias": [][]any{{100000, 1}}})
}

func TestPromptTooLong(t *testing.T) {
	h := newHost(t, Options{})
	prompt := make([]int, slotContext)
	for _, stream := range []bool{false, true} {
		r := h.call("POST", "/completion", m{"prompt": prompt, "stream": stream})
		r.wantError(t, 400, "exceed_context_size_error")
		e := r.json["error"].(map[string]any)
		if e["n_prompt_tokens"] != float64(slotContext) || e["n_ctx"] != float64(slotContext) {
			t.Errorf("%v", e)
		}
		long := strings.Repeat("word and another ", 200_000) // beyond what is cut into tokens to be counted
		r = h.call("POST", "/v1/chat/completions", m{"messages": []m{{"role": "user", "content": long}}, "stream": stream})
		r.wantError(t, 400, "exceed_context_size_error")
		if e := r.json["error"].(map[string]any); e["n_prompt_tokens"].(float64) <= slotContext {
			t.Errorf("%v", e)
		}
	}
}

// busy opens a stream that goes on until it is closed.
func (h *host) busy(body m) (leave func()) {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	body["n_predict"], body["ignore_eos"], body["stream"] = -1, true, true
	if body["prompt"] == nil {
		body["prompt"] = "on and on"
	}
	res, err := http.DefaultClient.Do(h.request("POST", "/completion", body).WithContext(ctx))
	if err != nil {
		h.Fatal(err)
	}
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		h.Fatal(err)
	}
	return func() {
		cancel()
		res.Body.Close()
	}
}

func (h *host) working() int {
	n := 0
	for _, s := range shared.sched.Slots() {
		if s.Processing {
			n++
		}
	}
	return n
}

// idle waits until n slots are at work, less than a second.
func (h *host) wait(n int, what string) {
	h.Helper()
	for start := time.Now(); h.working() != n; time.Sleep(2 * time.Millisecond) {
		if time.Since(start) > time.Second {
			h.Fatalf("%s: %d slots at work after a second, want %d", what, h.working(), n)
		}
	}
}

func TestDisconnect(t *testing.T) {
	h := newHost(t, Options{})
	leave := h.busy(m{"id_slot": 2})
	h.wait(1, "a stream")
	leave()
	h.wait(0, "a stream whose client left")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err := http.DefaultClient.Do(h.request("POST", "/completion", m{"prompt": "a", "n_predict": -1, "ignore_eos": true}).WithContext(ctx))
		if err == nil {
			res.Body.Close()
		}
	}()
	h.wait(1, "a plain request")
	cancel()
	<-done
	h.wait(0, "a plain request whose client left")

	// One that waits for its slot is dropped before it begins.
	leave = h.busy(m{"id_slot": 1})
	ctx, cancel = context.WithCancel(t.Context())
	done = make(chan struct{})
	go func() {
		defer close(done)
		res, err := http.DefaultClient.Do(h.request("POST", "/completion", m{"prompt": "b", "n_predict": -1, "ignore_eos": true, "id_slot": 1}).WithContext(ctx))
		if err == nil {
			res.Body.Close()
		}
	}()
	for shared.sched.Counters().Deferred != 1 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	for start := time.Now(); shared.sched.Counters().Deferred != 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Second {
			t.Fatal("the request of a client that left still waits")
		}
	}
	leave()
	h.wait(0, "the last stream")
}

func TestQueueIsBounded(t *testing.T) {
	h := newHost(t, Options{MaxRequests: 1, MaxBodies: 1 << 20})
	var leave []func()
	for range 4 {
		leave = append(leave, h.busy(m{}))
	}
	fifth := make(chan reply)
	go func() { fifth <- h.call("POST", "/completion", m{"prompt": "c", "n_predict": 1}) }()
	for shared.sched.Counters().Deferred != 1 {
		time.Sleep(time.Millisecond)
	}
	r := h.call("POST", "/completion", m{"prompt": "d", "n_predict": 1})
	r.wantError(t, 503, "unavailable_error")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if r := h.call("GET", "/slots?fail_on_no_slot=1", nil); r.status != 503 {
		t.Errorf("no slot is idle, and /slots says %d", r.status)
	}
	for _, path := range []string{"/health", "/v1/models", "/slots", "/props"} {
		if r := h.call("GET", path, nil); r.status != 200 {
			t.Errorf("%s while all is busy: %d", path, r.status)
		}
	}
	h.call("POST", "/tokenize", m{"content": strings.Repeat("a", 2<<20)}).wantError(t, 413, "invalid_request_error")
	for _, f := range leave {
		f()
	}
	if r := <-fifth; r.status != 200 {
		t.Errorf("the request that waited: %d %s", r.status, r.body)
	}
	h.wait(0, "the end")
}

// A client that announces a body and does not send it holds no memory of bodies to speak of.
func TestSlowBody(t *testing.T) {
	h := newHost(t, Options{})
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n{\"content\":\"")
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, b := h.s.gate.load(); b > 0 {
			if b > 1<<20 {
				t.Errorf("%d bytes are held for 12 that came", b)
			}
			break
		}
		if time.Since(start) > time.Second {
			t.Fatal("the request was not read")
		}
	}
	c.Close()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, b := h.s.gate.load(); b == 0 {
			break
		}
		if time.Since(start) > time.Second {
			t.Fatal("the body of a client that left is still held")
		}
	}
}

func TestPing(t *testing.T) {
	h := newHost(t, Options{})
	var leave []func()
	for i := range 4 {
		leave = append(leave, h.busy(m{"id_slot": i}))
	}
	res, err := http.DefaultClient.Do(h.request("POST", "/v1/chat/completions", m{
		"messages": []m{{"role": "user", "content": "hi"}}, "stream": true, "max_tokens": 2, "sse_ping_interval": 0.05,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for range 3 { // while it waits for a slot
		if line, err := in.ReadString('\n'); line != ":\n" || err != nil {
			t.Fatalf("%q %v, want a ping", line, err)
		}
		in.ReadString('\n')
	}
	for _, f := range leave {
		f()
	}
	b, err := io.ReadAll(in)
	if err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("%q %v", b, err)
	}
	h.wait(0, "the end")
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Prefix: "x"}, {Prefix: "/x/"}, {Keys: []string{""}}, {MaxConns: -1}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
