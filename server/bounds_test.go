package server

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestBombs: small or large requests that would take much memory or time are refused, quickly and in little memory.
func TestBombs(t *testing.T) {
	h := newHost(t, Options{Embed: true, Rerank: true})
	many := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	text := strings.Repeat("a", 9<<20)
	for name, c := range map[string]struct{ path, body, says string }{
		"numbers":     {"/completion", `{"prompt":[` + many(3<<20, "0") + `]}`, "values"},
		"detokenize":  {"/detokenize", `{"tokens":[` + many(3<<20, "1") + `]}`, "values"},
		"objects":     {"/v1/chat/completions", `{"messages":[` + many(1<<18, "{}") + `]}`, "objects"},
		"arrays":      {"/completion", `{"logit_bias":[` + many(1<<18, "[]") + `]}`, "objects"},
		"keys":        {"/completion", `{"logit_bias":{` + many(2<<20, `"a":1`) + `}}`, "values"},
		"adapters":    {"/lora-adapters", `[` + many(2<<20, `1`) + `]`, "values"},
		"deep":        {"/completion", strings.Repeat("[", 20<<20), "deeper"},
		"stops":       {"/completion", `{"prompt":"a","stop":["` + strings.Repeat("x", 600) + `"]}`, "stop[0] has 600 bytes"},
		"one stop":    {"/completion", `{"prompt":"a","stop":"` + strings.Repeat("x", 600) + `"}`, "stop has 600 bytes"},
		"fields":      {"/completion", `{"prompt":"a","response_fields":[` + many(200, `"timings/x"`) + `]}`, "response_fields has 200"},
		"probs":       {"/completion", `{"prompt":"a","n_probs":300}`, "alternatives"},
		"chat probs":  {"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":300}`, "alternatives"},
		"tokenize":    {"/tokenize", `{"content":"` + text + `"}`, "at most"},
		"pieces":      {"/tokenize", `{"content":"` + text[:1<<20] + `","with_pieces":true}`, "at most"},
		"long prompt": {"/completion", `{"prompt":"` + text + `"}`, "context"},
		"pieced":      {"/completion", `{"prompt":[1,` + many(40, `"`+text[:900<<10]+`"`) + `]}`, "context"},
		"regexp":      {"/completion", `{"prompt":"a","n_predict":2,"json_schema":{"type":"string","pattern":"^((a{1,1000}){1,1000}){1,1000}$"}}`, ""},
		"regexp 2":    {"/completion", `{"prompt":"a","n_predict":20,"json_schema":{"type":"string","pattern":"^(a|a|a|aa|aaa)*(a*)*(a*)*b$"}}`, ""},
		"references":  {"/completion", `{"prompt":"a","n_predict":2,"json_schema":{"$ref":"#/$defs/a0","$defs":{` + doubling(24) + `}}}`, ""},
		"all of":      {"/completion", `{"prompt":"a","n_predict":2,"json_schema":{"allOf":[` + many(60, `{"anyOf":[{"minLength":1},{"maxLength":9},{"pattern":"^a"}]}`) + `]}}`, ""},
		"enum":        {"/completion", `{"prompt":"a","n_predict":2,"json_schema":{"enum":[` + many(100000, `"abcdefghij"`) + `]}}`, ""},
		"gbnf":        {"/completion", `{"prompt":"a","n_predict":2,"grammar":"root ::= ((\"a\"{1,1000}){1,1000}){1,1000}"}`, ""},
		"gbnf empty":  {"/completion", `{"prompt":"a","n_predict":2,"grammar":"root ::= ((((\"\"*)*)*)*)*"}`, ""},
		"gbnf rules":  {"/completion", `{"prompt":"a","n_predict":2,"grammar":"` + ruleBomb(40) + `"}`, ""},
		"kwargs":      {"/v1/chat/completions", `{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":[` + many(100000, "[1]") + `]}}`, ""},
		"tools":       {"/v1/chat/completions", `{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[` + many(4000, `{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","pattern":"^a{1,50}$"}}}}}`) + `]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h.T = t
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			r := h.call("POST", c.path, c.body)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			// The request itself is there several times: the client's, the server's, and in parts.
			if grown := int64(after.TotalAlloc-before.TotalAlloc) - 8*int64(len(c.body)); grown > 300<<20 && !raceEnabled {
				t.Errorf("%d MiB allocated for a body of %d KiB (answer %d %.200s)", grown>>20, len(c.body)>>10, r.status, r.body)
			}
			if took > 30*time.Second && !raceEnabled { // a bomb takes minutes; machines may be busy
				t.Errorf("took %v (answer %d %.200s)", took, r.status, r.body)
			}
			if r.status == 500 || c.says != "" && (r.status == 200 || !strings.Contains(r.body, c.says)) {
				t.Errorf("%d %.300s, want a refusal that says %q", r.status, r.body, c.says)
			}
			t.Logf("%v, %d MiB, %d %.160s", took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, r.status, r.body)
		})
	}
	h.T = t
	h.ok("/completion", m{"prompt": "a", "n_predict": 1, "n_probs": 200})
}

// doubling are n definitions, each of which refers to the next twice.
func doubling(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"a%d":{"type":"array","prefixItems":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}],"minItems":2},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"a%d":{"type":"integer"}`, n)
	return b.String()
}

// ruleBomb are n rules of GBNF, each of which is the next one or itself, twice.
func ruleBomb(n int) string {
	var b strings.Builder
	b.WriteString("root ::= r0")
	for i := range n {
		fmt.Fprintf(&b, `\nr%d ::= r%d r%d | r%d`, i, i+1, i+1, i+1)
	}
	fmt.Fprintf(&b, `\nr%d ::= \"a\" | \"\"`, n)
	return b.String()
}
