package server

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestLoops: an answer that repeats itself is told of in a field of ours on every dialect, streamed or not, and with
// stop_loops ends by its length.
func TestLoops(t *testing.T) {
	h := newHost(t, Options{})
	h2 := newHost(t, Options{Defaults: Defaults{StopLoops: true}})
	stuck := func(more m) m {
		b := m{"logit_bias": []any{[]any{100, 100000}}, "ignore_eos": true, "temperature": 0, "n_predict": 280}
		for k, v := range more {
			b[k] = v
		}
		return b
	}
	chat := m{"messages": []any{m{"role": "user", "content": "hi"}}, "max_tokens": 280}
	for _, c := range []struct {
		path, reason string
		body         m
	}{
		{"/completion", `"stop_type":"limit"`, m{"prompt": "a"}}, {"/v1/completions", `"finish_reason":"length"`, m{"prompt": "a"}},
		{"/v1/chat/completions", `"finish_reason":"length"`, chat}, {"/v1/messages", `"stop_reason":"max_tokens"`, chat},
		{"/v1/responses", `"reason":"max_output_tokens"`, m{"input": "a", "max_output_tokens": 280}},
	} {
		for _, stops := range []bool{false, true} {
			host, tokens := h, 280
			body := stuck(c.body)
			if stops {
				tokens = 256
				if c.path == "/completion" {
					body["stop_loops"] = true
				} else {
					host = h2
				}
			}
			r := host.ok(c.path, body)
			want, _ := json.Marshal(m{"index": 0, "period": 1, "at": 0, "tokens": tokens})
			var got any
			if o, ok := r.json["terrace"].(m); ok {
				if l, ok := o["loops"].([]any); ok && len(l) == 1 {
					got = l[0]
				}
			}
			if b, _ := json.Marshal(got); string(b) != string(want) {
				t.Errorf("%s, stop %v: terrace is %v, want %s", c.path, stops, r.json["terrace"], want)
			}
			if !strings.Contains(r.body, c.reason) {
				t.Errorf("%s, stop %v: no %s in %s", c.path, stops, c.reason, r.body)
			}
			all := strings.Join(host.events(c.path, body), "\n")
			if strings.Count(all, `"terrace":{"loops":[{"index":0,"period":1,"at":0,"tokens":`) != 1 || !strings.Contains(all, c.reason) {
				t.Errorf("%s, stop %v: the stream ends with %.500s", c.path, stops, all[max(0, len(all)-500):])
			}
		}
	}
	if r := h.ok("/completion", m{"prompt": "a", "n_predict": 40}); r.json["terrace"] != nil {
		t.Errorf("an answer without a loop has %v", r.json["terrace"])
	}
	h.call("POST", "/completion", m{"prompt": "a", "stop_loops": 3}).wantError(t, 400, "invalid_request_error")
}
